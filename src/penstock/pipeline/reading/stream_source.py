"""The sources of ``spark.readStream.format("penstock")`` and ``penstock_ranges``.

For each batch, Spark calls ``latestOffset`` (where the batch ends), then ``partitions`` (its
tasks), and then ``read`` in the tasks. One reader lives as long as its query, in its own process.
The argument of ``latestOffset`` is the end of the last batch, which has finished, so the reader
commits this offset if there is a ``commitGroup``. Spark never calls ``commit`` for the last batch.

Micro-batches of ``penstock_ranges`` contain ranges of offsets instead of records: one row for each
record, of which the first has the range to read and the others are null. A job with much input and
little output fetches the records where it processes them (``records_in``). Records then stay in one
process; the JVM, which would copy each record twice, only counts rows. A batch with fewer
partitions than cores is divided among all cores, if it is large enough."""

# ruff: noqa: N802 - Spark names these methods

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaClient, KafkaTrouble, Place
from penstock.net.kafka_client.group_offsets import Committed, commit_offsets
from penstock.pipeline.client.options import OnDataLoss, ReadOptions, client_for, parse_read_options
from penstock.pipeline.decoding.batches import whole_span
from penstock.pipeline.reading.fetching import DataLoss, RangePartition, read_range, read_rows
from penstock.pipeline.reading.offsets import (
    Found,
    Range,
    StreamOffset,
    TopicsMissing,
    limited_ends,
    look_up,
    packed,
    resolve,
    split,
)

