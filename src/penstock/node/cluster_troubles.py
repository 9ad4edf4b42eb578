"""What is wrong with the cluster, as one node sees it: nodes that are dead, partitions that accept
no messages, no manager.

Rows are counted in a thread, and only after something has changed. In a large cluster that takes
some time; the next count waits fifty times as long, so counting uses at most 2 % of a core.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Final, NamedTuple

from penstock.manager.known import is_led
from penstock.metadata.cluster_entries import NodeEntry
from penstock.metadata.cluster_view import ClusterView
from penstock.model import troubles
from penstock.model.troubles import Trouble
from penstock.replication.row import NOBODY, View

PAUSE_FACTOR: Final = 50
_STRANGER: Final = NodeEntry(0, "", "")


class Counts(NamedTuple):
    away: Mapping[int, int] = {}  # partitions of nodes that are not alive
    states: Mapping[str, int] = {}  # partitions by what is wrong with them


def count(
    rows: Iterable[View], nodes: Mapping[int, NodeEntry], incarnations: Mapping[int, int]
) -> Counts:
    away: Counter[int] = Counter()
    states: Counter[str] = Counter()
    for view in rows:
        row = view.row
        away.update(node for node in row.replicas if node not in nodes)
        states["below_minimum"] += sum(node in nodes for node in row.whole) < row.in_sync_min
        states["leaderless"] += not is_led(row, incarnations)
        states["lost"] += not row.whole
    return Counts(away, states)


class ClusterTroubles:
    def __init__(
        self,
        view: ClusterView,
        seen: Mapping[int, NodeEntry],
        *,
        manager: Callable[[], int | None],
    ) -> None:
        """``seen``: nodes as they last were, also those that are away. ``manager`` is the node
        that manages, NOBODY if there is none, None while this node has not heard of any."""
        self._view = view
        self._manager = manager
        self._counts = Counts()
        self._is_old = True
        self._job: asyncio.Task[None] | None = None
        self._next_at = 0.0
        self._unmanaged_looks = 0
        self._seen = seen
        view.on_nodes(self._changed)
        view.on_row(lambda _key, _view: self._changed())

    def _changed(self) -> None:
        self._is_old = True

    def look(self) -> Iterable[Trouble]:
        """Return the troubles of the last count, and begin another one if it is old. Called once
        a second."""
        loop = asyncio.get_running_loop()
        if self._is_old and self._job is None and loop.time() >= self._next_at:
            self._is_old = False
            self._job = loop.create_task(self._count(), name="count partitions in trouble")
        # For a moment there is none whenever one hands over to another.
        self._unmanaged_looks = self._unmanaged_looks + 1 if self._manager() == NOBODY else 0
        return self._troubles()

    def _troubles(self) -> Iterable[Trouble]:
        if self._unmanaged_looks > 1:
            yield troubles.no_manager()
        for node, partitions in sorted(self._counts.away.items()):
            entry = self._seen.get(node, _STRANGER)
            yield troubles.node_dead(node, entry.name, partitions, was_stopped=entry.is_leaving)
        yield from troubles.partition_troubles(self._counts.states)

    async def _count(self) -> None:
        view = self._view
        rows, nodes, made = list(view.rows.values()), dict(view.nodes), dict(view.incarnations)
        began = perf_counter()
        try:
            self._counts = await asyncio.to_thread(count, rows, nodes, made)
        finally:
            took = perf_counter() - began
            self._next_at = asyncio.get_running_loop().time() + PAUSE_FACTOR * took
            self._job = None

    def stop(self) -> None:
        if self._job is not None:
            self._job.cancel()
