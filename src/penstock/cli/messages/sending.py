"""Reads messages from arguments, files or pipes and sends them to a queue in batches. A batch is
sent as soon as the pipe has no more data, so ``tail -f file | penstock message send jobs -`` does
not delay lines. An NDJSON object has the fields that ``message receive`` prints."""

import contextlib
import json
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from types import FrameType
from typing import IO, Any, NamedTuple, TypeVar

import click

from penstock.cli.command import Session
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse, fix_in
from penstock.cli.terminal.options import attribute_of
from penstock.cli.terminal.output import progress_bar

_READ_BYTES = 65_536
# A message is at most 1 MiB, which JSON escapes can make six times longer.
_LINE_BYTES_MAX = 8 * 1_048_576
FAILURES_LISTED_MAX = 20
BATCH_COUNT_MAX = 10
# The server allows 1 MiB of bodies and attributes in one request.
BATCH_BYTES_MAX = 1_048_576
# Fields of NDJSON. Only those of the first line are sent; receive, peek and tail print the others.
_FIELD_NAMES = (
    "body attributes group dedup_id delay"
    " message_id receipt sequence_number attempts sent_at_ms source trace_header sender"
    " partition offset state appended_at_ms blocked_by until_ms age_s size_bytes delay_ms"
)
_FIELDS = frozenset(_FIELD_NAMES.split())

T = TypeVar("T")
Lines = Sequence[tuple[int, str]]  # line numbers, from one, and lines


