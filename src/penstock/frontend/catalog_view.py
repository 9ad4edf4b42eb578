"""The catalog as one protocol sees it.

SQS sees queues only: a topic that is read by offsets alone has no attributes and no leases, and is
not in ListQueues until it is opened as a queue. Kafka sees topics with their own records, so no
shares."""

from collections.abc import Callable, Sequence

from penstock.model.errors import TopicNotFound
from penstock.model.ports import Catalog
from penstock.model.topic import Topic


class CatalogView:
    """Implements ``model.ports.Catalog`` over another one."""

    def __init__(self, everything: Catalog, *, shows: Callable[[Topic], bool]) -> None:
        self.everything = everything
        self._find = everything.find
        self._shows = shows
        self.recently_deleted = everything.recently_deleted
        self.create = everything.create
        self.on_change = everything.on_change

    def find(self, account: str, region: str, name: str) -> Topic | None:
        topic = self._find(account, region, name)
        return topic if topic is None or self._shows(topic) else None

    def find_arn(self, arn: str) -> Topic | None:
        return self._shown(self.everything.find_arn(arn))

    def find_id(self, topic_id: str) -> Topic | None:
        return self._shown(self.everything.find_id(topic_id))

    def tombstone(self, topic_id: str) -> Topic | None:
        return self._shown(self.everything.tombstone(topic_id))

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        return [t for t in self.everything.topics(account, region, prefix) if self._shows(t)]

    def all_topics(self) -> Sequence[Topic]:
        return [topic for topic in self.everything.all_topics() if self._shows(topic)]

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        if self.find(account, region, name) is None:
            raise TopicNotFound(name)
        return await self.everything.change(account, region, name, change)

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        if self.find(account, region, name) is None:
            raise TopicNotFound(name)
        return await self.everything.delete(account, region, name, now_ms=now_ms)

    def _shown(self, topic: Topic | None) -> Topic | None:
        return topic if topic is None or self._shows(topic) else None


def queues_of(everything: Catalog) -> CatalogView:
    return CatalogView(everything, shows=lambda topic: topic.is_queue)


def streams_of(everything: Catalog) -> CatalogView:
    return CatalogView(everything, shows=lambda topic: topic.source_id is None)
