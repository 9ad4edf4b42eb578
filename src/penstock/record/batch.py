"""RecordBatch v2: the unit that is stored, replicated and sent.

    byte  0        8          12            16      17    21           23                27
          ┌────────┬──────────┬─────────────┬───────┬─────┬────────────┬─────────────────┬──
          │ base   │ length   │ leader      │ magic │ crc │ attributes │ last offset     │ …
          │ offset │ = rest   │ epoch       │ = 2   │     │            │ delta           │
          │ i64    │ i32      │ i32         │ i8    │ u32 │ i16        │ i32             │
          └────────┴──────────┴─────────────┴───────┴─────┴────────────┴─────────────────┴──
    byte 27          35          43         51         53         57      61
        ──┬──────────┬───────────┬──────────┬──────────┬──────────┬───────┬───────────┐
        … │ base     │ max       │ producer │ producer │ base     │ count │ records,  │
          │ time     │ time      │ id       │ epoch    │ sequence │       │ one blob  │
          │ i64      │ i64       │ i64      │ i16      │ i32      │ i32   │           │
        ──┴──────────┴───────────┴──────────┴──────────┴──────────┴───────┴───────────┘

``length`` counts from byte 12 on. ``crc`` is CRC-32C of everything from byte 21 to the end, so a
broker may set base offset and leader epoch without touching the records; what the CRC leaves out
the log guards with a file of its own (``log/check.py``).

    attributes   bits 0-2 codec · 3 append time · 4 transactional · 5 control · 6 delete horizon
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.record.compression import compress
from penstock.record.crc32c import crc32c
from penstock.record.malformed import MalformedBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
assert HEADER.size == HEADER_BYTES

MAGIC = 2
LENGTH_FROM = 12  # the length field counts what stands behind it
CRC_FROM = 21
_UNCHECKED = struct.Struct(">qiibI")  # the part in front of what the CRC covers
_CHECKED = struct.Struct(">hiqqqhii")
assert _UNCHECKED.size == CRC_FROM
assert _CHECKED.size == HEADER_BYTES - CRC_FROM
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIME = struct.Struct(">q")
_MAX_TIME_AT = 35

ATTR_CODEC_MASK = 0x07
ATTR_APPEND_TIME = 0x08
ATTR_TRANSACTIONAL = 0x10
ATTR_CONTROL = 0x20
ATTR_DELETE_HORIZON = 0x40

NO_PRODUCER = -1


class BatchHeader(NamedTuple):
    """A tuple rather than a struct: measured a fifth cheaper to fill from ``unpack``."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a header has no use for

    @property
    def total_bytes(self) -> int:
        return self.length + LENGTH_FROM

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & ATTR_CODEC_MASK

    @property
    def is_control(self) -> bool:
        return self.attributes & ATTR_CONTROL != 0

    @property
    def is_append_time(self) -> bool:
        return self.attributes & ATTR_APPEND_TIME != 0


def parse_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The fields as they stand; ``check`` says whether they are to be believed."""
    if len(buffer) - position < HEADER_BYTES or position < 0:
        raise MalformedBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))


def check_header(header: BatchHeader) -> None:
    """What can be known from the header alone."""
    if header.magic != MAGIC:
        raise MalformedBatch(f"magic {header.magic}, expected {MAGIC}")
    if header.length < HEADER_BYTES - LENGTH_FROM:
        raise MalformedBatch(f"length {header.length} is smaller than a batch header")
    if header.base_offset < 0:
        raise MalformedBatch(f"base offset {header.base_offset} is negative")
    if header.last_offset_delta < 0:
        raise MalformedBatch(f"last offset delta {header.last_offset_delta} is negative")
    if not 0 <= header.count <= header.last_offset_delta + 1:
        raise MalformedBatch(
            f"{header.count} records in a batch that spans {header.last_offset_delta + 1} offsets"
        )


def check(
    buffer: bytes | bytearray | memoryview, position: int = 0, header: BatchHeader | None = None
) -> BatchHeader:
    """Raises MalformedBatch unless a whole, intact batch starts at ``position``."""
    if header is None:
        header = parse_header(buffer, position)
    check_header(header)
    end = position + header.total_bytes
    if end > len(buffer):
        raise MalformedBatch(f"the batch is {end - len(buffer)} bytes longer than what is there")
    with memoryview(buffer) as view:
        crc = crc32c(view[position + CRC_FROM : end])
    if crc != header.crc:
        raise MalformedBatch(f"CRC is {crc:#010x}, the header says {header.crc:#010x}")
    return header


def encode_batch(
    records: Sequence[bytes],
    *,
    base_offset: int,
    leader_epoch: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Encoded records, with offset deltas 0, 1, 2…, as one batch. ``attributes`` choose the codec
    and, where asked, append time and control."""
    count = len(records)
    assert count > 0, "a batch has records"
    body = b"".join(records)
    codec = attributes & ATTR_CODEC_MASK
    if codec:
        body = compress(codec, body)
    checked = _CHECKED.pack(
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    length = HEADER_BYTES - LENGTH_FROM + len(body)
    crc = crc32c(body, crc32c(checked))
    return _UNCHECKED.pack(base_offset, length, leader_epoch, MAGIC, crc) + checked + body


def restamp_time(batch: bytearray, append_time_ms: int) -> None:
    """Let all records of a producer's batch have the time of their append. The header says so for
    all of them at once, but the CRC covers it and is made anew."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_FROM)
    _ATTRIBUTES.pack_into(batch, CRC_FROM, attributes | ATTR_APPEND_TIME)
    _MAX_TIME.pack_into(batch, _MAX_TIME_AT, append_time_ms)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def stamp(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """Give a producer's batch its place in the log. The CRC covers neither field."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)
