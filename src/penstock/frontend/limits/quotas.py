"""Enforces the quotas of tenants: numbers of queues, partitions, stored bytes, connections and
waiting long polls. ``model/quotas.py`` has the defaults. An account without a tenant has no quotas.
Stored bytes are summed every few seconds, and each append reduces the bytes that are left until the
next sum. Bytes and long polls count for the owner of the queue, connections for the caller.

A quota applies to all frontends together: at each frontend, a tenant may use the quota divided by
the number of live frontends, but at least one."""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

from penstock.cursor.tenants import NO_QUOTAS, CoordinatorUsage
from penstock.model import quotas as model
from penstock.model.calls import BrokerPort, LogBytes
from penstock.model.errors import PenstockError, QuotaExceeded, Throttled, TopicNotFound
from penstock.model.identity import Tenant
from penstock.model.names import ACCOUNT_DEFAULT, is_internal
from penstock.model.ports import Catalog, Identities
from penstock.model.topic import Topic
from penstock.net.listener import Peer

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 3.0
LOOK_ROUNDS: Final = 10  # rounds of REFRESH_SECONDS between sums of a tenant far from its quota
SUMMED_AT_ONCE: Final = 200  # topics summed before other tasks may run
WAIT_RETRY_MS: Final = 1_000
CONNECTION_RETRY_MS: Final = 5_000

T = TypeVar("T")
Counts = Counter[tuple[str, model.Quota]]  # by account


@dataclass(slots=True)
class _StoredSum:
    most: int
    room: int  # bytes that were left for this frontend at the time of the sum
    rounds: int = 0  # of ``_keep_summing`` since the sum


