"""A message of a client, a record (a message with an offset), and a delivery (a lease of a record).
They are msgspec structs, which are three times as fast to create as frozen dataclasses and are not
tracked by the garbage collector."""

from collections.abc import Mapping
from enum import IntEnum

import msgspec


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """A message attribute. Its data type may have a custom label, as in ``Number.float``."""

    data_type: str
    value: bytes

    @property
    def is_binary(self) -> bool:
        return self.data_type.startswith("Binary")


class Message(msgspec.Struct, frozen=True, gc=False):
    message_id: bytes  # 16 bytes, chosen by the frontend
    body: bytes
    attributes: Mapping[str, Attribute] | None = None
    group: str | None = None  # message group for FIFO order or fairness; the key of the record
    dedup_id: str | None = None
    delay_ms: int | None = None  # None: the delay of the queue when the message was sent
    sender: str = ""
    trace_header: str | None = None
    # Set for a dead letter:
    attempts: int = 0  # leases in earlier queues
    source_arn: str | None = None  # the queue that the message comes from
    sent_at_ms: int | None = None  # time of the first append; None: the record's own time
    is_sealed: bool = False  # the body is encrypted, with the attributes inside


class Record(msgspec.Struct, frozen=True, gc=False):
    offset: int
    appended_at_ms: int  # wall clock of the leader, never decreasing along the log
    message: Message

    @property
    def sent_at_ms(self) -> int:
        sent_at_ms = self.message.sent_at_ms
        appended_at_ms = self.appended_at_ms
        # The clock of the node that sent a dead letter may be ahead of this leader's.
        return appended_at_ms if sent_at_ms is None else min(sent_at_ms, appended_at_ms)


class Delivery(msgspec.Struct, frozen=True, gc=False):
    partition: int
    record: Record
    lease_seq: int  # distinguishes the leases of a record
    attempt: int  # number of leases so far, including this one and those in earlier queues
    first_leased_at_ms: int  # wall clock

    @property
    def claim(self) -> "Claim":
        return Claim(self.partition, self.record.offset, self.lease_seq)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The lease that a receipt handle proves."""

    partition: int
    offset: int
    lease_seq: int


class AckReason(IntEnum):
    """Why a message is finished. The values are stored in the log."""

    ACKED = 0  # by a consumer, or delivered to the endpoint of a subscription
    DEAD = 1  # copied to the dead-letter queue
    EXPIRED = 2  # past its retention
    # From feature level 8 on, by subscriptions:
    DROPPED = 3  # given up, without a dead-letter queue
    UNWANTED = 4  # the filter policy does not match; known only after decryption


class Appended(msgspec.Struct, frozen=True, gc=False):
    partition: int
    offset: int
    message_id: bytes  # for a duplicate, the id of the first message
    is_duplicate: bool = False
