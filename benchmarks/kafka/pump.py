"""Keeps some sockets full: requests go out until enough of them wait for an answer, answers come
in and are counted, and nothing is done per record.

What is said on a socket is a ``Conversation``; this is only the moving of bytes. Plain sockets and
one ``epoll`` instead of an event loop, because the generator has one core and shall not be what is
measured.
"""

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.histogram import Histogram
from benchmarks.kafka.job import RECORD_BYTES, Job, Result
from benchmarks.load import Latency, Meter

BUFFER_BYTES = 1_048_576  # at first; doubled for an answer that is longer
BUFFER_BYTES_MAX = 256 * 1_048_576
CONNECT_S_MAX = 10.0
LAST_REPLIES_S_MAX = 15.0
TICK_S = 0.05
WARM_UP_PART = 8  # at most 1/8 of the bytes


class Fault(Exception):
    """The server answered, and not with what was asked for."""


class Conversation(Protocol):
    hello: bytes  # sent first; its answers are ``take``'s to skip

    def next_request(self) -> bytes | None:
        """None when there is nothing more to ask for."""
        ...

    def take(self, buffer: bytearray, end: int) -> tuple[int, int, int]:
        """Look at ``buffer[:end]``. Returns how many bytes are done with, and how many requests and
        records they answer. Raises Fault."""
        ...


class Tally:
    """Counts of the whole run, and of its timed window."""

    def __init__(self) -> None:
        self.records = self.records_in_all = self.requests = 0
        self.is_measuring = False
        self.histogram = Histogram()

    def add(self, requests: int, records: int) -> None:
        self.records_in_all += records
        if self.is_measuring:
            self.records += records
            self.requests += requests


class Line:
    """One connection and its conversation."""

    def __init__(
        self, conversation: Conversation, address: tuple[str, int], tally: Tally, in_flight_max: int
    ) -> None:
        self.socket = socket.create_connection(address, timeout=CONNECT_S_MAX)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_asking = True
        self._conversation = conversation
        self._tally = tally
        self._in_flight_max = in_flight_max
        self._asked_at_ns: deque[int] = deque()  # one per request under way
        self._unsent = memoryview(conversation.hello)
        self._buffer = bytearray(BUFFER_BYTES)
        self._end = 0

    @property
    def in_flight(self) -> int:
        return len(self._asked_at_ns)

    def send(self) -> bool:
        """As much as the socket takes. True when it takes no more for now."""
        while True:
            if not self._unsent:
                if not self.is_asking or self.in_flight >= self._in_flight_max:
                    return False
                request = self._conversation.next_request()
                if request is None:
                    self.is_asking = False
                    return False
                self._unsent = memoryview(request)
                self._asked_at_ns.append(time.perf_counter_ns())
            try:
                sent = self.socket.send(self._unsent)
            except BlockingIOError:
                return True
            self._unsent = self._unsent[sent:]

    def receive(self) -> None:
        if self._end == len(self._buffer):
            self._grow()
        with memoryview(self._buffer) as view:
            count = self.socket.recv_into(view[self._end :])
        if not count:
            raise Fault("the server closed the connection")
        self._end += count
        used, requests, records = self._conversation.take(self._buffer, self._end)
        if used:
            self._end -= used
            with memoryview(self._buffer) as view:
                view[: self._end] = view[used : used + self._end]
        if not (requests or records):
            return
        now_ns = time.perf_counter_ns()
        for _ in range(requests):
            asked_at_ns = self._asked_at_ns.popleft()
            if self._tally.is_measuring:
                self._tally.histogram.record((now_ns - asked_at_ns) // 1_000)
        self._tally.add(requests, records)

    def _grow(self) -> None:
        size = 2 * len(self._buffer)
        if size > BUFFER_BYTES_MAX:
            raise Fault(f"an answer of more than {BUFFER_BYTES_MAX} bytes")
        self._buffer += bytes(size - len(self._buffer))


class Pump:
    def __init__(self, job: Job, conversations: Sequence[Conversation]) -> None:
        self._tally = Tally()
        self._job = job
        self._selector = selectors.DefaultSelector()
        address = (job.host, job.port)
        self._lines = [Line(c, address, self._tally, job.in_flight_max) for c in conversations]
        for line in self._lines:
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    def run(self) -> Result:
        job, tally = self._job, self._tally
        first_fault = ""
        for line in self._lines:
            self._send(line)
        meter = Meter(job.server_pid)
        try:
            self._turn_until(time.perf_counter() + job.warm_up_s, self._is_warm)
            meter = Meter(job.server_pid)
            tally.is_measuring = True
            self._turn_until(time.perf_counter() + job.window_s, self._is_enough)
        except (Fault, OSError) as fault:
            first_fault = str(fault)
        seconds, server_s, own_s = meter.read()
        tally.is_measuring = False
        if not first_fault:
            first_fault = self._last_replies()
        for line in self._lines:
            line.socket.close()
        self._selector.close()
        return Result(
            seconds=seconds,
            records=tally.records,
            records_in_all=tally.records_in_all,
            requests=tally.requests,
            latency=Latency.of(tally.histogram) if tally.histogram.count else None,
            faults=1 if first_fault else 0,
            first_fault=first_fault,
            server_cpu_s=server_s,
            load_cpu_share=own_s / seconds,
        )

    def _last_replies(self) -> str:
        """What is under way would burden whatever is measured next, and is part of the topic."""
        for line in self._lines:
            line.is_asking = False
        deadline = time.perf_counter() + LAST_REPLIES_S_MAX
        try:
            self._turn_until(deadline, self._is_quiet)
        except (Fault, OSError) as fault:
            return str(fault)
        return "" if self._is_quiet() else "requests were never answered"

    def _is_warm(self) -> bool:
        """A fast one shall not have spent its bytes before it is measured."""
        return self._has_moved(self._job.bytes_max // WARM_UP_PART) or self._is_enough()

    def _has_moved(self, bytes_max: int) -> bool:
        return bytes_max > 0 and self._tally.records_in_all * RECORD_BYTES >= bytes_max

    def _is_enough(self) -> bool:
        if self._has_moved(self._job.bytes_max):
            return True
        return not any(line.is_asking for line in self._lines) and self._is_quiet()

    def _is_quiet(self) -> bool:
        return all(line.in_flight == 0 for line in self._lines)

    def _turn_until(self, deadline: float, is_over: Callable[[], bool]) -> None:
        while not is_over():
            left = deadline - time.perf_counter()
            if left <= 0:
                return
            for key, events in self._selector.select(min(left, TICK_S)):
                line: Line = key.data
                if events & selectors.EVENT_READ:
                    line.receive()
                self._send(line)

    def _send(self, line: Line) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.send() else 0)
        if self._selector.get_key(line.socket).events != wanted:
            self._selector.modify(line.socket, wanted, line)
