"""What a coordinator's decision returns: answers, rows to append, when to look again.

The shell parks every request under a ticket of its choice. A decision may answer any tickets: its
own, none, or those of requests parked before. Rules for the shell:

- The rows of one decision go into one batch, so that a crash leaves all of them or none.
- An answer with ``after_commit`` waits until everything this coordinator has appended so far is
  committed, also when this decision itself has no rows: it may tell of an earlier one's.
- When an append fails, memory has decided what the log does not know. The state is folded from the
  log again; held-back answers become an error the client repeats on.
- A ticket that nobody waits for any more is answered all the same; the shell ignores it.
"""

import msgspec

from penstock.cursor.group.codes import Code
from penstock.cursor.group.rows import Row


class Reply(msgspec.Struct, frozen=True):
    """Common to all replies; used as it is where there is nothing more to say."""

    code: Code = Code.NONE


class Answer(msgspec.Struct, frozen=True, gc=False):
    ticket: int
    reply: Reply
    after_commit: bool = False


class Decision(msgspec.Struct, frozen=True, gc=False):
    answers: tuple[Answer, ...] = ()
    rows: tuple[Row, ...] = ()
    wake_at_ms: int | None = None  # monotonic; None: nothing is waiting for time to pass


class Draft:
    """A decision while it is being made."""

    __slots__ = ("answers", "rows")

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.rows: list[Row] = []

    def answer(self, ticket: int | None, reply: Reply, *, after_commit: bool = False) -> None:
        if ticket is not None:
            self.answers.append(Answer(ticket, reply, after_commit))

    def decide(self, wake_at_ms: int | None) -> Decision:
        return Decision(tuple(self.answers), tuple(self.rows), wake_at_ms)
