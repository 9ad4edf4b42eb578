"""The Spark data source ``spark.read.format("penstock")``, and its batch reader.

The driver parses the options, so that a mistake is reported in one line and not by a failed task.
It also plans the ranges of offsets; tasks fetch and decode the records. The streaming reader is in
``stream_source``, the writers are in ``sink``."""

# ruff: noqa: N802 - Spark names these methods

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.net.kafka_client.client import KafkaTrouble
from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.client.options import (
    ReadOptions,
    WriteOptions,
    check_columns,
    client_for,
    parse_read_options,
    parse_write_options,
)
from penstock.pipeline.reading.consume import SCHEMA as CONSUMED
from penstock.pipeline.reading.consume import ConsumingReader, is_consuming, parse_consume_options
from penstock.pipeline.reading.expand import expansion_for
from penstock.pipeline.reading.fetching import RangePartition, read_rows
from penstock.pipeline.reading.offsets import (
    Range,
    TopicsMissing,
    look_up,
    narrowed,
    resolve,
    split,
)
from penstock.pipeline.writing.appender import TopicMissing, partition_count

# Spark sets such a variable for each Python process that it starts.
_IS_PLANNER = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)


class PenstockSource(DataSource):
    """A data source for topics and queues of a Penstock server, or of any Kafka cluster."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        if is_consuming(self.options):
            return from_arrow_schema(CONSUMED)
        # Only the columns are needed; whether the read is a stream is not known yet.
        options = {
            name: value
            for name, value in self.options.items()
            if not name.lower().startswith(("starting", "ending"))
        }
        with in_one_line():
            found = parse_read_options(options, is_streaming=True)
            return from_arrow_schema(expansion_for(found).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        with in_one_line():
            if is_consuming(self.options):
                raise OptionInvalid(
                    "mode=consume deletes the messages that it reads, so it needs readStream"
                )
            options = parse_read_options(self.options, is_streaming=False)
        kind = PushdownReader if options.is_pushdown else BatchReader
        return kind(options, _inner_schema(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.pipeline.reading.stream_source import StreamReader

        with in_one_line():
            if is_consuming(self.options):
                return ConsumingReader(parse_consume_options(self.options))
            options = parse_read_options(self.options, is_streaming=True)
        return StreamReader(options, _inner_schema(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.writing.sink import BatchWriter

        use = "mode append, not overwrite" if overwrite else ""
        return BatchWriter(self._write_options(schema, use))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.pipeline.writing.sink import StreamWriter

        use = "output mode append or update" if overwrite else ""
        return StreamWriter(self._write_options(schema, use))

    def _write_options(self, schema: StructType, use: str) -> WriteOptions:
        """Parse the options, and create a missing topic now, so that a failure is reported once."""
        with in_one_line():
            if use:
                raise OptionInvalid(f"a topic is append-only: use {use}")
            options = parse_write_options(self.options)
            check_columns(schema, options)
            if options.topic:
                partition_count(client_for(options.connection), options.topic)
            return options


@contextmanager
def in_one_line() -> Iterator[None]:
    """A context that raises errors about options and the server without a traceback. Spark's
    planner process prints a traceback above each error, unless SPARK_HIDE_TRACEBACK is set."""
    try:
        yield
    except (OptionInvalid, TopicMissing, TopicsMissing, KafkaTrouble) as error:
        if _IS_PLANNER:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the process ends with this error
        raise error from None


def _inner_schema(options: ReadOptions, schema: StructType) -> pa.Schema | None:
    """Return the user's schema for the rows inside records if ``decode=arrow``, otherwise None."""
    if options.decode != "arrow":
        return None
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


@dataclass
class BatchReader(DataSourceReader):
    options: ReadOptions
    schema: pa.Schema | None = None
    filters: Sequence[Filter] = ()

    def partitions(self) -> Sequence[InputPartition]:
        with in_one_line():
            return self._planned()

    def _planned(self) -> list[RangePartition]:
        options = self.options
        client = client_for(options.connection)
        found = look_up(client, options.subscription)
        if found.missing:
            raise TopicsMissing(found.missing)
        is_committed = options.is_committed_only
        begins = resolve(client, options.starting, found.places, is_committed=is_committed)
        ends = resolve(client, options.ending, found.places, is_committed=is_committed)
        wanted = [Range(place, begins[place], ends[place]) for place in found.places]
        parts = split(
            narrowed(wanted, self.filters, client),
            partitions_min=options.partitions_min,
            records_max=options.records_per_partition_max,
        )
        return [RangePartition(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self.options, self.schema)


class PushdownReader(BatchReader):
    """A batch reader that uses filters to read fewer records. It is a separate class, because Spark
    rejects a reader that has ``pushFilters`` unless its setting for filter pushdown is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        self.filters = filters
        # Spark evaluates all filters again: ranges contain more records than filters select.
        yield from filters
