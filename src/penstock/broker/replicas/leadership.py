"""One epoch in which this node leads a partition, as the journal and the partition see it."""

from typing import TYPE_CHECKING

from penstock.model.errors import Damaged, NotEnoughReplicas

if TYPE_CHECKING:
    from penstock.broker.replicas.replicator import Replicator

ASYNC_CONFIG = "penstock.replication"


class Leadership:
    """Implements ``journal.Replication``. Once ``is_over`` is set, calls have no effect."""

    def __init__(self, replicator: "Replicator") -> None:
        self._replicator = replicator
        self._replica = replicator.replica
        self.epoch = self._replica.epoch
        self.is_over = False
        self.is_paused = False  # about to hand over: new requests wait for the next leader

    @property
    def high_watermark(self) -> int:
        return self._replica.high_watermark

    @property
    def is_awaited(self) -> bool:
        """Also once other nodes may consider this node dead (R20)."""
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
        """Also after the end of the epoch: this is about the file of this node."""
        self._replicator.replica.stored_low_watermark(offset)
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
            raise NotEnoughReplicas("This node has lost its registration in the cluster. Retry.")
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
        """A sync that ends after the epoch says nothing about the log of the next leader."""
        if self.is_over:
            return self._replica.high_watermark
        return self._replica.synced(min(durable_offset, self._replica.end_offset))
