"""Job ``dead-letters``: groups the messages of dead-letter queues by cause and by hour.

    a dead-letter queue's log ─► dead_letter   one row for each message: time, source queue, cause
                                     ├► dlq_group    causes, the most frequent first
                                     └► dlq_hourly   messages by cause and hour

``dead_letter`` is a tracked table: it has each record of the queue's log once, with a fingerprint
instead of the body. Each run computes the other two tables from it again, in one commit for each
queue, so the next run corrects a run that was killed."""

import csv
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
import pyarrow as pa

from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode, option
from penstock.pipeline.jobs.queries import check_topics, process, topic_stream
from penstock.pipeline.lake import Lake
from penstock.pipeline.quality.failure_signature import content_of, signature_of, suggestion_for
from penstock.record.message import SYSTEM_HEADER, TYPE_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LETTER, GROUP, HOURLY = "dead_letter", "dlq_group", "dlq_hourly"
NAME: Final = "dead-letters"
COLUMNS: Final = "key,value,headers,topic,partition,offset,timestamp"
BATCH_BYTES: Final = "64m"
GROUPS_MAX: Final = 10_000  # of one queue; one row has the sums of all rarer causes
SHOWN: Final = 20
_TOP: Final = click.IntRange(1, GROUPS_MAX)
REST: Final = "*"
_INT64_MAX: Final = 2**63 - 1
_QUEUE: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

_LETTER: Final = schema_of(
    "topic string, partition int, offset long, died_at timestamp, source string,"
    " message_id string, attempts long, sent_at_ms long, signature string, error string,"
    " shape string, content string"
)


def transform(records: "DataFrame", *, error_name: str | None = None) -> "DataFrame":
    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield letters(batch, error_name=error_name)

    made = map_in_arrow(records.select(*COLUMNS.split(",")), make, _LETTER)
    return made.withColumn("queue", made["topic"])  # the table is partitioned by queue


def letters(batch: pa.RecordBatch, *, error_name: str | None = None) -> pa.RecordBatch:
    columns = [batch.column(name).to_pylist() for name in COLUMNS.split(",")]
    rows = []
    for key, value, headers, topic, partition, offset, died_at in zip(*columns, strict=True):
        system, attributes = _split(headers or ())
        body = value or b""
        found = signature_of(system.source, attributes, body, error_name=error_name)
        rows.append(
            (
                *(topic, partition, offset, died_at, system.source),
                system.message_id or f"{topic}:{partition}:{offset}",
                *(system.attempts, system.sent_at_ms, found.digest, found.error, found.shape),
                content_of(key, attributes, body),
            )
        )
    return batch_of(rows, _LETTER)


class _System(msgspec.Struct, frozen=True, gc=False):
    """The fields of the broker's own header of a message (``record/message.py``)."""

    message_id: str = ""
    attempts: int = 0
    source: str = ""  # name of the source queue; empty: unknown
    sent_at_ms: int | None = None


_NOTHING: Final = _System()


def _split(headers: Sequence[Mapping[str, Any]]) -> tuple[_System, dict[str, bytes]]:
    system = _NOTHING
    attributes: dict[str, bytes] = {}
    for number, header in enumerate(headers):
        name, value = header["key"], header["value"] or b""
        if number == 0 and name == SYSTEM_HEADER.decode():
            system = _system(value)
        elif not name.startswith(TYPE_PREFIX.decode()):
            attributes[name] = value
    return system, attributes


