"""The narrow seams between roles. A frontend knows a broker only as ``Backend`` and the metadata
only as ``Catalog``: in one process they are plain objects, in a cluster they are remote. Which of
the two is decided in ``node/compose.py`` and nowhere else."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.model.acls import AclIndex
from penstock.model.file_slice import Piece
from penstock.model.identity import AccessKey, ScramCredential, Tenant, User
from penstock.model.message import Appended, Claim, Delivery, Message, Record
from penstock.model.topic import PeekState, QueueSettings, QueueStats, Topic


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
    attempts: int = 0  # in all queues that the message has been in
    until_ms: int | None = None  # the end of the lease or delay, or of the lease it waits for
    blocked_by: int | None = None  # FIFO: offset of the message in flight that locks its group


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
    # Without a destination: the queues that the caller may send to. None: not recorded, because an
    # older version created the task; then the queues that send their dead letters to the source.
    origin_arns: tuple[str, ...] | None = None


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
        self,
        topic: Topic,
        partition: int,
        claims: Sequence[tuple[Claim, int]],
        *,
        is_strict: bool = False,
    ) -> Sequence[Exception | None]:
        """Set each lease's time left (ms, 0 releases). Results: None, NotLeased, InvalidRequest
        (twelve hours exceeded) or ExpiredReceipt (FIFO). ``is_strict``: of a lease that still runs;
        whoever gives back what reached nobody must not release what another has leased since."""
        ...

    async def purge(self, topic: Topic) -> None: ...

    async def stats(self, topic: Topic, *, is_detailed: bool = False) -> QueueStats:
        """``is_detailed``: with ``obstacles``, which looks at every message that is in flight or
        was passed over."""
        ...

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


class ProducerSeen(msgspec.Struct, frozen=True, gc=False):
    """What a partition remembers of one producer; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    seen_at_ms: int  # wall clock
    coordinator_epoch: int
    transaction_start: int  # first offset of its open transaction


class StreamEnds(msgspec.Struct, frozen=True, gc=False):
    """Where a partition begins and how far its readers may go."""

    start_offset: int
    high_watermark: int
    last_stable_offset: int  # below the first open transaction
    leader_epoch: int = 0
    # False: a leader has just changed, and there may be more than it can vouch for yet.
    is_settled: bool = True


