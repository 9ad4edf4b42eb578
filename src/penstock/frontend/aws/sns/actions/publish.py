"""Publish and PublishBatch.

A message is a record of the topic's stream. Its subject, and the mark of a message with a text for
each protocol, are attributes of the record whose names no client may use. The reply comes when the
message is committed, and in the queues that keep up or a short time later."""

from functools import partial
from hashlib import sha256
from typing import Final

from penstock.frontend.aws.context import Call, call_partitions, sequence_number
from penstock.frontend.aws.sns.actions.topics import topic_of
from penstock.frontend.aws.sns.rules.topic_attributes import message_bytes_max
from penstock.model.calls import Publish
from penstock.model.errors import PenstockError
from penstock.model.message import Attribute, Message
from penstock.model.names import STRUCTURE, SUBJECT, uuid_text
from penstock.model.topic import Topic, partition_of_group
from penstock.wire.aws.attributes import trace_of_request
from penstock.wire.aws.sns import shapes
from penstock.wire.aws.sns.faults import fault_of, invalid, no_gateway
from penstock.wire.aws.sns.publish_checks import (
    Checked,
    TopicRules,
    check_batch,
    check_publish,
    target_of,
)

TRACE_ID: Final = "x-amzn-trace-id"
_JSON: Final = Attribute("String", b"json")


def _rules(topic: Topic) -> TopicRules:
    assert topic.sns is not None
    return TopicRules(
        is_fifo=topic.is_fifo,
        deduplicates_content=topic.sns.attributes.get("ContentBasedDeduplication") == "true",
        message_bytes_max=message_bytes_max(topic),
    )


async def publish(call: Call, request: shapes.PublishRequest) -> shapes.PublishReply:
    topic = topic_of(call, _topic_arn(request))
    checked = check_publish(request, _rules(topic))
    message = await _message(call, topic, checked)
    partition = _partition(call, topic, message)
    [appended] = await call.context.broker.call(Publish(topic, partition, (message,)))
    call.context.meter.sent(1, checked.size)
    return shapes.PublishReply(
        message_id=uuid_text(appended.message_id),
        sequence_number=sequence_number(partition, appended.offset) if topic.is_fifo else None,
    )


def _topic_arn(request: shapes.PublishRequest) -> str:
    target = target_of(request)
    if not (request.topic_arn or request.target_arn):
        raise no_gateway("Publish to a phone number")
    if target.rpartition(":")[2].startswith("endpoint/"):
        raise invalid("TargetArn", "No endpoint found for the target arn specified")
    return target


async def publish_batch(
    call: Call, request: shapes.PublishBatchRequest
) -> shapes.PublishBatchReply:
    topic = topic_of(call, request.topic_arn)
    batch = check_batch(request.publish_batch_request_entries, _rules(topic))
    entries, failed, successful = list(batch.messages.items()), list(batch.failed), []
    parts: dict[int, list[tuple[int, Message]]] = {}
    common = None if topic.is_fifo else call.context.rotation.next(topic)
    for index, (_, checked) in enumerate(entries):
        message = await _message(call, topic, checked)
        partition = _partition(call, topic, message) if common is None else common
        parts.setdefault(partition, []).append((index, message))
    results = {}
    if parts:
        results = await call_partitions(call.context.broker, parts, partial(Publish, topic))
    size = 0
    for index, (entry_id, checked) in enumerate(entries):
        result = results[index]
        if isinstance(result, PenstockError):
            error = fault_of(result)
            failed.append(
                shapes.BatchResultErrorEntry(
                    id=entry_id,
                    code=error.code,
                    message=error.message,
                    sender_fault=error.is_sender,
                )
            )
            continue
        size += checked.size
        number = sequence_number(result.partition, result.offset) if topic.is_fifo else None
        message_id = uuid_text(result.message_id)
        successful.append(
            shapes.PublishBatchResultEntry(
                id=entry_id, message_id=message_id, sequence_number=number
            )
        )
    call.context.meter.sent(len(successful), size)
    return shapes.PublishBatchReply(successful=successful, failed=failed)


async def _message(call: Call, topic: Topic, checked: Checked) -> Message:
    attributes = dict(checked.attributes or {})
    if checked.subject is not None:
        attributes[SUBJECT] = Attribute("String", checked.subject.encode())
    if checked.is_structured:
        attributes[STRUCTURE] = _JSON
    dedup_id = checked.dedup_id
    if topic.is_fifo and dedup_id is None:
        dedup_id = sha256(checked.body).hexdigest()
    message = Message(
        call.context.entropy(16),
        checked.body,
        attributes or None,
        checked.group,
        dedup_id,
        None,
        call.sender,
        trace_of_request(call.http.headers.get(TRACE_ID)),
    )
    sealing = call.context.sealing
    if sealing is not None and sealing.is_on(topic):
        message = sealing.sealed(topic, message) or await sealing.seal(topic, message)
    return message


def _partition(call: Call, topic: Topic, message: Message) -> int:
    """Return the partition for a message. A group of a standard topic stays in one partition too:
    a webhook can send its messages in order."""
    if topic.is_fifo or message.group:
        return partition_of_group(message.group or "", topic.partition_count)
    return call.context.rotation.next(topic)
