"""Produce requests and replies.

Requests are read by hand: the records of a partition are a slice of the frame, checked by
``batches``; no object is made per record and nothing is copied. So is the usual reply written. The
rest is compiled from the classes. If ``acks`` is 0 no reply is sent; the connection takes care of
that."""

import struct
from collections.abc import Sequence
from typing import Annotated

from penstock.model.limits import KAFKA_PARTITIONS_MAX
from penstock.wire.kafka.compiler import codec
from penstock.wire.kafka.malformed import TooManyEntries, UnsupportedVersion
from penstock.wire.kafka.primitives import (
    BROKEN,
    UUID_BYTES,
    UVARINT,
    ZERO_UUID,
    Buffer,
    Leader,
    Message,
    NodeEndpoint,
    absent,
    count_tags,
    malformed,
    oversized,
    read_uvarint,
    short,
)

VERSION_MIN = 3
VERSION_MAX = 13
FLEXIBLE_FROM = 9
_TOPIC_ID_FROM = 13

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_ACKS_TIMEOUT_BYTE = struct.Struct(">hiB")  # with the first byte of a varint
_INDEX_SIZE = struct.Struct(">ii")
_INDEX_BYTE = struct.Struct(">iB")
# The usual end of a reply: index, error, base offset, append time, log start; then no bad records,
# no text, no tagged fields of the partition and of its topic; throttle time; no tagged fields.
_USUAL_END = struct.Struct(">ihqqqBxxxix")


class ProducePartition(Message, frozen=True, gc=False):
    index: Annotated[int, "int32", "0+"]
    records: Annotated[bytes | memoryview | None, "records", "0+", "null 0+"]


class ProduceTopic(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12", "ignorable"] = ""
    topic_id: Annotated[bytes, "uuid", "13+", "ignorable"] = ZERO_UUID
    partitions: Annotated[Sequence[ProducePartition], "[]ProducePartition", "0+"] = ()


class ProduceRequest(Message, frozen=True, gc=False):
    transactional_id: Annotated[str | None, "string", "3+", "null 3+"]
    acks: Annotated[int, "int16", "0+"]
    timeout_ms: Annotated[int, "int32", "0+"]
    topics: Annotated[Sequence[ProduceTopic], "[]ProduceTopic", "0+"]


class RecordError(Message, frozen=True, gc=False):
    batch_index: Annotated[int, "int32", "8+"]
    message: Annotated[str | None, "string", "8+", "null 8+"] = None


class ProducePartitionResponse(Message, frozen=True, gc=False):
    index: Annotated[int, "int32", "0+"]
    error_code: Annotated[int, "int16", "0+"] = 0
    base_offset: Annotated[int, "int64", "0+"] = -1
    log_append_time_ms: Annotated[int, "int64", "2+"] = -1
    log_start_offset: Annotated[int, "int64", "5+"] = -1
    record_errors: Annotated[Sequence[RecordError], "[]RecordError", "8+"] = ()
    error_message: Annotated[str | None, "string", "8+", "null 8+"] = None
    current_leader: Annotated[Leader | None, "Leader", "10+", "tag 0 10+"] = None


class ProduceTopicResponse(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12"] = ""
    topic_id: Annotated[bytes, "uuid", "13+"] = ZERO_UUID
    partitions: Annotated[
        Sequence[ProducePartitionResponse], "[]ProducePartitionResponse", "0+"
    ] = ()


class ProduceResponse(Message, frozen=True, gc=False):
    topics: Annotated[Sequence[ProduceTopicResponse], "[]ProduceTopicResponse", "0+"]
    throttle_time_ms: Annotated[int, "int32", "1+"] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], "[]NodeEndpoint", "10+", "tag 0 10+"] = ()


_, encode_produce_request = codec(ProduceRequest, VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM)
decode_produce_response, _encode_response = codec(
    ProduceResponse, VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM
)


def encode_produce_response(value: ProduceResponse, version: int) -> bytes:
    if FLEXIBLE_FROM <= version < _TOPIC_ID_FROM and len(value.topics) == 1:
        (topic,) = value.topics
        if len(topic.partitions) == 1 and not value.node_endpoints:
            (one,) = topic.partitions
            if not (one.record_errors or one.error_message is not None or one.current_leader):
                return _usual_response(topic.name, one, value.throttle_time_ms)
    return _encode_response(value, version)


def _usual_response(name: str, one: ProducePartitionResponse, throttle_ms: int) -> bytes:
    """Encode the usual reply: one partition without an error text, bad records or tags."""
    raw = name.encode()
    end = _USUAL_END.pack(
        one.index,
        one.error_code,
        one.base_offset,
        one.log_append_time_ms,
        one.log_start_offset,
        1,
        throttle_ms,
    )
    return b"".join((b"\x02", UVARINT[len(raw) + 1], raw, b"\x02", end))


def decode_produce_request(
    buffer: Buffer, position: int, version: int, entries_max: int = KAFKA_PARTITIONS_MAX
) -> ProduceRequest:
    """Raise TooManyEntries for more than ``entries_max`` topics or partitions."""
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion("ProduceRequest", version)
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
