"""ChangeMessageVisibilityBatch: up to ten leases extended or released, each answered for itself."""

from collections.abc import Sequence

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.entries import check_entries, failed
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.receipts import fault_of_claim, lease_ms_in, open_entries
from penstock.frontend.sqs.spread import spread
from penstock.model.message import Claim
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import (
    ChangeMessageVisibilityBatchReply,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityBatchResultEntry,
)

Extension = tuple[Claim, int]


async def run(
    context: Context, call: Call, asked: ChangeMessageVisibilityBatchRequest
) -> ChangeMessageVisibilityBatchReply:
    topic = topic_of(context, call, asked.queue_url)
    entries = asked.entries or []
    check_entries(entries, entry_name="ChangeMessageVisibilityBatchRequestEntry")
    claims, failures = open_entries(entries, topic)
    parts: dict[int, list[tuple[int, Extension]]] = {}
    for index, claim in claims.items():
        try:
            extension = (claim, lease_ms_in(entries[index].visibility_timeout))
        except Fault as refusal:
            failures.append(failed(entries[index].id or "", refusal))
        else:
            parts.setdefault(claim.partition, []).append((index, extension))
    if not parts:
        return ChangeMessageVisibilityBatchReply(failed=failures)

    async def extend(
        partition: int, of_partition: Sequence[Extension]
    ) -> Sequence[Exception | None]:
        return await context.backend.extend(topic, partition, of_partition)

    results = await spread(parts, extend, name="extend in partition")
    successes: list[ChangeMessageVisibilityBatchResultEntry] = []
    for index, error in sorted(results.items()):
        entry = entries[index]
        if error is None:
            successes.append(ChangeMessageVisibilityBatchResultEntry(id=entry.id or ""))
        else:
            told = fault_of_claim(
                error, entry.receipt_handle or "", seconds=entry.visibility_timeout
            )
            failures.append(failed(entry.id or "", told))
    return ChangeMessageVisibilityBatchReply(successful=successes or None, failed=failures or None)


ACTION = Action("ChangeMessageVisibilityBatch", run)
