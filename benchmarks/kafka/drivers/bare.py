"""Bytes in batches of the size that Kafka's would have, to and from the bare server: see
``systems/bare_server.py`` for the few bytes that are spoken."""

import struct
import time

from benchmarks.kafka.drivers.frames import FETCH_PARTITION_BYTES, batch_of, produce_frame
from benchmarks.kafka.job import RECORD_BYTES, Action, Job
from benchmarks.kafka.pump import Conversation

SINK, SOURCE = b"W", b"R"
HELLO = struct.Struct(">cI")


class Writer:
    def __init__(self, frame: bytes, records: int) -> None:
        self.hello = HELLO.pack(SINK, len(frame))
        self._frame = frame
        self._records = records

    def next_request(self) -> bytes:
        return self._frame

    def take(self, _buffer: bytearray, end: int) -> tuple[int, int, int]:
        return end, end, end * self._records


class Reader:
    def __init__(self, size: int) -> None:
        self.hello = HELLO.pack(SOURCE, size)
        self._size = size

    def next_request(self) -> bytes:
        return b"?"

    def take(self, _buffer: bytearray, end: int) -> tuple[int, int, int]:
        answers = end // self._size
        return answers * self._size, answers, answers * (self._size // RECORD_BYTES)


def conversations(job: Job) -> list[Conversation]:
    if job.action is Action.CONSUME:
        each = max(job.partitions // job.connections, 1)
        return [Reader(FETCH_PARTITION_BYTES * each) for _ in range(job.connections)]
    batch, records = batch_of(job.batch_bytes, now_ms=time.time_ns() // 1_000_000)
    frame = produce_frame("limit", 0, batch)
    return [Writer(frame, records) for _ in range(job.connections)]
