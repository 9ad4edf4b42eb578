"""What a batch must be before any entry is looked at, and how one entry's failure is told.

Four faults refuse a whole call: no entries, too many, a bad id, an id twice (and, for sends only,
too many bytes). Everything else is the fault of an entry and stands in ``Failed``."""

import re
from collections.abc import Sequence
from typing import Protocol

from penstock.model.limits import BATCH_ENTRIES_MAX, MESSAGE_BYTES_MAX
from penstock.wire.aws.faults import Fault, fault, missing
from penstock.wire.aws.shapes import BatchResultErrorEntry

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


class Entry(Protocol):
    @property
    def id(self) -> str | None: ...


def check_entries(entries: Sequence[Entry], *, entry_name: str) -> None:
    if not entries:
        raise fault(
            "EmptyBatchRequest", f"There should be at least one {entry_name} in the request."
        )
    if len(entries) > BATCH_ENTRIES_MAX:
        raise fault(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {BATCH_ENTRIES_MAX}. "
            f"You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if entry.id is None:
            raise missing(f"{entry_name}.Id")
        if _ID.match(entry.id) is None:
            raise fault(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise fault("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


def check_total(size_bytes: int) -> None:
    """The sum over a batch, whatever the queue's own limit for one message is."""
    if size_bytes > MESSAGE_BYTES_MAX:
        raise fault(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. "
            f"You have sent {size_bytes} bytes.",
        )


def failed(entry_id: str, refusal: Fault) -> BatchResultErrorEntry:
    return BatchResultErrorEntry(
        id=entry_id,
        sender_fault=refusal.is_sender,
        code=refusal.code,
        message=refusal.message,
    )
