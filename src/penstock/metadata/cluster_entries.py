"""Keys and values of a cluster's entries in the store: nodes, partition rows, the manager, the
feature level, and requests of operators.

    /nodes/<id>                    a live node; removed when its lease ends. The create revision of
                                   the entry is the node's incarnation
    /partitions/<topic id>/<n>     a partition's row (``replication/row.py``)
    /manager                       the present manager; removed when its lease ends
    /level                         the feature level in force (``cluster_level.py``)
    /wishes/drains/<id>            request to move all replicas away from this node
    /wishes/places/<topic id>/<n>  placement request: the replicas that a partition shall have
"""

from typing import Final

import msgspec

from penstock.model.errors import Damaged
from penstock.model.levels import LEVEL_FIRST, Levels
from penstock.replication.row import PartitionRow

NODES_PREFIX: Final = "/nodes/"
PARTITIONS_PREFIX: Final = "/partitions/"
MANAGER_KEY: Final = "/manager"
LEVEL_KEY: Final = "/level"
DRAINS_PREFIX: Final = "/wishes/drains/"
PLACES_PREFIX: Final = "/wishes/places/"

NODES_MAX: Final = 1_000
NODE_ID_MAX: Final = 2**31 - 1


class PartitionKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    topic_id: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.index}"

    def __hash__(self) -> int:
        return hash((self.topic_id, self.index))


class NodeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a node for other nodes."""

    node: int  # never given to another machine
    name: str
    internal: str  # host:port for calls of other nodes
    http: str = ""  # URL for clients
    kafka: str = ""  # host:port for clients
    folder_id: str = ""  # id of the data folder: changes when the disk is replaced
    version: str = ""
    feature_level: int = 0  # the highest that it supports
    is_leaving: bool = False  # about to stop: it should not lead
    rack: str = ""
    feature_level_min: int = 0  # the lowest that it supports

    @property
    def levels(self) -> Levels:
        """The supported levels. Nodes from before feature levels send 0 or 1."""
        return Levels(
            max(self.feature_level_min, LEVEL_FIRST), max(self.feature_level, LEVEL_FIRST)
        )


class ManagerEntry(msgspec.Struct, frozen=True):
    node: int


class PlaceWish(msgspec.Struct, frozen=True, omit_defaults=True):
    replicas: tuple[int, ...]
    before: tuple[int, ...] = ()  # replicas before an operator's request; empty: the manager's


class LevelEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    level: int = LEVEL_FIRST  # in force
    wanted: int = 0  # requested by an operator, until it is in force; 0: none


def node_key(node: int) -> str:
    return f"{NODES_PREFIX}{node}"


def partition_key(key: PartitionKey) -> str:
    return f"{PARTITIONS_PREFIX}{key.topic_id}/{key.index}"


def drain_key(node: int) -> str:
    return f"{DRAINS_PREFIX}{node}"


def place_key(key: PartitionKey) -> str:
    return f"{PLACES_PREFIX}{key.topic_id}/{key.index}"


def node_of(key: str) -> int:
    """Return the node that the key of a node or drain request names. Raises Damaged."""
    try:
        return int(key.rpartition("/")[2])
    except ValueError:
        raise Damaged(key, 0, "not the key of a node") from None


def partition_of(key: str) -> PartitionKey:
    """Return the partition that the key of a row or placement request names. Raises Damaged."""
    rest, _, index = key.rpartition("/")
    try:
        return PartitionKey(rest.rpartition("/")[2], int(index))
    except ValueError:
        raise Damaged(key, 0, "not the key of a partition") from None


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_node = msgspec.json.Decoder(NodeEntry).decode
_decode_row = msgspec.json.Decoder(PartitionRow).decode
_decode_manager = msgspec.json.Decoder(ManagerEntry).decode
_decode_wish = msgspec.json.Decoder(PlaceWish).decode
_decode_level = msgspec.json.Decoder(LevelEntry).decode


def encode_entry(value: NodeEntry | PartitionRow | ManagerEntry | PlaceWish | LevelEntry) -> bytes:
    return _encode(value)


def decode_node(key: str, value: bytes) -> NodeEntry:
    try:
        return _decode_node(value)
    except msgspec.MsgspecError as error:
        raise Damaged(key, 0, str(error)) from None


def decode_row(key: str, value: bytes) -> PartitionRow:
    try:
        return _decode_row(value)
    except (msgspec.MsgspecError, AssertionError) as error:
        raise Damaged(key, 0, str(error)) from None


def decode_manager(key: str, value: bytes) -> ManagerEntry:
    try:
        return _decode_manager(value)
    except msgspec.MsgspecError as error:
        raise Damaged(key, 0, str(error)) from None


def decode_wish(key: str, value: bytes) -> PlaceWish:
    try:
        return _decode_wish(value)
    except msgspec.MsgspecError as error:
        raise Damaged(key, 0, str(error)) from None


def decode_level(key: str, value: bytes) -> LevelEntry:
    try:
        return _decode_level(value)
    except msgspec.MsgspecError as error:
        raise Damaged(key, 0, str(error)) from None
