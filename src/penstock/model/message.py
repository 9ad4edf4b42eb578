"""What a client sends (message), the same with its place in the log (record), and one lease of it
(delivery). These pass through the hot path, so they are msgspec structs: measured three times
cheaper to build than frozen dataclasses, and invisible to the garbage collector."""

from collections.abc import Mapping

import msgspec


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """A message attribute. ``data_type`` is ``String``, ``Number`` or ``Binary`` with an optional
    ``.label``; text values are held as UTF-8, so that a record header can carry them unchanged."""

    data_type: str
    value: bytes

    @property
    def is_binary(self) -> bool:
        return self.data_type.startswith("Binary")


class Message(msgspec.Struct, frozen=True, gc=False):
    message_id: bytes  # 16 bytes, made by the frontend
    body: bytes
    attributes: Mapping[str, Attribute] | None = None
    group: str | None = None  # order (FIFO) or fairness (standard); the record's key
    dedup_id: str | None = None
    delay_ms: int | None = None  # None: the queue's own delay, as it was when the message was sent
    sender: str = ""
    trace_header: str | None = None
    # What a message keeps when it is dead-lettered:
    attempts: int = 0  # leases used up in the queues it came from
    source_arn: str | None = None  # the queue it was dead-lettered from
    sent_at_ms: int | None = None  # its first append; None: the record's own time
    # The body is a sealed one with the attributes inside: for delivery the frontend opens it.
    is_sealed: bool = False


class Record(msgspec.Struct, frozen=True, gc=False):
    offset: int
    appended_at_ms: int  # wall clock of the leader at append, never decreasing along the log
    message: Message

    @property
    def sent_at_ms(self) -> int:
        sent_at_ms = self.message.sent_at_ms
        appended_at_ms = self.appended_at_ms
        # The clock of the node where the message died may be ahead of this leader's clock.
        return appended_at_ms if sent_at_ms is None else min(sent_at_ms, appended_at_ms)


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One record leased to one consumer."""

    partition: int
    record: Record
    lease_seq: int  # distinguishes this lease of the record from every other
    attempt: int  # how often it has been leased, this time included, earlier queues included
    first_leased_at_ms: int  # wall clock


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a receipt proves: that this record was leased under this number."""

    partition: int
    offset: int
    lease_seq: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    partition: int
    offset: int
    message_id: bytes  # of the first message where this one was a duplicate
    is_duplicate: bool = False
