"""What sends to queues and to topics share: input as it arrives, a count of what was accepted.

Input from a pipe is sent as soon as it arrives: a batch ends where the pipe has no more for now, so
``tail -f file | penstock message send jobs -`` does not hold back nine lines. However the run ends,
the user learns how many messages the server has accepted."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar

import click

from penstock.cli.command import Session
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse
from penstock.cli.terminal.interrupts import Interrupts
from penstock.cli.terminal.output import Progress

_READ_BYTES = 65_536
# A message is at most 1 MiB, which JSON escapes can make six times longer.
_LINE_BYTES_MAX = 8 * 1_048_576
_FAILURES_LISTED_MAX = 20

T = TypeVar("T")
Lines = Sequence[tuple[int, str]]  # with their numbers, from one


def read_input(
    bodies: Sequence[str], path: str | None, *, is_whole: bool = False
) -> Iterator[Lines]:
    """Yield the arguments, or the lines of a file as they arrive, or a whole file as one line."""
    if path is None:
        yield list(enumerate(bodies, 1))
        return
    with click.open_file(path, "rb") as stream:
        if not is_whole:
            yield from line_chunks(stream)
            return
        try:
            yield [(1, stream.read().decode())]
        except UnicodeDecodeError:
            raise Failure(f"'{path}' is not UTF-8 text", fix="send it as base64 text") from None


def line_chunks(stream: IO[bytes]) -> Iterator[Lines]:
    """Yield the numbered lines of each read as a list; empty lines count but are left out."""
    # The streams that click opens have read1, which returns as soon as there is data.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    rest = b""
    place = 0
    while True:
        data = read(_READ_BYTES)
        *whole, rest = (rest + data).split(b"\n") if data else (rest, b"")
        chunk = []
        for raw in whole:
            place += 1
            line = _text(place, raw.removesuffix(b"\r"))
            if line:
                chunk.append((place, line))
        if chunk:
            yield chunk
        if not data:
            return
        if len(rest) > _LINE_BYTES_MAX:
            raise Failure(f"line {place + 1} is larger than a message can be")


def _text(place: int, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Misuse(
            f"line {place} is not a message",
            f"not UTF-8: {error.reason} at byte {error.start}",
            "send binary data as base64 text",
        ) from None


def parse_object(line: str, fields: frozenset[str]) -> dict[str, Any]:
    """Parse a line of NDJSON. Raises ValueError with the reason; also for an unknown field, because
    a misspelt ``group`` must not become a message without one."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    if unknown := found.keys() - fields:
        raise ValueError(f"unknown field '{min(unknown)}'")
    return found


class Sender:
    """Sends pieces and counts accepted and rejected items."""

    def __init__(self, session: Session, noun: str, target: str) -> None:
        """``noun`` in the singular; ``target`` is the queue or the topic."""
        self._session = session
        self._noun = noun
        self._target = target
        self.accepted = 0
        self.failed = 0

    def run(self, source: Iterable[Sequence[T]], send: Callable[[Sequence[T]], None]) -> None:
        """Send all pieces. If this is interrupted, the number of accepted items is reported first;
        Ctrl-C waits for the reply under way, so that the number is exact."""
        progress = Progress("sending", is_quiet=self._session.settings.quiet)
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

    def reject(self, place: int, why: str) -> None:
        """Report an item by its line or argument. Not a remark: it is shown even with --quiet."""
        self.failed += 1
        if self.failed <= _FAILURES_LISTED_MAX:
            click.echo(f"{self._noun} {place} rejected: {why}", err=True)
        elif self.failed == _FAILURES_LISTED_MAX + 1:
            click.echo("further rejected items are counted, not listed", err=True)

    def end(self, item: dict[str, Any] | None, name: str) -> None:
        """Print one item, or the counts; exit with a code that says whether all were accepted."""
        noun = "queue" if self._noun == "message" else "topic"
        counts = {noun: self._target, "sent": self.accepted, "failed": self.failed}
        self._session.out.one(counts if item is None else item, name=name)
        if self.failed:
            raise click.exceptions.Exit(ExitCode.PARTIAL if self.accepted else ExitCode.FAILED)

    def _accepted_text(self) -> str:
        return f"'{self._target}' had accepted {self.accepted} {self._noun}s"
