"""What a cluster keeps in the store about itself: its nodes, who has which partition, who manages,
and what an operator wishes. Keys and values, and nothing that happens to them.

    /nodes/<id>                    a node that is alive; goes with its lease. The revision in which
                                   it came to be is the node's incarnation
    /partitions/<topic id>/<n>     a partition's row (``replication/row.py``)
    /manager                       whoever manages at the moment; goes with its lease
    /level                         the feature level in force (``cluster_level.py``)
    /wishes/drains/<id>            nothing shall be on this node any more
    /wishes/places/<topic id>/<n>  where a partition shall be
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
    """What the others need to know of a node."""

    node: int  # never given to another machine
    name: str
    internal: str  # host:port, for calls of other nodes
    http: str = ""  # url, for clients
    kafka: str = ""  # host:port, as clients are told
    folder_id: str = ""  # of the data: a node whose disk was replaced has another
    version: str = ""
    feature_level: int = 0  # the highest it speaks
    is_leaving: bool = False  # about to stop: it shall lead nothing
    rack: str = ""
    feature_level_min: int = 0  # the lowest

    @property
    def levels(self) -> Levels:
        """One from before there were levels says nothing, or 1."""
        return Levels(
            max(self.feature_level_min, LEVEL_FIRST), max(self.feature_level, LEVEL_FIRST)
        )


class ManagerEntry(msgspec.Struct, frozen=True):
    node: int


class PlaceWish(msgspec.Struct, frozen=True, omit_defaults=True):
    replicas: tuple[int, ...]
    before: tuple[int, ...] = ()  # replicas when a move was asked for; empty: the manager's own


class LevelEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    level: int = LEVEL_FIRST  # in force
    wanted: int = 0  # an operator's wish, until it is in force; 0: there is none


def node_key(node: int) -> str:
    return f"{NODES_PREFIX}{node}"


def partition_key(key: PartitionKey) -> str:
    return f"{PARTITIONS_PREFIX}{key.topic_id}/{key.index}"


def drain_key(node: int) -> str:
    return f"{DRAINS_PREFIX}{node}"


def place_key(key: PartitionKey) -> str:
    return f"{PLACES_PREFIX}{key.topic_id}/{key.index}"


def node_of(key: str) -> int:
    """Of a key below ``/nodes/`` or ``/wishes/drains/``. Raises Damaged."""
    try:
        return int(key.rpartition("/")[2])
    except ValueError:
        raise Damaged(key, 0, "not the key of a node") from None


def partition_of(key: str) -> PartitionKey:
    """Of a key below ``/partitions/`` or ``/wishes/places/``. Raises Damaged."""
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
