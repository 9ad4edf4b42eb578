"""The positions of a backup are the start and end offsets of the logs that this node leads.

Positions are taken in three stages: first of the log of transactions, then of the log of consumer
groups, then of all other logs. The outcome of a transaction is written after its records, and
committed offsets refer to records written before, so in a restored backup neither refers to missing
records. In a cluster, a stage begins when all nodes have finished the previous one, and
``BackupHold`` delays messages that move between logs. Afterwards the caller checks in the metadata
store that this node led each partition in the reported epoch."""

import contextlib
from collections.abc import Sequence
from enum import IntEnum

from penstock.broker.context.context import BackupHold
from penstock.broker.coordination.groups import TOPIC_NAME as GROUPS_TOPIC
from penstock.broker.coordination.transactions import TOPIC_NAME as TRANSACTIONS_TOPIC
from penstock.broker.partition.partitions import Partitions
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.wire.internal.calls import CallHandlers
from penstock.wire.internal.node_calls import (
    HOLD,
    POSITIONS,
    HoldReply,
    HoldRequest,
    PartitionPositions,
    PositionsReply,
    PositionsRequest,
)


class Stage(IntEnum):
    TRANSACTIONS = 0
    GROUPS = 1
    OTHERS = 2


STAGES = tuple(Stage)


def stage_of(topic: Topic) -> Stage:
    if topic.is_queue:
        return Stage.OTHERS
    if topic.name == TRANSACTIONS_TOPIC:
        return Stage.TRANSACTIONS
    return Stage.GROUPS if topic.name == GROUPS_TOPIC else Stage.OTHERS


class BackupPositions:
    def __init__(self, partitions: Partitions, hold: BackupHold, clock: Clock) -> None:
        self._partitions = partitions
        self._hold = hold
        self._clock = clock

    def register(self, handlers: CallHandlers) -> None:
        handlers.add(HOLD, lambda request, _caller: HoldReply(self.hold(request)))
        handlers.add(POSITIONS, lambda request, _caller: self.take_held(request))

    def hold(self, request: HoldRequest) -> bool:
        self._hold.keep_segments(request.segments_ms, now_ms=self._clock.mono_ms())
        if request.crossings_ms <= 0:
            self._hold.release_crossings(request.holder)
            return True
        return self._hold.hold_crossings(request.holder, request.crossings_ms)

    async def open(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            if not topic.is_share and self._partitions.find(topic) is None:
                with contextlib.suppress(TopicNotFound):
                    await self._partitions.open(topic)

    def take(self, *stages: Stage) -> Sequence[PartitionPositions]:
        """Return the start and end offsets of all logs that belong to these stages of a backup."""
        taken = []
        for queue in self._partitions.queues():
            if queue.topic.is_share or stage_of(queue.topic) not in stages:
                continue
            for partition in queue.partitions.values():
                ends = partition.ends()
                taken.append(
                    PartitionPositions(
                        partition.topic.topic_id,
                        partition.index,
                        ends.start_offset,
                        ends.high_watermark,
                        ends.leader_epoch,
                        ends.is_settled,
                        partition.log.size_bytes,
                    )
                )
        return taken

    def take_held(self, request: PositionsRequest) -> PositionsReply:
        if not self._hold.holds_crossings(request.holder):
            return PositionsReply(is_held=False)
        if request.stage not in STAGES:
            raise InvalidRequest(f"Backup stage {request.stage} does not exist.")
        return PositionsReply(is_held=True, positions=self.take(Stage(request.stage)))
