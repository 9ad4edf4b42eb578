"""Record batches as they come from a fetch, decoded into Arrow without an object per record.

What Kafka's consumer does for a reader is done here for a whole chunk: control batches are dropped,
those of aborted transactions too, records in front of the asked offset and behind the end are left
out, gaps that compaction left are no trouble, a cut batch at the end is left for the next fetch.
Batches of every codec may stand side by side. ``records`` finds the fields, ``columns`` makes the
arrays; fetching is ``fetching``'s.

Wide chunks are what makes it fast: some hundred batches, 8 to 16 MB. What comes out is bounded:
compressed batches are expanded group by group, never the whole chunk at once.

A batch that cannot be read is named by topic, partition and offset. With ``OnCorrupt.SKIP`` it is
counted and passed over, unless its length is no length: where the next one begins is then unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.pipeline import columns as made
from penstock.pipeline.records import Fields, read_fields, read_headers
from penstock.pipeline.varints import Longs, Unreadable
from penstock.record.batch import (
    ATTR_TRANSACTIONAL,
    CRC_FROM,
    HEADER_BYTES,
    BatchHeader,
    check_header,
    parse_header,
)
from penstock.record.compression import decompress
from penstock.record.control import TYPE_ABORT, iter_control
from penstock.record.crc32c import crc32c
from penstock.record.malformed import MalformedBatch
from penstock.record.record import RECORDS_BYTES_MAX, iter_records

ROWS_MAX: Final = 100_000  # of one Arrow batch: more gains nothing, and Spark holds two of them
_GROUP_BYTES_MAX: Final = 32 * 1_048_576  # of records, expanded, that are decoded together
OFFSET_MAX: Final = 2**63 - 1

Buffer = bytes | memoryview
Aborted = tuple[int, int]  # a transaction that was: producer id, first offset


class OnCorrupt(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class CorruptBatch(Exception):
    """Bytes that a partition gave out as a batch and that are none."""

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(topic, partition, offset, why)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.why = why

    def __str__(self) -> str:
        return (
            f"corrupt batch in topic {self.topic}, partition {self.partition},"
            f" at offset {self.offset}: {self.why}"
            " (option onCorrupt=skip passes over such batches)"
        )


class _Batch(NamedTuple):
    header: BatchHeader
    at: int  # in its buffer
    buffer: Buffer

    @property
    def raw(self) -> bytes:
        return bytes(self.buffer[self.at : self.at + self.header.total_bytes])


class Decoder:
    """One partition's batches, from ``begin`` up to ``end``. ``next_offset`` is where to fetch
    next; it has moved once a chunk has been decoded to its end."""

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        columns: Sequence[str] = made.PLAIN,
        begin: int = 0,
        end: int = OFFSET_MAX,
        on_corrupt: OnCorrupt = OnCorrupt.FAIL,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._columns = tuple(columns)
        self._schema = made.arrow_schema(self._columns)
        self._end = end
        self._on_corrupt = on_corrupt
        self.next_offset = begin
        self.corrupt_count = 0

    def decode(
        self, buffers: Sequence[Buffer], aborted: Iterable[Aborted] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The records of consecutive answers; ``aborted`` is what came with them."""
        begin = self.next_offset
        group: list[_Batch] = []
        size = 0
        for batch in self._wanted(buffers, set(aborted)):
            group.append(batch)
            # What it will be once expanded is not known; eight times is much.
            size += batch.header.length * (8 if batch.header.codec else 1)
            if size >= _GROUP_BYTES_MAX:
                yield from self._decoded(group, begin)
                group, size = [], 0
        if group:
            yield from self._decoded(group, begin)

    # ── Batches ──────────────────────────────────────────────────────────────────────────────

    def _wanted(self, buffers: Sequence[Buffer], aborted: set[Aborted]) -> Iterator[_Batch]:
        """Those with records for the reader. Moves ``next_offset`` along."""
        begin = self.next_offset
        for buffer in buffers:
            for batch in self._whole(buffer):
                header = batch.header
                if header.is_control:
                    if aborted and header.attributes & ATTR_TRANSACTIONAL:
                        self._end_aborted(batch, aborted)
                elif (
                    header.next_offset > begin
                    and header.base_offset < self._end
                    and header.count
                    and not (aborted and _is_aborted(header, aborted))
                ):
                    yield batch
                self._pass(header)

    def _pass(self, header: BatchHeader) -> None:
        self.next_offset = max(self.next_offset, min(header.next_offset, self._end))

    def _whole(self, buffer: Buffer) -> Iterator[_Batch]:
        at = 0
        limit = len(buffer)
        view = memoryview(buffer)
        while limit - at >= HEADER_BYTES:
            header = parse_header(buffer, at)
            stop = at + header.total_bytes
            if not HEADER_BYTES <= header.total_bytes <= BATCH_BYTES_MAX:
                # Nobody knows where the next one begins, so there is nothing to skip to.
                raise self._corrupt(self.next_offset, f"a length of {header.length} bytes")
            if stop > limit:
                return
            try:
                check_header(header)
                if crc32c(view[at + CRC_FROM : stop]) != header.crc:
                    raise MalformedBatch("its checksum is wrong")
                yield _Batch(header, at, buffer)
            except MalformedBatch as error:
                self._skip(header, error)
            at = stop

    def _end_aborted(self, batch: _Batch, aborted: set[Aborted]) -> None:
        """An abort ends the oldest aborted transaction of its producer; its next one may commit."""
        try:
            kinds = [kind for _, kind, _ in iter_control(batch.raw)]
        except MalformedBatch as error:
            self._skip(batch.header, error)
            return
        mine = [each for each in aborted if each[0] == batch.header.producer_id]
        if TYPE_ABORT in kinds and mine:
            aborted.discard(min(mine))

    def _skip(self, header: BatchHeader, error: MalformedBatch) -> None:
        if self._on_corrupt is OnCorrupt.FAIL:
            raise self._corrupt(header.base_offset, str(error)) from None
        self.corrupt_count += 1
        self._pass(header)

    def _corrupt(self, offset: int, why: str) -> CorruptBatch:
        return CorruptBatch(self._topic, self._partition, offset, why)

    # ── Records ──────────────────────────────────────────────────────────────────────────────

    def _decoded(self, group: Sequence[_Batch], begin: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows(group, begin)
        except (Unreadable, MalformedBatch):
            yield from self._rows(self._readable(group), begin)

    def _readable(self, group: Sequence[_Batch]) -> list[_Batch]:
        """Those of the group that can be read one by one: the slow way, to name the others."""
        good = []
        for batch in group:
            try:
                for record in iter_records(batch.raw):
                    if not -(2**63) <= record.timestamp < 2**63:
                        raise MalformedBatch(f"a timestamp of {record.timestamp}")
                good.append(batch)
            except MalformedBatch as error:
                self._skip(batch.header, error)
        return good

    def _rows(self, group: Sequence[_Batch], begin: int) -> list[pa.RecordBatch]:
        """A list and no generator: rows of a group that turns out unreadable must not be out."""
        if not group:
            return []
        data, starts, stops = _laid_out(group)
        counts = np.array([batch.header.count for batch in group], np.int64)
        octets = np.frombuffer(data, np.uint8)
        fields = read_fields(octets, starts, stops, counts)
        spans = np.repeat([batch.header.last_offset_delta for batch in group], counts)
        if (fields.offset_delta < 0).any() or (fields.offset_delta > spans).any():
            raise Unreadable("offsets outside of their batch")
        base = np.repeat(np.array([batch.header.base_offset for batch in group], np.int64), counts)
        offset = base + fields.offset_delta
        keep = (offset >= begin) & (offset < self._end)
        batch_of = np.repeat(np.arange(len(group)), counts)
        if not keep.all():
            fields, offset, batch_of = fields.kept(keep), offset[keep], batch_of[keep]
        return [
            self._arrays(data, group, fields.kept(each), offset[each], batch_of[each])
            for each in (slice(at, at + ROWS_MAX) for at in range(0, len(offset), ROWS_MAX))
        ]

    def _arrays(
        self, data: Buffer, group: Sequence[_Batch], fields: Fields, offset: Longs, batch_of: Longs
    ) -> pa.RecordBatch:
        buffer = pa.py_buffer(data)
        count = len(offset)
        arrays: list[pa.Array] = []
        for name in self._columns:
            match name:
                case "key":
                    array = made.binary_column(buffer, fields.key_at, fields.key_size)
                case "value":
                    array = made.binary_column(buffer, fields.value_at, fields.value_size)
                case "topic":
                    array = made.repeated_text(self._topic, count)
                case "partition":
                    array = made.repeated_number(self._partition, count)
                case "offset":
                    array = pa.array(offset)
                case "timestamp":
                    array = made.timestamp_column(_times(group, fields, batch_of))
                case "timestampType":
                    kinds = [batch.header.is_append_time for batch in group]
                    array = pa.array(np.array(kinds, np.int32)[batch_of])
                case _:
                    assert name == "headers", "options let no other name through"
                    headers = read_headers(np.frombuffer(data, np.uint8), fields)
                    array = made.headers_column(buffer, fields, headers)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def decode_batches(
    buffers: Sequence[Buffer],
    *,
    columns: Sequence[str] = made.PLAIN,
    topic: str = "",
    partition: int = 0,
    begin: int = 0,
    end: int = OFFSET_MAX,
    aborted: Iterable[Aborted] = (),
    on_corrupt: OnCorrupt = OnCorrupt.FAIL,
) -> pa.RecordBatch:
    """All of it as one Arrow batch; for large reads ``Decoder`` gives them one after another."""
    decoder = Decoder(
        topic=topic,
        partition=partition,
        columns=columns,
        begin=begin,
        end=end,
        on_corrupt=on_corrupt,
    )
    parts = list(decoder.decode(buffers, aborted))
    if len(parts) == 1:
        return parts[0]
    return pa.concat_batches(parts) if parts else _empty(made.arrow_schema(columns))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)


