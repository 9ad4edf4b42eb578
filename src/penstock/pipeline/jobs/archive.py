"""Job ``archive``: copies each record of the chosen topics once to a table ``archive/<topic>``.

    topics ─► one query, whose tasks fetch, decode and write ─► one commit for each table

The source of the query (``archive_source.py``) writes part files in the tasks that fetch records,
and returns only the files' names, which this job commits. Tables are tracked (``lake.py``), so no
record is added twice, and a query whose checkpoint is lost continues at the tables' end offsets.
Values are copied unchanged: encrypted values stay encrypted, and a queue's messages are stored as
they are in its log, including the header ``penstock``.

``verify archive`` accepts a gap in a table's offsets if the log has the same gap: compaction
removes records, and markers of transactions and cursors also have offsets. So where a table has a
gap, the log is read again, and each of its records must be in the table. If that part of the log
was deleted by retention, or the table was renamed, the gap is reported as unknown."""

import datetime
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaRefused, Place
from penstock.pipeline.archive.archive_rows import COLUMNS, PARTITION_BY, TABLE_SCHEMA, known_id
from penstock.pipeline.client.options import Subscription
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode, NotFound, Unsound, option
from penstock.pipeline.jobs.queries import check_topics, client_of, process, starting_offsets
from penstock.pipeline.lake import Ends, Lake, TopicRemade
from penstock.pipeline.reading.offsets import look_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.archive.archive_source import Written
    from penstock.pipeline.parts import Part

NAME: Final = "archive"
FOLDER: Final = "archive"
BATCH_BYTES: Final = "256m"
CLOSED_AFTER_MS: Final = 2 * 3_600_000  # records of an hour that arrive later stay in small files
FILES_MIN: Final = 4  # files of an hour, from which on compaction is worth its cost
UPKEEP_S: Final = 600.0
VACUUM_HOURS: Final = 7 * 24
_PATTERN_SIGNS: Final = re.compile(r"[^A-Za-z0-9._,-]")


def table_of(topic: str) -> str:
    return f"{FOLDER}/{topic}"


def topic_of(table: str) -> str:
    return table.removeprefix(f"{FOLDER}/")


def archived_ends(lake: Lake) -> Ends:
    """Return the end offsets of all archive tables that no user has renamed."""
    found = {topic_of(name): lake.end_offsets(name, NAME) for name in lake.tables(FOLDER)}
    return {topic: ends[topic] for topic, ends in found.items() if topic in ends}


def ends_of(lake: Lake, name: str) -> dict[int, int]:
    """Return the end offsets of an archive table, which a user may have renamed."""
    ends = lake.end_offsets(table_of(name), NAME)
    return ends.get(name) or next(iter(ends.values()), {})


def commit_written(lake: Lake, written: "Iterable[Written]", *, app: str, batch_id: int) -> None:
    """Commit the files of a batch. Tables that already have the batch are skipped."""
    parts: dict[str, list[Part]] = {}
    ids: dict[str, str] = {}
    for topic, topic_id, part in written:
        parts.setdefault(topic, []).append(part)
        ids[topic] = topic_id
    for topic in sorted(parts):
        table = lake.table(table_of(topic))
        table.ensure(TABLE_SCHEMA, PARTITION_BY)
        known = {topic: ids[topic]} if ids[topic] else {}
        table.commit(parts[topic], app=app, batch_id=batch_id, is_tracked=True, ids=known)


def compact_closed(lake: Lake, *, now_ms: int) -> int:
    """Merge small files of past hours, and return how many fewer files there are."""
    before = datetime.datetime.fromtimestamp((now_ms - CLOSED_AFTER_MS) / 1_000, datetime.UTC)
    last = (before.date().isoformat(), before.hour)
    saved = 0
    for name in lake.tables(FOLDER):
        table = lake.table(name)
        for (date, hour), count in table.files_by(PARTITION_BY).items():
            if date and hour and count >= FILES_MIN and (date, int(hour)) < last:
                saved += table.compact([("date", "=", date), ("hour", "=", hour)])
    return saved


