"""The encoding of a record inside a batch.

    ┌────────┬────────────┬──────────┬──────────┬─────────────┬───────────────┬─────────────────┐
    │ length │ attributes │ time     │ offset   │ key length, │ value length, │ header count,   │
    │ varint │ i8 = 0     │ delta    │ delta    │ key         │ value         │ headers         │
    │        │            │ varint   │ varint   │ (−1: null)  │ (−1: null)    │                 │
    └────────┴────────────┴──────────┴──────────┴─────────────┴───────────────┴─────────────────┘
    header = key length, key, value length (−1: null), value

``length`` counts the bytes after it. All varints are zig-zag. The bytes may come from any client,
so every length is checked against the bytes that are left.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import ATTR_CODEC_MASK, HEADER_BYTES, BatchHeader, parse_header
from penstock.record.compression import decompress, decompress_to_view
from penstock.record.malformed import MalformedBatch
from penstock.record.varint import decode_varint, encode_varint

Header = tuple[bytes, bytes | None]

# The maximum of one batch's records when decompressed: room for normal compression ratios, and a
# protection against decompression bombs.
RECORDS_BYTES_MAX = 4 * BATCH_BYTES_MAX
HEADERS_PER_RECORD_MAX = 4_096
COPIED_BYTES_MAX = BATCH_BYTES_MAX  # at once in a thread: about 5 ms


class RawRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


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
    """Return the decompressed records of a whole batch."""
    packed = _packed(batch, header)
    if header.attributes & ATTR_CODEC_MASK or len(packed) > bytes_max:
        return decompress(header.codec, packed, bytes_max=bytes_max)
    return packed


def records_view(
    batch: bytes, header: BatchHeader, *, bytes_max: int = RECORDS_BYTES_MAX
) -> bytes | memoryview:
    """Return the same as ``records_blob``, for a thread. More than ``COPIED_BYTES_MAX`` are not
    copied: that would block the event loop."""
    view = decompress_to_view(header.codec, _packed(batch, header), bytes_max=bytes_max)
    return view if len(view) > COPIED_BYTES_MAX else bytes(view)


def _packed(batch: bytes, header: BatchHeader) -> bytes:
    end = header.total_bytes
    if not HEADER_BYTES <= end <= len(batch):
        raise MalformedBatch(f"a batch of {end} bytes in a buffer of {len(batch)}")
    return batch[HEADER_BYTES:end]


def iter_records(batch: bytes, *, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[RawRecord]:
    """Yield the records of one whole batch. Does not check the CRC: a read of the log does."""
    header = parse_header(batch)
    blob = records_blob(batch, header, bytes_max=bytes_max)
    append_time = header.max_timestamp if header.is_append_time else None
    position = 0
    for _ in range(header.count):
        size, position = decode_varint(blob, position)
        end = position + size
        if size < 0 or end > len(blob):
            raise MalformedBatch(f"a record of {size} bytes runs past the end of the batch")
        # The attributes byte is unused; a record too short to hold it fails in the next field.
        timestamp_delta, position = decode_varint(blob, position + 1)
        offset_delta, position = decode_varint(blob, position)
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise MalformedBatch(f"offset delta {offset_delta} is outside of the batch")
        key, position = _field(blob, position, end)
        value, position = _field(blob, position, end)
        headers, position = _headers(blob, position, end)
        if position != end:
            raise MalformedBatch("a record's fields do not add up to its length")
        timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
        yield RawRecord(header.base_offset + offset_delta, timestamp, key, value, headers)
    if position != len(blob):
        raise MalformedBatch(f"{len(blob) - position} bytes behind the last record")


def _field(blob: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = decode_varint(blob, position)
    if size < 0:
        if size != -1:
            raise MalformedBatch(f"a field of {size} bytes")
        return None, position
    stop = position + size
    if stop > end:
        raise MalformedBatch(f"a field of {size} bytes runs past the end of its record")
    return blob[position:stop], stop


def _headers(blob: bytes, position: int, end: int) -> tuple[Sequence[Header], int]:
    count, position = decode_varint(blob, position)
    if count == 0:
        return (), position
    if not 0 < count <= HEADERS_PER_RECORD_MAX:
        raise MalformedBatch(f"{count} headers in one record")
    headers = []
    for _ in range(count):
        name, position = _field(blob, position, end)
        if name is None:
            raise MalformedBatch("a header has no name")
        content, position = _field(blob, position, end)
        headers.append((name, content))
    return headers, position