class Interrupts:
    """Delays Ctrl-C within ``held`` until the current step is done, so that the user learns what
    the server has accepted. A second Ctrl-C takes effect at once."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_asked = False
        self._before: Any = None
        # Only the main thread receives signals; in other threads this class does nothing.
        self._is_listening = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupts":
        if self._is_listening:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_listening:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_held or self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_asked:
            raise KeyboardInterrupt


def read_input(
    bodies: Sequence[str], path: str | None, *, is_whole: bool = False
) -> Iterator[Lines]:
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
    """Yield lists of (number, line), one list per read of the stream, without empty lines."""
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
            try:
                line = raw.removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                raise Misuse(
                    f"line {place} is not a message",
                    f"the line is not UTF-8: {error.reason} at byte {error.start}",
                    "send binary data as base64 text",
                ) from None
            if line:
                chunk.append((place, line))
        if chunk:
            yield chunk
        if not data:
            return
        if len(rest) > _LINE_BYTES_MAX:
            raise Failure(f"line {place + 1} is too long: it has more than 8 MiB")


def parse_object(line: str, fields: frozenset[str]) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"the line is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"the line is a JSON {type(found).__name__}, not an object")
    if unknown := found.keys() - fields:
        raise ValueError(f"the field '{min(unknown)}' is unknown")
    return found


class Sender:
    def __init__(self, session: Session, noun: str, target: str) -> None:
        self._session = session
        self._noun = noun
        self._target = target
        self.accepted = 0
        self.failed = 0

    def run(self, source: Iterable[Sequence[T]], send: Callable[[Sequence[T]], None]) -> None:
        """Send all batches. Ctrl-C takes effect after the current reply, so counts are exact."""
        progress = progress_bar("sending", is_quiet=self._session.settings.quiet)
        try:
            with Interrupts() as interrupts, progress as update:
                for piece in source:
                    with interrupts.held():
                        send(piece)
                    update(self.accepted + self.failed)
        except KeyboardInterrupt:
            self._session.remark(f"interrupted: {self._accepted_text()}")
            raise
        except Failure as failure:
            if self.accepted:
                failure.why = f"{failure.why}; {self._accepted_text()}".removeprefix("; ")
                failure.exit_code = ExitCode.PARTIAL
            raise

    def reject(self, place: int, why: str) -> None:
        self.failed += 1
        if self.failed <= FAILURES_LISTED_MAX:
            click.echo(f"{self._noun} {place} rejected: {why}", err=True)
        elif self.failed == FAILURES_LISTED_MAX + 1:
            click.echo("further rejected items are counted but not listed", err=True)

    def end(self, item: dict[str, Any] | None, name: str, name_of_counts: str) -> None:
        """Print ``item``, or the counts if it is None. Exit with an error if a send failed."""
        noun = "queue" if self._noun == "message" else "topic"
        counts = {noun: self._target, "sent": self.accepted, "failed": self.failed}
        self._session.out.one(item or counts, name=name if item else name_of_counts)
        if self.failed:
            raise click.exceptions.Exit(ExitCode.PARTIAL if self.accepted else ExitCode.FAILED)

    def _accepted_text(self) -> str:
        return f"'{self._target}' had accepted {self.accepted} {self._noun}s"


class Outgoing(NamedTuple):
    place: int  # number of the line or argument, from one
    entry: dict[str, Any]  # an entry of SendMessageBatch, without its Id
    size_bytes: int


class Defaults(NamedTuple):
    group: str | None = None
    dedup_id: str | None = None
    delay: int | None = None
    attributes: dict[str, Any] | None = None
    unique: bool = False  # each message without a deduplication id gets a new one


def from_text(place: int, body: str, defaults: Defaults) -> Outgoing:
    entry: dict[str, Any] = {"MessageBody": body}
    if defaults.group is not None:
        entry["MessageGroupId"] = defaults.group
    if defaults.dedup_id is not None or defaults.unique:
        entry["MessageDeduplicationId"] = defaults.dedup_id or str(uuid.uuid4())
    if defaults.delay is not None:
        entry["DelaySeconds"] = defaults.delay
    if defaults.attributes:
        entry["MessageAttributes"] = defaults.attributes
    size = len(body.encode())
    for name, value in (defaults.attributes or {}).items():
        content = value.get("StringValue") or value.get("BinaryValue") or ""
        size += len(name.encode()) + len(value["DataType"]) + len(content.encode())
    return Outgoing(place, entry, size)


def from_json(place: int, line: str, defaults: Defaults) -> Outgoing:
    try:
        value = parse_object(line, _FIELDS)
        own: dict[str, Any] = {}
        for field in ("body", "group", "dedup_id"):
            if field == "body" or value.get(field) is not None:
                own[field] = value.get(field)
                if not isinstance(own[field], str):
                    missing = "is missing or not" if field == "body" else "is not"
                    raise ValueError(f"'{field}' {missing} a string")
        if value.get("delay") is not None:
            if isinstance(value["delay"], bool) or not isinstance(value["delay"], int):
                raise ValueError("'delay' must be a whole number of seconds")
            own["delay"] = value["delay"]
        if given := value.get("attributes"):
            if not isinstance(given, dict):
                raise ValueError("'attributes' must be an object of names and values")
            made = {name: _attribute(name, item) for name, item in given.items()}
            own["attributes"] = {**(defaults.attributes or {}), **made}
    except ValueError as error:
        raise Misuse(
            f"line {place} is not a message",
            str(error),
            'with --ndjson each line is an object like {"body": "hello", "group": "a"}',
        ) from None
    return from_text(place, own.pop("body"), defaults._replace(**own))


def _attribute(name: str, value: object) -> dict[str, Any]:
    """Return an SQS attribute made from a text, a number, or an object with type and value."""
    if isinstance(value, str):
        return attribute_of("String", value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return attribute_of("Number", str(value))
    if isinstance(value, dict) and value.keys() == {"type", "value"}:
        return attribute_of(str(value["type"]), str(value["value"]))
    raise ValueError(f"attribute '{name}' must be a string, number, or object with type and value")


def typed(attributes: dict[str, Any], kind: str, *fields: str) -> dict[str, Any]:
    """Convert attributes of an API reply to NDJSON attributes with ``type`` and ``value``."""
    made = {}
    for name, found in attributes.items():
        value = next((found[field] for field in fields if field in found), "")
        made[name] = {"type": found[kind], "value": value}
    return made


def batches(messages: Iterable[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    """Group messages into batches of at most 10 messages and 1 MiB. A larger message is a batch of
    its own. If the source fails, the messages before the failure are still yielded."""
    batch: list[Outgoing] = []
    size_bytes = 0
    try:
        for message in messages:
            size_bytes += message.size_bytes
            if batch and (len(batch) == BATCH_COUNT_MAX or size_bytes > BATCH_BYTES_MAX):
                yield batch
                batch, size_bytes = [], message.size_bytes
            batch.append(message)
    except Failure:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


class MessageSender(Sender):
    """Sends messages to a queue. If ``is_single``, a rejected message raises a Failure."""

    def __init__(self, session: Session, queue: str, *, is_single: bool) -> None:
        super().__init__(session, "message", queue)
        self._is_single = is_single
        self._url = session.sqs.queue_url(queue)
        self.replies: list[dict[str, Any]] = []  # of the last batch only

    def send_lines(self, source: Iterable[Lines], make: Callable[[int, str], Outgoing]) -> None:
        chunks = (batches(make(place, line) for place, line in chunk) for chunk in source)
        self.run(chain.from_iterable(chunks), self.send)

    def shown(self) -> dict[str, Any] | None:
        fields = {"message_id": "MessageId", "sequence_number": "SequenceNumber"}
        found = next(iter(self.replies), {})
        return {field: found[name] for field, name in fields.items() if name in found} or None

    def send(self, batch: Sequence[Outgoing]) -> None:
        if len(batch) == 1 and batch[0].size_bytes > BATCH_BYTES_MAX:
            large = (
                f"message is too large: {batch[0].size_bytes:,} bytes; at most 1,048,576 (1 MiB)"
            )
            why, do = "body and attributes are counted", "send less, or a link to the data"
            self._reject(batch[0].place, large, why, do)
            return
        entries = [{"Id": str(number), **item.entry} for number, item in enumerate(batch)]
        what = f"cannot send to '{self._target}'"
        request = {"QueueUrl": self._url, "Entries": entries}
        reply = self._session.sqs.call("SendMessageBatch", request, what=what)
        self.replies = reply.get("Successful", [])
        self.accepted += len(self.replies)
        for fault in reply.get("Failed", ()):
            text = f"{fault.get('Message', '')} ({fault.get('Code', '')})"
            self._reject(batch[int(fault["Id"])].place, what, text, fix_in(text))

    def _reject(self, place: int, what: str, why: str, do: str) -> None:
        if self._is_single:
            raise Failure(what, why, do)
        text = what if what.startswith("message") else why
        self.reject(place, f"{text}; do: {do}" if do else text)
