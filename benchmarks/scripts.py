"""What one client of each scenario does, as generators: they yield a request and are sent the
body of its reply. A generator keeps the story of a client readable at the price of a function call.

What they count goes to a ``Tally``; who drives them, and the clock, is ``load.py``.
"""

import asyncio
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import count, islice

from benchmarks.histogram import Histogram
from benchmarks.requests import QueueRequests

Step = tuple[Histogram, bytes]  # where the latency counts, and the request
Script = Generator[Step, bytes | None, None]  # it is sent None when the answer was an error

RECEIPTS = re.compile(rb'"ReceiptHandle": ?"([^"]*)"')
STAMPS = re.compile(rb'"Body": ?"([0-9]{20})')
_FAILED = re.compile(rb'"Failed": ?\[ ?\{')
BATCH = 10
GROUPS = 1_000
FAULT_CHARACTERS_MAX = 400


class Tally:
    """What a run has counted. ``is_measuring`` is the timed window."""

    def __init__(self) -> None:
        self.is_measuring = False
        self.is_over = False
        self.request_count = 0
        self.message_count = 0
        self.fault_count = 0
        self.first_fault = ""
        self.empty_count = 0  # empty receives since the last one that was not
        self.histograms: dict[str, Histogram] = {}
        self._left = asyncio.Semaphore(0)

    def histogram(self, name: str) -> Histogram:
        return self.histograms.setdefault(name, Histogram())

    def client_left(self) -> None:
        """Its last reply has come, and it asks no more."""
        self._left.release()

    async def everyone_left(self, client_count: int) -> None:
        for _ in range(client_count):
            await self._left.acquire()

    def done(self, message_count: int) -> None:
        if self.is_measuring:
            self.message_count += message_count

    def fault(self, text: str) -> None:
        self.fault_count += 1
        if not self.first_fault:
            self.first_fault = text[:FAULT_CHARACTERS_MAX]

    def check_batch(self, reply: bytes | None) -> None:
        if reply is not None and _FAILED.search(reply):
            self.fault(reply.decode(errors="replace"))


def send(tally: Tally, queue: QueueRequests, serials: Iterator[int]) -> Script:
    del serials
    histogram = tally.histogram("send")
    for request in queue.sends():
        if (yield histogram, request) is not None:
            tally.done(1)


def send_batch(tally: Tally, queue: QueueRequests, serials: Iterator[int]) -> Script:
    del serials
    step = (tally.histogram("send batch"), queue.send_batch(BATCH))
    while True:
        reply = yield step
        tally.check_batch(reply)
        if reply is not None:
            tally.done(BATCH)


def fifo_send(tally: Tally, queue: QueueRequests, serials: Iterator[int]) -> Script:
    histogram = tally.histogram("fifo send")
    for serial in serials:
        request = queue.send_fifo(serial % GROUPS, b"d%d" % serial)
        if (yield histogram, request) is not None:
            tally.done(1)


def fifo_send_batch(tally: Tally, queue: QueueRequests, serials: Iterator[int]) -> Script:
    histogram = tally.histogram("fifo send batch")
    while True:
        entries = [(s % GROUPS, b"d%d" % s) for s in islice(serials, BATCH)]
        reply = yield histogram, queue.send_fifo_batch(entries)
        tally.check_batch(reply)
        if reply is not None:
            tally.done(len(entries))


def receive_delete(tally: Tally, queue: QueueRequests, serials: Iterator[int]) -> Script:
    """A cycle takes one message and deletes it."""
    del serials
    receive = (tally.histogram("receive"), queue.receive(1))
    deleting = tally.histogram("delete")
    while True:
        reply = yield receive
        found = None if reply is None else RECEIPTS.search(reply)
        if found is None:
            tally.empty_count += 1
            continue
        tally.empty_count = 0
        if (yield deleting, queue.delete(found[1])) is not None:
            tally.done(1)


def receive_delete_batch(tally: Tally, queue: QueueRequests, serials: Iterator[int]) -> Script:
    del serials
    receive = (tally.histogram("receive batch"), queue.receive(BATCH))
    deleting = tally.histogram("delete batch")
    while True:
        receipts = RECEIPTS.findall((yield receive) or b"")
        if not receipts:
            tally.empty_count += 1
            continue
        tally.empty_count = 0
        reply = yield deleting, queue.delete_batch(receipts)
        tally.check_batch(reply)
        if reply is not None:
            tally.done(len(receipts))


SCRIPTS: Mapping[str, Callable[[Tally, QueueRequests, Iterator[int]], Script]] = {
    "send": send,
    "send_batch": send_batch,
    "fifo_send": fifo_send,
    "fifo_send_batch": fifo_send_batch,
    "receive_delete": receive_delete,
    "receive_delete_batch": receive_delete_batch,
}


def serial_numbers(start: int) -> Iterator[int]:
    """Shared by all clients of a run, so that no two send the same deduplication id."""
    return count(start)
