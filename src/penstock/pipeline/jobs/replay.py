"""Job ``replay``: sends archived records to a topic or a queue.

    archive/<topic> ─ time, filter ─► tasks, each for some partitions ─► topic or queue
                                                    └─► positions (pipeline/archive/replaying.py)

The records of a replay are fixed when it starts: the table ``replay_job`` then gets a row with the
end offset of each archived partition. A second run with the same name and options continues at the
last position."""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import pyarrow as pa

from penstock.net.kafka_client.client import KafkaClient, KafkaRefused
from penstock.pipeline.archive.replaying import (
    COLUMNS,
    DONE_SCHEMA,
    Position,
    ProgressLost,
    QueueAddress,
    Replay,
    commit_position,
    read_position,
    send_partitions,
)
from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.client.option_values import Options
from penstock.pipeline.client.options import parse_connection
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode, NotFound, option, utc
from penstock.pipeline.jobs.archive import ends_of, table_of
from penstock.pipeline.jobs.queries import client_of
from penstock.wire.kafka.faults import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE: Final = "replay_job"
_TABLE: Final = schema_of("job string, choice string, partition int, end long")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Choice(NamedTuple):
    source: str  # the archived topic, or the name of a table that was moved aside
    target: str
    since_ms: int | None
    until_ms: int | None
    condition: str

    def text(self) -> str:
        return json.dumps([self.source, self.target, self.since_ms, self.until_ms, self.condition])

    def name(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:12]


def transform(rows: "DataFrame", choice: Choice, ends: Mapping[int, int]) -> "DataFrame":
    """Return the selected records before ``ends``, sorted by partition and offset."""
    for at_ms, sign in ((choice.since_ms, ">="), (choice.until_ms, "<")):
        if at_ms is not None:
            rows = rows.where(f"timestamp {sign} timestamp_millis({at_ms})")
    if choice.condition:
        rows = rows.where(choice.condition)
    within = (f"partition = {partition} AND offset < {end}" for partition, end in ends.items())
    # Two tasks with the same partition would overwrite each other's position.
    divided = rows.where(" OR ".join(within) or "false").repartition(max(1, len(ends)), "partition")
    return divided.select(*COLUMNS).sortWithinPartitions("partition", "offset")


def _requested(context: JobContext) -> tuple[Choice, str]:
    source, target = (str(context.arguments.get(name) or "") for name in ("source", "target"))
    if not source or not target:
        raise JobMisused("replay needs --from (an archived topic) and --to (a topic or queue)")
    condition = str(context.arguments.get("filter") or "")
    choice = Choice(source, target, context.since_ms, context.until_ms, condition)
    job = str(context.arguments.get("name") or choice.name())
    if not _NAME.fullmatch(job):
        raise JobMisused(f"'{job}' is not a valid --name: use at most 64 letters, digits, - and _")
    if not context.lake.exists(table_of(choice.source)):
        raise NotFound(
            f"there is no archive of {choice.source}",
            f"penstock pipeline run archive --topics {choice.source}",
        )
    return choice, job


def check(context: JobContext) -> None:
    with client_of(context) as client:
        _replay_of(context, *_requested(context), client)


def run(context: JobContext) -> None:
    choice, job = _requested(context)
    with client_of(context) as client:
        replay = _replay_of(context, choice, job, client)
        left = _left(client, replay, _ends_of(context, choice, replay, client))
        if not left:
            context.progress.note(f"replay {job} is done: nothing is left to send")
            return
        sent, repeated = _send(context, choice, replay, left)
        for partition, end in left.items():  # skip records after the last that the filter chose
            position = read_position(client, replay, partition)
            if position is not None and position.next_offset < end:
                commit_position(client, replay, partition, position.after(end - 1, 0))
    context.progress.note(
        f"replay {job}: {sent - repeated} records sent"
        + (f", {repeated} were already sent by an earlier run" if repeated else "")
    )


def _send(
    context: JobContext, choice: Choice, replay: Replay, left: Mapping[int, int]
) -> tuple[int, int]:
    """Send the records. Return how many were sent, and how many of these the target already had."""
    from pyspark.errors import AnalysisException

    rate = context.arguments.get("rate")
    if rate:
        at_once = min(len(left), context.spark.sparkContext.defaultParallelism)
        replay = replace(replay, rate=float(rate) / at_once)
    table = table_of(choice.source)
    archived = context.lake.read(context.spark, table, files=_files(choice))
    try:
        rows = transform(archived, choice, left)
    except AnalysisException as error:
        raise JobMisused(
            f"invalid --filter {choice.condition}: {str(error).splitlines()[0]}"
        ) from None

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_partitions(batches, replay)

    with context.progress.tasks(f"replay {choice.source} to {choice.target}"):
        done = map_in_arrow(rows, send, DONE_SCHEMA).collect()
    return sum(row.sent for row in done), sum(row.repeated for row in done)


