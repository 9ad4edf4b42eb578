"""How much: the queues, the partitions, the stored bytes, the connections and the parked long polls
that a tenant may have, at all frontends together. Defaults, and the largest share of each bound,
are in ``model/quotas.py``. An account without a tenant has no quotas.

Nothing is counted up when a request asks: topics are counted as the catalog changes, connections
and long polls as they come and go. What is stored is summed up by a job every few seconds, from
numbers that the logs have at hand; between two rounds each append takes its size from the room that
was left. A queue belongs to the owner of its account, who pays for what others are allowed there:
bytes and long polls are the owner's, connections those of whoever asks on them.

Queues and partitions are counted where all frontends see them, in the catalog; several that are
made at the same moment at several frontends may be more by so many. Of the rest each frontend gives
out its part by how many are alive: of connections and long polls, and of the bytes that there was
room for at the last look. A part is one at least, or a tenant would be served at some frontends
only."""

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from penstock.cursor.tenants import FREE, TenantRooms
from penstock.model.errors import PenstockError, QuotaExceeded, Throttled, TopicNotFound
from penstock.model.identity import Tenant
from penstock.model.names import ACCOUNT_DEFAULT, is_internal
from penstock.model.ports import Catalog, Identities, Streams
from penstock.model.quotas import (
    CONNECTIONS,
    GROUPS,
    NO_LIMIT,
    OFFSET_BYTES,
    PARTITIONS,
    QUEUES,
    QUOTAS,
    STORED_BYTES,
    TRANSACTIONAL_IDS,
    WAITS,
    Quota,
    most_of,
    share_of,
)
from penstock.model.topic import Topic
from penstock.net.listener import Peer

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 3.0
LOOK_ROUNDS: Final = 10  # rounds of REFRESH_SECONDS until a tenant far from its quota is summed up
SUMMED_AT_ONCE: Final = 200  # topics asked before others get their turn
WAIT_RETRY_MS: Final = 1_000
CONNECTION_RETRY_MS: Final = 5_000


class _Look:
    """The last sum of the bytes that a tenant stores."""

    __slots__ = ("most", "room", "rounds")

    def __init__(self, most: int, room: int) -> None:
        self.most = most
        self.room = room  # of this frontend
        self.rounds = 0  # since then


