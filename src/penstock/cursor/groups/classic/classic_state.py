"""The states and transitions of a classic group, its requests and replies, and its members.

    Empty ──REBALANCE──► PreparingRebalance ──JOINED──► CompletingRebalance ──ASSIGNED──► Stable
      ▲                     │   ▲        ▲                      │                            │
      └──────EMPTIED────────┘   │        └───────REBALANCE──────┘                            │
                                └──────────────────────REBALANCE─────────────────────────────┘

Preparing waits for every member to join again, Completing for the leader's assignment. Only Stable
and Empty are stored: if the coordinator dies in between, the next one finds the last stored state,
and the members join again.
"""

import struct
from collections import Counter
from collections.abc import Collection
from enum import Enum, StrEnum, auto

import msgspec

from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.records import ClassicMember
from penstock.wire.kafka.faults import ErrorCode


class State(StrEnum):
    """Named as in Kafka's clients and tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Trigger(Enum):
    REBALANCE = auto()  # the members, or their protocols, have changed
    JOINED = auto()  # all members have joined again, or the time is over
    EMPTIED = auto()  # no member has joined
    ASSIGNED = auto()  # the leader has sent the assignment
    DELETED = auto()


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.EMPTY, Trigger.REBALANCE): State.PREPARING,
    (State.STABLE, Trigger.REBALANCE): State.PREPARING,
    (State.COMPLETING, Trigger.REBALANCE): State.PREPARING,
    (State.PREPARING, Trigger.JOINED): State.COMPLETING,
    (State.PREPARING, Trigger.EMPTIED): State.EMPTY,
    (State.COMPLETING, Trigger.ASSIGNED): State.STABLE,
    (State.EMPTY, Trigger.DELETED): State.DEAD,
}


class JoinRequest(msgspec.Struct, frozen=True):
    member_id: str  # empty: not a member yet
    fresh_member_id: str  # unique, from the broker; used if a new member needs an id
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # in order of preference, with metadata
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # JoinGroup v4 and later: a new member first gets its id and joins again with it, so that a
    # client that gives up while waiting leaves no member without a known id.
    confirms_id: bool = True
    # JoinGroup v9 and later: the reply can state that the leader has nothing to assign.
    can_skip_assignment: bool = True

    def row(self, member_id: str, assignment: bytes = b"") -> ClassicMember:
        # JoinGroup v0 has one timeout for everything.
        rebalance_ms = self.rebalance_ms if self.rebalance_ms > 0 else self.session_ms
        return ClassicMember(
            member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_ms,
            rebalance_ms,
            self.protocols,
            assignment,
        )


class JoinReply(Reply, frozen=True):
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    skip_assignment: bool = False
    # For the leader only: member, instance, metadata for the chosen protocol.
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class SyncRequest(msgspec.Struct, frozen=True):
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncReply(Reply, frozen=True):
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeaveReply(Reply, frozen=True):
    members: tuple[tuple[str, str | None, ErrorCode], ...] = ()


class Member:
    """A member's row, and the tickets of its parked requests."""

    __slots__ = ("is_new", "join_ticket", "row", "sync_ticket")

    def __init__(self, row: ClassicMember) -> None:
        self.row = row
        self.join_ticket: int | None = None
        self.sync_ticket: int | None = None
        self.is_new = False  # its first join has no reply yet

    @property
    def id(self) -> str:
        return self.row.member_id

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.row.protocols if name == protocol), b"")


def shared_protocols(members: Collection[Member]) -> set[str]:
    """Return the protocols that all members support."""
    counts = Counter(name for member in members for name in {n for n, _ in member.row.protocols})
    return {name for name, count in counts.items() if count == len(members)}


def select_protocol(members: Collection[Member]) -> str:
    """Return the protocol with the most votes. Each member votes for the first of its protocols
    that all support. The smaller name wins a tie: any rule works if it is the same everywhere."""
    shared = shared_protocols(members)
    assert shared, "the members must have a protocol in common"
    votes = Counter(
        next(name for name, _ in member.row.protocols if name in shared) for member in members
    )
    return min(votes, key=lambda name: (-votes[name], name))


# The beginning of a consumer's metadata, in all versions; further fields of the version follow:
#     version i16 · count i32 · count x (length i16 · UTF-8)
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_LENGTH_BYTES = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topic names in a consumer's metadata, the only part that a coordinator reads: to
    reject the deletion of offsets in use, and to let the offsets of topics without subscribers
    expire. None if this is not the metadata of a plain consumer."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    # Every name has at least its length field: reject a larger count before looping over it.
    if version < 0 or not 0 <= count <= len(metadata) // _LENGTH_BYTES:
        return None
    names = set()
    position = _HEAD.size
    for _ in range(count):
        if position + _LENGTH_BYTES > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH_BYTES
        name = metadata[position : position + max(length, 0)]
        if length < 0 or len(name) < length:
            return None
        position += length
        try:
            names.add(name.decode())
        except UnicodeDecodeError:
            return None
    return frozenset(names)
