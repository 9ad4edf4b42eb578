"""A broker and a catalog small enough to read at a glance, for tests of the frontend alone: no
time, no disk, no order beyond arrival. What queues really do is tested against the real parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.harness.served import Served

from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.pipeline import Frontend
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.model.acls import AclIndex
from penstock.model.calls import (
    Ack,
    Append,
    CancelMove,
    Ends,
    Extend,
    FindTime,
    LearnSubscription,
    Lease,
    Publish,
    Purge,
    Results,
    StartMove,
    Stats,
)
from penstock.model.errors import NotFound, NotLeased, TopicExists, TopicNotFound
from penstock.model.identity import AccessKey, KeyStatus, ScramCredential, Tenant, User
from penstock.model.message import Appended, Delivery, Record
from penstock.model.ports import LeaseRequest, MoveTask, StreamEnds
from penstock.model.subscription import Subscription, SubscriptionState
from penstock.model.topic import QueueStats, Topic
from penstock.net.http.exchange import HttpReply, HttpRequest

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
        self._tombstones: dict[str, Topic] = {}
        self._listeners: list[Callable[[Topic | None, Topic | None], None]] = []

    def find(self, account: str, region: str, name: str) -> Topic | None:
        return self._topics.get((account, region, name))

    def find_arn(self, arn: str) -> Topic | None:
        return next((topic for topic in self._topics.values() if topic.arn == arn), None)

    def find_id(self, topic_id: str) -> Topic | None:
        return next((t for t in self._topics.values() if t.topic_id == topic_id), None)

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        keys = sorted(key for key in self._topics if key[:2] == (account, region))
        return [self._topics[key] for key in keys if key[2].startswith(prefix)]

    def find_sns(self, account: str, region: str, name: str) -> Topic | None:
        found = self.sns_topics(account, region)
        return next((topic for topic in found if topic.sns and topic.sns.name == name), None)

    def sns_topics(
        self, account: str, region: str, *, start: int = 0, count: int | None = None
    ) -> Sequence[Topic]:
        named = {t.sns.name: t for t in self.topics(account, region) if t.sns is not None}
        found = [named[name] for name in sorted(named)][start:]
        return found if count is None else found[:count]

    def all_topics(self) -> Sequence[Topic]:
        return list(self._topics.values())

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool:
        return now_ms - self._deleted_at_ms.get((account, region, name), -60_000) < 60_000

    def tombstone(self, topic_id: str) -> Topic | None:
        return self._tombstones.get(topic_id)

    async def create(self, topic: Topic) -> Topic:
        key = (topic.account, topic.region, topic.name)
        if key in self._topics:
            raise TopicExists(topic.name)
        self._topics[key] = topic
        self._tell(None, topic)
        return topic

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        if (account, region, name) not in self._topics:
            raise TopicNotFound(name)
        before = self._topics[account, region, name]
        topic = self._topics[account, region, name] = change(before)
        self._tell(before, topic)
        return topic

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        if (account, region, name) not in self._topics:
            raise TopicNotFound(name)
        self._deleted_at_ms[account, region, name] = now_ms
        topic = self._topics.pop((account, region, name))
        self._tombstones[topic.topic_id] = topic
        self._tell(topic, None)
        return topic

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        self._listeners.append(listener)

    def _tell(self, before: Topic | None, after: Topic | None) -> None:
        for listener in self._listeners:
            listener(before, after)


class MemorySubscriptions:
    """Of one process, so that nothing happens at the same time."""

    def __init__(self) -> None:
        self._rows: dict[str, Subscription] = {}
        self._listeners: list[Callable[[Subscription | None, Subscription | None], None]] = []

    def find(self, subscription_id: str) -> Subscription | None:
        found = self._rows.get(subscription_id)
        return None if found is None or found.state is SubscriptionState.DELETED else found

    def find_endpoint(self, topic_id: str, protocol: str, endpoint: str) -> Subscription | None:
        wanted = (topic_id, protocol, endpoint)
        same = (s for s in self.of_topic(topic_id) if (topic_id, s.protocol, s.endpoint) == wanted)
        return next(same, None)

    async def learn(self, subscription_id: str) -> Subscription | None:
        return self.find(subscription_id)

    def of_topic(self, topic_id: str) -> Sequence[Subscription]:
        live = (self.find(each) for each in sorted(self._rows))
        return [one for one in live if one is not None and one.topic_id == topic_id]

    def page(
        self, account: str, region: str, *, after: str = "", count: int
    ) -> Sequence[Subscription]:
        live = (self.find(each) for each in sorted(self._rows) if each > after)
        mine = (one for one in live if one and (one.account, one.region) == (account, region))
        return list(itertools.islice(mine, count))

    def page_of_topic(
        self, topic_id: str, *, after: str = "", count: int
    ) -> Sequence[Subscription]:
        return [one for one in self.of_topic(topic_id) if one.id > after][:count]

    def count(self, topic_id: str, state: SubscriptionState) -> int:
        rows = self._rows.values()
        return sum((one.topic_id, one.state) == (topic_id, state) for one in rows)

    async def create(self, new: Subscription) -> Subscription:
        found = self.find_endpoint(new.topic_id, new.protocol, new.endpoint)
        if found is not None:
            return found
        self._put(new.id, new)
        return new

    async def change(
        self, subscription_id: str, change: Callable[[Subscription], Subscription]
    ) -> Subscription:
        if subscription_id not in self._rows:
            raise NotFound(subscription_id)
        after = change(self._rows[subscription_id])
        self._put(subscription_id, after)
        return after

    async def delete(self, subscription_id: str) -> None:
        if subscription_id in self._rows:
            self._put(subscription_id, None)

    async def delete_of_topic(self, topic_id: str) -> int:
        gone = [one.id for one in self.of_topic(topic_id)]
        for each in gone:
            await self.delete(each)
        return len(gone)

    async def delete_all(self) -> int:
        count = len(self._rows)
        for each in list(self._rows):
            await self.delete(each)
        return count

    def on_change(
        self, listener: Callable[[Subscription | None, Subscription | None], None]
    ) -> None:
        self._listeners.append(listener)

    def _put(self, subscription_id: str, after: Subscription | None) -> None:
        before = self._rows.pop(subscription_id, None)
        if after is not None:
            self._rows[subscription_id] = after
        for listener in self._listeners:
            listener(before, after)


class MemoryRing:
    """Hides nothing, but knows the context of every secret."""

    master_id = "m"

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        return context + b"|" + secret

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes:
        found, _, secret = wrapped.partition(b"|")
        assert found == context
        return secret


class MemoryBackend(Served):
    """Every record is leased once and gone when acked. ``broken`` is raised by every call that
    touches a queue."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.leased: set[tuple[str, int, int]] = set()
        self.tasks: list[MoveTask] = []
        self.broken: Exception | None = None
        self.broken_partitions: dict[int, Exception] = {}
        self.asked: list[LeaseRequest] = []
        self.learned: list[str] = []  # ids of subscriptions
        self._seq = itertools.count(1)

    def _check(self, partition: int | None = None) -> None:
        error = self.broken or self.broken_partitions.get(-1 if partition is None else partition)
        if error is not None:
            raise error

    async def append(self, call: Append) -> Sequence[Appended]:
        self._check(call.partition)
        log = self.records.setdefault((call.topic.topic_id, call.partition), [])
        appended = []
        for message in call.messages:
            log.append(Record(len(log), 1_700_000_000_000 + len(log), message))
            appended.append(Appended(call.partition, len(log) - 1, message.message_id))
        return appended

    async def publish(self, call: Publish) -> Sequence[Appended]:
        return await self.append(Append(call.topic, call.partition, call.messages))

    async def ends(self, call: Ends) -> StreamEnds:
        count = len(self.records.get((call.topic.topic_id, call.partition), ()))
        return StreamEnds(0, count, count)

    async def learn_subscription(self, call: LearnSubscription) -> None:
        self.learned.append(call.subscription_id)

    async def find_time(self, call: FindTime) -> tuple[int, int]:
        log = self.records.get((call.topic.topic_id, call.partition), ())
        found = ((r.offset, r.sent_at_ms) for r in log if r.sent_at_ms >= call.timestamp_ms)
        return next(found, (-1, -1))

    async def lease(self, call: Lease) -> Sequence[Delivery]:
        self._check()
        self.asked.append(call.request)
        deliveries: list[Delivery] = []
        for (topic_id, partition), log in self.records.items():
            for record in log:
                place = (topic_id, partition, record.offset)
                if topic_id != call.topic.topic_id or place in self.leased:
                    continue
                if len(deliveries) < call.request.count:
                    self.leased.add(place)
                    deliveries.append(Delivery(partition, record, next(self._seq), 1, 5))
        return deliveries

    async def ack(self, call: Ack) -> Results:
        self._check(call.partition)
        key = (call.topic.topic_id, call.partition)
        gone = {claim.offset for claim in call.claims}
        self.records[key] = [r for r in self.records[key] if r.offset not in gone]
        return [None] * len(call.claims)

    async def extend(self, call: Extend) -> Results:
        self._check(call.partition)
        records = self.records[call.topic.topic_id, call.partition]
        offsets = {record.offset for record in records}
        return [None if claim.offset in offsets else NotLeased() for claim, _ in call.claims]

    async def purge(self, call: Purge) -> None:
        self._check()
        for topic_id, partition in list(self.records):
            if topic_id == call.topic.topic_id:
                del self.records[topic_id, partition]

    async def stats(self, call: Stats) -> QueueStats:
        found = [log for (id_, _), log in self.records.items() if id_ == call.topic.topic_id]
        return QueueStats(visible=sum(len(log) for log in found))

    async def start_move(self, call: StartMove) -> None:
        self.tasks.insert(0, call.task)

    async def cancel_move(self, call: CancelMove) -> MoveTask | None:
        return next((task for task in self.tasks if task.task_id == call.task_id), None)

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


