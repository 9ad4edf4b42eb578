"""Leader and address of a partition: tagged fields of Produce and Fetch replies, so that a client
can go to the new leader without requesting metadata first.

    current leader    tag │ size = 9 │ leader id i32 │ epoch i32 │ 0
    node endpoints    tag │ size     │ count + 1, then per node: id i32, host, port i32, rack, 0
"""

import struct
from collections.abc import Sequence

from penstock.wire.kafka.malformed import Malformed
from penstock.wire.kafka.primitives import (
    UVARINT,
    Message,
    oversized,
    read_compact_nullable_text,
    read_compact_text,
    read_uvarint,
    skip_tags,
)

_I32 = struct.Struct(">i")
_LEADER = struct.Struct(">iix")
_LEADER_TAG = struct.Struct(">BBiix")
_ENDPOINT_BYTES_MIN = 11
TAGS_MAX = 64  # known sections have only a few fields


class Leader(Message, frozen=True, gc=False):
    leader_id: int = -1
    epoch: int = -1


class NodeEndpoint(Message, frozen=True, gc=False):
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


def encode_leader_tag(tag: int, leader: Leader) -> bytes:
    return _LEADER_TAG.pack(tag, _LEADER.size, leader.leader_id, leader.epoch)


def decode_leader(data: bytes) -> Leader:
    leader_id, epoch = _LEADER.unpack_from(data, 0)
    return Leader(leader_id, epoch)


def encode_endpoints_tag(tag: int, endpoints: Sequence[NodeEndpoint]) -> bytes:
    parts = [UVARINT[len(endpoints) + 1]]
    for each in endpoints:
        host = each.host.encode()
        parts += (_I32.pack(each.node_id), UVARINT[len(host) + 1], host, _I32.pack(each.port))
        if each.rack is None:
            parts.append(b"\x00\x00")
        else:
            rack = each.rack.encode()
            parts += (UVARINT[len(rack) + 1], rack, b"\x00")
    body = b"".join(parts)
    return UVARINT[tag] + UVARINT[len(body)] + body


def decode_endpoints(data: bytes) -> Sequence[NodeEndpoint]:
    count, position = read_uvarint(data, 0)
    if count - 1 > (len(data) - position) // _ENDPOINT_BYTES_MIN:
        raise oversized("node_endpoints")
    endpoints = []
    for _ in range(count - 1):
        (node_id,) = _I32.unpack_from(data, position)
        host, position = read_compact_text(data, position + 4)
        (port,) = _I32.unpack_from(data, position)
        rack, position = read_compact_nullable_text(data, position + 4)
        position = skip_tags(data, position)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    if position > len(data):
        raise Malformed("node_endpoints end early")
    return tuple(endpoints)


def encode_tags(tags: Sequence[bytes]) -> bytes:
    """Return a section of encoded fields, each with its tag and size."""
    return UVARINT[len(tags)] + b"".join(tags)


def read_tags(data: memoryview, position: int) -> tuple[dict[int, bytes], int]:
    """Return the tagged fields at ``position`` by tag, for sections with known fields."""
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise Malformed(f"{count} tagged fields, {TAGS_MAX} are allowed")
    tags: dict[int, bytes] = {}
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        stop = position + size
        tags[tag] = bytes(data[position:stop])
        position = stop
    return tags, position
