"""Queue URLs, sequence numbers and batch entries of SQS requests.

Only the path of a queue URL is used, because proxies and containers give this node host names that
it does not know. The region comes from the signature, else from the URL, else from the settings. A
sequence number has 17 digits for the offset and 3 for the partition, so the numbers of a message
group, which has one partition, increase."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.frontend.sqs.context import Call, Context
from penstock.model.calls import BrokerCall, BrokerPort
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.limits import BATCH_ENTRIES_MAX
from penstock.model.names import SHARE_MARK
from penstock.model.topic import Topic
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing
from penstock.wire.aws.shapes import BatchResultErrorEntry

# Letters, digits and ASCII punctuation: every printable character but the space.
_ID = re.compile(r"[!-~]{1,128}\Z")


def topic_of(context: Context, call: Call, queue_url: str | None) -> Topic:
    if not queue_url:
        raise missing("QueueUrl")
    address = queue_urls.parse(queue_url)
    region = call.region if call.scope is not None else address.region or call.region
    topic = context.catalog.find(address.account or call.account, region, address.name)
    if topic is None:
        raise TopicNotFound(address.name)
    return topic


def read_only(topic: Topic) -> Fault:
    source, _, _ = topic.name.partition(SHARE_MARK)
    text = f"{topic.name} is a read-only share; send to {source} instead."
    return fault("UnsupportedOperation", text)


def url_of(context: Context, call: Call, topic: Topic) -> str:
    """Return the URL of a queue, with the host name that the client used for this request."""
    base_url = context.config.external_url
    if base_url is None:
        scheme = "https" if call.http.is_tls else "http"
        base_url = f"{scheme}://{call.http.headers.get('host', 'localhost')}"
    return queue_urls.build(base_url, account=topic.account, name=topic.name)


def invalid(message: str) -> Fault:
    return fault("InvalidParameterValue", message)


def sequence_number(partition: int, offset: int) -> str:
    assert partition < 1_000, "three digits hold the partition"
    return f"{offset:017d}{partition:03d}"


def check_id(text: str, parameter: str) -> str:
    if _ID.match(text) is None:
        reason = f"{parameter} can only include alphanumeric and punctuation characters."
        raise invalid_value(text, parameter, f"{reason} 1 to 128 in length.")
    return text


T = TypeVar("T")
R = TypeVar("R")

Parts = Mapping[int, Sequence[tuple[int, T]]]  # partition → (index of the entry, its value)

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


class Entry(Protocol):
    id: str | None


def check_entries(entries: Sequence[Entry], *, entry_name: str) -> None:
    if not entries:
        text = f"There should be at least one {entry_name} in the request."
        raise fault("EmptyBatchRequest", text)
    if len(entries) > BATCH_ENTRIES_MAX:
        text = f"Maximum number of entries per request are {BATCH_ENTRIES_MAX}."
        raise fault("TooManyEntriesInBatchRequest", f"{text} You have sent {len(entries)}.")
    seen: set[str] = set()
    for entry in entries:
        if entry.id is None:
            raise missing(f"{entry_name}.Id")
        if _ENTRY_ID.match(entry.id) is None:
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
    """Call all partitions concurrently, and return the results by index of the batch entry. If a
    partition fails, its error is the result of its entries; if all fail, one error is raised."""
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
