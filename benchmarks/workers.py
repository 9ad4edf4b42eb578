"""What more processes give a server, and what they cost: ``python -m benchmarks.workers``.

Single sends to one queue of four partitions, and single receives with their deletes from one that
was filled before, by clients in a process of their own, to a server that is one process and to the
same with ``--workers`` 1, 2 and so on, in turn, all in one run. Nothing is synced, so that the disk
does not hide the rest.

Rates say what this machine does, with the clients on it too: with as many cores as there are busy
processes they grow, with fewer they cannot. So figures of processor time stand beside them, which
hold anywhere: what a request costs all server processes together (the price of workers: what meets
another worker than its partition's is passed on), what it costs the busiest of them, and what it
costs the clients. A core divided by the second is what the server could do on a machine with a core
for each; the last column is that, against the single process. Where clients and servers together
need more than the cores there are, it is that and not the rate which tells of the server.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import proc
from benchmarks.load import Job
from benchmarks.scenarios import create_queue, run_load
from benchmarks.server import Server, free_port
from benchmarks.systems.penstock import PROGRAM

PARTITIONS: Final = 4
EVEN_S_MAX: Final = 60.0
ASK_EVERY_S: Final = 0.2
SINGLE: Final = 0  # workers of a server that is one process


class Measured(msgspec.Struct, frozen=True):
    workers: int
    scenario: str
    requests_per_s: float
    all_us: float  # of processor time for each request, of all server processes
    busiest_us: float  # of the one that had most
    client_us: float

    @property
    def cores(self) -> float:
        """That all of it together kept busy."""
        return self.requests_per_s * (self.all_us + self.client_us) / 1e6


def start(folder: Path, workers: int) -> Server:
    admin = free_port()
    command = [str(PROGRAM), "serve", "--data", str(folder / "data"), "--fsync", "never"]
    command += ["--http", "127.0.0.1:0", "--kafka", "off", "--admin", f"127.0.0.1:{admin}"]
    command += ["--partitions", str(PARTITIONS), "--log-level", "error"]
    if workers != SINGLE:
        command += ["--workers", str(workers)]
    server = Server(command, env={}, cores=os.sched_getaffinity(0), folder=folder)
    server.wait_for_line()
    if workers > 1:
        wait_even(admin, workers)
    return server


def wait_even(admin: int, workers: int) -> None:
    """Until each worker has its part: a queue made before that would be on some of them only."""
    until = time.monotonic() + EVEN_S_MAX
    while not is_even(admin, workers):
        if time.monotonic() > until:
            raise SystemExit(f"partitions are not spread: {dict(Counter(leaders(admin)))}")
        time.sleep(ASK_EVERY_S)


def is_even(admin: int, nodes: int) -> bool:
    """Whether each of so many nodes leads its part of all partitions."""
    counts = Counter(leaders(admin))
    return len(counts) == nodes and max(counts.values()) - min(counts.values()) < 2


def leaders(admin: int) -> Sequence[int]:
    url = f"http://127.0.0.1:{admin}/api/v1/cluster/partitions"
    with urllib.request.urlopen(url, timeout=10) as answer:
        told = json.loads(answer.read())
    return [one["leader"] for one in told["partitions"]]


def processes(server: Server) -> list[int]:
    """The server itself, and those that it has started."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [server.pid, *children]


def measure(workers: int, *, window_s: float, connections: int) -> list[Measured]:
    with tempfile.TemporaryDirectory() as name:
        server = start(Path(name), workers)
        try:
            job = Job(
                host=server.host,
                port=server.port,
                queue_url=create_queue(server, "workers"),
                scenario="send",
                connections=connections,
                warm_up_s=0.0,
                window_s=1.0,
            )
            run_load(job)  # warm, and there is something to receive
            found = [measure_one(server, workers, job, window_s)]
            fill = msgspec.structs.replace(job, scenario="send_batch", window_s=window_s / 2)
            run_load(fill)
            job = msgspec.structs.replace(job, scenario="receive_delete")
            run_load(msgspec.structs.replace(job, window_s=0.5))
            found.append(measure_one(server, workers, job, window_s))
        finally:
            server.stop()
    return found


def measure_one(server: Server, workers: int, job: Job, window_s: float) -> Measured:
    pids = processes(server)
    before = [proc.cpu_seconds(pid) for pid in pids]
    result = run_load(msgspec.structs.replace(job, window_s=window_s))
    used = [proc.cpu_seconds(pid) - at for pid, at in zip(pids, before, strict=True)]
    if result.faults:
        raise SystemExit(f"{result.faults} requests failed: {result.first_fault}")
    return Measured(
        workers,
        job.scenario,
        result.requests / result.seconds,
        sum(used) * 1e6 / result.requests,
        max(used) * 1e6 / result.requests,
        result.load_cpu_share * result.seconds * 1e6 / result.requests,
    )


def show(rows: Sequence[Measured]) -> str:
    base = rows[0]
    columns = ["server", "requests/s here", "µs, all processes", "µs, the busiest", "µs, clients"]
    columns += ["cores busy", "with a core for each"]
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        name = "one process" if row.workers == SINGLE else f"--workers {row.workers}"
        lines.append(
            f"| {name} | {row.requests_per_s:,.0f} ({row.requests_per_s / base.requests_per_s:.2f})"
            f" | {row.all_us:.0f} | {row.busiest_us:.0f} | {row.client_us:.0f} | {row.cores:.1f}"
            f" | {base.busiest_us / row.busiest_us:.2f} x |"
        )
    return "\n".join(lines)


def middle(rows: Sequence[Measured]) -> Measured:
    """The round whose busiest process took the middle time: whole, not a mix of several."""
    wanted = statistics.median_low(row.busiest_us for row in rows)
    return next(row for row in rows if row.busiest_us == wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    kinds = [SINGLE, *options.workers]
    found: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(options.rounds):
        for kind in kinds:
            for one in measure(kind, window_s=options.seconds, connections=options.connections):
                found.setdefault((one.scenario, kind), []).append(one)
    print(f"{len(os.sched_getaffinity(0))} cores, the clients' included")
    for scenario in dict.fromkeys(name for name, _ in found):
        print(f"\n{scenario}\n{show([middle(found[scenario, kind]) for kind in kinds])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
