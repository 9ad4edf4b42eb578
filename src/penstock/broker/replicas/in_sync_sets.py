"""Checks the in-sync sets of all partitions that this node leads, twice a second and when a node
starts or stops."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.broker.context.timers import cancel_all
from penstock.broker.replicas.leadership import ReplicationCounts
from penstock.broker.replicas.open_replica import about
from penstock.broker.replicas.replicator import Replicator
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import PenstockError, VersionConflict
from penstock.replication.row import Change

log_ = logging.getLogger(__name__)

TICK_SECONDS = 0.5


@dataclass(eq=False)
class InSyncSets:
    replicas: Mapping[PartitionKey, Replicator]
    view: ClusterView
    counts: ReplicationCounts
    _is_check_due: asyncio.Event = field(default_factory=asyncio.Event)
    _proposing: dict[PartitionKey, asyncio.Task[None]] = field(default_factory=dict)

    def check_soon(self) -> None:
        self._is_check_due.set()

    async def run(self) -> None:
        while True:
            # Not wait_for, which loses a cancellation that arrives together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._is_check_due.wait()
            self._is_check_due.clear()
            for key, replicator in tuple(self.replicas.items()):
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
        before = self.view.rows.get(key)
        try:
            await self.view.propose(key, change)
            self.counts.in_sync_changed(before, change)
        except VersionConflict:
            self.counts.refused += 1
            with contextlib.suppress(PenstockError):  # the watch will deliver the current row
                await self.view.refresh_rows()
            replicator.change_rejected(change)
        except PenstockError as error:
            self.counts.refused += 1
            replicator.change_unknown(change)
            log_.warning("in-sync set change not confirmed, retrying", extra=about(key, error))

    async def stop(self) -> None:
        await cancel_all(self._proposing.values())
