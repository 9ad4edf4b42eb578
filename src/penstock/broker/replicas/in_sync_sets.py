"""Changes the in-sync sets of the partitions that this node leads: checked twice a second and
whenever a node comes or goes, with one change per partition at a time."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from penstock.broker.replicas.counts import ReplicationCounts
from penstock.broker.replicas.replicator import Replicator
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
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
        self._is_check_due = asyncio.Event()
        self._proposing: dict[PartitionKey, asyncio.Task[None]] = {}

    def check_soon(self) -> None:
        self._is_check_due.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            # Not wait_for: it loses a cancellation in the turn in which the event is set.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._is_check_due.wait()
            self._is_check_due.clear()
            for key, replicator in tuple(self._replicas.items()):
                if key not in self._proposing and (change := replicator.propose()) is not None:
                    self._begin(key, replicator, change)

    def _begin(self, key: PartitionKey, replicator: Replicator, change: Change) -> None:
        task = asyncio.create_task(self._propose(key, replicator, change), name=f"in sync: {key}")
        self._proposing[key] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._proposing[key]
            if not task.cancelled() and (error := task.exception()) is not None:
                log_.error("in-sync set not changed", extra={"partition": str(key)}, exc_info=error)

        task.add_done_callback(ended)

    async def _propose(self, key: PartitionKey, replicator: Replicator, change: Change) -> None:
        before = self._view.rows.get(key)
        try:
            await self._view.propose(key, change)
            self._counts.in_sync_changed(before, change)
        except VersionConflict:
            self._counts.refused += 1
            with contextlib.suppress(PenstockError):  # the watch brings the present row
                await self._view.refresh_rows()
            replicator.change_rejected(change)
        except PenstockError as error:
            self._counts.refused += 1
            replicator.change_unknown(change)
            log_.warning(
                "in-sync set not changed", extra={"partition": str(key), "reason": str(error)}
            )

    async def stop(self) -> None:
        """Stop proposing. ``run`` was cancelled before."""
        tasks = list(self._proposing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
