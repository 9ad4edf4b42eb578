"""The leader's side of replication: ``Leadership`` connects a partition's journal with replication;
``InSyncSets`` checks all in-sync sets twice a second and when a node starts or stops."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.context.timers import cancel_all
from penstock.broker.replicas.follower_log import about
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import Damaged, NotEnoughReplicas, PenstockError, VersionConflict
from penstock.replication.row import Change, View
from penstock.wire.internal.node_calls import PartitionReply, ReplyKind

if TYPE_CHECKING:
    from penstock.broker.replicas.replicator import Replicator

ASYNC_CONFIG = "penstock.replication"


class Leadership:
    """One epoch in which this node leads a partition. After its end, calls have no effect."""

    def __init__(self, replicator: "Replicator") -> None:
        self._replicator = replicator
        self._replica = replicator.replica
        self.epoch = self._replica.epoch
        self.is_over = False
        self.is_paused = False  # about to hand over; new requests go to the next leader

    @property
    def high_watermark(self) -> int:
        return self._replica.high_watermark

    @property
    def is_awaited(self) -> bool:
        """Whether replies wait for the commit. Always True after this node has lost its lease."""
        return not self._is_async or not self._replicator.home.is_registered

    @property
    def _is_async(self) -> bool:
        return self._replicator.topic.configs.get(ASYNC_CONFIG) == "async"

    @property
    def held_offset(self) -> int:
        return self._replica.held_offset

    @property
    def is_settled(self) -> bool:
        leader = self._replica.leader
        return leader is not None and leader.epoch == self.epoch and leader.is_settled

    @property
    def level(self) -> int:
        return self._replicator.home.level()

    def stored_low_watermark(self, offset: int) -> None:
        self._replicator.replica.low_watermark = offset
        self._replicator.wake()

    async def low_watermark_held(self, offset: int) -> None:
        while not self.is_over and self._replica.leader is not None:
            if self._replica.low_watermark_held >= offset:
                return
            await self._replicator.low_watermark_moved()
        raise self._replicator.outcome_unknown()

    def check_accepts(self) -> None:
        leader = self._replica.leader
        if leader is None or self.is_over or self.is_paused:
            raise self._replicator.not_leader()
        row = leader.row
        home = self._replicator.home
        if self._is_async and not home.is_registered:
            raise NotEnoughReplicas("This node lost its registration in the cluster; retry later.")
        alive = sum(home.is_alive(node) for node in row.whole)
        if alive < row.in_sync_min:
            raise NotEnoughReplicas(
                f"{self._replicator.key}: {alive} of {len(row.replicas)} replicas are in sync;"
                f" the topic requires {row.in_sync_min}."
            )

    def appended(self, next_offset: int) -> None:
        if not self.is_over:
            self._replica.appended(self.epoch, next_offset)
            self._replicator.wake()

    def damaged(self, damage: Damaged) -> None:
        if not self.is_over:
            self._replicator.damaged(damage)

    def synced(self, durable_offset: int) -> int:
        """Update the durable offset, unless ``is_over``. Returns the high watermark."""
        if self.is_over:
            return self._replica.high_watermark
        return self._replica.synced(min(durable_offset, self._replica.end_offset))


@dataclass(slots=True)
class ReplicationCounts:
    # As a follower:
    fetches_asked: int = 0
    fetches_unanswered: int = 0  # no such node, or no reply in time
    bytes_in: int = 0
    truncations: int = 0  # logs that diverged from their leader's log
    restarts: int = 0  # logs that ended before the start of their leader's log
    # As a leader:
    fetches_served: int = 0
    bytes_out: int = 0
    joined: int = 0  # followers that caught up and joined an in-sync set
    left: int = 0  # followers that left because they lagged or stopped
    refused: int = 0  # changes of in-sync sets that failed or have an unknown outcome
    # As leader or follower:
    epochs: int = 0  # new leader epochs of the replicas on this node

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


@dataclass(eq=False)
class InSyncSets:
    replicas: Mapping[PartitionKey, "Replicator"]
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

    def _begin(self, key: PartitionKey, replicator: "Replicator", change: Change) -> None:
        task = asyncio.create_task(self._propose(key, replicator, change), name=f"in sync: {key}")
        self._proposing[key] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._proposing[key]
            if not task.cancelled() and (error := task.exception()) is not None:
                log_.error("in-sync set not changed", extra={"partition": str(key)}, exc_info=error)

        task.add_done_callback(ended)

    async def _propose(self, key: PartitionKey, replicator: "Replicator", change: Change) -> None:
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
