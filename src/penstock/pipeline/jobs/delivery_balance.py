"""Job ``verify deliveries``: says what became of each message of a subscription, and compares that
with the archived rows of ``__deliveries``.

    log of the topic ─┬─► messages ─┐
                      └─► events ───┴─► a state for each message ─┐
    delivery (rows) ──────────────────────────────────────────────┴─► states and faults

The events of a subscription are in the log of its topic: the acks of its share, or the bookmark of
the copies for a queue. No kill loses them, so every message has exactly one state. A row is written
up to a second later. If its node was killed in between, the row is lost, and the job names the
message."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import pyarrow as pa

from penstock.net.kafka_client.client import EARLIEST, LATEST
from penstock.pipeline.arrow_map import batch_of, schema_of
from penstock.pipeline.decoding.cursor_events import BOOKMARK, HEAD, LEASED, REMOVED, START, TRIM
from penstock.pipeline.job import (
    Job,
    JobContext,
    JobMisused,
    Mode,
    NotFound,
    Unsound,
    option,
    require_table,
)
from penstock.pipeline.jobs.deliveries import ALL_ROWS, NAME, ROWS
from penstock.pipeline.jobs.queries import check_topics, client_of
from penstock.pipeline.reading.expand import DELIVERIES_SCHEMA
from penstock.pipeline.reading.offsets import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAULTS_MAX: Final = 1_000  # listed faults; all faults are counted
COMMON: Final = "sns"  # bookmark of the queues that keep up; each other queue has one of its own

# States: every message has exactly one.
DELIVERED: Final = "delivered"
DEAD: Final = "dead"
DROPPED: Final = "dropped"
EXPIRED: Final = "expired"
FILTERED: Final = "filtered"
WAITING: Final = "waiting"  # not sent yet, or to be sent again
MISSING: Final = "missing"  # passed over, although the subscription has no filter policy
_STATES: Final = (DELIVERED, DEAD, DROPPED, EXPIRED, FILTERED, WAITING, MISSING)
_COPIED: Final = "copied"  # to a queue: delivered, unless a row says that the queue refused it
# Faults: how rows differ from states.
UNRECORDED: Final = "unrecorded"  # finished, but there is no row
DOUBLE: Final = "double"  # delivered or moved to the dead-letter queue more than once
UNKNOWN: Final = "unknown"  # there is a row, but the topic does not have the message
_FAULTS: Final = (UNRECORDED, DOUBLE, UNKNOWN)

_RANGE: Final = schema_of("partition int, first_offset long, end_offset long")

# Only the events after the newest start of a share count.
_OF_SHARE: Final = f"""
    WITH starts AS (
        SELECT partition, max(at) AS started_at FROM {{events}} WHERE what = '{START}' GROUP BY ALL
    ), live AS (
        SELECT partition, what, offset FROM {{events}} LEFT JOIN starts USING (partition)
        WHERE started_at IS NULL OR at > started_at
    ), heads AS (
        SELECT partition, max(offset) AS head, max(offset) FILTER (WHERE what = '{TRIM}') AS trimmed
        FROM live WHERE what IN ('{HEAD}', '{TRIM}') GROUP BY ALL
    ), named AS (
        SELECT partition, offset, max(nullif(what, '{LEASED}')) AS reason, true AS is_named
        FROM live WHERE what NOT IN ('{HEAD}', '{TRIM}') GROUP BY ALL
    )
    SELECT partition, offset, CASE
        WHEN reason = 'acked' THEN '{DELIVERED}'
        WHEN reason = 'unwanted' THEN '{FILTERED}'
        WHEN reason IS NOT NULL THEN reason
        WHEN offset < trimmed THEN '{EXPIRED}'
        WHEN is_named IS NULL AND offset < head THEN '{MISSING}'
        ELSE '{WAITING}' END AS state
    FROM {{records}} LEFT JOIN named USING (partition, offset) LEFT JOIN heads USING (partition)"""  # noqa: S608
_OF_QUEUE: Final = f"""
    WITH newest AS (
        SELECT partition, max_by(offset, at) FILTER (WHERE reader = '{COMMON}') AS common,
            nullif(max_by(offset, at) FILTER (WHERE reader != '{COMMON}'), {REMOVED}) AS own
        FROM {{events}} WHERE what = '{BOOKMARK}' GROUP BY partition
    )
    SELECT partition, offset,
        CASE WHEN offset < coalesce(own, common) THEN '{_COPIED}' ELSE '{WAITING}' END AS state
    FROM {{records}} LEFT JOIN newest USING (partition)"""  # noqa: S608

# A message of an at-most-once webhook is acked before the request, and the bookmark passes a copy
# that the queue refused. So the log has no reason for them, and their rows decide.
_BALANCE: Final = f"""
    WITH {ALL_ROWS}, reported AS (
        SELECT source_partition AS partition, source_offset AS offset,
            count_if(outcome = '{DELIVERED}') AS delivered, count_if(outcome = '{DEAD}') AS dead,
            count_if(outcome = '{DROPPED}') AS dropped
        FROM all_rows WHERE NOT is_test AND NOT is_replay GROUP BY ALL
    ), compared AS (
        SELECT reported.* FROM reported JOIN {{ranges}} AS r
        ON reported.partition = r.partition AND offset >= first_offset AND offset < end_offset
    ), joined AS (
        SELECT partition, offset, coalesce(delivered, 0L) AS delivered, coalesce(dead, 0L) AS dead,
            coalesce(dropped, 0L) AS dropped, state AS logged
        FROM compared FULL JOIN {{states}} USING (partition, offset)
    ), judged AS (
        SELECT *, CASE
            WHEN logged = '{_COPIED}' AND dead > 0 THEN '{DEAD}'
            WHEN logged IN ('{_COPIED}', '{DELIVERED}') AND delivered = 0 AND dropped > 0
            THEN '{DROPPED}' ELSE logged END AS state
        FROM joined
    )
    SELECT partition, offset, if(state = '{_COPIED}', '{DELIVERED}', state) AS state,
        delivered, dead, dropped, CASE
        WHEN state IS NULL THEN '{UNKNOWN}'
        WHEN delivered + dead > 1 THEN '{DOUBLE}'
        WHEN state = '{DELIVERED}' AND delivered = 0 THEN '{UNRECORDED}'
        WHEN state = '{DEAD}' AND dead = 0 THEN '{UNRECORDED}'
        WHEN state = '{DROPPED}' AND dropped = 0 THEN '{UNRECORDED}'
        END AS fault
    FROM judged"""  # noqa: S608


def states_of(events: "DataFrame", records: "DataFrame", *, is_queue: bool) -> "DataFrame":
    """Return one state for each record (partition, offset), from the events of its readers."""
    sql = _OF_QUEUE if is_queue else _OF_SHARE
    return events.sparkSession.sql(sql, events=events, records=records)


def balance(rows: "DataFrame", states: "DataFrame", ranges: Sequence[Range]) -> "DataFrame":
    """Compare rows with states, and return a row for each message, with its state and its fault.
    The fault is null if they agree."""
    spark = rows.sparkSession
    cells = [(each.place.partition, each.begin, each.end) for each in ranges]
    bounds = spark.createDataFrame(pa.Table.from_batches([batch_of(cells, _RANGE)]))
    return spark.sql(_BALANCE, rows=rows, states=states, ranges=bounds)


# ── Input ────────────────────────────────────────────────────────────────────────────────────


class _Source(NamedTuple):
    topic: str
    readers: Collection[str]  # the id of the share, or the names of bookmarks
    is_queue: bool


def _read_rows(context: JobContext, subscription: str) -> "DataFrame":
    from pyspark.sql import functions as f

    if not context.lake.exists(ROWS):
        return context.spark.createDataFrame(DELIVERIES_SCHEMA.empty_table())
    is_one = (f.col("subscription") == subscription) & f.col("error").isNull()
    return context.lake.read(context.spark, ROWS).where(is_one)


def _source(context: JobContext, rows: "DataFrame", subscription: str) -> _Source:
    """Return the topic of the subscription, and whose events tell of its messages."""
    topic = context.arguments.get("source")
    if topic:
        return _Source(str(topic), (COMMON, f"{COMMON}:{subscription}"), is_queue=True)
    shared = rows.where("share != '' AND NOT is_replay").orderBy("at_ms", ascending=False)
    newest = shared.select("source_topic", "share").first()
    if newest is None:
        raise NotFound(
            f"the lake has no deliveries of subscription {subscription} to an endpoint",
            f"penstock pipeline run {NAME}",
        )
    return _Source(newest.source_topic, (newest.share,), is_queue=False)


def _logs(context: JobContext, topic: str) -> list[Range]:
    with client_of(context) as client:
        places = client.places(topic)
        begins = client.offsets(dict.fromkeys(places, EARLIEST))
        ends = client.offsets(dict.fromkeys(places, LATEST))
    return [Range(place, begins[place], ends[place]) for place in places]


def _firsts(context: JobContext) -> dict[int, int]:
    """Parse ``--first``, such as ``0:120,1:80``: an offset for each partition."""
    text = str(context.arguments.get("first") or "")
    found: dict[int, int] = {}
    for part in filter(None, text.split(",")):
        partition, colon, offset = part.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise JobMisused(f"--first is '{text}': give PARTITION:OFFSET, such as 0:120,1:80")
        found[int(partition)] = int(offset)
    return found


def _compared(context: JobContext, events: "DataFrame", logs: Sequence[Range]) -> list[Range]:
    """Return the offsets to compare: from ``--first`` or the start of the share to the end."""
    starts = "SELECT partition, max_by(offset, at) FROM {events} WHERE what = {what} GROUP BY ALL"
    found = events.sparkSession.sql(starts, events=events, what=START).collect()
    firsts = {row[0]: row[1] for row in found} | _firsts(context)
    begins = [max(log.begin, firsts.get(log.place.partition, 0)) for log in logs]
    ranges = [replace(log, begin=begin) for log, begin in zip(logs, begins, strict=True)]
    return [each for each in ranges if each.count]


def _read_records(
    context: JobContext, options: Mapping[str, str], topic: str, ranges: Sequence[Range]
) -> "DataFrame":
    given = {
        "assign": {topic: [each.place.partition for each in ranges]},
        "startingOffsets": {topic: {str(each.place.partition): each.begin for each in ranges}},
        "endingOffsets": {topic: {str(each.place.partition): each.end for each in ranges}},
    }
    texts = {name: json.dumps(value) for name, value in given.items()}
    reader = context.spark.read.format("penstock").options(**options, **texts)
    return reader.option("columns", "partition,offset").load()


# ── The job ──────────────────────────────────────────────────────────────────────────────────


def run(context: JobContext) -> None:
    from penstock.pipeline.reading.cursor_events import read_cursor_events

    subscription = _subscription(context)
    rows = _read_rows(context, subscription)
    topic, readers, is_queue = _source(context, rows, subscription)
    logs = _logs(context, topic)
    # Shares deliver the records of aborted transactions too.
    options = {**context.read_options, "kafka.isolation.level": "read_uncommitted"}
    given = {**options, "subscribe": topic}
    events = read_cursor_events(context.spark, given, logs, readers).persist()
    try:
        ranges = _compared(context, events, logs)
        if not ranges:
            raise JobMisused(f"{topic} has no messages to compare: give another value of --first")
        records = _read_records(context, options, topic, ranges)
        judged = balance(rows, states_of(events, records, is_queue=is_queue), ranges).persist()
        try:
            _report(context, judged, subscription)
        finally:
            judged.unpersist()
    finally:
        events.unpersist()


def _report(context: JobContext, judged: "DataFrame", subscription: str) -> None:
    if context.arguments.get("filtered"):
        judged = judged.replace(MISSING, FILTERED, ["state"])
    states, faults = Counter[str](), Counter[str]()
    for state, fault, count in judged.groupBy("state", "fault").count().collect():
        states[state] += count if state else 0
        faults[fault] += count if fault else 0
    is_listed = f"fault IS NOT NULL OR state = '{MISSING}'"
    listed = judged.where(is_listed).orderBy("partition", "offset").limit(FAULTS_MAX)
    context.show([row.asDict() for row in listed.collect()])
    found = [f"{states[state]} {state}" for state in _STATES if states[state]]
    wrong = [f"{faults[fault]} {fault}" for fault in _FAULTS if faults[fault]]
    text = f"{states.total()} messages: {', '.join(found)}"
    context.progress.note("; ".join([text, *([", ".join(wrong)] if wrong else [])]))
    doubles_max = int(context.arguments.get("doubles_max") or 0)
    if states[MISSING] or faults[UNKNOWN] or faults[DOUBLE] > doubles_max:
        missing = [f"{states[MISSING]} {MISSING}"] if states[MISSING] else []
        raise Unsound(f"deliveries of {subscription}: {', '.join([*missing, *wrong])}")


def _subscription(context: JobContext) -> str:
    subscription = context.arguments.get("subscription")
    if not subscription:
        raise JobMisused("--subscription is required: name the subscription to verify")
    return str(subscription)


def check(context: JobContext) -> None:
    _subscription(context)
    _firsts(context)
    source = context.arguments.get("source")
    if source:
        check_topics(context, [str(source)])
    else:
        require_table(context.lake, ROWS, job=NAME)


VERIFY: Final = Job(
    name=NAME,
    summary="Say what became of each message of a subscription, and find lost and repeated ones.",
    run=run,
    check=check,
    options=(
        option("--subscription", "ID", "subscription to verify"),
        option("--source", "TOPIC", "SNS topic of a subscribed queue, such as sns.orders"),
        option("--first", "P:OFFSET,…", "first offset by partition [default: of the subscription]"),
        option("--filtered", None, "the subscription has a filter policy", is_flag=True),
        option(
            "--doubles-max",
            "COUNT",
            "number of messages that may be delivered twice, for example after a crash",
            type=click.IntRange(0),
            default=0,
        ),
    ),
    modes=frozenset({Mode.ONCE}),
)