class BatchAppended(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    appended_at_ms: int  # -1: the producer's own times were kept
    start_offset: int
    is_duplicate: bool = False


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """What is there from an offset on, in as few buffers as it was read in: to be passed on, not to
    be looked at (``record.batch.split_batches`` is for those who must)."""

    ends: StreamEnds
    # Whole batches in order, many to a buffer; the first may begin below the offset asked for.
    # Slices of files only for those who said that they take them.
    buffers: Sequence[Piece] = ()
    next_offset: int = -1  # behind the last batch; -1 when there is none
    record_count: int = 0  # without those of control batches
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

    async def producers(self, topic: Topic, partition: int) -> Sequence[ProducerSeen]:
        """Those with a number of their own that are remembered, longest silent first."""
        ...

    async def ends(self, topic: Topic, partition: int) -> StreamEnds: ...

    async def fetch(
        self,
        topic: Topic,
        partition: int,
        *,
        offset: int,
        bytes_max: int,
        is_committed: bool,
        as_slices: bool = False,
    ) -> Fetched:
        """What is there now; never waits for more. ``as_slices``: where it can be had as pieces of
        files, these will do. Raises OffsetOutOfRange and Damaged."""
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
        """Call ``listener`` whenever the ends have moved: there may be more to read, or less at
        the start. Returns what ends that. The partition has been opened by an earlier call."""
        ...


SETTINGS_DEFAULT = QueueSettings()
NO_TAGS: Mapping[str, str] = {}
EARLIEST = -2  # in place of an offset: the first record there is
LATEST = -1  # behind the last


class Acquired(msgspec.Struct, frozen=True, gc=False):
    """What one member of a share group got from one partition."""

    start_offset: int  # everything below is finished with, for this group
    batches: Sequence[bytes]  # whole, in order; hold the records below and perhaps others
    picks: Sequence[tuple[int, int, int]] = ()  # (offset, lease_seq, attempt), ascending


class Shares(Protocol):
    """Named lease cursors over a topic: the queue called ``topic:group``. Each is an entry of the
    catalog (``Topic.source_id`` is set) with settings of its own and no records of its own."""

    async def open_share(
        self,
        source: Topic,
        group: str,
        *,
        start: int,
        settings: QueueSettings = SETTINGS_DEFAULT,
        tags: Mapping[str, str] = NO_TAGS,
        attempts_max: int | None = None,
    ) -> Topic:
        """The share of this group, made if it is missing. ``start``: where a new one begins in
        every partition, EARLIEST or LATEST. ``attempts_max``: after so many deliveries a record
        is finished with, unless a dead-letter rule in the settings says otherwise. Raises
        InvalidRequest for a source that cannot be shared."""
        ...

    def find_share(self, source: Topic, group: str) -> Topic | None: ...

    async def close_share(self, source: Topic, group: str) -> bool:
        """Forget it; False when there was none."""
        ...

    async def acquire(
        self,
        share: Topic,
        partition: int,
        *,
        count: int,
        bytes_max: int,
        lease_ms: int,
        is_strict: bool = False,
    ) -> Acquired:
        """Lease up to ``count`` records from one partition now; never waits for more. The batches
        that hold them have at most ``bytes_max``; a larger first batch comes alone, and not at all
        if ``is_strict``. Records out of attempts are dead-lettered where the
        share has a rule for that, and finished with otherwise. A cancelled call leases nothing."""
        ...

    async def finish(
        self, share: Topic, partition: int, claims: Sequence[Claim], *, is_rejected: bool = False
    ) -> Sequence[Exception | None]:
        """Acknowledge, or reject for good. Only the lease that still runs counts: NotLeased
        otherwise. Returns once committed."""
        ...

    async def prolong(
        self, share: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        """Set each lease's time left (ms; 0 releases). NotLeased unless the lease still runs."""
        ...

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``listener`` whenever ``acquire`` may bring something again: new records, a release,
        a lease that ran out. Returns what ends that."""
        ...

    async def share_start(self, share: Topic, partition: int) -> int:
        """The first offset that is not finished with."""
        ...

    async def share_lag(self, share: Topic, partition: int) -> int:
        """How many records are not finished with, those in flight included."""
        ...

    async def restart_share(self, share: Topic, partition: int, offset: int) -> None:
        """Begin again at an offset, EARLIEST or LATEST: leases and attempts are forgotten."""
        ...


class Catalog(Protocol):
    """Topics by name and by id, from memory. Changes go to the store first and are seen by the
    caller when the call returns."""

    def find(self, account: str, region: str, name: str) -> Topic | None: ...

    def find_arn(self, arn: str) -> Topic | None: ...

    def find_id(self, topic_id: str) -> Topic | None:
        """In any account and region."""
        ...

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        """Sorted by name."""
        ...

    def all_topics(self) -> Sequence[Topic]: ...

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool: ...

    def tombstone(self, topic_id: str) -> Topic | None:
        """The deleted topic of this id, for some minutes."""
        ...

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


class KeyRing(Protocol):
    """The master key, wherever it lives: wraps small secrets and data keys, never messages."""

    @property
    def master_id(self) -> str:
        """Which master key wraps now; written beside what it has wrapped."""
        ...

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        """``context`` must be the same again to unwrap: what is wrapped for one entry is of no use
        in another."""
        ...

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes:
        """By whichever known master key it was wrapped. Raises Damaged when it cannot be."""
        ...


class Identities(Protocol):
    """Tenants, users, keys and policies, from memory; a watch keeps them fresh."""

    def tenant(self, account: str) -> Tenant | None: ...

    def tenants(self) -> Sequence[Tenant]: ...

    def user(self, account: str, name: str) -> User | None: ...

    def users(self, account: str) -> Sequence[User]: ...

    def key(self, key_id: str) -> AccessKey | None: ...

    def keys(self, account: str, user: str) -> Sequence[AccessKey]: ...

    def secret(self, key: AccessKey) -> bytes:
        """The secret of an access key, in the clear."""
        ...

    def scram(self, account: str, user: str, mechanism: str) -> ScramCredential | None: ...

    def iteration_counts(self, mechanism: str) -> Mapping[str, Mapping[int, int]]:
        """The number of users by account and by the iterations of their password; counts above
        SCRAM_ITERATIONS_MAX, which older versions stored, are left out."""
        ...

    def acls(self, account: str) -> AclIndex | None:
        """Return the access rules of a tenant; None if it has none."""
        ...

    @property
    def epoch(self) -> int:
        """Raised by every change: decisions remembered under an older one are void."""
        ...

    def note_used(self, key: AccessKey, *, now_ms: int) -> None:
        """The key has signed something; written down now and then, to the minute."""
        ...
