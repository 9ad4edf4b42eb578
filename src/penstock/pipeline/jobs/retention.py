"""Job ``retention``: plans which records of topics can be deleted; ``--apply`` deletes the records.

    the server ─┐
    archive/*  ─┼─► a plan ─► retention_plan ─► DeleteRecords, with --apply
    policies   ─┘

With ``--apply`` the job makes a second plan, and deletes only the records that both plans delete.
The first plan is stored in its table before any request, and the outcome is added later. So no
record is deleted without a stored plan, and a run that is killed leaves the outcome ``asked``."""

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.net.kafka_client.client import EARLIEST, KafkaClient, Place
from penstock.pipeline.archive import retention_plan as plans
from penstock.pipeline.archive.ack_ranges import floors, read_ack_files
from penstock.pipeline.archive.archive_rows import known_id
from penstock.pipeline.arrow_map import schema_of
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode, Unsound, option
from penstock.pipeline.jobs.archive import archived_ends, check_ids
from penstock.pipeline.jobs.queries import check_topics, client_of, parsed_option
from penstock.pipeline.lake import TopicRemade

PLAN: Final = "retention_plan"
NAME: Final = "retention"
REQUESTED: Final = "asked"  # deletion was requested, the outcome is not known
PLAN_BY: Final = ("plan_id",)
_PLAN: Final = schema_of(
    "plan_id string, made_at timestamp, topic string, partition int, base long, end long,"
    " bytes long, action string, reason string, outcome string"
)


def _archived(context: JobContext, client: KafkaClient, remade: set[str]) -> dict[Place, int]:
    """Return the end offsets of archives, except of topics that were deleted and created again.
    These topics are added to ``remade``, and each is reported once."""
    found: dict[Place, int] = {}
    ids = {
        topic.name: known_id(bytes(topic.topic_id).hex())
        for topic in client.retried(client.metadata).topics
    }
    for topic, ends in archived_ends(context.lake).items():
        try:
            check_ids(context.lake, {topic: ids.get(topic, "")})
        except TopicRemade as trouble:
            if topic not in remade:
                remade.add(topic)
                context.progress.note(f"an archive is ignored: {trouble}")
            continue
        found |= {Place(topic, partition): end for partition, end in ends.items()}
    return found


def _acked(context: JobContext, client: KafkaClient) -> dict[Place, dict[str, int]]:
    name = context.arguments.get("acks")
    if name is None:
        return {}
    spark, table = context.spark, context.lake.table(name)
    if not table.exists():
        raise JobMisused(f"--acks: the lake has no table {name}")
    found = read_ack_files(spark, table.files(), tasks=spark.sparkContext.defaultParallelism)
    existing = {topic.name for topic in client.retried(client.metadata).topics}
    cursors: dict[str, set[str]] = {}
    for topic, _, cursor in found:
        if topic in existing:
            cursors.setdefault(topic, set()).add(cursor)
    places = [place for topic in cursors for place in client.places(topic)]
    starts = client.offsets(dict.fromkeys(places, EARLIEST)) if places else {}
    needs = floors({key: each for key, each in found.items() if Place(*key[:2]) in starts}, starts)
    for place, start in starts.items():
        for cursor in cursors[place.topic]:  # a cursor without acks needs all records
            needs.setdefault(place, {}).setdefault(cursor, start)
    return needs


def _policies(context: JobContext) -> tuple[list[plans.Policy], list[plans.Hold]]:
    return parsed_option(context, "policies", plans.parse_policies, plans.PoliciesInvalid)


def check(context: JobContext) -> None:
    _policies(context)
    check_topics(context, [])


def run(context: JobContext) -> None:
    policies, holds = _policies(context)
    remade: set[str] = set()  # topics that were reported as created again
    outcomes: dict[Place, str] = {}
    plan_id = uuid.uuid4().hex

    def decide() -> list[plans.Decision]:
        now_ms = time.time_ns() // 1_000_000
        archived, acked = _archived(context, client, remade), _acked(context, client)
        facts = plans.gather(client, policies, holds, now_ms=now_ms, archived=archived, acked=acked)
        return plans.plan(facts, policies, holds, now_ms=now_ms)

    def write(outcomes: Mapping[Place, str], *, batch_id: int) -> None:
        head = {"plan_id": plan_id, "made_at": time.time_ns() // 1_000}
        rows = [{**head, **_row(each, outcomes)} for each in decisions]
        if rows:
            context.lake.append(
                pa.Table.from_pylist(rows, schema=_PLAN),
                PLAN,
                app=f"{NAME}:{plan_id}",
                batch_id=batch_id,
                partition_by=PLAN_BY,
                replace_where=f"plan_id = '{plan_id}'" if batch_id else None,
            )

    with client_of(context) as client:
        decisions = decide()
        planned = plans.cuts(decisions)
        if context.arguments.get("apply") and planned:
            write(dict.fromkeys(planned, REQUESTED), batch_id=0)
            # Delete only what both plans delete: a new reader may have started between them.
            still = plans.cuts(decide())
            agreed = {at: min(end, still[at]) for at, end in planned.items() if at in still}
            outcomes = plans.delete_records(client, agreed)
    write(outcomes, batch_id=1)
    shown = {"base": "from", "end": "to"}
    rows = [_row(each, outcomes) for each in decisions]
    context.show({shown.get(name, name): row[name] for name in row} for row in rows)
    for topic, freed in sorted(plans.savings(decisions).items()):
        context.progress.note(f"{topic}: {freed} bytes {'freed' if outcomes else 'to free'}")
    refused = {place: why for place, why in outcomes.items() if why}
    if refused:
        place, why = next(iter(refused.items()))
        raise Unsound(f"records of {len(refused)} partitions were not deleted ({place}: {why})")


def _row(decision: plans.Decision, outcomes: Mapping[Place, str]) -> dict[str, Any]:
    """Return a row of ``retention_plan``. The outcome is "done", an error, or "" if not tried."""
    segment = decision.segment
    is_tried = decision.action == plans.DELETE and segment.place in outcomes
    return {
        "topic": segment.place.topic,
        "partition": segment.place.partition,
        "base": segment.base,
        "end": segment.end,
        "bytes": segment.bytes,
        "action": decision.action,
        "reason": decision.reason,
        "outcome": (outcomes[segment.place] or "done") if is_tried else "",
    }


JOB: Final = Job(
    name=NAME,
    summary="Plan the deletion of records that no reader needs; with --apply, delete them.",
    run=run,
    check=check,
    options=(
        option("--policies", "PATH", "TOML file with retention policies and holds", required=True),
        option(
            "--apply/--dry-run apply",
            None,
            "delete the planned records, or only print the plan [default]",
            default=False,
            show_default=False,
        ),
        option("--acks", "TABLE", "lake table with the acks of readers outside the server"),
    ),
    modes=frozenset({Mode.ONCE}),
)
