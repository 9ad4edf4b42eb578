"""Reads the events of shares and bookmarks from the log of a topic, as rows of a DataFrame."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.net.kafka_client.client import Place
from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.client.options import ReadOptions, client_for, parse_read_options
from penstock.pipeline.decoding.batches import complete_batches, read_batch_headers
from penstock.pipeline.decoding.cursor_events import events_in
from penstock.pipeline.decoding.decoder import CorruptBatch
from penstock.pipeline.reading.fetching import fetcher
from penstock.pipeline.reading.offsets import Range, split
from penstock.record.batch import ATTR_CONTROL, ATTR_TRANSACTIONAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_RECORDS: Final = 1_000_000
_SCHEMA: Final = schema_of("partition int, at long, reader string, what string, offset long")


def read_cursor_events(
    spark: "SparkSession",
    given: Mapping[str, str],
    ranges: Sequence[Range],
    readers: Collection[str],
) -> "DataFrame":
    """Return the events of these readers: the partition, the offset ``at`` which the event is, and
    the columns of ``decoding/cursor_events.py``. ``given`` has the options of a read."""
    options = parse_read_options(given, is_streaming=False)
    parts = split(ranges, partitions_min=None, records_max=_TASK_RECORDS)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _events(parts[number], options, frozenset(readers))

    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    return map_in_arrow(numbers, read, _SCHEMA)


def _events(
    wanted: Range, options: ReadOptions, readers: Collection[str]
) -> Iterator[pa.RecordBatch]:
    fetch = fetcher(client_for(options.connection), wanted, options)
    at, partition = wanted.begin, wanted.place.partition
    while at < wanted.end:
        reply = fetch(at)
        rows: list[tuple[int, int, str, str, int]] = []
        for buffer in reply.buffers:
            for batch in _control_batches(buffer, wanted.place):
                found = events_in(batch, readers)
                rows += ((partition, *row) for row in found if wanted.begin <= row[0] < wanted.end)
        yield batch_of(rows, _SCHEMA)
        at = reply.next_offset


def _control_batches(buffer: memoryview, place: Place) -> Iterator[bytes]:
    """Yield the batches of events. The markers of transactions are control batches too."""
    headers, is_sound = read_batch_headers(buffer, complete_batches(buffer))
    for offset in headers.base_offset[~is_sound].tolist():
        reason = "the header or the checksum of the batch is invalid"
        raise CorruptBatch(place.topic, place.partition, offset, reason)
    chosen = headers.chosen(headers.has(ATTR_CONTROL) & ~headers.has(ATTR_TRANSACTIONAL))
    for at, size in zip(chosen.at.tolist(), chosen.size.tolist(), strict=True):
        yield bytes(buffer[at : at + size])
