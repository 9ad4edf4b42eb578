"""Messages as records: the fields of a message, in a form that Kafka consumers can read.

    record key     the group (UTF-8), or null
    record value   the body
    header 0       ``penstock``: server's fields, one MessagePack array, trailing defaults left out
                   [message id, sender, dedup id, delay ms, trace, attempts, source arn, sent at ms,
                    is sealed]
    header 1…      one per message attribute: name, raw value; and, when its data type is not
                   exactly ``String``, right after it ``penstock.type.<name>`` with the type

If any attribute's name starts with ``penstock``, the type of every attribute is written, which
keeps decoding unambiguous. The ``penstock`` header is trusted only in batches that the server wrote
(``is_server_batch``); any other record gets its message id from its position in the log, and its
headers become attributes. To add a field: append it to ``_System`` with a default.

The record value of a sealed message is its encrypted body and attributes, which only a frontend can
decrypt. A producer's sealed record has no headers (or no value and one header, ``penstock.sealed``,
because compaction depends on which values are null). A record counts as sealed only if its batch
has the sealed bit, which no producer can set. The sealed content:

    content = kind 1 B (0: a message's, 1: a producer's) │ value │ header count │ headers

The code is on the hot path of send and receive, so it uses tables instead of calls."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated

import msgspec

from penstock.model.limits import ATTEMPTS_MAX, DELAY_MS_MAX, DELIVERED_RECORD_BYTES_MAX
from penstock.model.message import Attribute, Message, Record
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_SEALED,
    BatchHeader,
    is_server_batch,
    parse_header,
)
from penstock.record.malformed import MalformedBatch
from penstock.record.record import (
    RECORDS_BYTES_MAX,
    SMALL,
    Header,
    decode_varint,
    encode_varint,
    heads_of,
    records_blob,
    take_field,
    take_headers,
)

SYSTEM_HEADER = b"penstock"
TYPE_PREFIX = b"penstock.type."
SEALED_HEADER = b"penstock.sealed"
# The maximum number of a record's headers that become message attributes. Messages sent to a queue
# have at most 21. A producer's record may have 4,096, which would take 20 ms per receive.
FOREIGN_HEADERS_MAX = 100
# A message of an SNS topic has as many attributes as fit into a form of 1,000 fields.
OWN_HEADERS_MAX = 1_000
STRING = "String"
BINARY = "Binary"


class _System(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of the ``penstock`` header. The ranges of numbers are checked, because in old logs
    a producer's header may have the same name and look alike."""

    message_id: bytes
    sender: str = ""
    dedup_id: str | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    trace_header: str | None = None
    attempts: Annotated[int, msgspec.Meta(ge=0, le=ATTEMPTS_MAX)] = 0
    source_arn: str | None = None
    sent_at_ms: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    is_sealed: bool = False


_DEFAULTS = ("", None, None, None, 0, None, None, False)
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_system = msgspec.msgpack.Decoder(_System).decode

_TABLE_SIZE = len(SMALL)
_NULL = b"\x01"  # varint −1
_SYSTEM_NAME = encode_varint(len(SYSTEM_HEADER)) + SYSTEM_HEADER
_ID_BYTES = 16
_ONLY_SYSTEM = b"\x02" + _SYSTEM_NAME  # header count 1, then the header's name
# A MessagePack array of a 16-byte id and a text of less than 32 bytes, written without an encoder.
_PAIR = b"\x92\xc4\x10"
_FIXSTR = tuple(bytes((0xA0 | size,)) for size in range(32))


def encode_message(message: Message, *, offset_delta: int, timestamp_delta: int) -> bytes:
    system = _encode_system(message)
    body = message.body
    size = len(body)
    group = message.group
    if group is None:
        key = _NULL
    else:
        raw = group.encode()
        key = encode_varint(len(raw)) + raw
    attributes = message.attributes
    content = b"".join(
        (
            b"\x00",
            SMALL[timestamp_delta]
            if 0 <= timestamp_delta < _TABLE_SIZE
            else encode_varint(timestamp_delta),
            SMALL[offset_delta] if offset_delta < _TABLE_SIZE else encode_varint(offset_delta),
            key,
            SMALL[size] if size < _TABLE_SIZE else encode_varint(size),
            body,
            encode_varint(1 + _header_count(attributes)) + _SYSTEM_NAME
            if attributes
            else _ONLY_SYSTEM,
            SMALL[len(system)] if len(system) < _TABLE_SIZE else encode_varint(len(system)),
            system,
            _encode_attributes(attributes) if attributes else b"",
        )
    )
    size = len(content)
    return (SMALL[size] if size < _TABLE_SIZE else encode_varint(size)) + content


