"""The load generator, the same for every system: ``python -m benchmarks.load`` reads one job as
JSON and writes one result as JSON.

It is a process of its own on a core of its own, so that the server is not slowed by being measured.
Requests are bytes made beforehand; replies are barely read. Two ways to load:

* closed: every client asks again as soon as it is answered. Finds the highest rate.
* paced: requests leave by the clock, whatever the server does, and a latency counts from when the
  request *should* have left. A server that stalls thus pays for all that waited meanwhile.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from benchmarks import proc
from benchmarks.channel import Channel
from benchmarks.histogram import Histogram
from benchmarks.paced import EndToEnd
from benchmarks.requests import QueueRequests, RequestMaker
from benchmarks.scripts import SCRIPTS, Script, Tally, serial_numbers
from penstock.wire.aws.signer import Credentials

FAULTS_MAX = 1_000  # a run with more is stopped: its rate would mean nothing
EMPTY_PER_CLIENT = 3  # so many empty receives in a row, per client: the queue is drained
LAST_REPLIES_S_MAX = 10.0
TICK_S = 0.02  # how often the end of a closed run is looked for


class Job(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    queue_url: str
    scenario: str  # a key of SCRIPTS, or "end_to_end"
    connections: int = 32
    warm_up_s: float = 0.5
    window_s: float = 2.0
    body_bytes: int = 256
    messages_max: int = 0  # stop after so many; 0: the window alone decides
    rate: int = 0  # messages per second of a paced run
    serial_start: int = 0
    server_pid: int = 0
    cores: list[int] = []
    key_id: str = ""  # signs the requests, for a server that wants to know who asks
    secret: str = ""
    distinct: int = 1  # different requests that single sends go round


class Latency(msgspec.Struct, frozen=True):
    count: int
    mean_us: float
    p50_us: int
    p99_us: int
    p999_us: int
    max_us: int

    @classmethod
    def of(cls, histogram: Histogram) -> "Latency":
        return cls(
            count=histogram.count,
            mean_us=round(histogram.mean_us, 1),
            p50_us=histogram.percentile(50),
            p99_us=histogram.percentile(99),
            p999_us=histogram.percentile(99.9),
            max_us=histogram.max_us,
        )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    seconds: float
    requests: int
    messages: int
    latencies: dict[str, Latency]
    faults: int = 0
    first_fault: str = ""
    is_drained: bool = False  # the queue ran out before the window did; the rate is still good
    missing: int = 0  # sent by a paced run, never received
    server_cpu_us: float = 0.0  # per request
    server_cpu_share: float = 0.0  # of one core
    load_cpu_share: float = 0.0  # near 1.0: the generator, not the server, was the limit

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0


class Client:
    """Drives one script over one channel."""

    __slots__ = ("_channel", "_histogram", "_script", "_sent_at_ns", "_tally")

    def __init__(self, tally: Tally, channel: Channel, script: Script) -> None:
        self._tally = tally
        self._channel = channel
        self._script = script

    def start(self) -> None:
        self._histogram, request = next(self._script)
        self._sent_at_ns = time.perf_counter_ns()
        self._channel.exchange(request, self._on_reply)

    def _on_reply(self, status: int, body: bytes) -> None:
        now_ns = time.perf_counter_ns()
        tally = self._tally
        if tally.is_measuring:
            tally.request_count += 1
            self._histogram.record((now_ns - self._sent_at_ns) // 1_000)
        if status == 200:
            reply: bytes | None = body
        else:
            reply = None
            tally.fault(f"{status} {body.decode(errors='replace')}")
        if tally.is_over:
            tally.client_left()
            return
        self._histogram, request = self._script.send(reply)
        self._sent_at_ns = time.perf_counter_ns()
        self._channel.exchange(request, self._on_reply)


class Meter:
    """Processor time and wall time over the timed window."""

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._server_start_s = proc.cpu_seconds(server_pid) if server_pid else 0.0
        self._own_start_s = time.process_time()
        self._start_s = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Seconds passed, and the processor seconds of the server and of this process in them."""
        server_s = proc.cpu_seconds(self._pid) - self._server_start_s if self._pid else 0.0
        own_s = time.process_time() - self._own_start_s
        return time.perf_counter() - self._start_s, server_s, own_s


