"""Redis Streams over a plain socket: a pipeline of XADDs is one request, an XRANGE another.

Answers are counted by the marks between them, at the speed of ``bytes.count``: values consist of
one letter, so that no mark can stand inside of one.
"""

import socket
from itertools import cycle

from benchmarks.kafka.drivers.frames import FETCH_PARTITION_BYTES, shares
from benchmarks.kafka.job import RECORD_BYTES, Action, Job
from benchmarks.kafka.pump import CONNECT_S_MAX, Conversation, Fault

END = b"\r\n"
VALUE_MARK = b"$%d\r\n" % RECORD_BYTES
FIELD_MARK = b"\r\n*2\r\n$1\r\nv\r\n"  # between an entry's id and its value
ENTRIES_PER_READ = FETCH_PARTITION_BYTES // RECORD_BYTES
ENTRY_BYTES_MIN = RECORD_BYTES + len(VALUE_MARK) + len(FIELD_MARK) + len(END)


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def key_of(topic: str, partition: int) -> bytes:
    return f"{topic}-{partition}".encode()


class Adder:
    """``records`` XADDs per request, all to one stream; streams take turns."""

    hello = b""

    def __init__(self, keys: list[bytes], records: int) -> None:
        value = b"x" * RECORD_BYTES
        self._requests = cycle([command(b"XADD", k, b"*", b"v", value) * records for k in keys])
        self._records = records
        self._spare = 0  # answers to a request that is not wholly answered

    def next_request(self) -> bytes:
        return next(self._requests)

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        # An answer is "$15<end>1763179200000-0<end>": two ends.
        if buffer.startswith(b"-"):
            raise Fault(f"XADD: {bytes(buffer[:end]).partition(END)[0].decode()}")
        ends = buffer.count(END, 0, end)
        used = buffer.rfind(END, 0, end) + len(END) if ends else 0
        if ends % 2:
            used = buffer.rfind(END, 0, used - len(END)) + len(END) if ends > 1 else 0
        answers = ends // 2
        requests, self._spare = divmod(self._spare + answers, self._records)
        return used, requests, answers


class Ranger:
    """Reads one stream after the other, each from its beginning, a megabyte of entries at once."""

    hello = b""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys
        self._at = 0
        self._after = b"-"

    def next_request(self) -> bytes:
        count = b"%d" % ENTRIES_PER_READ
        return command(b"XRANGE", self._keys[self._at], self._after, b"+", b"COUNT", count)

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        stop = buffer.find(END, 0, end)
        if stop < 0:
            return 0, 0, 0
        if buffer[0:1] != b"*":
            raise Fault(f"XRANGE: {bytes(buffer[:stop]).decode(errors='replace')}")
        count = int(buffer[1:stop])
        if end < stop + count * ENTRY_BYTES_MIN:
            return 0, 0, 0
        if count == 0:
            self._next_key()
            return stop + len(END), 1, 0
        last = buffer.rfind(VALUE_MARK, 0, end)
        size = last + len(VALUE_MARK) + RECORD_BYTES + len(END)
        if end < size or buffer.count(VALUE_MARK, 0, end) < count:
            return 0, 0, 0
        id_end = buffer.rfind(FIELD_MARK, 0, last + 1)
        id_start = buffer.rfind(END, 0, id_end) + len(END)
        self._after = b"(" + bytes(buffer[id_start:id_end])
        if count < ENTRIES_PER_READ:
            self._next_key()
        return size, 1, count

    def _next_key(self) -> None:
        self._at = (self._at + 1) % len(self._keys)
        self._after = b"-"


def conversations(job: Job) -> list[Conversation]:
    parts = shares(job.partitions, job.connections)
    keys = [[key_of(job.topic, partition) for partition in part] for part in parts]
    if job.action is Action.CONSUME:
        return [Ranger(each) for each in keys]
    records = max(job.batch_bytes // RECORD_BYTES, 1)
    return [Adder(each, records) for each in keys]


def call(host: str, port: int, *words: bytes) -> bytes:
    """One command outside of any measurement; its answer is one line."""
    with socket.create_connection((host, port), timeout=CONNECT_S_MAX) as connection:
        connection.sendall(command(*words))
        with connection.makefile("rb") as answers:
            return answers.readline().rstrip()
