"""Decodes fetched record batches into Arrow, without a Python object for each record.

The decoder does the work of Kafka's consumer for a whole chunk: it drops control batches, batches
of aborted transactions, and records outside the requested offsets. Gaps left by compaction are
allowed, and an incomplete last batch is left to the next fetch. Compressed batches are decompressed
a few at a time, so memory is bounded. A read that only needs columns from batch headers does not
parse records at all. Names and types of columns are those of Spark's Kafka connector, so a query
migrates by changing the name of the format.

With ``OnCorrupt.SKIP``, unreadable batches are counted and skipped. A batch with an invalid length
is always an error, because the position of the next batch is unknown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.pipeline.decoding.batches import (
    BatchHeaders,
    Flags,
    InvalidLength,
    Unpacker,
    complete_batches,
    read_batch_headers,
)
from penstock.pipeline.decoding.records import (
    RECORD_BYTES_MIN,
    Bytes,
    Fields,
    HeaderFields,
    Longs,
    Unreadable,
    read_fields,
    read_headers,
    without_system_header,
)
from penstock.record import batch as layout
from penstock.record.control import TYPE_ABORT, iter_control
from penstock.record.malformed import MalformedBatch
from penstock.record.record import iter_records

ROWS_MAX: Final = 100_000  # of one Arrow batch: more is not faster, and Spark holds two batches
OFFSET_MAX: Final = 2**63 - 1
_HEADER_COLUMNS: Final = frozenset(("topic", "partition", "offset", "timestampType"))
HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(HEADER_TYPE),
}
PLAIN: Final = tuple(name for name in TYPES if name != "headers")

Buffer = bytes | memoryview
Aborted = tuple[int, int]  # aborted transaction: producer id, first offset


class OnCorrupt(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class CorruptBatch(Exception):
    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.offset = offset

    def __str__(self) -> str:
        topic, partition, offset, reason = self.args
        return (
            f"corrupt batch in topic {topic}, partition {partition}, at offset {offset}: {reason}"
            " (option onCorrupt=skip skips such batches)"
        )


@dataclass(kw_only=True, eq=False)
class Decoder:
    """Decodes batches of one partition. ``next_offset``, the offset to fetch next, advances when a
    chunk has been decoded completely."""

    topic: str
    partition: int
    columns: Sequence[str] = PLAIN
    begin: InitVar[int] = 0
    end: int = OFFSET_MAX
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    corrupt_count: int = 0

    def __post_init__(self, begin: int) -> None:
        self._schema = arrow_schema(self.columns)
        self._needs_headers_only = not set(self.columns) - _HEADER_COLUMNS
        self._unpacker = Unpacker()
        self.next_offset = begin

    def decode(
        self, buffers: Sequence[Buffer], aborted: Iterable[Aborted] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of fetch replies, except records of ``aborted`` transactions."""
        begin = self.next_offset
        still_aborted = set(aborted)
        for buffer in buffers:
            positions = self._complete(buffer)
            if not positions:
                continue
            batches, is_sound = read_batch_headers(buffer, positions)
            if not is_sound.all():
                self._reject(buffer, batches.chosen(~is_sound))
                batches = batches.chosen(is_sound)
            wanted = batches.chosen(self._is_wanted(buffer, batches, begin, still_aborted))
            yield from self._decoded(buffer, wanted, begin)
            if len(batches.at):
                self._advance(int(batches.next_offset.max()))

    def _complete(self, buffer: Buffer) -> list[int]:
        try:
            return complete_batches(buffer)
        except InvalidLength as error:
            # Without a length the next batch cannot be found, so OnCorrupt.SKIP cannot skip.
            for position in error.positions[-1:]:
                self._advance(layout.parse_header(buffer, position).next_offset)
            raise self._corrupt(self.next_offset, str(error)) from None

    def _reject(self, buffer: Buffer, batches: BatchHeaders) -> None:
        for position in batches.at.tolist():
            header = layout.parse_header(buffer, position)
            try:
                layout.check_header(header)
                raise MalformedBatch("the checksum of the batch does not match")
            except MalformedBatch as error:
                self._skip(header.base_offset, header.next_offset, error)

    def _is_wanted(
        self, buffer: Buffer, batches: BatchHeaders, begin: int, aborted: set[Aborted]
    ) -> Flags:
        is_wanted: Flags = (
            ~batches.has(layout.ATTR_CONTROL)
            & (batches.next_offset > begin)
            & (batches.base_offset < self.end)
            & (batches.counts > 0)
        )
        if aborted:
            for index in np.flatnonzero(batches.has(layout.ATTR_TRANSACTIONAL)).tolist():
                batch = batches.chosen(slice(index, index + 1))
                if batch.has(layout.ATTR_CONTROL)[0]:
                    self._end_aborted(buffer, batch, aborted)
                elif any(
                    producer_id == batch.producer_id[0] and first <= batch.base_offset[0]
                    for producer_id, first in aborted
                ):
                    is_wanted[index] = False
        return is_wanted

    def _end_aborted(self, buffer: Buffer, batch: BatchHeaders, aborted: set[Aborted]) -> None:
        """At an abort marker, remove the producer's oldest transaction from ``aborted``."""
        try:
            kinds = [kind for _, kind, _ in iter_control(_raw(buffer, batch, 0))]
        except MalformedBatch as error:
            self._skip(int(batch.base_offset[0]), int(batch.next_offset[0]), error)
            return
        mine = [each for each in aborted if each[0] == batch.producer_id[0]]
        if TYPE_ABORT in kinds and mine:
            aborted.discard(min(mine))

    def _advance(self, next_offset: int) -> None:
        self.next_offset = max(self.next_offset, min(next_offset, self.end))

    def _skip(self, offset: int, next_offset: int, error: MalformedBatch) -> None:
        if self.on_corrupt is OnCorrupt.FAIL:
            raise self._corrupt(offset, str(error)) from None
        self.corrupt_count += 1
        self._advance(next_offset)

    def _corrupt(self, offset: int, reason: str) -> CorruptBatch:
        return CorruptBatch(self.topic, self.partition, offset, reason)

    def _decoded(
        self, buffer: Buffer, batches: BatchHeaders, begin: int
    ) -> Iterator[pa.RecordBatch]:
        if self._needs_headers_only and len(batches.at) and _headers_suffice(batches):
            yield from self._counted(batches, begin)
            return
        done, is_judged = 0, False
        while done < len(batches.at):
            left = batches.chosen(slice(done, None))
            try:
                rows, count = self._rows(buffer, left, begin)
            except (Unreadable, MalformedBatch):
                assert not is_judged, "batches that are readable one by one are readable together"
                batches, done, is_judged = self._readable(buffer, left), 0, True
                continue
            yield from rows
            done += count

    def _readable(self, buffer: Buffer, batches: BatchHeaders) -> BatchHeaders:
        """Return the batches that can be decoded. Other batches are skipped or raise an error."""
        good = []
        for index in range(len(batches.at)):
            try:
                for record in iter_records(_raw(buffer, batches, index)):
                    if not -(2**63) <= record.timestamp < 2**63:
                        raise MalformedBatch(f"invalid timestamp {record.timestamp}")
                good.append(index)
            except MalformedBatch as error:
                self._skip(int(batches.base_offset[index]), int(batches.next_offset[index]), error)
        return batches.chosen(np.array(good, np.int64))

    def _rows(
        self, buffer: Buffer, batches: BatchHeaders, begin: int
    ) -> tuple[list[pa.RecordBatch], int]:
        """Decode batches until the buffer is full. Return their rows and the number of batches."""
        octets, starts, stops = self._unpacker.unpack(buffer, batches)
        taken = len(starts)
        batches = batches.chosen(slice(taken))
        fields = read_fields(octets, starts, stops, batches.counts, batches.last_delta)
        offset = np.repeat(batches.base_offset, batches.counts) + fields.offset_delta
        batch_of = np.repeat(np.arange(taken), batches.counts)
        if begin > batches.base_offset.min() or self.end < batches.next_offset.max():
            keep = (offset >= begin) & (offset < self.end)
            fields, offset, batch_of = fields.kept(keep), offset[keep], batch_of[keep]
        rows = [
            self._arrays(octets, batches, fields.kept(each), offset[each], batch_of[each])
            for each in (slice(at, at + ROWS_MAX) for at in range(0, len(offset), ROWS_MAX))
        ]
        return rows, taken

    def _arrays(
        self, octets: Bytes, batches: BatchHeaders, fields: Fields, offset: Longs, batch_of: Longs
    ) -> pa.RecordBatch:
        buffer = pa.py_buffer(octets)
        arrays: list[pa.Array] = []
        for name in self.columns:
            match name:
                case "key":
                    array = binary_column(buffer, fields.key_at, fields.key_size)
                case "value":
                    array = binary_column(buffer, fields.value_at, fields.value_size)
                case "timestamp":
                    array = timestamp_column(_times(batches, fields, batch_of))
                case "headers":
                    # Only batches of the server keep the system header: a producer could forge it.
                    shown = without_system_header(octets, fields, ~batches.is_server[batch_of])
                    headers = read_headers(octets, shown)
                    array = headers_column(buffer, shown, headers)
                case _:
                    array = self._header_column(name, batches, offset, batch_of)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _counted(self, batches: BatchHeaders, begin: int) -> Iterator[pa.RecordBatch]:
        """Yield rows whose columns all come from batch headers, without parsing records."""
        first = np.maximum(batches.base_offset, begin)
        counts = np.minimum(batches.next_offset, self.end) - first
        ends = np.cumsum(counts)
        for at in range(0, int(ends[-1]), ROWS_MAX):
            number = np.arange(at, min(at + ROWS_MAX, int(ends[-1])))
            batch_of = np.searchsorted(ends, number, side="right")
            offset = (first - ends + counts)[batch_of] + number
            arrays = [self._header_column(name, batches, offset, batch_of) for name in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _header_column(
        self, name: str, batches: BatchHeaders, offset: Longs, batch_of: Longs
    ) -> pa.Array:
        match name:
            case "topic":
                return repeated_text(self.topic, len(offset))
            case "partition":
                return repeated_number(self.partition, len(offset))
            case "offset":
                return pa.array(offset)
            case _:
                assert name == "timestampType", "unknown column"
                return pa.array(batches.has(layout.ATTR_APPEND_TIME).astype(np.int32)[batch_of])


def _raw(buffer: Buffer, batches: BatchHeaders, index: int) -> bytes:
    at = int(batches.at[index])
    return bytes(buffer[at : at + int(batches.size[index])])


def _headers_suffice(batches: BatchHeaders) -> bool:
    """Return whether batch headers alone give the number and offsets of all records. The count of a
    compressed batch is not trusted: a few bytes could claim two billion records."""
    is_dense = batches.counts == batches.last_delta + 1  # compaction has removed no record
    is_possible = batches.counts * RECORD_BYTES_MIN <= batches.size - layout.HEADER_BYTES
    return bool((is_dense & (batches.codec == 0) & is_possible).all())


def _times(batches: BatchHeaders, fields: Fields, batch_of: Longs) -> Longs:
    is_append_time = batches.has(layout.ATTR_APPEND_TIME)
    times: Longs = np.where(is_append_time, batches.max_ms, batches.base_ms)[batch_of]
    if not is_append_time.any():
        return times + fields.time_delta
    return times + fields.time_delta * ~is_append_time[batch_of]


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in columns])


