"""The positions of a backup: start and end of each log that this node leads, at one moment.

All positions of a stage are taken in one turn of the loop. A node without a cluster takes all
stages at once; in a cluster each is taken on all nodes before the next. Transactions come first,
which are decided after their records were written, then groups, whose offsets refer to earlier
records, then all others: with crossings held, no message is acked in one log and missing in the
other. The caller verifies in the store afterwards that this node led each partition in its epoch.
"""

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
from penstock.wire.internal.backup_calls import (
    HOLD,
    POSITIONS,
    HoldReply,
    HoldRequest,
    PartitionPositions,
    PositionsReply,
    PositionsRequest,
)
from penstock.wire.internal.calls import CallHandlers


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
        """Open topics that were not used yet, on a node without a cluster."""
        for topic in topics:
            if not topic.is_share and self._partitions.find(topic) is None:
                with contextlib.suppress(TopicNotFound):
                    await self._partitions.open(topic)

    def take(self, *stages: Stage) -> Sequence[PartitionPositions]:
        """Take positions; without an await, so that it is one moment."""
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
