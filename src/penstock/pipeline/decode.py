"""Decodes fetched record batches into Arrow, without a Python object for each record.

The decoder does the work of Kafka's consumer for a whole chunk: it drops control batches, batches
of aborted transactions, and records before the requested offset or at and after the end. Gaps left
by compaction are allowed, and an incomplete last batch is left to the next fetch. Batches of a
chunk may have different codecs. ``heads`` reads the headers, ``unpacking`` decompresses,
``records`` finds the fields, ``columns`` makes the arrays.

Large chunks make decoding fast: some hundred batches, 8 to 16 MB. Output is bounded: compressed
batches are decompressed a few at a time, never the whole chunk. A read that only needs columns from
batch headers (to count records, for example) does not parse records at all.

The error for an unreadable batch names topic, partition and offset. ``OnCorrupt.SKIP`` counts and
skips the batch, unless its length is invalid: the position of the next batch is then unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.pipeline import columns as made
from penstock.pipeline.heads import Flags, Heads, LengthWrong, read_heads, whole_batches
from penstock.pipeline.records import (
    RECORD_BYTES_MIN,
    Fields,
    read_fields,
    read_headers,
    without_system_header,
)
from penstock.pipeline.unpacking import Unpacker
from penstock.pipeline.varints import Bytes, Longs, Unreadable
from penstock.record.batch import HEADER_BYTES, check_header, parse_header
from penstock.record.control import TYPE_ABORT, iter_control
from penstock.record.malformed import MalformedBatch
from penstock.record.record import iter_records

ROWS_MAX: Final = 100_000  # of one Arrow batch: more is not faster, and Spark holds two batches
OFFSET_MAX: Final = 2**63 - 1
_OF_HEADS: Final = frozenset(("topic", "partition", "offset", "timestampType"))

Buffer = bytes | memoryview
Aborted = tuple[int, int]  # aborted transaction: producer id, first offset


class OnCorrupt(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class CorruptBatch(Exception):
    """A partition returned bytes that are not a valid batch."""

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


class Decoder:
    """A decoder for one partition's batches, from ``begin`` up to ``end``. ``next_offset``, the
    offset to fetch next, advances when a chunk has been decoded completely."""

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
        self._is_of_heads = not set(self._columns) - _OF_HEADS
        self._end = end
        self._on_corrupt = on_corrupt
        self._unpacker = Unpacker()
        self.next_offset = begin
        self.corrupt_count = 0

    def decode(
        self, buffers: Sequence[Buffer], aborted: Iterable[Aborted] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of consecutive replies, whose aborted transactions are ``aborted``."""
        begin = self.next_offset
        still_aborted = set(aborted)
        for buffer in buffers:
            places = self._whole(buffer)
            if not places:
                continue
            heads, is_sound = read_heads(buffer, places)
            if not is_sound.all():
                self._refuse(buffer, heads.chosen(~is_sound))
                heads = heads.chosen(is_sound)
            wanted = heads.chosen(self._is_wanted(buffer, heads, begin, still_aborted))
            yield from self._decoded(buffer, wanted, begin)
            if len(heads.at):
                self._pass(int(heads.next_offset.max()))

    # ── Batches ──────────────────────────────────────────────────────────────────────────────

    def _whole(self, buffer: Buffer) -> list[int]:
        try:
            return whole_batches(buffer)
        except LengthWrong as error:
            # Without a length the next batch cannot be found, so OnCorrupt.SKIP cannot skip.
            for place in error.places[-1:]:
                self._pass(parse_header(buffer, place).next_offset)
            raise self._corrupt(self.next_offset, str(error)) from None

    def _refuse(self, buffer: Buffer, heads: Heads) -> None:
        for place in heads.at.tolist():
            header = parse_header(buffer, place)
            try:
                check_header(header)
                raise MalformedBatch("its checksum is wrong")
            except MalformedBatch as error:
                self._skip(header.base_offset, header.next_offset, error)

    def _is_wanted(self, buffer: Buffer, heads: Heads, begin: int, aborted: set[Aborted]) -> Flags:
        """Return which batches have records for the reader."""
        is_wanted: Flags = (
            ~heads.is_control
            & (heads.next_offset > begin)
            & (heads.base_offset < self._end)
            & (heads.counts > 0)
        )
        if aborted:
            for index in np.flatnonzero(heads.is_transactional).tolist():
                batch = heads.chosen(slice(index, index + 1))
                if batch.is_control[0]:
                    self._end_aborted(buffer, batch, aborted)
                elif _is_aborted(batch, aborted):
                    is_wanted[index] = False
        return is_wanted

    def _end_aborted(self, buffer: Buffer, batch: Heads, aborted: set[Aborted]) -> None:
        """End the producer's oldest aborted transaction; its next transaction may commit."""
        try:
            kinds = [kind for _, kind, _ in iter_control(_raw(buffer, batch, 0))]
        except MalformedBatch as error:
            self._skip(int(batch.base_offset[0]), int(batch.next_offset[0]), error)
            return
        mine = [each for each in aborted if each[0] == batch.producer_id[0]]
        if TYPE_ABORT in kinds and mine:
            aborted.discard(min(mine))

    def _pass(self, next_offset: int) -> None:
        self.next_offset = max(self.next_offset, min(next_offset, self._end))

    def _skip(self, offset: int, next_offset: int, error: MalformedBatch) -> None:
        if self._on_corrupt is OnCorrupt.FAIL:
            raise self._corrupt(offset, str(error)) from None
        self.corrupt_count += 1
        self._pass(next_offset)

    def _corrupt(self, offset: int, why: str) -> CorruptBatch:
        return CorruptBatch(self._topic, self._partition, offset, why)

    # ── Records ──────────────────────────────────────────────────────────────────────────────

    def _decoded(self, buffer: Buffer, heads: Heads, begin: int) -> Iterator[pa.RecordBatch]:
        if self._is_of_heads and len(heads.at) and _say_all(heads):
            yield from self._counted(heads, begin)
            return
        done, is_judged = 0, False
        while done < len(heads.at):
            left = heads.chosen(slice(done, None))
            try:
                rows, count = self._rows(buffer, left, begin)
            except (Unreadable, MalformedBatch):
                assert not is_judged, "what can be read one by one can be read together"
                heads, done, is_judged = self._readable(buffer, left), 0, True
                continue
            yield from rows
            done += count

    def _readable(self, buffer: Buffer, heads: Heads) -> Heads:
        """Return the readable batches. Reads batches one by one, to name the unreadable ones."""
        good = []
        for index in range(len(heads.at)):
            try:
                for record in iter_records(_raw(buffer, heads, index)):
                    if not -(2**63) <= record.timestamp < 2**63:
                        raise MalformedBatch(f"a timestamp of {record.timestamp}")
                good.append(index)
            except MalformedBatch as error:
                self._skip(int(heads.base_offset[index]), int(heads.next_offset[index]), error)
        return heads.chosen(np.array(good, np.int64))

    def _rows(self, buffer: Buffer, heads: Heads, begin: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the records of the first batches, and the number of these batches. A list, not a
        generator: no row may be yielded before all its batches are known to be readable."""
        octets, starts, stops = self._unpacker.unpack(buffer, heads)
        taken = len(starts)
        heads = heads.chosen(slice(taken))
        fields = read_fields(octets, starts, stops, heads.counts, heads.last_delta)
        offset = np.repeat(heads.base_offset, heads.counts) + fields.offset_delta
        batch_of = np.repeat(np.arange(taken), heads.counts)
        if begin > heads.base_offset.min() or self._end < heads.next_offset.max():
            keep = (offset >= begin) & (offset < self._end)
            fields, offset, batch_of = fields.kept(keep), offset[keep], batch_of[keep]
        rows = [
            self._arrays(octets, heads, fields.kept(each), offset[each], batch_of[each])
            for each in (slice(at, at + ROWS_MAX) for at in range(0, len(offset), ROWS_MAX))
        ]
        return rows, taken

    def _arrays(
        self, octets: Bytes, heads: Heads, fields: Fields, offset: Longs, batch_of: Longs
    ) -> pa.RecordBatch:
        buffer = pa.py_buffer(octets)
        arrays: list[pa.Array] = []
        for name in self._columns:
            match name:
                case "key":
                    array = made.binary_column(buffer, fields.key_at, fields.key_size)
                case "value":
                    array = made.binary_column(buffer, fields.value_at, fields.value_size)
                case "timestamp":
                    array = made.timestamp_column(_times(heads, fields, batch_of))
                case "headers":
                    # Drops the system header of other batches: a producer could forge it.
                    shown = without_system_header(octets, fields, ~heads.is_server[batch_of])
                    headers = read_headers(octets, shown)
                    array = made.headers_column(buffer, shown, headers)
                case _:
                    array = self._of_heads(name, heads, offset, batch_of)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _counted(self, heads: Heads, begin: int) -> Iterator[pa.RecordBatch]:
        """Yield rows whose columns all come from batch headers, without parsing records."""
        first = np.maximum(heads.base_offset, begin)
        counts = np.minimum(heads.next_offset, self._end) - first
        behind = np.cumsum(counts)
        for at in range(0, int(behind[-1]), ROWS_MAX):
            number = np.arange(at, min(at + ROWS_MAX, int(behind[-1])))
            batch_of = np.searchsorted(behind, number, side="right")
            offset = (first - behind + counts)[batch_of] + number
            arrays = [self._of_heads(name, heads, offset, batch_of) for name in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _of_heads(self, name: str, heads: Heads, offset: Longs, batch_of: Longs) -> pa.Array:
        match name:
            case "topic":
                return made.repeated_text(self._topic, len(offset))
            case "partition":
                return made.repeated_number(self._partition, len(offset))
            case "offset":
                return pa.array(offset)
            case _:
                assert name == "timestampType", "options let no other name through"
                return pa.array(heads.is_append_time.astype(np.int32)[batch_of])


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
    """Decode into one Arrow batch; for large reads use ``Decoder``, which yields several."""
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


def _raw(buffer: Buffer, heads: Heads, index: int) -> bytes:
    at = int(heads.at[index])
    return bytes(buffer[at : at + int(heads.size[index])])


def _say_all(heads: Heads) -> bool:
    """Return whether headers give the number and the offsets of all records. The count of a
    compressed batch is not trusted: a few bytes could claim two billion records."""
    return bool(
        (
            heads.is_dense
            & (heads.codec == 0)
            & (heads.counts * RECORD_BYTES_MIN <= heads.size - HEADER_BYTES)
        ).all()
    )


def _times(heads: Heads, fields: Fields, batch_of: Longs) -> Longs:
    is_append_time = heads.is_append_time
    times: Longs = np.where(is_append_time, heads.max_ms, heads.base_ms)[batch_of]
    if not is_append_time.any():
        return times + fields.time_delta
    return times + fields.time_delta * ~is_append_time[batch_of]


def _is_aborted(batch: Heads, aborted: set[Aborted]) -> bool:
    return any(
        producer_id == batch.producer_id[0] and first <= batch.base_offset[0]
        for producer_id, first in aborted
    )
