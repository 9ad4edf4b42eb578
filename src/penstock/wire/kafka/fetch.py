"""Fetch requests and replies, and ShareFetch replies. Requests are compiled from their classes,
replies encoded by hand.

A reply is a list of buffers: headers that are made here, and between them the batches as they were
read, not copied. The connection writes them in order. The reply of a partition from version 12 on:

    ┌───────┬───────┬────────────┬────────────┬───────────┬──────────┬───────────┬─────────┬──────┐
    │ index │ error │ high       │ last       │ log start │ aborted  │ preferred │ records │ tags │
    │ i32   │ i16   │ watermark  │ stable i64 │ i64       │ compact  │ i32       │ compact │      │
    └───────┴───────┴────────────┴────────────┴───────────┴──────────┴───────────┴─────────┴──────┘

and that of a ShareFetch reply, the same in both versions:

    ┌───────┬───────┬─────────┬───────┬─────────┬───────────┬─────────┬──────────────────┬──────┐
    │ index │ error │ message │ ack's │ ack's   │ leader    │ records │ acquired         │ tags │
    │ i32   │ i16   │ compact │ error │ message │ id, epoch │ compact │ first, last, how │      │
    │       │       │         │ i16   │ compact │ i32 i32 0 │         │ often, 0         │      │
    └───────┴───────┴─────────┴───────┴─────────┴───────────┴─────────┴──────────────────┴──────┘
"""

import struct
from collections.abc import Sequence
from typing import Annotated, ClassVar

from penstock.model.file_slice import Piece, in_memory
from penstock.wire.kafka.compiler import codec
from penstock.wire.kafka.malformed import Unencodable, UnsupportedVersion
from penstock.wire.kafka.primitives import (
    LEADER,
    UNFIT,
    UVARINT,
    ZERO_UUID,
    Leader,
    Message,
    NodeEndpoint,
    encode_count,
    encode_endpoints_tag,
    encode_leader_tag,
    encode_nullable_text,
    encode_tags,
    encode_topic,
)

VERSION_MIN = 4
VERSION_MAX = 18
FLEXIBLE_FROM = 12
_LOG_START_FROM = 5
_SESSION_FROM = 7
_PREFERRED_FROM = 11
_TOPIC_ID_FROM = 13
_ENDPOINTS_FROM = 16

_I32 = struct.Struct(">i")
_EPOCH_END = struct.Struct(">iqx")
_REPLY_4 = struct.Struct(">i")  # throttle
_REPLY_7 = struct.Struct(">ihi")  # throttle, error, session
_PARTITION_4 = struct.Struct(">ihqq")
_PARTITION_5 = struct.Struct(">ihqqq")
_PARTITION_12 = struct.Struct(">ihqqqxi")  # with null for the aborted transactions
_ABORTED = struct.Struct(">qq")
_ABORTED_12 = struct.Struct(">qqx")

SHARE_VERSION_MIN, SHARE_VERSION_MAX = 1, 2
_I16 = struct.Struct(">h")
_SHARE_HEAD = struct.Struct(">ih")  # throttle or index, error
_ACQUIRED = struct.Struct(">qqhx")
_NO_LEADER = LEADER.pack(-1, -1)  # the leader has not changed

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
HIGH_WATERMARK_UNKNOWN = 2**63 - 1

# ── Request ──────────────────────────────────────────────────────────────────────────────────


class FetchPartition(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("index", "current_leader_epoch", "offset", "last_fetched_epoch", "log_start_offset"),
        *("bytes_max", "replica_directory_id", "high_watermark"),
    )

    index: Annotated[int, "int32", "0+"]
    offset: Annotated[int, "int64", "0+"]
    bytes_max: Annotated[int, "int32", "0+"]
    current_leader_epoch: Annotated[int, "int32", "9+", "ignorable"] = -1  # −1: not checked
    last_fetched_epoch: Annotated[int, "int32", "12+", "ignorable"] = -1
    log_start_offset: Annotated[int, "int64", "5+", "ignorable"] = -1  # of a follower's log
    replica_directory_id: Annotated[bytes, "uuid", "17+", "tag 0 17+", "ignorable"] = ZERO_UUID
    # As the follower knows it.
    high_watermark: Annotated[int, "int64", "18+", "tag 1 18+", "ignorable"] = (
        HIGH_WATERMARK_UNKNOWN
    )


