"""The encoding of a record inside a batch. Numbers are zig-zag varints, in groups of seven bits,
lowest first:

    length · attributes i8 = 0 · time delta · offset delta · key length (−1: null), key
    · value length (−1: null), value · header count, headers
    header = key length, key · value length (−1: null), value

``length`` counts the bytes after it. The bytes may come from any client, so every length is checked
against the remaining bytes. The functions here decode one-byte varints inline."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import ATTR_CODEC_MASK, HEADER_BYTES, BatchHeader, parse_header
from penstock.record.compression import decompress, decompress_to_view
from penstock.record.malformed import MalformedBatch

VARINT_BYTES_MAX = 10  # 64 bits in groups of seven


def encode_varint(value: int) -> bytes:
    if 0 <= value < _TABLE_SIZE:
        return SMALL[value]
    return _encode(value)


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    try:
        byte = buffer[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        raw = byte & 0x7F
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            position += 1
            byte = buffer[position]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1), position + 1
    except IndexError:
        raise MalformedBatch("a varint runs past the end of the batch") from None
    raise MalformedBatch(f"a varint is longer than {VARINT_BYTES_MAX} bytes")


# Lengths and deltas are usually small. A table lookup is four times as fast as the loop.
_TABLE_SIZE = 4_096
SMALL: tuple[bytes, ...] = tuple(_encode(value) for value in range(_TABLE_SIZE))


Header = tuple[bytes, bytes | None]

# The maximum size of a batch's decompressed records. It allows normal compression ratios and
# protects against decompression bombs.
RECORDS_BYTES_MAX = 4 * BATCH_BYTES_MAX
HEADERS_PER_RECORD_MAX = 4_096
COPIED_BYTES_MAX = BATCH_BYTES_MAX  # copying them takes about 5 ms


class RawRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


class RecordSlice(NamedTuple):
    """The positions of the parts of a record, so that its bytes can be copied without decoding."""

    offset_delta: int
    time_delta: int
    key: bytes | None
    is_tombstone: bool  # the record has no value
    start: int  # position of the length field
    fields_at: int  # position after the length field
    offset_at: int  # position after the time delta
    key_at: int
    value_at: int
    end: int


def encode_record(
    *,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> bytes:
    parts = [b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    parts += (b"\x01",) if key is None else (encode_varint(len(key)), key)
    parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        parts += (encode_varint(len(name)), name)
        parts += (b"\x01",) if content is None else (encode_varint(len(content)), content)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def records_blob(batch: bytes, header: BatchHeader, *, bytes_max: int = RECORDS_BYTES_MAX) -> bytes:
    packed = _packed(batch, header)
    if header.attributes & ATTR_CODEC_MASK or len(packed) > bytes_max:
        return decompress(header.codec, packed, bytes_max=bytes_max)
    return packed


def records_view(
    batch: bytes, header: BatchHeader, *, bytes_max: int = RECORDS_BYTES_MAX
) -> bytes | memoryview:
    """Return the same as ``records_blob`` but do not copy large data. Call this in a thread."""
    view = decompress_to_view(header.codec, _packed(batch, header), bytes_max=bytes_max)
    return view if len(view) > COPIED_BYTES_MAX else bytes(view)


def _packed(batch: bytes, header: BatchHeader) -> bytes:
    end = header.total_bytes
    if not HEADER_BYTES <= end <= len(batch):
        raise MalformedBatch(f"the batch has {end} bytes, but the buffer has {len(batch)}")
    return batch[HEADER_BYTES:end]


def iter_records(batch: bytes, *, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[RawRecord]:
    """Yield the records of a batch. The CRC is not checked, because reads of the log check it."""
    header = parse_header(batch)
    blob = records_blob(batch, header, bytes_max=bytes_max)
    append_time = header.max_timestamp if header.is_append_time else None
    for delta, time_delta, _, _, _, position, end in heads_of(blob, header):
        try:
            key, position = take_field(blob, position, end)
            value, position = take_field(blob, position, end)
            headers = take_headers(blob, position, end)
        except IndexError:
            raise MalformedBatch("a record runs past the end of the batch") from None
        timestamp = header.base_timestamp + time_delta if append_time is None else append_time
        yield RawRecord(header.base_offset + delta, timestamp, key, value, headers)


def heads_of(blob: bytes | memoryview, header: BatchHeader) -> Iterator[tuple[int, ...]]:
    """Yield offset delta, time delta and positions of each record. Short varints are decoded
    inline, because a call for each field would double the time."""
    last_delta, total, end = header.last_offset_delta, len(blob), 0
    try:
        for _ in range(header.count):
            start = end
            size, fields_at = decode_varint(blob, start)
            end = fields_at + size
            if size < 0 or end > total:
                raise MalformedBatch(f"a record of {size} bytes runs past the end of the batch")
            time_delta, offset_at = blob[fields_at + 1], fields_at + 2
            if time_delta < 0x80:
                time_delta = (time_delta >> 1) ^ -(time_delta & 1)
            else:
                time_delta, offset_at = decode_varint(blob, fields_at + 1)
            delta, key_at = blob[offset_at], offset_at + 1
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, key_at = decode_varint(blob, offset_at)
            if not 0 <= delta <= last_delta:
                raise MalformedBatch(f"offset delta {delta} is outside the batch")
            if key_at >= end:
                raise MalformedBatch("the fields of a record do not match its length")
            yield delta, time_delta, start, fields_at, offset_at, key_at, end
    except IndexError:
        raise MalformedBatch("a record runs past the end of the batch") from None
    if end != total:
        raise MalformedBatch(f"there are {total - end} bytes after the last record")


def slices_of(blob: bytes, header: BatchHeader) -> Iterator[RecordSlice]:
    make = tuple.__new__
    for delta, time_delta, start, fields_at, offset_at, key_at, end in heads_of(blob, header):
        key_size, value_at = decode_varint(blob, key_at)
        key = None
        if key_size >= 0:
            key = blob[value_at : value_at + key_size]
            value_at += key_size
        value_size, headers_at = decode_varint(blob, value_at)
        if min(key_size, value_size) < -1 or headers_at + max(0, value_size) >= end:
            raise MalformedBatch("the fields of a record do not match its length")
        positions = (start, fields_at, offset_at, key_at, value_at, end)
        yield make(RecordSlice, (delta, time_delta, key, value_size < 0, *positions))


def take_field(blob: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """Return a field with a length prefix, and the position after it."""
    byte = blob[position]
    if byte < 0x80:
        size, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        size, position = decode_varint(blob, position)
    if size < 0:
        if size != -1:
            raise MalformedBatch(f"a record has a field of invalid size {size}")
        return None, position
    stop = position + size
    if stop > end:
        raise MalformedBatch(f"a field of {size} bytes runs past the end of its record")
    return blob[position:stop], stop


def take_headers(
    blob: bytes, position: int, end: int, *, count_max: int = HEADERS_PER_RECORD_MAX
) -> list[Header]:
    count, position = decode_varint(blob, position)
    if not 0 <= count <= HEADERS_PER_RECORD_MAX:
        raise MalformedBatch(f"a record has an invalid header count of {count}")
    headers: list[Header] = []
    for _ in range(min(count, count_max)):
        name, position = take_field(blob, position, end)
        if name is None:
            raise MalformedBatch("a record has a header without a name")
        value, position = take_field(blob, position, end)
        headers.append((name, value))
    if position != end and count <= count_max:
        raise MalformedBatch("the fields of a record do not match its length")
    return headers
