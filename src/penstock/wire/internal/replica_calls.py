"""Calls between the holders of a partition: numbers 0x0300-0x03FF.

``replica fetch`` is how followers get the log. One call asks for many partitions of one leader; it
is answered as soon as there is something for any of them. Those without news are simply not in the
answer and are asked for again, so that busy partitions and quiet ones come to be in different calls
by themselves. Every question is answered with its own number (R16).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

from penstock.wire.internal.calls import Call


class Ask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``replication.messages.Fetch`` for one partition; node and incarnation are the call's."""

    topic_id: str
    index: int
    epoch: int
    offset: int
    durable_offset: int
    last_epoch: int
    number: int
    # What the leader has told it: it is answered when that is not so any more, after a while.
    high_watermark: int = -1
    start_offset: int = -1
    low_watermark: int = 0  # as it has stored it; 0: it has not


class ReplicaFetch(msgspec.Struct, frozen=True, array_like=True):
    node: int
    incarnation: int
    wait_ms: int
    bytes_max: int
    asks: Sequence[Ask]


class AnswerKind(IntEnum):
    DATA = 0
    DIVERGE = 1  # epoch, offset: the leader's largest epoch up to the follower's, and its end
    BEHIND = 2  # offset: where the leader's log begins
    FENCED = 3  # epoch: the leader's
    NOT_YET = 4


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    position: int  # of the question in the call
    kind: AnswerKind
    epoch: int = -1
    offset: int = -1
    high_watermark: int = -1
    start_offset: int = -1  # of the leader's log: what lies below is finished with
    data: bytes = b""  # whole batches, one behind the other
    held_offset: int = 0  # what every replica has on disk
    low_watermark: int = 0  # as the leader has stored it; 0: it has not


class ReplicaFetched(msgspec.Struct, frozen=True, array_like=True):
    told: Sequence[Told] = ()


class ReplicaFetchedEnds(ReplicaFetched, frozen=True, array_like=True):
    """From feature level 2 on (``model/levels.py``)."""

    ends: Sequence[int] = ()  # of the leader's logs, one for each that it tells of


class StandingsAsked(msgspec.Struct, frozen=True, array_like=True):
    places: Sequence[tuple[str, int]]


class StandingsTold(msgspec.Struct, frozen=True, array_like=True):
    """For each place: the epoch of its last batch and its end; (-2, -1) if it is not here."""

    incarnation: int
    standings: Sequence[tuple[int, int]] = ()


class DropAsked(msgspec.Struct, frozen=True, array_like=True):
    """Whether a node may forget a partition that it does not hold any more (R22)."""

    topic_id: str
    index: int
    node: int
    epoch: int


class DropTold(msgspec.Struct, frozen=True, array_like=True):
    is_right: bool


NOT_HERE: Final = (-2, -1)
# Either answer is read, as the longer one; which one is sent is for the feature level to say.
REPLICA_FETCH: Final[Call[ReplicaFetch, ReplicaFetched]] = Call(
    0x0300, "replica fetch", ReplicaFetch, ReplicaFetchedEnds, is_idempotent=True
)
STANDINGS: Final = Call(0x0301, "standings", StandingsAsked, StandingsTold, is_idempotent=True)
DROP: Final = Call(0x0302, "drop a replica", DropAsked, DropTold, is_idempotent=True)
