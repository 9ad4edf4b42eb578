"""The rows in the internal topic of a group coordinator. Keys and values, kind by kind:

    kind  key                                    value
    1     Offset      group, topic, partition    a committed offset
    2     Pending     group, producer, topic,    an offset whose transaction is still open
                      partition
    3     Fence       producer                   epoch of its last marker: older ones are rejected
    4     Classic     group                      generation, protocol, members, assignments
    5     Consumer    group                      epoch, topics subscribed to
    6     Member      group, member              subscription
    7     Target      group                      epoch of the target assignment
    8     TargetOf    group, member              partitions the member shall have
    9     Current     group, member              partitions the member has, or gives up
    10    Share       group                      epoch; exists even without members
    11    Configs     group                      settings by name; below feature level 3 only
    12    Streams     group                      epoch, topics in use; marks a streams group
    13    Topology    group                      subtopologies of the first member
    14    StreamsMember  group, member           process, endpoint, timeouts
    15    StreamsTarget  group                   epoch of the target assignment
    16    StreamsTargetOf  group, member         tasks the member shall have
    17    StreamsCurrent  group, member          tasks the member has, or gives up

Kinds 12 to 17 are written from feature level 5 on: older nodes cannot read them.
A group that only has offsets, because its consumers assign partitions themselves, has no other
rows. ``rows.py`` says how rows are encoded and how a layout is changed.
"""

from typing import Final, TypeAlias

import msgspec

from penstock.cursor.group.rows import RowCodec

OFFSET_KIND: Final = 1
PartitionMap: TypeAlias = dict[str, tuple[int, ...]]  # topic id → ascending partitions


class OffsetKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    topic_id: str
    partition: int


class OffsetValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int  # wall clock


class PendingKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    producer_id: int
    topic_id: str
    partition: int


class PendingValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_epoch: int
    offset: OffsetValue


class FenceKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_id: int


class FenceValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_epoch: int
    fenced_at_ms: int  # wall clock


class ClassicKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


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
    changed_at_ms: int  # wall clock; of an empty group: since when it is empty
    members: tuple[ClassicMember, ...]


class ConsumerKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class ConsumerValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    topics: tuple[tuple[str, str, int], ...]  # name, id, partitions; sorted by name
    changed_at_ms: int  # wall clock; of an empty group: since when it is empty


class MemberKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    member_id: str


class MemberValue(msgspec.Struct, frozen=True, array_like=True):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topic_names: tuple[str, ...]
    topic_regex: str
    assignor: str | None


class TargetKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class TargetValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int


class TargetOfKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    member_id: str


class TargetOfValue(msgspec.Struct, frozen=True, array_like=True):
    partitions: PartitionMap


class CurrentKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    member_id: str


class CurrentValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    previous_epoch: int
    state: int  # consumer_fold.MemberState
    assigned: PartitionMap
    revoking: PartitionMap


class ShareKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class ShareValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int


class ConfigsKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class ConfigsValue(msgspec.Struct, frozen=True, array_like=True):
    configs: dict[str, str]


class StreamsKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class StreamsValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    topics: tuple[tuple[str, str, int], ...]  # name, id, partitions; sorted by name
    is_ready: bool  # all topics exist and are partitioned as the topology requires
    standbys: int  # ``streams.num.standby.replicas`` at the last change
    changed_at_ms: int  # wall clock; of an empty group: since when it is empty


class TopologyKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class InternalTopic(msgspec.Struct, frozen=True, array_like=True, order=True):
    name: str
    partition_count: int  # 0: follows from the topics the subtopology reads
    replicas: int  # 0: the cluster's default
    configs: tuple[tuple[str, str], ...]  # sorted by name


class Subtopology(msgspec.Struct, frozen=True, array_like=True):
    """All tuples are sorted, so that equal topologies are equal values."""

    subtopology_id: str
    sources: tuple[str, ...]  # topics created outside the application
    repartition_sources: tuple[InternalTopic, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]
    copartitions: tuple[tuple[str, ...], ...]  # topics with the same number of partitions


class TopologyValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    subtopologies: tuple[Subtopology, ...]  # sorted by id


class StreamsMemberKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    member_id: str


class StreamsMemberValue(msgspec.Struct, frozen=True, array_like=True):
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topology_epoch: int
    process_id: str
    endpoint: tuple[str, int] | None  # host and port for interactive queries
    client_tags: tuple[tuple[str, str], ...]


class StreamsTargetKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class StreamsTargetOfKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    member_id: str


class StreamsTargetOfValue(msgspec.Struct, frozen=True, array_like=True):
    active: PartitionMap  # subtopology id → ascending partitions
    standby: PartitionMap


class StreamsCurrentKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str
    member_id: str


class StreamsCurrentValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    previous_epoch: int
    state: int  # consumer_fold.MemberState
    active: PartitionMap
    standby: PartitionMap
    revoking_active: PartitionMap
    revoking_standby: PartitionMap
    # Subtopology id, partition, epoch in which the member got the active task.
    since: tuple[tuple[str, int, int], ...]


GroupKey: TypeAlias = (
    OffsetKey
    | PendingKey
    | FenceKey
    | ClassicKey
    | ConsumerKey
    | MemberKey
    | TargetKey
    | TargetOfKey
    | CurrentKey
    | ShareKey
    | ConfigsKey
    | StreamsKey
    | TopologyKey
    | StreamsMemberKey
    | StreamsTargetKey
    | StreamsTargetOfKey
    | StreamsCurrentKey
)
GroupValue: TypeAlias = (
    OffsetValue
    | PendingValue
    | FenceValue
    | ClassicValue
    | ConsumerValue
    | MemberValue
    | TargetValue
    | TargetOfValue
    | CurrentValue
    | ShareValue
    | ConfigsValue
    | StreamsValue
    | TopologyValue
    | StreamsMemberValue
    | StreamsTargetOfValue
    | StreamsCurrentValue
)

CODEC: RowCodec[GroupKey, GroupValue] = RowCodec(
    {
        OFFSET_KIND: (OffsetKey, OffsetValue),
        2: (PendingKey, PendingValue),
        3: (FenceKey, FenceValue),
        4: (ClassicKey, ClassicValue),
        5: (ConsumerKey, ConsumerValue),
        6: (MemberKey, MemberValue),
        7: (TargetKey, TargetValue),
        8: (TargetOfKey, TargetOfValue),
        9: (CurrentKey, CurrentValue),
        10: (ShareKey, ShareValue),
        11: (ConfigsKey, ConfigsValue),
        12: (StreamsKey, StreamsValue),
        13: (TopologyKey, TopologyValue),
        14: (StreamsMemberKey, StreamsMemberValue),
        15: (StreamsTargetKey, TargetValue),
        16: (StreamsTargetOfKey, StreamsTargetOfValue),
        17: (StreamsCurrentKey, StreamsCurrentValue),
    }
)
