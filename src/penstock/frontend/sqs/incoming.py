"""From one delivery to the message a client receives: its receipt, and the attributes asked for.

A ``View`` is made once per receive call from the names in the request; showing a message is then a
loop over the few things wanted."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.cursor.receipt import seal
from penstock.frontend.route import sequence_number
from penstock.model.message import Claim, Delivery
from penstock.model.names import uuid_text
from penstock.model.topic import Topic
from penstock.wire.aws.attributes import md5_of_attributes, md5_of_body, select, write_attributes
from penstock.wire.aws.shapes import ReceivedMessage

Show = Callable[[Delivery, Topic], str | None]

# The nine system attributes; None is not shown.
SYSTEM_ATTRIBUTES: Mapping[str, Show] = {
    "SenderId": lambda delivery, _: delivery.record.message.sender or None,
    "SentTimestamp": lambda delivery, _: str(delivery.record.sent_at_ms),
    "ApproximateReceiveCount": lambda delivery, _: str(delivery.attempt),
    "ApproximateFirstReceiveTimestamp": lambda delivery, _: str(delivery.first_leased_at_ms),
    "SequenceNumber": lambda delivery, topic: (
        sequence_number(delivery.partition, delivery.record.offset) if topic.is_fifo else None
    ),
    "MessageDeduplicationId": lambda delivery, topic: (
        delivery.record.message.dedup_id if topic.is_fifo else None
    ),
    "MessageGroupId": lambda delivery, _: delivery.record.message.group,
    "AWSTraceHeader": lambda delivery, _: delivery.record.message.trace_header,
    "DeadLetterQueueSourceArn": lambda delivery, _: delivery.record.message.source_arn,
}


def system_attributes(*name_lists: Sequence[str] | None) -> tuple[tuple[str, Show], ...]:
    """What either list names; names of other things are ignored, as queue attributes were once
    allowed in this place."""
    names: set[str] = set()
    for name_list in name_lists:
        names.update(name_list or ())
    if "All" in names:
        return tuple(SYSTEM_ATTRIBUTES.items())
    return tuple(row for row in SYSTEM_ATTRIBUTES.items() if row[0] in names)


class View:
    __slots__ = ("_names", "_system", "_topic")

    def __init__(
        self, topic: Topic, system: tuple[tuple[str, Show], ...], names: Iterable[str]
    ) -> None:
        self._topic = topic
        self._system = system
        self._names = tuple(names)

    def show(self, delivery: Delivery) -> ReceivedMessage:
        topic = self._topic
        record = delivery.record
        message = record.message
        body = message.body
        try:
            text = body.decode()
        except UnicodeDecodeError:  # other producers may append any bytes
            text = body.decode(errors="replace")
            body = text.encode()  # what the digest is of must be what is shown
        claim = Claim(delivery.partition, record.offset, delivery.lease_seq)
        shown = ReceivedMessage(
            message_id=uuid_text(message.message_id),
            receipt_handle=seal(topic.topic_id, topic.receipt_key, claim),
            md5_of_body=md5_of_body(body),
            body=text,
        )
        if self._system:
            shown.attributes = {
                name: value
                for name, show in self._system
                if (value := show(delivery, topic)) is not None
            } or None
        if self._names and message.attributes:
            selected = select(message.attributes, self._names)
            if selected:
                shown.message_attributes = write_attributes(selected)
                shown.md5_of_message_attributes = md5_of_attributes(selected)
        return shown
