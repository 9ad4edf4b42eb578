"""Wrappers through which frontends call the broker and the metadata service. They check the quotas
of tenants and limit how many changes of metadata run at the same time (``Bulkhead``)."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar, cast

from penstock.calls.bulkhead import Bulkhead
from penstock.calls.callees import BrokerWrapper
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.metadata.security.identities import StoredIdentities
from penstock.model import calls
from penstock.model.acls import Acl
from penstock.model.calls import BrokerCall, BrokerPort, R
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.message import Message
from penstock.model.names import SHARE_MARK
from penstock.model.ports import Catalog
from penstock.model.subscription import SHARE_PREFIX, owner_of_share
from penstock.model.topic import Topic

P = TypeVar("P")
Change = Callable[[Topic], Topic]
Appending = calls.Append | calls.Publish | calls.AppendBatches

CHANGES: Final = "changes of queues and topics in progress"
ACLS_PER_CALL_MAX: Final = 320  # ten transactions of the metadata store


class LimitedBroker(BrokerWrapper):
    """A broker that checks the quotas of stored bytes, long polls and shares (``topic:group``)."""

    def __init__(self, broker: BrokerPort, metadata: Bulkhead, quotas: TenantQuotas) -> None:
        super().__init__(broker)
        self.find_share = self._find_share
        self._changes = metadata.shares
        self._quotas = quotas
        self._rooms = quotas.rooms
        self._limited: dict[type[BrokerCall[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            calls.Append: self._append,
            calls.Publish: self._append,
            calls.AppendBatches: self._append,
            calls.Lease: self._lease,
            calls.OpenShare: self._open_share,
            calls.CloseShare: self._close_share,
        }

    def call(self, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        limited = self._limited.get(type(call))
        return self._broker.call(call) if limited is None else limited(call)

    def _find_share(self, source: Topic, group: str) -> Topic | None:
        """Return a share that clients may use: not one of a subscription."""
        return None if owner_of_share(group) else self._broker.find_share(source, group)

    # Most tenants have no quota of stored bytes: their calls need no additional coroutine.

    def _append(self, call: Appending) -> Coroutine[Any, Any, Any]:
        is_limited = call.topic.account in self._rooms
        return self._store(call) if is_limited else self._broker.call(call)

    async def _store(self, call: Appending) -> Any:
        if isinstance(call, calls.AppendBatches):
            size_bytes = sum(map(len, call.batches))
        else:
            size_bytes = _size_of(call.messages)
        self._quotas.take_room(call.topic.account, size_bytes)
        return await self._broker.call(call)

    def _lease(self, call: calls.Lease) -> Coroutine[Any, Any, Any]:
        return self._broker.call(call) if call.wait_ms <= 0 else self._wait(call)

    async def _wait(self, call: calls.Lease) -> Any:
        is_counted = self._quotas.begin_wait(call.topic.account)
        try:
            return await self._broker.call(call)
        finally:
            if is_counted:
                self._quotas.end_wait(call.topic.account)

    async def _open_share(self, call: calls.OpenShare) -> Topic:
        known = self.find_share(call.topic, call.group)
        if known is not None:
            return known
        if call.group.startswith(SHARE_PREFIX):
            raise InvalidRequest(f"The name of a share group cannot begin with {SHARE_PREFIX}.")
        account = call.topic.account
        with self._changes.holding(account, CHANGES), self._quotas.adding(account, topics=1):
            return await self._broker.call(call)

    async def _close_share(self, call: calls.CloseShare) -> bool:
        if owner_of_share(call.group):
            return False
        with self._changes.holding(call.topic.account, CHANGES):
            return await self._broker.call(call)


def _size_of(messages: Sequence[Message]) -> int:
    size = 0
    for message in messages:
        size += len(message.body)
        if message.attributes:
            size += sum(len(n) + len(a.value) for n, a in message.attributes.items())
    return size


class _Guarded:
    def __init__(self, port: Any, metadata: Bulkhead) -> None:
        self._port = port
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found
        if iscoroutinefunction(found):
            found = partial(self._change, found)
        setattr(self, name, found)  # so that ``__getattr__`` is called once per name
        return found

    async def _change(self, change: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        return await self._metadata.call(partial(change, *args, **named))


def guard(port: P, metadata: Bulkhead) -> P:
    """Return a wrapper of ``port`` whose coroutine methods are called through the bulkhead."""
    return cast(P, _Guarded(port, metadata))


class _GuardedIdentities(_Guarded):
    async def delete_tenant(self, account: str) -> None:
        if not self.users(account):  # otherwise the tenant and its rules stay
            await self.remove_acls(account, self.acls(account) or ())
        await self._change(self._port.delete_tenant, account)

    async def remove_acls(self, account: str, rules: Iterable[Acl]) -> None:
        """Remove ACL rules in several calls, because one call with all of them could time out."""
        left = list(rules)
        for start in range(0, len(left), ACLS_PER_CALL_MAX):
            some = left[start : start + ACLS_PER_CALL_MAX]
            await self._change(self._port.remove_acls, account, some)


def guard_identities(identities: StoredIdentities, metadata: Bulkhead) -> StoredIdentities:
    return cast(StoredIdentities, _GuardedIdentities(identities, metadata))


class GuardedCatalog:
    """A catalog that checks changes against quotas and makes them through the bulkhead."""

    def __init__(self, catalog: Catalog, metadata: Bulkhead, quotas: TenantQuotas) -> None:
        self._catalog = catalog
        self._metadata = metadata
        self._quotas = quotas
        self._changing = partial(metadata.shares.holding, what=CHANGES)
        # Called for every message, so not wrapped:
        self.find = catalog.find
        self.find_arn = catalog.find_arn
        self.find_id = catalog.find_id
        self.find_sns, self.sns_topics = catalog.find_sns, catalog.sns_topics
        self.topics = catalog.topics
        self.all_topics = catalog.all_topics
        self.recently_deleted = catalog.recently_deleted
        self.tombstone = catalog.tombstone
        self.on_change = catalog.on_change

    async def create(self, topic: Topic) -> Topic:
        adding = self._quotas.adding(topic.account, topics=1, partitions=topic.partition_count)
        with self._changing(topic.account), adding:
            return await self._metadata.call(lambda: self._catalog.create(topic))

    async def change(self, account: str, region: str, name: str, change: Change) -> Topic:
        with self._changing(account), ExitStack() as room:

            def checked(before: Topic) -> Topic:
                after = change(before)
                room.pop_all().close()  # releases the reservation of an earlier attempt
                added = max(0, after.partition_count - before.partition_count)
                room.enter_context(self._quotas.adding(account, partitions=added))
                return after

            change_ = partial(self._catalog.change, account, region, name, checked)
            return await self._metadata.call(change_)

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        with self._changing(account):
            delete = partial(self._catalog.delete, account, region, name, now_ms=now_ms)
            return await self._metadata.call(delete)


class CatalogView:
    """The topics that one protocol sees. SQS sees queues only. Kafka sees queues and topics, but no
    shares (queues that deliver the messages of a topic), which have no records of their own."""

    def __init__(self, everything: Catalog, *, shows: Callable[[Topic], bool]) -> None:
        self.everything = everything
        self._find = everything.find
        self._shows = shows
        self.recently_deleted = everything.recently_deleted
        self.create = everything.create
        self.on_change = everything.on_change
        self.find_sns, self.sns_topics = everything.find_sns, everything.sns_topics

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

    async def change(self, account: str, region: str, name: str, change: Change) -> Topic:
        self._check(account, region, name)
        return await self.everything.change(account, region, name, change)

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        self._check(account, region, name)
        return await self.everything.delete(account, region, name, now_ms=now_ms)

    def _check(self, account: str, region: str, name: str) -> None:
        if self.find(account, region, name) is None:
            raise TopicNotFound(name)

    def _shown(self, topic: Topic | None) -> Topic | None:
        return topic if topic is None or self._shows(topic) else None


def queues_of(everything: Catalog) -> CatalogView:
    """Return all queues, without the shares of subscriptions, which only the server uses."""

    def is_pushed(topic: Topic) -> bool:
        return owner_of_share(topic.name.partition(SHARE_MARK)[2]) is not None

    return CatalogView(
        everything,
        shows=lambda topic: topic.is_queue and (topic.source_id is None or not is_pushed(topic)),
    )


def streams_of(everything: Catalog) -> CatalogView:
    return CatalogView(everything, shows=lambda topic: topic.source_id is None)