@dataclass(eq=False)
class TenantQuotas:
    identities: Identities
    catalog: Catalog
    _: KW_ONLY
    own_account: str = ACCOUNT_DEFAULT
    # The limits of this node for all tenants together.
    bounds: Mapping[model.Quota, int] = field(default_factory=dict)
    coordinators: CoordinatorUsage = NO_QUOTAS
    subscriptions: Callable[[str], int] = lambda _account: 0  # number of an account

    def __post_init__(self) -> None:
        self.rooms: dict[str, int] = {}  # bytes left, of accounts with a quota of stored bytes
        self.rejected: Counter[tuple[str, str]] = Counter()  # by account and quota
        self._logged: dict[tuple[str, str], int] = {}  # rejections that were logged
        self._sizes: dict[str, int] = {}  # bytes by topic, of accounts with a quota
        self._stored: dict[str, int] = {}  # bytes by account
        self._sums: dict[str, _StoredSum] = {}  # by account
        self._counts: Counts = Counter()  # topics and partitions in the catalog
        self._reserved: Counts = Counter()  # being created now
        self._waits: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()
        self._accounts_on: dict[Peer, set[str]] = {}  # for which each connection is counted
        self._frontend_count = 1
        self._task: asyncio.Task[None] | None = None
        for topic in self.catalog.all_topics():
            self._count(None, topic)
        self.catalog.on_change(self._count)

    def start(self, broker: BrokerPort) -> None:
        self._task = asyncio.create_task(self._keep_summing(broker), name="stored bytes")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def share_among(self, frontend_count: int) -> None:
        self._frontend_count = max(1, frontend_count)
        for each in self._sums.values():
            each.rounds = LOOK_ROUNDS

    def _most(self, tenant: Tenant | None, quota: model.Quota) -> int:
        bound = self.bounds.get(quota, model.NO_LIMIT)
        return model.most_of(tenant, quota, own_account=self.own_account, bound=bound)

    def _here(self, tenant: Tenant | None, quota: model.Quota) -> int:
        """Return the part of a tenant's quota that may be used at this frontend."""
        most = model.most_of(tenant, quota, own_account=self.own_account)
        part = max(1, most // self._frontend_count)
        return most if most == model.NO_LIMIT else min(part, self._most(tenant, quota))

    def used(self, account: str) -> dict[str, int]:
        here = {
            model.QUEUES: self._counts[account, model.QUEUES],
            model.PARTITIONS: self._counts[account, model.PARTITIONS],
            model.STORED_BYTES: self._stored.get(account, 0),
            model.CONNECTIONS: self._connections[account],
            model.WAITS: self._waits[account],
            model.SUBSCRIPTIONS: self.subscriptions(account),
        }
        others = (model.GROUPS, model.OFFSET_BYTES, model.TRANSACTIONAL_IDS)
        used = here | {quota: self.coordinators.used(account, quota) for quota in others}
        return {quota.field: count for quota, count in used.items()}

    def shares(self) -> dict[str, int]:
        bounds, quotas = self.bounds, [quota for quota in model.QUOTAS if quota in self.bounds]
        return {each.field: model.share_of(bounds[each], each.percent) for each in quotas}

    @contextmanager
    def adding(self, account: str, *, topics: int = 0, partitions: int = 0) -> Iterator[None]:
        """Reserve topics and partitions in the quota while they are created."""
        added = {model.QUEUES: topics, model.PARTITIONS: partitions}
        tenant = self.identities.tenant(account)
        for quota, count in added.items():
            most, key = self._most(tenant, quota), (account, quota)
            used = self._counts[key] + self._reserved[key]
            if count and used + count > most:
                self.rejected[account, quota.name] += 1
                raise QuotaExceeded(quota.exceeded(used, most, count))
        for quota, count in added.items():
            _add(self._reserved, (account, quota), count)
        try:
            yield
        finally:
            for quota, count in added.items():
                _add(self._reserved, (account, quota), -count)

    def _count(self, before: Topic | None, after: Topic | None) -> None:
        for topic, change in ((before, -1), (after, 1)):
            if topic is None or (is_internal(topic.name) and not topic.is_queue):
                continue
            _add(self._counts, (topic.account, model.QUEUES), change)
            if not topic.is_share:
                count = change * topic.partition_count
                _add(self._counts, (topic.account, model.PARTITIONS), count)

    def take_room(self, account: str, size_bytes: int) -> None:
        """Subtract the bytes of an append from the bytes that an account may still store."""
        left = self.rooms[account]
        if size_bytes > left:
            self.rejected[account, model.STORED_BYTES.name] += 1
            last = self._sums[account]
            last.rounds = LOOK_ROUNDS  # messages may have been deleted
            used = self._stored[account] + last.room - left  # without appends at other frontends
            raise QuotaExceeded(
                f"Storage quota exceeded: {used:,} of {last.most:,} bytes used, {max(0, left):,}"
                f" left at this frontend, {size_bytes:,} needed. Delete messages or queues, or have"
                " an operator raise the quota (penstock quota set --stored-bytes-max)."
            )
        self.rooms[account] = left - size_bytes

    async def refresh(self, broker: BrokerPort, *, is_due: bool = True) -> None:
        """Sum the stored bytes of accounts that have a quota for them. If ``is_due`` is False, skip
        accounts that were summed recently and have used less than half of the bytes left."""
        tenants = self.identities.tenants()
        most_by_account = {one.account: self._most(one, model.STORED_BYTES) for one in tenants}
        limited = {key: most for key, most in most_by_account.items() if most != model.NO_LIMIT}
        for account in self.rooms.keys() - limited.keys():
            del self.rooms[account], self._sums[account], self._stored[account]
        due = (key for key, most in limited.items() if is_due or self._is_sum_due(key, most))
        stored = dict.fromkeys(due, 0)
        before, self._sizes = self._sizes, {}
        topics = self.catalog.all_topics() if limited else ()
        for number, topic in enumerate(topics):
            if number % SUMMED_AT_ONCE == SUMMED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if topic.account not in limited or topic.is_share:
                continue
            size_bytes = before.get(topic.topic_id)
            if topic.account in stored:
                found = await _stored_bytes(broker, topic)
                if found is not None:  # else a leader did not reply: keep the last size
                    size_bytes = found
                stored[topic.account] += size_bytes or 0
            if size_bytes is not None:
                self._sizes[topic.topic_id] = size_bytes
        for account, size_bytes in stored.items():
            room = (limited[account] - size_bytes) // self._frontend_count
            self._stored[account], self.rooms[account] = size_bytes, room
            self._sums[account] = _StoredSum(limited[account], room)

    def _is_sum_due(self, account: str, most: int) -> bool:
        last = self._sums.get(account)
        if last is None or last.most != most or self.rooms[account] <= last.room // 2:
            return True
        last.rounds += 1
        return last.rounds >= LOOK_ROUNDS

    async def _keep_summing(self, broker: BrokerPort) -> None:
        for number in itertools.count():
            try:
                if number % LOOK_ROUNDS == 0:
                    self._log_rejected()
                await self.refresh(broker, is_due=False)
            except Exception as error:  # a bug; retried in the next round
                log.error("counting stored bytes for quotas failed", exc_info=error)
            await asyncio.sleep(REFRESH_SECONDS)

    def _log_rejected(self) -> None:
        for (account, name), count in self.all_rejected():
            new = count - self._logged.get((account, name), 0)
            if new:
                self._logged[account, name] = count
                used = self.used(account).get(f"{name}_max")
                facts = {"tenant": account, "quota": name, "used": used, "refused": new}
                log.warning("quota exceeded", extra=facts)

    def begin_wait(self, account: str) -> bool:
        """Count a waiting long poll. Returns True if ``end_wait`` must be called afterwards."""
        most = self._here(self.identities.tenant(account), model.WAITS)
        if most == model.NO_LIMIT:
            return False
        count = self._waits[account]
        if count >= most:
            self.rejected[account, model.WAITS.name] += 1
            text = f"Quota exceeded: {count:,} of {most:,} allowed long polls of this tenant are"
            text += " waiting at this frontend. Retry later, or have an operator raise the quota"
            text += " (penstock quota set --waits-max)."
            raise Throttled(text, retry_after_ms=WAIT_RETRY_MS)
        self._waits[account] = count + 1
        return True

    def end_wait(self, account: str) -> None:
        _add(self._waits, account, -1)

    def claim(self, connection: Peer, tenant: Tenant) -> None:
        """Count a connection for the tenant that uses it. If the tenant has too many connections,
        raise Throttled and close the connection after the reply."""
        accounts = self._accounts_on.get(connection, set())
        most = self._here(tenant, model.CONNECTIONS)
        if tenant.account in accounts or most == model.NO_LIMIT:
            connection.counted_for = tenant
            return
        count = self._connections[tenant.account]
        if count >= most:
            self.rejected[tenant.account, model.CONNECTIONS.name] += 1
            connection.close_after_reply()
            text = f"Quota exceeded: this tenant has {count:,} of {most:,} connections to this"
            text += " frontend. Close some, or have an operator raise the quota (penstock quota set"
            raise Throttled(f"{text} --connections-max).", retry_after_ms=CONNECTION_RETRY_MS)
        if not accounts:
            self._accounts_on[connection] = accounts
            connection.when_lost(lambda: self._release(connection))
        accounts.add(tenant.account)
        connection.counted_for = tenant
        self._connections[tenant.account] = count + 1

    def _release(self, connection: Peer) -> None:
        for account in self._accounts_on.pop(connection, ()):
            _add(self._connections, account, -1)

    def all_rejected(self) -> Iterator[tuple[tuple[str, str], int]]:
        yield from self.rejected.items()
        yield from self.coordinators.refused.items()


def _add(counts: Counter[T], key: T, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]


async def _stored_bytes(broker: BrokerPort, topic: Topic) -> int | None:
    size_bytes = 0
    try:
        for partition in range(topic.partition_count):
            size_bytes += await broker.call(LogBytes(topic, partition))
    except TopicNotFound:  # deleted a moment ago
        return 0
    except PenstockError:
        return None
    return size_bytes
