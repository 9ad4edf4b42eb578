"""Leader and address of a partition: tagged fields of Produce and Fetch replies, so that a client
can go to the new leader without requesting metadata first.

    current leader    tag │ size = 9 │ leader id i32 │ epoch i32 │ 0
    node endpoints    tag │ size     │ count + 1, then per node: id i32, host, port i32, rack, 0
"""

import struct
from collections.abc import Sequence
from typing import Annotated

from penstock.wire.kafka.primitives import UVARINT, Message

_I32 = struct.Struct(">i")
_LEADER = struct.Struct(">iix")
_LEADER_TAG = struct.Struct(">BBiix")


class Leader(Message, frozen=True, gc=False):
    leader_id: Annotated[int, "int32", "0+"] = -1
    epoch: Annotated[int, "int32", "0+"] = -1


class NodeEndpoint(Message, frozen=True, gc=False):
    node_id: Annotated[int, "int32", "0+"] = 0
    host: Annotated[str, "string", "0+"] = ""
    port: Annotated[int, "int32", "0+"] = 0
    rack: Annotated[str | None, "string", "0+", "null 0+"] = None


def encode_leader_tag(tag: int, leader: Leader) -> bytes:
    return _LEADER_TAG.pack(tag, _LEADER.size, leader.leader_id, leader.epoch)


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


def encode_tags(tags: Sequence[bytes]) -> bytes:
    """Return a section of encoded fields, each with its tag and size."""
    return UVARINT[len(tags)] + b"".join(tags)
