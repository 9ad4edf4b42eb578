"""Dead letters: copy to the dead-letter topic, then acknowledge here, in that order.

A crash in between moves the record again when its short internal lease has run out; the copy
carries the record's origin as its deduplication id, so a FIFO target stores it once, and so does
any target within this process's memory of the last five minutes.
"""

import logging
from collections.abc import Sequence

from penstock.broker.hold import Hold
from penstock.broker.leases import Leases
from penstock.cursor.events import AckReason
from penstock.cursor.outcome import Pick
from penstock.cursor.redrive import dead_letter
from penstock.model.errors import PenstockError
from penstock.model.message import Claim, Message
from penstock.model.names import uuid_text
from penstock.model.partitioning import partition_of_group
from penstock.model.ports import Backend, Catalog
from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)

# Of a share without a dead-letter rule: after so many deliveries it is finished with a record.
ATTEMPTS_CONFIG = "share.delivery.count.limit"


class Redriver:
    def __init__(self, backend: Backend, catalog: Catalog, hold: Hold) -> None:
        self.backend = backend
        self._hold = hold
        self._catalog = catalog

    def attempts_max(self, topic: Topic) -> int | None:
        """A rule whose target is gone does not hold: records are better delivered than lost."""
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
        """Away with records that are out of attempts, or that a consumer has rejected."""
        topic = leases.topic
        redrive = topic.settings.redrive
        target = self._target(topic)
        if target is not None:
            moved = await self._copy(leases, picks, target)
        elif redrive is None and topic.is_share:
            moved = list(picks)  # nobody wants dead letters: finished with
        else:
            return  # the short lease runs out and the record is delivered again
        if moved:
            claims = [Claim(leases.index, pick.offset, pick.lease_seq) for pick in moved]
            await self._hold.crossing()
            await leases.ack(claims, reason=AckReason.DEAD)
            leases.count_dead(len(claims))

    async def _copy(self, leases: Leases, picks: Sequence[Pick], target: Topic) -> list[Pick]:
        topic = leases.topic
        moved: list[Pick] = []
        for pick in picks:
            record = pick.record or await leases.read(pick.offset)
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
                await self.backend.append(target, _partition_for(letter, target), [letter])
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
