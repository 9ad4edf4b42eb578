"""What more processes give a server, and what they cost: ``python -m benchmarks.workers``.

Single sends to one queue of four partitions, by clients in a process of their own, to a server
that is one process and to the same with ``--workers`` 1, 2 and so on, in turn, all in one run.
Nothing is synced, so that the disk does not hide the rest.

Rates say what this machine does, with the clients on it too: with as many cores as there are busy
processes they grow, with fewer they cannot. So two figures of processor time stand beside them,
which hold anywhere: what a send costs all server processes together (the price of workers: a send
that meets another worker than its partition's is passed on), and what it costs the busiest of them.
A core divided by the latter is what the server could do on a machine with a core for each; the last
column is that, against the single process.
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
    sends_per_s: float
    all_us: float  # of processor time for each send, of all server processes
    busiest_us: float  # of the one that had most
    load_share: float  # of a core that the clients took


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
    while True:
        counts = Counter(leaders(admin))
        spread = max(counts.values(), default=0) - min(counts.values(), default=0)
        if len(counts) == workers and spread < 2:
            return
        if time.monotonic() > until:
            raise SystemExit(f"partitions are not spread: {dict(counts)}")
        time.sleep(ASK_EVERY_S)


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


def measure(workers: int, *, window_s: float, connections: int) -> Measured:
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
            run_load(job)  # warm
            pids = processes(server)
            before = [proc.cpu_seconds(pid) for pid in pids]
            result = run_load(msgspec.structs.replace(job, window_s=window_s))
            used = [proc.cpu_seconds(pid) - at for pid, at in zip(pids, before, strict=True)]
        finally:
            server.stop()
    if result.faults:
        raise SystemExit(f"{result.faults} sends failed: {result.first_fault}")
    return Measured(
        workers,
        result.messages_per_s,
        sum(used) * 1e6 / result.requests,
        max(used) * 1e6 / result.requests,
        result.load_cpu_share,
    )


def show(rows: Sequence[Measured]) -> str:
    base = rows[0]
    columns = ["server", "sends/s here", "µs, all processes", "µs, the busiest", "clients' core"]
    columns.append("with a core for each")
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = "one process" if row.workers == SINGLE else f"--workers {row.workers}"
        lines.append(
            f"| {name} | {row.sends_per_s:,.0f} | {row.all_us:.0f} | {row.busiest_us:.0f}"
            f" | {row.load_share:.0%} | {base.busiest_us / row.busiest_us:.2f} x |"
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
    found: dict[int, list[Measured]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            found[kind].append(
                measure(kind, window_s=options.seconds, connections=options.connections)
            )
    print(f"{len(os.sched_getaffinity(0))} cores, the clients' included")
    print(show([middle(found[kind]) for kind in kinds]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
