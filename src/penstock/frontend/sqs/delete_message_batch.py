"""DeleteMessageBatch: up to ten messages finished, each answered for itself."""

from collections.abc import Sequence

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.entries import check_entries, failed
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.receipts import fault_of_claim, open_entries
from penstock.frontend.sqs.spread import spread
from penstock.model.message import Claim
from penstock.wire.aws.shapes import (
    DeleteMessageBatchReply,
    DeleteMessageBatchRequest,
    DeleteMessageBatchResultEntry,
)


async def run(
    context: Context, call: Call, asked: DeleteMessageBatchRequest
) -> DeleteMessageBatchReply:
    topic = topic_of(context, call, asked.queue_url)
    entries = asked.entries or []
    check_entries(entries, entry_name="DeleteMessageBatchRequestEntry")
    claims, failures = open_entries(entries, topic)
    if not claims:
        return DeleteMessageBatchReply(failed=failures)
    parts: dict[int, list[tuple[int, Claim]]] = {}
    for index, claim in claims.items():
        parts.setdefault(claim.partition, []).append((index, claim))

    async def ack(partition: int, of_partition: Sequence[Claim]) -> Sequence[Exception | None]:
        return await context.backend.ack(topic, partition, of_partition)

    results = await spread(parts, ack, name="ack in partition")
    successes: list[DeleteMessageBatchResultEntry] = []
    for index in claims:
        error, entry = results[index], entries[index]
        if error is None:
            successes.append(DeleteMessageBatchResultEntry(id=entry.id or ""))
        else:
            refusal = fault_of_claim(error, entry.receipt_handle or "")
            failures.append(failed(entry.id or "", refusal))
    context.meter.deleted(len(successes))
    return DeleteMessageBatchReply(successful=successes or None, failed=failures or None)


ACTION = Action("DeleteMessageBatch", run)
