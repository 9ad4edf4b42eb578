"""The frames between two nodes, and the greeting at the start of a connection.

    ┌────────┬─────────┬──────┬──────┬────────────┬──────────┬─────────┐
    │ length │ version │ kind │ call │ request id │ deadline │ payload │
    │ u32    │ u8      │ u8   │ u16  │ u64        │ u32, ms  │ …       │
    └────────┴─────────┴──────┴──────┴────────────┴──────────┴─────────┘
             └──────────────── length counts from here ──────────────────┘

Numbers are big-endian. The payload is a hello, request, reply or error in MessagePack; a cancel has
none. The deadline is the remaining time, not a point in time, because the clocks of nodes differ. A
reply, an error or a cancel has the call number and the request id of its request. The caller
chooses request ids, and may not reuse the id of a request in progress.

A connection begins with one HELLO in each direction, the caller's first. HELLO has version 0, and
its layout never changes. From it both nodes find the highest version that both support, and all
later frames have this version. Between processes that share a secret there are two HELLO in each
direction, so that both ends can prove the secret (see below). To change other frames, raise
VERSION_MAX, keep reading the previous version, and raise VERSION_MIN in the release after next, so
that a cluster can be upgraded node by node. New calls, and new fields with defaults at the end of a
payload, need no new version. Any other change needs a new feature level of the cluster, which
excludes older nodes.

``net/frames.py`` splits a stream into frames and never allocates memory for a forbidden length.

Both ends of a connection prove that they know a secret, without sending the secret:

    caller                              answerer
    HELLO nonce                      →
                                     ←  HELLO nonce, proof of the answerer
    HELLO nonce, proof of the caller →
                                     ←  HELLO

A proof is an HMAC-SHA256, keyed with the secret, of the side that proves, the port on which the
answerer listens, and both greetings with their nonces. Each part has a reason:

- the nonces are new for each connection, so a recorded proof is useless;
- the side prevents a caller from sending the answerer's own proof back;
- the port prevents a process that took over a port from forwarding the greeting to another
  listener, because the proof of that listener contains a different port;
- the greetings prevent changes to the ids and features in them.

The caller sends its proof only to an answerer that has proved the secret first."""

import hmac
import struct
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

import msgspec

from penstock.model.levels import LEVEL_FIRST
from penstock.model.limits import KIB, MIB
from penstock.wire.internal.faults import HelloRefused, MalformedFrame

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
VERSION_OF_HELLO: Final = 0

FRAME_BYTES_MAX: Final = 64 * MIB  # four of the largest batches; longer data takes several calls
FRAME_BYTES_MAX_MIN: Final = 64 * KIB  # every node must accept this
HELLO_BYTES_MAX: Final = 16 * KIB  # small, because the sender is not known yet
FEATURES_MAX: Final = 64
ID_CHARS_MAX: Final = 255  # for a node or a cluster
DEADLINE_MS_MAX: Final = 0xFFFF_FFFF
SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32

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
    ONE_WAY = 4  # a request without a reply
    CANCEL = 5  # the caller no longer waits for the reply


_KINDS: Final = tuple(Kind)


class Header(NamedTuple):
    version: int
    kind: Kind
    call: int
    request_id: int
    deadline_ms: int


class Hello(msgspec.Struct, frozen=True):
    """The greeting of a node. It is encoded with field names, so that fields can be added."""

    version_min: int
    version_max: int
    cluster_id: str
    node_id: str
    features: tuple[str, ...] = ()
    frame_bytes_max: int = FRAME_BYTES_MAX  # the longest frame that the node accepts
    in_flight_max: int = 1_024  # requests that the node accepts at once on this connection
    level_min: int = LEVEL_FIRST  # feature levels that the node supports (``model/levels.py``)
    level_max: int = LEVEL_FIRST
    nonce: bytes = b""  # new for each connection; empty if this end has no secret to prove
    proof: bytes = b""  # proves that this end knows the secret


def pack_header(
    version: int, kind: Kind, call: int, request_id: int, deadline_ms: int, payload_bytes: int
) -> bytes:
    return _HEADER.pack(HEADER_BYTES + payload_bytes, version, kind, call, request_id, deadline_ms)


def read_header(frame: bytes | memoryview) -> Header:
    if len(frame) < HEADER_BYTES:
        raise MalformedFrame(f"the frame has {len(frame)} bytes, which is too short for its header")
    version, kind, call, request_id, deadline_ms = _BODY_HEADER.unpack_from(frame)
    if kind >= len(_KINDS):
        raise MalformedFrame(f"the frame has the unknown kind {kind}")
    return Header(version, _KINDS[kind], call, request_id, deadline_ms)


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_encode = msgspec.msgpack.Encoder().encode


def encode_hello(hello: Hello) -> bytes:
    payload = _encode(hello)
    assert len(payload) <= HELLO_BYTES_MAX, "the node's hello is too long"
    return pack_header(VERSION_OF_HELLO, Kind.HELLO, 0, 0, 0, payload_bytes=len(payload)) + payload


def decode_hello(frame: bytes | memoryview) -> Hello:
    header = read_header(frame)
    if header.kind is not Kind.HELLO or header.version != VERSION_OF_HELLO:
        raise MalformedFrame(f"the connection begins with a {header.kind.name} frame, not HELLO")
    try:
        hello = _hello_decoder.decode(frame[HEADER_BYTES:])
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedFrame(f"the hello cannot be decoded: {error}") from error
    if (
        len(hello.features) > FEATURES_MAX
        or not 0 < len(hello.node_id) <= ID_CHARS_MAX
        or len(hello.cluster_id) > ID_CHARS_MAX
        or hello.frame_bytes_max < FRAME_BYTES_MAX_MIN
        or hello.in_flight_max < 1
        or not LEVEL_FIRST <= hello.level_min <= hello.level_max
    ):
        raise MalformedFrame("a value in the hello is out of range")
    return hello


def agree(own: Hello, other: Hello) -> int:
    """Return the version of all later frames. Raises HelloRefused for an incompatible node."""
    if own.cluster_id != other.cluster_id:
        raise HelloRefused(
            f"Node {other.node_id} belongs to cluster {other.cluster_id}, but node {own.node_id}"
            f" belongs to cluster {own.cluster_id}."
        )
    version = min(own.version_max, other.version_max)
    if version < max(own.version_min, other.version_min):
        raise HelloRefused(
            f"Node {other.node_id} supports versions {other.version_min} to {other.version_max} of"
            f" the node protocol, but node {own.node_id} supports versions {own.version_min} to"
            f" {own.version_max}."
        )
    return version


class Side(StrEnum):
    CALLER = "caller"
    ANSWERER = "answerer"


def prove(secret: bytes, side: Side, *, caller: Hello, answerer: Hello, port: int) -> bytes:
    said = (side, port, _plain(caller), _plain(answerer))
    return hmac.digest(secret, _encode(said), "sha256")


def check_proof(secret: bytes, side: Side, *, caller: Hello, answerer: Hello, port: int) -> None:
    shown = caller if side is Side.CALLER else answerer
    expected = prove(secret, side, caller=caller, answerer=answerer, port=port)
    if len(shown.nonce) != NONCE_BYTES or not hmac.compare_digest(shown.proof, expected):
        raise HelloRefused(
            f"Node {shown.node_id} did not prove that it knows the secret shared by the workers."
        )


def _plain(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, proof=b"")
