"""Reads the headers of all batches of a chunk together, into one column for each field, because
small batches are common, and a Python object for a header would cost as much time as its records.
Only two steps are done batch by batch: moving from one length to the next, and the checksum.
``record/batch.py`` documents the layout and reports what is wrong with an invalid header."""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.pipeline.decoding.varints import Bytes, Longs
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_SEALED,
    ATTR_TRANSACTIONAL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    NO_PRODUCER,
)
from penstock.record.crc32c import crc32c

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
        ("count", ">i4"),
    ]
)
assert _LAYOUT.itemsize == HEADER_BYTES
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8

Flags = npt.NDArray[np.bool_]
Chosen = Flags | Longs | slice


class InvalidLength(ValueError):
    """A batch has an invalid length, so the position of the next batch is unknown."""

    def __init__(self, length: int, positions: Sequence[int]) -> None:
        super().__init__(f"a length of {length} bytes")
        self.positions = positions  # of the batches before this one


class BatchHeaders(NamedTuple):
    """Columns with one element for each batch, in the order of the batches."""

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
        codec: Longs = self.attributes & ATTR_CODEC_MASK
        return codec

    @property
    def is_control(self) -> Flags:
        return self._has(ATTR_CONTROL)

    @property
    def is_transactional(self) -> Flags:
        return self._has(ATTR_TRANSACTIONAL)

    @property
    def is_append_time(self) -> Flags:
        return self._has(ATTR_APPEND_TIME)

    @property
    def is_server(self) -> Flags:
        """Whether the server wrote the batch, as in ``record.batch.is_server_batch``."""
        is_server: Flags = (
            (self.attributes & ~ATTR_SEALED == ATTR_APPEND_TIME)
            & (self.producer_id == NO_PRODUCER)
            & (self.base_ms == self.max_ms)
        )
        return is_server

    @property
    def is_dense(self) -> Flags:
        """Whether the batch has a record for each of its offsets: compaction has removed none."""
        is_dense: Flags = self.counts == self.last_delta + 1
        return is_dense

    def _has(self, attribute: int) -> Flags:
        has: Flags = (self.attributes & attribute) != 0
        return has

    def chosen(self, which: Chosen) -> "BatchHeaders":
        return BatchHeaders(*(each[which] for each in self))


def complete_batches(buffer: bytes | memoryview) -> list[int]:
    """Return the positions of the complete batches. Raises InvalidLength."""
    positions: list[int] = []
    at, limit = 0, len(buffer)
    length_of = _LENGTH.unpack_from
    while limit - at >= HEADER_BYTES:
        (length,) = length_of(buffer, at + _LENGTH_AT)
        if not HEADER_BYTES <= length + LENGTH_FROM <= BATCH_BYTES_MAX:
            raise InvalidLength(length, positions)
        stop = at + LENGTH_FROM + length
        if stop > limit:
            break
        positions.append(at)
        at = stop
    return positions


def read_batch_headers(
    buffer: bytes | memoryview, positions: Sequence[int]
) -> tuple[BatchHeaders, Flags]:
    """Return the headers of the batches at these positions, and which batches have both a valid
    header and a correct checksum."""
    octets: Bytes = np.frombuffer(buffer, np.uint8)
    at = np.array(positions, np.int64)
    raw = octets[at[:, None] + np.arange(HEADER_BYTES)].view(_LAYOUT)[:, 0]

    def column(name: str) -> Longs:
        native: Longs = raw[name].astype(np.int64)
        return native

    size = column("length") + LENGTH_FROM
    batches = BatchHeaders(
        at,
        size,
        column("base_offset"),
        column("last_delta"),
        column("attributes"),
        column("base_ms"),
        column("max_ms"),
        column("producer_id"),
        column("count"),
    )
    is_sound: Flags = (
        (raw["magic"] == MAGIC)
        & (batches.base_offset >= 0)
        & (batches.last_delta >= 0)
        & (batches.counts >= 0)
        & (batches.counts <= batches.last_delta + 1)
    )
    view = memoryview(buffer)
    sums = [
        crc32c(view[begin:end])
        for begin, end in zip((at + CRC_FROM).tolist(), (at + size).tolist(), strict=True)
    ]
    is_sound &= np.array(sums, np.uint32) == raw["crc"]
    return batches, is_sound
