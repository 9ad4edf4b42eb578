"""``/metrics``: this node's totals. ``/metrics/objects``: one series per queue, asked for by name.

Totals over queues are summed at the scrape from ``Backend.stats``, which scans nothing. A long
list of queues is walked in pieces, so that a scrape never holds up messages.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from penstock.frontend.admin.reply import large_reply
from penstock.frontend.admin.request import Call, Context
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.topic import QueueStats, Topic
from penstock.net.exchange import HttpReply
from penstock.net.turns import in_turns
from penstock.telemetry import families
from penstock.telemetry.exposition import CONTENT_TYPE, Sample
from penstock.telemetry.families import Family
from penstock.telemetry.metrics import render_samples

QUEUES_AT_ONCE = 32  # about a millisecond of the event loop
OBJECTS_MAX = 10_000  # queues in one answer: some 100,000 lines

Samples = list[tuple[Family, Sample]]


async def totals(context: Context, call: Call) -> HttpReply:
    call.only(())
    topics = context.catalog.all_topics()
    visible = in_flight = delayed = waits = log_bytes = 0
    oldest_at_ms: int | None = None
    async for _, stats in read_stats(context, topics):
        visible += stats.visible
        in_flight += stats.in_flight
        delayed += stats.delayed
        waits += stats.waits
        log_bytes += stats.log_bytes
        at_ms = stats.oldest_sent_at_ms
        if at_ms is not None and (oldest_at_ms is None or at_ms < oldest_at_ms):
            oldest_at_ms = at_ms
    age = age_seconds(oldest_at_ms, now_ms=context.clock.wall_ms())
    samples: Samples = [
        (families.READY, ((), int(context.health.is_ready))),
        (families.START_TIME, ((), context.info.started_at_ms / 1_000)),
        (families.QUEUES, ((), len(topics))),
        (families.QUEUE_MESSAGES, (("visible",), visible)),
        (families.QUEUE_MESSAGES, (("in_flight",), in_flight)),
        (families.QUEUE_MESSAGES, (("delayed",), delayed)),
        (families.QUEUE_OLDEST_AGE, ((), age)),
        (families.LOG_SIZE, ((), log_bytes)),
        (families.WAITS, ((), waits)),
        *context.health.samples(),
    ]
    return HttpReply(200, context.meter.render(samples), CONTENT_TYPE)


async def objects(context: Context, call: Call) -> HttpReply:
    call.only(("kind", "prefix", "account", "region"))
    if call.text("kind", "queue") != "queue":
        raise InvalidRequest("kind is queue.")
    topics = select(context, call)
    if len(topics) > OBJECTS_MAX:
        raise InvalidRequest(
            f"{len(topics)} queues match; ask for at most {OBJECTS_MAX} with a longer prefix."
        )
    now_ms = context.clock.wall_ms()
    by_family: dict[Family, list[Sample]] = {}
    async for topic, stats in read_stats(context, topics):
        for family, sample in queue_samples(topic, stats, now_ms=now_ms):
            by_family.setdefault(family, []).append(sample)
    return large_reply(await in_turns(render_samples(by_family)), CONTENT_TYPE)


def select(context: Context, call: Call) -> Sequence[Topic]:
    """The queues a call's ``account``, ``region`` and ``prefix`` name, sorted by those."""
    account, region, prefix = call.text("account"), call.text("region"), call.text("prefix")
    if account and region:
        return context.catalog.topics(account, region, prefix)
    found = [
        topic
        for topic in context.catalog.all_topics()
        if topic.name.startswith(prefix)
        and (not account or topic.account == account)
        and (not region or topic.region == region)
    ]
    found.sort(key=lambda topic: (topic.account, topic.region, topic.name))
    return found


async def read_stats(
    context: Context, topics: Sequence[Topic]
) -> AsyncIterator[tuple[Topic, QueueStats]]:
    """Each queue with its counts; one that was deleted meanwhile is left out. Several are asked at
    once: the first question to a queue opens its logs, or goes to another node."""
    for start in range(0, len(topics), QUEUES_AT_ONCE):
        page = topics[start : start + QUEUES_AT_ONCE]
        found = await asyncio.gather(*map(context.backend.stats, page), return_exceptions=True)
        for topic, stats in zip(page, found, strict=True):
            if isinstance(stats, QueueStats):
                yield topic, stats
            elif not isinstance(stats, TopicNotFound):
                raise stats


def age_seconds(sent_at_ms: int | None, *, now_ms: int) -> float:
    return 0.0 if sent_at_ms is None else max(0, now_ms - sent_at_ms) / 1_000


def queue_samples(
    topic: Topic, stats: QueueStats, *, now_ms: int
) -> Iterator[tuple[Family, Sample]]:
    labels = (topic.account, topic.region, topic.name)
    yield families.OBJECT_QUEUE_MESSAGES, ((*labels, "visible"), stats.visible)
    yield families.OBJECT_QUEUE_MESSAGES, ((*labels, "in_flight"), stats.in_flight)
    yield families.OBJECT_QUEUE_MESSAGES, ((*labels, "delayed"), stats.delayed)
    age = age_seconds(stats.oldest_sent_at_ms, now_ms=now_ms)
    yield families.OBJECT_QUEUE_OLDEST_AGE, (labels, age)
    yield families.OBJECT_QUEUE_LOG_SIZE, (labels, stats.log_bytes)
    yield families.OBJECT_QUEUE_WAITS, (labels, stats.waits)
    yield families.OBJECT_QUEUE_SENT, (labels, stats.sent)
    yield families.OBJECT_QUEUE_RECEIVED, (labels, stats.received)
    yield families.OBJECT_QUEUE_DELETED, (labels, stats.acked)
    yield families.OBJECT_QUEUE_DEAD_LETTERED, (labels, stats.dead_lettered)
    yield families.OBJECT_QUEUE_EXPIRED, (labels, stats.expired)
