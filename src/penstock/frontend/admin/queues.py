"""``/api/v1/queues`` and ``/api/v1/queues/{name}``: queues with their counts and how dead letters
flow between them. The key that signs receipts is part of a topic and never leaves the node."""

from collections.abc import Iterable

import msgspec

from penstock.frontend.admin.metrics import read_stats, select
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.topic import QueueStats, Topic
from penstock.net.exchange import HttpReply

QUEUES_MAX = 1_000  # in one answer; the rest by ``after``


async def many(context: Context, call: Call) -> HttpReply:
    call.only(("account", "region", "prefix", "limit", "after"))
    limit = call.number("limit", default=QUEUES_MAX, least=1, most=QUEUES_MAX)
    topics = select(context, call)
    after = call.text("after")
    if after:
        topics = [topic for topic in topics if _place(topic) > _parse_place(after)]
    page = topics[:limit]
    sources = _sources(context.catalog.all_topics())
    now_ms = context.clock.wall_ms()
    queues = [
        _summary(topic, stats, sources.get(topic.arn, []), now_ms=now_ms)
        async for topic, stats in read_stats(context, page)
    ]
    is_more = len(topics) > len(page)
    return json_reply(
        200, {"queues": queues, "next": "/".join(_place(page[-1])) if is_more else None}
    )


async def one(context: Context, call: Call) -> HttpReply:
    call.only(("account", "region"))
    topic = find(context, call)
    stats = await context.backend.stats(topic)
    sources = _sources(context.catalog.all_topics()).get(topic.arn, [])
    queue = _summary(topic, stats, sources, now_ms=context.clock.wall_ms())
    settings = topic.settings
    queue["settings"] = {
        field.name: getattr(settings, field.name) for field in msgspec.structs.fields(settings)
    }
    queue["tags"] = topic.tags
    queue["fsync"] = topic.fsync
    queue["dedup_scope"] = topic.dedup_scope
    return json_reply(200, queue)


def find(context: Context, call: Call) -> Topic:
    """The queue that the fourth segment of the path names: ``/api/v1/queues/{name}…``."""
    account = call.text("account") or context.info.account
    region = call.text("region") or context.info.region
    topic = context.catalog.find(account, region, call.path[3])
    if topic is None:
        raise TopicNotFound(call.path[3])
    return topic


def _summary(
    topic: Topic, stats: QueueStats, sources: list[str], *, now_ms: int
) -> dict[str, object]:
    redrive = topic.settings.redrive
    counts = msgspec.structs.asdict(stats)
    del counts["obstacles"]
    oldest_at_ms = stats.oldest_sent_at_ms
    counts["oldest_age_ms"] = None if oldest_at_ms is None else max(0, now_ms - oldest_at_ms)
    return {
        "name": topic.name,
        "account": topic.account,
        "region": topic.region,
        "arn": topic.arn,
        "topic_id": topic.topic_id,
        "kind": topic.kind,
        "partition_count": topic.partition_count,
        "created_at_ms": topic.created_at_ms,
        "modified_at_ms": topic.modified_at_ms,
        "dead_letter_target": None if redrive is None else redrive.target_arn,
        "attempts_max": None if redrive is None else redrive.attempts_max,
        "sources": sources,
        "stats": counts,
    }


def _sources(topics: Iterable[Topic]) -> dict[str, list[str]]:
    """For each dead-letter queue the queues it serves, by ARN."""
    sources: dict[str, list[str]] = {}
    for topic in topics:
        if topic.settings.redrive is not None:
            sources.setdefault(topic.settings.redrive.target_arn, []).append(topic.arn)
    for arns in sources.values():
        arns.sort()
    return sources


def _place(topic: Topic) -> tuple[str, str, str]:
    return topic.account, topic.region, topic.name


def _parse_place(text: str) -> tuple[str, str, str]:
    parts = text.split("/")
    if len(parts) != 3:
        raise InvalidRequest("after is the next of the answer before.")
    return parts[0], parts[1], parts[2]
