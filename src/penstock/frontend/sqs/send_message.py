"""SendMessage: check, choose the partition, append; answered once the append is durable."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.route import sequence_number
from penstock.frontend.sqs.naming import read_only, topic_of
from penstock.frontend.sqs.outgoing import TRACE_ID, outgoing
from penstock.model.names import uuid_text
from penstock.model.partitioning import partition_of_group
from penstock.model.topic import Kind
from penstock.wire.aws.attributes import trace_of_request
from penstock.wire.aws.shapes import SendMessageReply, SendMessageRequest


async def run(context: Context, call: Call, asked: SendMessageRequest) -> SendMessageReply:
    topic = call.topic or topic_of(context, call, asked.queue_url)
    if topic.source_id is not None:
        raise read_only(topic)
    trace_id = trace_of_request(call.request.headers.get(TRACE_ID))
    out = outgoing(asked, topic, sender=call.sender, entropy=context.entropy, trace_id=trace_id)
    is_fifo = topic.kind is Kind.FIFO
    if is_fifo:
        assert out.message.group is not None, "outgoing() requires a group of FIFO messages"
        partition = partition_of_group(out.message.group, topic.partition_count)
    else:
        partition = context.rotation.next(topic)
    message = out.message
    sealing = context.sealing
    if sealing is not None and sealing.is_on(topic):
        message = sealing.sealed(topic, message) or await sealing.seal(topic, message)
    [appended] = await context.backend.append(topic, partition, (message,))
    context.meter.sent(1, out.size_bytes)
    return SendMessageReply(
        md5_of_message_body=out.md5_of_body,
        md5_of_message_attributes=out.md5_of_attributes,
        md5_of_message_system_attributes=out.md5_of_system_attributes,
        message_id=uuid_text(appended.message_id),
        sequence_number=sequence_number(partition, appended.offset) if is_fifo else None,
    )


ACTION = Action("SendMessage", run)
