"""The copies of a message for queues: their form, and the reasons why a queue cannot take one."""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from penstock.model.limits import MIB
from penstock.model.message import Message
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.push.published import Published
from penstock.wire.aws.attributes import message_bytes
from penstock.wire.aws.sns.notification import (
    fits_queue_raw,
)

PLANNED_BYTES_MAX: Final = 16 * MIB  # of copies in memory
PLANNED_MAX: Final = 20_000  # copies in memory, about 500 bytes each


class Refusal(StrEnum):
    """Why a queue can never take a copy."""

    MISSING = "missing"
    DENIED = "denied"  # by the policy of the queue
    TOO_LARGE = "too_large"
    TOO_MANY_ATTRIBUTES = "too_many_attributes"
    NO_GROUP = "no_group"  # a FIFO queue, but the message has no group
    INVALID = "invalid"  # for another reason, which the broker gave


class Target(msgspec.Struct, frozen=True):
    """One subscribed queue."""

    subscription: Subscription
    is_raw: bool
    start: int  # the first offset to copy
    unsubscribe_url: str
    dead_letter_arn: str | None

    def from_offset(self, start: int) -> "Target":
        return msgspec.structs.replace(self, start=start)


def copy_of(
    source: Published, target: Target, queue: Topic, *, message_id: bytes, is_dead: bool
) -> Message | Refusal:
    """Return the message for a queue. A dead-letter queue takes any number of attributes."""
    message = source.record.message
    is_ordered = queue.is_fifo
    if is_ordered and message.group is None:
        return Refusal.NO_GROUP
    body, attributes = source.body, None
    if target.is_raw:
        if not is_dead and not fits_queue_raw(source.attributes):
            return Refusal.TOO_MANY_ATTRIBUTES
        attributes = source.attributes or None
        size = message_bytes(body, source.attributes)
    else:
        body = source.envelope.body(target.unsubscribe_url)
        size = len(body)
    if size > queue.settings.message_bytes_max:
        return Refusal.TOO_LARGE
    return Message(
        message_id,
        body,
        attributes,
        message.group if is_ordered or not source.topic.is_fifo else None,
        message.dedup_id if is_ordered else None,
        queue.settings.delay_ms or None,
        target.subscription.account,
        message.trace_header,
    )


class Copy(NamedTuple):
    message: Message
    source: Published
    target: Target
    refusal: Refusal | None  # why it goes to the dead-letter queue; None: to its own queue


Place = tuple[str, int]  # queue id and partition


class Plan:
    """Copies that are to be appended together."""

    def __init__(self) -> None:
        self.copies: dict[Place, list[Copy]] = {}
        self.queues: dict[str, Topic] = {}
        self._count = self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes > PLANNED_BYTES_MAX or self._count > PLANNED_MAX

    def add(self, queue: Topic, partition: int, copy: Copy) -> None:
        self.queues[queue.topic_id] = queue
        self.copies.setdefault((queue.topic_id, partition), []).append(copy)
        self._count += 1
        self._bytes += len(copy.message.body)


def dead_letter_arn(one: Subscription) -> str | None:
    """Return the ARN of the dead-letter queue of a subscription."""
    policy = one.attributes.get("RedrivePolicy")
    return None if policy is None else _decode_redrive(policy).dead_letter_target_arn


class _Redrive(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str


# The text was checked when it was set.
_decode_redrive: Final = msgspec.json.Decoder(_Redrive).decode
