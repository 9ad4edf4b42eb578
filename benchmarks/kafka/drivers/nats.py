"""NATS JetStream over a plain socket: publishes that ask for an acknowledgement, and pulls.

As with Redis, answers are counted by marks that cannot stand inside of a value.
"""

import json
import socket
from itertools import cycle

from benchmarks.kafka.drivers.frames import FETCH_PARTITION_BYTES, shares
from benchmarks.kafka.job import RECORD_BYTES, Action, Job
from benchmarks.kafka.pump import CONNECT_S_MAX, Conversation, Fault

END = b"\r\n"
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
INBOX = b"_INBOX.benchmark"
ACK_MARK = b'"seq":'
FAULT_MARK = b'"error":'
DELIVERY_MARK = b" %d\r\n" % RECORD_BYTES
PING, PONG = b"PING\r\n", b"PONG\r\n"
NO_MORE_MARK = b"NATS/1.0 404"
LAST_MARK = b".0" + DELIVERY_MARK  # the subject to answer ends with how many are left
RECORDS_PER_PULL = FETCH_PARTITION_BYTES // RECORD_BYTES
READER = "reader"


def publish(subject: bytes, body: bytes, *, inbox: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(body), body)


def stream_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def _whole_lines(buffer: bytearray, end: int) -> bytes:
    stop = buffer.rfind(END, 0, end)
    return b"" if stop < 0 else bytes(buffer[: stop + len(END)])


class Publisher:
    """``records`` publishes per request, all to one stream; streams take turns."""

    def __init__(self, number: int, streams: list[str], records: int) -> None:
        inbox = b"%b.%d" % (INBOX, number)
        self.hello = HELLO + b"SUB %b 1\r\n" % inbox
        value = b"x" * RECORD_BYTES
        self._requests = cycle(
            [publish(stream.encode(), value, inbox=inbox) * records for stream in streams]
        )
        self._records = records
        self._spare = 0
        self._pong = b""

    def next_request(self) -> bytes:
        pong, self._pong = self._pong, b""
        return pong + next(self._requests)

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        lines = _whole_lines(buffer, end)
        if FAULT_MARK in lines or lines.startswith(b"-ERR"):
            raise Fault(f"publish: {lines[:120]!r}")
        if PING in lines:
            self._pong = PONG
        answers = lines.count(ACK_MARK)
        requests, self._spare = divmod(self._spare + answers, self._records)
        return len(lines), requests, answers


class Puller:
    """Reads one stream after the other to its end, a megabyte of records at once."""

    def __init__(self, number: int, streams: list[str]) -> None:
        self._inbox = b"%b.%d" % (INBOX, number)
        self.hello = HELLO + b"SUB %b 1\r\n" % self._inbox
        self._number = number
        self._streams = streams
        self._got = 0
        self._pong = b""

    def next_request(self) -> bytes | None:
        if not self._streams:
            return None
        pong, self._pong = self._pong, b""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._streams[0]}.{READER}-{self._number}"
        body = b'{"batch":%d,"no_wait":true}' % RECORDS_PER_PULL
        return pong + publish(subject.encode(), body, inbox=self._inbox)

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        lines = _whole_lines(buffer, end)
        if lines.startswith(b"-ERR"):
            raise Fault(f"pull: {lines[:120]!r}")
        if PING in lines:
            self._pong = PONG
        records = lines.count(DELIVERY_MARK)
        self._got += records
        is_over = LAST_MARK in lines or NO_MORE_MARK in lines
        if is_over:
            self._streams = self._streams[1:]
        if is_over or self._got >= RECORDS_PER_PULL:
            self._got = 0
            return len(lines), 1, records
        return len(lines), 0, records


def conversations(job: Job) -> list[Conversation]:
    parts = shares(job.partitions, job.connections)
    streams = [[stream_of(job.topic, partition) for partition in part] for part in parts]
    if job.action is Action.CONSUME:
        return [Puller(number, each) for number, each in enumerate(streams)]
    records = max(job.batch_bytes // RECORD_BYTES, 1)
    return [Publisher(number, each, records) for number, each in enumerate(streams)]


def call(host: str, port: int, subject: str, body: object) -> dict[str, object]:
    """One request to the JetStream API outside of any measurement."""
    with socket.create_connection((host, port), timeout=CONNECT_S_MAX) as connection:
        text = json.dumps(body).encode()
        hello = HELLO + b"SUB %b 1\r\n" % INBOX
        connection.sendall(hello + publish(subject.encode(), text, inbox=INBOX))
        with connection.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"MSG "):
                    answer: dict[str, object] = json.loads(lines.read(int(line.split()[-1])))
                    return answer
                if line.startswith(b"-ERR"):
                    break
    raise Fault(f"{subject}: no answer")