class FetchTopic(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12", "ignorable"] = ""
    topic_id: Annotated[bytes, "uuid", "13+", "ignorable"] = ZERO_UUID
    partitions: Annotated[Sequence[FetchPartition], "[]FetchPartition", "0+"] = ()


class ForgottenTopic(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12", "ignorable"] = ""
    topic_id: Annotated[bytes, "uuid", "13+", "ignorable"] = ZERO_UUID
    partitions: Annotated[Sequence[int], "[]int32", "0+"] = ()


class ReplicaState(Message, frozen=True, gc=False):
    replica_id: Annotated[int, "int32", "0+"] = -1
    replica_epoch: Annotated[int, "int64", "0+"] = -1


class FetchRequest(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("replica_id", "wait_ms_max", "bytes_min", "bytes_max", "isolation_level", "session_id"),
        *("session_epoch", "topics", "forgotten_topics", "rack_id", "cluster_id", "replica_state"),
    )

    wait_ms_max: Annotated[int, "int32", "0+"]
    bytes_min: Annotated[int, "int32", "0+"]
    topics: Annotated[Sequence[FetchTopic], "[]FetchTopic", "0+"]
    bytes_max: Annotated[int, "int32", "0+"] = 2**31 - 1
    isolation_level: Annotated[int, "int8", "0+"] = READ_UNCOMMITTED
    session_id: Annotated[int, "int32", "7+", "ignorable"] = 0
    session_epoch: Annotated[int, "int32", "7+", "ignorable"] = -1
    forgotten_topics: Annotated[Sequence[ForgottenTopic], "[]ForgottenTopic", "7+"] = ()
    rack_id: Annotated[str, "string", "11+", "ignorable"] = ""
    replica_id: Annotated[int, "int32", "0-14", "ignorable"] = -1  # −1: a consumer
    replica_state: Annotated[ReplicaState, "ReplicaState", "15+", "tag 1 15+", "ignorable"] = (
        ReplicaState()
    )
    cluster_id: Annotated[str | None, "string", "12+", "null 12+", "tag 0 12+", "ignorable"] = None


decode_fetch_request, encode_fetch_request = codec(
    FetchRequest, VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM
)


# ── Response ─────────────────────────────────────────────────────────────────────────────────


class AbortedTransaction(Message, frozen=True, gc=False):
    producer_id: Annotated[int, "int64", "0+"]
    first_offset: Annotated[int, "int64", "0+"]


class EpochEnd(Message, frozen=True, gc=False):
    """The end of the last epoch that the leader's log and the reader's log have in common."""

    epoch: Annotated[int, "int32", "0+"] = -1
    end_offset: Annotated[int, "int64", "0+"] = -1


class FetchPartitionResponse(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("index", "error_code", "high_watermark", "last_stable_offset", "log_start_offset"),
        *("aborted", "preferred_read_replica", "records", "diverging_epoch", "current_leader"),
    )

    index: Annotated[int, "int32", "0+"]
    error_code: Annotated[int, "int16", "0+"] = 0
    high_watermark: Annotated[int, "int64", "0+"] = -1
    last_stable_offset: Annotated[int, "int64", "0+"] = -1
    log_start_offset: Annotated[int, "int64", "5+"] = -1
    records: Annotated[Sequence[Piece], "slices", "0+", "null 0+"] = ()  # whole batches, in order
    aborted: Annotated[
        Sequence[AbortedTransaction] | None, "[]AbortedTransaction", "0+", "null 0+"
    ] = None
    preferred_read_replica: Annotated[int, "int32", "11+"] = -1
    diverging_epoch: Annotated[EpochEnd | None, "EpochEnd", "12+", "tag 0 12+"] = None
    current_leader: Annotated[Leader | None, "Leader", "12+", "tag 1 12+"] = None


class FetchTopicResponse(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12"] = ""
    topic_id: Annotated[bytes, "uuid", "13+"] = ZERO_UUID
    partitions: Annotated[Sequence[FetchPartitionResponse], "[]FetchPartitionResponse", "0+"] = ()


class FetchResponse(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("throttle_time_ms", "error_code", "session_id", "topics", "node_endpoints"),
    )

    topics: Annotated[Sequence[FetchTopicResponse], "[]FetchTopicResponse", "0+"]
    throttle_time_ms: Annotated[int, "int32", "0+"] = 0
    error_code: Annotated[int, "int16", "7+"] = 0
    session_id: Annotated[int, "int32", "7+"] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], "[]NodeEndpoint", "16+", "tag 0 16+"] = ()


# Records of a decoded reply are slices of the buffer.
decode_fetch_response, _ = codec(
    FetchResponse, VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM, has_slices=True
)


def encode_fetch_reply(value: FetchResponse, version: int) -> tuple[list[Piece], int]:
    """Return the body as buffers in the order of writing, and their total size. The buffers of
    ``records`` are in the list themselves."""
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion("FetchResponse", version)
    try:
        buffers = _reply_buffers(value, version)
    except UNFIT as error:
        raise Unencodable(f"FetchResponse version {version}: {error}") from error
    return buffers, sum(map(len, buffers))


def encode_fetch_response(value: FetchResponse, version: int) -> bytes:
    """Return the body in one piece, for callers that may copy it."""
    return b"".join(in_memory(encode_fetch_reply(value, version)[0]))


def _reply_buffers(value: FetchResponse, version: int) -> list[Piece]:
    is_compact = version >= FLEXIBLE_FROM
    is_id = version >= _TOPIC_ID_FROM
    if version >= _SESSION_FROM:
        head = [_REPLY_7.pack(value.throttle_time_ms, value.error_code, value.session_id)]
    else:
        head = [_REPLY_4.pack(value.throttle_time_ms)]
    head.append(encode_count(len(value.topics), is_compact))
    buffers: list[Piece] = []
    for topic in value.topics:
        head += (
            encode_topic(topic.name, topic.topic_id, is_id=is_id, is_compact=is_compact),
            encode_count(len(topic.partitions), is_compact),
        )
        for each in topic.partitions:
            if not is_compact or each.aborted is not None:
                head.append(_partition_head(each, version))
            else:
                size = sum(map(len, each.records))
                head += (
                    _PARTITION_12.pack(
                        each.index,
                        each.error_code,
                        each.high_watermark,
                        each.last_stable_offset,
                        each.log_start_offset,
                        each.preferred_read_replica,
                    ),
                    UVARINT[size + 1],
                )
            if each.records:
                buffers.append(b"".join(head))
                buffers += each.records
                head = []
            if is_compact:
                head.append(_partition_tags(each))
        if is_compact:
            head.append(b"\x00")
    if is_compact:
        if version >= _ENDPOINTS_FROM and value.node_endpoints:
            head.append(encode_tags([encode_endpoints_tag(0, value.node_endpoints)]))
        else:
            head.append(b"\x00")
    buffers.append(b"".join(head))
    return buffers


def _partition_head(each: FetchPartitionResponse, version: int) -> bytes:
    """Return everything before the records, including their length."""
    aborted = each.aborted
    fixed = (each.index, each.error_code, each.high_watermark, each.last_stable_offset)
    if version < _LOG_START_FROM:
        parts = [_PARTITION_4.pack(*fixed)]
    else:
        parts = [_PARTITION_5.pack(*fixed, each.log_start_offset)]
    if aborted is None:
        parts.append(b"\xff\xff\xff\xff")
    else:
        layout = _ABORTED_12 if version >= FLEXIBLE_FROM else _ABORTED
        parts.append(encode_count(len(aborted), version >= FLEXIBLE_FROM))
        parts += [layout.pack(gone.producer_id, gone.first_offset) for gone in aborted]
    if version >= _PREFERRED_FROM:
        parts.append(_I32.pack(each.preferred_read_replica))
    parts.append(encode_count(sum(map(len, each.records)), version >= FLEXIBLE_FROM))
    return b"".join(parts)


def _partition_tags(each: FetchPartitionResponse) -> bytes:
    if each.diverging_epoch is None and each.current_leader is None:
        return b"\x00"
    tags = []
    if each.diverging_epoch is not None:
        body = _EPOCH_END.pack(each.diverging_epoch.epoch, each.diverging_epoch.end_offset)
        tags.append(UVARINT[0] + UVARINT[len(body)] + body)
    if each.current_leader is not None:
        tags.append(encode_leader_tag(1, each.current_leader))
    return encode_tags(tags)


# ── ShareFetch ───────────────────────────────────────────────────────────────────────────────


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
    if not SHARE_VERSION_MIN <= version <= SHARE_VERSION_MAX:
        raise UnsupportedVersion("ShareFetchResponse", version)
    try:
        return _share_buffers(value)
    except UNFIT as error:
        raise Unencodable(f"ShareFetchResponse version {version}: {error}") from error


def _share_buffers(value: ShareFetchReply) -> list[bytes | memoryview]:
    head = [
        _SHARE_HEAD.pack(value.throttle_time_ms, value.error_code),
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
                _SHARE_HEAD.pack(each.index, each.error_code),
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
