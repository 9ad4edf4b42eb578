"""End-to-end latency at a fixed rate: how long a message takes from when it should have been sent
until a consumer has it.

Producers send by a kernel timer: the event loop's own timers count whole milliseconds, which is
what is to be measured. When every producer is still waiting for an answer the message queues up
here, and its time runs. The instant travels in the body; both ends read the same clock.
"""

import asyncio
import ctypes
import os
import time
from collections import deque
from functools import partial

from benchmarks.channel import Channel
from benchmarks.requests import QueueRequests
from benchmarks.scripts import RECEIPTS, STAMPS, Tally

WAIT_S = 20  # long poll
BACKLOG_MAX = 100_000  # messages due that no producer was free for
DRAIN_S_MAX = 5.0
STAMP_DIGITS = 20

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = 0o2004000


class KernelTimer:
    """A timerfd: readable every interval, and its read says how many have passed."""

    def __init__(self, interval_ns: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        # struct itimerspec: interval and first expiry, each in seconds and nanoseconds.
        spec = (ctypes.c_long * 4)(*divmod(interval_ns, 10**9), *divmod(interval_ns, 10**9))
        if self.fd < 0 or libc.timerfd_settime(self.fd, 0, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "no kernel timer")

    def read(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.fd)


class EndToEnd:
    def __init__(
        self, host: str, port: int, tally: Tally, queue: QueueRequests, *, rate: int
    ) -> None:
        self._address = (host, port)
        self._tally = tally
        self._queue = queue
        self._interval_ns = 10**9 // rate
        self._idle: deque[Channel] = deque()
        self._backlog: deque[int] = deque()
        self._channels: list[Channel] = []
        self._timer: KernelTimer | None = None
        self._next_at_ns = 0
        self._measured_from_ns = 0
        self._unseen: set[int] = set()  # stamps sent and not yet received; bounded by BACKLOG_MAX
        self._drained = asyncio.Event()
        self._is_producing = False
        self._filler = queue.text[STAMP_DIGITS:]

    async def start(self, *, producers: int, consumers: int) -> None:
        for _ in range(consumers):
            channel = await self._open()
            self._receive(channel)
        for _ in range(producers):
            self._idle.append(await self._open())
        self._timer = KernelTimer(self._interval_ns)
        self._next_at_ns = time.perf_counter_ns() + self._interval_ns
        self._is_producing = True
        asyncio.get_running_loop().add_reader(self._timer.fd, self._tick)

    def measure_from_now(self) -> None:
        self._measured_from_ns = time.perf_counter_ns()
        self._tally.is_measuring = True

    def stop_producing(self) -> None:
        assert self._timer is not None, "started before"
        self._is_producing = False
        asyncio.get_running_loop().remove_reader(self._timer.fd)
        self._timer.close()

    async def drain(self) -> int:
        """Wait for what is under way; returns how many messages never came."""
        if self._unseen:
            try:
                await asyncio.wait_for(self._drained.wait(), DRAIN_S_MAX)
            except TimeoutError:
                pass
        self._tally.is_over = True
        for channel in self._channels:
            channel.shut()
        return len(self._unseen)

    # ── Producers ────────────────────────────────────────────────────────────────────────────
    def _tick(self) -> None:
        assert self._timer is not None, "started before"
        self._timer.read()
        now_ns = time.perf_counter_ns()
        while self._next_at_ns <= now_ns:
            due_at_ns = self._next_at_ns
            self._next_at_ns += self._interval_ns
            if self._idle:
                self._send(self._idle.popleft(), due_at_ns)
            elif len(self._backlog) < BACKLOG_MAX:
                self._backlog.append(due_at_ns)
            else:
                self._tally.fault("the server is too slow for this rate")

    def _send(self, channel: Channel, due_at_ns: int) -> None:
        if len(self._unseen) < BACKLOG_MAX:
            self._unseen.add(due_at_ns)
        request = self._queue.send(b"%020d%b" % (due_at_ns, self._filler))
        channel.exchange(request, partial(self._on_sent, channel, due_at_ns))

    def _on_sent(self, channel: Channel, due_at_ns: int, status: int, body: bytes) -> None:
        self._count_request()
        self._note("send", due_at_ns, status, body)
        if status != 200:
            self._unseen.discard(due_at_ns)
        if self._backlog:
            self._send(channel, self._backlog.popleft())
        else:
            self._idle.append(channel)

    # ── Consumers ────────────────────────────────────────────────────────────────────────────
    def _receive(self, channel: Channel) -> None:
        request = self._queue.receive(10, wait_s=WAIT_S)
        channel.exchange(request, partial(self._on_received, channel))

    def _on_received(self, channel: Channel, status: int, body: bytes) -> None:
        self._count_request()
        for stamp in STAMPS.findall(body):
            self._note("end to end", int(stamp), status, body)
            self._unseen.discard(int(stamp))
            if int(stamp) >= self._measured_from_ns:
                self._tally.done(1)
        if not self._unseen and not self._is_producing:
            self._drained.set()
        receipts = RECEIPTS.findall(body)
        if self._tally.is_over:
            return
        if status != 200:
            self._tally.fault(f"{status} {body.decode(errors='replace')}")
        if receipts:
            sent_at_ns = time.perf_counter_ns()
            request = self._queue.delete_batch(receipts)
            channel.exchange(request, partial(self._on_deleted, channel, sent_at_ns))
        else:
            self._receive(channel)

    def _on_deleted(self, channel: Channel, sent_at_ns: int, status: int, body: bytes) -> None:
        self._count_request()
        self._tally.check_batch(body)
        self._note("delete batch", sent_at_ns, status, body)
        if not self._tally.is_over:
            self._receive(channel)

    # ── Both ─────────────────────────────────────────────────────────────────────────────────
    async def _open(self) -> Channel:
        channel = Channel(*self._address, on_lost=self._tally.fault)
        await channel.open()
        self._channels.append(channel)
        return channel

    def _count_request(self) -> None:
        if self._tally.is_measuring:
            self._tally.request_count += 1

    def _note(self, name: str, since_ns: int, status: int, body: bytes) -> None:
        if status != 200:
            self._tally.fault(f"{status} {body.decode(errors='replace')}")
            return
        if self._tally.is_measuring and since_ns >= self._measured_from_ns:
            latency_us = (time.perf_counter_ns() - since_ns) // 1_000
            self._tally.histogram(name).record(latency_us)
