"""Runs the streaming queries of jobs.

A query without a checkpoint continues after the records that its table has, because a tracked table
of the lake stores its end offsets. A partition that is not in the table begins at its first record.
So does a partition whose log begins after the end offset in the table; in this case, the job itself
must detect that records are missing."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.net.kafka_client.client import EARLIEST, KafkaClient
from penstock.pipeline.client.option_values import Options
from penstock.pipeline.client.options import (
    Subscription,
    new_client,
    parse_connection,
    parse_read_options,
)
from penstock.pipeline.job import JobContext, JobMisused, NotFound, option
from penstock.pipeline.lake import Ends, query_app
from penstock.pipeline.reading.offsets import look_up
from penstock.pipeline.toml_tables import read_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader

T = TypeVar("T")


def client_of(context: JobContext) -> KafkaClient:
    """Return a Kafka client, which works without Spark. The caller must close it."""
    return new_client(parse_connection(Options(context.read_options)))


def check_topics(context: JobContext, topics: Sequence[str]) -> None:
    """Raise NotFound if the server does not have one of these topics, and KafkaTrouble if the
    server is not available. Without topics only the server is checked."""
    with client_of(context) as client:
        if not topics:
            client.nodes()
            return
        missing = look_up(client, Subscription(topics=tuple(topics))).missing
    if missing:
        raise NotFound(f"there is no topic {', '.join(missing)}", "penstock topic list")


def parsed_option(
    context: JobContext, name: str, parse: Callable[[str], T], error: type[Exception]
) -> T:
    """Parse the TOML file of an option. Raises JobMisused if the file is missing or invalid."""
    path = context.arguments.get(name)
    if not path:
        raise JobMisused(f"--{name} is required: name a TOML file")
    try:
        return parse(read_text(path, error))
    except error as trouble:
        raise JobMisused(str(trouble)) from None


def starting_offsets(client: KafkaClient, topics: Sequence[str], ends: Ends) -> str:
    """Return the value of ``startingOffsets`` with which a query continues at ``ends``."""
    if not any(ends.get(topic) for topic in topics):
        return "earliest"
    places = [place for topic in topics for place in client.places(topic)]
    firsts = client.offsets(dict.fromkeys(places, EARLIEST))
    begins: dict[str, dict[str, int]] = {}
    for place in places:
        end = ends.get(place.topic, {}).get(place.partition)
        begin = EARLIEST if end is None or end < firsts[place] else end
        begins.setdefault(place.topic, {})[str(place.partition)] = begin
    return json.dumps(begins)


def topic_stream(context: JobContext, topic: str, ends: Ends, **options: str) -> "DataStreamReader":
    """Return a stream reader of a topic that begins at ``ends``. Lost records are skipped, because
    retention may delete records before the job reads them."""
    with client_of(context) as client:
        begins = starting_offsets(client, [topic], ends)
    given = {"subscribe": topic, "startingOffsets": begins, "onDataLoss": "skip", **options}
    return context.spark.readStream.format("penstock").options(**context.read_options, **given)


def process(
    context: JobContext,
    job: str,
    reader: "DataStreamReader",
    take: "Callable[[DataFrame, str, int], None]",
    *,
    batch_bytes: str,
    query: str = "query",
) -> None:
    """Run a query to its end. Call ``take(batch, app, batch_id)`` for each batch."""
    checkpoint = context.checkpoint_of(query)

    def take_batch(batch: "DataFrame", batch_id: int) -> None:
        take(batch, query_app(job, checkpoint), batch_id)

    limit = context.arguments.get("batch_bytes") or batch_bytes
    stream = (
        reader.option("maxBytesPerTrigger", limit)
        .load()
        .writeStream.foreachBatch(take_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(**context.trigger)
    )
    context.follow(stream.start())


class FactTopic:
    """The topic ``__usage`` or ``__telemetry`` as the input of a job. Its query only plans ranges
    of offsets. The tasks of the job fetch the records, so that records never reach the JVM."""

    def __init__(self, context: JobContext, default: str) -> None:
        from penstock.pipeline.reading.stream_source import records_in

        self._context = context
        self.name = str(context.arguments.get("topic") or default)
        columns = "partition,offset,value"
        self._options = {**context.read_options, "subscribe": self.name, "columns": columns}
        parsed = parse_read_options(self._options, is_streaming=False)
        self.connection = parsed.connection
        self.reading = records_in(parsed)  # from batches of the query to records

    def process(
        self, job: str, take: "Callable[[DataFrame, str, int], None]", *, ends: Mapping[int, int]
    ) -> None:
        """Pass all new batches to ``take``. If there is no checkpoint, begin at ``ends``."""
        from penstock.pipeline.reading.stream_source import range_stream

        context, begins = self._context, "earliest"
        if ends and not (Path(context.checkpoint_of()) / "metadata").exists():
            with client_of(context) as client:
                begins = starting_offsets(client, [self.name], {self.name: dict(ends)})
        reader = range_stream(context.spark, self._options).option("startingOffsets", begins)
        # Records have about twenty rows per kilobyte.
        process(context, job, reader, take, batch_bytes="256m")


def fact_options(topic: str, span: str, grace_ms: int) -> tuple[click.Option, ...]:
    """Return the options --grace and --topic. ``span``, such as "an hour", is part of the help."""
    seconds, text = click.IntRange(0, 86_400), f"time to wait for late records after {span} ends"
    return (
        option("--grace grace_s", "SECONDS", text, type=seconds, default=grace_ms // 1_000),
        option("--topic", None, "topic to read: the default or a mirror of it", default=topic),
    )


def grace_ms_of(context: JobContext, default_ms: int) -> int:
    """Return ``--grace``, or the default if the job was not started from the command line."""
    seconds = context.arguments.get("grace_s")
    return default_ms if seconds is None else int(seconds) * 1_000
