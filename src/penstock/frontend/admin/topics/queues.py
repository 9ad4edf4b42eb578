"""``/api/v1/queues`` and ``/api/v1/queues/{name}``: queues with counts and dead-letter queues. The
key that signs receipts is part of a topic and never leaves the node."""

from collections.abc import Iterable

import msgspec

from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context, find_topic
from penstock.frontend.admin.topics.stats import read_stats, select
from penstock.model.calls import Stats
from penstock.model.errors import InvalidRequest
from penstock.model.topic import QueueStats, Topic
from penstock.net.http.exchange import HttpReply

QUEUES_MAX = 1_000  # in one reply; the rest by ``after``


async def many(context: Context, call: Call) -> HttpReply:
    limit = call.number("limit", default=QUEUES_MAX, least=1, most=QUEUES_MAX)
    topics = select(context, call)
    after = call.text("after")
    if after:
        parts = tuple(after.split("/"))
        if len(parts) != 3:
            raise InvalidRequest("after must be the value of next in an earlier reply.")
        topics = [topic for topic in topics if _full_name(topic) > parts]
    page = topics[:limit]
    sources = _sources(context.catalog.all_topics())
    now_ms = context.clock.wall_ms()
    queues = [
        _summary(topic, stats, sources.get(topic.arn, []), now_ms=now_ms)
        async for topic, stats in read_stats(context, page)
    ]
    next_ = "/".join(_full_name(page[-1])) if len(topics) > len(page) else None
    return json_reply(200, {"queues": queues, "next": next_})


async def one(context: Context, call: Call) -> HttpReply:
    topic = find(context, call)
    stats = await context.broker.call(Stats(topic))
    sources = _sources(context.catalog.all_topics()).get(topic.arn, [])
    queue = _summary(topic, stats, sources, now_ms=context.clock.wall_ms())
    queue["settings"] = msgspec.structs.asdict(topic.settings)
    queue["tags"] = topic.tags
    queue["fsync"] = topic.fsync
    queue["dedup_scope"] = topic.dedup_scope
    return json_reply(200, queue)


async def rotate_data_key(context: Context, call: Call) -> HttpReply:
    """Encrypt with a new data key from now on, for queues and streams. Old keys are kept as long as
    records may need them."""
    account, region = call.text("account"), call.text("region")
    topic = find_topic(context, context.everything, call.path[3], account, region)
    if context.sealing is None:
        raise InvalidRequest("Encryption is not configured on this node.")
    await context.sealing.rotate(topic)
    found = {"name": topic.name, "account": topic.account, "region": topic.region}
    return json_reply(200, found)


def find(context: Context, call: Call) -> Topic:
    """Return the queue of ``/api/v1/queues/{name}…``."""
    account, region = call.text("account"), call.text("region")
    return find_topic(context, context.catalog, call.path[3], account, region)


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
    """Return for each dead-letter queue its source queues, by ARN."""
    sources: dict[str, list[str]] = {}
    for topic in sorted(topics, key=lambda topic: topic.arn):
        if topic.settings.redrive is not None:
            sources.setdefault(topic.settings.redrive.target_arn, []).append(topic.arn)
    return sources


def _full_name(topic: Topic) -> tuple[str, ...]:
    return topic.account, topic.region, topic.name
