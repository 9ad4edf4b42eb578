"""What stands in the internal topic of a group coordinator. Keys and values, kind by kind:

    kind  key                                    value
    1     Offset      group, topic, partition    a committed offset
    2     Pending     group, producer, topic,    an offset whose transaction is still open
                      partition
    3     Fence       producer                   epoch of its last marker: older ones are refused
    4     Classic     group                      generation, protocol, members, assignments
    5     Consumer    group                      epoch, topics subscribed to
    6     Member      group, member              subscription
    7     Target      group                      epoch of the target assignment
    8     TargetOf    group, member              partitions the member shall have
    9     Current     group, member              partitions the member has, or gives up
    10    Share       group                      epoch; that it is a share group, members or not
    11    Configs     group                      settings by name; below feature level 3 only

A group that only has offsets, because its consumers assign partitions themselves, has no other
rows. ``rows.py`` says rows are encoded and how a layout is changed.
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
    changed_at_ms: int  # wall clock; when there are no members: since when
    members: tuple[ClassicMember, ...]


class ConsumerKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    group_id: str


class ConsumerValue(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    topics: tuple[tuple[str, str, int], ...]  # name, id, partitions; sorted by name
    changed_at_ms: int  # wall clock; when there are no members: since when


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
    }
)
