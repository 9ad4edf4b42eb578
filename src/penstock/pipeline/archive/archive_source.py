"""The Spark source of the job ``archive``, whose tasks write the records that they fetch to files.

The source plans offsets like ``format("penstock")``. Only ``read`` differs: the worker that decodes
the records also writes them to part files. Spark gets one row for each record. The first row of
each file describes the file, and the other rows are null, so Spark's progress still counts records,
but almost no bytes go to the JVM. Files of failed attempts are never committed."""

# ruff: noqa: N802 - Spark names these methods

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.pipeline.archive.archive_rows import PARTITION_BY, by_hour, known_id
from penstock.pipeline.client.options import ReadOptions, parse_read_options
from penstock.pipeline.lake import Table
from penstock.pipeline.parts import Part, write_pieces
from penstock.pipeline.reading.fetching import RangePartition, read_range
from penstock.pipeline.reading.offsets import Range, StreamOffset
from penstock.pipeline.reading.stream_source import StreamReader, one_row_per_record

NAME: Final = "penstock-archive"
_OWN: Final = ("folder", "tasks")  # options that reading a topic does not have
_SCHEMA: Final = pa.schema([("part", pa.string())])
_TASK_RECORDS_MIN: Final = 100_000  # one task writes fewer before a second task has started


class Written(NamedTuple):
    """A part file with records of one topic. ``topic_id`` is "" if the server has no topic ids."""

    topic: str
    topic_id: str
    part: Part

    def to_text(self) -> str:
        return json.dumps([self.topic, self.topic_id, *self.part.to_row()])

    @classmethod
    def from_text(cls, text: str) -> "Written":
        topic, topic_id, *part = json.loads(text)
        return cls(topic, topic_id, Part.from_row(part))


def read_written(batch: DataFrame) -> list[Written]:
    rows = batch.where("part IS NOT NULL").collect()
    return [Written.from_text(row.part) for row in rows]


class ArchiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "part string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        given: Mapping[str, str] = self.options
        reading = {name: value for name, value in given.items() if name.lower() not in _OWN}
        options = parse_read_options(reading, is_streaming=True)
        return ArchivingReader(options, Path(given["folder"]), tasks=int(given["tasks"]))


class TopicRange(RangePartition):
    def __init__(self, wanted: Range, topic_id: str) -> None:
        super().__init__(wanted)
        self.topic_id = topic_id


class ArchivingReader(StreamReader):
    def __init__(self, options: ReadOptions, folder: Path, *, tasks: int) -> None:
        super().__init__(options, tasks=tasks)
        self._folder = folder  # of all archive tables

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ids = StreamOffset.from_json(end).ids
        ranges = self.ranges(start, end, records_min=_TASK_RECORDS_MIN)
        return [TopicRange(each, known_id(ids.get(each.place.topic, ""))) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange)
        (wanted,) = partition.ranges
        topic = wanted.place.topic
        table = Table(self._folder, topic)  # rejects a name that would be outside the folder
        pieces = by_hour(read_range(wanted, self._options), wanted.place)
        for part in write_pieces(pieces, table.path, PARTITION_BY):
            text = Written(topic, partition.topic_id, part).to_text()
            yield from one_row_per_record(text, part.rows, _SCHEMA)
