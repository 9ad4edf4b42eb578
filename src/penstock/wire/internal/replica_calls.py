"""Calls between the replicas of a partition: numbers 0x0300-0x03FF.

With ``replica fetch`` followers get the log. One call requests many partitions of one leader; the
reply comes as soon as there is news for any of them. Partitions without news are not in the reply
and are requested again, so that over time busy and quiet partitions are in different calls. Every
request for a partition has a number, which the reply repeats (R16)."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

from penstock.wire.internal.calls import Call


class PartitionFetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``replication.messages.Fetch`` for one partition; the call has node and incarnation."""

    topic_id: str
    index: int
    epoch: int
    offset: int
    durable_offset: int
    last_epoch: int
    number: int
    # Values that the follower knows: if they change, the leader replies after a while.
    high_watermark: int = -1
    start_offset: int = -1
    low_watermark: int = 0  # as the follower stored it; 0: not stored


class ReplicaFetch(msgspec.Struct, frozen=True, array_like=True):
    node: int
    incarnation: int
    wait_ms: int
    bytes_max: int
    partitions: Sequence[PartitionFetch]


class ReplyKind(IntEnum):
    DATA = 0
    DIVERGE = 1  # epoch, offset: the leader's largest epoch up to the follower's, and its end
    BEHIND = 2  # offset: the start of the leader's log
    FENCED = 3  # epoch: that of the leader
    NOT_YET = 4


class PartitionReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    position: int  # of the PartitionFetch in the call
    kind: ReplyKind
    epoch: int = -1
    offset: int = -1
    high_watermark: int = -1
    start_offset: int = -1  # of the leader's log: lower offsets are no longer needed
    data: bytes = b""  # whole batches, one after the other
    held_offset: int = 0  # end of what every replica has on disk
    low_watermark: int = 0  # as the leader stored it; 0: not stored


class ReplicaFetched(msgspec.Struct, frozen=True, array_like=True):
    replies: Sequence[PartitionReply] = ()


class ReplicaFetchedEnds(ReplicaFetched, frozen=True, array_like=True):
    """Used from feature level 2 on (``model/levels.py``)."""

    ends: Sequence[int] = ()  # of the leader's logs, one for each reply


class StandingsRequest(msgspec.Struct, frozen=True, array_like=True):
    places: Sequence[tuple[str, int]]


class StandingsReply(msgspec.Struct, frozen=True, array_like=True):
    """For each partition: the epoch of its last batch, and its end; (-2, -1) if it is not here."""

    incarnation: int
    standings: Sequence[tuple[int, int]] = ()


class DropRequest(msgspec.Struct, frozen=True, array_like=True):
    """May a node delete its copy of a partition of which it is no longer a replica (R22)?"""

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
