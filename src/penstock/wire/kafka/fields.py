"""The layout of a Kafka message: its fields, and their types and versions in the protocol.

The message classes in ``generated`` annotate each field: ``Annotated[int, "int32", "4+"]``. Further
annotations are the versions in which the field may be null (``null 2+``), its tag with the versions
in which it is tagged (``tag 0 1+``), and ``ignorable``: in a version without this field, any value
is allowed and not sent. Other fields must have their default value in such a version.

``WIRE_ORDER`` has the order of the fields in the message if it is not the order in the class."""

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self, get_args

import msgspec

from penstock.model.limits import KAFKA_ENTRIES_MAX, KAFKA_PARTITIONS_MAX, KAFKA_USERS_MAX

_INTS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q"}
FIXED: Final = {**_INTS, "bool": "?", "float64": "d", "uuid": "16s"}  # codes of ``struct``
_EVER = 32_767


@dataclass(frozen=True, slots=True)
class Versions:
    first: int
    last: int

    @classmethod
    def parse(cls, text: str | None) -> Self:
        if text is None or text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), _EVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def meets(self, other: "Versions") -> bool:
        return max(self.first, other.first) <= min(self.last, other.last)

    def __str__(self) -> str:
        if self.last == _EVER:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NEVER: Final = Versions(1, 0)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str  # for an array, the type of its elements
    versions: Versions
    is_array: bool = False
    struct: "Struct | None" = None
    nullable: Versions = NEVER
    tagged: Versions = NEVER
    tag: int = -1
    default: str = ""  # the default value as a Python expression
    is_ignorable: bool = False

    @property
    def is_fixed(self) -> bool:
        return not self.is_array and self.type in FIXED


@dataclass(frozen=True, slots=True)
class Struct:
    name: str
    fields: tuple[Field, ...]  # in the order of the message
    arguments: tuple[Field, ...] = ()  # in the order of the class


@cache
def struct_of(kind: type[msgspec.Struct]) -> Struct:
    fields = {each.name: _field(kind, each) for each in msgspec.structs.fields(kind)}
    order = getattr(kind, "WIRE_ORDER", fields)
    return Struct(kind.__name__, tuple(fields[name] for name in order), tuple(fields.values()))


def classes_of(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    found = {kind.__name__: kind}
    for each in struct_of(kind).fields:
        if each.struct is not None:
            found |= classes_of(_class(kind, each.struct.name))
    return found


def _class(near: type[msgspec.Struct], name: str) -> type[msgspec.Struct]:
    found: type[msgspec.Struct] = getattr(sys.modules[near.__module__], name)
    return found


def _field(owner: type[msgspec.Struct], info: msgspec.structs.FieldInfo) -> Field:
    _, wire, versions, *notes = get_args(info.type)
    kind = wire.removeprefix("[]")
    values = dict(note.partition(" ")[::2] for note in notes)
    tag, _, tagged = values.get("tag", "-1 none").partition(" ")
    return Field(
        name=info.name,
        type=kind,
        versions=Versions.parse(versions),
        is_array=wire != kind,
        struct=struct_of(_class(owner, kind)) if kind[0].isupper() else None,
        nullable=Versions.parse(values.get("null")),
        tagged=Versions.parse(tagged),
        tag=int(tag),
        default=_expression(info.default),
        is_ignorable="ignorable" in values,
    )


def _expression(default: Any) -> str:
    is_struct = isinstance(default, msgspec.Struct)
    return f"{type(default).__name__}()" if is_struct else repr(default)


def present(fields: Sequence[Field], version: int) -> Iterator[Field]:
    return (each for each in fields if version in each.versions and version not in each.tagged)


def tagged(fields: Sequence[Field], version: int) -> list[Field]:
    found = [each for each in fields if version in each.versions and version in each.tagged]
    return sorted(found, key=lambda each: each.tag)


def smallest(fields: Sequence[Field], version: int, is_flexible: bool) -> int:
    size = 1 if is_flexible else 0
    for each in present(fields, version):
        if each.is_fixed:
            size += struct.calcsize(">" + FIXED[each.type])
        elif is_flexible:
            size += 1
        elif each.struct and not each.is_array:
            size += 1 if version in each.nullable else smallest(each.struct.fields, version, False)
        else:
            size += 2 if each.type == "string" and not each.is_array else 4
    return size


# The arrays with a limit of KAFKA_PARTITIONS_MAX: those with these names in any API, the topics of
# some APIs, and others ("*" is every array of the API).
_OF_PARTITIONS = {"partitions", "partition_indexes", "assignments", "broker_ids", "replicas"}
_TOPICS_OF: Final = (
    "AddPartitionsToTxn AlterPartitionReassignments AlterReplicaLogDirs AlterShareGroupOffsets "
    "DeleteRecords DeleteShareGroupOffsets DescribeLogDirs DescribeProducers DescribeQuorum "
    "DescribeShareGroupOffsets DescribeTopicPartitions ListOffsets ListPartitionReassignments "
    "Metadata OffsetCommit OffsetDelete OffsetFetch OffsetForLeaderEpoch TxnOffsetCommit "
    "WriteTxnMarkers"
)
_OTHERS: Final = (
    "AddPartitionsToTxn.v3_and_below_topics ConsumerGroupHeartbeat.* Fetch.* ShareAcknowledge.* "
    "DescribeConfigs.configuration_keys ElectLeaders.topic_partitions ShareFetch.* "
    "ShareGroupHeartbeat.* StreamsGroupHeartbeat.source_topics StreamsGroupHeartbeat.topic_configs"
)
_MANY: Final = {f"{api}.topics" for api in _TOPICS_OF.split()} | set(_OTHERS.split())


def bound_of(api: str, array: str) -> int:
    """Return the maximum number of elements of an array (if it is nested, in a whole request)."""
    if api == "AlterUserScramCredentials":
        return KAFKA_USERS_MAX
    is_many = array in _OF_PARTITIONS and (api, array) != ("SyncGroup", "assignments")
    is_many = is_many or f"{api}.{array}" in _MANY or f"{api}.*" in _MANY
    return KAFKA_PARTITIONS_MAX if is_many else KAFKA_ENTRIES_MAX
