"""Entries of a batch: the checks of a whole batch, and one broker call per partition.

Four faults reject a whole call: no entries, too many, an invalid id, a repeated id (and for sends
too many bytes). Any other fault rejects one entry, in ``Failed``."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.model.calls import BrokerCall, BrokerPort
from penstock.model.errors import PenstockError
from penstock.model.limits import BATCH_ENTRIES_MAX
from penstock.wire.aws.faults import Fault, fault, missing
from penstock.wire.aws.shapes import BatchResultErrorEntry

T = TypeVar("T")
R = TypeVar("R")

Parts = Mapping[int, Sequence[tuple[int, T]]]  # partition → (index of the entry, its value)

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


class Entry(Protocol):
    id: str | None


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
            raise fault("InvalidBatchEntryId")
        if entry.id in seen:
            raise fault("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failed(entry: Entry, error: Fault) -> BatchResultErrorEntry:
    return BatchResultErrorEntry(
        id=entry.id or "", sender_fault=error.is_sender, code=error.code, message=error.message
    )


async def call_partitions(
    broker: BrokerPort,
    parts: Parts[T],
    call_of: Callable[[int, Sequence[T]], BrokerCall[Sequence[R]]],
) -> dict[int, R | PenstockError]:
    """Make one call per partition, all at the same time because each waits for its own disk, and
    return the results by index of the entry.

    If a partition fails, its error is the result of its entries. If all partitions fail, the error
    of one of them is raised, so that the client retries the whole request."""
    results: dict[int, R | PenstockError] = {}
    failures: list[PenstockError] = []

    async def one(partition: int, entries: Sequence[tuple[int, T]]) -> None:
        try:
            found = await broker.call(call_of(partition, [value for _, value in entries]))
        except PenstockError as error:
            failures.append(error)
            results.update((index, error) for index, _ in entries)
            return
        results.update((index, each) for (index, _), each in zip(entries, found, strict=True))

    if len(parts) == 1:
        [(partition, entries)] = parts.items()
        await one(partition, entries)
    else:
        async with asyncio.TaskGroup() as tasks:
            for partition, entries in parts.items():
                tasks.create_task(one(partition, entries), name=f"batch in partition {partition}")
    if failures and len(failures) == len(parts):
        raise failures[0]
    return results
