"""SendMessageBatch: up to ten messages, each answered for itself. One append per partition."""

from collections.abc import Sequence

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.route import sequence_number
from penstock.frontend.sqs.entries import check_entries, check_total, failed
from penstock.frontend.sqs.naming import read_only, topic_of
from penstock.frontend.sqs.outgoing import TRACE_ID, Outgoing, check_ordered, outgoing, size_of
from penstock.frontend.sqs.spread import spread
from penstock.model.errors import PenstockError
from penstock.model.message import Appended, Message
from penstock.model.names import uuid_text
from penstock.model.partitioning import partition_of_group
from penstock.model.topic import Topic
from penstock.wire.aws.attributes import trace_of_request
from penstock.wire.aws.faults import Fault, fault_of
from penstock.wire.aws.shapes import (
    BatchResultErrorEntry,
    SendMessageBatchReply,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageBatchResultEntry,
)

Drafts = dict[int, Outgoing]  # by index of the entry


async def run(
    context: Context, call: Call, asked: SendMessageBatchRequest
) -> SendMessageBatchReply:
    topic = topic_of(context, call, asked.queue_url)
    if topic.source_id is not None:
        raise read_only(topic)
    entries = asked.entries or []
    check_entries(entries, entry_name="SendMessageBatchRequestEntry")
    check_total(sum(size_of(entry) for entry in entries))
    if topic.is_fifo:
        for entry in entries:
            check_ordered(entry, topic)
    drafts, failures = _draft(context, call, topic, entries)
    if not drafts:
        return SendMessageBatchReply(failed=failures)
    sealing = context.sealing
    if sealing is not None and sealing.is_on(topic):
        for draft in drafts.values():
            message = draft.message
            draft.message = sealing.sealed(topic, message) or await sealing.seal(topic, message)

    async def append(partition: int, messages: Sequence[Message]) -> Sequence[Appended]:
        return await context.backend.append(topic, partition, messages)

    results = await spread(_parts(context, topic, drafts), append, name="append to partition")
    successes: list[SendMessageBatchResultEntry] = []
    sent_bytes = 0
    for index, draft in drafts.items():
        result, entry_id = results[index], entries[index].id or ""
        if isinstance(result, PenstockError):
            failures.append(failed(entry_id, fault_of(result)))
        else:
            successes.append(_success(entry_id, draft, result, topic))
            sent_bytes += draft.size_bytes
    context.meter.sent(len(successes), sent_bytes)
    return SendMessageBatchReply(successful=successes or None, failed=failures or None)


def _draft(
    context: Context, call: Call, topic: Topic, entries: list[SendMessageBatchRequestEntry]
) -> tuple[Drafts, list[BatchResultErrorEntry]]:
    drafts: Drafts = {}
    failures: list[BatchResultErrorEntry] = []
    trace_id = trace_of_request(call.request.headers.get(TRACE_ID))
    for index, entry in enumerate(entries):
        try:
            drafts[index] = outgoing(
                entry,
                topic,
                sender=call.sender,
                entropy=context.entropy,
                trace_id=trace_id,
                in_batch=True,
            )
        except Fault as refusal:
            failures.append(failed(entry.id or "", refusal))
    return drafts, failures


def _parts(context: Context, topic: Topic, drafts: Drafts) -> dict[int, list[tuple[int, Message]]]:
    """A standard batch stays together; a FIFO batch is split by group, in the entries' order."""
    if not topic.is_fifo:
        messages = [(index, draft.message) for index, draft in drafts.items()]
        return {context.rotation.next(topic): messages}
    parts: dict[int, list[tuple[int, Message]]] = {}
    for index, draft in drafts.items():
        partition = partition_of_group(draft.message.group or "", topic.partition_count)
        parts.setdefault(partition, []).append((index, draft.message))
    return parts


def _success(
    entry_id: str, draft: Outgoing, appended: Appended, topic: Topic
) -> SendMessageBatchResultEntry:
    return SendMessageBatchResultEntry(
        id=entry_id,
        message_id=uuid_text(appended.message_id),
        md5_of_message_body=draft.md5_of_body,
        md5_of_message_attributes=draft.md5_of_attributes,
        md5_of_message_system_attributes=draft.md5_of_system_attributes,
        sequence_number=(
            sequence_number(appended.partition, appended.offset) if topic.is_fifo else None
        ),
    )


ACTION = Action("SendMessageBatch", run)
