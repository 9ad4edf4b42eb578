"""The catalog as the SQS view sees it: queues only. A topic that is read by offsets alone has no
attributes, no leases and no place in ListQueues until somebody opens it as a queue."""

from collections.abc import Callable, Sequence

from penstock.model.errors import TopicNotFound
from penstock.model.ports import Catalog
from penstock.model.topic import Topic


class QueueCatalog:
    """Implements ``model.ports.Catalog`` over another one."""

    def __init__(self, everything: Catalog) -> None:
        self.everything = everything
        self._find = everything.find

    def find(self, account: str, region: str, name: str) -> Topic | None:
        topic = self._find(account, region, name)
        return topic if topic is None or topic.is_queue else None

    def find_arn(self, arn: str) -> Topic | None:
        topic = self.everything.find_arn(arn)
        return topic if topic is None or topic.is_queue else None

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        return [t for t in self.everything.topics(account, region, prefix) if t.is_queue]

    def all_topics(self) -> Sequence[Topic]:
        return [topic for topic in self.everything.all_topics() if topic.is_queue]

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool:
        return self.everything.recently_deleted(account, region, name, now_ms=now_ms)

    async def create(self, topic: Topic) -> Topic:
        return await self.everything.create(topic)

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

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        self.everything.on_change(listener)
