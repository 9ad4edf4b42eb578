"""Types of coordinator decisions (replies to send and rows to write) and of group descriptions.

The broker parks every request under a ticket number. A decision may reply to its own request and to
requests that were parked before, whose clients may have disconnected.

- The rows of one decision go into one batch, so that a crash leaves all of them or none.
- A reply with ``after_commit`` waits until everything this coordinator has appended so far is
  committed, because it may depend on earlier rows.
- When an append fails, memory is ahead of the log. The state is then rebuilt from the log, and
  waiting requests get an error that makes clients retry."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from penstock.cursor.groups.assignors import Partitions
from penstock.cursor.groups.records import MemberValue, StreamsMemberValue, TopologyValue
from penstock.cursor.rows import Row
from penstock.wire.kafka.faults import ErrorCode

Metadata = TypeVar("Metadata")


class Reply(msgspec.Struct, frozen=True):
    """The base class of all replies, also used for replies that have only an error code."""

    code: ErrorCode = ErrorCode.NONE


class TicketReply(msgspec.Struct, frozen=True, gc=False):
    ticket: int
    reply: Reply
    after_commit: bool


class Decision(msgspec.Struct):
    """The replies and rows of one decision. ``ticket`` identifies the request that caused it."""

    ticket: int | None = None
    now_ms: int = 0
    wall_ms: int = 0
    replies: list[TicketReply] = []
    rows: list[Row] = []

    def reply(self, reply: Reply, *, after_commit: bool = False) -> None:
        self.reply_to(self.ticket, reply, after_commit=after_commit)

    def reply_to(self, ticket: int | None, reply: Reply, *, after_commit: bool = False) -> None:
        """Reply to a request that was parked before. Does nothing if ``ticket`` is None."""
        if ticket is not None:
            self.replies.append(TicketReply(ticket, reply, after_commit))


class Listing(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: str
    kind: str  # classic, consumer, share, streams


class ClassicMemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class MemberDescription(msgspec.Struct, Generic[Metadata], frozen=True):
    member_id: str
    member_epoch: int
    metadata: Metadata
    assigned: Partitions  # in a streams group, tasks with their role, as in ``task_assignor``
    target: Partitions


class Description(msgspec.Struct, frozen=True):
    code: ErrorCode
    group_id: str
    kind: str = "classic"
    state: str = "Empty"
    # Fields of classic groups.
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    leader: str = ""
    classic_members: tuple[ClassicMemberDescription, ...] = ()
    # Fields of consumer, share and streams groups.
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    consumer_members: tuple[MemberDescription[MemberValue], ...] = ()
    share_members: tuple[MemberDescription[MemberValue], ...] = ()
    subscribed: frozenset[str] = frozenset()  # names of the topics of a share group
    streams_members: tuple[MemberDescription[StreamsMemberValue], ...] = ()
    topology: TopologyValue | None = None
    # Partition counts of the topology's topics by name; empty until all of them exist.
    partition_counts: Mapping[str, int] = {}

    @classmethod
    def of(cls, group: Any, **fields: Any) -> "Description":
        head = (group.group_id, group.kind, group.state, group.protocol_type)
        return cls(ErrorCode.NONE, *head, **fields)
