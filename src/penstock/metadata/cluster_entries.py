"""Keys and values of a cluster's entries in the store: nodes, partition rows, the manager, the
feature level, and operators' requests.

    /nodes/<id>                    a live node; removed when its lease ends. The create revision of
                                   the entry is the node's incarnation
    /partitions/<topic id>/<n>     a partition's row: leader, replicas and so on (``PartitionRow``)
    /manager                       the node that is manager now; removed when its lease ends
    /frontends/<random id>         a live frontend; the value is the name of its node
    /level                         the feature level in force (``membership/cluster_view.py``)
    /wishes/drains/<id>            request to move all replicas away from this node
    /wishes/places/<topic id>/<n>  request to move a partition: the replicas that it should have
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from penstock.model.errors import Damaged
from penstock.model.levels import LEVEL_FIRST, Levels
from penstock.model.topic import Topic
from penstock.replication.row import PartitionRow

T = TypeVar("T")

NODES_PREFIX: Final = "/nodes/"
PARTITIONS_PREFIX: Final = "/partitions/"
MANAGER_KEY: Final = "/manager"
LEVEL_KEY: Final = "/level"
DRAINS_PREFIX: Final = "/wishes/drains/"
PLACEMENTS_PREFIX: Final = "/wishes/places/"

FRONTENDS_PREFIX: Final = "/frontends/"

NODES_MAX: Final = 1_000
NODE_ID_MAX: Final = 2**31 - 1
# Every frontend writes its entry every two seconds, and every write is reported to all of them.
FRONTENDS_MAX: Final = 100
FRONTEND_NAME_CHARS_MAX: Final = 255


class PartitionKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    topic_id: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.index}"

    def __hash__(self) -> int:
        return hash((self.topic_id, self.index))


class NodeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    node: int  # number of the node, never reused for another machine
    name: str
    internal: str  # host:port for calls of other nodes
    http: str = ""  # URL for clients
    kafka: str = ""  # host:port for clients
    folder_id: str = ""  # id of the data folder: changes when the disk is replaced
    version: str = ""
    feature_level: int = 0  # the highest level that the node supports
    is_leaving: bool = False  # the node is about to stop and should not lead partitions
    rack: str = ""
    feature_level_min: int = 0  # the lowest level that the node supports

    @property
    def levels(self) -> Levels:
        # Nodes of versions without feature levels send 0 or 1.
        return Levels(
            max(self.feature_level_min, LEVEL_FIRST), max(self.feature_level, LEVEL_FIRST)
        )


class ManagerEntry(msgspec.Struct, frozen=True):
    node: int


class PlacementRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    replicas: tuple[int, ...]
    before: tuple[int, ...] = ()  # the replicas before a request of an operator; else empty


class LevelEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    level: int = LEVEL_FIRST  # the feature level in force
    wanted: int = 0  # the level requested by an operator and not yet in force; 0: none


def node_key(node: int) -> str:
    return f"{NODES_PREFIX}{node}"


def partition_key(key: PartitionKey) -> str:
    return f"{PARTITIONS_PREFIX}{key.topic_id}/{key.index}"


def drain_key(node: int) -> str:
    return f"{DRAINS_PREFIX}{node}"


def placement_key(key: PartitionKey) -> str:
    return f"{PLACEMENTS_PREFIX}{key.topic_id}/{key.index}"


def partitions_of(topic: Topic) -> Iterable[PartitionKey]:
    count = 0 if topic.is_share else topic.partition_count
    return (PartitionKey(topic.topic_id, index) for index in range(count))


def node_of(key: str) -> int:
    try:
        return int(key.rpartition("/")[2])
    except ValueError:
        raise Damaged(key, 0, "the metadata key does not end with a node id") from None


def partition_of(key: str) -> PartitionKey:
    rest, _, index = key.rpartition("/")
    try:
        return PartitionKey(rest.rpartition("/")[2], int(index))
    except ValueError:
        raise Damaged(key, 0, "the key does not end with <topic id>/<partition>") from None


encode_entry = msgspec.json.Encoder(order="deterministic").encode


def _decoder(kind: type[T]) -> Callable[[str, bytes], T]:
    decoder = msgspec.json.Decoder(kind)

    def decode(key: str, value: bytes) -> T:
        try:
            return decoder.decode(value)
        except (msgspec.MsgspecError, AssertionError) as error:
            raise Damaged(key, 0, str(error)) from None

    return decode


decode_node = _decoder(NodeEntry)
decode_row = _decoder(PartitionRow)
decode_manager = _decoder(ManagerEntry)
decode_placement = _decoder(PlacementRequest)
decode_level = _decoder(LevelEntry)
