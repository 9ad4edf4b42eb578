"""The assignments that members of a classic consumer group exchange through SyncGroup.

    ┌─────────────┬────────────────────────────┐
    │ version i16 │ ConsumerProtocolAssignment │
    └─────────────┴────────────────────────────┘

A broker forwards them unread. Readers must accept any version: newer versions only append fields,
so known fields are read and the rest is ignored."""

import struct

from penstock.wire.kafka.generated import consumer_protocol_assignment as wire
from penstock.wire.kafka.malformed import Malformed

ConsumerProtocolAssignment = wire.ConsumerProtocolAssignment

_VERSION = struct.Struct(">h")


def decode_assignment(blob: bytes) -> ConsumerProtocolAssignment:
    if len(blob) < _VERSION.size:
        raise Malformed("the consumer protocol data has no version")
    (version,) = _VERSION.unpack_from(blob)
    if version < 0:
        raise Malformed(f"consumer protocol version {version}")
    version = min(version, wire.VERSION_MAX)
    return wire.decode_consumer_protocol_assignment(blob, _VERSION.size, version)


def encode_assignment(value: ConsumerProtocolAssignment, version: int) -> bytes:
    return _VERSION.pack(version) + wire.encode_consumer_protocol_assignment(value, version)