def _encode_system(message: Message) -> bytes:
    message_id = message.message_id
    rest = (
        message.dedup_id,
        message.delay_ms,
        message.trace_header,
        message.attempts,
        message.source_arn,
        message.sent_at_ms,
        message.is_sealed,
    )
    sender = message.sender
    if rest == (None, None, None, 0, None, None, False) and len(message_id) == _ID_BYTES:
        raw = sender.encode()
        if len(raw) < len(_FIXSTR):
            return _PAIR + message_id + _FIXSTR[len(raw)] + raw
    fields: list[object] = [message_id, sender, *rest]
    while len(fields) > 1 and fields[-1] == _DEFAULTS[len(fields) - 2]:
        fields.pop()
    return _encode_msgpack(fields)


def _types_all(attributes: Mapping[str, Attribute]) -> bool:
    return any(name.startswith("penstock") for name in attributes)


def _header_count(attributes: Mapping[str, Attribute]) -> int:
    typed = len(attributes)
    if not _types_all(attributes):
        typed = sum(attribute.data_type != STRING for attribute in attributes.values())
    return len(attributes) + typed


def _encode_attributes(attributes: Mapping[str, Attribute]) -> bytes:
    is_typed = _types_all(attributes)
    parts: list[bytes] = []
    for name, attribute in attributes.items():
        raw = name.encode()
        value = attribute.value
        parts += (encode_varint(len(raw)), raw, encode_varint(len(value)), value)
        if is_typed or attribute.data_type != STRING:
            raw = TYPE_PREFIX + raw
            data_type = attribute.data_type.encode()
            parts += (encode_varint(len(raw)), raw, encode_varint(len(data_type)), data_type)
    return b"".join(parts)


def decode_at(
    batch: bytes, offset: int, *, origin: bytes, header: BatchHeader | None = None
) -> Record | None:
    """Decode the record at an offset, or return None if the batch has no record there."""
    if header is None:
        header = parse_header(batch)
    blob = records_blob(batch, header)
    for delta, _, start, *_ in heads_of(blob, header):
        if header.base_offset + delta == offset:
            return decode_some(blob, start, 1, header, origin, offset)[0][0]
    return None


def decode_batch(batch: bytes, *, origin: bytes, from_offset: int = 0) -> list[Record]:
    """Decode the records of a batch. A message without an id gets an id derived from ``origin``."""
    header = parse_header(batch)
    blob = records_blob(batch, header)
    records, number, end = decode_some(blob, 0, header.count, header, origin, from_offset)
    assert number == header.count, "not all records were decoded"
    if end != len(blob):
        raise MalformedBatch(f"there are {len(blob) - end} bytes after the last record")
    return records


def decode_some(
    blob: bytes,
    position: int,
    count: int,
    header: BatchHeader,
    origin: bytes,
    from_offset: int,
    bytes_max: int = RECORDS_BYTES_MAX,
) -> tuple[list[Record], int, int]:
    """Decode up to ``count`` records, and stop after ``bytes_max`` bytes. Return the records, how
    many were read (including those before ``from_offset``), and the position after the last one."""
    last_delta, base_timestamp = header.last_offset_delta, header.base_timestamp
    is_append_time = header.attributes & ATTR_APPEND_TIME != 0
    is_own, sealed = is_server_batch(header), header.attributes & ATTR_SEALED
    records: list[Record] = []
    add, total, end, stop_at = records.append, len(blob), position, position + bytes_max
    try:
        for number in range(count):
            if end >= stop_at:
                return records, number, end
            size, position = decode_varint(blob, end)
            end = position + size
            if size < 0 or end > total:
                raise MalformedBatch(f"a record of {size} bytes runs past the end of the batch")
            delta_ms, position = blob[position + 1], position + 2  # after the unused attributes
            if delta_ms < 0x80:
                delta_ms = (delta_ms >> 1) ^ -(delta_ms & 1)
            else:
                delta_ms, position = decode_varint(blob, position - 1)
            delta, position = blob[position], position + 1
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, position = decode_varint(blob, position - 1)
            if not 0 <= delta <= last_delta:
                raise MalformedBatch(f"offset delta {delta} is outside the batch")
            offset = header.base_offset + delta
            if offset < from_offset:
                continue
            if size > DELIVERED_RECORD_BYTES_MAX:
                raise MalformedBatch(f"a record of {size} bytes is too large for a message")
            at_ms = header.max_timestamp if is_append_time else base_timestamp + delta_ms
            message = decode_message(blob, position, end, origin, offset, sealed, is_own)
            add(Record(offset, at_ms, message))
    except IndexError:
        raise MalformedBatch("a record runs past the end of the batch") from None
    except UnicodeDecodeError as error:
        raise MalformedBatch(f"a message attribute is not UTF-8: {error.reason}") from None
    return records, count, end


