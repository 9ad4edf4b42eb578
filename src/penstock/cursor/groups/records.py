"""The rows in the internal topic of a group coordinator, encoded as in ``rows.py``. A group whose
consumers assign partitions themselves has only rows of kind OFFSET and PENDING."""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from penstock.cursor.rows import RowCodec

PartitionMap: TypeAlias = dict[str, tuple[int, ...]]  # topic id → ascending partitions


class OffsetValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int  # wall clock


class PendingValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_epoch: int
    offset: OffsetValue


class FenceValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_epoch: int
    fenced_at_ms: int  # wall clock


class ClassicMember(msgspec.Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class ClassicValue(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    changed_at_ms: int  # wall clock; for an empty group, when it became empty
    members: tuple[ClassicMember, ...]


class ConsumerValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    topics: tuple[tuple[str, str, int], ...]  # name, id, partition count; sorted by name
    changed_at_ms: int  # wall clock; for an empty group, when it became empty


class MemberValue(msgspec.Struct, frozen=True, array_like=True):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topic_names: tuple[str, ...]
    topic_regex: str
    assignor: str | None


class TargetValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int


class TargetOfValue(msgspec.Struct, frozen=True, array_like=True):
    partitions: PartitionMap


class CurrentValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    previous_epoch: int
    state: int  # assigned.MemberState
    assigned: PartitionMap
    revoking: PartitionMap


class ConfigsValue(msgspec.Struct, frozen=True, array_like=True):
    configs: dict[str, str]


class StreamsValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    topics: tuple[tuple[str, str, int], ...]  # name, id, partition count; sorted by name
    is_ready: bool  # all topics exist and are partitioned as the topology requires
    standbys: int  # ``streams.num.standby.replicas`` at the last change
    changed_at_ms: int  # wall clock; for an empty group, when it became empty


class InternalTopic(msgspec.Struct, frozen=True, array_like=True, order=True):
    name: str
    partition_count: int  # 0 if it is derived from the topics that the subtopology reads
    replicas: int  # 0 for the cluster's default
    configs: tuple[tuple[str, str], ...]  # sorted by name


class Subtopology(msgspec.Struct, frozen=True, array_like=True):
    """A part of a topology. All tuples are sorted, so that equal topologies compare equal."""

    subtopology_id: str
    sources: tuple[str, ...]  # topics created outside the application
    repartition_sources: tuple[InternalTopic, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]
    copartitions: tuple[tuple[str, ...], ...]  # topics that need equal partition counts


class TopologyValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    subtopologies: tuple[Subtopology, ...]  # sorted by id


class StreamsMemberValue(msgspec.Struct, frozen=True, array_like=True):
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topology_epoch: int
    process_id: str
    endpoint: tuple[str, int] | None  # host and port for interactive queries
    client_tags: tuple[tuple[str, str], ...]


class StreamsTargetOfValue(msgspec.Struct, frozen=True, array_like=True):
    active: PartitionMap  # subtopology id → ascending partitions
    standby: PartitionMap


class StreamsCurrentValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    previous_epoch: int
    state: int  # assigned.MemberState
    active: PartitionMap
    standby: PartitionMap
    revoking_active: PartitionMap
    revoking_standby: PartitionMap
    # Subtopology id, partition, epoch in which the member got the active task.
    since: tuple[tuple[str, int, int], ...]


class RowKind(IntEnum):
    """Kinds of rows, with the fields of their keys and the content of their values. STREAMS and the
    kinds after it require feature level 5, because older nodes cannot read them."""

    OFFSET = 1  # group, topic, partition → a committed offset
    PENDING = 2  # group, producer, topic, partition → an offset whose transaction is still open
    FENCE = 3  # producer → epoch of its last marker; older epochs are rejected
    CLASSIC = 4  # group → generation, protocol, members, assignments
    CONSUMER = 5  # group → epoch, topics subscribed to
    MEMBER = 6  # group, member → subscription
    TARGET = 7  # group → epoch of the target assignment
    TARGET_OF = 8  # group, member → partitions of the member in the target assignment
    CURRENT = 9  # group, member → partitions that the member has or is giving up
    SHARE = 10  # group → epoch; exists even without members
    CONFIGS = 11  # group → configs by name; only below feature level 3
    STREAMS = 12  # group → epoch, topics in use; marks a streams group
    TOPOLOGY = 13  # group → subtopologies of the first member
    STREAMS_MEMBER = 14  # group, member → process, endpoint, timeouts
    STREAMS_TARGET = 15  # group → epoch of the target assignment
    STREAMS_TARGET_OF = 16  # group, member → tasks of the member in the target assignment
    STREAMS_CURRENT = 17  # group, member → tasks that the member has or is giving up


_GROUP = tuple[str]
_MEMBER = tuple[str, str]
CODEC = RowCodec(
    {
        RowKind.OFFSET: (tuple[str, str, int], OffsetValue),
        RowKind.PENDING: (tuple[str, int, str, int], PendingValue),
        RowKind.FENCE: (tuple[int], FenceValue),
        RowKind.CLASSIC: (_GROUP, ClassicValue),
        RowKind.CONSUMER: (_GROUP, ConsumerValue),
        RowKind.MEMBER: (_MEMBER, MemberValue),
        RowKind.TARGET: (_GROUP, TargetValue),
        RowKind.TARGET_OF: (_MEMBER, TargetOfValue),
        RowKind.CURRENT: (_MEMBER, CurrentValue),
        RowKind.SHARE: (_GROUP, TargetValue),
        RowKind.CONFIGS: (_GROUP, ConfigsValue),
        RowKind.STREAMS: (_GROUP, StreamsValue),
        RowKind.TOPOLOGY: (_GROUP, TopologyValue),
        RowKind.STREAMS_MEMBER: (_MEMBER, StreamsMemberValue),
        RowKind.STREAMS_TARGET: (_GROUP, TargetValue),
        RowKind.STREAMS_TARGET_OF: (_MEMBER, StreamsTargetOfValue),
        RowKind.STREAMS_CURRENT: (_MEMBER, StreamsCurrentValue),
    }
)
