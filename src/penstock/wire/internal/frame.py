"""A frame between two nodes, and the greeting that comes before any other.

    ┌────────┬─────────┬──────┬──────┬────────────┬──────────┬─────────┐
    │ length │ version │ kind │ call │ request id │ deadline │ payload │
    │ u32    │ u8      │ u8   │ u16  │ u64        │ u32, ms  │ …       │
    └────────┴─────────┴──────┴──────┴────────────┴──────────┴─────────┘
             └──────────────── length counts from here ──────────────────┘

Numbers are big-endian. The payload is MessagePack, of the type that the call has in this
direction; a cancel has none. The deadline is time left and no instant: two nodes share no clock. A
reply, an error and a cancel carry the call and the request id of what they answer or end. Request
ids are the caller's; one that is under way may not be used again.

A connection begins with one HELLO each way, the caller's first. It carries version 0 and its
layout never changes: by it the two find the highest version both speak, which every later frame
carries. Between processes that share a secret there are two HELLO each way, and the first pair
proves the secret (``proof.py``). Changing what follows: raise VERSION_MAX, keep reading the version
before, and raise VERSION_MIN in the release after next, so that a cluster can be upgraded node by
node. New calls, and new fields with defaults at the end of a payload, need no new version. What an
older node would not understand at all is sent when the cluster's feature level says that there is
none any more; which levels a node speaks is in its greeting.

Cutting a stream into frames is done by ``net/frames.py``, which never makes room for a length that
is not allowed.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock.model.levels import LEVEL_FIRST
from penstock.model.limits import KIB, MIB
from penstock.wire.internal.faults import HelloRefused, MalformedFrame

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
VERSION_OF_HELLO: Final = 0

FRAME_BYTES_MAX: Final = 64 * MIB  # four of the largest batches; more goes in several calls
FRAME_BYTES_MAX_MIN: Final = 64 * KIB  # what every node must take
HELLO_BYTES_MAX: Final = 16 * KIB  # from somebody of whom nothing is known yet
FEATURES_MAX: Final = 64
ID_CHARS_MAX: Final = 255  # of a node or a cluster
DEADLINE_MS_MAX: Final = 0xFFFF_FFFF

_HEADER = struct.Struct(">IBBHQI")
_BODY_HEADER = struct.Struct(">BBHQI")
_LENGTH_BYTES = 4
HEADER_BYTES: Final = _BODY_HEADER.size
assert HEADER_BYTES == 16
assert _HEADER.size == _LENGTH_BYTES + HEADER_BYTES == 20


class Kind(IntEnum):
    HELLO = 0
    REQUEST = 1
    REPLY = 2
    ERROR = 3
    ONE_WAY = 4  # a request that gets no answer
    CANCEL = 5  # nobody waits for the answer any more


_KINDS: Final = tuple(Kind)


class Header(NamedTuple):
    version: int
    kind: Kind
    call: int
    request_id: int
    deadline_ms: int


class Hello(msgspec.Struct, frozen=True):
    """What a node says of itself. By field names, so that a later one may say more."""

    version_min: int
    version_max: int
    cluster_id: str
    node_id: str
    features: tuple[str, ...] = ()
    frame_bytes_max: int = FRAME_BYTES_MAX  # the longest it takes
    in_flight_max: int = 1_024  # requests it takes at once on this connection
    level_min: int = LEVEL_FIRST  # feature levels it speaks (``model/levels.py``)
    level_max: int = LEVEL_FIRST
    nonce: bytes = b""  # of this connection; empty: this end has no secret to prove
    proof: bytes = b""  # that this end knows the secret (``proof.py``)


def pack_header(
    version: int, kind: Kind, call: int, request_id: int, deadline_ms: int, *, payload_bytes: int
) -> bytes:
    """Length included. ``deadline_ms`` and the payload are within their bounds by now."""
    return _HEADER.pack(HEADER_BYTES + payload_bytes, version, kind, call, request_id, deadline_ms)


def read_header(frame: bytes | memoryview) -> Header:
    """Of a frame without its length. Raises MalformedFrame."""
    if len(frame) < HEADER_BYTES:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has no header")
    version, kind, call, request_id, deadline_ms = _BODY_HEADER.unpack_from(frame)
    if kind >= len(_KINDS):
        raise MalformedFrame(f"a frame of the unknown kind {kind}")
    return Header(version, _KINDS[kind], call, request_id, deadline_ms)


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_encode = msgspec.msgpack.Encoder().encode


def encode_hello(hello: Hello) -> bytes:
    """A whole frame."""
    payload = _encode(hello)
    assert len(payload) <= HELLO_BYTES_MAX, "a node's own greeting is short"
    return pack_header(VERSION_OF_HELLO, Kind.HELLO, 0, 0, 0, payload_bytes=len(payload)) + payload


def decode_hello(frame: bytes | memoryview) -> Hello:
    """The first frame of a connection, without its length. Raises MalformedFrame."""
    header = read_header(frame)
    if header.kind is not Kind.HELLO or header.version != VERSION_OF_HELLO:
        raise MalformedFrame(f"a connection that begins with a {header.kind.name} frame")
    try:
        hello = _hello_decoder.decode(frame[HEADER_BYTES:])
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedFrame(f"an unreadable greeting: {error}") from error
    if (
        len(hello.features) > FEATURES_MAX
        or not 0 < len(hello.node_id) <= ID_CHARS_MAX
        or len(hello.cluster_id) > ID_CHARS_MAX
        or hello.frame_bytes_max < FRAME_BYTES_MAX_MIN
        or hello.in_flight_max < 1
        or not LEVEL_FIRST <= hello.level_min <= hello.level_max
    ):
        raise MalformedFrame("a greeting with figures that no node has")
    return hello


def agree(own: Hello, other: Hello) -> int:
    """The version for everything that follows. Raises HelloRefused."""
    if own.cluster_id != other.cluster_id:
        raise HelloRefused(
            f"Node {other.node_id} is of cluster {other.cluster_id}; this is {own.node_id} of"
            f" cluster {own.cluster_id}."
        )
    version = min(own.version_max, other.version_max)
    if version < max(own.version_min, other.version_min):
        raise HelloRefused(
            f"Node {other.node_id} speaks versions {other.version_min} to {other.version_max} of"
            f" the node protocol, {own.node_id} speaks {own.version_min} to {own.version_max}."
        )
    return version
