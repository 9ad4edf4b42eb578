"""``penstock pipeline verify archive``: checks that archive tables hold the same records as logs.

For each partition, the offsets of a table must run from the first to the end without duplicates,
and without a gap that the log does not have as well: compaction removes records, and markers of
transactions and cursors are between records. So where a table has a gap, the log is read again, and
each of its records must be in the table. Records that retention has removed from the log, and those
of a table that was moved aside, cannot be compared and are reported as unknown."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaRefused, Place
from penstock.pipeline.job import Job, JobContext, Mode, NotFound, Unsound, option
from penstock.pipeline.jobs.archive import FOLDER, NAME, ends_of, table_of, topic_of
from penstock.pipeline.jobs.queries import client_of
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one partition."""

    topic: str
    partition: int
    first: int
    end: int
    rows: int
    repeated: int
    missing: int  # records in the log but not in the table
    unknown: int  # offsets in gaps that the log no longer has
    is_end_known: bool

    @property
    def is_sound(self) -> bool:
        return not self.repeated and not self.missing and self.is_end_known


def spans(rows: "DataFrame") -> "DataFrame":
    """Return for each partition the first and last offset, the number of rows and of repeated
    offsets, and the offsets between which all gaps are (null without gaps)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_partition = Window.partitionBy("partition").orderBy("offset")
    before = f.lag("offset").over(of_partition)
    marked = rows.select("partition", "offset", before.alias("before"))
    is_gap = f.col("offset") > f.col("before") + 1
    return marked.groupBy("partition").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("*").alias("rows"),
        f.count_if(f.col("offset") == f.col("before")).alias("repeated"),
        f.min(f.when(is_gap, f.col("before") + 1)).alias("gap_first"),
        f.max(f.when(is_gap, f.col("offset"))).alias("gap_end"),
    )


def verify(
    spark: "SparkSession", lake: Lake, topic: str, context: "JobContext | None" = None
) -> list[Verdict]:
    """Check each partition. Without a context the log is not read: all gaps count as unknown."""
    rows = lake.read(spark, table_of(topic)).select("partition", "offset")
    ends = ends_of(lake, topic)
    if topic not in lake.end_offsets(table_of(topic), NAME):
        context = None  # the table was moved aside: no log has these records any more
    found = []
    for span in spans(rows).orderBy("partition").collect():
        missing, unknown = 0, 0
        if span.gap_first is not None:
            missing, unknown = _compare(spark, context, topic, rows, span)
        place, end = (topic, span.partition), span.last + 1
        counts = (span.rows, span.repeated, missing, unknown)
        found.append(Verdict(*place, span.first, end, *counts, ends.get(span.partition) == end))
    return found


def _compare(
    spark: "SparkSession", context: "JobContext | None", topic: str, rows: "DataFrame", span: Any
) -> tuple[int, int]:
    """Return how many records the table lacks, and how many offsets the log no longer has."""
    first, end = span.gap_first, span.gap_end
    begin = end if context is None else min(end, max(first, _log_start(context, topic, span)))
    unknown = begin - first
    if context is None or begin >= end:
        return 0, unknown
    place = {topic: {str(span.partition): begin}}
    log = (
        spark.read.format("penstock")
        .options(**context.read_options)
        .option("assign", json.dumps({topic: [span.partition]}))
        .option("startingOffsets", json.dumps(place))
        .option("endingOffsets", json.dumps({topic: {str(span.partition): end}}))
        .option("columns", "partition,offset")
        .load()
    )
    archived = rows.where(f"partition = {span.partition}")
    return log.join(archived, ["partition", "offset"], "left_anti").count(), unknown


def _log_start(context: JobContext, topic: str, span: Any) -> int:
    place = Place(topic, span.partition)
    with client_of(context) as client:
        try:
            start = client.offsets({place: EARLIEST})[place]
            end = client.offsets({place: LATEST})[place]
        except KafkaRefused:
            return int(span.gap_end)  # the topic was deleted, its archive was not
    return int(span.gap_end) if end < span.gap_end else start


def _topics(context: JobContext) -> Sequence[str]:
    wanted = str(context.arguments.get("topics") or "")
    if wanted:
        return [each.strip() for each in wanted.split(",")]
    topics = [topic_of(name) for name in context.lake.tables(FOLDER)]
    if not topics:
        raise NotFound(
            f"the lake {context.lake.path} has no archive", "penstock pipeline run archive"
        )
    return topics


def run(context: JobContext) -> None:
    topics = _topics(context)
    verdicts = [v for topic in topics for v in verify(context.spark, context.lake, topic, context)]
    bad = [verdict for verdict in verdicts if not verdict.is_sound]
    if bad:
        context.show([asdict(verdict) for verdict in bad])
        raise Unsound(f"{len(bad)} partitions of the archive differ from the log")
    rows, unknown = sum(v.rows for v in verdicts), sum(v.unknown for v in verdicts)
    context.progress.note(
        f"{rows} records in {len(verdicts)} partitions are archived exactly once"
        + (f"; {unknown} offsets in gaps are no longer in the log" if unknown else "")
    )


JOB: Final = Job(
    name=NAME,
    summary="Verify that every offset is archived exactly once.",
    run=run,
    check=_topics,
    options=(option("--topics", "NAMES", "topics, separated by commas"),),
    modes=frozenset({Mode.ONCE}),
)
