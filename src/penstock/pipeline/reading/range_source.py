"""``penstock_ranges``: a stream whose micro-batches contain ranges of offsets instead of records.

Offsets are planned and kept in the checkpoint as by ``format("penstock")``. Only the rows of a task
differ: one row for each record, of which the first has the range to read and the others are null. A
job with much input and little output fetches the records where it processes them (``records_in``).
Records then stay in one process; the JVM, which would copy each record twice, only counts rows. A
batch with fewer partitions than cores is divided among all cores, if it is large enough."""

# ruff: noqa: N802 - Spark names these methods

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.net.kafka_client.client import Place
from penstock.pipeline.client.options import ReadOptions, parse_read_options
from penstock.pipeline.reading.fetching import RangePartition, read_range
from penstock.pipeline.reading.offsets import Range
from penstock.pipeline.reading.stream_source import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

NAME: Final = "penstock_ranges"
_SCHEMA: Final = pa.schema([("range", pa.string())])
_TASK_RECORDS_MIN: Final = 50  # of thousands of rows each; fewer take less time than a task's start
_ROWS_MAX: Final = 1_048_576  # of one Arrow batch that Spark gets, at four bytes each

RecordReader = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def range_stream(spark: "SparkSession", options: Mapping[str, str]) -> "DataStreamReader":
    """Return a reader to call ``load`` on. Options are those of ``penstock``."""
    spark.dataSource.register(RangeSource)
    cores = str(spark.sparkContext.defaultParallelism)
    given = {"minPartitions": cores, **options}
    return spark.readStream.format(NAME).options(**given)


def records_in(options: ReadOptions) -> RecordReader:
    """Return a function for tasks that reads the records of ranges, with the options' columns."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("range").drop_null().to_pylist():
                topic, partition, begin, end = json.loads(text)
                yield from read_range(Range(Place(topic, partition), begin, end), options)

    return read


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches of a DataFrame that has records already."""
    yield from batches


class RangeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "range string"

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: ARG002
        return RangeReader(parse_read_options(self.options, is_streaming=True))


class RangeReader(StreamReader):
    def __init__(self, options: ReadOptions) -> None:
        super().__init__(replace(options, partitions_min=None))
        self._tasks = options.partitions_min

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = self.ranges(start, end, tasks=self._tasks, task_records_min=_TASK_RECORDS_MIN)
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        (wanted,) = partition.ranges
        place = wanted.place
        text = json.dumps([place.topic, place.partition, wanted.begin, wanted.end])
        return one_row_per_record(text, wanted.count, _SCHEMA)


def one_row_per_record(text: str, count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield ``count`` rows of one column: ``text`` and nulls, which Spark counts as progress."""
    yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], schema=schema)
    for at in range(1, count, _ROWS_MAX):
        nulls = pa.nulls(min(_ROWS_MAX, count - at), pa.string())
        yield pa.RecordBatch.from_arrays([nulls], schema=schema)
