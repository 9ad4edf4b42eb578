"""RecordBatch v2: the unit that is stored, replicated and sent. Big-endian (docs/formats/log.md):

    byte  0 base offset i64 · 8 length i32 · 12 leader epoch i32 · 16 magic i8 = 2 · 17 crc u32
         21 attributes i16 · 23 last offset delta i32 · 27 base time i64 · 35 max time i64
         43 producer id i64 · 51 producer epoch i16 · 53 base sequence i32 · 57 count i32
         61 records, one blob

``length`` counts from byte 12 on. ``crc`` is CRC-32C of everything from byte 21 to the end, so a
broker may set base offset and leader epoch without touching the records; the log protects the bytes
that the CRC leaves out with a separate file (``log/storage/side_files.py``).

    attributes   bits 0-2 codec · 3 append time · 4 transactional · 5 control · 6 delete horizon
                 · 13 produced: a producer's batch that got its timestamp from the broker
                 · 14 sealed: the records are encrypted on disk; consumers never see this bit
                 No producer may set bit 3, 13 or 14.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.model.file_slice import Piece, in_memory
from penstock.record.compression import compress
from penstock.record.crc32c import crc32c
from penstock.record.malformed import MalformedBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
assert HEADER.size == HEADER_BYTES

MAGIC = 2
LENGTH_FROM = 12  # the length field counts the bytes from here on
CRC_FROM = 21
_UNCHECKED = struct.Struct(">qiibI")  # the part before the bytes that the CRC covers
_CHECKED = struct.Struct(">hiqqqhii")
assert _UNCHECKED.size == CRC_FROM
assert _CHECKED.size == HEADER_BYTES - CRC_FROM
_FRONT = struct.Struct(">qii")  # base offset, length, leader epoch
_CRC_AT = 17

ATTR_CODEC_MASK = 0x07
ATTR_APPEND_TIME = 0x08
ATTR_TRANSACTIONAL = 0x10
ATTR_CONTROL = 0x20
ATTR_DELETE_HORIZON = 0x40
ATTR_PRODUCED = 0x2000  # a producer's batch that got its append time from the server
ATTR_SEALED = 0x4000  # contains encrypted records; far from the bits that Kafka may use next

NO_PRODUCER = -1


class BatchHeader(NamedTuple):
    """The header of a batch. Creating a named tuple is a fifth faster than creating a struct."""

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
    count: int  # type: ignore[assignment]  # hides tuple.count

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

    @property
    def is_sealed(self) -> bool:
        return self.attributes & ATTR_SEALED != 0


def is_server_batch(header: BatchHeader) -> bool:
    """Return whether the server wrote this batch, so that its ``penstock`` record headers can be
    trusted. Batches of producers differ in their attributes, producer id or timestamps."""
    return (
        header.attributes & ~ATTR_SEALED == ATTR_APPEND_TIME
        and header.producer_id == NO_PRODUCER
        and header.base_timestamp == header.max_timestamp
    )


def parse_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Return the header fields without checking them (see ``check_header``)."""
    if len(buffer) - position < HEADER_BYTES or position < 0:
        raise MalformedBatch(f"{len(buffer) - position} bytes are too few for a batch header")
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))


def check_header(header: BatchHeader) -> None:
    if header.magic != MAGIC:
        raise MalformedBatch(f"the magic number is {header.magic}, expected {MAGIC}")
    if header.length < HEADER_BYTES - LENGTH_FROM:
        raise MalformedBatch(f"length {header.length} is smaller than a batch header")
    if header.base_offset < 0:
        raise MalformedBatch(f"base offset {header.base_offset} is negative")
    if header.last_offset_delta < 0:
        raise MalformedBatch(f"last offset delta {header.last_offset_delta} is negative")
    if not 0 <= header.count <= header.last_offset_delta + 1:
        raise MalformedBatch(
            f"the batch has {header.count} records but spans {header.last_offset_delta + 1} offsets"
        )


def split_batches(pieces: Sequence[Piece]) -> Iterator[bytes]:
    """Yield a copy of each batch in these buffers, which contain whole batches only."""
    for buffer in in_memory(pieces):
        position = 0
        while position < len(buffer):
            end = position + parse_header(buffer, position).total_bytes
            yield bytes(buffer[position:end])
            position = end


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
    """Return a batch of encoded records, compressed with the codec in ``attributes``."""
    count = len(records)
    assert count > 0, "a batch must have records"
    body = b"".join(records)
    codec = attributes & ATTR_CODEC_MASK
    if codec:
        body = compress(codec, body)
    # The same as _assembled, without a call, because every message takes this path.
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


def repacked(header: BatchHeader, records: Sequence[bytes]) -> bytes:
    """Return an uncompressed batch with these records and the offsets of ``header``."""
    return with_body(header._replace(count=len(records)), b"".join(records))


def with_body(header: BatchHeader, body: bytes) -> bytes:
    """Return a batch with this header and these encoded records, with a new length and CRC."""
    return _assembled(header.base_offset, header.leader_epoch, header[5:], body)


def _assembled(
    base_offset: int, leader_epoch: int, fields: tuple[int, ...], body: bytes | memoryview
) -> bytes:
    checked = _CHECKED.pack(*fields)
    length = HEADER_BYTES - LENGTH_FROM + len(body)
    crc = crc32c(body, crc32c(checked))
    front = _UNCHECKED.pack(base_offset, length, leader_epoch, MAGIC, crc)
    return b"".join((front, checked, body))


BORROWED_BYTES_MIN = 256 * 1_024  # smaller batches are copied, to be read from memory


def placed(
    batch: bytes | memoryview,
    header: BatchHeader,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> tuple[bytes | memoryview, BatchHeader]:
    """Set offset and epoch of a producer's batch, and the append time if given; return the batch
    and its new header. A large batch in writable memory is changed in place, so the result is valid
    only as long as that memory."""
    _, length, _, magic, crc, *rest = header
    view = memoryview(batch)
    raw: bytes | memoryview
    if append_time_ms is None and len(view) >= BORROWED_BYTES_MIN and not view.readonly:
        _FRONT.pack_into(view, 0, base_offset, length, leader_epoch)
        raw = view
    elif append_time_ms is None:
        raw = b"".join((_FRONT.pack(base_offset, length, leader_epoch), view[_FRONT.size :]))
    else:
        rest[0] |= ATTR_APPEND_TIME | ATTR_PRODUCED
        rest[3] = append_time_ms
        raw = _assembled(base_offset, leader_epoch, tuple(rest), view[HEADER_BYTES:])
        crc = int.from_bytes(raw[_CRC_AT:CRC_FROM], "big")
    fields = (base_offset, length, leader_epoch, magic, crc, *rest)
    return raw, tuple.__new__(BatchHeader, fields)
