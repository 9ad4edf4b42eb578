"""A topic and the settings of its queue view: one immutable value, kept in the catalog."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from heapq import nsmallest
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from penstock.model.limits import LOCKS_SHOWN_MAX, OFFSET_MAX
from penstock.model.names import queue_arn, sns_arn

S = TypeVar("S", bound=msgspec.Struct)


class Kind(StrEnum):
    STANDARD = "standard"
    FIFO = "fifo"
    STREAM = "stream"  # read by offset only, until it is opened as a queue
    # A stream whose messages are deduplicated and have a group, like those of a FIFO queue. Not for
    # Kafka producers. Needs feature level PUSH: older nodes cannot read such a topic.
    FIFO_STREAM = "fifo_stream"


class Fsync(StrEnum):
    """When an append is confirmed: after a sync to disk (always) or before (interval, never)."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class DedupScope(StrEnum):
    QUEUE = "queue"
    GROUP = "messageGroup"


class Redrive(msgspec.Struct, frozen=True):
    """A rule that moves a message to the queue ``target_arn`` after ``attempts_max`` leases."""

    target_arn: str
    attempts_max: int


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    delay_ms: int = 0
    message_bytes_max: int = 1_048_576
    retention_ms: int = 345_600_000
    wait_ms: int = 0
    lease_ms: int = 30_000
    redrive: Redrive | None = None
    redrive_allow: str | None = None  # JSON text as given, checked when set
    policy: str | None = None  # JSON text as given
    kms_key: str | None = None
    kms_reuse_s: int = 300
    is_sse_managed: bool | None = None  # None: not set, reported as true; the node default applies
    is_content_dedup: bool = False
    dedup_scope: DedupScope = DedupScope.QUEUE  # only reported; ``Topic.dedup_scope`` is used
    throughput_limit: str = "perQueue"


