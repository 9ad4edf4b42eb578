"""Sending many messages: reads input as it arrives, sends batches, counts what was accepted.

Input from a pipe is sent as soon as it is there: a batch ends where the pipe has no more for now,
so ``tail -f file | penstock message send jobs -`` does not sit on nine lines. Whatever ends the
run, the user learns how many messages the server has accepted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.outgoing import Defaults, Outgoing, batches, from_json, from_text
from penstock.cli.progress import Progress
from penstock.cli.session import Session

_READ_BYTES = 65_536
# A message is at most 1 MiB, which JSON escapes can make six times longer.
_LINE_BYTES_MAX = 8 * 1_048_576
_FAILURES_LISTED_MAX = 20

Reader = Callable[[int, str, Defaults], Outgoing]


def line_chunks(stream: IO[bytes]) -> Iterator[Sequence[tuple[int, str]]]:
    """Numbered lines, in lists of what each read found; empty lines count but are left out."""
    # Text wrappers and raw files alike have read1 in what click hands out.
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
            raise Failure(f"line {place + 1} is longer than a message can be")


def _text(place: int, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Failure(
            f"line {place} is not a message",
            f"not UTF-8: {error.reason} at byte {error.start}",
            "send binary data as base64 text",
            exit_code=ExitCode.USAGE,
        ) from None


def read_lines(
    stream: IO[bytes], defaults: Defaults, *, is_ndjson: bool
) -> Iterator[Sequence[Outgoing]]:
    make: Reader = from_json if is_ndjson else from_text
    for chunk in line_chunks(stream):
        yield from batches(make(place, line, defaults) for place, line in chunk)


class Sender:
    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue
        self._url = session.sqs.queue_url(queue)
        self.accepted = 0
        self.failed = 0
        self.replies: list[dict[str, Any]] = []  # of the last batch only

    def send(self, source: Iterable[Sequence[Outgoing]], *, total: int | None = None) -> None:
        """Send all of it. On any interruption the count of accepted messages is told first."""
        progress = Progress("sending", total=total, is_quiet=self._session.settings.quiet)
        try:
            with progress:
                for batch in source:
                    self._send_batch(batch)
                    progress.update(self.accepted + self.failed)
        except KeyboardInterrupt:
            self._session.remark(f"interrupted: {self._accepted_text()}")
            raise
        except Failure as failure:
            if self.accepted:
                failure.why = f"{failure.why}; {self._accepted_text()}".removeprefix("; ")
                failure.exit_code = ExitCode.PARTIAL
            raise

    def _accepted_text(self) -> str:
        return f"{self.accepted} messages had been accepted by '{self._queue}'"

    def _send_batch(self, batch: Sequence[Outgoing]) -> None:
        entries = [{"Id": str(number), **item.entry} for number, item in enumerate(batch)]
        reply = self._session.sqs.call(
            "SendMessageBatch",
            {"QueueUrl": self._url, "Entries": entries},
            what=f"cannot send to '{self._queue}'",
        )
        self.replies = reply.get("Successful", [])
        self.accepted += len(self.replies)
        for fault in reply.get("Failed", ()):
            self.failed += 1
            if self.failed <= _FAILURES_LISTED_MAX:
                place = batch[int(fault["Id"])].place
                text = f"{fault.get('Message', '')} ({fault.get('Code', '')})"
                self._tell(f"message {place} refused: {text}")
            elif self.failed == _FAILURES_LISTED_MAX + 1:
                self._tell("further refusals are counted, not listed")

    def _tell(self, text: str) -> None:
        # Not a remark: a refused message must be seen even with --quiet.
        import click

        click.echo(text, err=True)

    def outcome(self) -> ExitCode:
        if not self.failed:
            return ExitCode.OK
        return ExitCode.PARTIAL if self.accepted else ExitCode.FAILED