_LOOK_UP_S: Final = 1.0  # maximum age of the list of partitions: an idle Spark calls every few ms
_TASK_RECORDS: Final = 4_000  # fewer are not worth a second task
_SAMPLE_BYTES: Final = 262_144  # fetched from each partition to estimate the size of its records


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        options: ReadOptions,
        schema: pa.Schema | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        tasks: int | None = None,
    ) -> None:
        self._options = options
        self._tasks = tasks
        self._clock = clock
        self._schema = schema
        self._latest: StreamOffset | None = None  # at the last call of ``latestOffset``
        self._target: StreamOffset | None = None  # where an availableNow query ends
        self._found: Found | None = None
        self._found_at_s = 0.0
        self._batch_at_s = clock()
        self._committed: dict[Place, int] = {}  # for the group of the option ``commitGroup``
        self._is_commit_failing = False

    def initialOffset(self) -> dict[str, Any]:
        found = self._look_up()
        if found.missing:
            raise TopicsMissing(found.missing)
        begins = resolve(
            self._client, self._options.starting, found.places, is_committed=self._is_committed
        )
        return StreamOffset(begins, found.ids).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = StreamOffset.from_json(start)
        if self._options.commit_group:
            self._commit_for_group(self._options.commit_group, begun.at)
        latest = self._target or self._look()
        self._latest = latest
        begins = self._begins(begun, latest)
        ends = {place: max(at, begins[place]) for place, at in latest.at.items()}
        ends = self._limited(begins, ends, limit)
        reached = StreamOffset(ends, latest.ids).to_json()
        if reached != start:
            self._batch_at_s = self._clock()
        return reached

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look()

    def _commit_for_group(self, group: str, reached: Mapping[Place, int]) -> None:
        """Commit the offsets that changed, so that tools can show the lag. A failed commit (the
        group has members, or the principal is not authorized) must not end the query."""
        moved = {place: at for place, at in reached.items() if self._committed.get(place) != at}
        if not moved:
            return
        try:
            offsets = {place: Committed(at) for place, at in moved.items()}
            commit_offsets(self._client, group, offsets)
        except KafkaTrouble as trouble:
            if not self._is_commit_failing:
                self._is_commit_failing = True
                text = f"cannot commit for group {group}: {trouble}"
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - a worker has no logger
            return
        self._is_commit_failing = False
        self._committed |= moved

    def _limited(
        self, begins: Mapping[Place, int], ends: Mapping[Place, int], limit: ReadLimit
    ) -> dict[Place, int]:
        if isinstance(limit, ReadAllAvailable):
            return dict(ends)
        least = self._options.offsets_per_trigger_min
        if least is not None and self._target is None:  # an availableNow query does not wait
            waited_ms = (self._clock() - self._batch_at_s) * 1_000
            has = sum(max(0, ends[place] - begins[place]) for place in ends)
            if has < least and waited_ms < self._options.trigger_delay_ms_max:
                return {place: begins[place] for place in ends}  # wait for more records
        if isinstance(limit, ReadMaxRows):
            return limited_ends(begins, ends, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return self._within_bytes(begins, ends, limit.max_bytes)
        return dict(ends)

    def _within_bytes(
        self, begins: Mapping[Place, int], ends: Mapping[Place, int], bytes_max: int
    ) -> dict[Place, int]:
        """Limit a batch to about ``bytes_max``, estimated from a sample of each partition."""
        begun = {place: begins[place] for place in ends if ends[place] > begins[place]}
        if not begun:
            return dict(ends)
        sampled_bytes = sampled_count = 0
        replies = self._client.fetch(
            begun,
            wait_ms=0,
            bytes_max=_SAMPLE_BYTES * len(begun),
            partition_bytes_max=_SAMPLE_BYTES,
            is_committed=self._is_committed,
        )
        for place, reply in replies.items():
            after, size = whole_span(reply.records)
            sampled_bytes += size
            sampled_count += max(0, after - begun[place])
        if not sampled_count:
            return dict(ends)
        return limited_ends(begins, ends, max(1.0, bytes_max / (sampled_bytes / sampled_count)))

    @property
    def _client(self) -> KafkaClient:
        return client_for(self._options.connection)

    @property
    def _is_committed(self) -> bool:
        return self._options.is_committed_only

    def _look_up(self) -> Found:
        now_s = self._clock()
        if self._found is None or now_s - self._found_at_s > _LOOK_UP_S:
            self._found = look_up(self._client, self._options.subscription)
            self._found_at_s = now_s
        return self._found

    def _look(self) -> StreamOffset:
        found = self._look_up()
        ends = self._client.offsets(
            dict.fromkeys(found.places, LATEST), is_committed=self._is_committed
        )
        return StreamOffset(ends, found.ids)

    def _begins(self, begun: StreamOffset, end: StreamOffset) -> dict[Place, int]:
        """Return the offset at which the batch begins, for each partition of ``end``."""
        is_strict = self._options.on_data_loss is OnDataLoss.FAIL
        begins: dict[Place, int] = {}
        fresh: list[Place] = []  # new partitions, which begin at their first record
        for place, at in end.at.items():
            before = begun.at.get(place)
            if before is None:
                fresh.append(place)
            elif not begun.same_topic(end, place.topic):
                if is_strict:
                    raise DataLoss(place, before, before, "the topic was deleted and created again")
                fresh.append(place)
            elif before > at:
                if is_strict:
                    raise DataLoss(place, at, before, f"the log ends at {at}")
                begins[place] = at
            else:
                begins[place] = before
        gone = sorted(set(begun.at) - set(end.at))
        if gone and is_strict:
            raise DataLoss(gone[0], begun.at[gone[0]], begun.at[gone[0]], "the topic was deleted")
        if fresh:
            begins |= self._client.offsets(dict.fromkeys(fresh, EARLIEST))
        return begins

    def ranges(
        self, start: dict[str, Any], end: dict[str, Any], *, records_min: int = 0
    ) -> list[Range]:
        """Return the ranges of a batch, divided as the options require. A batch with at least
        ``records_min`` records per task is divided further, so that all tasks get records."""
        reached = StreamOffset.from_json(end)
        begins = self._begins(StreamOffset.from_json(start), reached)
        found = split(
            [Range(place, begins[place], at) for place, at in reached.at.items()],
            partitions_min=self._options.partitions_min,
            records_max=self._options.records_per_partition_max,
        )
        if self._tasks and sum(each.count for each in found) >= self._tasks * records_min:
            return split(found, partitions_min=self._tasks, records_max=None)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Small ranges share a task, because starting tasks takes most
        of the time of a small batch. Records of a partition stay in order."""
        options = self._options
        is_split = options.partitions_min or options.records_per_partition_max
        packs = packed(self.ranges(start, end), records_max=0 if is_split else _TASK_RECORDS)
        return [RangePartition(*ranges) for ranges in packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._options, self._schema)


NAME: Final = "penstock_ranges"
_SCHEMA: Final = pa.schema([("range", pa.string())])
_TASK_RECORDS_MIN: Final = 50  # of thousands of rows each; fewer are not worth a task
_ROWS_MAX: Final = 1_048_576  # of one Arrow batch that Spark gets, at four bytes each

RecordReader = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def range_stream(spark: SparkSession, options: Mapping[str, str]) -> DataStreamReader:
    """Return a stream reader of ranges. Its options are those of ``format("penstock")``."""
    spark.dataSource.register(RangeSource)
    cores = str(spark.sparkContext.defaultParallelism)
    given = {"minPartitions": cores, **options}
    return spark.readStream.format(NAME).options(**given)


def records_in(options: ReadOptions) -> RecordReader:
    """Return a function that takes batches of ranges and yields the records of these ranges."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("range").drop_null().to_pylist():
                topic, partition, begin, end = json.loads(text)
                yield from read_range(Range(Place(topic, partition), begin, end), options)

    return read


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged, for a DataFrame that has records instead of ranges."""
    yield from batches


class RangeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "range string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        return RangeReader(parse_read_options(self.options, is_streaming=True))


class RangeReader(StreamReader):
    def __init__(self, options: ReadOptions) -> None:
        super().__init__(replace(options, partitions_min=None), tasks=options.partitions_min)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = self.ranges(start, end, records_min=_TASK_RECORDS_MIN)
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        (wanted,) = partition.ranges
        place = wanted.place
        text = json.dumps([place.topic, place.partition, wanted.begin, wanted.end])
        return one_row_per_record(text, wanted.count, _SCHEMA)


def one_row_per_record(text: str, count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield ``count`` rows, which Spark counts: the first is ``text``, the others are null."""
    yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], schema=schema)
    for at in range(1, count, _ROWS_MAX):
        nulls = pa.nulls(min(_ROWS_MAX, count - at), pa.string())
        yield pa.RecordBatch.from_arrays([nulls], schema=schema)
