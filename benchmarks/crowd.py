"""Clients in the background of a measurement: ``python -m benchmarks.crowd`` reads one job as a
line of JSON, says when its clients are at work, and goes on until its input ends; then it tells
what they were answered.

* polls: so many receive calls parked at once, on empty queues, each asked again when it ends.
* flood: sends at a rate, whatever the answers are.
"""

import asyncio
import os
import resource
import sys
import time
from collections import deque
from functools import partial

import msgspec
import uvloop

from benchmarks.channel import Channel
from benchmarks.requests import QueueRequests, RequestMaker
from penstock.wire.aws.signer import Credentials

WAIT_S = 20
TICK_S = 0.001
OPENED_AT_ONCE = 200
BODY_BYTES = 256
DISTINCT = 500


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    queue_urls: list[str]
    kind: str  # polls or flood
    clients: int
    rate: int = 0  # of a flood, in requests per second
    key_id: str = ""
    secret: str = ""
    cores: list[int] = []


class Answered(msgspec.Struct, frozen=True):
    ok: int
    refused: int
    lost: int


class Clients:
    def __init__(self, job: Crowd) -> None:
        self._job = job
        self._ok = self._refused = self._lost = 0
        key = Credentials(job.key_id, job.secret) if job.key_id else None
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        maker = RequestMaker(job.host, job.port, stamp=stamp, key=key)
        self._queues = [
            QueueRequests(maker, url, body_bytes=BODY_BYTES, distinct=DISTINCT)
            for url in job.queue_urls
        ]
        self._channels: list[Channel] = []

    async def open(self) -> None:
        job = self._job
        while len(self._channels) < job.clients:
            count = min(OPENED_AT_ONCE, job.clients - len(self._channels))
            some = [Channel(job.host, job.port, on_lost=self._on_lost) for _ in range(count)]
            await asyncio.gather(*(channel.open() for channel in some))
            self._channels += some

    def _on_lost(self, _reason: str) -> None:
        self._lost += 1

    def _count(self, status: int) -> None:
        if status == 200:
            self._ok += 1
        else:
            self._refused += 1

    def poll(self) -> None:
        requests = [queue.receive(1, wait_s=WAIT_S) for queue in self._queues]
        for number, channel in enumerate(self._channels):
            self._poll(channel, requests[number % len(requests)])

    def _poll(self, channel: Channel, request: bytes) -> None:
        def on_reply(status: int, _body: bytes) -> None:
            self._count(status)
            self._poll(channel, request)

        channel.exchange(request, on_reply)

    async def flood(self, over: asyncio.Event) -> None:
        """What is due and finds no client free is left out: the rate is never made up for."""
        idle = deque(self._channels)
        sends = self._queues[0].sends()
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0

        def on_reply(channel: Channel, status: int, _body: bytes) -> None:
            self._count(status)
            idle.append(channel)

        while not over.is_set():
            due = int((loop.time() - began) * self._job.rate)
            for _ in range(min(due - sent, len(idle))):
                channel = idle.popleft()
                channel.exchange(next(sends), partial(on_reply, channel))
            sent = due
            await asyncio.sleep(TICK_S)

    def end(self) -> Answered:
        for channel in self._channels:
            channel.shut()
        return Answered(self._ok, self._refused, self._lost)


async def run(job: Crowd) -> Answered:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    clients = Clients(job)
    await clients.open()
    loop.add_reader(sys.stdin.fileno(), over.set)  # nothing more comes there but its end
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if job.kind == "polls":
        clients.poll()
        await over.wait()
    else:
        await clients.flood(over)
    loop.remove_reader(sys.stdin.fileno())
    return clients.end()


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Crowd)
    if job.cores:
        os.sched_setaffinity(0, job.cores)
    # It shares its cores with who measures, whose own waiting for a core is not the server's.
    os.nice(19)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answered = runner.run(run(job))
    sys.stdout.buffer.write(msgspec.json.encode(answered) + b"\n")


if __name__ == "__main__":
    main()
