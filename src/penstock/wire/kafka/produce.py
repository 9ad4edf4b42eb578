"""Produce requests and replies, encoded by hand.

The records of a partition are a slice of the frame, checked by ``batches``; no object is made per
record and nothing is copied. The versions differ little:

    3–8     strings and arrays with fixed-size lengths
    9–12    compact lengths, tagged fields
    13      a topic is named by its id

    replies add the log's start (5), the bad records and a text (8), the new leader (10)

If ``acks`` is 0 no reply is sent; the connection takes care of that."""

import struct
from collections.abc import Sequence

from penstock.model.limits import KAFKA_PARTITIONS_MAX
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
from penstock.wire.kafka.malformed import TooManyEntries, Unencodable, UnsupportedVersion
from penstock.wire.kafka.pieces import (
    encode_count,
    encode_nullable_text,
    encode_topic,
    read_count,
    read_topic,
)
from penstock.wire.kafka.primitives import (
    BROKEN,
    UNFIT,
    UUID_BYTES,
    UVARINT,
    ZERO_UUID,
    Buffer,
    Message,
    absent,
    count_tags,
    malformed,
    oversized,
    read_compact_nullable_text,
    read_plain_nullable_text,
    read_uvarint,
    short,
    skip_tags,
)

VERSION_MIN = 3
VERSION_MAX = 13
FLEXIBLE_FROM = 9
_LOG_START_FROM = 5
_RECORD_ERRORS_FROM = 8
_LEADER_FROM = 10
_TOPIC_ID_FROM = 13

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_ACKS_TIMEOUT_BYTE = struct.Struct(">hiB")  # with the first byte of a varint
_INDEX_SIZE = struct.Struct(">ii")
_INDEX_BYTE = struct.Struct(">iB")
# index, error, base offset, append time[, log start]
_RESULT_3 = struct.Struct(">ihqq")
_RESULT_5 = struct.Struct(">ihqqq")
# the usual end of a version 9+ result: no bad records, no text, no tagged fields
_PLAIN_END = b"\x01\x00\x00"
_USUAL_END = struct.Struct(">xix")  # of the topic and of the reply: no tagged fields; throttle


class ProducePartition(Message, frozen=True, gc=False):
    index: int
    records: bytes | memoryview | None


class ProduceTopic(Message, frozen=True, gc=False):
    """``name`` up to version 12, ``topic_id`` from 13 on."""

    name: str
    topic_id: bytes
    partitions: Sequence[ProducePartition]


class ProduceRequest(Message, frozen=True, gc=False):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[ProduceTopic]


class RecordError(Message, frozen=True, gc=False):
    batch_index: int
    message: str | None = None


class ProducePartitionResponse(Message, frozen=True, gc=False):
    index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: Leader | None = None


class ProduceTopicResponse(Message, frozen=True, gc=False):
    name: str
    topic_id: bytes
    partitions: Sequence[ProducePartitionResponse]


