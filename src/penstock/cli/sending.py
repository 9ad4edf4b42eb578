"""Sends many messages: reads input as it arrives, sends batches, counts accepted messages.

Input from a pipe is sent as soon as it arrives: a batch ends where the pipe has no more for now, so
``tail -f file | penstock message send jobs -`` does not hold back nine lines. However the run ends,
the user learns how many messages the server has accepted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from penstock.cli.failure import ExitCode, Failure, fix_in
from penstock.cli.outgoing import BATCH_BYTES_MAX, Defaults, Outgoing, batches, from_json, from_text
from penstock.cli.session import Session
from penstock.cli.tally import Tally

_READ_BYTES = 65_536
# A message is at most 1 MiB, which JSON escapes can make six times longer.
_LINE_BYTES_MAX = 8 * 1_048_576

Reader = Callable[[int, str, Defaults], Outgoing]


def line_chunks(stream: IO[bytes]) -> Iterator[Sequence[tuple[int, str]]]:
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


class Sender(Tally):
    def __init__(self, session: Session, queue: str, *, is_single: bool = False) -> None:
        """``is_single``: one message is sent; its refusal is the failure of the command."""
        super().__init__(session, "message", queue)
        self._is_single = is_single
        self._url = session.sqs.queue_url(queue)
        self.replies: list[dict[str, Any]] = []  # of the last batch only

    def send(self, source: Iterable[Sequence[Outgoing]], *, total: int | None = None) -> None:
        self.run(source, self._send_batch, total=total)

    def _send_batch(self, batch: Sequence[Outgoing]) -> None:
        if len(batch) == 1 and batch[0].size_bytes > BATCH_BYTES_MAX:
            large = f"message too large: {batch[0].size_bytes:,} bytes; at most 1,048,576 (1 MiB)"
            why, do = "body and attributes count", "send less, or a link to where the data is"
            self._refused(batch[0].place, large, why, do)
            return
        entries = [{"Id": str(number), **item.entry} for number, item in enumerate(batch)]
        reply = self._session.sqs.call(
            "SendMessageBatch",
            {"QueueUrl": self._url, "Entries": entries},
            what=f"cannot send to '{self._target}'",
        )
        self.replies = reply.get("Successful", [])
        self.accepted += len(self.replies)
        for fault in reply.get("Failed", ()):
            text = f"{fault.get('Message', '')} ({fault.get('Code', '')})"
            place = batch[int(fault["Id"])].place
            self._refused(place, f"cannot send to '{self._target}'", text, fix_in(text))

    def _refused(self, place: int, what: str, why: str, do: str) -> None:
        if self._is_single:
            raise Failure(what, why, do)
        told = what if what.startswith("message") else why
        self.refuse(place, f"{told}; do: {do}" if do else told)
