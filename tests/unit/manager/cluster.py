"""A cluster without brokers: real registrations, rows and managers over one real store, and nodes
that do for their partitions what leaders do for followers, at once and without any data."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from penstock.manager.active_manager import Times
from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import DecisionKind, Policy, Situation, Topics, placed
from penstock.manager.in_cluster import Manager
from penstock.manager.overview import risk_of_stopping
from penstock.membership.cluster_view import ClusterLevel, ClusterView
from penstock.membership.registration import Membership
from penstock.metadata.cluster_entries import (
    MANAGER_KEY,
    NodeEntry,
    PartitionKey,
    decode_row,
    encode_entry,
    partition_key,
)
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Entry, Store, Txn
from penstock.metadata.store import Change as StoreChange
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.errors import Overloaded, VersionConflict
from penstock.model.levels import LEVEL_FIRST, Levels
from penstock.model.topic import Kind, Topic
from penstock.replication.election import Standing
from penstock.replication.row import Change, PartitionRow, View
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.faults import OutcomeUnknown, Unreachable

TTL_MS = 120_000  # a node of these tests ends by its word, not by silence
FIRST = Levels(LEVEL_FIRST, LEVEL_FIRST)
QUICK = Times(settle_ms=20, plan_ms_min=10, refused_ms=20, failed_ms=30, round_ms=60_000)


def topic(name: str, partitions: int, **configs: str) -> Topic:
    named = {each.replace("_", "."): value for each, value in configs.items()}
    return Topic(
        name, "1" * 12, "us-east-1", name, Kind.STREAM, partitions, 1, 1, b"k", configs=named
    )


async def until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """For what another node does, of which there is no event here."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


