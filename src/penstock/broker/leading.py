"""One epoch in which this node leads a partition, as the journal and the partition see it."""

from typing import TYPE_CHECKING

from penstock.model.errors import Damaged, NotEnoughReplicas

if TYPE_CHECKING:
    from penstock.broker.replicator import Replicator

ASYNC_CONFIG = "penstock.replication"


class Leading:
    """``journal.Replication``: one epoch in which this node leads. It ends with ``end``, and then
    does nothing any more, whoever still holds it."""

    def __init__(self, replicator: "Replicator") -> None:
        self._replicator = replicator
        self._replica = replicator.replica
        self.epoch = self._replica.epoch
        self.is_over = False
        self.is_paused = False  # about to hand over: what comes now waits for the next leader

    @property
    def high_watermark(self) -> int:
        return self._replica.high_watermark

    @property
    def is_awaited(self) -> bool:
        """Always, once this node may have been taken for dead: what was taken before that, and is
        not answered yet, is then answered when the others have it, or not at all (R20)."""
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
        return self._replicator.home.level

    def stored_low_watermark(self, offset: int) -> None:
        """Also after the end of the epoch: the file of this node says so."""
        self._replicator.replica.stored_low_watermark(offset)
        self._replicator.wake()

    async def low_watermark_held(self, offset: int) -> None:
        while not self.is_over and self._replica.leader is not None:
            if self._replica.low_watermark_held >= offset:
                return
            await self._replicator.low_watermark_moved()
        raise self._replicator.unknown()

    def check_takes(self) -> None:
        leader = self._replica.leader
        if leader is None or self.is_over or self.is_paused:
            raise self._replicator.not_leader()
        row = leader.row
        home = self._replicator.home
        if self._is_async and not home.is_registered:
            raise NotEnoughReplicas("This node may have been taken for dead: it does not answer.")
        alive = sum(home.is_alive(node) for node in row.whole)
        if alive < row.in_sync_min:
            raise NotEnoughReplicas(
                f"{self._replicator.key}: {alive} of {len(row.replicas)} replicas are in sync, and"
                f" the topic asks for {row.in_sync_min}."
            )

    def appended(self, next_offset: int) -> None:
        if not self.is_over:
            self._replica.appended(self.epoch, next_offset)
            self._replicator.wake()

    def damaged(self, damage: Damaged) -> None:
        if not self.is_over:
            self._replicator.damaged(damage)

    def synced(self, durable_offset: int) -> int:
        """A sync that ends after the epoch did tells nothing about the log of another."""
        if self.is_over:
            return self._replica.high_watermark
        return self._replica.synced(min(durable_offset, self._replica.end_offset))
