"""ShareFetch replies, encoded by hand: like Fetch replies they are buffers of records between
headers that are made here. The rest of the API is generated.

    ┌───────┬───────┬─────────┬───────┬─────────┬───────────┬─────────┬──────────────────┬──────┐
    │ index │ error │ message │ ack's │ ack's   │ leader    │ records │ acquired         │ tags │
    │ i32   │ i16   │ compact │ error │ message │ id, epoch │ compact │ first, last, how │      │
    │       │       │         │ i16   │ compact │ i32 i32 0 │         │ often, 0         │      │
    └───────┴───────┴─────────┴───────┴─────────┴───────────┴─────────┴──────────────────┴──────┘

Versions 1 and 2 have the same reply.
"""

import struct
from collections.abc import Sequence

from penstock.wire.kafka.malformed import Unencodable, UnsupportedVersion
from penstock.wire.kafka.pieces import encode_nullable_text, encode_topic
from penstock.wire.kafka.primitives import UNFIT, UVARINT, Message

VERSION_MIN = 1
VERSION_MAX = 2

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_REPLY = struct.Struct(">ih")  # throttle, error
_PARTITION = struct.Struct(">ih")
_LEADER = struct.Struct(">iix")
_ACQUIRED = struct.Struct(">qqhx")
_NO_LEADER = _LEADER.pack(-1, -1)  # the leader has not changed


class SharePartitionReply(Message, frozen=True, gc=False):
    index: int
    error_code: int = 0
    acknowledge_error_code: int = 0
    records: Sequence[bytes | memoryview] = ()  # whole batches, in order
    acquired: Sequence[tuple[int, int, int]] = ()  # first offset, last offset, delivery count
    error_message: str | None = None
    acknowledge_error_message: str | None = None


class ShareTopicReply(Message, frozen=True, gc=False):
    topic_id: bytes
    partitions: Sequence[SharePartitionReply]


class ShareFetchReply(Message, frozen=True, gc=False):
    topics: Sequence[ShareTopicReply] = ()
    error_code: int = 0
    error_message: str | None = None
    lock_ms: int = 0
    throttle_time_ms: int = 0


def encode_share_fetch_reply(value: ShareFetchReply, version: int) -> list[bytes | memoryview]:
    """Return the body as buffers in the order of writing; the buffers of ``records`` are in the
    list themselves."""
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion("ShareFetchResponse", version)
    try:
        return _buffers(value)
    except UNFIT as error:
        raise Unencodable(f"ShareFetchResponse version {version}: {error}") from error


def _buffers(value: ShareFetchReply) -> list[bytes | memoryview]:
    head = [
        _REPLY.pack(value.throttle_time_ms, value.error_code),
        encode_nullable_text(value.error_message, True),
        _I32.pack(value.lock_ms),
        UVARINT[len(value.topics) + 1],
    ]
    buffers: list[bytes | memoryview] = []
    for topic in value.topics:
        head += (
            encode_topic("", topic.topic_id, is_id=True, is_compact=True),
            UVARINT[len(topic.partitions) + 1],
        )
        for each in topic.partitions:
            head += (
                _PARTITION.pack(each.index, each.error_code),
                encode_nullable_text(each.error_message, True),
                _I16.pack(each.acknowledge_error_code),
                encode_nullable_text(each.acknowledge_error_message, True),
                _NO_LEADER,
                UVARINT[sum(map(len, each.records)) + 1],
            )
            if each.records:
                buffers.append(b"".join(head))
                buffers += each.records
                head = []
            head.append(UVARINT[len(each.acquired) + 1])
            head += [_ACQUIRED.pack(*acquired) for acquired in each.acquired]
            head.append(b"\x00")
        head.append(b"\x00")
    head.append(b"\x01\x00")  # no endpoints, no tags
    buffers.append(b"".join(head))
    return buffers
