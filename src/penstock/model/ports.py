"""The narrow seams between roles. A frontend knows a broker only as ``Backend`` and the metadata
only as ``Catalog``: in one process they are plain objects, in a cluster they are remote. Which of
the two is decided in ``node/compose.py`` and nowhere else."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from penstock.model.message import Appended, Claim, Delivery, Message, Record
from penstock.model.topic import PeekState, QueueStats, Topic


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump. For timestamps people see and for retention."""
        ...

    def mono_ms(self) -> int:
        """Milliseconds of a clock that only goes forward. For leases and delays."""
        ...


class LeaseRequest(msgspec.Struct, frozen=True):
    count: int = 1
    lease_ms: int = 30_000
    wait_ms: int = 0
    attempt_id: str | None = None  # FIFO: the same id gets the same deliveries again


class Peeked(msgspec.Struct, frozen=True):
    partition: int
    record: Record
    state: PeekState
    attempts: int = 0


class MoveTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """Moving dead letters back. Kept in the store, so that a restart goes on with it."""

    task_id: str
    source_arn: str
    destination_arn: str | None
    rate_per_s: int | None
    status: str  # RUNNING COMPLETED CANCELLING CANCELLED FAILED
    started_at_ms: int
    moved: int = 0
    to_move: int = 0
    failure_reason: str | None = None


class Backend(Protocol):
    """The broker's calls. An append, ack, extend or purge returns once it is durable as the topic
    is configured; errors are those of ``model.errors``."""

    async def append(
        self, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]: ...

    async def lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        """From any partition of the topic; parks for ``wait_ms`` when there is nothing. Raises
        InFlightLimit on a standard queue that is full of leases when wait_ms is 0. A cancelled
        call consumes nothing."""
        ...

    async def ack(
        self, topic: Topic, partition: int, claims: Sequence[Claim]
    ) -> Sequence[Exception | None]:
        """One result per claim: None, or ExpiredReceipt (FIFO). A gone record is a success."""
        ...

    async def extend(
        self, topic: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        """Set each lease's time left (ms, 0 releases). Results: None, NotLeased, InvalidRequest
        (twelve hours exceeded) or ExpiredReceipt (FIFO)."""
        ...

    async def purge(self, topic: Topic) -> None: ...

    async def stats(self, topic: Topic) -> QueueStats: ...

    async def peek(
        self, topic: Topic, *, partition: int, start: int, count: int
    ) -> tuple[Sequence[Peeked], int]:
        """Records at or behind ``start`` without leasing them, and where to go on from."""
        ...

    async def start_move(self, task: MoveTask) -> None: ...

    async def cancel_move(self, task_id: str) -> MoveTask | None: ...

    def moves(self, source_arn: str) -> Sequence[MoveTask]:
        """Newest first, ended ones included (a bounded history)."""
        ...


class Marker(msgspec.Struct, frozen=True, gc=False):
    """The end of one transaction in one partition."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int = 0


class StreamEnds(msgspec.Struct, frozen=True, gc=False):
    """Where a partition begins and how far its readers may go."""

    start_offset: int
    high_watermark: int
    last_stable_offset: int  # below the first open transaction
    leader_epoch: int = 0


class BatchAppended(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    appended_at_ms: int  # -1: the producer's own times were kept
    start_offset: int
    is_duplicate: bool = False


class Fetched(msgspec.Struct, frozen=True, gc=False):
    ends: StreamEnds
    batches: Sequence[bytes]  # whole, in order; the first may begin below the offset asked for
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset), for committed reads


class Streams(Protocol):
    """The broker's calls for readers by offset and for producers of whole batches. A topic that is
    a queue is a stream as well; its control batches are handed out as they are, for clients skip
    them by themselves."""

    async def append_batches(
        self, topic: Topic, partition: int, batches: Sequence[bytes | memoryview], *, acks: int
    ) -> BatchAppended:
        """Checked batches of one produce call. Returns once they are committed (acks 1 and -1) or
        written (0). Raises ProducerRefused, DiskFull, Overloaded, TopicNotFound."""
        ...

    async def append_marker(self, topic: Topic, partition: int, marker: Marker) -> None:
        """End a transaction here; returns once that is committed. Again is harmless. Raises
        ProducerRefused when the marker comes from the past."""
        ...

    async def is_in_transaction(
        self, topic: Topic, partition: int, producer_id: int, producer_epoch: int
    ) -> bool:
        """Whether this producer has an open transaction with records here."""
        ...

    async def ends(self, topic: Topic, partition: int) -> StreamEnds: ...

    async def fetch(
        self, topic: Topic, partition: int, *, offset: int, bytes_max: int, is_committed: bool
    ) -> Fetched:
        """What is there now; never waits for more. Raises OffsetOutOfRange and Damaged."""
        ...

    async def find_time(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int]:
        """The first record at or after a time: (offset, its time), or (-1, -1)."""
        ...

    async def max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int]:
        """The newest record's (offset, time), or (-1, -1)."""
        ...

    async def delete_records(self, topic: Topic, partition: int, before: int) -> int:
        """Everything below ``before`` (-1: the high watermark) is gone; returns the new start."""
        ...

    async def log_bytes(self, topic: Topic, partition: int) -> int: ...

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``listener`` whenever more can be read; returns what ends that. The partition has
        been opened by an earlier call."""
        ...


class Catalog(Protocol):
    """Topics by name and by id, from memory. Changes go to the store first and are seen by the
    caller when the call returns."""

    def find(self, account: str, region: str, name: str) -> Topic | None: ...

    def find_arn(self, arn: str) -> Topic | None: ...

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        """Sorted by name."""
        ...

    def all_topics(self) -> Sequence[Topic]: ...

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool: ...

    async def create(self, topic: Topic) -> Topic:
        """Raises TopicExists when the name is taken."""
        ...

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        """Apply a pure function to the newest value and store it, again when someone was faster.
        Raises TopicNotFound."""
        ...

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic: ...

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        """Called with (before, after) for each change, ours or another node's."""
        ...


Sleep = Callable[[float], Awaitable[None]]
