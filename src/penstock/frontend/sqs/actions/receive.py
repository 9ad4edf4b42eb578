"""ReceiveMessage: lease up to ten messages, and wait for the first one if requested.

Hashing and encoding ten messages of 1 MiB takes 60 ms, and escaped they may be six times as large.
So a large reply is encoded message by message, its long texts in pieces; the listener writes the
pieces without joining them."""

import asyncio
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final

from penstock.cursor.leases.receipt import seal
from penstock.frontend.sqs.context import Call, Context
from penstock.frontend.sqs.protocols import Codec
from penstock.frontend.sqs.rules.requests import check_id, sequence_number, topic_of
from penstock.model.calls import Lease
from penstock.model.limits import BATCH_ENTRIES_MAX, KIB, LEASE_MS_MAX, WAIT_MS_MAX
from penstock.model.message import Claim, Delivery
from penstock.model.names import uuid_text
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpReply
from penstock.net.slices import in_slices
from penstock.wire.aws.attributes import md5_of_attributes, md5_of_body, select, write_attributes
from penstock.wire.aws.faults import invalid_value
from penstock.wire.aws.shapes import ReceivedMessage, ReceiveMessageReply, ReceiveMessageRequest

LARGE_BYTES: Final = 256 * KIB  # of bodies in one reply, or of the attributes of a message
PIECE_CHARS: Final = 64 * KIB
TOKEN_BYTES: Final = 16

Show = Callable[[Delivery, Topic], str | None]

# The nine system attributes. None: not shown.
SYSTEM_ATTRIBUTES: Final[Mapping[str, Show]] = {
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


async def receive_message(
    context: Context, call: Call, request: ReceiveMessageRequest
) -> ReceiveMessageReply | HttpReply:
    topic = topic_of(context, call, request.queue_url)
    names = {*(request.attribute_names or ()), *(request.message_system_attribute_names or ())}
    # Other names are ignored: once, names of queue attributes were allowed here.
    system = tuple(row for row in SYSTEM_ATTRIBUTES.items() if row[0] in names or "All" in names)
    deliveries = await context.broker.call(Lease(topic, _lease_request(request, topic)))
    if context.sealing is not None:
        deliveries = await context.sealing.opened(topic, deliveries)
    size_bytes = 0
    for delivery in deliveries:
        size_bytes += len(delivery.record.message.body)
    view = View(topic, system, request.message_attribute_names or ()) if deliveries else None
    reply: HttpReply | None = None
    if view is not None and _is_large(deliveries, size_bytes):
        token = context.entropy(TOKEN_BYTES).hex()
        reply = await _encode_large(call.codec, view, deliveries, call.http.request_id, token)
    context.meter.received(len(deliveries), size_bytes)
    if view is None:
        return ReceiveMessageReply()
    return reply or ReceiveMessageReply(messages=[view.show(delivery) for delivery in deliveries])


def _lease_request(request: ReceiveMessageRequest, topic: Topic) -> LeaseRequest:
    count = 1 if request.max_number_of_messages is None else request.max_number_of_messages
    if not 1 <= count <= BATCH_ENTRIES_MAX:
        raise invalid_value(count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    wait_ms, lease_ms = topic.settings.wait_ms, topic.settings.lease_ms
    if request.wait_time_seconds is not None:
        wait_ms = request.wait_time_seconds * 1_000
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise invalid_value(
                request.wait_time_seconds, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided."
            )
    if request.visibility_timeout is not None:
        lease_ms = request.visibility_timeout * 1_000
        if not 0 <= lease_ms <= LEASE_MS_MAX:
            raise invalid_value(
                request.visibility_timeout,
                "VisibilityTimeout",
                "VisibilityTimeout must be an integer between 0 and 43200, if provided.",
            )
    attempt_id = request.receive_request_attempt_id
    if attempt_id is not None:
        check_id(attempt_id, "ReceiveRequestAttemptId")
    # Only a FIFO queue repeats the reply to an attempt; elsewhere the id has no meaning.
    return LeaseRequest(count, lease_ms, wait_ms, attempt_id if topic.is_fifo else None)


class View:
    """How the messages of one reply are shown: with a receipt, and the requested attributes."""

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
        except UnicodeDecodeError:  # a Kafka producer may append any bytes
            text = body.decode(errors="replace")
            body = text.encode()  # the digest must be that of the shown text
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


def _is_large(deliveries: Sequence[Delivery], body_bytes: int) -> bool:
    if body_bytes > LARGE_BYTES:
        return True
    for delivery in deliveries:  # no generator: this runs for every receive
        attributes = delivery.record.message.attributes
        if attributes and sum(len(one.value) for one in attributes.values()) > LARGE_BYTES:
            return True
    return False


async def _encode_large(
    codec: Codec, view: View, deliveries: Sequence[Delivery], request_id: str, token: str
) -> HttpReply:
    """``token`` is random text that replaces long texts until they are encoded."""
    opening, closing, separator = codec.around_messages
    pieces: list[bytes] = []
    for number, delivery in enumerate(deliveries):
        shown = await asyncio.to_thread(view.show, delivery)  # which hashes it
        texts = _take_long_texts(shown, token)
        reply = codec.reply("ReceiveMessage", ReceiveMessageReply(messages=[shown]), request_id)
        # All replies begin and end alike: keep the beginning of the first, the end of the last.
        body = reply.body
        start = body.index(opening) + len(opening) if number else 0
        end = body.rindex(closing) if number < len(deliveries) - 1 else len(body)
        if number:
            pieces.append(separator)
        pieces += await in_slices(_filled_in(body[start:end], token, texts, codec))
    reply.body, reply.pieces = b"", tuple(pieces)
    return reply


def _take_long_texts(shown: ReceivedMessage, token: str) -> list[str]:
    texts: list[str] = []
    if len(shown.body or "") > PIECE_CHARS:
        texts.append(shown.body or "")
        shown.body = f"{token}0;"
    for value in (shown.message_attributes or {}).values():
        if len(value.string_value or "") > PIECE_CHARS:
            value.string_value, text = f"{token}{len(texts)};", value.string_value or ""
            texts.append(text)
    return texts


def _filled_in(
    body: bytes, token: str, texts: Sequence[str], codec: Codec
) -> Generator[None, None, list[bytes]]:
    pieces: list[bytes] = []
    for number, part in enumerate(re.split(rb"%b(\d+);" % token.encode(), body)):
        if number % 2 == 0:
            pieces.append(part)
            continue
        text = texts[int(part)]
        for start in range(0, len(text), PIECE_CHARS):
            pieces.append(codec.text(text[start : start + PIECE_CHARS]))
            yield None
    return pieces
