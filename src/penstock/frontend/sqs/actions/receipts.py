"""DeleteMessage and ChangeMessageVisibility, single and in batches: requests that name leased
messages by their receipts."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.cursor.leases.receipt import open_receipt
from penstock.frontend.sqs.call import Action, Call
from penstock.frontend.sqs.context import Context
from penstock.frontend.sqs.rules.batches import Entry, call_partitions, check_entries, failed
from penstock.frontend.sqs.rules.names import topic_of
from penstock.model.calls import Ack, BrokerCall, Extend, Results
from penstock.model.errors import InvalidReceipt, InvalidRequest, PenstockError
from penstock.model.limits import LEASE_MS_MAX
from penstock.model.message import Claim
from penstock.model.topic import Topic
from penstock.wire.aws.faults import Fault, fault_of, invalid_value, missing
from penstock.wire.aws.shapes import (
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchReply,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityBatchRequestEntry,
    ChangeMessageVisibilityBatchResultEntry,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchReply,
    DeleteMessageBatchRequest,
    DeleteMessageBatchResultEntry,
    DeleteMessageRequest,
)

LEASE_S_MAX = LEASE_MS_MAX // 1_000

T = TypeVar("T")


class ReceiptEntry(Entry, Protocol):
    receipt_handle: str | None


E = TypeVar("E", bound=ReceiptEntry)


async def delete_message(context: Context, call: Call, request: DeleteMessageRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    claim = _claim(request.receipt_handle, topic)
    [error] = await context.broker.call(Ack(topic, claim.partition, (claim,)))
    if error is not None:
        raise _fault_of(error, request)
    context.meter.deleted(1)


async def change_message_visibility(
    context: Context, call: Call, request: ChangeMessageVisibilityRequest
) -> None:
    """Extend a lease, or release the message if the timeout is zero."""
    topic = topic_of(context, call, request.queue_url)
    lease_ms = _lease_ms(request.visibility_timeout)
    claim = _claim(request.receipt_handle, topic)
    [error] = await context.broker.call(Extend(topic, claim.partition, ((claim, lease_ms),)))
    if error is not None:
        raise _fault_of(error, request)


async def delete_message_batch(
    context: Context, call: Call, request: DeleteMessageBatchRequest
) -> DeleteMessageBatchReply:
    topic = topic_of(context, call, request.queue_url)
    entries = request.entries or []
    check_entries(entries, entry_name="DeleteMessageBatchRequestEntry")
    ids, failures = await _each(
        context,
        topic,
        entries,
        lambda _, claim: claim,
        lambda partition, claims: Ack(topic, partition, claims),
    )
    context.meter.deleted(len(ids))
    successes = [DeleteMessageBatchResultEntry(id=each) for each in ids]
    return DeleteMessageBatchReply(successful=successes or None, failed=failures or None)


async def change_message_visibility_batch(
    context: Context, call: Call, request: ChangeMessageVisibilityBatchRequest
) -> ChangeMessageVisibilityBatchReply:
    topic = topic_of(context, call, request.queue_url)
    entries = request.entries or []
    check_entries(entries, entry_name="ChangeMessageVisibilityBatchRequestEntry")

    def extension(
        entry: ChangeMessageVisibilityBatchRequestEntry, claim: Claim
    ) -> tuple[Claim, int]:
        return claim, _lease_ms(entry.visibility_timeout)

    ids, failures = await _each(
        context,
        topic,
        entries,
        extension,
        lambda partition, extensions: Extend(topic, partition, extensions),
    )
    successes = [ChangeMessageVisibilityBatchResultEntry(id=each) for each in ids]
    return ChangeMessageVisibilityBatchReply(successful=successes or None, failed=failures or None)


async def _each(
    context: Context,
    topic: Topic,
    entries: Sequence[E],
    prepare: Callable[[E, Claim], T],
    call_of: Callable[[int, Sequence[T]], BrokerCall[Results]],
) -> tuple[list[str], list[BatchResultErrorEntry]]:
    """Return the ids of the entries that succeeded, and the failures."""
    failures: list[BatchResultErrorEntry] = []
    parts: dict[int, list[tuple[int, T]]] = {}
    for index, entry in enumerate(entries):
        try:
            claim = _claim(entry.receipt_handle, topic)
            parts.setdefault(claim.partition, []).append((index, prepare(entry, claim)))
        except Fault as error:
            failures.append(failed(entry, error))
    results = await call_partitions(context.broker, parts, call_of) if parts else {}
    ids: list[str] = []
    for index, result in sorted(results.items()):
        entry = entries[index]
        if result is None:
            ids.append(entry.id or "")
        else:
            failures.append(failed(entry, _fault_of(result, entry)))
    return ids, failures


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


def _fault_of(
    error: Exception, entry: ReceiptEntry | DeleteMessageRequest | ChangeMessageVisibilityRequest
) -> Fault:
    """Return the fault for a broker's error about one claim. Any other exception is a bug: it is
    raised again, and the pipeline logs it."""
    if not isinstance(error, PenstockError):
        raise error
    seconds = getattr(entry, "visibility_timeout", None)
    if type(error) is InvalidRequest and seconds is not None:
        reason = (
            f"Total VisibilityTimeout for the message is beyond the limit [{LEASE_S_MAX} seconds]"
        )
        return invalid_value(seconds, "VisibilityTimeout", reason)
    return fault_of(error, receipt=entry.receipt_handle or "")


ACTIONS = (
    Action("DeleteMessage", delete_message),
    Action("DeleteMessageBatch", delete_message_batch),
    Action("ChangeMessageVisibility", change_message_visibility),
    Action("ChangeMessageVisibilityBatch", change_message_visibility_batch),
)
