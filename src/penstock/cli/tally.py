"""Counts accepted and refused items of a send, for messages to a queue and records to a topic, and
reports the count if the send ends early."""

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
        """Send all pieces. If this is interrupted, the number of accepted items is reported first;
        Ctrl-C waits for the reply under way, so that the number is exact."""
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
        """Report an item by its line or argument. Not a remark: it is shown even with --quiet."""
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
