"""``/metrics``: totals of this node. ``/metrics/objects``: one series per queue.

Totals over queues are summed at the scrape from ``Stats``, which scans nothing. A long list of
queues is read in pieces, so that a scrape does not delay messages."""

from collections import Counter
from collections.abc import Iterator

from penstock.frontend.admin.reply import large_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.topics.stats import read_stats, select
from penstock.model.errors import InvalidRequest
from penstock.model.topic import QueueStats, Topic
from penstock.net.http.exchange import HttpReply
from penstock.net.slices import in_slices
from penstock.telemetry import families
from penstock.telemetry.exposition import CONTENT_TYPE, Sample
from penstock.telemetry.families import Family
from penstock.telemetry.metrics import render_samples

OBJECTS_MAX = 10_000  # queues in one reply: about 100,000 lines

Samples = list[tuple[Family, Sample]]


async def totals(context: Context, _call: Call) -> HttpReply:
    topics = context.catalog.all_topics()
    sums: Counter[str] = Counter()
    now_ms = oldest_at_ms = context.clock.wall_ms()
    async for _, stats in read_stats(context, topics):
        for name in ("visible", "in_flight", "delayed", "waits", "log_bytes"):
            sums[name] += getattr(stats, name)
        if stats.oldest_sent_at_ms is not None:
            oldest_at_ms = min(oldest_at_ms, stats.oldest_sent_at_ms)
    samples: Samples = [
        (families.READY, ((), int(context.health.is_ready))),
        (families.START_TIME, ((), context.info.started_at_ms / 1_000)),
        (families.QUEUES, ((), len(topics))),
        *(
            (families.QUEUE_MESSAGES, ((state,), sums[state]))
            for state in ("visible", "in_flight", "delayed")
        ),
        (families.QUEUE_OLDEST_AGE, ((), (now_ms - oldest_at_ms) / 1_000)),
        (families.LOG_SIZE, ((), sums["log_bytes"])),
        (families.WAITS, ((), sums["waits"])),
        *context.health.samples(),
    ]
    return HttpReply(200, context.meter.render(samples), CONTENT_TYPE)


async def objects(context: Context, call: Call) -> HttpReply:
    if call.text("kind", "queue") != "queue":
        raise InvalidRequest("kind must be queue.")
    topics = select(context, call)
    if len(topics) > OBJECTS_MAX:
        raise InvalidRequest(
            f"{len(topics)} queues match, at most {OBJECTS_MAX} are allowed: use a longer prefix."
        )
    now_ms = context.clock.wall_ms()
    by_family: dict[Family, list[Sample]] = {}
    async for topic, stats in read_stats(context, topics):
        for family, sample in _queue_samples(topic, stats, now_ms=now_ms):
            by_family.setdefault(family, []).append(sample)
    return large_reply(await in_slices(render_samples(by_family)), CONTENT_TYPE)


def _queue_samples(
    topic: Topic, stats: QueueStats, *, now_ms: int
) -> Iterator[tuple[Family, Sample]]:
    labels = (topic.account, topic.region, topic.name)
    yield families.OBJECT_QUEUE_MESSAGES, ((*labels, "visible"), stats.visible)
    yield families.OBJECT_QUEUE_MESSAGES, ((*labels, "in_flight"), stats.in_flight)
    yield families.OBJECT_QUEUE_MESSAGES, ((*labels, "delayed"), stats.delayed)
    sent_at_ms = stats.oldest_sent_at_ms
    age = 0.0 if sent_at_ms is None else max(0, now_ms - sent_at_ms) / 1_000
    yield families.OBJECT_QUEUE_OLDEST_AGE, (labels, age)
    yield families.OBJECT_QUEUE_LOG_SIZE, (labels, stats.log_bytes)
    yield families.OBJECT_QUEUE_WAITS, (labels, stats.waits)
    yield families.OBJECT_QUEUE_SENT, (labels, stats.sent)
    yield families.OBJECT_QUEUE_RECEIVED, (labels, stats.received)
    yield families.OBJECT_QUEUE_DELETED, (labels, stats.acked)
    yield families.OBJECT_QUEUE_DEAD_LETTERED, (labels, stats.dead_lettered)
    yield families.OBJECT_QUEUE_EXPIRED, (labels, stats.expired)
