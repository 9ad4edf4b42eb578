"""Descriptions of groups for tools: one shape for all kinds, as of the time of the request."""

from collections.abc import Mapping

import msgspec

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.classic import ClassicGroup
from penstock.cursor.group.classic_state import State
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import ConsumerGroup
from penstock.cursor.group.records import MemberValue, StreamsMemberValue, TopologyValue
from penstock.cursor.group.share import ASSIGNOR, ShareGroup
from penstock.cursor.group.streams import StreamsGroup
from penstock.cursor.group.streams_fold import ACTIVE, STANDBY, of_role
from penstock.cursor.group.task_assignor import Tasks


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
    assigned: Partitions  # tasks with their role, as in ``streams_fold``
    target: Partitions

    @property
    def active(self) -> Tasks:
        return of_role(ACTIVE, self.assigned)

    @property
    def standby(self) -> Tasks:
        return of_role(STANDBY, self.assigned)

    @property
    def target_active(self) -> Tasks:
        return of_role(ACTIVE, self.target)

    @property
    def target_standby(self) -> Tasks:
        return of_role(STANDBY, self.target)


class Description(msgspec.Struct, frozen=True):
    code: Code
    group_id: str
    kind: str = "classic"
    state: str = State.EMPTY
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


def describe_classic(group_id: str, group: ClassicGroup | None) -> Description:
    if group is None:
        return Description(Code.NONE, group_id)
    is_stable = group.state is State.STABLE
    return Description(
        Code.NONE,
        group_id,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol=(group.protocol or "") if is_stable else "",
        generation=group.generation,
        leader=group.leader or "",
        classic_members=tuple(
            ClassicMemberDescription(
                m.id,
                m.instance_id,
                m.client_id,
                m.client_host,
                # Protocols and assignments change until the group is stable.
                m.metadata(group.protocol) if is_stable else b"",
                m.assignment if is_stable else b"",
            )
            for m in group.members
        ),
    )


def describe_consumer(group: ConsumerGroup) -> Description:
    return Description(
        Code.NONE,
        group.group_id,
        kind="consumer",
        state=group.state,
        protocol_type="consumer",
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        assignor=group.assignor,
        consumer_members=tuple(
            ConsumerMemberDescription(
                m.member_id, m.member_epoch, m.subscription, m.assigned, m.target
            )
            for m in group.members()
        ),
    )


def describe_share(group: ShareGroup) -> Description:
    return Description(
        Code.NONE,
        group.group_id,
        kind="share",
        state=group.state,
        protocol_type="share",
        epoch=group.epoch,
        target_epoch=group.epoch,
        assignor=ASSIGNOR,
        share_members=tuple(
            ShareMemberDescription(
                m.member_id,
                m.epoch,
                m.rack_id,
                m.client_id,
                m.client_host,
                tuple(sorted(m.topic_names)),
                m.assigned,
            )
            for m in group.members()
        ),
        subscribed=group.subscribed(),
    )


def describe_streams(group: StreamsGroup) -> Description:
    return Description(
        Code.NONE,
        group.group_id,
        kind="streams",
        state=group.state,
        protocol_type="streams",
        epoch=group.value.epoch,
        target_epoch=group.target_epoch,
        streams_members=tuple(
            StreamsMemberDescription(member_id, current.epoch, metadata, current.assigned, target)
            for member_id, metadata, current, target in group.members()
        ),
        topology=group.topology,
        partition_counts=group.counts if group.value.is_ready else {},
    )
