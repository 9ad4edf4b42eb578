import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.proc import split_cores
from benchmarks.push import __doc__ as about
from benchmarks.push.adaptive import large_room, small_room
from benchmarks.push.bench import Bench
from benchmarks.push.client import Client
from benchmarks.push.endpoint import Endpoint
from benchmarks.push.memory import behind_breaker, idle
from benchmarks.push.peers import peers
from benchmarks.push.queues import fan_out, filters, found_at_once, publish_rate
from benchmarks.push.unsubscribed import unsubscribed
from benchmarks.push.webhooks import ends, isolation, latency, rate, replay
from benchmarks.server import Server
from penstock.net.http.client import HttpClient

FIGURES: Final[Sequence[Callable[[Bench], Coroutine[Any, Any, None]]]] = (
    publish_rate,
    found_at_once,
    filters,
    peers,
    rate,
    latency,
    isolation,
    small_room,
    large_room,
    fan_out,
    ends,
    idle,
    behind_breaker,
    replay,
    unsubscribed,
)
NAMES: Final = [figure.__name__ for figure in FIGURES]


async def measure(
    server: Server, endpoint: Endpoint, folder: Path, cores: set[int], given: Namespace
) -> bool:
    """Print the figures, and return whether all bars are met."""
    http = HttpClient()
    bench = Bench(
        http=http,
        client=Client(http, f"http://{server.host}:{server.port}", server.address_of("admin")),
        endpoint=endpoint,
        pid=server.pid,
        folder=folder,
        cores=cores,
        part=10 if given.quick else 1,
        is_synced=given.fsync == "always",
    )
    only = given.only.split(",") if given.only else NAMES
    try:
        for figure in FIGURES:
            if figure.__name__ in only:
                await figure(bench)
    finally:
        http.close()
    return not bench.missed


def main() -> int:
    parser = ArgumentParser(prog="python -m benchmarks.push", description=about)
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work")
    parser.add_argument("--fsync", default="never", choices=("never", "always"))
    parser.add_argument("--only", default="", help=f"figures, with commas: {', '.join(NAMES)}")
    given = parser.parse_args()
    server_cores, own_cores = split_cores()
    os.sched_setaffinity(0, own_cores)
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "penstock", "serve", "--data", f"{folder}/data"]
        command += ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--kafka", "off"]
        command += ["--fsync", given.fsync]
        endpoint = Endpoint(own_cores)
        server = Server(command, env={}, cores=server_cores, folder=Path.cwd())
        try:
            server.wait_for_line()
            is_met = uvloop.run(measure(server, endpoint, folder, server_cores, given))
        finally:
            server.stop()
            endpoint.close()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
