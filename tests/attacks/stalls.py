"""Measures how long one request keeps the event loop busy.

``LoopServer`` runs the node of ``penstock serve`` in a thread of this process, with real sockets.
``LoopServer.watch()`` runs a callback in every turn of the loop and records the CPU time of the
loop's thread between two runs: the length of a turn. After a turn without work the callback waits
for a millisecond, so that an idle loop takes no CPU time. CPU time hardly depends on other load on
the machine. A sampling thread records the stack of a long turn, for the message of a failed test.

``Bystander`` is another process that asks for ``/_penstock/health`` again and again; its longest
wait is what other tenants see. It is wall-clock time: for figures, not for assertions.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import uvloop
from botocore.credentials import Credentials
from tests.harness.server import Server

from penstock.metadata.security.identities import StoredIdentities
from penstock.node.compose import Node, make_node
from penstock.node.configuration import config as node_config
from penstock.node.lifecycle import GC_THRESHOLDS
from penstock.node.metadata.metadata_node import MetadataNode
from penstock.node.process import resources

TURN_MS_MAX = 20.0  # the rule: no request keeps the loop busy for longer
SAMPLED_AFTER_SECONDS = 0.010
SAMPLE_SECONDS = 0.004
IDLE_MS = 0.2  # a turn without work takes less
PAUSE_SECONDS = 0.001
START_SECONDS_MAX = 30.0
IDENTITIES_SECONDS_MAX = 120.0
STACK_LINES = 12
FULL = 2  # the oldest generation of the garbage collector


class Stalled(AssertionError):
    """A turn took too long. ``conftest.py`` repeats such a test: on a virtual machine the CPU time
    of a thread includes the time in which the host ran another machine, so one long turn proves
    little, while a request that stalls the loop does so every time."""

    def __init__(self, text: str, *, is_void: bool) -> None:
        """``is_void``: the host ran another machine meanwhile, so the figure says nothing."""
        super().__init__(text)
        self.is_void = is_void


def stolen_ms() -> int:
    """Return how long the host has run other machines on the processors of this one."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) * 1_000 // os.sysconf("SC_CLK_TCK")


def longest_pause_ms(seconds: float = 3.0) -> float:
    """Return the longest CPU time of a loop's round that does next to nothing. More than a few
    milliseconds mean that the host interrupts this machine without saying so in ``/proc/stat``."""
    longest = 0.0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        since = time.thread_time()
        sum(range(10_000))
        longest = max(longest, time.thread_time() - since)
    return longest * 1_000


class Turns:
    """The turns of a loop while it is watched."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        self.longest_ms = 0.0
        self.stolen_ms = 0  # while the loop was watched
        self.total_ms = 0.0  # of turns longer than a millisecond
        self.where = ""  # the stack of the longest turn that was sampled
        self._loop = loop
        self._ident = ident
        self._clock = time.pthread_getcpuclockid(ident)
        self._since = 0.0
        self._sampled = 0.0
        self._collecting_since = 0.0
        self._ended = threading.Event()
        self._is_over = False
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def begin(self) -> None:
        """Called in the loop's thread."""
        gc.callbacks.append(self._collected)
        self._stolen_before_ms = stolen_ms()
        self._since = time.thread_time()
        self._sampler.start()
        self._loop.call_soon(self._turn)

    def end(self) -> None:
        self._ended.set()
        self._sampler.join()
        self.stolen_ms = stolen_ms() - self._stolen_before_ms
        gc.callbacks.remove(self._collected)

    def check(self, ms_max: float = TURN_MS_MAX) -> None:
        where = f":\n{self.where}" if self.where else ""
        if self.longest_ms > ms_max:
            stolen = f" while the host took {self.stolen_ms} ms away" if self.stolen_ms else ""
            text = f"a turn took {self.longest_ms:.1f} ms{stolen}{where}"
            raise Stalled(text, is_void=self.stolen_ms > 0)

    def _turn(self) -> None:
        if self._is_over:
            return
        spent_ms = (time.thread_time() - self._since) * 1_000
        self.longest_ms = max(self.longest_ms, spent_ms)
        self.total_ms += spent_ms if spent_ms > 1 else 0
        if self._ended.is_set():
            self._is_over = True  # and the callback that waits records nothing
            return
        if spent_ms > IDLE_MS:
            self._loop.call_soon(self._turn)
        else:
            self._loop.call_later(PAUSE_SECONDS, self._turn)
        self._since = time.thread_time()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """A full collection looks at every object of the test process. It is no request's work, so
        its time is left out; younger generations count."""
        if info["generation"] < FULL or threading.get_ident() != self._ident:
            return
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._since += time.thread_time() - self._collecting_since

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            spent = time.clock_gettime(self._clock) - self._since
            frame = sys._current_frames().get(self._ident)
            if frame is not None and spent > max(SAMPLED_AFTER_SECONDS, self._sampled):
                self._sampled = spent
                self.where = "".join(traceback.format_stack(frame)[-STACK_LINES:])


