"""The states and transitions of a classic group, its requests and replies, and its members.

    Empty ──REBALANCE──► PreparingRebalance ──JOINED──► CompletingRebalance ──ASSIGNED──► Stable
      ▲                     │   ▲        ▲                      │                            │
      └──────EMPTIED────────┘   │        └───────REBALANCE──────┘                            │
                                └──────────────────────REBALANCE─────────────────────────────┘

Preparing waits for every member to join again, Completing for the leader's assignment. Only Stable
and Empty are stored: if the coordinator dies in between, the next one finds the last stored state,
and the members join again.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum, StrEnum, auto

import msgspec

from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Reply
from penstock.cursor.group.records import ClassicMember


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

    @property
    def patience_ms(self) -> int:
        """The rebalance timeout; JoinGroup v0 has one timeout for everything."""
        return self.rebalance_ms if self.rebalance_ms > 0 else self.session_ms


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
    members: tuple[tuple[str, str | None, Code], ...] = ()


class Member:
    """A member, with the tickets of its parked requests."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "join_ticket",
        "protocols",
        "rebalance_ms",
        "session_ms",
        "sync_ticket",
    )

    def __init__(self, row: ClassicMember) -> None:
        self.id = row.member_id
        self.instance_id = row.instance_id
        self.client_id = row.client_id
        self.client_host = row.client_host
        self.session_ms = row.session_ms
        self.rebalance_ms = row.rebalance_ms
        self.protocols = row.protocols
        self.assignment = row.assignment
        self.join_ticket: int | None = None
        self.sync_ticket: int | None = None
        self.is_new = False  # its first join has no reply yet

    def row(self) -> ClassicMember:
        return ClassicMember(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_ms,
            self.rebalance_ms,
            self.protocols,
            self.assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


def member_of(request: JoinRequest, member_id: str) -> Member:
    return Member(
        ClassicMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_ms,
            request.patience_ms,
            request.protocols,
            b"",
        )
    )


def shared_protocols(members: Collection[Member]) -> set[str]:
    """Return the protocols that all members support."""
    counts = Counter(name for member in members for name in {n for n, _ in member.protocols})
    return {name for name, count in counts.items() if count == len(members)}


def select_protocol(members: Collection[Member]) -> str:
    """Return the protocol with the most votes. Each member votes for the first of its protocols
    that all support. The smaller name wins a tie: any rule works if it is the same everywhere."""
    shared = shared_protocols(members)
    assert shared, "a member that shares no protocol with the others is not let in"
    votes = Counter(_vote(member.protocols, shared) for member in members)
    return min(votes, key=lambda name: (-votes[name], name))


def _vote(protocols: Iterable[tuple[str, bytes]], shared: set[str]) -> str:
    return next(name for name, _ in protocols if name in shared)
