"""Job ``archive``: topics become tables ``archive/<topic>``, every record once and for good.

    topics ─► one query ─► part files of all tables in one pass ─► one commit for each table

Tables are tracked (``lake.py``): they end behind an offset of each partition, a record that is
there cannot come again, and a query whose checkpoint is lost goes on from the tables. Rows lie in
folders by date and hour of the record's timestamp, in the order of the log; what an hour gathered
in many small files is made into few once the hour is over (``compact_closed``). Whether a table
holds what the log holds is checked by ``pipeline/archive_check.py``.

Values are kept as they are: what a producer encrypted stays so, a queue's messages are the records
that they are in the log, the header ``penstock`` included.
"""

import datetime
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.pipeline.job import Job, JobContext, JobMisused, Mode
from penstock.pipeline.lake import Ends, Lake, query_app
from penstock.pipeline.starting import client_of, starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "archive"
FOLDER: Final = "archive"
COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
PARTITION_BY: Final = ("date", "hour")
BATCH_BYTES: Final = "256m"
CLOSED_AFTER_MS: Final = 2 * 3_600_000  # records of an hour that come later stay in small files
FILES_MIN: Final = 4  # of an hour, before it is worth reading and writing them again
UPKEEP_S: Final = 600.0
VACUUM_HOURS: Final = 7 * 24
_PATTERN_SIGNS: Final = re.compile(r"[^A-Za-z0-9._,-]")


def table_of(topic: str) -> str:
    return f"{FOLDER}/{topic}"


def transform(records: "DataFrame") -> "DataFrame":
    """Records as they are, with the date and the hour (UTC) that they lie under."""
    from pyspark.sql import functions as f

    return records.select(
        *COLUMNS, f.to_date("timestamp").alias("date"), f.hour("timestamp").alias("hour")
    )


def archived_ends(lake: Lake) -> Ends:
    """Where all tables of the archive end."""
    ends: Ends = {}
    for name in lake.tables(FOLDER):
        for topic, of_topic in lake.end_offsets(name, NAME).items():
            ends.setdefault(topic, {}).update(of_topic)
    return ends


def compact_closed(lake: Lake, *, now_ms: int) -> int:
    """Make few files of many in hours that are over; how many fewer there are."""
    before = datetime.datetime.fromtimestamp((now_ms - CLOSED_AFTER_MS) / 1_000, datetime.UTC)
    last = (before.date().isoformat(), before.hour)
    saved = 0
    for name in lake.tables(FOLDER):
        table = lake.table(name)
        for (date, hour), count in table.files_by(PARTITION_BY).items():
            if date and hour and count >= FILES_MIN and (date, int(hour)) < last:
                saved += table.compact([("date", "=", date), ("hour", "=", hour)])
    return saved


class _Upkeep:
    """Compaction between batches, not more often than every few minutes; vacuum once a day."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._compacted_at = time.monotonic()
        self._vacuumed_at = -1e9

    def turn(self, *, is_last: bool = False) -> int:
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


def run(context: JobContext) -> None:
    topics = str(context.arguments.get("topics") or "")
    if not topics:
        raise JobMisused(
            "archive needs topics: --topics NAME[,NAME…], or a pattern like 'orders.*'"
        )
    checkpoint = context.checkpoint_of()
    upkeep = _Upkeep(context.lake)

    def take(records: "DataFrame", batch_id: int) -> None:
        context.lake.append_each(
            transform(records),
            FOLDER,
            by="topic",
            app=query_app(NAME, checkpoint),
            batch_id=batch_id,
            partition_by=PARTITION_BY,
        )
        upkeep.turn()

    stream = (
        context.spark.readStream.format("penstock")
        .options(**_options(context, topics, checkpoint))
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(**context.trigger)
    )
    context.follow(stream.start())
    if context.mode is Mode.ONCE:
        saved = upkeep.turn(is_last=True)
        if saved:
            context.progress.note(f"{saved} small files fewer")


def _options(context: JobContext, topics: str, checkpoint: str) -> dict[str, str]:
    options = {
        **context.read_options,
        _way(topics): topics,
        "columns": ",".join(COLUMNS),
        "maxBytesPerTrigger": str(context.arguments.get("batch_bytes") or BATCH_BYTES),
    }
    if context.since_ms is not None:
        options["startingTimestamp"] = str(context.since_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    else:
        options["startingOffsets"] = "earliest"
    ends = {} if (Path(checkpoint) / "metadata").exists() else archived_ends(context.lake)
    if ends:
        with client_of(context) as client:
            names = [topic.name for topic in client.metadata().topics]
            chosen = [name for name in names if _is_chosen(name, topics)]
            options.pop("startingTimestamp", None)
            options["startingOffsets"] = starting_offsets(client, chosen, ends)
    return options


def _way(topics: str) -> str:
    return "subscribePattern" if _PATTERN_SIGNS.search(topics) else "subscribe"


def _is_chosen(name: str, topics: str) -> bool:
    if _way(topics) == "subscribe":
        return name in [each.strip() for each in topics.split(",")]
    return re.fullmatch(topics, name) is not None


JOB: Final = Job(
    name=NAME,
    summary="Keep records of topics for good, in tables of the lake.",
    run=run,
    options=(
        click.Option(
            ["--topics"],
            metavar="NAMES",
            required=True,
            help="topics, separated by commas, or a pattern",
        ),
        click.Option(
            ["--batch-bytes"],
            metavar="SIZE",
            default=BATCH_BYTES,
            show_default=True,
            help="how much is read for one commit",
        ),
    ),
)