class SkippedRow(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    digest: str  # hash of the row, so that another row at this offset is not skipped


class SnsTopic(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes a stream an SNS topic. SNS topics have names of their own: the queue `orders` and
    the SNS topic `orders`, whose stream is usually `sns.orders`, have nothing in common."""

    name: str
    created_at_ms: int  # of two streams that claim the same name, the earlier one has it
    attributes: dict[str, str] = {}  # by their AWS names, as given and checked
    tags: dict[str, str] = {}  # in the order in which they were added


class Topic(msgspec.Struct, frozen=True, omit_defaults=True):
    topic_id: str  # a topic that is created again has another id
    account: str
    region: str
    name: str
    kind: Kind
    partition_count: int
    created_at_ms: int
    modified_at_ms: int
    receipt_key: bytes  # signs this queue's receipts
    fsync: Fsync | None = None  # None: the node's default
    settings: QueueSettings = QueueSettings()
    dedup_scope: DedupScope = DedupScope.QUEUE  # set at creation
    tags: dict[str, str] = {}
    configs: dict[str, str] = {}  # Kafka topic configs that differ from their defaults
    source_id: str | None = None  # for a share, the id of the topic that it reads
    until: tuple[int, ...] = ()  # for a share of a range, its end offset in each partition
    deleted_at_ms: int | None = None  # set on a tombstone, which reserves the name for a minute
    skipped_rows: tuple[SkippedRow, ...] = ()  # only in topics of coordinators
    sns: SnsTopic | None = None  # since feature level 8

    @property
    def is_fifo(self) -> bool:
        return self.kind is Kind.FIFO or self.kind is Kind.FIFO_STREAM

    @property
    def is_queue(self) -> bool:
        return self.kind is not Kind.STREAM and self.kind is not Kind.FIFO_STREAM

    @property
    def is_share(self) -> bool:
        return self.source_id is not None

    def until_of(self, partition: int) -> int:
        """Return the offset at which a share ends in a partition."""
        if not self.until:
            return OFFSET_MAX
        return self.until[partition] if partition < len(self.until) else 0  # it was added later

    @property
    def arn(self) -> str:
        return queue_arn(self.account, self.region, self.name)

    @property
    def sns_arn(self) -> str | None:
        return None if self.sns is None else sns_arn(self.account, self.region, self.sns.name)

    def may_pass_messages_to(self, other: "Topic") -> bool:
        return (
            other.is_queue
            and not other.is_share
            and (other.account, other.region, other.kind) == (self.account, self.region, self.kind)
        )

    def with_settings(self, *, now_ms: int, **changes: Any) -> "Topic":
        settings = msgspec.structs.replace(self.settings, **changes)
        return msgspec.structs.replace(self, settings=settings, modified_at_ms=now_ms)


class GroupLock(msgspec.Struct, frozen=True):
    """A message group of a FIFO queue whose messages wait for the message in flight."""

    partition: int
    group: str
    offset: int  # offset of the message in flight
    until_ms: int  # end of that message's lease, on the wall clock
    blocked: int  # messages of the group that wait


class Obstacles(msgspec.Struct, frozen=True):
    """The numbers of messages that are not delivered, by reason."""

    available: int = 0  # messages that can be delivered
    blocked: int = 0  # FIFO: an earlier message of the group is in flight
    locked_groups: int = 0  # groups with blocked messages
    locks: Sequence[GroupLock] = ()  # the groups with the most blocked messages
    exhausted: int = 0  # messages leased as often as the redrive policy allows
    expired: int = 0  # past the retention period
    lease_ends_ms: int | None = None  # the first lease to end, on the wall clock
    delay_ends_ms: int | None = None  # the first delay to end
    is_read_ahead_full: bool = False  # the cursor reads no further messages
    uncommitted: int = 0  # appended and not yet replicated
    in_flight_max: int = 0


def join_obstacles(parts: Sequence[Obstacles]) -> Obstacles:
    return _sum(
        Obstacles,
        parts,
        locks=worst_locks(lock for each in parts for lock in each.locks),
        lease_ends_ms=_first(each.lease_ends_ms for each in parts),
        delay_ends_ms=_first(each.delay_ends_ms for each in parts),
        is_read_ahead_full=any(each.is_read_ahead_full for each in parts),
        in_flight_max=max((each.in_flight_max for each in parts), default=0),
    )


def worst_locks(locks: Iterable[GroupLock]) -> list[GroupLock]:
    return nsmallest(
        LOCKS_SHOWN_MAX, locks, key=lambda lock: (-lock.blocked, lock.partition, lock.offset)
    )


def _first(times_ms: Iterable[int | None]) -> int | None:
    return min((each for each in times_ms if each is not None), default=None)


def _sum(kind: type[S], parts: Sequence[S], **values: Any) -> S:
    summed = [name for name in kind.__struct_fields__ if name not in values]
    return kind(**values, **{name: sum(getattr(p, name) for p in parts) for name in summed})


class QueueStats(msgspec.Struct, frozen=True):
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_sent_at_ms: int | None = None  # send time of the oldest message that is not acked
    log_bytes: int = 0
    sent: int = 0  # since the partition was opened by this process
    received: int = 0
    acked: int = 0
    dead_lettered: int = 0
    expired: int = 0
    waits: int = 0  # parked long polls
    obstacles: Obstacles | None = None  # None: not requested, or not known to an older node


def join_stats(parts: Sequence[QueueStats]) -> QueueStats:
    if len(parts) == 1:
        return parts[0]
    found = [each.obstacles for each in parts if each.obstacles is not None]
    return _sum(
        QueueStats,
        parts,
        oldest_sent_at_ms=_first(each.oldest_sent_at_ms for each in parts),
        waits=max(each.waits for each in parts),  # one long poll is parked at all nodes
        obstacles=join_obstacles(found) if len(found) == len(parts) else None,
    )


def partition_of_group(group: str, partition_count: int) -> int:
    """Return the partition of a message group. The hash must never change."""
    return crc32(group.encode()) % partition_count if partition_count > 1 else 0


class PeekState(StrEnum):
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
