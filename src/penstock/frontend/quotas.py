"""How much: the queues, the stored bytes, the connections and the parked long polls that a tenant
may have, at all frontends together. A tenant nobody has entered has no quotas.

Nothing is counted up when a request asks: topics are counted as the catalog changes, connections
and long polls as they come and go. What is stored is summed up by a job every few seconds, from
numbers that the logs have at hand; between two rounds each append takes its size from the room that
was left. A queue belongs to the owner of its account, who pays for what others are allowed there:
bytes and long polls are the owner's, connections those of whoever asks on them.

Queues are counted where all frontends see them, in the catalog; several that are made at the same
moment at several frontends may be more by so many. Of the rest each frontend gives out its part by
how many are alive: of connections and long polls, and of the bytes that there was room for at the
last look. A part is one at least, or a tenant would be served at some frontends only."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.model.errors import PenstockError, QuotaExceeded, Throttled, TopicNotFound
from penstock.model.identity import Tenant
from penstock.model.names import is_internal
from penstock.model.ports import Catalog, Identities, Streams
from penstock.model.topic import Topic
from penstock.net.listener import Peer

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 3.0
SUMMED_AT_ONCE: Final = 200  # topics asked before others get their turn
WAIT_RETRY_MS: Final = 1_000
CONNECTION_RETRY_MS: Final = 5_000


class TenantQuotas:
    def __init__(self, identities: Identities, catalog: Catalog) -> None:
        self._identities = identities
        self._catalog = catalog
        self.rooms: dict[str, int] = {}  # bytes left, of accounts that have a quota of them
        self.refused: dict[tuple[str, str], int] = {}  # by account and the quota's name
        self._sizes: dict[str, int] = {}  # of topics whose account has a quota, at the last look
        self._topic_counts: dict[str, int] = {}
        self._topics_coming: dict[str, int] = {}  # being made at the moment
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

    def _part_of(self, most: int) -> int:
        return max(1, most // self._frontend_count)

    # ── Topics ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def one_more_topic(self, account: str) -> Iterator[None]:
        """Around the making of one. Raises QuotaExceeded when there are as many as there may be,
        those that others are just making included."""
        tenant = self._identities.tenant(account)
        most = 0 if tenant is None else tenant.quotas.queues_max
        coming = self._topics_coming.get(account, 0)
        if most and self._topic_counts.get(account, 0) + coming >= most:
            self._refuse(account, "queues")
            raise QuotaExceeded(f"This account may have {most} queues and topics and has them.")
        self._topics_coming[account] = coming + 1
        try:
            yield
        finally:
            _less(self._topics_coming, account)

    def topic_count(self, account: str) -> int:
        return self._topic_counts.get(account, 0)

    def _count(self, before: Topic | None, after: Topic | None) -> None:
        for topic, change in ((before, -1), (after, 1)):
            if topic is None or (is_internal(topic.name) and not topic.is_queue):
                continue
            count = self._topic_counts.get(topic.account, 0) + change
            if count:
                self._topic_counts[topic.account] = count
            else:
                del self._topic_counts[topic.account]

    # ── Stored bytes ─────────────────────────────────────────────────────────────────────────

    def take_room(self, account: str, size_bytes: int) -> None:
        """For an append by an account in ``rooms``. Raises QuotaExceeded."""
        left = self.rooms[account]
        if size_bytes > left:
            self._refuse(account, "stored_bytes")
            raise QuotaExceeded(
                "This account stores as many bytes as it may: delete messages or queues first."
            )
        self.rooms[account] = left - size_bytes

    async def refresh(self, streams: Streams) -> None:
        """Sum up anew what accounts with such a quota store. ``streams`` knows all partitions."""
        limited = {
            tenant.account: tenant.quotas.stored_bytes_max
            for tenant in self._identities.tenants()
            if tenant.quotas.stored_bytes_max
        }
        stored = dict.fromkeys(limited, 0)
        before, self._sizes = self._sizes, {}
        topics = self._catalog.all_topics() if limited else ()
        for number, topic in enumerate(topics):
            if number % SUMMED_AT_ONCE == SUMMED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if topic.account in stored and not topic.is_share:
                size_bytes = await _stored_bytes(streams, topic)
                if size_bytes is None:  # it has not become smaller because nobody can tell
                    size_bytes = before.get(topic.topic_id, 0)
                stored[topic.account] += size_bytes
                self._sizes[topic.topic_id] = size_bytes
        for account in self.rooms.keys() - limited.keys():
            del self.rooms[account]
        for account, most in limited.items():
            self.rooms[account] = (most - stored[account]) // self._frontend_count

    async def _keep_summing(self, streams: Streams) -> None:
        while True:
            try:
                await self.refresh(streams)
            except Exception as error:  # of ours; the next round tries again
                log.error("stored bytes not summed up", exc_info=error)
            await asyncio.sleep(REFRESH_SECONDS)

    # ── Parked long polls ────────────────────────────────────────────────────────────────────

    def begin_wait(self, account: str) -> bool:
        """Whether it is counted, and has to be ended. Raises Throttled."""
        tenant = self._identities.tenant(account)
        if tenant is None or not tenant.quotas.waits_max:
            return False
        count = self._wait_counts.get(account, 0)
        if count >= self._part_of(tenant.quotas.waits_max):
            self._refuse(account, "waits")
            raise Throttled(
                f"{count} receive calls of this account wait here already: more must not.",
                retry_after_ms=WAIT_RETRY_MS,
            )
        self._wait_counts[account] = count + 1
        return True

    def end_wait(self, account: str) -> None:
        _less(self._wait_counts, account)

    # ── Connections ──────────────────────────────────────────────────────────────────────────

    def claim(self, connection: Peer, tenant: Tenant) -> None:
        """The tenant asks on this connection, which is one of its own from now on. Raises
        Throttled when it has too many, and then the connection ends with the answer."""
        accounts = self._accounts_on.get(connection)
        if accounts is not None and tenant.account in accounts:
            return
        count = self._connection_counts.get(tenant.account, 0)
        if count >= self._part_of(tenant.quotas.connections_max):
            self._refuse(tenant.account, "connections")
            connection.close_when_answered()
            raise Throttled(
                f"This account has {count} connections here: more must not be open.",
                retry_after_ms=CONNECTION_RETRY_MS,
            )
        if accounts is None:
            accounts = self._accounts_on[connection] = set()
            connection.when_lost(lambda: self._release(connection))
        accounts.add(tenant.account)
        self._connection_counts[tenant.account] = count + 1

    def _release(self, connection: Peer) -> None:
        for account in self._accounts_on.pop(connection, ()):
            _less(self._connection_counts, account)

    def _refuse(self, account: str, quota: str) -> None:
        self.refused[account, quota] = self.refused.get((account, quota), 0) + 1


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
