"""Results of a coordinator's decision: replies, rows to append, and when to call ``tick``.

The broker parks every request under a ticket of its choice. A decision may reply to any tickets: to
its own, to none, or to those of requests parked before. Rules for the broker:

- The rows of one decision go into one batch, so that a crash leaves all of them or none.
- A reply with ``after_commit`` waits until everything this coordinator has appended so far is
  committed, even if this decision has no rows: the reply may depend on earlier rows.
- When an append fails, memory is ahead of the log. The state is folded from the log again; replies
  held back become an error on which clients retry.
- A decision may reply to a ticket whose client is gone; the broker ignores that reply.
"""

import msgspec

from penstock.cursor.group.codes import Code
from penstock.cursor.group.rows import Row


class Reply(msgspec.Struct, frozen=True):
    """The base of all replies; used alone where there is only a code."""

    code: Code = Code.NONE


class Answer(msgspec.Struct, frozen=True, gc=False):
    ticket: int
    reply: Reply
    after_commit: bool = False


class Decision(msgspec.Struct, frozen=True, gc=False):
    answers: tuple[Answer, ...] = ()
    rows: tuple[Row, ...] = ()
    wake_at_ms: int | None = None  # monotonic; None: there is no deadline


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
