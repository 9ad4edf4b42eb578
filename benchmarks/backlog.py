"""A queue with a million messages waiting: what it costs in memory, how long a restart takes, and
whether receiving from it is as fast as from a nearly empty one.

Each is a promise of the design: unread messages need no state in memory, a snapshot of the cursor
makes a restart independent of the backlog, and reading goes through the same log either way.
"""

import shutil
import signal
import statistics
from pathlib import Path

import msgspec

from benchmarks import scenarios
from benchmarks.load import Result
from benchmarks.proc import memory_bytes
from benchmarks.scenarios import Timing, create_queue, fill, job_for, run_load
from benchmarks.server import Server
from benchmarks.systems import System

FILL_S_MAX = 600.0
STARTS = 5


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    messages: int
    fill_messages_per_s: float
    rss_bytes: int
    rss_anon_bytes: int
    rss_after_restart_bytes: int
    restart_s: float  # after an orderly stop
    restart_after_kill_s: float  # after SIGKILL: no farewell, recovery has to read
    receive_deep_per_s: float
    receive_shallow_per_s: float

    @property
    def receive_ratio(self) -> float:
        shallow = self.receive_shallow_per_s
        return self.receive_deep_per_s / shallow if shallow else 0.0


def empty_start_s(system: System, folder: Path, cores: set[int]) -> float:
    """Median time from start to ready on a new data folder."""
    times = []
    for number in range(STARTS):
        place = folder / f"start-{number}"
        place.mkdir()
        server = system.start(folder=place, cores=cores)
        times.append(server.ready_s)
        server.stop()
    return statistics.median(times)


def measure(
    system: System,
    folder: Path,
    *,
    messages: int,
    rounds: int,
    timing: Timing,
    server_cores: set[int],
    load_cores: set[int],
) -> Backlog:
    folder.mkdir(parents=True, exist_ok=True)
    server = system.start(folder=folder, cores=server_cores)
    try:
        deep_url = create_queue(server, "bench-backlog")
        filled = fill(
            server,
            deep_url,
            script="send_batch",
            timing=timing,
            cores=load_cores,
            seconds_max=FILL_S_MAX,
            messages_max=messages,
        )
        rss, anon = server.rss_bytes(), memory_bytes(server.pid, "RssAnon")
        server.stop(signal.SIGKILL)
        server = system.start(folder=folder, cores=server_cores)
        after_kill_s = server.ready_s
        server.stop()
        server = system.start(folder=folder, cores=server_cores)
        restart_s, rss_again = server.ready_s, server.rss_bytes()
        deep, shallow = _receive_rates(server, deep_url, rounds, timing, load_cores)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return Backlog(
        messages=filled.messages,
        fill_messages_per_s=filled.messages_per_s,
        rss_bytes=rss,
        rss_anon_bytes=anon,
        rss_after_restart_bytes=rss_again,
        restart_s=restart_s,
        restart_after_kill_s=after_kill_s,
        receive_deep_per_s=deep,
        receive_shallow_per_s=shallow,
    )


def _receive_rates(
    server: Server, deep_url: str, rounds: int, timing: Timing, cores: set[int]
) -> tuple[float, float]:
    """Alternating, so that a noisy minute hits both."""
    deep: list[Result] = []
    shallow: list[Result] = []
    for number in range(rounds):
        job = job_for(server, timing, cores, queue_url=deep_url, scenario="receive_delete")
        deep.append(run_load(job))
        shallow.append(
            scenarios.run(
                scenarios.SCENARIOS["receive_delete"],
                server,
                is_queue=True,
                timing=timing,
                cores=cores,
                serial=1_000 + number,
            )
        )
    return (
        statistics.median(result.messages_per_s for result in deep),
        statistics.median(result.messages_per_s for result in shallow),
    )
