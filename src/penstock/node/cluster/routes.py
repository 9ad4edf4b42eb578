"""Leaders of partitions, for routing: from the rows that this node knows, and from hints of other
nodes, which may be newer than its watch."""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.topic import Topic
from penstock.replication.row import View

HINTS_MAX = 10_000  # the oldest are dropped


class ClusterRoutes:
    """Implements ``calls.routing.Routes``."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._hints: dict[tuple[str, int], tuple[int, int]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        view.on_row(self._row_changed)
        view.on_nodes(self._wake)

    def leader(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        topic_id = topic.source_id or topic.topic_id
        found = self._view.of_topic(topic_id).get(partition)
        if self._hints:
            hint = self._hints.get((topic_id, partition))
            if hint is not None and (found is None or found.row.epoch < hint[1]):
                return hint if hint[0] in self._view.nodes else None
        if found is None or found.row.leader not in self._view.nodes:
            return None
        return found.row.leader, found.row.epoch

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        found = {}
        for partition in self._view.of_topic(topic.source_id or topic.topic_id):
            led = self.leader(topic, partition)
            if led is not None:
                found[partition] = led[0]
        return found

    def nodes(self) -> Sequence[int]:
        return list(self._view.nodes)

    async def wait_changed(self, timeout_s: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            self._waiting.discard(future)

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        topic_id, _, index = place.partition("/")
        if leader < 0 or not index.isdigit():
            return
        key = (topic_id, int(index))
        known = self._view.of_topic(topic_id).get(key[1])
        if known is not None and known.row.epoch >= epoch:
            return
        while len(self._hints) >= HINTS_MAX:
            del self._hints[next(iter(self._hints))]
        self._hints[key] = (leader, epoch)
        self._wake()

    def _row_changed(self, key: PartitionKey, view: View | None) -> None:
        hint = self._hints.get((key.topic_id, key.index))
        if hint is not None and (view is None or view.row.epoch >= hint[1]):
            del self._hints[key.topic_id, key.index]
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)
