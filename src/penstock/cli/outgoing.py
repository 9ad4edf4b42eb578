"""Messages to be sent: read from an argument, lines or NDJSON, grouped into batches.

Pure. An NDJSON object has the fields that ``message receive`` prints, so the output of one command
is the input of the other; an unknown field is rejected, because a misspelt ``group`` must not
become a message without one."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.cli.failure import ExitCode, Failure

BATCH_COUNT_MAX = 10
# One request may have 1 MiB of bodies and attributes, counted as the server does.
BATCH_BYTES_MAX = 1_048_576

_SENT_FIELDS = frozenset(("body", "attributes", "group", "dedup_id", "delay"))
# Other fields that receive, peek and tail print; a send ignores them.
_IGNORED_FIELDS = frozenset(
    [
        "message_id",
        "receipt",
        "sequence_number",
        "attempts",
        "sent_at_ms",
        "source",
        "trace_header",
        "sender",
        "partition",
        "offset",
        "state",
        "appended_at_ms",
        "blocked_by",
        "until_ms",
        "age_s",
        "size_bytes",
        "delay_ms",
    ]
)


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


def unusable(place: int, why: str) -> Failure:
    return Failure(
        f"line {place} is not a message",
        why,
        'with --ndjson each line is an object like {"body": "hello", "group": "a"}',
        exit_code=ExitCode.USAGE,
    )


def from_text(place: int, body: str, defaults: Defaults) -> Outgoing:
    entry: dict[str, Any] = {"MessageBody": body}
    if defaults.group is not None:
        entry["MessageGroupId"] = defaults.group
    if defaults.dedup_id is not None:
        entry["MessageDeduplicationId"] = defaults.dedup_id
    if defaults.delay_s is not None:
        entry["DelaySeconds"] = defaults.delay_s
    if defaults.attributes:
        entry["MessageAttributes"] = defaults.attributes
    return Outgoing(place, entry, _size(entry))


def from_json(place: int, line: str, defaults: Defaults) -> Outgoing:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise unusable(place, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise unusable(place, f"a JSON object is needed, not {type(value).__name__}")
    strange = value.keys() - _SENT_FIELDS - _IGNORED_FIELDS
    if strange:
        raise unusable(place, f"unknown field '{min(strange)}'")
    body = value.get("body")
    if not isinstance(body, str):
        raise unusable(place, "'body' is missing or not a text")
    own: dict[str, Any] = {}
    for field in ("group", "dedup_id"):
        if value.get(field) is not None:
            own[field] = _text(place, field, value[field])
    if value.get("delay") is not None:
        if isinstance(value["delay"], bool) or not isinstance(value["delay"], int):
            raise unusable(place, "'delay' is a whole number of seconds")
        own["delay_s"] = value["delay"]
    if value.get("attributes"):
        given = value["attributes"]
        if not isinstance(given, dict):
            raise unusable(place, "'attributes' is an object of names and values")
        own["attributes"] = {
            **(defaults.attributes or {}),
            **{name: _attribute(place, name, item) for name, item in given.items()},
        }
    return from_text(place, body, defaults._replace(**own))


def _text(place: int, field: str, value: object) -> str:
    if not isinstance(value, str):
        raise unusable(place, f"'{field}' is not a text")
    return value


def _attribute(place: int, name: str, value: object) -> dict[str, Any]:
    """Parse ``"text"``, a number, or ``{"type": "Binary", "value": "base64"}``."""
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": value}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"DataType": "Number", "StringValue": str(value)}
    if isinstance(value, dict) and value.keys() == {"type", "value"}:
        kind, content = str(value["type"]), str(value["value"])
        field = "BinaryValue" if kind.startswith("Binary") else "StringValue"
        return {"DataType": kind, field: content}
    raise unusable(place, f"attribute '{name}' is a text, a number, or has a type and a value")


def attribute_from_flag(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``name=value`` or ``name:Type=value``."""
    label, sign, value = text.partition("=")
    name, _, kind = label.partition(":")
    if not name or not sign:
        raise Failure(
            f"'{text}' is not an attribute",
            fix="write --attribute NAME=VALUE or NAME:Number=VALUE",
            exit_code=ExitCode.USAGE,
        )
    field = "BinaryValue" if kind.startswith("Binary") else "StringValue"
    return name, {"DataType": kind or "String", field: value}


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