class ProduceResponse(Message, frozen=True, gc=False):
    topics: Sequence[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def _check_version(what: str, version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion(what, version)


# ── Request ──────────────────────────────────────────────────────────────────────────────────


def decode_produce_request(
    buffer: Buffer, position: int, version: int, entries_max: int = KAFKA_PARTITIONS_MAX
) -> ProduceRequest:
    """Raise TooManyEntries for more than ``entries_max`` topics or partitions."""
    _check_version("ProduceRequest", version)
    try:
        if version < FLEXIBLE_FROM:
            return _read_plain_request(buffer, position, entries_max)
        return _read_compact_request(buffer, position, version, entries_max)
    except BROKEN as error:
        raise malformed("ProduceRequest", error) from None


# The two readers take bytes unchanged, because single bytes of a memoryview cost more, and inline
# one-byte varints. Only records are sliced from the view.


def _read_plain_request(data: Buffer, position: int, entries_max: int) -> ProduceRequest:
    view = memoryview(data)
    end = len(data)
    transactional_id: str | None = None
    (size,) = _I16.unpack_from(data, position)
    position += 2
    if size >= 0:
        stop = position + size
        transactional_id = str(data[position:stop], "utf-8")
        position = stop
    elif size != -1:
        raise absent("transactional_id")
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(data, position)
    position += 10
    if not 0 <= topic_count <= (end - position) // 6:
        raise oversized("topics")
    if topic_count > entries_max:
        raise TooManyEntries("topics", topic_count, entries_max)
    topics = []
    partition_count = 0
    for _ in range(topic_count):
        (size,) = _I16.unpack_from(data, position)
        if size < 0:
            raise absent("name")
        position += 2
        stop = position + size
        name = str(data[position:stop], "utf-8")
        (count,) = _I32.unpack_from(data, stop)
        position = stop + 4
        if not 0 <= count <= (end - position) // 8:
            raise oversized("partitions")
        partition_count += count
        if partition_count > entries_max:
            raise TooManyEntries("partitions", partition_count, entries_max)
        partitions = []
        for _ in range(count):
            index, size = _INDEX_SIZE.unpack_from(data, position)
            position += 8
            records: memoryview | None = None
            if size >= 0:
                stop = position + size
                records = view[position:stop]
                position = stop
            elif size != -1:
                raise absent("records")
            partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(name, ZERO_UUID, partitions))
    if position > end:
        raise short()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_compact_request(
    data: Buffer, position: int, version: int, entries_max: int
) -> ProduceRequest:
    view = memoryview(data)
    end = len(data)
    transactional_id: str | None = None
    if data[position]:
        size, position = read_uvarint(data, position)
        stop = position + size - 1
        transactional_id = str(data[position:stop], "utf-8")
        position = stop
    else:
        position += 1
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_BYTE.unpack_from(data, position)
    position += 7
    if topic_count > 127:
        topic_count, position = read_uvarint(data, position - 1)
    if not 1 <= topic_count <= (end - position) // 3 + 1:
        raise oversized("topics")
    if topic_count - 1 > entries_max:
        raise TooManyEntries("topics", topic_count - 1, entries_max)
    topics = []
    partition_count = tags = 0
    for _ in range(topic_count - 1):
        name = ""
        topic_id = ZERO_UUID
        if version >= _TOPIC_ID_FROM:
            stop = position + UUID_BYTES
            topic_id = bytes(data[position:stop])
        else:
            size = data[position]
            position += 1
            if size > 127:
                size, position = read_uvarint(data, position - 1)
            if not size:
                raise absent("name")
            stop = position + size - 1
            name = str(data[position:stop], "utf-8")
        count = data[stop]
        position = stop + 1
        if count > 127:
            count, position = read_uvarint(data, stop)
        if not 1 <= count <= (end - position) // 6 + 1:
            raise oversized("partitions")
        partition_count += count - 1
        if partition_count > entries_max:
            raise TooManyEntries("partitions", partition_count, entries_max)
        partitions = []
        for _ in range(count - 1):
            index, size = _INDEX_BYTE.unpack_from(data, position)
            position += 5
            if size > 127:
                size, position = read_uvarint(data, position - 1)
            records: memoryview | None = None
            if size:
                stop = position + size - 1
                records = view[position:stop]
                position = stop
            if data[position]:
                tags, position = count_tags(data, position, tags)
            else:
                position += 1
            partitions.append(ProducePartition(index, records))
        if data[position]:
            tags, position = count_tags(data, position, tags)
        else:
            position += 1
        topics.append(ProduceTopic(name, topic_id, partitions))
    if data[position]:
        tags, position = count_tags(data, position, tags)
    else:
        position += 1
    if position > end:
        raise short()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_request(value: ProduceRequest, version: int) -> bytes:
    _check_version("ProduceRequest", version)
    try:
        return b"".join(_request_parts(value, version))
    except UNFIT as error:
        raise Unencodable(f"ProduceRequest version {version}: {error}") from error


def _request_parts(value: ProduceRequest, version: int) -> list[bytes | memoryview]:
    is_compact = version >= FLEXIBLE_FROM
    end = b"\x00" if is_compact else b""
    parts: list[bytes | memoryview] = [
        encode_nullable_text(value.transactional_id, is_compact),
        _ACKS_TIMEOUT.pack(value.acks, value.timeout_ms),
        encode_count(len(value.topics), is_compact),
    ]
    for topic in value.topics:
        parts.append(
            encode_topic(
                topic.name,
                topic.topic_id,
                is_id=version >= _TOPIC_ID_FROM,
                is_compact=version >= FLEXIBLE_FROM,
            )
        )
        parts.append(encode_count(len(topic.partitions), is_compact))
        for each in topic.partitions:
            parts.append(_I32.pack(each.index))
            if each.records is None:
                parts.append(b"\x00" if is_compact else b"\xff\xff\xff\xff")
            else:
                parts += (encode_count(len(each.records), is_compact), each.records)
            parts.append(end)
        parts.append(end)
    parts.append(end)
    return parts


# ── Response ─────────────────────────────────────────────────────────────────────────────────


def encode_produce_response(value: ProduceResponse, version: int) -> bytes:
    _check_version("ProduceResponse", version)
    try:
        if version < FLEXIBLE_FROM:
            return _plain_response(value, version)
        return _compact_response(value, version)
    except UNFIT as error:
        raise Unencodable(f"ProduceResponse version {version}: {error}") from error


def _plain_response(value: ProduceResponse, version: int) -> bytes:
    parts = [_I32.pack(len(value.topics))]
    for topic in value.topics:
        parts += (
            encode_topic(
                topic.name,
                topic.topic_id,
                is_id=version >= _TOPIC_ID_FROM,
                is_compact=version >= FLEXIBLE_FROM,
            ),
            _I32.pack(len(topic.partitions)),
        )
        for each in topic.partitions:
            parts.append(_result(each, version))
            if version >= _RECORD_ERRORS_FROM:
                parts.append(_I32.pack(len(each.record_errors)))
                for bad in each.record_errors:
                    parts += (_I32.pack(bad.batch_index), encode_nullable_text(bad.message, False))
                parts.append(encode_nullable_text(each.error_message, False))
    parts.append(_I32.pack(value.throttle_time_ms))
    return b"".join(parts)


def _compact_response(value: ProduceResponse, version: int) -> bytes:
    if len(value.topics) == 1 and not value.node_endpoints:
        (topic,) = value.topics
        if len(topic.partitions) == 1 and version < _TOPIC_ID_FROM:
            (one,) = topic.partitions
            if not (one.record_errors or one.error_message is not None or one.current_leader):
                return _usual_response(topic.name, one, value.throttle_time_ms, version)
    parts = [UVARINT[len(value.topics) + 1]]
    for topic in value.topics:
        parts += (
            encode_topic(
                topic.name,
                topic.topic_id,
                is_id=version >= _TOPIC_ID_FROM,
                is_compact=version >= FLEXIBLE_FROM,
            ),
            UVARINT[len(topic.partitions) + 1],
        )
        for each in topic.partitions:
            parts.append(_result(each, version))
            if not (each.record_errors or each.error_message is not None or each.current_leader):
                parts.append(_PLAIN_END)
                continue
            parts.append(UVARINT[len(each.record_errors) + 1])
            for bad in each.record_errors:
                text = encode_nullable_text(bad.message, True)
                parts += (_I32.pack(bad.batch_index), text, b"\x00")
            parts.append(encode_nullable_text(each.error_message, True))
            if version >= _LEADER_FROM and each.current_leader is not None:
                parts += (b"\x01", encode_leader_tag(0, each.current_leader))
            else:
                parts.append(b"\x00")
        parts.append(b"\x00")
    parts.append(_I32.pack(value.throttle_time_ms))
    if version >= _LEADER_FROM and value.node_endpoints:
        parts.append(encode_tags([encode_endpoints_tag(0, value.node_endpoints)]))
    else:
        parts.append(b"\x00")
    return b"".join(parts)


def _usual_response(
    name: str, one: ProducePartitionResponse, throttle_ms: int, version: int
) -> bytes:
    """Encode the usual reply: one partition without an error text, bad records or tags."""
    raw = name.encode()
    result = _result(one, version)
    size = UVARINT[len(raw) + 1]
    end = _USUAL_END.pack(throttle_ms)
    return b"".join((b"\x02", size, raw, b"\x02", result, _PLAIN_END, end))


def _result(each: ProducePartitionResponse, version: int) -> bytes:
    head = (each.index, each.error_code, each.base_offset, each.log_append_time_ms)
    if version < _LOG_START_FROM:
        return _RESULT_3.pack(*head)
    return _RESULT_5.pack(*head, each.log_start_offset)


def decode_produce_response(buffer: Buffer, position: int, version: int) -> ProduceResponse:
    _check_version("ProduceResponse", version)
    try:
        return _read_response(bytes(buffer), position, version)
    except BROKEN as error:
        raise malformed("ProduceResponse", error) from None


def _read_response(data: bytes, position: int, version: int) -> ProduceResponse:
    is_compact = version >= FLEXIBLE_FROM
    count, position = read_count(data, position, 3, is_compact)
    topics = []
    for _ in range(count):
        name, topic_id, position = read_topic(
            data, position, is_id=version >= _TOPIC_ID_FROM, is_compact=is_compact
        )
        count, position = read_count(data, position, _RESULT_3.size, is_compact)
        partitions = []
        for _ in range(count):
            result, position = _read_result(data, position, version)
            partitions.append(result)
        if is_compact:
            position = skip_tags(data, position)
        topics.append(ProduceTopicResponse(name, topic_id, tuple(partitions)))
    (throttle_ms,) = _I32.unpack_from(data, position)
    position += 4
    endpoints: Sequence[NodeEndpoint] = ()
    if is_compact:
        tags, position = read_tags(memoryview(data), position)
        if version >= _LEADER_FROM and 0 in tags:
            endpoints = decode_endpoints(tags[0])
    if position > len(data):
        raise short()
    return ProduceResponse(tuple(topics), throttle_ms, endpoints)


def _read_result(data: bytes, position: int, version: int) -> tuple[ProducePartitionResponse, int]:
    is_compact = version >= FLEXIBLE_FROM
    read_text = read_compact_nullable_text if is_compact else read_plain_nullable_text
    start = -1
    if version < _LOG_START_FROM:
        index, code, base, append_ms = _RESULT_3.unpack_from(data, position)
        position += _RESULT_3.size
    else:
        index, code, base, append_ms, start = _RESULT_5.unpack_from(data, position)
        position += _RESULT_5.size
    if version < _RECORD_ERRORS_FROM:
        return ProducePartitionResponse(index, code, base, append_ms, start), position
    count, position = read_count(data, position, 5, is_compact)
    bad = []
    for _ in range(count):
        (batch_index,) = _I32.unpack_from(data, position)
        text, position = read_text(data, position + 4)
        if is_compact:
            position = skip_tags(data, position)
        bad.append(RecordError(batch_index, text))
    text, position = read_text(data, position)
    leader = None
    if is_compact:
        tags, position = read_tags(memoryview(data), position)
        if version >= _LEADER_FROM and 0 in tags:
            leader = decode_leader(tags[0])
    result = ProducePartitionResponse(index, code, base, append_ms, start, tuple(bad), text, leader)
    return result, position
