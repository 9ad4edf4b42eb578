"""Servers of tests and benchmarks end with the process that started them, however it ends."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.children import end_with_parent

from penstock.metadata.etcd.links import aio

PARENT = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from benchmarks.server import Server
from tests.harness.children import end_with_parent
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
servers = []
def start():
    if sys.argv[1] == "benchmark":
        server = Server(SLEEP, env={}, cores=os.sched_getaffinity(0), folder=Path("/"))
    else:
        server = subprocess.Popen(SLEEP, preexec_fn=end_with_parent())
    servers.append(server)
if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
print(servers[0].pid, flush=True)
sys.stdin.read()
"""


def started(how: str) -> tuple[subprocess.Popen[str], int]:
    """A process that has started a child, and a descriptor of the child."""
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, os.pidfd_open(int(parent.stdout.readline()))


def has_ended(child: int, seconds: float) -> bool:
    ended = select.poll()  # select() takes no descriptor above 1,023
    ended.register(child, select.POLLIN)
    return bool(ended.poll(seconds * 1_000))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_of_a_benchmark_ends_with_it(number: signal.Signals) -> None:
    parent, child = started("benchmark")
    assert not has_ended(child, 0)
    parent.send_signal(number)
    parent.communicate()
    assert has_ended(child, 10)
    os.close(child)


def test_a_child_of_a_thread_outlives_the_thread() -> None:
    parent, child = started("thread")
    assert not has_ended(child, 0.5)
    signal.pidfd_send_signal(child, signal.SIGKILL)
    parent.communicate()
    os.close(child)


@pytest.mark.slow
async def test_a_child_of_a_process_that_calls_etcd_starts() -> None:
    """The handlers of forks that gRPC has would abort one child in 150."""

    async def call(port: int) -> None:
        names = ("grpc.initial_reconnect_backoff_ms", "grpc.max_reconnect_backoff_ms")
        options = [(name, 20) for name in names]
        async with aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            ask: Any = channel.unary_unary("/any/call")
            while True:
                with contextlib.suppress(aio.AioRpcError):
                    await ask(b"", timeout=0.05)

    calls = [asyncio.create_task(call(port)) for port in range(1, 5)]
    for _ in range(500):
        await asyncio.sleep(0.001)
        assert subprocess.run(["true"], preexec_fn=end_with_parent(), check=False).returncode == 0
    for each in calls:
        each.cancel()
    await asyncio.wait(calls)
