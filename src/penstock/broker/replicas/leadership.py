"""``Leadership`` connects the journal of a partition that this node leads with replication.
``ReplicationCounts`` has the counts for metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.replicas.open_replica import OpenReplica
from penstock.model.errors import Damaged, NotEnoughReplicas
from penstock.replication.row import Change, View
from penstock.wire.internal.node_calls import PartitionReply, ReplyKind

ASYNC_CONFIG = "penstock.replication"


class Leadership:
    """One epoch in which this node leads a partition. After its end, calls have no effect."""

    def __init__(self, owner: OpenReplica) -> None:
        self._owner = owner
        self._home = owner.home
        self._replica = owner.replica
        self.epoch = self._replica.epoch
        self.is_over = False
        self.is_paused = False  # about to hand over; new requests go to the next leader

    @property
    def high_watermark(self) -> int:
        return self._replica.high_watermark

    @property
    def is_awaited(self) -> bool:
        """Whether replies wait for the commit. Always True after this node has lost its lease."""
        return not self._is_async or not self._home.is_registered

    @property
    def _is_async(self) -> bool:
        return self._owner.topic.configs.get(ASYNC_CONFIG) == "async"

    @property
    def held_offset(self) -> int:
        return self._replica.held_offset

    @property
    def is_settled(self) -> bool:
        leader = self._replica.leader
        return leader is not None and leader.epoch == self.epoch and leader.is_settled

    @property
    def level(self) -> int:
        return self._home.level()

    def stored_low_watermark(self, offset: int) -> None:
        self._owner.replica.low_watermark = offset
        self._owner.wake()

    async def low_watermark_held(self, offset: int) -> None:
        while not self.is_over and self._replica.leader is not None:
            if self._replica.low_watermark_held >= offset:
                return
            await self._owner.low_watermark_moved()
        raise self._owner.outcome_unknown()

    def check_accepts(self) -> None:
        leader = self._replica.leader
        if leader is None or self.is_over or self.is_paused:
            raise self._owner.not_leader()
        row = leader.row
        if self._is_async and not self._home.is_registered:
            raise NotEnoughReplicas("This node lost its registration in the cluster; retry later.")
        alive = sum(self._home.is_alive(node) for node in row.whole)
        if alive < row.in_sync_min:
            raise NotEnoughReplicas(
                f"{self._owner.key}: {alive} of {len(row.replicas)} replicas are in sync;"
                f" the topic requires {row.in_sync_min}."
            )

    def appended(self, next_offset: int) -> None:
        if not self.is_over:
            self._replica.appended(self.epoch, next_offset)
            self._owner.wake()

    def damaged(self, damage: Damaged) -> None:
        if not self.is_over:
            self._owner.damaged(damage)

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
