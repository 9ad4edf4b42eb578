"""A broker and a catalog small enough to read at a glance, for tests of the frontend alone: no
time, no disk, no order beyond arrival. What queues really do is tested against the real parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.frontend.pipeline import Frontend, FrontendConfig
from penstock.model.errors import NotLeased, TopicExists, TopicNotFound
from penstock.model.message import Appended, Claim, Delivery, Message, Record
from penstock.model.ports import LeaseRequest, MoveTask, Peeked
from penstock.model.topic import QueueStats, Topic
from penstock.net.exchange import HttpReply, HttpRequest

Key = tuple[str, str, str]


class MemoryClock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms


class MemoryCatalog:
    def __init__(self) -> None:
        self._topics: dict[Key, Topic] = {}
        self._deleted_at_ms: dict[Key, int] = {}

    def find(self, account: str, region: str, name: str) -> Topic | None:
        return self._topics.get((account, region, name))

    def find_arn(self, arn: str) -> Topic | None:
        return next((topic for topic in self._topics.values() if topic.arn == arn), None)

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        keys = sorted(key for key in self._topics if key[:2] == (account, region))
        return [self._topics[key] for key in keys if key[2].startswith(prefix)]

    def all_topics(self) -> Sequence[Topic]:
        return list(self._topics.values())

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool:
        return now_ms - self._deleted_at_ms.get((account, region, name), -60_000) < 60_000

    async def create(self, topic: Topic) -> Topic:
        key = (topic.account, topic.region, topic.name)
        if key in self._topics:
            raise TopicExists(topic.name)
        self._topics[key] = topic
        return topic

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        if (account, region, name) not in self._topics:
            raise TopicNotFound(name)
        topic = change(self._topics[account, region, name])
        self._topics[account, region, name] = topic
        return topic

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        if (account, region, name) not in self._topics:
            raise TopicNotFound(name)
        self._deleted_at_ms[account, region, name] = now_ms
        return self._topics.pop((account, region, name))

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        raise AssertionError("the frontend does not listen")


class MemoryBackend:
    """Every record is leased once and gone when acked. ``broken`` is raised by every call that
    touches a queue."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.leased: set[tuple[str, int, int]] = set()
        self.tasks: list[MoveTask] = []
        self.broken: Exception | None = None
        self.broken_partitions: dict[int, Exception] = {}
        self.asked: list[LeaseRequest] = []
        self._seq = itertools.count(1)

    def _check(self, partition: int | None = None) -> None:
        error = self.broken or self.broken_partitions.get(-1 if partition is None else partition)
        if error is not None:
            raise error

    async def append(
        self, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        self._check(partition)
        log = self.records.setdefault((topic.topic_id, partition), [])
        appended = []
        for message in messages:
            log.append(Record(len(log), 1_700_000_000_000 + len(log), message))
            appended.append(Appended(partition, len(log) - 1, message.message_id))
        return appended

    async def lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        self._check()
        self.asked.append(request)
        deliveries: list[Delivery] = []
        for (topic_id, partition), log in self.records.items():
            for record in log:
                place = (topic_id, partition, record.offset)
                if topic_id != topic.topic_id or place in self.leased:
                    continue
                if len(deliveries) < request.count:
                    self.leased.add(place)
                    deliveries.append(Delivery(partition, record, next(self._seq), 1, 5))
        return deliveries

    async def ack(
        self, topic: Topic, partition: int, claims: Sequence[Claim]
    ) -> Sequence[Exception | None]:
        self._check(partition)
        log = self.records[topic.topic_id, partition]
        gone = {claim.offset for claim in claims}
        self.records[topic.topic_id, partition] = [r for r in log if r.offset not in gone]
        return [None] * len(claims)

    async def extend(
        self, topic: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        self._check(partition)
        offsets = {record.offset for record in self.records[topic.topic_id, partition]}
        return [None if claim.offset in offsets else NotLeased() for claim, _ in claims]

    async def purge(self, topic: Topic) -> None:
        self._check()
        for topic_id, partition in list(self.records):
            if topic_id == topic.topic_id:
                del self.records[topic_id, partition]

    async def stats(self, topic: Topic) -> QueueStats:
        logs = [log for (topic_id, _), log in self.records.items() if topic_id == topic.topic_id]
        return QueueStats(visible=sum(len(log) for log in logs))

    async def peek(
        self, topic: Topic, *, partition: int, start: int, count: int
    ) -> tuple[Sequence[Peeked], int]:
        raise AssertionError("the frontend does not peek")

    async def start_move(self, task: MoveTask) -> None:
        self.tasks.insert(0, task)

    async def cancel_move(self, task_id: str) -> MoveTask | None:
        return next((task for task in self.tasks if task.task_id == task_id), None)

    def moves(self, source_arn: str) -> Sequence[MoveTask]:
        return [task for task in self.tasks if task.source_arn == source_arn]


@dataclass
class MemoryMeter:
    requests: list[tuple[str, str, str, float]] = field(default_factory=list)
    tallies: dict[str, int] = field(default_factory=dict)

    def request(self, api: str, protocol: str, code: str, seconds: float) -> None:
        self.requests.append((api, protocol, code, seconds))

    def _add(self, name: str, count: int) -> None:
        self.tallies[name] = self.tallies.get(name, 0) + count

    def sent(self, count: int, size_bytes: int) -> None:
        self._add("sent", count)
        self._add("sent_bytes", size_bytes)

    def received(self, count: int, size_bytes: int) -> None:
        self._add("received", count)
        self._add("received_bytes", size_bytes)

    def deleted(self, count: int) -> None:
        self._add("deleted", count)


class Rig:
    """A frontend with everything around it in memory, and short ways to ask it things."""

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.backend = MemoryBackend()
        self.catalog = MemoryCatalog()
        self.clock = MemoryClock()
        self.meter = MemoryMeter()
        chance = itertools.count(1)
        ticks = itertools.count()
        self.frontend = Frontend(
            backend=self.backend,
            catalog=self.catalog,
            clock=self.clock,
            config=config or FrontendConfig(),
            meter=self.meter,
            entropy=lambda count: next(chance).to_bytes(count, "big"),
            perf=lambda: next(ticks) * 0.5,
        )

    async def ask(
        self,
        method: str = "POST",
        path: str = "/",
        *,
        query: str = "",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> HttpReply:
        everything = {"host": "queues.test:9324", **(headers or {})}
        request = HttpRequest(method, path, query, everything, body, "127.0.0.1", "request-1")
        return await self.frontend.handle(request)
