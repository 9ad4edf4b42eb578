"""The source of the job ``archive``: its tasks write records to files where they fetch them.

Offsets are planned as by ``format("penstock")`` (``stream_source.py``), so limits, checkpoints and
what counts as data loss are the same. What differs is ``read``: records never leave the worker
that decoded them. It writes part files (``parts.py``, cut by ``archive_rows.py``) and gives Spark
one row for each record, of which only the first of each file says something, namely which file
that is. So the progress of the query still counts records, and what crosses over to the JVM is next
to nothing. The job commits the files (``jobs/archive.py``); those of a task that fails or runs
twice are named by nobody.

A batch of fewer partitions than there are cores is shared out among them, if it is large.
"""

# ruff: noqa: N802 - the names of methods are Spark's

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.pipeline.archive_rows import PARTITION_BY, by_hour, known_id
from penstock.pipeline.fetching import RangePartition, read_range
from penstock.pipeline.options import ReadOptions, parse_read_options
from penstock.pipeline.parts import Part, write_pieces
from penstock.pipeline.ranges import Range, split
from penstock.pipeline.stream_offset import StreamOffset
from penstock.pipeline.stream_source import StreamReader
from penstock.pipeline.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

NAME: Final = "penstock-archive"
_OWN: Final = ("folder", "tasks")  # options that the read of a topic does not have
_SCHEMA: Final = pa.schema([("part", pa.string())])
_TASK_RECORDS_MIN: Final = 100_000  # less is written by one task before a second one has begun
_ROWS_MAX: Final = 1_048_576  # that are told at once, at four bytes each


class Written(NamedTuple):
    """One file, of one topic: id "" where the server has none."""

    topic: str
    topic_id: str
    part: Part

    def to_text(self) -> str:
        return json.dumps([self.topic, self.topic_id, *self.part.to_row()])

    @classmethod
    def from_text(cls, text: str) -> "Written":
        topic, topic_id, *part = json.loads(text)
        return cls(topic, topic_id, Part.from_row(part))


def read_written(batch: "DataFrame") -> list[Written]:
    """Which files the tasks of a micro-batch have written. Running them is what writes."""
    rows = batch.where("part IS NOT NULL").collect()
    return [Written.from_text(row.part) for row in rows]


class ArchiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "part string"

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: ARG002
        given: Mapping[str, str] = self.options
        reading = {name: value for name, value in given.items() if name.lower() not in _OWN}
        options = parse_read_options(reading, is_streaming=True)
        return ArchivingReader(options, Path(given["folder"]), tasks=int(given["tasks"]))


class TopicRange(InputPartition):
    """What one task archives."""

    def __init__(self, wanted: Range, topic_id: str) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.topic_id = topic_id


class ArchivingReader(StreamReader):
    def __init__(self, options: ReadOptions, folder: Path, *, tasks: int) -> None:
        super().__init__(options)
        self._reading = options
        self._folder = folder  # of all tables
        self._tasks = tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ids = StreamOffset.from_json(end).ids
        ranges = []
        for each in super().partitions(start, end):
            assert isinstance(each, RangePartition)
            ranges.append(each.wanted)
        if sum(each.count for each in ranges) >= self._tasks * _TASK_RECORDS_MIN:
            ranges = split(ranges, partitions_min=self._tasks, records_max=None)
        return [TopicRange(each, known_id(ids.get(each.place.topic, ""))) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange)
        topic = partition.wanted.place.topic
        table = Table(self._folder, topic)  # refuses a name that would leave the folder
        for part in write_range(partition.wanted, self._reading, table.path):
            yield from _told(Written(topic, partition.topic_id, part))


def write_range(wanted: Range, options: ReadOptions, root: Path) -> list[Part]:
    """The records of a range as files below a table's folder, durable when this returns. Raises
    KafkaTrouble, DataLoss, CorruptBatch."""
    pieces = by_hour(read_range(wanted, options), wanted.place)
    return write_pieces(pieces, root, PARTITION_BY)


def _told(written: Written) -> Iterator[pa.RecordBatch]:
    """A row for each record of a file, the first with the text. No file is without records."""
    column = pa.array([written.to_text()], pa.string())
    left = written.part.rows - 1
    while True:
        nulls = min(left, _ROWS_MAX - len(column))
        column = pa.concat_arrays([column, pa.nulls(nulls, pa.string())])
        yield pa.RecordBatch.from_arrays([column], schema=_SCHEMA)
        left -= nulls
        if not left:
            return
        column = pa.nulls(0, pa.string())
