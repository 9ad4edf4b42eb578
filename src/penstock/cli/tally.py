"""What became of things that are sent one after the other: how many were accepted, which were not,
and what the user is told when it ends early. The same for messages to a queue and records to a
topic; how a piece of input is sent is their own affair.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.interrupts import Interrupts
from penstock.cli.progress import Progress
from penstock.cli.session import Session

_FAILURES_LISTED_MAX = 20

T = TypeVar("T")


class Tally:
    def __init__(self, session: Session, noun: str, target: str) -> None:
        """``noun`` in the singular; ``target`` is the queue or the topic."""
        self._session = session
        self._noun = noun
        self._target = target
        self.accepted = 0
        self.failed = 0

    def run(
        self,
        source: Iterable[Sequence[T]],
        send: Callable[[Sequence[T]], None],
        *,
        total: int | None = None,
    ) -> None:
        """Send all of it. On any interruption the count of what was accepted is told first; a
        Ctrl-C waits for the answer under way, for who sends wants to know what was accepted."""
        progress = Progress("sending", total=total, is_quiet=self._session.settings.quiet)
        try:
            with Interrupts() as interrupts, progress:
                for piece in source:
                    with interrupts.held():
                        send(piece)
                    progress.update(self.accepted + self.failed)
        except KeyboardInterrupt:
            self._session.remark(f"interrupted: {self._accepted_text()}")
            raise
        except Failure as failure:
            if self.accepted:
                failure.why = f"{failure.why}; {self._accepted_text()}".removeprefix("; ")
                failure.exit_code = ExitCode.PARTIAL
            raise

    def refuse(self, place: int, why: str) -> None:
        """The one at this place of the input. Not a remark: it must be seen even with --quiet."""
        self.failed += 1
        if self.failed <= _FAILURES_LISTED_MAX:
            click.echo(f"{self._noun} {place} refused: {why}", err=True)
        elif self.failed == _FAILURES_LISTED_MAX + 1:
            click.echo("further refusals are counted, not listed", err=True)

    def outcome(self) -> ExitCode:
        if not self.failed:
            return ExitCode.OK
        return ExitCode.PARTIAL if self.accepted else ExitCode.FAILED

    def _accepted_text(self) -> str:
        return f"{self.accepted} {self._noun}s had been accepted by '{self._target}'"
