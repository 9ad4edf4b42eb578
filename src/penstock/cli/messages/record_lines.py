"""Records as text: read from arguments, lines or NDJSON, printed by ``message tail --topic``.

The JSON that tail prints can be sent again unchanged. Bytes that are not UTF-8 are in a separate
field, ``value_base64`` for ``value`` and so on; a value of null is a record without one, which in a
compacted topic deletes its key."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.cli.messages.sending import parse_object
from penstock.cli.terminal.failure import Misuse
from penstock.cli.terminal.output import one_line
from penstock.record.record import Header, RawRecord, encode_record

# The header in which a queue stores fields of its messages; not shown to people.
SYSTEM_HEADER = b"penstock"

_SENT_FIELDS = ("key", "key_base64", "headers", "value", "value_base64", "partition")
_FIELDS = frozenset((*_SENT_FIELDS, "topic", "offset", "timestamp_ms"))
_KEY_MAX = 24  # characters of a key in a line of text


class OutgoingRecord(NamedTuple):
    place: int  # number of its line or argument, from one
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    partition: int | None = None

    def encoded(self, number: int) -> bytes:
        return encode_record(
            offset_delta=number,
            timestamp_delta=0,
            key=self.key,
            value=self.value,
            headers=self.headers,
        )


class RecordDefaults(NamedTuple):
    """Values from flags, for records that have none of their own."""

    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None


def from_text(place: int, value: str, defaults: RecordDefaults) -> OutgoingRecord:
    return OutgoingRecord(place, defaults.key, value.encode(), defaults.headers, defaults.partition)


def from_json(place: int, line: str, defaults: RecordDefaults) -> OutgoingRecord:
    try:
        given = parse_object(line, _FIELDS)
        if "value" not in given and "value_base64" not in given:
            raise ValueError("'value' is missing; write null for a record without a value")
        partition = given.get("partition")
        if isinstance(partition, bool) or not isinstance(partition, int | None):
            raise ValueError("'partition' must be a number")
        has_key = "key" in given or "key_base64" in given
        return OutgoingRecord(
            place,
            _bytes_of(given, "key") if has_key else defaults.key,
            _bytes_of(given, "value"),
            (*defaults.headers, *_headers_of(given.get("headers"))),
            defaults.partition if partition is None else partition,
        )
    except ValueError as error:
        raise Misuse(
            f"line {place} is not a record",
            str(error),
            'with --ndjson each line is an object like {"key": "a", "value": "hello"}',
        ) from None


def _bytes_of(given: Mapping[str, Any], name: str) -> bytes | None:
    encoded = given.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError):
            raise ValueError(f"'{name}_base64' is not base64") from None
    text = given.get(name)
    if not isinstance(text, str | None):
        raise ValueError(f"'{name}' is not a string; write JSON values as a quoted string")
    return None if text is None else text.encode()


def _headers_of(given: Any) -> list[Header]:
    """Parse ``{"name": "value"}``, or a list of objects, for repeated names and for bytes."""
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    given = [] if given is None else given
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError("'headers' must be an object or a list of objects with name and value")
    for each in given:
        if not isinstance(each.get("name"), str) or each.keys() - {"name", "value", "value_base64"}:
            raise ValueError("a header needs a name, and a value or a value_base64")
    return [(each["name"].encode(), _bytes_of(each, "value")) for each in given]


def header_from_flag(text: str) -> Header:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Misuse(f"invalid header '{text}'", fix="write --header NAME=VALUE")
    return name.encode(), value.encode()


# ── Printing ─────────────────────────────────────────────────────────────────────────────────


def as_item(topic: str, partition: int, record: RawRecord) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        **_field("key", record.key),
        "headers": [
            {"name": name.decode("utf-8", "replace"), **_field("value", value)}
            for name, value in record.headers
        ],
        **_field("value", record.value),
    }


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def value_text(data: bytes | None) -> str:
    """Return the text to show: base64 for a value that is not text."""
    if data is None:
        return "(null)"
    found = _field("value", data)
    return str(found["value"]) if "value" in found else f"base64:{found['value_base64']}"


def as_text(partition: int, record: RawRecord) -> str:
    try:
        at = datetime.fromtimestamp(record.timestamp / 1_000, UTC)
        moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a producer's timestamp may be any number
        moment = str(record.timestamp)
    key = "-" if record.key is None else one_line(value_text(record.key), _KEY_MAX)
    parts = [f"{partition}:{record.offset}", moment, key]
    headers = [
        f"{name.decode('utf-8', 'replace')}={value_text(value)}"
        for name, value in record.headers
        if name != SYSTEM_HEADER
    ]
    if headers:
        parts.append(" ".join(headers))
    return "  ".join([*parts, value_text(record.value)])