def _system(raw: bytes) -> _System:
    """Decode id, attempts, source queue and time of sending from the broker's header."""
    try:
        fields = msgspec.msgpack.decode(raw, type=list[Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _NOTHING
    fields += [None] * (8 - len(fields))
    message_id, source = fields[0], fields[6]
    if not isinstance(message_id, bytes):
        return _NOTHING
    attempts, sent_at_ms = (
        each if isinstance(each, int) and 0 <= each < _INT64_MAX else None
        for each in (fields[5], fields[7])
    )
    source = source.rsplit(":", 1)[-1] if isinstance(source, str) else ""
    return _System(message_id.hex(), attempts or 0, source, sent_at_ms)


def with_returns(rows: "DataFrame") -> "DataFrame":
    """Add ``is_return``, which is true if the same content failed before the message was sent."""
    same = "OVER (PARTITION BY topic, source, content ORDER BY died_at, partition, offset)"
    is_other = f"message_id <> first(message_id) {same}"
    is_later = f"sent_at_ms >= unix_millis(first(died_at) {same})"
    return rows.selectExpr("*", f"coalesce({is_other} AND {is_later}, false) AS is_return")


def groups(rows: "DataFrame") -> "DataFrame":
    """Count dead letters by queue and cause of failure."""
    query = """
        SELECT topic, signature, first(source) AS source, min(error) AS error, min(shape) AS shape,
            count(*) AS letters,
            count(DISTINCT CASE WHEN NOT is_return THEN message_id END) AS distinct_messages,
            min(died_at) AS first_at, max(died_at) AS last_at, max(attempts) AS attempts_max,
            count_if(is_return) AS returned,
            count(DISTINCT CASE WHEN is_return THEN content END) AS poison,
            array_distinct(array(min_by(message_id, died_at), max_by(message_id, died_at)))
                AS sample_ids
        FROM {rows} GROUP BY topic, signature"""
    return rows.sparkSession.sql(query, rows=with_returns(rows))


def hourly(rows: "DataFrame") -> "DataFrame":
    query = """
        SELECT topic, date_trunc('hour', died_at) AS hour, signature, source, count(*) AS letters
        FROM {rows} GROUP BY ALL"""
    return rows.sparkSession.sql(query, rows=rows)


def ranked(
    found: Sequence[Any], *, now_ms: int, groups_max: int = GROUPS_MAX
) -> list[dict[str, Any]]:
    """Rank the causes of one queue by frequency. A last row sums up those beyond ``groups_max``."""
    order = sorted(found, key=lambda row: (-row.letters, row.signature))
    rows = [_ranked_row(rank, row, now_ms=now_ms) for rank, row in enumerate(order[:groups_max], 1)]
    rest = order[groups_max:]
    if rest:
        rows.append(
            {
                **rows[0],
                "rank": len(rows) + 1,
                "signature": REST,
                "source": REST,
                "error": f"{len(rest)} rarer causes",
                "shape": REST,
                **{name: sum(row[name] for row in rest) for name in _SUMS},
                "first_at": min(row.first_at for row in rest),
                "last_at": max(row.last_at for row in rest),
                "attempts_max": max(row.attempts_max for row in rest),
                "sample_ids": [],
                "suggestion": "",
            }
        )
    return rows


_SUMS: Final = ("letters", "distinct_messages", "returned", "poison")
_GROUP: Final = schema_of(
    "topic string, rank int, signature string, source string, error string, shape string,"
    " letters long, distinct_messages long, returned long, poison long, first_at timestamp,"
    " last_at timestamp, attempts_max long, sample_ids list<string>, suggestion string"
)


def _ranked_row(rank: int, row: Any, *, now_ms: int) -> dict[str, Any]:
    first_ms, last_ms = (int(at.timestamp() * 1_000) for at in (row.first_at, row.last_at))
    found = {**row.asDict(), "rank": rank}
    found["suggestion"] = suggestion_for(
        row.error,
        shape=row.shape,
        poison=row.poison,
        span_ms=last_ms - first_ms,
        quiet_ms=now_ms - last_ms,
    )
    return {name: found[name] for name in _GROUP.names}


def summarise(
    spark: "SparkSession", lake: Lake, queue: str, *, now_ms: int
) -> list[dict[str, Any]]:
    """Replace one queue's rows in ``dlq_group`` and ``dlq_hourly``. Return its causes, ranked."""
    table = lake.table(LETTER).open()
    rows = lake.read(spark, LETTER, f"queue = '{queue}'").persist()
    try:
        found = ranked(groups(rows).orderBy("signature").collect(), now_ms=now_ms)
        derived = {
            GROUP: pa.Table.from_pylist(found, schema=_GROUP),
            HOURLY: hourly(rows).coalesce(1),
        }
        for name, derived_rows in derived.items():
            lake.append(
                derived_rows,
                name,
                app=f"{NAME}:{table.metadata().id}:{queue}",
                batch_id=table.version(),
                partition_by=("topic",),
                replace_where=f"topic = '{queue}'" if lake.exists(name) else None,
            )
    finally:
        rows.unpersist()
    return found


def _queues(context: JobContext) -> list[str]:
    queues = list(dict.fromkeys(context.arguments.get("queue") or ()))
    if not queues:
        raise JobMisused("--queue is required: name the dead-letter queue to analyse")
    for queue in queues:
        if not _QUEUE.fullmatch(queue):
            raise JobMisused(f"'{queue}' is not the name of a queue")
    if context.mode is Mode.CONTINUOUS and len(queues) > 1:
        raise JobMisused("a continuous run takes only one --queue; start one run per queue")
    return queues


def run(context: JobContext) -> None:
    queues = _queues(context)
    found: list[dict[str, Any]] = []
    for queue in queues:
        _add_new(context, queue)
        if context.lake.exists(LETTER):
            found += summarise(context.spark, context.lake, queue, now_ms=_now_ms())
    _write_csv(found, context.arguments.get("csv"))
    context.show([_line(row) for row in found[: context.arguments.get("top", SHOWN)]])


def _add_new(context: JobContext, queue: str) -> None:
    """Append the records of a queue that the table does not have yet."""
    lake = context.lake

    def take(records: "DataFrame", app: str, batch_id: int) -> None:
        lake.append(
            transform(records, error_name=context.arguments.get("error_attribute")),
            LETTER,
            app=app,
            batch_id=batch_id,
            partition_by=("queue",),
            is_tracked=True,
        )
        if context.mode is Mode.CONTINUOUS:
            summarise(context.spark, lake, queue, now_ms=_now_ms())

    reader = topic_stream(context, queue, lake.end_offsets(LETTER, NAME), columns=COLUMNS)
    process(context, NAME, reader, take, batch_bytes=BATCH_BYTES, query=queue)


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: f"{row[name]:%Y-%m-%dT%H:%M:%SZ}" for name in ("first_at", "last_at")}
    shown = {name: row[name] for name in _GROUP.names if name not in ("sample_ids", *times)}
    return {**shown, **times, "samples": " ".join(row["sample_ids"])}


def _write_csv(rows: Sequence[Mapping[str, Any]], path: str | None) -> None:
    if path is None:
        return
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            names = [*_line(rows[0])] if rows else list(_GROUP.names)
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(_line(row) for row in rows)
    except OSError as error:
        raise JobMisused(f"cannot write --csv {path}: {error.strerror}") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


JOB: Final = Job(
    name=NAME,
    summary="Group the messages of dead-letter queues by the cause of their failure.",
    run=run,
    check=lambda context: check_topics(context, _queues(context)),
    options=(
        option("--queue", "NAME", "name of a dead-letter queue; repeatable", multiple=True),
        option(
            "--error-attribute", "NAME", "message attribute with the error [default: common names]"
        ),
        option("--top", None, "number of causes to show", type=_TOP, default=SHOWN),
        option("--csv", "PATH", "CSV file to write all causes to"),
    ),
)
