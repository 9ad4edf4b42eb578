"""Backups for the admin API. A backup contains the records that existed at one moment (the cut),
read from the leaders of their partitions, and the definitions of topics, users and other metadata.

In a cluster the cut is valid only if every partition was led, at that moment, by the node that
reported its end offset. So the entry of each partition is read from the metadata store afterwards.
If it still has the same leader and epoch, the cut is confirmed, because epochs are never reused;
otherwise the cut is repeated. Definitions are read after the cut, because the topic and the data
key of a record are stored before the record. Entries about nodes and placement are left out,
because a restored cluster has its own.

The state of a backup in progress is only in memory. The backup ends when its client ends it or
sends no request for a while. Until then, nodes keep the data that the backup needs."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock import __version__
from penstock.broker.backup_positions import STAGES, BackupPositions
from penstock.calls.routing.leaders import Routes
from penstock.frontend.admin.ports import Definition, Health, PartitionCut, Piece, StartedBackup
from penstock.metadata.address_books import BOOKS_PREFIX
from penstock.metadata.cluster_entries import (
    PARTITIONS_PREFIX,
    PartitionKey,
    decode_row,
    partition_of,
    partitions_of,
)
from penstock.metadata.security import identity_entries as identities
from penstock.metadata.security.acl_rules import ACLS_PREFIX, TOKENS_PREFIX
from penstock.metadata.security.data_keys import DATA_KEYS_PREFIX
from penstock.metadata.sns_keys import SNS_KEYS_PREFIX
from penstock.metadata.store import Entry, Store
from penstock.metadata.subscriptions import SUBSCRIPTIONS_PREFIX
from penstock.metadata.topics.catalog import (
    MOVES_PREFIX,
    PRODUCER_IDS_KEY,
    TOPICS_PREFIX,
    StoredCatalog,
)
from penstock.metadata.topics.resource_configs import CONFIGS_PREFIX
from penstock.model import errors
from penstock.model.calls import BrokerPort, Fetch
from penstock.model.file_slice import in_memory
from penstock.model.limits import MIB
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.record.compaction import covered
from penstock.record.malformed import MalformedBatch
from penstock.replication.row import PartitionRow
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.node_calls import (
    HOLD,
    POSITIONS,
    HoldRequest,
    PartitionPositions,
    PositionsRequest,
)

CROSSINGS_MS = 3_000  # longest time for which nodes delay changes that affect two logs
SEGMENTS_MS = 180_000  # time for which nodes keep data of a backup; renewed much earlier
CALL_MS = 2_000
TAKE_SECONDS_MAX = 30.0  # enough for an election of leaders
RETRY_SECONDS = 0.5

BACKUPS_MAX: Final = 4  # in progress at the same time
IDLE_MS_MAX: Final = 120_000
RENEW_MS: Final = 30_000
READ_BYTES: Final = MIB  # of one read; longer reads would delay other requests
PAGE_BYTES: Final = MIB  # of definitions in one reply
PAGE_ENTRIES_MAX: Final = 5_000
LIST_TRIES_MAX: Final = 10
ID_BYTES: Final = 12

# The prefixes of definitions in the metadata store.
PREFIXES: Final = (
    TOPICS_PREFIX,
    identities.TENANTS_PREFIX,
    identities.USERS_PREFIX,
    identities.KEYS_PREFIX,
    identities.SCRAM_PREFIX,
    DATA_KEYS_PREFIX,
    PRODUCER_IDS_KEY,
    CONFIGS_PREFIX,
    ACLS_PREFIX,
    TOKENS_PREFIX,
    SUBSCRIPTIONS_PREFIX,
    SNS_KEYS_PREFIX,
    BOOKS_PREFIX,
)

log_ = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeCut:
    """Finds the start and end offsets of all logs for a backup, on a node without a cluster."""

    _cutting: BackupPositions
    _topics: StoredCatalog

    @property
    def nodes(self) -> Sequence[int]:
        return ()

    async def take(self, holder: str) -> Sequence[PartitionPositions]:
        expected = _expected(self._topics)
        await self._cutting.open(self._topics.all_topics())
        await self.keep(holder)
        taken = self._cutting.take(*STAGES)
        found = {PartitionKey(one.topic_id, one.index) for one in taken}
        _refuse_missing(
            key
            for key in expected
            if key not in found and self._topics.find_id(key.topic_id) is not None
        )
        return taken

    async def keep(self, holder: str) -> None:
        self._cutting.hold(HoldRequest(holder, 0, SEGMENTS_MS))


@dataclass(frozen=True, slots=True)
class ClusterCut(NodeCut):
    _store: Store
    _routes: Routes
    _own_node: int
    _caller: Callable[[int], Caller]

    @property
    def nodes(self) -> Sequence[int]:
        return sorted(self._routes.nodes())

    async def take(self, holder: str) -> Sequence[PartitionPositions]:
        loop = asyncio.get_running_loop()
        until = loop.time() + TAKE_SECONDS_MAX
        while True:
            try:
                return await self._try(holder)
            except errors.PenstockError:
                if loop.time() >= until:
                    raise
            await self._routes.wait_changed(RETRY_SECONDS)

    async def _try(self, holder: str) -> Sequence[PartitionPositions]:
        expected = _expected(self._topics)
        nodes = self.nodes
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._hold(nodes, HoldRequest(holder, CROSSINGS_MS, SEGMENTS_MS))
            taken: dict[PartitionKey, list[tuple[int, PartitionPositions]]] = {}
            for stage in STAGES:
                replies = await asyncio.gather(
                    *(self._take(node, PositionsRequest(holder, stage)) for node in nodes)
                )
                for node, reply in zip(nodes, replies, strict=True):
                    for one in reply:
                        taken.setdefault(PartitionKey(one.topic_id, one.index), []).append(
                            (node, one)
                        )
            if (loop.time() - began) * 1_000 >= CROSSINGS_MS:
                raise errors.Overloaded("The nodes replied too slowly to start a backup; retry.")
        finally:
            await self.keep(holder)
        entries, _ = await self._store.list(PARTITIONS_PREFIX)
        rows = {partition_of(one.key): decode_row(one.key, one.value) for one in entries}
        return _confirmed(expected, rows, taken, self._topics.find_id)

    async def keep(self, holder: str) -> None:
        request = HoldRequest(holder, 0, SEGMENTS_MS)
        holds = (self._hold((node,), request) for node in self.nodes)
        await asyncio.gather(*holds, return_exceptions=True)

    async def _hold(self, nodes: Iterable[int], request: HoldRequest) -> None:
        async def hold(node: int) -> bool:
            if node == self._own_node:
                return self._cutting.hold(request)
            return (await self._caller(node).call(HOLD, request, timeout_ms=CALL_MS)).is_held

        if not all(await asyncio.gather(*map(hold, nodes))):
            raise errors.Overloaded("Too many backups are starting at the same time; retry.")

    async def _take(self, node: int, request: PositionsRequest) -> Sequence[PartitionPositions]:
        reply = (
            self._cutting.take_held(request)
            if node == self._own_node
            else await self._caller(node).call(POSITIONS, request, timeout_ms=CALL_MS)
        )
        if not reply.is_held:
            raise errors.Overloaded(f"Node {node} replied too slowly to start a backup; retry.")
        return reply.positions


def _expected(topics: StoredCatalog) -> Sequence[PartitionKey]:
    return [key for topic in topics.all_topics() for key in partitions_of(topic)]


def _confirmed(
    expected: Sequence[PartitionKey],
    rows: Mapping[PartitionKey, PartitionRow],
    taken: Mapping[PartitionKey, Sequence[tuple[int, PartitionPositions]]],
    find_id: Callable[[str], Topic | None],
) -> Sequence[PartitionPositions]:
    found: list[PartitionPositions] = []
    missing: list[PartitionKey] = []
    for key in expected:
        row = rows.get(key)
        if row is None:
            continue  # deleted since, or so new that nothing was written to it
        right = [
            one
            for node, one in taken.get(key, ())
            if (node, one.epoch) == (row.leader, row.epoch) and one.is_settled
        ]
        if right:
            found.append(right[0])
        elif find_id(key.topic_id) is not None:
            missing.append(key)
    _refuse_missing(missing)
    return found


def _refuse_missing(keys: Iterable[PartitionKey]) -> None:
    missing = sorted(keys)
    if missing:
        raise errors.Overloaded(
            f"The leaders of {len(missing)} partitions (such as {missing[0]}) did not reply; retry."
        )


class _Backup:
    def __init__(
        self, taken: Sequence[PartitionPositions], definitions: Sequence[Definition], now_ms: int
    ) -> None:
        self.cuts: Mapping[PartitionKey, PartitionPositions] = {
            PartitionKey(one.topic_id, one.index): one for one in taken
        }
        self.order = sorted(self.cuts)
        self.definitions = definitions
        self.used_at_ms = self.renewed_at_ms = now_ms


@dataclass(frozen=True, slots=True)
class BackupAdmin:
    cut: NodeCut
    topics: StoredCatalog
    broker: BrokerPort  # reaches the leader of every partition
    store: Store
    own_store: Store
    health: Health
    clock: Clock
    entropy: Callable[[int], bytes]
    node: str
    namespace: tuple[str, str]  # account, region
    master_key_id: str
    _backups: dict[str, _Backup | None] = field(default_factory=dict)  # None: not started yet

    async def begin(self) -> StartedBackup:
        if not self.health.is_ready:
            raise errors.Overloaded("The node is not ready: its metadata may be incomplete; retry.")
        self._forget_idle()
        if len(self._backups) >= BACKUPS_MAX:
            raise errors.Throttled(f"{BACKUPS_MAX} backups are in progress; wait until one ends.")
        backup_id = self.entropy(ID_BYTES).hex()
        self._backups[backup_id] = None
        try:
            at_ms = self.clock.wall_ms()
            taken = await self.cut.take(backup_id)
            definitions = await self._list_definitions()
        except BaseException:
            del self._backups[backup_id]
            raise
        self._backups[backup_id] = _Backup(taken, definitions, self.clock.mono_ms())
        log_.info("backup started", extra={"backup": backup_id, "partitions": len(taken)})
        return StartedBackup(
            backup_id,
            at_ms,
            __version__,
            self.node,
            self.cut.nodes,
            *self.namespace,
            self.master_key_id,
            len(taken),
            len(definitions),
            sum(one.size_bytes for one in taken),
        )

    async def end(self, backup_id: str) -> None:
        if self._backups.get(backup_id) is None:
            raise errors.NotFound("No backup with this id is in progress.")
        del self._backups[backup_id]
        log_.info("backup ended", extra={"backup": backup_id})

    def _forget_idle(self) -> None:
        now_ms = self.clock.mono_ms()
        for backup_id, backup in tuple(self._backups.items()):
            if backup is not None and now_ms - backup.used_at_ms > IDLE_MS_MAX:
                del self._backups[backup_id]
                log_.warning("backup timed out", extra={"backup": backup_id})

    async def _found(self, backup_id: str) -> _Backup:
        self._forget_idle()
        backup = self._backups.get(backup_id)
        if backup is None:
            raise errors.NotFound("No backup with this id is in progress; it may have timed out.")
        now_ms = backup.used_at_ms = self.clock.mono_ms()
        if now_ms - backup.renewed_at_ms >= RENEW_MS:
            backup.renewed_at_ms = now_ms
            await self.cut.keep(backup_id)
        return backup

    async def _list_definitions(self) -> Sequence[Definition]:
        """Return the metadata entries that belong to a backup, all as of the same moment."""
        before: Sequence[Entry] = ()
        seen = 0
        for _ in range(LIST_TRIES_MAX):
            found: list[Entry] = []
            revisions = set()
            for prefix in PREFIXES:
                entries, revision = await self.store.list(prefix, min_revision=seen)
                found += entries
                revisions.add(revision)
            if len(revisions) == 1 or found == before:
                break
            before, seen = found, max(revisions)
        else:
            raise errors.Overloaded("The metadata changes faster than it can be read; retry.")
        moves, _ = await self.own_store.list(MOVES_PREFIX)
        return [Definition(entry.key, entry.value) for entry in (*found, *moves)]

    async def definitions(self, backup_id: str, *, after: int) -> Sequence[Definition]:
        backup = await self._found(backup_id)
        size = 0
        page: list[Definition] = []
        for one in backup.definitions[after : after + PAGE_ENTRIES_MAX]:
            size += len(one.key) + len(one.value)
            if page and size > PAGE_BYTES:
                break
            page.append(one)
        return page

    async def partitions(self, backup_id: str, *, after: int, limit: int) -> Sequence[PartitionCut]:
        backup = await self._found(backup_id)
        return [
            PartitionCut(
                key.topic_id,
                key.index,
                backup.cuts[key].start_offset,
                backup.cuts[key].end_offset,
                backup.cuts[key].size_bytes,
            )
            for key in backup.order[after : after + limit]
        ]

    async def read(self, backup_id: str, topic_id: str, partition: int, offset: int) -> Piece:
        backup = await self._found(backup_id)
        cut = backup.cuts.get(PartitionKey(topic_id, partition))
        if cut is None:
            raise errors.NotFound("The backup does not contain this partition.")
        topic = self.topics.find_id(topic_id)
        if topic is None:
            raise errors.TopicNotFound(topic_id)
        end = cut.end_offset
        if offset >= end:
            return Piece(b"", offset, offset, offset)
        try:
            fetched = await self.broker.call(
                Fetch(topic, partition, offset=offset, bytes_max=READ_BYTES, is_committed=False)
            )
        except errors.OffsetOutOfRange as error:
            if error.start_offset <= offset:
                raise errors.Overloaded(
                    "The partition has just changed its leader; retry."
                ) from error
            start = min(error.start_offset, end)
            return Piece(b"", start, start, start)
        if not fetched.buffers:
            raise errors.Overloaded("The partition has just changed its leader; retry.")
        try:
            found = covered(
                in_memory(fetched.buffers), offset, end, next_offset=fetched.next_offset
            )
        except MalformedBatch as error:
            raise errors.Damaged(f"{topic_id}/{partition}", offset, str(error)) from error
        return Piece(found.data, found.base_offset, found.next_offset, offset)
