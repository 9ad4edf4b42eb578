"""The blobs that members of a classic consumer group exchange through JoinGroup and SyncGroup.

    ┌─────────────┬───────────────────────────────────┐
    │ version i16 │ ConsumerProtocolSubscription or   │
    │             │ ConsumerProtocolAssignment        │
    └─────────────┴───────────────────────────────────┘

A broker forwards them unread. Code that reads them (describing a group, a client of our own, moving
a group to the newer protocol) must accept any version: newer versions only append fields, so known
fields are read and the rest is ignored."""

import struct

from penstock.wire.kafka.generated import consumer_protocol_assignment as assignment
from penstock.wire.kafka.generated import consumer_protocol_subscription as subscription
from penstock.wire.kafka.malformed import Malformed

ConsumerProtocolAssignment = assignment.ConsumerProtocolAssignment
ConsumerProtocolSubscription = subscription.ConsumerProtocolSubscription

_VERSION = struct.Struct(">h")


def decode_subscription(blob: bytes) -> subscription.ConsumerProtocolSubscription:
    version = min(_version(blob), subscription.VERSION_MAX)
    return subscription.decode_consumer_protocol_subscription(blob, _VERSION.size, version)


def encode_subscription(value: subscription.ConsumerProtocolSubscription, version: int) -> bytes:
    body = subscription.encode_consumer_protocol_subscription(value, version)
    return _VERSION.pack(version) + body


def decode_assignment(blob: bytes) -> assignment.ConsumerProtocolAssignment:
    version = min(_version(blob), assignment.VERSION_MAX)
    return assignment.decode_consumer_protocol_assignment(blob, _VERSION.size, version)


def encode_assignment(value: assignment.ConsumerProtocolAssignment, version: int) -> bytes:
    return _VERSION.pack(version) + assignment.encode_consumer_protocol_assignment(value, version)


def _version(blob: bytes) -> int:
    if len(blob) < _VERSION.size:
        raise Malformed("a consumer protocol blob without its version")
    version = int(_VERSION.unpack_from(blob)[0])
    if version < 0:
        raise Malformed(f"consumer protocol version {version}")
    return version
