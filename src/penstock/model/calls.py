"""The calls of a broker as values: one frozen struct per call, with the type of its reply.

``BrokerPort.call`` makes a call. ``wire/internal/broker_calls.py`` has the table of their rules:
where a call goes, how long it may take and when it is retried. Reasons are in
``docs/adr/0040-calls-are-values.md``. Calls raise errors of ``model.errors``.

The fields after the topic and the partition are sent to other nodes in this order. A new field goes
to the end and has a default, because an older node does not send it.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeAlias, TypeVar

import msgspec

from penstock.model import ports
from penstock.model.message import Appended, Claim, Delivery, Message
from penstock.model.topic import QueueSettings, QueueStats, Topic

R = TypeVar("R")  # the reply of a call
Reply = TypeVar("Reply", covariant=True)

ALL_PARTITIONS: Final = -1  # in place of a partition: the call concerns several

# One result per claim: None, or the error of this claim.
Results: TypeAlias = Sequence[Exception | None]


class BrokerCall(msgspec.Struct, Generic[Reply], frozen=True, gc=False):
    """A request to a broker. ``Reply`` is the type of its reply."""

    # What the call concerns, for limits and circuit breakers. Fields of calls about a topic.
    topic: ClassVar[Topic | None] = None
    partition: ClassVar[int] = ALL_PARTITIONS
    wait_ms: ClassVar[int] = 0  # how long the call may wait at the broker for messages

    def at_once(self) -> Self:
        return self


class TopicCall(BrokerCall[Reply], Generic[Reply], frozen=True):
    topic: Topic  # type: ignore[misc]


class LeadersCall(TopicCall[Reply], Generic[Reply], frozen=True):
    """A call that every leader of the topic serves for the partitions it leads."""

    # Partitions and epochs that the reply must cover, filled in for each node: a broker that does
    # not lead one of them raises NotLeader.
    counted_on: Sequence[tuple[int, int]] = ()


class PartitionCall(TopicCall[Reply], Generic[Reply], frozen=True):
    partition: int  # type: ignore[misc]


class Calls(Protocol):
    def call(self, call: BrokerCall[R], /) -> Coroutine[Any, Any, R]: ...


class BrokerPort(Calls, Protocol):
    # Served from memory, which is the same on every node:

    def moves(self, source_arn: str) -> Sequence[ports.MoveTask]:
        """Return the move tasks of a queue, newest first, with a bounded number of ended ones."""

    def find_share(self, source: Topic, group: str) -> Topic | None: ...

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``listener`` whenever the start or end offsets of a partition change. Returns the
        function that removes the listener. An earlier call must have opened the partition."""

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``listener`` whenever ``Acquire`` may return records again: after new records, a
        release or an expired lease. Returns the function that removes the listener."""


# ── Queues ───────────────────────────────────────────────────────────────────────────────────


class Append(PartitionCall[Sequence[Appended]], frozen=True):
    """Replies when the messages are durable, as Ack, Extend and Purge do."""

    messages: Sequence[Message]


class Lease(TopicCall[Sequence[Delivery]], frozen=True):
    """Lease messages from any partition of the topic; wait up to ``wait_ms`` for them. Raises
    InFlightLimit on a standard queue with too many leases if wait_ms is 0. A cancelled call leases
    nothing."""

    request: ports.LeaseRequest

    @property
    def wait_ms(self) -> int:  # type: ignore[override]
        return self.request.wait_ms

    def at_once(self) -> Self:
        request = msgspec.structs.replace(self.request, wait_ms=0)
        return msgspec.structs.replace(self, request=request)


class Ack(PartitionCall[Results], frozen=True):
    """Results: None, or ExpiredReceipt (FIFO). A record that is deleted already is a success."""

    claims: Sequence[Claim]


class Extend(PartitionCall[Results], frozen=True):
    """Set the time left of each lease (ms; 0 releases). Results: None or the error of the lease."""

    claims: Sequence[tuple[Claim, int]]
    is_strict: bool = False  # only a lease that still runs


def releases(topic: Topic, claims: Sequence[Claim]) -> Sequence[Extend]:
    """Return the calls that release leases whose messages were not delivered. Strict: the lease may
    have expired, and another consumer may have the message."""
    partitions: dict[int, list[tuple[Claim, int]]] = {}
    for claim in claims:
        partitions.setdefault(claim.partition, []).append((claim, 0))
    return [Extend(topic, each, some, is_strict=True) for each, some in partitions.items()]


class Purge(LeadersCall[None], frozen=True):
    """Delete all messages. Raises PurgeInProgress within a minute of the last purge."""


class Stats(LeadersCall[QueueStats], frozen=True):
    # With ``obstacles``, which scans every message that is in flight or was passed over. An older
    # node replies without them.
    is_detailed: bool = False


class Peek(PartitionCall[tuple[Sequence[ports.Peeked], int]], frozen=True):
    """Return records from ``start`` on without leasing them, and the next offset to peek at."""

    start: int
    count: int


class StartMove(BrokerCall[None], frozen=True):
    task: ports.MoveTask


class CancelMove(BrokerCall[ports.MoveTask | None], frozen=True):
    """Return the cancelled task; None if it does not run at this broker."""

    task_id: str


# ── Streams ──────────────────────────────────────────────────────────────────────────────────
# For readers by offset and producers of whole batches. A topic that is a queue is a stream as well;
# its control batches are returned as they are, because clients skip them.


class AppendBatches(PartitionCall[ports.BatchAppended], frozen=True):
    """Append the checked batches of one produce request. Returns once they are committed (acks 1
    and -1) or written (0). Raises ProducerRefused, DiskFull, Overloaded, TopicNotFound."""

    acks: int
    batches: Sequence[bytes | memoryview]


class AppendMarker(PartitionCall[None], frozen=True):
    """End a transaction in a partition. Raises ProducerRefused for an older epoch."""

    marker: ports.Marker


class IsInTransaction(PartitionCall[bool], frozen=True):
    """Return whether this producer has an open transaction with records in the partition."""

    producer_id: int
    producer_epoch: int


class Producers(PartitionCall[Sequence[ports.ProducerSeen]], frozen=True):
    """Return the known producers that have an id, the longest inactive first."""


class Ends(PartitionCall[ports.StreamEnds], frozen=True):
    """Return the start and end offsets of a partition."""


class Fetch(PartitionCall[ports.Fetched], frozen=True):
    """Return the batches from an offset on, without waiting. Raises OffsetOutOfRange, Damaged."""

    offset: int
    bytes_max: int
    is_committed: bool
    # Slices of files will do. Never sent: another node has no use for them.
    as_slices: bool = False


class FindTime(PartitionCall[tuple[int, int]], frozen=True):
    """Return offset and time of the first record at or after a time, or (-1, -1)."""

    timestamp_ms: int


class MaxTimestamp(PartitionCall[tuple[int, int]], frozen=True):
    """Return offset and time of the newest record, or (-1, -1)."""


class DeleteRecords(PartitionCall[int], frozen=True):
    """Delete everything below ``before`` (-1: the high watermark); returns the new start."""

    before: int


class LogBytes(PartitionCall[int], frozen=True):
    """Return the size of the log of a partition."""


# ── Shares ───────────────────────────────────────────────────────────────────────────────────
# A share is the queue called ``topic:group``: a named lease cursor over a topic. It is an entry of
# the catalog (``Topic.source_id`` is set) with its own settings and without records of its own.


class OpenShare(PartitionCall[Topic], frozen=True):
    """Return the share of a group; create it if it is missing. ``topic`` is the source. The leader
    of partition 0 creates shares. Raises InvalidRequest for a source that cannot be shared."""

    group: str
    start: int  # where a new share begins in every partition: EARLIEST or LATEST
    settings: QueueSettings = ports.SETTINGS_DEFAULT
    tags: Mapping[str, str] = ports.NO_TAGS
    # Deliveries after which a record is finished, unless the settings have a dead-letter rule.
    attempts_max: int | None = None


class CloseShare(TopicCall[bool], frozen=True):
    """Delete a share; returns False if there was none. ``topic`` is the source."""

    group: str


class Acquire(PartitionCall[ports.Acquired], frozen=True):
    """Lease up to ``count`` records of one partition of a share, without waiting for more. Records
    out of attempts are dead-lettered if the share has a rule for that, else finished. A cancelled
    call leases nothing."""

    count: int
    bytes_max: int  # of the batches that hold the records; a larger first batch comes alone
    lease_ms: int
    is_strict: bool = False  # a larger first batch does not come at all


class Finish(PartitionCall[Results], frozen=True):
    """Acknowledge records of a share, or reject them for good. Results: None or NotLeased."""

    claims: Sequence[Claim]
    is_rejected: bool = False


class Prolong(Extend, frozen=True):
    """Extend leases of a share that still run. Results: None or NotLeased."""


class ShareStart(PartitionCall[int], frozen=True):
    """Return the first offset of a share that is not finished."""


class ShareLag(PartitionCall[int], frozen=True):
    """Return the number of records that are not finished, those in flight included."""


class RestartShare(PartitionCall[None], frozen=True):
    """Move a share to an offset, EARLIEST or LATEST: leases and attempts are forgotten."""

    offset: int