class Line(Store):
    """A node's own line to the store, which can be cut, and can lose answers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_cut = False
        self.hears = asyncio.Event()  # who manages; everything else is always heard
        self.hears.set()
        self.answers_lost = 0  # of the next transactions, which happen all the same
        self.requests_lost = 0  # of the next transactions, which do not
        self.txns = 0
        self.refused = 0  # calls, because the line was cut
        self.cut_after: int | None = None  # so many transactions

    def _check(self) -> None:
        if self.is_cut:
            self.refused += 1
            raise Unreachable("the line is cut")

    async def get(self, key: str) -> Entry | None:
        self._check()
        return await self._store.get(key)

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        self._check()
        return await self._store.list(prefix, min_revision=min_revision)

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        self._check()
        return await self._store.put(key, value, if_version=if_version)

    async def delete(self, key: str, *, if_version: int | None = None) -> int:
        self._check()
        return await self._store.delete(key, if_version=if_version)

    async def commit(self, txn: Txn) -> int:
        self._check()
        self.txns += 1
        if self.cut_after is not None and self.txns > self.cut_after:
            self.is_cut = True
            self._check()
        if self.requests_lost:
            self.requests_lost -= 1
            raise OutcomeUnknown("the request was lost")
        revision = await self._store.commit(txn)
        if self.answers_lost:
            self.answers_lost -= 1
            raise OutcomeUnknown("the answer was lost")
        return revision

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[StoreChange], None]:
        self._check()
        async with aclosing(self._store.watch(prefix, from_revision=from_revision)) as watch:
            async for changes in watch:
                if prefix == MANAGER_KEY:
                    await self.hears.wait()
                yield changes

    async def grant(self, ttl_ms: int) -> int:
        self._check()
        return await self._store.grant(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        self._check()
        return await self._store.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        self._check()
        await self._store.revoke(lease)

    async def close(self) -> None:
        pass  # the store is the cluster's


class Node:
    """One node: its registration, what it sees, and whether it stands for manager."""

    def __init__(self, cluster: "Cluster", number: int, *, rack: str, levels: Levels) -> None:
        self.number = number
        self.standings: dict[PartitionKey, Standing] = {}
        self.is_mute = False  # does not answer questions
        self.is_catching_up = True  # brings its followers into sync
        self.line = Line(cluster.store)
        self.level = ClusterLevel(self.line, levels)
        entry = NodeEntry(
            number,
            f"n{number}",
            "127.0.0.1:1",
            rack=rack,
            folder_id=f"f{number}",
            feature_level=levels.highest,
            feature_level_min=levels.lowest,
        )
        self.membership = Membership(
            self.line,
            entry,
            clock=SystemClock(),
            on_lost=lambda: None,
            ttl_ms=TTL_MS,
            admit=self.level.admit,
        )
        self.view = ClusterView(self.line)
        self.catalog = StoredCatalog(self.line)
        self.manager: Manager | None = None
        self._cluster = cluster
        self._ours: dict[PartitionKey, None] = {}
        self._has_work = asyncio.Event()

    async def start(self, *, stands: bool) -> None:
        await self.level.start()
        await self.catalog.start()
        self.view.on_row(self._on_row)
        self.view.on_nodes(self.look)
        await self.view.start()
        await self.register()
        if stands:
            await self.stand()
        self._task = asyncio.create_task(self._lead(), name=f"leader {self.number}")

    async def register(self) -> None:
        """Also once more, as a process does that was started again. Returns when all have heard."""
        await self.membership.stop()
        await self.membership.clear()
        incarnation = await self.membership.register()
        views = [self.view, *(node.view for node in self._cluster.nodes.values())]
        await until(
            lambda: all(view.incarnations.get(self.number) == incarnation for view in views)
        )

    async def stand(self) -> None:
        self.manager = Manager(
            self.line,
            self.number,
            view=self.view,
            catalog=self.catalog,
            lease=lambda: self.membership.lease,
            ask_standings=self._cluster.ask,
            clock=SystemClock(),
            policy=self._cluster.policy,
            times=self._cluster.times,
            level=self.level,
        )
        await self.manager.start()

    async def kill(self) -> None:
        """It does nothing more; what hangs on its lease goes."""
        lease = self.membership.lease
        self.line.is_cut = True
        await self.stop()
        await self._cluster.store.revoke(lease)

    async def stop(self) -> None:
        if self.manager is not None:
            await self.manager.stop()
        self._task.cancel()
        await asyncio.wait((self._task,))
        await self.view.stop()
        await self.level.stop()
        await self.catalog.stop()
        await self.membership.stop()

    # ── What a leader does ───────────────────────────────────────────────────────────────────

    def _on_row(self, key: PartitionKey, view: View | None) -> None:
        if view is not None and view.row.leader == self.number:
            self._look((key,))

    def look(self) -> None:
        """At everything once more."""
        self._look(list(self.view.rows))

    def _look(self, keys: Sequence[PartitionKey]) -> None:
        self._ours.update(dict.fromkeys(keys))
        self._has_work.set()

    async def _lead(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            ours, self._ours = self._ours, {}
            for key in ours:
                view = self.view.rows.get(key)
                if view is not None and self.is_catching_up:
                    await self._bring_in(key, view)

    async def _bring_in(self, key: PartitionKey, view: View) -> None:
        row = view.row
        incarnations = self.view.incarnations
        if (row.leader, row.leader_incarnation) != (self.number, incarnations.get(self.number)):
            return
        late = [each for each in row.replicas if each not in row.whole and each in incarnations]
        if not late:
            return
        joined = msgspec.structs.replace(
            row, in_sync=row.in_sync.union(late), lost=row.lost.difference(late)
        )
        counted_on = {each: incarnations[each] for each in late}
        try:
            await self.view.propose(key, Change(view.version, joined, counted_on))
        except VersionConflict:
            pass  # a newer view comes


class Cluster:
    def __init__(self, store: Store, *, policy: Policy | None = None, times: Times = QUICK) -> None:
        self.store = store
        self.policy = policy or Policy(replication_factor=3, in_sync_min=2)
        self.times = times
        self.nodes: dict[int, Node] = {}
        self.asked: list[tuple[int, Sequence[PartitionKey]]] = []

    async def join(
        self, number: int, *, rack: str = "", stands: bool = True, levels: Levels = FIRST
    ) -> Node:
        node = Node(self, number, rack=rack, levels=levels)
        await node.start(stands=stands)
        self.nodes[number] = node
        return node

    async def kill(self, number: int) -> None:
        """Returns when those that can have heard of it."""
        await self.nodes.pop(number).kill()
        others = [node.view for node in self.nodes.values() if not node.line.is_cut]
        await until(lambda: all(number not in view.nodes for view in others))

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    async def ask(
        self, number: int, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, Standing]:
        self.asked.append((number, keys))
        node = self.nodes.get(number)
        if node is None or node.is_mute:
            raise Overloaded(f"node {number} does not answer")
        return {key: node.standings[key] for key in keys if key in node.standings}

    # ── Questions ────────────────────────────────────────────────────────────────────────────

    @property
    def managing(self) -> list[int]:
        return [
            number
            for number, node in self.nodes.items()
            if node.manager is not None and node.manager.active is not None
        ]

    @property
    def counts(self) -> Counter[DecisionKind]:
        total: Counter[DecisionKind] = Counter()
        for node in self.nodes.values():
            if node.manager is not None:
                total += node.manager.counts
        return total

    @property
    def view(self) -> ClusterView:
        return next(iter(self.nodes.values())).view

    @property
    def catalog(self) -> StoredCatalog:
        return next(iter(self.nodes.values())).catalog

    def rows(self, topic_id: str) -> list[PartitionRow]:
        return [view.row for _, view in sorted(self.view.of_topic(topic_id).items())]

    def row(self, topic_id: str, index: int = 0) -> PartitionRow:
        return self.view.of_topic(topic_id)[index].row

    def leaders(self, topic_id: str) -> Counter[int]:
        return Counter(row.leader for row in self.rows(topic_id))

    def replicas(self, topic_id: str) -> Counter[int]:
        return Counter(node for row in self.rows(topic_id) for node in row.replicas)

    def is_led(self, row: PartitionRow) -> bool:
        return self.view.incarnations.get(row.leader) == row.leader_incarnation

    async def create(self, created: Topic) -> None:
        """Returns when every partition has a leader."""
        await self.catalog.create(created)
        await until(
            lambda: (
                len(self.rows(created.topic_id)) == created.partition_count
                and all(self.is_led(row) for row in self.rows(created.topic_id))
            )
        )

    async def write_rows(self, topic_id: str, count: int, row: PartitionRow) -> None:
        """As if somebody had created so many partitions, all alike."""
        value = encode_entry(row)
        keys = [partition_key(PartitionKey(topic_id, index)) for index in range(count)]
        for start in range(0, count, CHANGES_PER_TXN_MAX):
            some = keys[start : start + CHANGES_PER_TXN_MAX]
            await self.store.txn(puts=[(key, value) for key in some])
        await until(lambda: len(self.rows(topic_id)) == count)

    async def change_row(self, key: PartitionKey, **changes: object) -> None:
        """As some node would, for reasons of its own."""
        while True:
            entry = await self.store.get(partition_key(key))
            assert entry is not None
            row = msgspec.structs.replace(decode_row(entry.key, entry.value), **changes)
            try:
                await self.store.put(entry.key, encode_entry(row), if_version=entry.version)
            except VersionConflict:
                continue
            return


def is_safe_to_stop(state: ClusterState, node: int) -> bool:
    risk = risk_of_stopping(state, node)
    return not risk.unavailable and not risk.unsendable


def is_empty(state: ClusterState, node: int) -> bool:
    return not list(state.on(node))


def situation(state: ClusterState, topics: Topics, policy: Policy) -> Situation:
    whole = placed(state, state.rows, topics, policy)
    return Situation(whole, list(state.hosts), state.draining, policy)
