"""Fetch replies, encoded by hand.

A reply is a list of buffers: headers that are made here, and between them the batches as they were
read, not copied. The connection writes them in order. The request is in ``fetch_request``.

    5 log start · 7 session · 11 preferred replica · 12 compact, diverging epoch and leader as tags
    13 topic ids · 16 endpoints

The reply of a partition from version 12 on:

    ┌───────┬───────┬────────────┬────────────┬───────────┬──────────┬───────────┬─────────┬──────┐
    │ index │ error │ high       │ last       │ log start │ aborted  │ preferred │ records │ tags │
    │ i32   │ i16   │ watermark  │ stable i64 │ i64       │ compact  │ i32       │ compact │      │
    └───────┴───────┴────────────┴────────────┴───────────┴──────────┴───────────┴─────────┴──────┘
"""

import struct
from collections.abc import Sequence

from penstock.model.file_slice import Piece, in_memory
from penstock.wire.kafka.endpoints import (
    Leader,
    NodeEndpoint,
    decode_endpoints,
    decode_leader,
    encode_endpoints_tag,
    encode_leader_tag,
    encode_tags,
    read_tags,
)
from penstock.wire.kafka.fetch_request import FetchPartition as FetchPartition
from penstock.wire.kafka.fetch_request import FetchRequest as FetchRequest
from penstock.wire.kafka.fetch_request import FetchTopic as FetchTopic
from penstock.wire.kafka.fetch_request import ForgottenTopic as ForgottenTopic
from penstock.wire.kafka.fetch_request import decode_fetch_request as decode_fetch_request
from penstock.wire.kafka.fetch_request import encode_fetch_request as encode_fetch_request
from penstock.wire.kafka.malformed import Unencodable, UnsupportedVersion
from penstock.wire.kafka.pieces import (
    encode_count,
    encode_topic,
    read_count,
    read_size,
    read_topic,
)
from penstock.wire.kafka.primitives import (
    BROKEN,
    UNFIT,
    UVARINT,
    Buffer,
    Message,
    malformed,
    oversized,
    short,
    skip_tags,
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


class AbortedTransaction(Message, frozen=True, gc=False):
    producer_id: int
    first_offset: int


class EpochEnd(Message, frozen=True, gc=False):
    """The end of the last epoch that the leader's log and the reader's log have in common."""

    epoch: int = -1
    end_offset: int = -1


class FetchPartitionResponse(Message, frozen=True, gc=False):
    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Piece] = ()  # whole batches, in order
    aborted: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: EpochEnd | None = None
    current_leader: Leader | None = None


class FetchTopicResponse(Message, frozen=True, gc=False):
    name: str
    topic_id: bytes
    partitions: Sequence[FetchPartitionResponse]


class FetchResponse(Message, frozen=True, gc=False):
    topics: Sequence[FetchTopicResponse]
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def _check_version(what: str, version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion(what, version)


# ── Response ─────────────────────────────────────────────────────────────────────────────────


def encode_fetch_reply(value: FetchResponse, version: int) -> tuple[list[Piece], int]:
    """Return the body as buffers in the order of writing, and their total size. The buffers of
    ``records`` are in the list themselves."""
    _check_version("FetchResponse", version)
    try:
        buffers = _reply_buffers(value, version)
    except UNFIT as error:
        raise Unencodable(f"FetchResponse version {version}: {error}") from error
    return buffers, sum(map(len, buffers))


def encode_fetch_response(value: FetchResponse, version: int) -> bytes:
    """Return the body in one piece, for callers to whom a copy does not matter."""
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


def decode_fetch_response(buffer: Buffer, position: int, version: int) -> FetchResponse:
    """Decode a reply; records are slices of the buffer."""
    _check_version("FetchResponse", version)
    try:
        return _read_response(memoryview(buffer), position, version)
    except BROKEN as error:
        raise malformed("FetchResponse", error) from None


def _read_response(data: memoryview, position: int, version: int) -> FetchResponse:
    is_compact = version >= FLEXIBLE_FROM
    code = session_id = 0
    if version >= _SESSION_FROM:
        throttle_ms, code, session_id = _REPLY_7.unpack_from(data, position)
        position += _REPLY_7.size
    else:
        (throttle_ms,) = _REPLY_4.unpack_from(data, position)
        position += _REPLY_4.size
    topics = []
    count, position = read_count(data, position, 3, is_compact)
    for _ in range(count):
        name, topic_id, position = read_topic(
            data, position, is_id=version >= _TOPIC_ID_FROM, is_compact=is_compact
        )
        count, position = read_count(data, position, _PARTITION_4.size, is_compact)
        partitions = []
        for _ in range(count):
            partition, position = _read_answer(data, position, version)
            partitions.append(partition)
        if is_compact:
            position = skip_tags(data, position)
        topics.append(FetchTopicResponse(name, topic_id, tuple(partitions)))
    endpoints: Sequence[NodeEndpoint] = ()
    if is_compact:
        tags, position = read_tags(data, position)
        if version >= _ENDPOINTS_FROM and 0 in tags:
            endpoints = decode_endpoints(tags[0])
    if position > len(data):
        raise short()
    return FetchResponse(tuple(topics), throttle_ms, code, session_id, endpoints)


def _read_answer(
    data: memoryview, position: int, version: int
) -> tuple[FetchPartitionResponse, int]:
    is_compact = version >= FLEXIBLE_FROM
    log_start = preferred = -1
    if version < _LOG_START_FROM:
        index, code, watermark, stable = _PARTITION_4.unpack_from(data, position)
        position += _PARTITION_4.size
    else:
        index, code, watermark, stable, log_start = _PARTITION_5.unpack_from(data, position)
        position += _PARTITION_5.size
    aborted, position = _read_aborted(data, position, is_compact)
    if version >= _PREFERRED_FROM:
        (preferred,) = _I32.unpack_from(data, position)
        position += 4
    size, position = read_size(data, position, is_compact)
    records: Sequence[memoryview] = ()
    if size > 0:
        records = (data[position : position + size],)
        position += size
    diverging = leader = None
    if is_compact:
        tags, position = read_tags(data, position)
        if 0 in tags:
            epoch, end_offset = _EPOCH_END.unpack_from(tags[0], 0)
            diverging = EpochEnd(epoch, end_offset)
        if 1 in tags:
            leader = decode_leader(tags[1])
    made = FetchPartitionResponse(
        index,
        code,
        watermark,
        stable,
        log_start,
        records,
        aborted,
        preferred,
        diverging,
        leader,
    )
    return made, position


def _read_aborted(
    data: memoryview, position: int, is_compact: bool
) -> tuple[Sequence[AbortedTransaction] | None, int]:
    count, position = read_size(data, position, is_compact)
    if count < 0:
        return None, position
    if count > (len(data) - position) // _ABORTED.size:
        raise oversized("aborted")
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(data, position)
        position += _ABORTED.size
        if is_compact:
            position = skip_tags(data, position)
        aborted.append(AbortedTransaction(producer_id, first_offset))
    return tuple(aborted), position