class MemoryIdentities:
    """Whoever was put in; every change raises the epoch."""

    def __init__(self) -> None:
        self.epoch = 1
        self.used: list[tuple[str, int]] = []
        self._tenants: dict[str, Tenant] = {}
        self._users: dict[tuple[str, str], User] = {}
        self._keys: dict[str, AccessKey] = {}
        self._secrets: dict[str, bytes] = {}
        self.opened = 0  # how often a secret was asked for

    def put(
        self,
        account: str,
        user: str,
        key_id: str,
        secret: str,
        *policies: str,
        status: KeyStatus = KeyStatus.ACTIVE,
        is_suspended: bool = False,
    ) -> None:
        texts = {f"policy-{number}": text for number, text in enumerate(policies)}
        self._tenants[account] = Tenant(account, f"tenant-{account}", 0, is_suspended)
        self._users[account, user] = User(account, user, 0, policies=texts)
        self._keys[key_id] = AccessKey(key_id, account, user, b"sealed", 0, status)
        self._secrets[key_id] = secret.encode()
        self.epoch += 1

    def enter(self, tenant: Tenant) -> None:
        self._tenants[tenant.account] = tenant
        self.epoch += 1

    def remove_user(self, account: str, user: str) -> None:
        """The key stays, as when a watch brings one change before the other."""
        del self._users[account, user]
        self.epoch += 1

    def tenant(self, account: str) -> Tenant | None:
        return self._tenants.get(account)

    def tenants(self) -> Sequence[Tenant]:
        return list(self._tenants.values())

    def user(self, account: str, name: str) -> User | None:
        return self._users.get((account, name))

    def users(self, account: str) -> Sequence[User]:
        return [user for (owner, _), user in self._users.items() if owner == account]

    def key(self, key_id: str) -> AccessKey | None:
        return self._keys.get(key_id)

    def keys(self, account: str, user: str) -> Sequence[AccessKey]:
        return [k for k in self._keys.values() if (k.account, k.user) == (account, user)]

    def secret(self, key: AccessKey) -> bytes:
        self.opened += 1
        return self._secrets[key.key_id]

    def scram(self, account: str, user: str, mechanism: str) -> ScramCredential | None:
        assert not self._users, "no HTTP client has a password"
        return None

    def iteration_counts(self, mechanism: str) -> Mapping[str, Mapping[int, int]]:
        assert not self._users, "no HTTP client has a password"
        return {}

    def acls(self, account: str) -> AclIndex | None:
        assert not self._users, "only the Kafka view looks at access rules"
        return None

    def note_used(self, key: AccessKey, *, now_ms: int) -> None:
        self.used.append((key.key_id, now_ms))


