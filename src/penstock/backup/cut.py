"""A cut of all logs at one moment, and keeping the segments that are copied from then on: of a
single node, and of all nodes of a cluster.

In a cluster the cut is valid only if every partition was led, at that moment, by the node that
reported its end. So the rows are read from the store afterwards: a row with the same leader and
epoch has had them since before the cut, because epochs are never reused. Otherwise the cut is
repeated, for as long as an election may take.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.broker.backup_positions import STAGES, BackupPositions
from penstock.calls.routing.leaders import Routes
from penstock.metadata.cluster_entries import (
    PARTITIONS_PREFIX,
    PartitionKey,
    decode_row,
    partition_of,
    partitions_of,
)
from penstock.metadata.store import Store
from penstock.model.errors import Overloaded, PenstockError
from penstock.model.topic import Topic
from penstock.replication.row import PartitionRow
from penstock.wire.internal.backup_calls import (
    HOLD,
    POSITIONS,
    HoldRequest,
    PartitionPositions,
    PositionsRequest,
)
from penstock.wire.internal.calls import Caller

CROSSINGS_MS = 3_000  # much longer than a cut takes; bounds the delay if this node dies
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

    async def take(self, holder: str) -> Sequence[PartitionPositions]:
        """Raises Overloaded if no leader replied for some partition."""
        ...

    async def keep(self, holder: str) -> None:
        """Keep the segments for a while longer. Raises nothing: a node that is not reachable
        copies nothing and drops nothing."""
        ...


@dataclass(frozen=True, slots=True)
class NodeCut:
    _cutting: BackupPositions
    _topics: Topics

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
class ClusterCut:
    _cutting: BackupPositions
    _topics: Topics
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
            except PenstockError:
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
                raise Overloaded("The nodes replied too slowly for one cut; retry.")
        finally:
            await self.keep(holder)
        rows = await self._rows()
        return _confirmed(expected, rows, taken, self._topics)

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
            raise Overloaded("Too many backups are starting at the same time; retry.")

    async def _take(self, node: int, request: PositionsRequest) -> Sequence[PartitionPositions]:
        reply = (
            self._cutting.take_held(request)
            if node == self._own_node
            else await self._caller(node).call(POSITIONS, request, timeout_ms=CALL_MS)
        )
        if not reply.is_held:
            raise Overloaded(f"Node {node} replied too late to take part in the cut.")
        return reply.positions

    async def _rows(self) -> Mapping[PartitionKey, PartitionRow]:
        entries, _ = await self._store.list(PARTITIONS_PREFIX)
        return {partition_of(one.key): decode_row(one.key, one.value) for one in entries}


def _expected(topics: Topics) -> Sequence[PartitionKey]:
    """Return the partitions that exist before the cut; later ones need not be in the backup."""
    return [key for topic in topics.all_topics() for key in partitions_of(topic)]


def _confirmed(
    expected: Sequence[PartitionKey],
    rows: Mapping[PartitionKey, PartitionRow],
    taken: Mapping[PartitionKey, Sequence[tuple[int, PartitionPositions]]],
    topics: Topics,
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
        elif topics.find_id(key.topic_id) is not None:
            missing.append(key)
    _refuse_missing(missing)
    return found


def _refuse_missing(keys: Iterable[PartitionKey]) -> None:
    missing = sorted(keys)
    if missing:
        raise Overloaded(
            f"{len(missing)} partitions have no leader that replied, such as {missing[0]}; retry."
        )