def binary_column(buffer: pa.Buffer, at: Longs, size: Longs) -> pa.Array:
    """Return slices of the buffer as a column, without a loop: the buffer becomes the data of a
    binary array whose offsets are begin, end, begin, end…, and every second element is dropped.
    Slices must be in ascending order; a size of −1 means null."""
    count = len(at)
    if not count:
        return pa.array([], pa.binary())
    is_null = size < 0
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = at
    np.add(at, np.maximum(size, 0), out=edges[1::2], casting="unsafe")
    slices = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), buffer])
    every_other = np.arange(0, 2 * count, 2, dtype=np.int32)
    mask = is_null if is_null.any() else None
    return slices.take(pa.array(every_other, mask=mask))


def text_column(buffer: pa.Buffer, at: Longs, size: Longs) -> pa.Array:
    """Return slices of the buffer as text. As in Java, bytes that are not UTF-8 become U+FFFD."""
    raw = binary_column(buffer, at, size)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if each is None else each.decode("utf-8", "replace") for each in raw.to_pylist()
        ]
        return pa.array(texts, pa.string())


def repeated_text(text: str, count: int) -> pa.Array:
    raw = text.encode()
    edges = np.arange(count + 1, dtype=np.int32) * len(raw)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(edges), pa.py_buffer(raw * count)]
    )


def repeated_number(number: int, count: int) -> pa.Array:
    return pa.array(np.full(count, number, np.int32))


def timestamp_column(at_ms: Longs) -> pa.Array:
    return pa.array(at_ms * 1_000).view(TYPES["timestamp"])


def headers_column(buffer: pa.Buffer, fields: Fields, headers: HeaderFields) -> pa.Array:
    """Return each record's headers, or null if it has none, as Spark's Kafka connector does."""
    counts = fields.headers_count
    edges = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=edges[1:])
    pairs = pa.StructArray.from_arrays(
        [
            text_column(buffer, headers.name_at, headers.name_size),
            binary_column(buffer, headers.value_at, headers.value_size),
        ],
        fields=list(HEADER_TYPE),
    )
    has_none: Flags = counts == 0
    mask = pa.array(has_none) if has_none.any() else None
    return pa.ListArray.from_arrays(pa.array(edges), pairs, type=TYPES["headers"], mask=mask)
