"""Dead letters: each is appended to the dead-letter queue, then acked here, in that order.

After a crash in between, the record is moved again when its short internal lease has ended. The
copy has the record's origin as its deduplication id, so a FIFO queue stores it once, and so does
any queue within this process's memory of the last five minutes.
"""

import logging
from collections.abc import Sequence

from penstock.broker.context.backup_hold import BackupHold
from penstock.broker.leases.leases import Leases
from penstock.cursor.leases.events import AckReason, Pick
from penstock.cursor.leases.redrive import dead_letter
from penstock.model.calls import Append, BrokerPort
from penstock.model.errors import PenstockError
from penstock.model.message import Claim, Message
from penstock.model.names import uuid_text
from penstock.model.ports import Catalog
from penstock.model.topic import Topic, partition_of_group

log_ = logging.getLogger(__name__)

# Of a share without a dead-letter queue: the deliveries after which a record is dropped.
ATTEMPTS_CONFIG = "share.delivery.count.limit"


class Redriver:
    def __init__(self, broker: BrokerPort, catalog: Catalog, hold: BackupHold) -> None:
        self.broker = broker
        self._hold = hold
        self._catalog = catalog

    def attempts_max(self, topic: Topic) -> int | None:
        """A rule whose queue is gone does not count: records are delivered rather than lost."""
        redrive = topic.settings.redrive
        if redrive is not None and self._target(topic) is not None:
            return redrive.attempts_max
        limit = topic.configs.get(ATTEMPTS_CONFIG)
        return None if limit is None else int(limit)

    def _target(self, topic: Topic) -> Topic | None:
        redrive = topic.settings.redrive
        target = None if redrive is None else self._catalog.find_arn(redrive.target_arn)
        return None if target is None or not topic.may_pass_messages_to(target) else target

    async def move(self, leases: Leases, picks: Sequence[Pick]) -> None:
        """Move records that have no attempts left, or that a consumer has rejected."""
        topic = leases.topic
        redrive = topic.settings.redrive
        target = self._target(topic)
        if target is not None:
            moved = await self._copy(leases, picks, target)
        elif redrive is None and topic.is_share:
            moved = list(picks)  # no dead-letter queue: dropped
        else:
            return  # the short lease ends and the record is delivered again
        if moved:
            claims = [Claim(leases.index, pick.offset, pick.lease_seq) for pick in moved]
            await self._hold.crossing()
            await leases.ack(claims, reason=AckReason.DEAD)
            leases.count_dead(len(claims))

    async def _copy(self, leases: Leases, picks: Sequence[Pick], target: Topic) -> list[Pick]:
        topic = leases.topic
        moved: list[Pick] = []
        for pick in picks:
            record = pick.record or await leases.reader.read_late(pick.offset)
            if record is None:
                continue
            letter = dead_letter(
                record,
                attempts=pick.attempt,
                source_arn=topic.arn,
                origin=f"{topic.topic_id}:{leases.index}:{pick.offset}",
                is_fifo=target.is_fifo,
            )
            try:
                await self.broker.call(Append(target, _partition_for(letter, target), [letter]))
            except PenstockError as error:
                log_.warning(
                    "dead letter not moved", extra={"topic": topic.name, "reason": str(error)}
                )
                continue
            moved.append(pick)
        return moved


def _partition_for(message: Message, target: Topic) -> int:
    return partition_of_group(
        message.group or uuid_text(message.message_id), target.partition_count
    )
