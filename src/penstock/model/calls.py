"""The calls of a broker as values: one frozen struct per call, with the type of its reply.

``BrokerPort.call`` makes a call. ``wire/internal/broker_calls.py`` says where each call goes, how
long it may take and when it is retried. ``docs/adr/0040-calls-are-values.md`` explains why calls
are values. Calls raise errors of ``model.errors``.

The fields after the topic and the partition are sent to other nodes in this order. A new field goes
to the end and has a default, because an older node does not send it."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeAlias, TypeVar

import msgspec

from penstock.model import ports
from penstock.model.message import AckReason, Appended, Claim, Delivery, Message
from penstock.model.topic import QueueSettings, QueueStats, Topic

R = TypeVar("R")  # the reply of a call
Reply = TypeVar("Reply", covariant=True)

ALL_PARTITIONS: Final = -1  # used as the partition of a call that concerns several

# One result per claim: None, or the error of this claim.
Results: TypeAlias = Sequence[Exception | None]


class BrokerCall(msgspec.Struct, Generic[Reply], frozen=True, gc=False):
    # For limits and circuit breakers. Calls about a topic override these with fields.
    topic: ClassVar[Topic | None] = None
    partition: ClassVar[int] = ALL_PARTITIONS
    wait_ms: ClassVar[int] = 0  # how long the call may wait at the broker for messages

    def at_once(self) -> Self:
        return self


class TopicCall(BrokerCall[Reply], Generic[Reply], frozen=True):
    topic: Topic  # type: ignore[misc]


class LeadersCall(TopicCall[Reply], Generic[Reply], frozen=True):
    """A call that every leader of the topic serves for the partitions it leads."""

    # The partitions and epochs that the called node is expected to lead. If it does not lead one of
    # them, it raises NotLeader.
    counted_on: Sequence[tuple[int, int]] = ()


class PartitionCall(TopicCall[Reply], Generic[Reply], frozen=True):
    partition: int  # type: ignore[misc]


class Calls(Protocol):
    def call(self, call: BrokerCall[R], /) -> Coroutine[Any, Any, R]: ...


class BrokerPort(Calls, Protocol):
    # These two are served from the memory of any node.

    def moves(self, source_arn: str) -> Sequence[ports.MoveTask]:
        """Return the recent move tasks of a queue, newest first."""

    def find_share(self, source: Topic, group: str) -> Topic | None: ...

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``listener`` whenever the start or end offsets of a partition change. Returns a
        function that removes the listener. The partition must already be open."""

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``listener`` whenever ``Acquire`` may return records again: after new records, a
        release or an expired lease. Returns a function that removes the listener."""


# ── Queues ───────────────────────────────────────────────────────────────────────────────────


class Append(PartitionCall[Sequence[Appended]], frozen=True):
    """Append messages to a queue. The reply comes when they are durable."""

    messages: Sequence[Message]


class Publish(PartitionCall[Sequence[Appended]], frozen=True):
    """Append messages to an SNS topic. The reply comes when they are durable and in the subscribed
    queues, or a short time later if some queues are slow."""

    messages: Sequence[Message]


class Lease(TopicCall[Sequence[Delivery]], frozen=True):
    """Lease messages from any partition of the topic, and wait up to ``wait_ms`` for them. Raises
    InFlightLimit if a standard queue has too many leases and ``wait_ms`` is 0. A cancelled call
    leases nothing."""

    request: ports.LeaseRequest

    @property
    def wait_ms(self) -> int:  # type: ignore[override]
        return self.request.wait_ms

    def at_once(self) -> Self:
        request = msgspec.structs.replace(self.request, wait_ms=0)
        return msgspec.structs.replace(self, request=request)


class Ack(PartitionCall[Results], frozen=True):
    """Delete leased messages. An expired lease is an error only for FIFO queues."""

    claims: Sequence[Claim]
    reason: AckReason = AckReason.ACKED


class Extend(PartitionCall[Results], frozen=True):
    """Set the remaining time of each lease in milliseconds; 0 releases the message."""

    claims: Sequence[tuple[Claim, int]]
    is_strict: bool = False  # fail for a lease that has expired


def releases(topic: Topic, claims: Sequence[Claim]) -> Sequence[Extend]:
    """Return the calls that release these leases. Leases that have expired are not changed."""
    partitions: dict[int, list[tuple[Claim, int]]] = {}
    for claim in claims:
        partitions.setdefault(claim.partition, []).append((claim, 0))
    return [Extend(topic, each, some, is_strict=True) for each, some in partitions.items()]


class Purge(LeadersCall[None], frozen=True):
    """Delete all messages. Raises PurgeInProgress within a minute of the last purge."""


class Stats(LeadersCall[QueueStats], frozen=True):
    # Whether to fill in ``obstacles``, which needs a scan. An older node replies without them.
    is_detailed: bool = False


class Peek(PartitionCall[tuple[Sequence[ports.Peeked], int]], frozen=True):
    """Return records from ``start`` on without leasing them, and the next offset to peek at."""

    start: int
    count: int


class StartMove(BrokerCall[None], frozen=True):
    task: ports.MoveTask


class CancelMove(BrokerCall[ports.MoveTask | None], frozen=True):
    """Cancel a move task and return it. Returns None if this broker does not run the task."""

    task_id: str


# ── Streams ──────────────────────────────────────────────────────────────────────────────────
# For readers by offset and producers of whole batches. A queue is a stream as well; its control
# batches are returned unchanged, because clients skip them.


class AppendBatches(PartitionCall[ports.BatchAppended], frozen=True):
    """Append the checked batches of one produce request. The reply comes when they are committed
    (``acks`` 1 and -1) or written (0)."""

    acks: int
    batches: Sequence[bytes | memoryview]


class AppendMarker(PartitionCall[None], frozen=True):
    """End a transaction in a partition. Raises ProducerRefused if the marker is outdated."""

    marker: ports.Marker


class IsInTransaction(PartitionCall[bool], frozen=True):
    """Return whether this producer has an open transaction with records in the partition."""

    producer_id: int
    producer_epoch: int


class Producers(PartitionCall[Sequence[ports.ProducerSeen]], frozen=True):
    """Return the known idempotent producers, the longest inactive first."""


class Ends(PartitionCall[ports.StreamEnds], frozen=True): ...


class Fetch(PartitionCall[ports.Fetched], frozen=True):
    offset: int
    bytes_max: int
    is_committed: bool
    # Whether slices of files may be returned. Never sent to other nodes.
    as_slices: bool = False


class FindTime(PartitionCall[tuple[int, int]], frozen=True):
    """Return offset and time of the first record at or after a time, or (-1, -1)."""

    timestamp_ms: int


class MaxTimestamp(PartitionCall[tuple[int, int]], frozen=True):
    """Return offset and time of the record with the highest timestamp, or (-1, -1)."""


class DeleteRecords(PartitionCall[int], frozen=True):
    """Delete records below ``before``; -1 means all committed records. Returns the start offset."""

    before: int


class LogBytes(PartitionCall[int], frozen=True): ...


class ReadBookmark(PartitionCall[int], frozen=True):
    """Return the offset up to which a reader has read a partition. A reader without a bookmark
    begins at the start of the log."""

    reader: str


class ListBookmarks(PartitionCall[Mapping[str, int]], frozen=True):
    """Return the bookmarks of all readers of a partition, by reader."""


class MoveBookmark(PartitionCall[int], frozen=True):
    """Set a reader's bookmark. The reply comes when the bookmark is committed, and has its offset:
    a bookmark that is already further stays where it is, unless it may move back. -1 removes it.
    Needs feature level PUSH."""

    reader: str
    offset: int
    may_move_back: bool = False


# ── Shares ───────────────────────────────────────────────────────────────────────────────────
# A share is the queue called ``topic:group``: a named lease cursor over a topic. It is an entry of
# the catalog (``Topic.source_id`` is set) with its own settings and without records of its own.


class OpenShare(PartitionCall[Topic], frozen=True):
    """Return a share group's share (its lease cursor) of the source ``topic``, and create it if it
    is missing. The leader of partition 0 creates shares."""

    group: str
    start: int  # where a new share begins in every partition: EARLIEST or LATEST
    settings: QueueSettings = ports.SETTINGS_DEFAULT
    tags: Mapping[str, str] = ports.NO_TAGS
    # Deliveries after which a record is finished, unless there is a dead-letter queue.
    attempts_max: int | None = None
    # Whether records with the same key (of messages: the message group) are delivered in order, the
    # next one when the one before is finished. Records without a key have no order. Needs feature
    # level PUSH; an older node would open a share without order.
    is_ordered: bool = False
    # For a share of a range, its end offset in each partition. Records from there on are neither
    # delivered nor counted, so the range is finished when ``ShareLag`` is 0 in all partitions.
    # Needs feature level PUSH.
    until: tuple[int, ...] = ()
    # The first offset in each partition, instead of ``start``. Needs feature level PUSH.
    starts: tuple[int, ...] = ()


class CloseShare(TopicCall[bool], frozen=True):
    """Delete a share: the leases and acks of one group on a topic. The reply says whether it
    existed."""

    group: str


class Acquire(PartitionCall[ports.Acquired], frozen=True):
    """Lease up to ``count`` records of one partition of a share, without waiting for more. Records
    with too many attempts go to the share's dead-letter queue or, without one, count as acked. A
    cancelled call leases nothing."""

    count: int
    bytes_max: int  # size of the batches that hold the records; a larger first batch comes alone
    lease_ms: int
    is_strict: bool = False  # do not return a first batch above ``bytes_max``
    # Maximum number of records of one group of an ordered share; 0: no maximum. With 1, a consumer
    # whose request fails need not release later records of the group, which costs them an attempt.
    group_max: int = 0


class Finish(PartitionCall[Results], frozen=True):
    """Ack or reject records of a share. Rejected records go to its dead-letter queue, if any."""

    claims: Sequence[Claim]
    is_rejected: bool = False


class Prolong(Extend, frozen=True):
    """Extend leases of a share. The result for a lease that has expired is NotLeased."""


class ShareStart(PartitionCall[int], frozen=True):
    """Return the offset of a share's first record that is neither acked nor rejected."""


class ShareLag(PartitionCall[int], frozen=True):
    """Return the number of records that are neither acked nor rejected. Records that the share's
    filter does not want are counted until the cursor has read them."""


class RestartShare(PartitionCall[None], frozen=True):
    """Reset a share to an offset, EARLIEST or LATEST, and drop its leases and attempt counts."""

    offset: int


# ── Push ─────────────────────────────────────────────────────────────────────────────────────


class LearnSubscription(LeadersCall[None], frozen=True):
    """Read a subscription from the metadata store. From now on, messages are copied to its queue,
    and publishers wait for the copies."""

    subscription_id: str = ""


# The next calls go to the home of a subscription: the leader of ``home_partition``.


class ReadPushStatus(PartitionCall[ports.PushStatus], frozen=True):
    subscription_id: str


class PushOne(PartitionCall[ports.PushReply], frozen=True):
    """Send one request to the endpoint of a subscription, within its limits, and return the result.
    It sends ``message``, or the record at ``offset``. A failure is not retried."""

    subscription_id: str
    message: Message | None = None
    record_partition: int = 0
    offset: int = ports.LATEST  # LATEST: the last record
    is_test: bool = True  # the request is marked as a test
