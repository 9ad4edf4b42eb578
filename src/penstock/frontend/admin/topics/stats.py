"""Which queues a request selects, and their counts."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from penstock.frontend.admin.request import Call, Context
from penstock.model.calls import Stats
from penstock.model.errors import TopicNotFound
from penstock.model.topic import QueueStats, Topic

QUEUES_AT_ONCE = 32  # about a millisecond of the event loop


def select(context: Context, call: Call) -> Sequence[Topic]:
    """Return the queues that ``account``, ``region`` and ``prefix`` select, sorted."""
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
    """Yield each queue with its counts, except queues deleted since. Several are read at the same
    time: the first call to a queue opens its logs, or goes to another node."""
    for start in range(0, len(topics), QUEUES_AT_ONCE):
        page = topics[start : start + QUEUES_AT_ONCE]
        found = await asyncio.gather(
            *(context.broker.call(Stats(each)) for each in page), return_exceptions=True
        )
        for topic, stats in zip(page, found, strict=True):
            if isinstance(stats, QueueStats):
                yield topic, stats
            elif not isinstance(stats, TopicNotFound):
                raise stats
