"""Produce requests and replies. Codecs are compiled, but the usual reply is encoded by hand.

The records of a partition are a view of the frame, which ``batches`` checks. No object is created
per record, and nothing is copied. If ``acks`` is 0, the connection sends no reply."""

import struct
from collections.abc import Callable, Sequence
from typing import Annotated

from penstock.wire.kafka.compiler import codec
from penstock.wire.kafka.primitives import UVARINT, ZERO_UUID, Leader, Message, NodeEndpoint

VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM = _VERSIONS = (3, 13, 9)
_TOPIC_ID_FROM = 13

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


# The fourth argument limits the number of topics and of partitions.
decode_produce_request: Callable[..., ProduceRequest]
decode_produce_request, encode_produce_request = codec(ProduceRequest, *_VERSIONS, has_slices=True)
decode_produce_response, _encode_response = codec(ProduceResponse, *_VERSIONS)


def encode_produce_response(value: ProduceResponse, version: int) -> bytes:
    if FLEXIBLE_FROM <= version < _TOPIC_ID_FROM and len(value.topics) == 1:
        (topic,) = value.topics
        if len(topic.partitions) == 1 and not value.node_endpoints:
            (one,) = topic.partitions
            if not (one.record_errors or one.error_message is not None or one.current_leader):
                return _usual_response(topic.name, one, value.throttle_time_ms)
    return _encode_response(value, version)


def _usual_response(name: str, one: ProducePartitionResponse, throttle_ms: int) -> bytes:
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
