"""Encodes assignments of consumer groups, and records of ``__consumer_offsets`` in Apache Kafka's
format, for programs that read committed offsets from that topic.

    assignment  version i16 · ConsumerProtocolAssignment, which a broker forwards unchanged

    key    version i16 = 1 · group string · topic string · partition i32
    value  version i16 = 4 · offset i64 · leader epoch i32 · metadata compact string ·
           commit time i64 · one tagged field: 0 = topic id
           (no value if the offset was deleted)
"""

import struct
from typing import Final

from penstock.wire.kafka.generated import consumer_protocol_assignment as wire
from penstock.wire.kafka.primitives import UUID_BYTES, Malformed, encode_uvarint

ConsumerProtocolAssignment = wire.ConsumerProtocolAssignment

KEY_VERSION: Final = 1
VALUE_VERSION: Final = 4

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VALUE_HEAD = struct.Struct(">hqi")
_KEY_HEAD = _INT16.pack(KEY_VERSION)
_TOPIC_ID_HEAD = bytes((1, 0, UUID_BYTES))  # number of tagged fields, tag, size


def encode_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    lengths = (_INT16.pack(len(group)), _INT16.pack(len(name)))
    return b"".join((_KEY_HEAD, lengths[0], group, lengths[1], name, _INT32.pack(partition)))


def encode_value(
    *, offset: int, leader_epoch: int, metadata: str, committed_at_ms: int, topic_id: bytes
) -> bytes:
    text = metadata.encode()
    return b"".join(
        (
            _VALUE_HEAD.pack(VALUE_VERSION, offset, leader_epoch),
            encode_uvarint(len(text) + 1),
            text,
            _INT64.pack(committed_at_ms),
            _TOPIC_ID_HEAD,
            topic_id,
        )
    )


def decode_assignment(blob: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment of any version. Fields that only newer versions have are ignored."""
    if len(blob) < _INT16.size:
        raise Malformed("the consumer protocol data has no version")
    (version,) = _INT16.unpack_from(blob)
    if version < 0:
        raise Malformed(f"the consumer protocol version {version} is negative")
    version = min(version, wire.VERSION_MAX)
    return wire.decode_consumer_protocol_assignment(blob, _INT16.size, version)


def encode_assignment(value: ConsumerProtocolAssignment, version: int) -> bytes:
    return _INT16.pack(version) + wire.encode_consumer_protocol_assignment(value, version)
