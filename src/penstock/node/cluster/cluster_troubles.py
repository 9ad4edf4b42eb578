"""Problems of the cluster that a node detects: dead nodes, partitions that accept no messages, a
missing manager, clocks that differ.

Partitions are counted in a thread, only after a change. After each count there is a pause of fifty
times its duration, so counting uses at most 2 % of a core."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Final, NamedTuple

from penstock.manager.cluster_state import is_led
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import NodeEntry
from penstock.model import troubles
from penstock.model.troubles import CLOCK_SKEW_MS_MAX, Trouble
from penstock.replication.row import NO_NODE, View

PAUSE_FACTOR: Final = 50
SEEN_MIN: Final = 2  # batches from the future; a single one may be caused by setting a clock
KEPT_WRITES: Final = 3  # such a batch counts for this number of write intervals
_UNKNOWN: Final = NodeEntry(0, "", "")


class Counts(NamedTuple):
    away: Mapping[int, int] = {}  # number of partitions by dead node
    states: Mapping[str, int] = {}  # number of partitions by problem


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
        self, view: ClusterView, seen: Mapping[int, NodeEntry], *, manager: Callable[[], int | None]
    ) -> None:
        # ``seen``: last known entries of nodes, also of dead ones. ``manager`` returns the managing
        # node, NO_NODE if there is none, or None if it is not known yet.
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
        """Yield the problems that the last count of partitions found. Recount after a change."""
        loop = asyncio.get_running_loop()
        if self._is_old and self._job is None and loop.time() >= self._next_at:
            self._is_old = False
            self._job = loop.create_task(self._count(), name="count partitions in trouble")
        # There is briefly no manager while one hands over to another.
        self._unmanaged_looks = self._unmanaged_looks + 1 if self._manager() == NO_NODE else 0
        if self._unmanaged_looks > 1:
            yield troubles.NO_MANAGER
        for node, partitions in sorted(self._counts.away.items()):
            entry = self._seen.get(node, _UNKNOWN)
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


class ClockSkew:
    """Compares the clocks of other nodes with the clock of this node, without any calls.

    Every node periodically writes to the topic ``__telemetry``, with timestamps of its own clock. A
    batch that has just arrived with a timestamp in the future proves that another node's clock is
    ahead by at least this difference. (A timestamp in the past proves nothing: the batch may have
    been delayed.) So a node detects that its clock is behind, if it has a replica of the topic."""

    def __init__(self, *, write_ms: int) -> None:
        self._kept_ms = KEPT_WRITES * write_ms
        self._newest_ms: int | None = None
        self._seen: deque[tuple[int, int]] = deque(maxlen=SEEN_MIN)  # time and difference

    def look(self, newest_ms: int | None, *, wall_ms: int, mono_ms: int) -> int:
        """Return a lower bound, in ms, of how far another node's clock is ahead, or 0.
        ``newest_ms`` is the latest timestamp in this node's replica of ``__telemetry``, if any."""
        before_ms, self._newest_ms = self._newest_ms, newest_ms
        if newest_ms is not None and before_ms is not None and newest_ms > before_ms:
            ahead_ms = newest_ms - wall_ms
            if ahead_ms > CLOCK_SKEW_MS_MAX:
                self._seen.append((mono_ms, ahead_ms))
        while self._seen and mono_ms - self._seen[0][0] > self._kept_ms:
            self._seen.popleft()
        return self._seen[-1][1] if len(self._seen) == SEEN_MIN else 0
