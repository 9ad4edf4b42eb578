"""ReceiveMessage, DeleteMessage and ChangeMessageVisibility, single and in batches.

Hashing and encoding ten messages of 1 MiB takes 60 ms, so a large reply is encoded in pieces,
between which other requests are served; the listener writes the pieces without joining them."""

import asyncio
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from penstock.cursor.leases.receipt import open_receipt, seal
from penstock.frontend.aws.context import (
    Call,
    call_partitions,
    check_entries,
    check_id,
    failed,
    sequence_number,
    topic_of,
)
from penstock.frontend.aws.protocols import Codec
from penstock.model.calls import Ack, BrokerCall, Extend, Lease, Results
from penstock.model.errors import InvalidReceipt, InvalidRequest, PenstockError
from penstock.model.limits import BATCH_ENTRIES_MAX, KIB, LEASE_MS_MAX, WAIT_MS_MAX
from penstock.model.message import Claim, Delivery
from penstock.model.names import uuid_text
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpReply
from penstock.net.slices import in_slices
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.attributes import md5_of_attributes, md5_of_body, select, write_attributes
from penstock.wire.aws.faults import Fault, fault_of, invalid_value, missing

LARGE_BYTES: Final = 256 * KIB  # size of a large reply, or of large attributes of a message
PIECE_CHARS: Final = 64 * KIB
TOKEN_BYTES: Final = 16
LEASE_S_MAX: Final = LEASE_MS_MAX // 1_000

T = TypeVar("T")
Show = Callable[[Delivery, Topic], str | None]

# The nine system attributes. An attribute whose function returns None is not shown.
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


async def receive_message(call: Call, request: aws.ReceiveMessageRequest) -> aws.Reply | HttpReply:
    context = call.context
    topic = topic_of(call, request.queue_url)
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
        return aws.ReceiveMessageReply()
    return reply or aws.ReceiveMessageReply(messages=[view.show(each) for each in deliveries])