class TenantQuotas:
    def __init__(
        self,
        identities: Identities,
        catalog: Catalog,
        *,
        own_account: str = ACCOUNT_DEFAULT,
        bounds: Mapping[Quota, int] | None = None,
        coordinators: TenantRooms = FREE,
    ) -> None:
        """``bounds``: what this node has for all tenants together, where a share counts.
        ``coordinators`` count groups and transactional ids."""
        self._coordinators = coordinators
        self._identities = identities
        self.own_account = own_account
        self._bounds = dict(bounds or {})
        self._catalog = catalog
        self.rooms: dict[str, int] = {}  # bytes left, of accounts that have a quota of them
        self.refused: dict[tuple[str, str], int] = {}  # by account and the quota's name
        self._told: dict[tuple[str, str], int] = {}  # of these, in the log
        self._sizes: dict[str, int] = {}  # of topics whose account has a quota, at the last look
        self._stored: dict[str, int] = {}  # by account, at the last look
        self._looks: dict[str, _Look] = {}  # by account, of those in ``rooms``
        self._counts: dict[tuple[str, Quota], int] = {}  # of the catalog, by account
        self._coming: dict[tuple[str, Quota], int] = {}  # being made at the moment
        self._wait_counts: dict[str, int] = {}
        self._connection_counts: dict[str, int] = {}
        self._accounts_on: dict[Peer, set[str]] = {}  # those counted for a connection
        self._frontend_count = 1
        self._task: asyncio.Task[None] | None = None
        for topic in catalog.all_topics():
            self._count(None, topic)
        catalog.on_change(self._count)

    def start(self, streams: Streams) -> None:
        """Begin to look at what is stored."""
        self._task = asyncio.create_task(self._keep_summing(streams), name="stored bytes")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def share_among(self, frontend_count: int) -> None:
        """So many are alive, this one included. Who is there already stays; room for bytes is
        divided anew with the next look."""
        self._frontend_count = max(1, frontend_count)
        for look in self._looks.values():
            look.rounds = LOOK_ROUNDS

    def _part_of(self, most: int) -> int:
        return max(1, most // self._frontend_count)

    def _most(self, tenant: Tenant | None, quota: Quota) -> int:
        bound = self._bounds.get(quota, NO_LIMIT)
        return most_of(tenant, quota, own_account=self.own_account, bound=bound)

    def _here(self, tenant: Tenant | None, quota: Quota) -> int:
        """This frontend's part of a quota that is divided. A share of a bound of this node is not
        divided."""
        most = most_of(tenant, quota, own_account=self.own_account)
        return most if most == NO_LIMIT else min(self._part_of(most), self._most(tenant, quota))

    def used(self, account: str) -> dict[str, int]:
        """How much the account has now, by the quota's field, as far as it is counted."""
        return {
            QUEUES.field: self._counts.get((account, QUEUES), 0),
            PARTITIONS.field: self._counts.get((account, PARTITIONS), 0),
            STORED_BYTES.field: self._stored.get(account, 0),
            CONNECTIONS.field: self._connection_counts.get(account, 0),
            WAITS.field: self._wait_counts.get(account, 0),
            **{
                quota.field: self._coordinators.used(account, quota)
                for quota in (GROUPS, OFFSET_BYTES, TRANSACTIONAL_IDS)
            },
        }

    def shares(self) -> dict[str, int]:
        """The largest share of one tenant by the quota's field, where this node has a bound."""
        return {
            quota.field: share_of(self._bounds[quota], quota.percent)
            for quota in QUOTAS
            if quota in self._bounds
        }

    # ── Topics ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def adding(self, account: str, *, topics: int = 0, partitions: int = 0) -> Iterator[None]:
        """Reserve room for topics and partitions while they are made. Raises QuotaExceeded when
        the account has as many as it may, those that are just being made included."""
        added = {QUEUES: topics, PARTITIONS: partitions}
        tenant = self._identities.tenant(account)
        for quota, count in added.items():
            most, key = self._most(tenant, quota), (account, quota)
            used = self._counts.get(key, 0) + self._coming.get(key, 0)
            if count and used + count > most:
                self._refuse(account, quota.name)
                raise QuotaExceeded(quota.exceeded(used, most, count))
        for quota, count in added.items():
            _add(self._coming, (account, quota), count)
        try:
            yield
        finally:
            for quota, count in added.items():
                _add(self._coming, (account, quota), -count)

    def _count(self, before: Topic | None, after: Topic | None) -> None:
        for topic, change in ((before, -1), (after, 1)):
            if topic is None or (is_internal(topic.name) and not topic.is_queue):
                continue
            _add(self._counts, (topic.account, QUEUES), change)
            if not topic.is_share:
                _add(self._counts, (topic.account, PARTITIONS), change * topic.partition_count)

    # ── Stored bytes ─────────────────────────────────────────────────────────────────────────

    def take_room(self, account: str, size_bytes: int) -> None:
        """For an append by an account in ``rooms``. Raises QuotaExceeded."""
        left = self.rooms[account]
        if size_bytes > left:
            self._refuse(account, "stored_bytes")
            look = self._looks[account]
            look.rounds = LOOK_ROUNDS  # something may have been deleted
            used = self._stored[account] + look.room - left  # what came in elsewhere is not known
            raise QuotaExceeded(
                f"Storage quota exceeded: {used:,} of {look.most:,} bytes used, {max(0, left):,}"
                f" left at this frontend, {size_bytes:,} needed. Delete messages or queues, or have"
                " an operator raise the quota (penstock quota set --stored-bytes-max)."
            )
        self.rooms[account] = left - size_bytes

    async def refresh(self, streams: Streams, *, is_due: bool = True) -> None:
        """Sum up anew what accounts with such a quota store. ``streams`` knows all partitions.
        Not ``is_due``: only accounts whose room has shrunk by half since their last sum, or that
        were not summed up for LOOK_ROUNDS rounds. A sum asks the leader of every partition."""
        limited: dict[str, int] = {}
        for tenant in self._identities.tenants():
            most = self._most(tenant, STORED_BYTES)
            if most != NO_LIMIT:
                limited[tenant.account] = most
        for account in self.rooms.keys() - limited.keys():
            del self.rooms[account], self._looks[account], self._stored[account]
        stored = {
            account: 0
            for account, most in limited.items()
            if is_due or self._is_look_due(account, most)
        }
        before, self._sizes = self._sizes, {}
        topics = self._catalog.all_topics() if limited else ()
        for number, topic in enumerate(topics):
            if number % SUMMED_AT_ONCE == SUMMED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if topic.account not in limited or topic.is_share:
                continue
            size_bytes = before.get(topic.topic_id)
            if topic.account in stored:
                found = await _stored_bytes(streams, topic)
                if found is not None:  # else nobody can tell: it has not become smaller
                    size_bytes = found
                stored[topic.account] += size_bytes or 0
            if size_bytes is not None:
                self._sizes[topic.topic_id] = size_bytes
        for account, size_bytes in stored.items():
            room = (limited[account] - size_bytes) // self._frontend_count
            self._stored[account], self.rooms[account] = size_bytes, room
            self._looks[account] = _Look(limited[account], room)

    def _is_look_due(self, account: str, most: int) -> bool:
        look = self._looks.get(account)
        if look is None or look.most != most or self.rooms[account] <= look.room // 2:
            return True
        look.rounds += 1
        return look.rounds >= LOOK_ROUNDS

    async def _keep_summing(self, streams: Streams) -> None:
        for number in itertools.count():
            try:
                if number % LOOK_ROUNDS == 0:
                    self._tell_refused()
                await self.refresh(streams, is_due=False)
            except Exception as error:  # of ours; the next round tries again
                log.error("stored bytes not summed up", exc_info=error)
            await asyncio.sleep(REFRESH_SECONDS)

    def _tell_refused(self) -> None:
        """Log what was refused since the last time: one line per tenant and quota."""
        for (account, name), count in self.all_refused():
            before = self._told.get((account, name), 0)
            if count != before:
                self._told[account, name] = count
                used = self.used(account).get(f"{name}_max")
                log.warning(
                    "quota exceeded",
                    extra={
                        "tenant": account,
                        "quota": name,
                        "used": used,
                        "refused": count - before,
                    },
                )

    # ── Parked long polls ────────────────────────────────────────────────────────────────────

    def begin_wait(self, account: str) -> bool:
        """Whether it is counted, and has to be ended. Raises Throttled."""
        most = self._here(self._identities.tenant(account), WAITS)
        if most == NO_LIMIT:
            return False
        count = self._wait_counts.get(account, 0)
        if count >= most:
            self._refuse(account, "waits")
            raise Throttled(
                f"Quota exceeded: {count:,} of {most:,} receive calls of this tenant wait at this"
                " frontend. Retry later, or have an operator raise the quota (penstock quota set"
                " --waits-max).",
                retry_after_ms=WAIT_RETRY_MS,
            )
        self._wait_counts[account] = count + 1
        return True

    def end_wait(self, account: str) -> None:
        _less(self._wait_counts, account)

    # ── Connections ──────────────────────────────────────────────────────────────────────────

    def claim(self, connection: Peer, tenant: Tenant) -> None:
        """The tenant asks on this connection, which is one of its own from now on. Raises
        Throttled when it has too many, and then the connection ends with the answer. A tenant
        without a limit is not counted. ``throttle`` calls this once for a connection and a tenant,
        and again when the tenant has changed."""
        accounts = self._accounts_on.get(connection)
        if accounts is not None and tenant.account in accounts:
            connection.counted_for = tenant
            return
        most = self._here(tenant, CONNECTIONS)
        if most == NO_LIMIT:
            connection.counted_for = tenant
            return
        count = self._connection_counts.get(tenant.account, 0)
        if count >= most:
            self._refuse(tenant.account, "connections")
            connection.close_when_answered()
            raise Throttled(
                f"Quota exceeded: this tenant has {count:,} of {most:,} connections to this"
                " frontend. Close some, or have an operator raise the quota (penstock quota set"
                " --connections-max).",
                retry_after_ms=CONNECTION_RETRY_MS,
            )
        if accounts is None:
            accounts = self._accounts_on[connection] = set()
            connection.when_lost(lambda: self._release(connection))
        accounts.add(tenant.account)
        connection.counted_for = tenant
        self._connection_counts[tenant.account] = count + 1

    def _release(self, connection: Peer) -> None:
        for account in self._accounts_on.pop(connection, ()):
            _less(self._connection_counts, account)

    def all_refused(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Refusals by account and quota, those of the coordinators included."""
        yield from self.refused.items()
        yield from self._coordinators.refused.items()

    def _refuse(self, account: str, quota: str) -> None:
        self.refused[account, quota] = self.refused.get((account, quota), 0) + 1


def _add(counts: dict[tuple[str, Quota], int], key: tuple[str, Quota], change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


def _less(counts: dict[str, int], account: str) -> None:
    if counts[account] == 1:
        del counts[account]
    else:
        counts[account] -= 1


async def _stored_bytes(streams: Streams, topic: Topic) -> int | None:
    """Of a topic in all its partitions, each as its leader has it: numbers that the logs have at
    hand. None: of one of them it cannot be told now."""
    size_bytes = 0
    try:
        for partition in range(topic.partition_count):
            size_bytes += await streams.log_bytes(topic, partition)
    except TopicNotFound:  # deleted a moment ago
        return 0
    except PenstockError:
        return None
    return size_bytes
