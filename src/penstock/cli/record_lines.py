"""Records as text: read from arguments, lines or NDJSON, printed by ``message tail --topic``.

The JSON that tail prints can be sent again unchanged. Bytes that are not UTF-8 are in a separate
field, ``value_base64`` for ``value`` and so on; a value of null is a record without one, which in a
compacted topic deletes its key. An unknown field is rejected: a misspelt ``key`` must not become a
record without one."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.failure import ExitCode, Failure
from penstock.record.record import Header, RawRecord, encode_record

# The header in which a queue stores fields of its messages; not shown to people.
SYSTEM_HEADER = b"penstock"

_SENT_FIELDS = frozenset(("key", "key_base64", "headers", "value", "value_base64", "partition"))
_IGNORED_FIELDS = frozenset(("topic", "offset", "timestamp_ms"))
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


def unusable(place: int, why: str) -> Failure:
    return Failure(
        f"line {place} is not a record",
        why,
        'with --ndjson each line is an object like {"key": "a", "value": "hello"}',
        exit_code=ExitCode.USAGE,
    )


def from_text(place: int, value: str, defaults: RecordDefaults) -> OutgoingRecord:
    return OutgoingRecord(place, defaults.key, value.encode(), defaults.headers, defaults.partition)


def from_json(place: int, line: str, defaults: RecordDefaults) -> OutgoingRecord:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise unusable(place, f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise unusable(place, f"a JSON object is needed, not {type(given).__name__}")
    strange = given.keys() - _SENT_FIELDS - _IGNORED_FIELDS
    if strange:
        raise unusable(place, f"unknown field '{min(strange)}'")
    if "value" not in given and "value_base64" not in given:
        raise unusable(place, "'value' is missing; null is a record without one")
    has_key = "key" in given or "key_base64" in given
    partition = given.get("partition")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
        raise unusable(place, "'partition' is a number")
    return OutgoingRecord(
        place,
        _bytes_of(place, given, "key") if has_key else defaults.key,
        _bytes_of(place, given, "value"),
        (*defaults.headers, *_headers_of(place, given.get("headers"))),
        defaults.partition if partition is None else partition,
    )


def _bytes_of(place: int, given: Mapping[str, Any], name: str) -> bytes | None:
    encoded = given.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise unusable(place, f"'{name}_base64' is not base64") from None
    text = given.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise unusable(place, f"'{name}' is not a text; quote it, or write it as JSON in a text")
    return text.encode()


def _headers_of(place: int, given: Any) -> list[Header]:
    """Parse ``{"name": "value"}``, or a list of objects, for repeated names and for bytes."""
    if given is None:
        return []
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise unusable(place, "'headers' is an object, or a list of objects with name and value")
    made = []
    for each in given:
        if not isinstance(each.get("name"), str) or each.keys() - {"name", "value", "value_base64"}:
            raise unusable(place, "a header has a name, and a value or a value_base64")
        made.append((each["name"].encode(), _bytes_of(place, each, "value")))
    return made


def header_from_flag(text: str) -> Header:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Failure(
            f"'{text}' is not a header",
            fix="write --header NAME=VALUE",
            exit_code=ExitCode.USAGE,
        )
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
    from datetime import UTC, datetime

    from penstock.cli.output import one_line

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
