"""Kafka requests as they stand on the wire, made once and sent again and again.

A client library pays for every record; these pay per request, so that what they find is the
server's own ceiling. Batches have no producer id: a sequence number would have to be written, and
the batch summed, for every request. Offsets of a reader are taken from batch headers, the records
are not looked at.
"""

import struct
import time
from collections.abc import Sequence
from itertools import cycle

from benchmarks.kafka.job import RECORD_BYTES, Action, Job
from benchmarks.kafka.pump import Conversation, Fault
from penstock.model.file_slice import in_memory
from penstock.record.batch import HEADER_BYTES, LENGTH_FROM, encode_batch
from penstock.record.record import encode_record
from penstock.wire.kafka.apis import (
    APIS,
    FETCH,
    PRODUCE,
    encode_request_frame,
    parse_response_header,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock.wire.kafka.primitives import ZERO_UUID, Malformed
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    encode_produce_request,
)

# The last versions that call topics by name: an id would have to be asked for first.
PRODUCE_VERSION = 12
FETCH_VERSION = 12
CLIENT_ID = "benchmark"
FETCH_PARTITION_BYTES = 1_048_576
FETCH_WAIT_MS = 100
ACKS_ALL = -1
TIMEOUT_MS = 30_000

_LENGTH = struct.Struct(">i")
_BATCH = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_CODE = struct.Struct(">h")
# length, correlation id, no tags, one topic; then its name, one partition, the partition's index
_CODE_BEHIND_NAME_AT = 4 + 4 + 1 + 1 + 1 + 1 + 4


def batch_of(batch_bytes: int, *, now_ms: int) -> tuple[bytes, int]:
    """The largest batch of whole records that is not longer than asked, and its record count."""
    value = b"x" * RECORD_BYTES
    records: list[bytes] = []
    size = HEADER_BYTES
    while True:
        record = encode_record(offset_delta=len(records), timestamp_delta=0, key=None, value=value)
        size += len(record)
        if size > batch_bytes and records:
            break
        records.append(record)
    batch = encode_batch(
        records, base_offset=0, leader_epoch=-1, base_timestamp=now_ms, max_timestamp=now_ms
    )
    return batch, len(records)


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    request = ProduceRequest(
        None,
        ACKS_ALL,
        TIMEOUT_MS,
        (ProduceTopic(topic, ZERO_UUID, (ProducePartition(partition, batch),)),),
    )
    return encode_request_frame(
        APIS[PRODUCE],
        PRODUCE_VERSION,
        correlation_id=1,
        client_id=CLIENT_ID,
        body=encode_produce_request(request, PRODUCE_VERSION),
    )


def fetch_frame(
    topic: str, offsets: dict[int, int], partition_bytes: int = FETCH_PARTITION_BYTES
) -> bytes:
    partitions = [FetchPartition(p, offset, partition_bytes) for p, offset in offsets.items()]
    request = FetchRequest(
        FETCH_WAIT_MS,
        1,
        (FetchTopic(topic, ZERO_UUID, partitions),),
        bytes_max=partition_bytes * len(offsets),
    )
    return encode_request_frame(
        APIS[FETCH],
        FETCH_VERSION,
        correlation_id=1,
        client_id=CLIENT_ID,
        body=encode_fetch_request(request, FETCH_VERSION),
    )


def frame_bytes(buffer: bytearray, position: int, end: int) -> int:
    """Of the frame that begins at ``position``, its length included; 0 when it is not whole."""
    if end - position < _LENGTH.size:
        return 0
    size: int = _LENGTH.unpack_from(buffer, position)[0] + _LENGTH.size
    return size if end - position >= size else 0


def walk_batches(records: memoryview, offset: int) -> tuple[int, int]:
    """How many records from ``offset`` on the whole batches hold, and the offset behind them."""
    position = count = 0
    while len(records) - position >= HEADER_BYTES:
        base_offset, length, delta = _BATCH.unpack_from(records, position)
        position += length + LENGTH_FROM
        if position > len(records):
            break  # a server may cut the last one
        next_offset = base_offset + delta + 1
        count += max(next_offset - offset, 0)
        offset = max(offset, next_offset)
    return count, offset


class Producer:
    hello = b""

    def __init__(self, topic: str, partitions: Sequence[int], batch: bytes, records: int) -> None:
        self._frames = cycle([produce_frame(topic, partition, batch) for partition in partitions])
        self._records = records
        self._code_at = _CODE_BEHIND_NAME_AT + len(topic.encode())

    def next_request(self) -> bytes:
        return next(self._frames)

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        used = answers = 0
        while size := frame_bytes(buffer, used, end):
            (code,) = _CODE.unpack_from(buffer, used + self._code_at)
            if code:
                raise Fault(f"produce: {ErrorCode(code).name}")
            used += size
            answers += 1
        return used, answers, answers * self._records


class Consumer:
    """Reads its partitions from the beginning, and from the beginning again at their end."""

    hello = b""

    def __init__(self, topic: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        self._offsets = dict.fromkeys(partitions, 0)

    def next_request(self) -> bytes:
        return fetch_frame(self._topic, self._offsets)

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        size = frame_bytes(buffer, 0, end)
        if not size:
            return 0, 0, 0
        count = 0
        with memoryview(buffer) as view, view[_LENGTH.size : size] as frame:
            try:
                _, body_at = parse_response_header(frame, 1)
                response = decode_fetch_response(frame, body_at, FETCH_VERSION)
            except Malformed as error:
                raise Fault(f"fetch: {error}") from error
            code = response.error_code
            for topic in response.topics:
                for answer in topic.partitions:
                    code = code or answer.error_code
                    offset = self._offsets[answer.index]
                    for records in in_memory(answer.records):
                        with memoryview(records) as part:
                            found, offset = walk_batches(part, offset)
                            part.release()
                        count += found
                    if offset >= answer.high_watermark:
                        offset = 0
                    self._offsets[answer.index] = offset
            del response
        if code:
            raise Fault(f"fetch: {ErrorCode(code).name}")
        return size, 1, count


def shares(partitions: int, connections: int) -> list[list[int]]:
    """Which partitions each connection serves; with fewer partitions they are shared."""
    if partitions < connections:
        return [[number % partitions] for number in range(connections)]
    return [list(range(number, partitions, connections)) for number in range(connections)]


def conversations(job: Job) -> list[Conversation]:
    parts = shares(job.partitions, job.connections)
    if job.action is Action.CONSUME:
        return [Consumer(job.topic, part) for part in parts]
    batch, records = batch_of(job.batch_bytes, now_ms=time.time_ns() // 1_000_000)
    return [Producer(job.topic, part, batch, records) for part in parts]
