"""One moment for all logs, and keeping what is copied from then on: of a node by itself, and of all
nodes of a cluster.

In a cluster the cut holds only if every partition was led, at that moment, by whoever has said how
far it goes. So afterwards the rows are read from the store: one that names the same leader and
epoch has done so since before, for epochs never come back. Otherwise it is all done again, for as
long as an election may take.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from penstock.broker.cutting import STAGES, Cutting
from penstock.metadata.cluster_entries import (
    PARTITIONS_PREFIX,
    PartitionKey,
    decode_row,
    partition_of,
)
from penstock.metadata.store import Store
from penstock.model.errors import Overloaded, PenstockError
from penstock.model.topic import Topic
from penstock.node.cluster_role import ClusterRole
from penstock.replication.row import PartitionRow
from penstock.wire.internal.backup_calls import HOLD, TAKE, HoldAsked, TakeAsked, Taken

CROSSINGS_MS = 3_000  # far longer than it takes; a node that dies meanwhile holds nobody for long
SEGMENTS_MS = 180_000  # renewed long before
CALL_MS = 2_000
TAKE_SECONDS_MAX = 30.0  # elections included
RETRY_SECONDS = 0.5


class Topics(Protocol):
    def all_topics(self) -> Sequence[Topic]: ...

    def find_id(self, topic_id: str) -> Topic | None: ...


class Cut(Protocol):
    @property
    def nodes(self) -> Sequence[int]: ...

    async def take(self, holder: str) -> Sequence[Taken]:
        """Raises Overloaded when there is a partition that nobody can speak for."""
        ...

    async def keep(self, holder: str) -> None:
        """What is being copied, for a while longer. Raises nothing: a node that is away copies
        nothing and drops nothing."""
        ...


class NodeCut:
    nodes: Sequence[int] = ()

    def __init__(self, cutting: Cutting, topics: Topics) -> None:
        self._cutting = cutting
        self._topics = topics

    async def take(self, holder: str) -> Sequence[Taken]:
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
        self._cutting.hold(HoldAsked(holder, 0, SEGMENTS_MS))


class ClusterCut:
    def __init__(
        self, cutting: Cutting, topics: Topics, store: Store, cluster: ClusterRole
    ) -> None:
        self._cutting = cutting
        self._topics = topics
        self._store = store
        self._cluster = cluster

    @property
    def nodes(self) -> Sequence[int]:
        return sorted(self._cluster.routes.nodes())

    async def take(self, holder: str) -> Sequence[Taken]:
        loop = asyncio.get_running_loop()
        until = loop.time() + TAKE_SECONDS_MAX
        while True:
            try:
                return await self._try(holder)
            except PenstockError:
                if loop.time() >= until:
                    raise
            await self._cluster.routes.wait_changed(RETRY_SECONDS)

    async def _try(self, holder: str) -> Sequence[Taken]:
        expected = _expected(self._topics)
        nodes = self.nodes
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._hold(nodes, HoldAsked(holder, CROSSINGS_MS, SEGMENTS_MS))
            taken: dict[PartitionKey, list[tuple[int, Taken]]] = {}
            for stage in STAGES:
                told = await asyncio.gather(
                    *(self._take(node, TakeAsked(holder, stage)) for node in nodes)
                )
                for node, some in zip(nodes, told, strict=True):
                    for one in some:
                        taken.setdefault(PartitionKey(one.topic_id, one.index), []).append(
                            (node, one)
                        )
            if (loop.time() - began) * 1_000 >= CROSSINGS_MS:
                raise Overloaded("The nodes were too slow to be asked at one moment.")
        finally:
            await self.keep(holder)
        rows = await self._rows()
        return _confirmed(expected, rows, taken, self._topics)

    async def keep(self, holder: str) -> None:
        asked = HoldAsked(holder, 0, SEGMENTS_MS)
        await asyncio.gather(
            *(self._hold((node,), asked) for node in self.nodes), return_exceptions=True
        )

    async def _hold(self, nodes: Iterable[int], asked: HoldAsked) -> None:
        async def hold(node: int) -> bool:
            if node == self._cluster.node:
                return self._cutting.hold(asked)
            caller = self._cluster.peers.caller(node)
            return (await caller.call(HOLD, asked, timeout_ms=CALL_MS)).is_held

        if not all(await asyncio.gather(*map(hold, nodes))):
            raise Overloaded("Too many backups begin at this moment.")

    async def _take(self, node: int, asked: TakeAsked) -> Sequence[Taken]:
        caller = self._cluster.peers.caller(node) if node != self._cluster.node else None
        told = (
            self._cutting.take_held(asked)
            if caller is None
            else await caller.call(TAKE, asked, timeout_ms=CALL_MS)
        )
        if not told.is_held:
            raise Overloaded(f"Node {node} was too slow to be asked.")
        return told.taken

    async def _rows(self) -> Mapping[PartitionKey, PartitionRow]:
        entries, _ = await self._store.list(PARTITIONS_PREFIX)
        return {partition_of(one.key): decode_row(one.key, one.value) for one in entries}


def _expected(topics: Topics) -> Sequence[PartitionKey]:
    """What there is before the cut: of what comes later nothing is promised."""
    return [
        PartitionKey(topic.topic_id, index)
        for topic in topics.all_topics()
        if not topic.is_share
        for index in range(topic.partition_count)
    ]


def _confirmed(
    expected: Sequence[PartitionKey],
    rows: Mapping[PartitionKey, PartitionRow],
    taken: Mapping[PartitionKey, Sequence[tuple[int, Taken]]],
    topics: Topics,
) -> Sequence[Taken]:
    found: list[Taken] = []
    missing: list[PartitionKey] = []
    for key in expected:
        row = rows.get(key)
        if row is None:
            continue  # deleted since; or so new that nobody has written to it
        right = [
            one
            for node, one in taken.get(key, ())
            if (node, one.epoch) == (row.leader, row.epoch) and one.is_settled
        ]
        if right:
            found.append(right[0])
        elif topics.find_id(key.topic_id) is not None:
            missing.append(key)
    _refuse_missing(missing)
    return found


def _refuse_missing(keys: Iterable[PartitionKey]) -> None:
    missing = sorted(keys)
    if missing:
        raise Overloaded(
            f"{len(missing)} partitions have no leader that could answer, such as {missing[0]}."
        )
