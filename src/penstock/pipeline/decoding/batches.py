"""Reads the headers of all record batches in a chunk at once, and decompresses the records.

Each header field becomes one column, because small batches are common, and a Python object for a
header would cost as much time as its records. Only two steps are done batch by batch: finding the
next batch by the length of this one, and checking its checksum. ``record/batch.py`` has the layout.

Batches are decompressed one after another into one shared buffer, which is neither cleared before
nor copied afterwards: for small batches, that would take most of the time. The size of a batch is
not known before decompression, so decompression stops when the buffer is full, and the caller
continues with the remaining batches."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import cramjam
import numpy as np
import numpy.typing as npt

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.pipeline.decoding.records import Bytes, Longs
from penstock.record import batch as layout
from penstock.record.compression import Codec, decompress
from penstock.record.crc32c import crc32c
from penstock.record.record import RECORDS_BYTES_MAX

_LAYOUT: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_delta", ">i4"),
        ("base_ms", ">i8"),
        ("max_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("counts", ">i4"),
    ]
)
assert _LAYOUT.itemsize == layout.HEADER_BYTES
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8

Flags = npt.NDArray[np.bool_]
Chosen = Flags | Longs | slice


class InvalidLength(ValueError):
    """Raised if a batch has an invalid length, so the position of the next batch is unknown."""

    def __init__(self, length: int, positions: Sequence[int]) -> None:
        super().__init__(f"the batch has an invalid length of {length} bytes")
        self.positions = positions  # of the batches before this one


class BatchHeaders(NamedTuple):
    """The header fields of batches, as columns with one element for each batch, in order."""

    at: Longs  # position in the buffer
    size: Longs  # in bytes, including the header
    base_offset: Longs
    last_delta: Longs
    attributes: Longs
    base_ms: Longs
    max_ms: Longs
    producer_id: Longs
    counts: Longs

    @property
    def next_offset(self) -> Longs:
        after: Longs = self.base_offset + self.last_delta + 1
        return after

    @property
    def codec(self) -> Longs:
        codec: Longs = self.attributes & layout.ATTR_CODEC_MASK
        return codec

    @property
    def is_server(self) -> Flags:
        """Return, for each batch, whether the server wrote it (see ``is_server_batch``)."""
        is_server: Flags = (
            (self.attributes & ~layout.ATTR_SEALED == layout.ATTR_APPEND_TIME)
            & (self.producer_id == layout.NO_PRODUCER)
            & (self.base_ms == self.max_ms)
        )
        return is_server

    def has(self, attribute: int) -> Flags:
        has: Flags = (self.attributes & attribute) != 0
        return has

    def chosen(self, which: Chosen) -> "BatchHeaders":
        return BatchHeaders(*(each[which] for each in self))


def complete_batches(buffer: bytes | memoryview) -> list[int]:
    positions: list[int] = []
    at, limit = 0, len(buffer)
    length_of = _LENGTH.unpack_from
    while limit - at >= layout.HEADER_BYTES:
        (length,) = length_of(buffer, at + _LENGTH_AT)
        if not layout.HEADER_BYTES <= length + layout.LENGTH_FROM <= BATCH_BYTES_MAX:
            raise InvalidLength(length, positions)
        stop = at + layout.LENGTH_FROM + length
        if stop > limit:
            break
        positions.append(at)
        at = stop
    return positions


def whole_span(buffer: bytes | memoryview) -> tuple[int, int]:
    """Return the offset after the last complete batch, and the total size of the complete batches,
    or (0, 0) if there is none. Only lengths are read; ``Decoder`` validates the batches."""
    at, last, limit = 0, -1, len(buffer)
    while at + layout.HEADER_BYTES <= limit:
        (length,) = _LENGTH.unpack_from(buffer, at + _LENGTH_AT)
        stop = at + layout.LENGTH_FROM + length
        if length <= 0 or stop > limit:
            break
        last, at = at, stop
    return (layout.parse_header(buffer, last).next_offset, at) if last >= 0 else (0, 0)


def read_batch_headers(
    buffer: bytes | memoryview, positions: Sequence[int]
) -> tuple[BatchHeaders, Flags]:
    """Return the headers, and for each batch whether its header and its checksum are valid."""
    octets: Bytes = np.frombuffer(buffer, np.uint8)
    at = np.array(positions, np.int64)
    raw = octets[at[:, None] + np.arange(layout.HEADER_BYTES)].view(_LAYOUT)[:, 0]
    size = raw["length"].astype(np.int64) + layout.LENGTH_FROM
    batches = BatchHeaders(at, size, *(raw[n].astype(np.int64) for n in BatchHeaders._fields[2:]))
    is_sound: Flags = (
        (raw["magic"] == layout.MAGIC)
        & (batches.base_offset >= 0)
        & (batches.last_delta >= 0)
        & (batches.counts >= 0)
        & (batches.counts <= batches.last_delta + 1)
    )
    view = memoryview(buffer)
    sums = [
        crc32c(view[begin:end])
        for begin, end in zip((at + layout.CRC_FROM).tolist(), (at + size).tolist(), strict=True)
    ]
    is_sound &= np.array(sums, np.uint32) == raw["crc"]
    return batches, is_sound


FULL_BYTES: Final = 32 * 1_048_576  # of decompressed records that are decoded together
_LIKELY_RATIO: Final = 6  # of compression; a high guess is cheap, unused memory costs nothing

# An LZ4 frame:  magic u32 · flags · block size · [content size u64] · [dictionary u32] · check u8,
# then blocks (size u32, its top bit: not compressed · data · [checksum u32]), a size of 0, and
# [checksum u32].
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_AT, _LZ4_SIZE_AT, _LZ4_HEAD_BYTES = 4, 5, 7
_LZ4_INDEPENDENT, _LZ4_BLOCK_SUMS, _LZ4_CONTENT_SIZE = 0x20, 0x10, 0x08
_LZ4_CONTENT_SUM, _LZ4_DICTIONARY = 0x04, 0x01
_LZ4_STORED: Final = 0x8000_0000
_LZ4_SIZE: Final = struct.Struct("<I")
_Into = Callable[[memoryview, Any], int]  # mypy does not know that NumPy arrays are buffers


class _Unsupported(Exception):
    """Raised if only ``record/compression.py`` can decompress the data."""


def _lz4_into(data: memoryview, free: Any) -> int:
    """Decompress an LZ4 frame block by block, in a fifth of the time of the library's own function,
    which uses small buffers and computes checksums that the batch's checksum makes unnecessary.
    Raises _Unsupported for frames that it cannot decode, such as those with dependent blocks."""
    flags, size_code = data[_LZ4_FLAGS_AT], data[_LZ4_SIZE_AT] >> 4
    if bytes(data[:4]) != _LZ4_MAGIC or flags & _LZ4_DICTIONARY or not 4 <= size_code <= 7:
        raise _Unsupported
    block_bytes_max = 1 << (8 + 2 * size_code)
    at = _LZ4_HEAD_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    used = 0
    while size := _LZ4_SIZE.unpack_from(data, at)[0]:
        at += _LZ4_SIZE.size
        if used and not flags & _LZ4_INDEPENDENT:
            raise _Unsupported
        block = data[at : at + (size & ~_LZ4_STORED)]
        at += len(block)
        into = free[used : used + block_bytes_max]
        if size & _LZ4_STORED:
            if len(block) > len(into):
                raise _Unsupported
            into[: len(block)] = block
            used += len(block)
        else:
            used += cramjam.lz4.decompress_block_into(block, into, output_len=len(into))
        at += _LZ4_SIZE.size if flags & _LZ4_BLOCK_SUMS else 0
    at += _LZ4_SIZE.size + (_LZ4_SIZE.size if flags & _LZ4_CONTENT_SUM else 0)
    if at != len(data):
        raise _Unsupported
    return used


_INTO: Final[Mapping[int, _Into]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: _lz4_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


class Unpacked(NamedTuple):
    octets: Bytes  # valid until the next call of ``unpack``
    starts: Longs  # where the records of each batch begin and end
    stops: Longs


class Unpacker:
    """A decompressor that reuses its buffer, because the kernel takes time to clear new memory."""

    def __init__(self) -> None:
        self._room: Bytes = np.empty(0, np.uint8)
        self._used = 0

    def unpack(self, buffer: bytes | memoryview, batches: BatchHeaders) -> Unpacked:
        codecs = batches.codec
        begins, ends = batches.at + layout.HEADER_BYTES, batches.at + batches.size
        if not codecs.any():
            return Unpacked(np.frombuffer(buffer, np.uint8), begins, ends)
        view = memoryview(buffer)
        self._used = 0
        self._reserve(min(FULL_BYTES, _LIKELY_RATIO * int(batches.size.sum())))
        stops: list[int] = []
        for codec, begin, end in zip(codecs.tolist(), begins.tolist(), ends.tolist(), strict=True):
            self._expand(codec, view[begin:end])
            stops.append(self._used)
            if self._used >= FULL_BYTES:
                break
        starts = np.array([0, *stops[:-1]], np.int64)
        return Unpacked(self._room[: self._used], starts, np.array(stops, np.int64))

    def _expand(self, codec: int, data: memoryview) -> None:
        expand_into = _INTO.get(codec)
        if expand_into is not None:
            free = self._room[self._used : self._used + RECORDS_BYTES_MAX]
            try:
                self._used += expand_into(data, free)
            except (cramjam.DecompressionError, _Unsupported, struct.error, IndexError):
                pass  # not enough space, or an unsupported format: ``decompress`` decides
            else:
                return
        records = decompress(codec, bytes(data), bytes_max=RECORDS_BYTES_MAX)
        stop = self._used + len(records)
        self._reserve(stop)
        self._room[self._used : stop] = np.frombuffer(records, np.uint8)
        self._used = stop

    def _reserve(self, size: int) -> None:
        if size <= len(self._room):
            return
        # A quarter more, so that the batch that exceeds ``FULL_BYTES`` fits too.
        grown = np.empty(size + size // 4, np.uint8)
        grown[: self._used] = self._room[: self._used]
        self._room = grown
