"""The copies of a message for queues: their form, and the reasons why a queue cannot take one."""

from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from penstock.model.limits import MIB
from penstock.model.message import Message, Record
from penstock.model.names import STRUCTURE, SUBJECT, uuid_text
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.wire.aws.attributes import message_bytes
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns.filter_match import PreparedMessage
from penstock.wire.aws.sns.notification import (
    Envelope,
    Notification,
    Signer,
    envelope,
    fits_queue_raw,
)
from penstock.wire.aws.sns.publish_checks import texts_of

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


class Source:
    """One message of the topic. The forms in which it is copied are made when they are needed."""

    def __init__(
        self,
        record: Record,
        topic: Topic,
        partition: int,
        signer: Signer | None,
    ) -> None:
        self._record, self._topic, self._partition = record, topic, partition
        self._signer = signer
        attributes = dict(record.message.attributes or {})
        subject, structure = attributes.pop(SUBJECT, None), attributes.pop(STRUCTURE, None)
        self._subject = None if subject is None else subject.value.decode("utf-8", "replace")
        self._attributes = attributes
        body = record.message.body
        if structure is not None:
            with suppress(Fault):  # a Kafka producer can add the header to any record
                texts = texts_of(body)
                body = (texts.get("sqs") or texts["default"]).encode()
        self._body = body
        self._raw_bytes = message_bytes(body, attributes)
        self._envelope: Envelope | None = None
        self.prepared = PreparedMessage(attributes, body)

    def copy(
        self, target: Target, queue: Topic, *, message_id: bytes, is_dead: bool
    ) -> Message | Refusal:
        """Return the message for a queue. A dead-letter queue takes any number of attributes."""
        message = self._record.message
        is_ordered = queue.is_fifo
        if is_ordered and message.group is None:
            return Refusal.NO_GROUP
        body, attributes, size = self._body, None, self._raw_bytes
        if target.is_raw:
            if not is_dead and not fits_queue_raw(self._attributes):
                return Refusal.TOO_MANY_ATTRIBUTES
            attributes = self._attributes or None
        else:
            if self._envelope is None:
                self._envelope = self._make_envelope()
            body = self._envelope.body(target.unsubscribe_url)
            size = len(body)
        if size > queue.settings.message_bytes_max:
            return Refusal.TOO_LARGE
        return Message(
            message_id,
            body,
            attributes,
            message.group if is_ordered or not self._topic.is_fifo else None,
            message.dedup_id if is_ordered else None,
            queue.settings.delay_ms or None,
            target.subscription.account,
            message.trace_header,
        )

    def _make_envelope(self) -> Envelope:
        topic, record = self._topic, self._record
        is_fifo = topic.is_fifo
        return envelope(
            Notification(
                uuid_text(record.message.message_id),
                topic.sns_arn or "",
                self._body.decode("utf-8", "replace"),
                record.sent_at_ms,
                self._subject,
                self._attributes or None,
                f"{record.offset:017d}{self._partition:03d}" if is_fifo else None,
            ),
            self._signer,
        )


class Copy(NamedTuple):
    message: Message
    source: Source
    target: Target
    is_dead: bool  # goes to the dead-letter queue


class Plan:
    """Copies that are to be appended together."""

    def __init__(self) -> None:
        self.copies: dict[tuple[str, int], list[Copy]] = {}  # by queue id and partition
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
