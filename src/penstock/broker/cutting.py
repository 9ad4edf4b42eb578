"""Where a backup cuts the logs that this node leads: how far each of them goes at one moment.

All positions of a stage are taken in one turn of the loop, so between them nothing has happened. A
node by itself takes them all at once. Of several nodes each stage is taken everywhere before the
next begins, what others refer to last:

    transactions    what a decided transaction has written was written before it was decided
    groups          an offset is committed after the record that it speaks of
    all others      with crossings held, no message is finished with here and missing there

Whether a partition is really led here in the epoch it says, is for whoever asks to find out in the
store, afterwards: then it was so at this moment.
"""

import contextlib
from collections.abc import Sequence
from enum import IntEnum

from penstock.broker.groups import TOPIC_NAME as GROUPS_TOPIC
from penstock.broker.hold import Hold
from penstock.broker.partitions import Partitions
from penstock.broker.transactions import TOPIC_NAME as TRANSACTIONS_TOPIC
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.wire.internal.backup_calls import (
    HOLD,
    TAKE,
    HoldAsked,
    HoldTold,
    TakeAsked,
    Taken,
    TakeTold,
)
from penstock.wire.internal.calls import Answers, Asked


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


class Cutting:
    def __init__(self, partitions: Partitions, hold: Hold, clock: Clock) -> None:
        self._partitions = partitions
        self._hold = hold
        self._clock = clock

    def register(self, answers: Answers) -> None:
        answers.add(HOLD, self._hold_asked)
        answers.add(TAKE, self._take_asked)

    def hold(self, asked: HoldAsked) -> bool:
        self._hold.keep_segments(asked.segments_ms, now_ms=self._clock.mono_ms())
        if asked.crossings_ms <= 0:
            self._hold.release_crossings(asked.holder)
            return True
        return self._hold.hold_crossings(asked.holder, asked.crossings_ms)

    async def open(self, topics: Sequence[Topic]) -> None:
        """Those that nobody has used yet: a node by itself opens them when somebody does."""
        for topic in topics:
            if not topic.is_share and self._partitions.find(topic) is None:
                with contextlib.suppress(TopicNotFound):
                    await self._partitions.open(topic)

    def take(self, *stages: Stage) -> Sequence[Taken]:
        """No await in here: it is one moment."""
        taken = []
        for queue in self._partitions.queues():
            if queue.topic.is_share or stage_of(queue.topic) not in stages:
                continue
            for partition in queue.partitions.values():
                ends = partition.ends()
                taken.append(
                    Taken(
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

    def take_held(self, request: TakeAsked) -> TakeTold:
        """One stage, if crossings have been held up to now. Raises InvalidRequest."""
        if not self._hold.holds_crossings(request.holder):
            return TakeTold(is_held=False)
        if request.stage not in STAGES:
            raise InvalidRequest(f"There is no stage {request.stage} of a backup.")
        return TakeTold(is_held=True, taken=self.take(Stage(request.stage)))

    def _hold_asked(self, request: HoldAsked, _asked: Asked) -> HoldTold:
        return HoldTold(self.hold(request))

    def _take_asked(self, request: TakeAsked, _asked: Asked) -> TakeTold:
        return self.take_held(request)