class LoopServer(Server):
    """The node of ``penstock serve`` in a thread. ``root`` has credentials if authentication is on.
    One at a time in a process: the garbage collector is set as a server sets it."""

    def __init__(self, data: Path, *, is_auth_on: bool = False, **settings: object) -> None:
        super().__init__(data, kafka_port=0, fsync="never")
        self.root = Credentials("", "")
        self._flags = {
            "node.data": str(data),
            "http.listen": f"127.0.0.1:{self.port}",
            "kafka.listen": f"127.0.0.1:{self.kafka_port}",
            "admin.listen": "127.0.0.1:0",
            "log.fsync": self.fsync,
            "log.fsync_interval_ms": 60_000,  # no request's work
            "auth.mode": "on" if is_auth_on else "off",
            **settings,
        }
        self._thread = threading.Thread(target=self._serve, name="loop", daemon=True)
        self._told = threading.Event()  # ready, or failed to start
        self._failure: BaseException | None = None

    def __enter__(self) -> LoopServer:
        self.start()
        return self

    def start(self, *, seconds: float = START_SECONDS_MAX) -> None:
        self._thread.start()
        assert self._told.wait(seconds), f"not ready in {seconds} s"
        if self._failure is not None:
            raise self._failure

    def stop(self, *, seconds: float = START_SECONDS_MAX) -> int:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"still running {seconds} s after the request to stop"
        if self._failure is not None:
            raise self._failure
        return 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread.is_alive():
            self.stop()

    @contextmanager
    def watch(self) -> Iterator[Turns]:
        """Record the turns of the loop until the end of the block."""
        ident = self._thread.ident
        assert ident is not None
        turns = Turns(self.loop, ident)
        self._in_loop(turns.begin)
        try:
            yield turns
        finally:
            turns.end()
            self._in_loop(turns._turn)  # the last turn is recorded

    def finish_requests(self) -> None:
        """Wait for requests that are carried out although their clients have left."""

        async def finish() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            names = {task: getattr(task.get_coro(), "__qualname__", "") for task in tasks}
            handling = [task for task, name in names.items() if name == "Frontend.handle"]
            await asyncio.gather(*handling, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(finish(), self.loop).result(START_SECONDS_MAX)

    def change_identities(
        self, change: Callable[[StoredIdentities], Coroutine[Any, Any, None]]
    ) -> None:
        """Change identities without requests: a thousand requests take ten seconds of CPU time."""
        assert isinstance(self._node, Node)
        changing = change(self._node._security.identities)
        asyncio.run_coroutine_threadsafe(changing, self.loop).result(IDENTITIES_SECONDS_MAX)

    def _in_loop(self, call: object) -> None:
        done = threading.Event()

        def run() -> None:
            assert callable(call)
            call()
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(START_SECONDS_MAX), "the loop does not run"

    # ── In the thread ────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        thresholds = gc.get_threshold()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._run())
        except BaseException as error:
            self._failure = error
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            gc.collect()  # the node
            gc.freeze()  # as tests/conftest.py does
            self._told.set()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        resources.raise_limit()
        node = make_node(node_config.load(self._flags, {}))
        await node.start(self._stop)
        node.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._node = node
        self._learn(node)
        self._told.set()
        await self._stop.wait()
        await node.drain()

    def _learn(self, node: Node | MetadataNode) -> None:
        words = dict(word.split("=", 1) for word in node.ready_text.split())
        self.url, self.admin_url = words["http"].rstrip("/"), words["admin"].rstrip("/")
        self.kafka = words["kafka"]
        if node.root_key is not None:
            self.root = Credentials(node.root_key.key.key_id, node.root_key.secret)


_ASK = """
import http.client, sys, threading, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
longest = count = 0
while not ended.is_set() or not count:
    began = time.perf_counter()
    connection.request("GET", "/_penstock/health")
    connection.getresponse().read()
    longest, count = max(longest, time.perf_counter() - began), count + 1
    if count == 1:
        longest = 0
        print("asking", flush=True)
    time.sleep(0.001)
print(longest * 1000)
"""


class Bystander:
    """``with Bystander(port) as bystander``; after the block ``longest_ms`` is the longest wait."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.longest_ms = 0.0

    def __enter__(self) -> Bystander:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ASK, str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "asking\n"
        return self

    def __exit__(self, *_error: object) -> None:
        said, _ = self._process.communicate("", timeout=90)
        self.longest_ms = float(said)
