"""ReceiveMessage: lease up to ten messages, waiting for the first one if asked to."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.incoming import View, system_attributes
from penstock.frontend.sqs.large_receive import encode_large, is_large
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.outgoing import check_id
from penstock.model.limits import BATCH_ENTRIES_MAX, LEASE_MS_MAX, WAIT_MS_MAX
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic
from penstock.net.exchange import HttpReply
from penstock.wire.aws.faults import invalid_value
from penstock.wire.aws.shapes import ReceiveMessageReply, ReceiveMessageRequest

TOKEN_BYTES = 16


async def run(
    context: Context, call: Call, asked: ReceiveMessageRequest
) -> ReceiveMessageReply | HttpReply:
    topic = topic_of(context, call, asked.queue_url)
    request = _lease_request(asked, topic)
    system = system_attributes(asked.attribute_names, asked.message_system_attribute_names)
    deliveries = await context.backend.lease(topic, request)
    if context.sealing is not None:
        deliveries = await context.sealing.opened(topic, deliveries)
    size_bytes = 0
    for delivery in deliveries:
        size_bytes += len(delivery.record.message.body)
    view = View(topic, system, asked.message_attribute_names or ()) if deliveries else None
    reply: HttpReply | None = None
    if view is not None and is_large(deliveries, size_bytes):
        token = context.entropy(TOKEN_BYTES).hex()
        reply = await encode_large(call.codec, view, deliveries, call.request.request_id, token)
    context.meter.received(len(deliveries), size_bytes)
    if view is None:
        return ReceiveMessageReply()
    return reply or ReceiveMessageReply(messages=[view.show(delivery) for delivery in deliveries])


def _lease_request(asked: ReceiveMessageRequest, topic: Topic) -> LeaseRequest:
    count = 1 if asked.max_number_of_messages is None else asked.max_number_of_messages
    if not 1 <= count <= BATCH_ENTRIES_MAX:
        raise invalid_value(count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    settings = topic.settings
    wait_ms = settings.wait_ms
    if asked.wait_time_seconds is not None:
        wait_ms = asked.wait_time_seconds * 1_000
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise invalid_value(
                asked.wait_time_seconds, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided."
            )
    lease_ms = settings.lease_ms
    if asked.visibility_timeout is not None:
        lease_ms = asked.visibility_timeout * 1_000
        if not 0 <= lease_ms <= LEASE_MS_MAX:
            raise invalid_value(
                asked.visibility_timeout,
                "VisibilityTimeout",
                "VisibilityTimeout must be an integer between 0 and 43200, if provided.",
            )
    attempt_id = asked.receive_request_attempt_id
    if attempt_id is not None:
        check_id(attempt_id, "ReceiveRequestAttemptId")
    # Only a FIFO queue answers an attempt again; elsewhere the id has no meaning.
    return LeaseRequest(count, lease_ms, wait_ms, attempt_id if topic.is_fifo else None)


ACTION = Action("ReceiveMessage", run)
