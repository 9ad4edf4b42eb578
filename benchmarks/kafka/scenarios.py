"""What is measured: records in, records out, and how long one takes from the one to the other.

A workload is a batch size and a number of partitions. Its topic is filled by the measured produce
and read from the beginning by the measured consume; then it is deleted. Raw workloads send what
was made beforehand and show the server; client ones go through librdkafka and show an application.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.kafka.job import Action, Driver, Job, Result
from benchmarks.kafka.systems import System
from benchmarks.scenarios import LoadFailed
from benchmarks.server import Server

ROOT = Path(__file__).parents[2]
SPARE_S = 90.0  # a load process that takes so much longer than its window is ended
RAW, CLIENT = "raw", "client"
PACED_RATE = 1_000
CONNECTIONS = 4
PRODUCE_IN_FLIGHT = 5
CONSUME_IN_FLIGHT = 1  # the next offset is known from the answer
END_TO_END = "end_to_end"
SIZES: Mapping[str, int] = {"64k": 65_536, "1m": 1_048_576}
PARTITIONS = (1, 16)


class Workload(msgspec.Struct, frozen=True):
    kind: str  # RAW or CLIENT
    size: str  # a key of SIZES
    partitions: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.size}_{self.partitions}"

    @property
    def title(self) -> str:
        size = "64 KiB" if self.size == "64k" else "1 MiB"
        noun = "partition" if self.partitions == 1 else "partitions"
        return f"{size}, {self.partitions} {noun}"


Measured = Iterator[tuple[Action, Result | LoadFailed]]

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (Workload(*each) for each in product((RAW, CLIENT), SIZES, PARTITIONS))
}


class Timing(msgspec.Struct, frozen=True):
    warm_up_s: float = 0.5
    window_s: float = 2.0
    bytes_max: int = 2 * 1024**3  # of records per produce: more would measure the writeback


def scenario_name(action: Action, workload: Workload) -> str:
    return f"{action.value}_{workload.name}"


def title_of(name: str) -> str:
    if name == END_TO_END:
        return f"end to end at {PACED_RATE} records/s"
    action, _, workload = name.partition("_")
    return f"{action} {WORKLOADS[workload].kind}, {WORKLOADS[workload].title}"


SCENARIOS: tuple[str, ...] = (
    *(
        scenario_name(action, workload)
        for kind in (RAW, CLIENT)
        for action in (Action.PRODUCE, Action.CONSUME)
        for workload in WORKLOADS.values()
        if workload.kind == kind
    ),
    END_TO_END,
)


def run_load(job: Job) -> Result:
    """Run the load generator as a process of its own."""
    seconds_max = job.warm_up_s + job.window_s + SPARE_S
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kafka.load"],
            input=msgspec.json.encode(job),
            capture_output=True,
            timeout=seconds_max,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"the load took more than {seconds_max:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise LoadFailed(lines[-1] if lines else f"the load ended with {done.returncode}")
    result = msgspec.json.decode(done.stdout, type=Result)
    if result.records == 0:
        raise LoadFailed(result.first_fault or "no record went through")
    return result


def run_workload(
    workload: Workload,
    system: System,
    server: Server,
    *,
    timing: Timing,
    cores: set[int],
    serial: int,
    before_load: Callable[[Action], None] | None = None,
) -> Measured:
    """Produce, then consume what was produced. ``serial`` makes the topic's name unique;
    ``before_load`` is called when the load is about to begin."""
    topic = f"bench-{workload.name.replace('_', '-')}-{serial}"
    job = Job(
        driver=system.raw_driver if workload.kind == RAW else Driver.LIBRDKAFKA,
        action=Action.PRODUCE,
        host=server.host,
        port=server.port,
        topic=topic,
        partitions=workload.partitions,
        batch_bytes=SIZES[workload.size],
        connections=CONNECTIONS,
        in_flight_max=PRODUCE_IN_FLIGHT,
        warm_up_s=timing.warm_up_s,
        window_s=timing.window_s,
        bytes_max=timing.bytes_max,
        server_pid=server.pid,
        cores=sorted(cores),
    )
    system.create(server, topic, workload.partitions, readers=CONNECTIONS)
    try:
        for action in (Action.PRODUCE, Action.CONSUME):
            if action is Action.CONSUME:
                job = msgspec.structs.replace(
                    job, action=action, in_flight_max=CONSUME_IN_FLIGHT, bytes_max=0
                )
            os.sync()  # what earlier runs have left to write is not this one's
            if before_load is not None:
                before_load(action)
            try:
                result = run_load(job)
            except LoadFailed as problem:
                yield action, problem
                return
            job = msgspec.structs.replace(job, records=result.records_in_all)
            yield action, result
    finally:
        system.delete(server, topic, workload.partitions)


def run_end_to_end(
    system: System, server: Server, *, timing: Timing, cores: set[int], serial: int
) -> Result:
    topic = f"bench-paced-{serial}"
    system.create(server, topic, 1, readers=1)
    try:
        job = Job(
            driver=Driver.LIBRDKAFKA,
            action=Action.END_TO_END,
            host=server.host,
            port=server.port,
            topic=topic,
            warm_up_s=timing.warm_up_s,
            window_s=2 * timing.window_s,
            rate=PACED_RATE,
            server_pid=server.pid,
            cores=sorted(cores),
        )
        return run_load(job)
    finally:
        system.delete(server, topic, 1)