def decode_message(
    blob: bytes, position: int, end: int, origin: bytes, offset: int, sealed: int, is_own: bool
) -> Message:
    """Decode a message; ``position`` is the start of its key. ``sealed`` is the batch's sealed bit.
    ``is_own`` is True if the server wrote the batch, so that the ``penstock`` header is trusted."""
    if blob[position] == 1:
        group = None
        position += 1
    else:
        key, position = take_field(blob, position, end)
        group = None if key is None else group_of(key)
    byte = blob[position]
    size, position = (
        ((byte >> 1) ^ -(byte & 1), position + 1) if byte < 0x80 else decode_varint(blob, position)
    )
    if size < 0:
        body = b""
    else:
        stop = position + size
        body = blob[position:stop]
        position = stop
        if stop > end:
            raise MalformedBatch("a value runs past the end of its record")
    # Most records are the server's own, without attributes.
    if is_own and blob.startswith(_ONLY_SYSTEM, position):
        raw, after = take_field(blob, position + len(_ONLY_SYSTEM), end)
        system = None if raw is None or after != end else _system(raw)
        if system is not None:
            return _message(system, body, None, group, sealed)
    count_max = OWN_HEADERS_MAX if is_own else FOREIGN_HEADERS_MAX
    headers = take_headers(blob, position, end, count_max=count_max)
    if is_own and headers and headers[0][0] == SYSTEM_HEADER:
        system = _system(headers[0][1] or b"")
        if system is not None:
            return _message(system, body, _own_attributes(headers, 1), group, sealed)
    message_id = blake2b(b"%b@%d" % (origin, offset), digest_size=_ID_BYTES).digest()
    if sealed:
        if size >= 0 and not headers:
            return Message(message_id, body, None, group, is_sealed=True)
        if size < 0 and headers and headers[0][0] == SEALED_HEADER:
            return Message(message_id, headers[0][1] or b"", None, group, is_sealed=True)
    return Message(message_id, body, _producer_attributes(headers), group)


def _message(
    system: _System,
    body: bytes,
    attributes: Mapping[str, Attribute] | None,
    group: str | None,
    sealed: int,
) -> Message:
    return Message(
        system.message_id,
        body,
        attributes,
        group,
        system.dedup_id,
        system.delay_ms,
        system.sender,
        system.trace_header,
        system.attempts,
        system.source_arn,
        system.sent_at_ms,
        system.is_sealed and sealed != 0,
    )


OWN = b"\x00"
FOREIGN = b"\x01"


def encode_content(message: Message) -> bytes:
    body, attributes = message.body, message.attributes
    if not attributes:
        return b"".join((OWN, encode_varint(len(body)), body, b"\x00"))
    count = encode_varint(_header_count(attributes))
    return b"".join((OWN, encode_varint(len(body)), body, count, _encode_attributes(attributes)))


def decode_content(content: bytes) -> tuple[bytes, Mapping[str, Attribute] | None]:
    end = len(content)
    try:
        body, position = take_field(content, 1, end)
        headers = take_headers(content, position, end, count_max=FOREIGN_HEADERS_MAX)
        if content[:1] == OWN:
            return body or b"", _own_attributes(headers, 0)
        return body or b"", _producer_attributes(headers)
    except IndexError:
        raise MalformedBatch("the decrypted content of a message is incomplete") from None
    except UnicodeDecodeError as error:
        raise MalformedBatch(f"a message attribute is not UTF-8: {error.reason}") from None


def _system(raw: bytes) -> _System | None:
    """Decode the ``penstock`` header, or return None if the server did not write it."""
    try:
        system = _decode_system(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return system if len(system.message_id) == _ID_BYTES else None


def group_of(key: bytes) -> str:
    """Return the message group of a Kafka key: the text, or hex if it is not UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()


def _own_attributes(headers: list[Header], index: int) -> Mapping[str, Attribute] | None:
    attributes: dict[str, Attribute] = {}
    while index < len(headers):
        raw, value = headers[index]
        index += 1
        data_type = STRING
        if index < len(headers) and headers[index][0] == TYPE_PREFIX + raw:
            data_type = (headers[index][1] or b"").decode()
            index += 1
        attributes[raw.decode()] = Attribute(data_type, value or b"")
    return attributes or None


def _producer_attributes(headers: list[Header]) -> Mapping[str, Attribute] | None:
    if headers and headers[0][0] == SYSTEM_HEADER and _system(headers[0][1] or b""):
        return _own_attributes(headers, 1)  # a copy of a queue's message
    attributes: dict[str, Attribute] = {}
    for raw, value in headers:
        data_type = STRING
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            data_type = BINARY
        attributes[raw.decode("utf-8", "replace")] = Attribute(data_type, value or b"")
    return attributes or None
