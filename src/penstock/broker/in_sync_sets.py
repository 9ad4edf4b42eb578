"""Who belongs into the in-sync sets of what this node leads: looked at twice a second and whenever
a node comes or goes, and changed in the store, one change of a partition at a time."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from penstock.broker.replication_counts import ReplicationCounts
from penstock.broker.replicator import Replicator
from penstock.metadata.cluster_entries import PartitionKey
from penstock.metadata.cluster_view import ClusterView
from penstock.model.errors import PenstockError, VersionConflict
from penstock.replication.row import Change

log_ = logging.getLogger(__name__)

TICK_SECONDS = 0.5


class InSyncSets:
    def __init__(
        self,
        replicas: Mapping[PartitionKey, Replicator],
        view: ClusterView,
        counts: ReplicationCounts,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._counts = counts
        self._is_look_due = asyncio.Event()
        self._proposing: dict[PartitionKey, asyncio.Task[None]] = {}

    def look_soon(self) -> None:
        self._is_look_due.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            # Not wait_for: it forgets that it was cancelled in the turn in which the look is due.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._is_look_due.wait()
            self._is_look_due.clear()
            for key, replicator in tuple(self._replicas.items()):
                if key in self._proposing:
                    continue
                change = replicator.propose()
                if change is not None:
                    self._begin(key, replicator, change)

    def _begin(self, key: PartitionKey, replicator: Replicator, change: Change) -> None:
        task = asyncio.create_task(self._propose(key, replicator, change), name=f"in sync: {key}")
        self._proposing[key] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._proposing[key]
            if not task.cancelled() and (error := task.exception()) is not None:
                log_.error("in-sync set not changed", extra={"at": str(key)}, exc_info=error)

        task.add_done_callback(ended)

    async def _propose(self, key: PartitionKey, replicator: Replicator, change: Change) -> None:
        before = self._view.rows.get(key)
        try:
            await self._view.propose(key, change)
            self._counts.in_sync_changed(before, change)
        except VersionConflict:
            self._counts.refused += 1
            with contextlib.suppress(PenstockError):  # the watch tells what is so now
                await self._view.refresh_rows()
            replicator.refused(change)
        except PenstockError as error:
            self._counts.refused += 1
            replicator.doubted(change)
            log_.warning("in-sync set not changed", extra={"at": str(key), "reason": str(error)})

    async def stop(self) -> None:
        """Nothing is proposed any more. ``run`` has been cancelled."""
        tasks = list(self._proposing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