class Rig:
    """A frontend with everything around it in memory, and short ways to ask it things."""

    def __init__(
        self,
        config: FrontendConfig | None = None,
        *,
        identities: MemoryIdentities | None = None,
        has_quotas: bool = False,
        backend: MemoryBackend | None = None,
    ) -> None:
        self.backend = backend or MemoryBackend()
        self.catalog = MemoryCatalog()
        self.subscriptions = MemorySubscriptions()
        self.quotas = None
        if has_quotas:
            self.quotas = TenantQuotas(identities or MemoryIdentities(), self.catalog)
        self.clock = MemoryClock()
        self.meter = MemoryMeter()
        chance = itertools.count(1)
        ticks = itertools.count()
        self.frontend = Frontend(
            broker=self.backend,
            everything=self.catalog,
            subscriptions=self.subscriptions,
            ring=MemoryRing(),
            token_key=b"k" * 32,
            clock=self.clock,
            config=config or FrontendConfig(),
            meter=self.meter,
            entropy=lambda count: next(chance).to_bytes(count, "big"),
            # Each request begins at the clock's time and takes half a second.
            perf=lambda: self.clock.now_ms / 1_000 + next(ticks) % 2 * 0.5,
            identities=identities or MemoryIdentities(),
            quotas=self.quotas,
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