def _lease_request(request: aws.ReceiveMessageRequest, topic: Topic) -> LeaseRequest:
    count = 1 if request.max_number_of_messages is None else request.max_number_of_messages
    if not 1 <= count <= BATCH_ENTRIES_MAX:
        raise invalid_value(count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    wait_ms, lease_ms = topic.settings.wait_ms, topic.settings.lease_ms
    seconds = request.wait_time_seconds
    if seconds is not None:
        wait_ms = seconds * 1_000
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            reason = "Must be >= 0 and <= 20, if provided."
            raise invalid_value(seconds, "WaitTimeSeconds", reason)
    seconds = request.visibility_timeout
    if seconds is not None:
        lease_ms = seconds * 1_000
        if not 0 <= lease_ms <= LEASE_MS_MAX:
            reason = "VisibilityTimeout must be an integer between 0 and 43200, if provided."
            raise invalid_value(seconds, "VisibilityTimeout", reason)
    attempt_id = request.receive_request_attempt_id
    if attempt_id is not None:
        check_id(attempt_id, "ReceiveRequestAttemptId")
    # Standard queues ignore ReceiveRequestAttemptId.
    return LeaseRequest(count, lease_ms, wait_ms, attempt_id if topic.is_fifo else None)


@dataclass(slots=True)
class View:
    topic: Topic
    system: tuple[tuple[str, Show], ...]
    names: Sequence[str]

    def show(self, delivery: Delivery) -> aws.ReceivedMessage:
        topic = self.topic
        record = delivery.record
        message = record.message
        body = message.body
        try:
            text = body.decode()
        except UnicodeDecodeError:  # a Kafka producer may append any bytes
            text = body.decode(errors="replace")
            body = text.encode()  # the MD5 must match the shown text
        claim = Claim(delivery.partition, record.offset, delivery.lease_seq)
        shown = aws.ReceivedMessage(
            message_id=uuid_text(message.message_id),
            receipt_handle=seal(topic.topic_id, topic.receipt_key, claim),
            md5_of_body=md5_of_body(body),
            body=text,
        )
        if self.system:
            shown.attributes = {
                name: value
                for name, show in self.system
                if (value := show(delivery, topic)) is not None
            } or None
        if self.names and message.attributes:
            selected = select(message.attributes, self.names)
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
    """Encode a reply in pieces. Long texts are filled in at placeholders that contain ``token``."""
    opening, closing, separator = codec.around_messages
    pieces: list[bytes] = []
    for number, delivery in enumerate(deliveries):
        shown = await asyncio.to_thread(view.show, delivery)  # hashing takes long
        texts = _take_long_texts(shown, token)
        reply = codec.reply("ReceiveMessage", aws.ReceiveMessageReply(messages=[shown]), request_id)
        # All replies begin and end alike: keep the beginning of the first, the end of the last.
        body = reply.body
        start = body.index(opening) + len(opening) if number else 0
        end = body.rindex(closing) if number < len(deliveries) - 1 else len(body)
        if number:
            pieces.append(separator)
        pieces += await in_slices(_filled_in(body[start:end], token, texts, codec))
    reply.body, reply.pieces = b"", tuple(pieces)
    return reply


def _take_long_texts(shown: aws.ReceivedMessage, token: str) -> list[str]:
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


async def delete_message(call: Call, request: aws.DeleteMessageRequest) -> None:
    topic = topic_of(call, request.queue_url)
    claim = _claim(request.receipt_handle, topic)
    [error] = await call.context.broker.call(Ack(topic, claim.partition, (claim,)))
    if error is not None:
        raise _fault_of(error, request)
    call.context.meter.deleted(1)


async def change_visibility(call: Call, request: aws.ChangeMessageVisibilityRequest) -> None:
    """Change the visibility timeout of a received message. Zero makes it visible at once."""
    topic = topic_of(call, request.queue_url)
    lease_ms = _lease_ms(request.visibility_timeout)
    claim = _claim(request.receipt_handle, topic)
    [error] = await call.context.broker.call(Extend(topic, claim.partition, ((claim, lease_ms),)))
    if error is not None:
        raise _fault_of(error, request)


async def delete_message_batch(call: Call, request: aws.DeleteMessageBatchRequest) -> aws.Reply:
    ids, failures = await _each(call, request, Ack, lambda _, claim: claim)
    call.context.meter.deleted(len(ids))
    successes = [aws.DeleteMessageBatchResultEntry(id=each) for each in ids]
    return aws.DeleteMessageBatchReply(successful=successes or None, failed=failures)


async def change_visibility_batch(
    call: Call, request: aws.ChangeMessageVisibilityBatchRequest
) -> aws.Reply:
    ids, failures = await _each(
        call, request, Extend, lambda entry, claim: (claim, _lease_ms(entry.visibility_timeout))
    )
    successes = [aws.ChangeMessageVisibilityBatchResultEntry(id=each) for each in ids]
    return aws.ChangeMessageVisibilityBatchReply(successful=successes or None, failed=failures)


async def _each(
    call: Call,
    request: aws.DeleteMessageBatchRequest | aws.ChangeMessageVisibilityBatchRequest,
    kind: Callable[[Topic, int, Sequence[T]], BrokerCall[Results]],
    prepare: Callable[[Any, Claim], T],
) -> tuple[list[str], list[aws.BatchResultErrorEntry] | None]:
    """Make the broker calls for all entries of a batch request. Returns the ids of the entries that
    succeeded, and the entries that failed (None instead of an empty list)."""
    topic = topic_of(call, request.queue_url)
    entries: Sequence[Any] = request.entries or []
    check_entries(entries, entry_name=f"{type(request).__name__}Entry")
    failures: list[aws.BatchResultErrorEntry] = []
    parts: dict[int, list[tuple[int, T]]] = {}
    for index, entry in enumerate(entries):
        try:
            claim = _claim(entry.receipt_handle, topic)
            parts.setdefault(claim.partition, []).append((index, prepare(entry, claim)))
        except Fault as error:
            failures.append(failed(entry, error))
    broker, call_of = call.context.broker, partial(kind, topic)
    results = await call_partitions(broker, parts, call_of) if parts else {}
    ids: list[str] = []
    for index, result in sorted(results.items()):
        entry = entries[index]
        if result is None:
            ids.append(entry.id or "")
        else:
            failures.append(failed(entry, _fault_of(result, entry)))
    return ids, failures or None


def _claim(receipt: str | None, topic: Topic) -> Claim:
    if not receipt:
        raise missing("ReceiptHandle")
    try:
        return open_receipt(receipt, topic.topic_id, topic.receipt_key)
    except InvalidReceipt as error:
        raise fault_of(error, receipt=receipt) from None


def _lease_ms(seconds: int | None) -> int:
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not 0 <= seconds <= LEASE_S_MAX:
        reason = f"VisibilityTimeout must be an integer between 0 and {LEASE_S_MAX}."
        raise invalid_value(seconds, "VisibilityTimeout", reason)
    return seconds * 1_000


def _fault_of(error: Exception, entry: Any) -> Fault:
    if not isinstance(error, PenstockError):
        raise error
    seconds = getattr(entry, "visibility_timeout", None)
    if type(error) is InvalidRequest and seconds is not None:
        reason = "Total VisibilityTimeout for the message is beyond the limit"
        return invalid_value(seconds, "VisibilityTimeout", f"{reason} [{LEASE_S_MAX} seconds]")
    return fault_of(error, receipt=entry.receipt_handle or "")