def _laid_out(group: Sequence[_Batch]) -> tuple[Buffer, Longs, Longs]:
    """One buffer with the records of all batches, and where those of each begin and end. A buffer
    that holds them as they are is taken as it is."""
    first = group[0].buffer
    if all(batch.buffer is first and not batch.header.codec for batch in group):
        begins = np.array([batch.at for batch in group], np.int64)
        sizes = np.array([batch.header.total_bytes for batch in group], np.int64)
        return first, begins + HEADER_BYTES, begins + sizes
    blobs = []
    for batch in group:
        records = batch.raw[HEADER_BYTES:]
        blobs.append(decompress(batch.header.codec, records, bytes_max=RECORDS_BYTES_MAX))
    stops = np.cumsum([len(blob) for blob in blobs], dtype=np.int64)
    return b"".join(blobs), np.concatenate(([0], stops[:-1])).astype(np.int64), stops


def _times(group: Sequence[_Batch], fields: Fields, batch_of: Longs) -> Longs:
    base = [
        batch.header.max_timestamp if batch.header.is_append_time else batch.header.base_timestamp
        for batch in group
    ]
    counted = [0 if batch.header.is_append_time else 1 for batch in group]
    times: Longs = np.array(base, np.int64)[batch_of]
    if all(counted):
        return times + fields.time_delta
    return times + fields.time_delta * np.array(counted, np.int64)[batch_of]


def _is_aborted(header: BatchHeader, aborted: set[Aborted]) -> bool:
    return bool(header.attributes & ATTR_TRANSACTIONAL) and any(
        producer_id == header.producer_id and first <= header.base_offset
        for producer_id, first in aborted
    )
