"""Changes the in-sync sets of the partitions that this node leads: checked twice a second and
whenever a node comes or goes, with one change per partition at a time. And the counters of
replicas."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.broker.context.timers import cancel_all
from penstock.broker.replicas.follower_log import about
from penstock.broker.replicas.replicator import Replicator
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import PenstockError, VersionConflict
from penstock.replication.row import Change, View
from penstock.wire.internal.replica_calls import PartitionReply, ReplyKind


@dataclass(slots=True)
class ReplicationCounts:
    # As a follower:
    fetches_asked: int = 0
    fetches_unanswered: int = 0  # no such node, or no reply in time
    bytes_in: int = 0
    truncations: int = 0  # logs that diverged from their leader's
    restarts: int = 0  # logs that ended before their leader's log begins
    # As a leader:
    fetches_served: int = 0
    bytes_out: int = 0
    joined: int = 0  # in-sync sets, by followers that have caught up
    left: int = 0  # by followers that lag or are gone
    refused: int = 0  # changes of in-sync sets that the store rejected or did not confirm
    # As either:
    epochs: int = 0  # new leader epochs of replicas here

    def in_sync_changed(self, before: View | None, change: Change) -> None:
        if before is not None:
            self.joined += len(change.row.whole - before.row.whole)
            self.left += len(before.row.whole - change.row.whole)

    def received(self, replies: Sequence[PartitionReply]) -> None:
        for reply in replies:
            self.bytes_in += len(reply.data)
            self.truncations += reply.kind is ReplyKind.DIVERGE
            self.restarts += reply.kind is ReplyKind.BEHIND

    def served(self, replies: Sequence[PartitionReply]) -> None:
        self.fetches_served += 1
        for reply in replies:
            self.bytes_out += len(reply.data)


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
            log_.warning("in-sync set not changed", extra=about(key, error))

    async def stop(self) -> None:
        await cancel_all(self._proposing.values())