def result_of(job: Job, tally: Tally, meter: Meter, *, missing: int = 0) -> Result:
    seconds, server_s, own_s = meter.read()
    return Result(
        scenario=job.scenario,
        seconds=seconds,
        requests=tally.request_count,
        messages=tally.message_count,
        latencies={n: Latency.of(h) for n, h in tally.histograms.items() if h.count},
        faults=tally.fault_count,
        first_fault=tally.first_fault,
        is_drained=is_drained(job, tally),
        missing=missing,
        server_cpu_us=server_s * 1e6 / tally.request_count if tally.request_count else 0.0,
        server_cpu_share=server_s / seconds,
        load_cpu_share=own_s / seconds,
    )


def is_drained(job: Job, tally: Tally) -> bool:
    return tally.empty_count >= EMPTY_PER_CLIENT * job.connections


async def run_closed(job: Job, queue: QueueRequests) -> Result:
    loop = asyncio.get_running_loop()
    tally = Tally()
    serials: Iterator[int] = serial_numbers(job.serial_start)
    script = SCRIPTS[job.scenario]
    lost: list[str] = []
    channels = [Channel(job.host, job.port, on_lost=lost.append) for _ in range(job.connections)]
    for channel in channels:
        await channel.open()
    for channel in channels:
        Client(tally, channel, script(tally, queue, serials)).start()

    def must_stop() -> bool:
        enough = job.messages_max and tally.message_count >= job.messages_max
        failing = tally.fault_count > FAULTS_MAX or len(lost) >= job.connections
        return bool(enough or failing or is_drained(job, tally))

    warm_until = loop.time() + job.warm_up_s
    while loop.time() < warm_until and not must_stop():
        await asyncio.sleep(min(TICK_S, max(warm_until - loop.time(), 0)))
    meter = Meter(job.server_pid)
    tally.is_measuring = True
    until = loop.time() + job.window_s
    while loop.time() < until and not must_stop():
        await asyncio.sleep(min(TICK_S, max(until - loop.time(), 0)))
    tally.is_measuring = False
    tally.is_over = True
    for reason in lost:
        tally.fault(reason)
    result = result_of(job, tally, meter)
    # What is still under way would otherwise burden whatever is measured next.
    if not lost:
        try:
            await asyncio.wait_for(tally.everyone_left(job.connections), LAST_REPLIES_S_MAX)
        except TimeoutError:
            pass
    for channel in channels:
        channel.shut()
    return result


async def run_end_to_end(job: Job, queue: QueueRequests) -> Result:
    tally = Tally()
    run = EndToEnd(job.host, job.port, tally, queue, rate=job.rate)
    await run.start(consumers=max(job.connections // 2, 1), producers=max(job.connections // 2, 1))
    await asyncio.sleep(job.warm_up_s)
    meter = Meter(job.server_pid)
    run.measure_from_now()
    await asyncio.sleep(job.window_s)
    run.stop_producing()
    result = result_of(job, tally, meter)
    missing = await run.drain()
    # The last messages arrive while draining: their latencies belong to the window too.
    latencies = {n: Latency.of(h) for n, h in tally.histograms.items() if h.count}
    return msgspec.structs.replace(
        result,
        missing=missing,
        latencies=latencies,
        messages=tally.message_count,
        faults=tally.fault_count,
        first_fault=tally.first_fault,
    )


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    if job.cores:
        os.sched_setaffinity(0, job.cores)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    key = Credentials(job.key_id, job.secret) if job.key_id else None
    maker = RequestMaker(job.host, job.port, stamp=stamp, key=key)
    queue = QueueRequests(maker, job.queue_url, body_bytes=job.body_bytes, distinct=job.distinct)
    run = run_end_to_end if job.scenario == "end_to_end" else run_closed
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(run(job, queue))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
