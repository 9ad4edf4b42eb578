"""Calls between nodes that are not in the table of ``broker_calls``.

Followers read the log of a partition with ``replica fetch``. One call requests many partitions from
one leader, and the reply comes as soon as any of them has changes. Partitions without changes are
not in the reply and are requested again, so that over time busy and quiet partitions are in
different calls. Every request for a partition has a number, which the reply repeats.

Coordinators call each other, because different nodes may coordinate a group and the transaction
that commits offsets for it, or a transaction and the partitions that it writes to. The codes in
these calls are Kafka's error codes.

A backup first calls HOLD on every node, to stop messages that move from one log to another. Then it
calls POSITIONS three times (``broker/backup_positions.py``). Then it calls HOLD again, to let
messages move but keep the segments that the backup copies."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

from penstock.wire.internal.calls import Call

# ── Replicas: 0x0300-0x03FF ──────────────────────────────────────────────────────────────────


class PartitionFetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic_id: str
    index: int
    epoch: int
    offset: int
    durable_offset: int
    last_epoch: int
    number: int
    # Values that the follower knows; if they change, the leader replies after a while.
    high_watermark: int = -1
    start_offset: int = -1
    low_watermark: int = 0  # the value that the follower has stored; 0: none


class ReplicaFetch(msgspec.Struct, frozen=True, array_like=True):
    node: int
    incarnation: int
    wait_ms: int
    bytes_max: int
    partitions: Sequence[PartitionFetch]


class ReplyKind(IntEnum):
    DATA = 0
    DIVERGE = 1  # has the leader's largest epoch up to the follower's epoch, and its end offset
    BEHIND = 2  # has the start offset of the leader's log
    FENCED = 3  # has the leader's epoch
    NOT_YET = 4


class PartitionReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    position: int  # index of the PartitionFetch in the call
    kind: ReplyKind
    epoch: int = -1
    offset: int = -1
    high_watermark: int = -1
    start_offset: int = -1  # start of the leader's log; lower offsets are no longer needed
    data: bytes = b""  # whole batches, one after the other
    held_offset: int = 0  # every replica has all records below this offset on disk
    low_watermark: int = 0  # the value that the leader has stored; 0: none


class ReplicaFetched(msgspec.Struct, frozen=True, array_like=True):
    replies: Sequence[PartitionReply] = ()


class ReplicaFetchedEnds(ReplicaFetched, frozen=True, array_like=True):
    ends: Sequence[int] = ()  # end offsets of the leader's logs, one for each reply


class StandingsRequest(msgspec.Struct, frozen=True, array_like=True):
    places: Sequence[tuple[str, int]]


class StandingsReply(msgspec.Struct, frozen=True, array_like=True):
    """The last epoch and the end offset of each replica, or (-2, -1) if the node has none."""

    incarnation: int
    standings: Sequence[tuple[int, int]] = ()


class DropRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks the leader of a partition whether a former replica may delete its files."""

    topic_id: str
    index: int
    node: int
    epoch: int


class DropReply(msgspec.Struct, frozen=True, array_like=True):
    is_right: bool


NOT_HERE: Final = (-2, -1)
# Both replies are decoded as the longer one; the feature level determines which one is sent.
REPLICA_FETCH: Final[Call[ReplicaFetch, ReplicaFetched]] = Call(
    0x0300, "replica fetch", ReplicaFetch, ReplicaFetchedEnds, is_idempotent=True
)
STANDINGS: Final = Call(0x0301, "standings", StandingsRequest, StandingsReply, is_idempotent=True)
DROP: Final = Call(0x0302, "drop a replica", DropRequest, DropReply, is_idempotent=True)


# ── Coordinators: 0x0400-0x04FF ──────────────────────────────────────────────────────────────


class TransactionAdd(msgspec.Struct, frozen=True, array_like=True):
    """Adds partitions to a transaction. With ``is_check``, only checks that they were added."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[tuple[str, int]]
    is_check: bool = False


class GroupComplete(msgspec.Struct, frozen=True, array_like=True):
    """Commits or discards the offsets that a transaction has written for a group."""

    group_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool


class GroupFetch(msgspec.Struct, frozen=True, array_like=True):
    """Reads the committed offsets of a group: of all partitions if ``partitions`` is None."""

    group_id: str
    partitions: Sequence[tuple[str, int]] | None
    requires_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class OffsetReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    code: int


class GroupFetched(msgspec.Struct, frozen=True, array_like=True):
    code: int
    partitions: tuple[OffsetReply, ...] = ()


class CodeReply(msgspec.Struct, frozen=True, array_like=True):
    code: int


TRANSACTION_ADD: Final = Call(
    0x0400, "transaction.add", TransactionAdd, CodeReply, is_idempotent=True
)
GROUP_COMPLETE: Final = Call(0x0401, "group.complete", GroupComplete, CodeReply, is_idempotent=True)
GROUP_FETCH: Final = Call(0x0402, "group.fetch", GroupFetch, GroupFetched, is_idempotent=True)


# ── Backups: 0x0500-0x05FF ───────────────────────────────────────────────────────────────────


class HoldRequest(msgspec.Struct, frozen=True, array_like=True):
    holder: str  # the same in all calls of a backup
    crossings_ms: int  # how long to hold crossings; 0 releases them
    segments_ms: int


class HoldReply(msgspec.Struct, frozen=True, array_like=True):
    is_held: bool


class PartitionPositions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic_id: str
    index: int
    start_offset: int
    end_offset: int  # all records below are committed
    epoch: int
    is_settled: bool  # False: more records may be committed
    size_bytes: int  # size of all segments, about the size of the copy


class PositionsRequest(msgspec.Struct, frozen=True, array_like=True):
    holder: str
    stage: int


class PositionsReply(msgspec.Struct, frozen=True, array_like=True):
    is_held: bool  # whether crossings were held until now
    positions: Sequence[PartitionPositions] = ()


HOLD: Final = Call(0x0500, "backup.hold", HoldRequest, HoldReply, is_idempotent=True)
POSITIONS: Final = Call(0x0501, "backup.take", PositionsRequest, PositionsReply, is_idempotent=True)
