"""Messages to be sent to a queue: read from an argument, lines or NDJSON, and sent in batches.

An NDJSON object has the fields that ``message receive`` prints, so the output of one command is the
input of the other."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from penstock.cli.command import Session
from penstock.cli.messages.sending import Lines, Sender, parse_object
from penstock.cli.terminal.failure import Failure, Misuse, fix_in

BATCH_COUNT_MAX = 10
# One request may have 1 MiB of bodies and attributes, counted as the server does.
BATCH_BYTES_MAX = 1_048_576

# Fields of NDJSON. A send ignores the other fields that receive, peek and tail print.
_SENT_FIELDS = ("body", "attributes", "group", "dedup_id", "delay")
_IGNORED_FIELDS = (
    "message_id receipt sequence_number attempts sent_at_ms source trace_header sender partition"
    " offset state appended_at_ms blocked_by until_ms age_s size_bytes delay_ms"
)
_FIELDS = frozenset((*_SENT_FIELDS, *_IGNORED_FIELDS.split()))


class Outgoing(NamedTuple):
    place: int  # number of its line or argument, from one
    entry: dict[str, Any]  # an entry of SendMessageBatch, without its Id
    size_bytes: int


class Defaults(NamedTuple):
    """Values from flags, for messages that have none of their own."""

    group: str | None = None
    dedup_id: str | None = None
    delay_s: int | None = None
    attributes: dict[str, Any] | None = None
    is_unique: bool = False  # each message without a deduplication id gets a new one


def unusable(place: int, why: str) -> Failure:
    return Misuse(
        f"line {place} is not a message",
        why,
        'with --ndjson each line is an object like {"body": "hello", "group": "a"}',
    )


def from_text(place: int, body: str, defaults: Defaults) -> Outgoing:
    entry: dict[str, Any] = {"MessageBody": body}
    if defaults.group is not None:
        entry["MessageGroupId"] = defaults.group
    if defaults.dedup_id is not None or defaults.is_unique:
        entry["MessageDeduplicationId"] = defaults.dedup_id or str(uuid.uuid4())
    if defaults.delay_s is not None:
        entry["DelaySeconds"] = defaults.delay_s
    if defaults.attributes:
        entry["MessageAttributes"] = defaults.attributes
    return Outgoing(place, entry, _size(entry))


def from_json(place: int, line: str, defaults: Defaults) -> Outgoing:
    try:
        value = parse_object(line, _FIELDS)
        return from_text(place, _checked(value, "body"), defaults._replace(**_own(value, defaults)))
    except ValueError as error:
        raise unusable(place, str(error)) from None


def _own(value: dict[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Return the fields that the object itself has. Raises ValueError."""
    own: dict[str, Any] = {
        field: _checked(value, field)
        for field in ("group", "dedup_id")
        if value.get(field) is not None
    }
    if value.get("delay") is not None:
        if isinstance(value["delay"], bool) or not isinstance(value["delay"], int):
            raise ValueError("'delay' must be a whole number of seconds")
        own["delay_s"] = value["delay"]
    if given := value.get("attributes"):
        if not isinstance(given, dict):
            raise ValueError("'attributes' must be an object of names and values")
        made = {name: _attribute(name, item) for name, item in given.items()}
        own["attributes"] = {**(defaults.attributes or {}), **made}
    return own


def _checked(value: dict[str, Any], field: str) -> str:
    if not isinstance(value.get(field), str):
        missing = " is missing or" if field == "body" else " is"
        raise ValueError(f"'{field}'{missing} not a string")
    return str(value[field])


def _attribute(name: str, value: object) -> dict[str, Any]:
    """Parse ``"text"``, a number, or ``{"type": "Binary", "value": "base64"}``."""
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": value}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"DataType": "Number", "StringValue": str(value)}
    if isinstance(value, dict) and value.keys() == {"type", "value"}:
        return _typed(str(value["type"]), str(value["value"]))
    raise ValueError(f"attribute '{name}' must be a string or number, or have type and value")


def _typed(kind: str, content: str) -> dict[str, Any]:
    field = "BinaryValue" if kind.startswith("Binary") else "StringValue"
    return {"DataType": kind, field: content}


def attribute_from_flag(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``name=value`` or ``name:Type=value``."""
    label, sign, value = text.partition("=")
    name, _, kind = label.partition(":")
    if not name or not sign:
        raise Misuse(
            f"invalid attribute '{text}'", fix="write --attribute NAME=VALUE or NAME:Number=VALUE"
        )
    return name, _typed(kind or "String", value)


def _size(entry: dict[str, Any]) -> int:
    size = len(entry["MessageBody"].encode())
    for name, value in entry.get("MessageAttributes", {}).items():
        content = value.get("StringValue") or value.get("BinaryValue") or ""
        size += len(name.encode()) + len(value["DataType"]) + len(content.encode())
    return size


def batches(messages: Iterable[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    """Group messages by up to ten and one MiB. A larger message goes alone, because the server has
    the better error for it. If the source fails, messages before the failure are still sent."""
    batch: list[Outgoing] = []
    size_bytes = 0
    try:
        for message in messages:
            if batch and size_bytes + message.size_bytes > BATCH_BYTES_MAX:
                yield batch
                batch, size_bytes = [], 0
            batch.append(message)
            size_bytes += message.size_bytes
            if len(batch) == BATCH_COUNT_MAX:
                yield batch
                batch, size_bytes = [], 0
    except Failure:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


class MessageSender(Sender):
    def __init__(self, session: Session, queue: str, *, is_single: bool) -> None:
        """``is_single``: one message is sent; its refusal is the failure of the command."""
        super().__init__(session, "message", queue)
        self._is_single = is_single
        self._url = session.sqs.queue_url(queue)
        self.replies: list[dict[str, Any]] = []  # of the last batch only

    def send(self, batch: Sequence[Outgoing]) -> None:
        if len(batch) == 1 and batch[0].size_bytes > BATCH_BYTES_MAX:
            large = f"message too large: {batch[0].size_bytes:,} bytes; at most 1,048,576 (1 MiB)"
            why, do = "body and attributes count", "send less, or a link to the data"
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


def send_messages(
    session: Session,
    queue: str,
    source: Iterable[Lines],
    defaults: Defaults,
    *,
    is_ndjson: bool,
    is_single: bool,
    is_whole: bool,
) -> None:
    make = from_json if is_ndjson else from_text
    sender = MessageSender(session, queue, is_single=is_single or is_whole)
    chunks = (batches(make(place, line, defaults) for place, line in chunk) for chunk in source)
    sender.run(chain.from_iterable(chunks), sender.send)
    item = None
    if is_single and sender.replies:
        reply = sender.replies[0]
        item = {"message_id": reply["MessageId"]}
        if "SequenceNumber" in reply:
            item["sequence_number"] = reply["SequenceNumber"]
    sender.end(item, "message_id" if item else "name")
