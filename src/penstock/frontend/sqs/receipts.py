"""Receipts as clients send them back: opened, grouped by partition, and what the broker says about
the claim inside told in the client's words. Used by delete and by visibility, single and batch."""

from collections.abc import Sequence
from typing import Protocol

from penstock.cursor.receipt import open_receipt
from penstock.frontend.sqs.entries import failed
from penstock.model.errors import InvalidReceipt, InvalidRequest, PenstockError
from penstock.model.limits import LEASE_MS_MAX
from penstock.model.message import Claim
from penstock.model.topic import Topic
from penstock.wire.aws.faults import Fault, fault_of, invalid_value, missing
from penstock.wire.aws.shapes import BatchResultErrorEntry

LEASE_S_MAX = LEASE_MS_MAX // 1_000


class ReceiptEntry(Protocol):
    @property
    def id(self) -> str | None: ...

    @property
    def receipt_handle(self) -> str | None: ...


def claim_in(receipt: str | None, topic: Topic) -> Claim:
    if not receipt:
        raise missing("ReceiptHandle")
    try:
        return open_receipt(receipt, topic.topic_id, topic.receipt_key)
    except InvalidReceipt as error:
        raise fault_of(error, receipt=receipt) from None


def lease_ms_in(seconds: int | None) -> int:
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not 0 <= seconds <= LEASE_S_MAX:
        raise invalid_value(
            seconds,
            "VisibilityTimeout",
            f"VisibilityTimeout must be an integer between 0 and {LEASE_S_MAX}.",
        )
    return seconds * 1_000


def fault_of_claim(error: Exception, receipt: str, *, seconds: int | None = None) -> Fault:
    """The fault for what the broker answered to one claim. Anything but our own errors is a bug
    and goes on as it is, to be logged where it is caught."""
    if not isinstance(error, PenstockError):
        raise error
    if type(error) is InvalidRequest and seconds is not None:
        return invalid_value(
            seconds,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{LEASE_S_MAX} seconds]",
        )
    return fault_of(error, receipt=receipt)


def open_entries(
    entries: Sequence[ReceiptEntry], topic: Topic
) -> tuple[dict[int, Claim], list[BatchResultErrorEntry]]:
    """The claims of a batch by entry index, and the entries whose receipt is none."""
    claims: dict[int, Claim] = {}
    failures: list[BatchResultErrorEntry] = []
    for index, entry in enumerate(entries):
        try:
            claims[index] = claim_in(entry.receipt_handle, topic)
        except Fault as refusal:
            failures.append(failed(entry.id or "", refusal))
    return claims, failures
