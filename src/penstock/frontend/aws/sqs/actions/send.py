"""SendMessage and SendMessageBatch."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256

import msgspec

from penstock.frontend.aws.context import (
    Call,
    call_partitions,
    check_entries,
    check_id,
    failed,
    invalid,
    read_only,
    sequence_number,
    topic_of,
)
from penstock.model.calls import Append
from penstock.model.errors import PenstockError
from penstock.model.limits import DELAY_MS_MAX, MESSAGE_BYTES_MAX
from penstock.model.message import Message
from penstock.model.names import uuid_text
from penstock.model.topic import Kind, Topic, partition_of_group
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.attributes import (
    TRACE_HEADER,
    body_bytes,
    md5_of_attributes,
    md5_of_body,
    message_bytes,
    read_attributes,
    read_trace_header,
    trace_of_request,
)
from penstock.wire.aws.faults import Fault, fault, fault_of, invalid_value, missing

TRACE_ID = "x-amzn-trace-id"  # the request header that traces the messages sent with it

_WRONG_KIND = "The request include parameter that is not valid for this queue type."


Sendable = aws.SendMessageRequest | aws.SendMessageBatchRequestEntry


class Prepared(msgspec.Struct, gc=False):
    message: Message
    size_bytes: int
    md5_of_body: str
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None


async def send_message(call: Call, request: aws.SendMessageRequest) -> aws.Reply:
    context = call.context
    topic = call.topic or topic_of(call, request.queue_url)
    if topic.source_id is not None:
        raise read_only(topic)
    trace_id = trace_of_request(call.http.headers.get(TRACE_ID))
    ready = prepare(request, topic, sender=call.sender, entropy=context.entropy, trace_id=trace_id)
    message = ready.message
    is_fifo = topic.kind is Kind.FIFO
    if is_fifo:
        assert message.group is not None, "prepare() requires a group of FIFO messages"
        partition = partition_of_group(message.group, topic.partition_count)
    else:
        partition = context.rotation.next(topic)
    sealing = context.sealing
    if sealing is not None and sealing.is_on(topic):
        message = sealing.sealed(topic, message) or await sealing.seal(topic, message)
    [appended] = await context.broker.call(Append(topic, partition, (message,)))
    context.meter.sent(1, ready.size_bytes)
    return aws.SendMessageReply(
        md5_of_message_body=ready.md5_of_body,
        md5_of_message_attributes=ready.md5_of_attributes,
        md5_of_message_system_attributes=ready.md5_of_system_attributes,
        message_id=uuid_text(appended.message_id),
        sequence_number=sequence_number(partition, appended.offset) if is_fifo else None,
    )


async def send_message_batch(call: Call, request: aws.SendMessageBatchRequest) -> aws.Reply:
    context = call.context
    topic = topic_of(call, request.queue_url)
    if topic.source_id is not None:
        raise read_only(topic)
    entries = request.entries or []
    check_entries(entries, entry_name="SendMessageBatchRequestEntry")
    check_total(sum(map(size_of, entries)))
    if topic.is_fifo:
        for entry in entries:
            check_ordered(entry, topic)
    prepared: dict[int, Prepared] = {}  # by index of the entry
    failures = []
    trace_id = trace_of_request(call.http.headers.get(TRACE_ID))
    sender, entropy = call.sender, context.entropy
    for index, entry in enumerate(entries):
        try:
            prepared[index] = prepare(
                entry, topic, sender=sender, entropy=entropy, trace_id=trace_id, in_batch=True
            )
        except Fault as error:
            failures.append(failed(entry, error))
    if not prepared:
        return aws.SendMessageBatchReply(failed=failures)
    sealing = context.sealing
    if sealing is not None and sealing.is_on(topic):
        for ready in prepared.values():
            message = ready.message
            ready.message = sealing.sealed(topic, message) or await sealing.seal(topic, message)
    parts = _parts(call, topic, prepared)
    results = await call_partitions(context.broker, parts, partial(Append, topic))
    successes = []
    sent_bytes = 0
    for index, ready in prepared.items():
        result = results[index]
        if isinstance(result, PenstockError):
            failures.append(failed(entries[index], fault_of(result)))
            continue
        sent_bytes += ready.size_bytes
        successes.append(
            aws.SendMessageBatchResultEntry(
                id=entries[index].id or "",
                message_id=uuid_text(result.message_id),
                md5_of_message_body=ready.md5_of_body,
                md5_of_message_attributes=ready.md5_of_attributes,
                md5_of_message_system_attributes=ready.md5_of_system_attributes,
                sequence_number=(
                    sequence_number(result.partition, result.offset) if topic.is_fifo else None
                ),
            )
        )
    context.meter.sent(len(successes), sent_bytes)
    return aws.SendMessageBatchReply(successful=successes or None, failed=failures or None)


def _parts(
    call: Call, topic: Topic, prepared: dict[int, Prepared]
) -> dict[int, list[tuple[int, Message]]]:
    """Return the messages by partition. A batch for a standard queue goes to one partition; a batch
    for a FIFO queue is split by message group."""
    if not topic.is_fifo:
        messages = [(index, ready.message) for index, ready in prepared.items()]
        return {call.context.rotation.next(topic): messages}
    parts: dict[int, list[tuple[int, Message]]] = {}
    for index, ready in prepared.items():
        partition = partition_of_group(ready.message.group or "", topic.partition_count)
        parts.setdefault(partition, []).append((index, ready.message))
    return parts


def prepare(
    request: Sendable,
    topic: Topic,
    *,
    sender: str,
    entropy: Callable[[int], bytes],
    trace_id: str | None = None,
    in_batch: bool = False,
) -> Prepared:
    """Check one message in the same order as SQS, and return it with the digests for the reply.
    Raises Fault for the first broken rule. ``trace_id`` is used if the message has none."""
    body = body_bytes(request.message_body)
    attributes = read_attributes(request.message_attributes) if request.message_attributes else None
    size_bytes = message_bytes(body, attributes)
    bytes_max = topic.settings.message_bytes_max
    if size_bytes > bytes_max:
        # SQS has two texts for this rule; tests of clients compare the whole text.
        wrong = "cannot be validated" if in_batch else "are invalid"
        reason = f"Message must be shorter than {bytes_max} bytes."
        raise invalid(f"One or more parameters {wrong}. Reason: {reason}")
    trace = None
    if request.message_system_attributes:
        trace = read_trace_header(request.message_system_attributes)
    group = request.message_group_id
    if group is not None:
        check_id(group, "MessageGroupId")
    if topic.kind is Kind.FIFO:
        if request.delay_seconds:  # zero is accepted; the delay of the queue still applies
            raise invalid_value(request.delay_seconds, "DelaySeconds", _WRONG_KIND)
        delay_ms = None
        if group is None:
            raise missing("MessageGroupId")
        dedup_id = request.message_deduplication_id
        if dedup_id is not None:
            check_id(dedup_id, "MessageDeduplicationId")
        elif topic.settings.is_content_dedup:
            dedup_id = sha256(body).hexdigest()
        else:
            raise _no_dedup_id()
    else:
        delay_ms = _delay_ms(request.delay_seconds, topic)
        dedup_id = request.message_deduplication_id
        if dedup_id is not None:
            raise invalid_value(dedup_id, "MessageDeduplicationId", _WRONG_KIND)
    of_attributes = None if attributes is None else md5_of_attributes(attributes)
    of_system = None
    if trace is not None:
        trace_id, of_system = trace.value.decode(), md5_of_attributes({TRACE_HEADER: trace})
    message = Message(entropy(16), body, attributes, group, dedup_id, delay_ms, sender, trace_id)
    return Prepared(message, size_bytes, md5_of_body(body), of_attributes, of_system)


def check_total(size_bytes: int) -> None:
    if size_bytes > MESSAGE_BYTES_MAX:
        text = f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. "
        raise fault("BatchRequestTooLong", f"{text}You have sent {size_bytes} bytes.")


def size_of(request: Sendable) -> int:
    texts, size = [request.message_body], 0
    for name, value in (request.message_attributes or {}).items():
        texts += (name, value.string_value, value.data_type)
        size += len(value.binary_value or b"")
    return size + sum(len((text or "").encode(errors="surrogatepass")) for text in texts)


def check_ordered(request: Sendable, topic: Topic) -> None:
    """Check that an entry of a FIFO batch has a message group and a deduplication id. All entries
    are checked before any is sent, so that an invalid entry cannot leave a gap in its group."""
    if not request.message_group_id:
        raise invalid("The request must contain the parameter MessageGroupId.")
    if not request.message_deduplication_id and not topic.settings.is_content_dedup:
        raise _no_dedup_id()


def _delay_ms(delay_seconds: int | None, topic: Topic) -> int | None:
    queue_delay_ms = topic.settings.delay_ms
    if delay_seconds is None:
        return queue_delay_ms or None
    delay_ms = delay_seconds * 1_000
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise invalid_value(delay_seconds, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
    # Zero is stored only if it overrides the delay of the queue.
    return delay_ms if delay_ms or queue_delay_ms else None


def _no_dedup_id() -> Fault:
    text = "The queue should either have ContentBasedDeduplication enabled or"
    return invalid(f"{text} MessageDeduplicationId provided explicitly")
