"""DeleteMessage and ChangeMessageVisibility, single and in batches: requests that name leased
messages by their receipts."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.cursor.leases.receipt import open_receipt
from penstock.frontend.sqs.context import Call, Context
from penstock.frontend.sqs.rules.requests import call_partitions, check_entries, failed, topic_of
from penstock.model.calls import Ack, BrokerCall, Extend, Results
from penstock.model.errors import InvalidReceipt, InvalidRequest, PenstockError
from penstock.model.limits import LEASE_MS_MAX
from penstock.model.message import Claim
from penstock.model.topic import Topic
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.faults import Fault, fault_of, invalid_value, missing

LEASE_S_MAX = LEASE_MS_MAX // 1_000

T = TypeVar("T")


E = TypeVar("E", aws.DeleteMessageBatchRequestEntry, aws.ChangeMessageVisibilityBatchRequestEntry)


async def delete_message(context: Context, call: Call, request: aws.DeleteMessageRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    claim = _claim(request.receipt_handle, topic)
    [error] = await context.broker.call(Ack(topic, claim.partition, (claim,)))
    if error is not None:
        raise _fault_of(error, request)
    context.meter.deleted(1)


async def change_message_visibility(
    context: Context, call: Call, request: aws.ChangeMessageVisibilityRequest
) -> None:
    """Extend a lease, or release the message if the timeout is zero."""
    topic = topic_of(context, call, request.queue_url)
    lease_ms = _lease_ms(request.visibility_timeout)
    claim = _claim(request.receipt_handle, topic)
    [error] = await context.broker.call(Extend(topic, claim.partition, ((claim, lease_ms),)))
    if error is not None:
        raise _fault_of(error, request)


async def delete_message_batch(
    context: Context, call: Call, request: aws.DeleteMessageBatchRequest
) -> aws.DeleteMessageBatchReply:
    topic = topic_of(context, call, request.queue_url)
    ids, failures = await _each(
        context,
        topic,
        request.entries or [],
        "DeleteMessageBatchRequestEntry",
        lambda _, claim: claim,
        lambda partition, claims: Ack(topic, partition, claims),
    )
    context.meter.deleted(len(ids))
    successes = [aws.DeleteMessageBatchResultEntry(id=each) for each in ids]
    return aws.DeleteMessageBatchReply(successful=successes or None, failed=failures)


async def change_message_visibility_batch(
    context: Context, call: Call, request: aws.ChangeMessageVisibilityBatchRequest
) -> aws.ChangeMessageVisibilityBatchReply:
    topic = topic_of(context, call, request.queue_url)
    ids, failures = await _each(
        context,
        topic,
        request.entries or [],
        "ChangeMessageVisibilityBatchRequestEntry",
        lambda entry, claim: (claim, _lease_ms(entry.visibility_timeout)),
        lambda partition, extensions: Extend(topic, partition, extensions),
    )
    successes = [aws.ChangeMessageVisibilityBatchResultEntry(id=each) for each in ids]
    return aws.ChangeMessageVisibilityBatchReply(successful=successes or None, failed=failures)


async def _each(
    context: Context,
    topic: Topic,
    entries: Sequence[E],
    entry_name: str,
    prepare: Callable[[E, Claim], T],
    call_of: Callable[[int, Sequence[T]], BrokerCall[Results]],
) -> tuple[list[str], list[aws.BatchResultErrorEntry] | None]:
    """Return the ids of the entries that succeeded, and the failures; None if there are none."""
    check_entries(entries, entry_name=entry_name)
    failures: list[aws.BatchResultErrorEntry] = []
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
    """Return the fault for an error about one claim. Other exceptions are bugs."""
    if not isinstance(error, PenstockError):
        raise error
    seconds = getattr(entry, "visibility_timeout", None)
    if type(error) is InvalidRequest and seconds is not None:
        reason = (
            f"Total VisibilityTimeout for the message is beyond the limit [{LEASE_S_MAX} seconds]"
        )
        return invalid_value(seconds, "VisibilityTimeout", reason)
    return fault_of(error, receipt=entry.receipt_handle or "")