@dataclass
class _Upkeep:
    _lake: Lake
    _compacted_at: float = field(default_factory=time.monotonic)
    _vacuumed_at: float = -1e9

    def turn(self, *, is_last: bool = False) -> int:
        """Merge small files at most once every ``UPKEEP_S`` seconds, and vacuum once a day."""
        now = time.monotonic()
        if not is_last and now - self._compacted_at < UPKEEP_S:
            return 0
        self._compacted_at = now
        saved = compact_closed(self._lake, now_ms=time.time_ns() // 1_000_000)
        if now - self._vacuumed_at > 86_400:
            self._vacuumed_at = now
            for name in self._lake.tables(FOLDER):
                self._lake.table(name).vacuum(VACUUM_HOURS)
        return saved


def _topics(context: JobContext) -> Subscription:
    topics = str(context.arguments.get("topics") or "")
    if not topics:
        raise JobMisused("--topics is required: give NAME[,NAME…], or a pattern like 'orders.*'")
    try:
        re.compile(topics)
    except re.error as error:
        raise JobMisused(f"--topics '{topics}' is not a regular expression: {error}") from None
    if _PATTERN_SIGNS.search(topics):
        return Subscription(pattern=topics)
    return Subscription(topics=tuple(each.strip() for each in topics.split(",")))


def run(context: JobContext) -> None:
    topics = _topics(context)
    from penstock.pipeline.archive.archive_source import NAME as FORMAT
    from penstock.pipeline.archive.archive_source import ArchiveSource, read_written

    upkeep = _Upkeep(context.lake)

    def take(batch: "DataFrame", app: str, batch_id: int) -> None:
        commit_written(context.lake, read_written(batch), app=app, batch_id=batch_id)
        upkeep.turn()

    context.spark.dataSource.register(ArchiveSource)
    reader = context.spark.readStream.format(FORMAT).options(**_options(context, topics))
    process(context, NAME, reader, take, batch_bytes=BATCH_BYTES)
    if context.mode is Mode.ONCE:
        saved = upkeep.turn(is_last=True)
        if saved:
            context.progress.note(f"merging removed {saved} small files")


def _options(context: JobContext, topics: Subscription) -> dict[str, str]:
    options = {
        **context.read_options,
        "subscribePattern" if topics.pattern else "subscribe": str(context.arguments["topics"]),
        "columns": ",".join(COLUMNS),
        "folder": str(context.lake.path / FOLDER),
        "tasks": str(context.spark.sparkContext.defaultParallelism),
    }
    if context.since_ms is not None:
        options["startingTimestamp"] = str(context.since_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    else:
        options["startingOffsets"] = "earliest"
    ends = archived_ends(context.lake)
    if ends:
        with client_of(context) as client:
            ids = look_up(client, topics).ids
            chosen = {name: known_id(text) for name, text in ids.items()}
            check_ids(context.lake, {name: chosen[name] for name in ends if name in chosen})
            if not (Path(context.checkpoint_of()) / "metadata").exists():
                options.pop("startingTimestamp", None)
                options["startingOffsets"] = starting_offsets(client, list(chosen), ends)
    return options


def check_ids(lake: Lake, ids: Mapping[str, str]) -> None:
    """Raise TopicRemade if a table has records of a deleted topic with the same name."""
    for topic, now in ids.items():
        table = lake.table(table_of(topic))
        before = table.topic_ids(NAME).get(topic, "")
        if before and now and before != now:
            raise TopicRemade(table.path, topic, before=before, now=now)


JOB: Final = Job(
    name=NAME,
    summary="Archive the records of topics in tables of the lake.",
    run=run,
    check=lambda context: check_topics(context, _topics(context).topics),
    options=(
        option(
            "--topics",
            "NAMES",
            "topics, separated by commas, or a regular expression",
            required=True,
        ),
        option("--batch-bytes", "SIZE", "maximum bytes to read per commit", default=BATCH_BYTES),
    ),
)


class Verdict(NamedTuple):
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
    """Return for each partition the first and last offset, the numbers of rows and of repeated
    offsets, and the range from the first to the last gap (null if there are no gaps)."""
    before = "lag(offset) OVER (PARTITION BY partition ORDER BY offset) AS before"
    query = """
        SELECT partition, min(offset) AS first, max(offset) AS last, count(*) AS rows,
            count_if(offset = before) AS repeated,
            min(CASE WHEN offset > before + 1 THEN before + 1 END) AS gap_first,
            max(CASE WHEN offset > before + 1 THEN offset END) AS gap_end
        FROM {marked} GROUP BY partition"""
    marked = rows.selectExpr("partition", "offset", before)
    return rows.sparkSession.sql(query, marked=marked)


def verify(
    spark: "SparkSession", lake: Lake, topic: str, context: "JobContext | None" = None
) -> list[Verdict]:
    """Check each archived partition. Without a context, gaps are not compared with the log."""
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
    """Return how many records the table lacks, and how many offsets are no longer in the log."""
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


def _archived_topics(context: JobContext) -> Sequence[str]:
    wanted = str(context.arguments.get("topics") or "")
    if wanted:
        return [each.strip() for each in wanted.split(",")]
    topics = [topic_of(name) for name in context.lake.tables(FOLDER)]
    if not topics:
        raise NotFound(
            f"the lake {context.lake.path} has no archive", "penstock pipeline run archive"
        )
    return topics


def run_verify(context: JobContext) -> None:
    topics = _archived_topics(context)
    verdicts = [v for topic in topics for v in verify(context.spark, context.lake, topic, context)]
    bad = [verdict for verdict in verdicts if not verdict.is_sound]
    if bad:
        context.show([verdict._asdict() for verdict in bad])
        raise Unsound(f"{len(bad)} partitions of the archive differ from the log")
    rows, unknown = sum(v.rows for v in verdicts), sum(v.unknown for v in verdicts)
    context.progress.note(
        f"{rows} records in {len(verdicts)} partitions are archived exactly once"
        + (f"; {unknown} offsets in gaps are no longer in the log" if unknown else "")
    )


VERIFY: Final = Job(
    name=NAME,
    summary="Verify that every offset is archived exactly once.",
    run=run_verify,
    check=_archived_topics,
    options=(option("--topics", "NAMES", "topics to verify, separated by commas [default: all]"),),
    modes=frozenset({Mode.ONCE}),
)