def _replay_of(context: JobContext, choice: Choice, job: str, client: KafkaClient) -> Replay:
    try:
        partitions = len(client.places(choice.target))
    except KafkaRefused as refused:
        if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise JobMisused(f"cannot replay to {choice.target}: {refused}") from None
        raise NotFound(
            f"cannot replay to {choice.target}: there is no such topic or queue",
            f"penstock topic create {choice.target}",
        ) from None
    return Replay(
        job=job,
        connection=parse_connection(Options(context.read_options)),
        topic=choice.target,
        partitions=partitions,
        rate=None,
        is_original_time=bool(context.arguments.get("original_timestamps")),
        now_ms=time.time_ns() // 1_000_000,
        queue=_queue(context) if choice.target.endswith(".fifo") else None,
    )


def _queue(context: JobContext) -> QueueAddress:
    values = [str(context.arguments.get(n) or "") for n in ("endpoint", "key_id", "secret_file")]
    if not all(values):
        raise JobMisused("sending to a FIFO queue needs --endpoint, --key-id and --secret-file")
    endpoint, key_id, secret_file = values
    if not Path(secret_file).is_file():
        raise JobMisused(f"--secret-file {secret_file} is not a file")
    region = str(context.arguments.get("region") or "us-east-1")
    return QueueAddress(endpoint, region, key_id, secret_file)


def _ends_of(
    context: JobContext, choice: Choice, replay: Replay, client: KafkaClient
) -> dict[int, int]:
    """Return the end offset of each partition, and start the replay if it is new.

    Positions are written before the rows of ``replay_job``. So if there are no rows, no record was
    sent yet; if there are rows and a position is missing, the position was lost."""
    lake, job = context.lake, replay.job
    if lake.exists(TABLE):
        known = lake.read(context.spark, TABLE, f"job = '{job}'").collect()
        if known and known[0].choice != choice.text():
            raise JobMisused(f"replay {job} was started with other options: choose another --name")
        if known:
            return {row.partition: row.end for row in known}
    ends = ends_of(lake, choice.source)
    for partition in ends:
        producer_id, epoch = client.producer_id()
        commit_position(client, replay, partition, Position(0, producer_id, epoch, 0))
    rows = batch_of([(job, choice.text(), *each) for each in ends.items()], _TABLE)
    lake.append(pa.Table.from_batches([rows]), TABLE, app=f"replay:{job}", batch_id=0)
    return ends


def _left(client: KafkaClient, replay: Replay, ends: Mapping[int, int]) -> dict[int, int]:
    left = {}
    for partition, end in ends.items():
        position = read_position(client, replay, partition)
        if position is None:
            raise ProgressLost(
                f"the progress of replay {replay.job} in partition {partition} is lost:"
                " continuing could send records twice"
            )
        if position.next_offset < end:
            left[partition] = end
    return left


def _files(choice: Choice) -> str | None:
    times = ((choice.since_ms, ">="), (choice.until_ms, "<="))
    terms = [f"date {sign} '{utc(ms).date()}'" for ms, sign in times if ms is not None]
    return " AND ".join(terms) or None


JOB: Final = Job(
    name="replay",
    summary="Send archived records to a topic or a queue again.",
    run=run,
    check=check,
    modes=frozenset({Mode.ONCE}),
    options=(
        option("--from source", "TOPIC", "archived topic to read", required=True),
        option("--to target", "NAME", "topic or queue to send to", required=True),
        option("--filter", "SQL", "SQL condition that selects archived records"),
        option(
            "--rate", "N", "maximum records per second", type=click.FloatRange(0, min_open=True)
        ),
        option("--name", "NAME", "name of the replay; a new name starts a new replay"),
        option("--original-timestamps", None, "keep the archived timestamps", is_flag=True),
        option("--endpoint", "URL", "SQS endpoint, for a FIFO queue"),
        option("--region", "NAME", "region of the FIFO queue"),
        option("--key-id", "ID", "access key ID, for a FIFO queue"),
        option("--secret-file", "FILE", "file with the secret access key, for a FIFO queue"),
    ),
)
