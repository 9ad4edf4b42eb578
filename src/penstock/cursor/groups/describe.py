"""Descriptions of groups for tools: one shape for all kinds, as of the time of the request."""

from collections.abc import Mapping

import msgspec

from penstock.cursor.groups.assignors import Partitions
from penstock.cursor.groups.records import MemberValue, StreamsMemberValue, TopologyValue
from penstock.wire.kafka.faults import ErrorCode


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


class ConsumerMemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    subscription: MemberValue
    assigned: Partitions
    target: Partitions


class ShareMemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    assigned: Partitions


class StreamsMemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    metadata: StreamsMemberValue
    assigned: Partitions  # tasks with their role, as in ``task_assignor``
    target: Partitions


class Description(msgspec.Struct, frozen=True):
    code: ErrorCode
    group_id: str
    kind: str = "classic"
    state: str = "Empty"
    # Of a classic group.
    protocol_type: str = ""
    protocol: str = ""
    generation: int = 0
    leader: str = ""
    classic_members: tuple[ClassicMemberDescription, ...] = ()
    # Of a consumer group, a share group or a streams group.
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    consumer_members: tuple[ConsumerMemberDescription, ...] = ()
    share_members: tuple[ShareMemberDescription, ...] = ()
    subscribed: frozenset[str] = frozenset()  # topics by name, of a share group
    streams_members: tuple[StreamsMemberDescription, ...] = ()
    topology: TopologyValue | None = None
    # Partitions of the topology's topics by name; empty until all of them exist.
    partition_counts: Mapping[str, int] = {}
