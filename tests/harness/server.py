"""A real ``penstock serve`` process under a test's control.

The tests around the product talk to the program a user starts, so this module starts exactly
that: the installed command (or a fork that does the same, ``forks``), a data folder, a port. It
waits for the ``ready`` line on stdout by reading the pipe and never by sleeping, keeps what the
server said on stderr so that a failed test can show it, and ends only processes it started itself,
by their id. Load and judgement live elsewhere (``ledger``, ``checker``)."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.harness.children import end_with_parent
from tests.harness.forks import Forked
from tests.harness.forks import penstock_command as penstock_command

READY_SECONDS_MAX = 120.0  # only a hang takes so long; on a busy machine 30 s were exceeded
STOP_SECONDS_MAX = 120.0  # as above
STDERR_LINES_MAX = 20_000  # a server that floods its log must not fill the test's memory

# Below the kernel's ephemeral range (32768 and up). A client that dials a dead server's port from
# within that range can be given the very same port as its own and connect to itself, and then the
# restarted server finds its address taken.
STABLE_PORTS = range(10_000, 32_000)
PORT_SLICES = 8  # processes that run tests side by side have one each, and so never the same port
PORT_STEP = 8  # a server that is given one port may take the next few as well
PORT_ROOM = 24  # at the end of a slice: three local nodes take so many behind the port of the first

_HTTP = re.compile(r"\bhttp=(https?://\S+)")
_ADMIN = re.compile(r"\badmin=(https?://\S+)")
_INTERNAL = re.compile(r"\binternal=(\S+:\d+)")
_KAFKA = re.compile(r"\bkafka=(\S+:\d+)")
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|Task exception was never retrieved"
    r"|Exception in callback|was never awaited|Fatal Python error|Unhandled exception"
)


class ServerFailed(AssertionError):
    """The server did not do what a server must; the text ends with what it said on stderr."""


def _port_wheel() -> Iterator[int]:
    """The ports of this process's slice, from a place of its own choice on, again and again."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    number = int(worker.removeprefix("gw")) % PORT_SLICES if worker else PORT_SLICES - 1
    size = len(STABLE_PORTS) // PORT_SLICES
    ours = STABLE_PORTS[number * size : (number + 1) * size - PORT_ROOM : PORT_STEP]
    start = random.Random(os.urandom(8)).randrange(len(ours))
    return itertools.cycle([*ours[start:], *ours[:start]])


_PORTS = _port_wheel()


def stable_port() -> int:
    """A free port that no outgoing connection will be given while the server is down."""
    for port in itertools.islice(_PORTS, len(STABLE_PORTS)):
        with socket.socket() as probe:
            # As servers do: connections of an earlier one that have ended are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed("no free port below the ephemeral range")


class _Process:
    """One run of the program: its pipes are drained by two threads until they end."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.ready_line: str | None = None
        self.told = threading.Event()  # ready, or stdout ended without it
        self.stdout: list[str] = []  # until it is ready
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES_MAX)
        self.popen = Forked(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            text=True,
            errors="replace",
            preexec_fn=end_with_parent(),
        )
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        self._threads = [
            threading.Thread(target=self._read_stdout, args=(self.popen.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(self.popen.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_stdout(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                if self.ready_line is None:
                    self.stdout.append(line)
                if line.startswith("ready") and self.ready_line is None:
                    self.ready_line = line
                    self.told.set()
        self.told.set()

    def _read_stderr(self, pipe: IO[str]) -> None:
        with pipe:
            self.stderr.extend(pipe)

    def wait(self, seconds: float) -> int:
        """Reap the process and both readers; the exit code as Popen gives it."""
        code = self.popen.wait(timeout=seconds)
        for thread in self._threads:
            thread.join(timeout=5)
        return code


class Server:
    """``with Server(tmp_path) as server: ...`` – started on entry, killed on exit if still up."""

    def __init__(
        self,
        data: Path,
        *,
        fsync: str = "always",
        partitions: int | None = None,
        port: int = 0,
        kafka_port: int | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.port = port or stable_port()
        # None: no Kafka listener is asked for
        self.kafka_port = kafka_port if kafka_port is None else kafka_port or stable_port()
        self.fsync = fsync
        self.partitions = partitions
        self.arguments = tuple(arguments)
        self.env = dict(env or {})
        self.url = ""
        self.admin_url = ""
        self.kafka = ""  # HOST:PORT
        self.internal = ""  # HOST:PORT, of a metadata node
        self.starts = 0
        self._process: _Process | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_MAX)  # of runs that have ended

    # ── life ─────────────────────────────────────────────────────────────────────────────────
    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(f"--- stderr of penstock ---\n{self.stderr_tail()}", file=sys.stderr)
        if self.is_running:
            self.kill()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.popen.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.popen.pid

    def command(self) -> list[str]:
        command = [penstock_command(), "serve", "--data", str(self.data)]
        command += ["--http", f"127.0.0.1:{self.port}", "--admin", "127.0.0.1:0"]
        command += ["--fsync", self.fsync]
        if self.partitions is not None:
            command += ["--partitions", str(self.partitions)]
        if self.kafka_port is not None:
            command += ["--kafka", f"127.0.0.1:{self.kafka_port}"]
        return [*command, *self.arguments]

    def start(self, *, seconds: float = READY_SECONDS_MAX) -> None:
        """Returns when the server has said ``ready``; on the same ports every time."""
        assert not self.is_running, "already running"
        process = _Process(self.command(), self._environment())
        self._process = process
        self.starts += 1
        told = process.told.wait(seconds)
        if process.ready_line is None:
            self.kill()
            reason = "ended before it was ready" if told else f"not ready in {seconds} s"
            raise ServerFailed(f"penstock serve {reason}\n{self.stderr_tail()}")
        http, admin = _HTTP.search(process.ready_line), _ADMIN.search(process.ready_line)
        internal = _INTERNAL.search(process.ready_line)
        self.internal = internal.group(1) if internal is not None else ""
        assert http is not None or internal is not None, f"no http= in {process.ready_line!r}"
        if http is not None:
            self.url = http.group(1).rstrip("/")
            self.port = int(self.url.rsplit(":", 1)[1])
        self.admin_url = admin.group(1).rstrip("/") if admin is not None else ""
        kafka = _KAFKA.search(process.ready_line)
        self.kafka = kafka.group(1) if kafka is not None else ""
        if self.kafka_port is not None:
            assert self.kafka, f"no kafka= in {process.ready_line!r}"
            self.kafka_port = int(self.kafka.rsplit(":", 1)[1])

    def _environment(self) -> dict[str, str]:
        """The caller's, without settings that a developer's shell may have left in it."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        return {**inherited, "PYTHONUNBUFFERED": "1", **self.env}

    def stop(self, *, seconds: float = STOP_SECONDS_MAX) -> int:
        """SIGTERM and the exit code, which must be 0 after a drain."""
        process = self._process
        assert process is not None, "the server was not started"
        if process.popen.poll() is None:
            process.popen.send_signal(signal.SIGTERM)
        try:
            return self._reap(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(
                f"penstock serve still ran {seconds} s after SIGTERM\n{self.stderr_tail()}"
            ) from None

    def freeze(self) -> None:
        """Run no more code of the server. System calls that it is in go on in the kernel. The main
        thread, which writes the replies, gets the signal, so no reply is sent from now on."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9: nothing in the process gets to say goodbye."""
        if self._process is not None:
            self._process.popen.kill()
            self._reap(STOP_SECONDS_MAX)

    def wait_exit(self, *, seconds: float) -> int:
        """For a test that makes the server end by other means than a signal."""
        return self._reap(seconds)

    def restart(self, *, seconds: float = READY_SECONDS_MAX) -> None:
        """Graceful stop, then a start on the same port and folder."""
        code = self.stop()
        if code != 0:
            raise ServerFailed(f"exit code {code} after SIGTERM\n{self.stderr_tail()}")
        self.start(seconds=seconds)

    def _reap(self, seconds: float) -> int:
        assert self._process is not None
        process = self._process
        code = process.wait(seconds)
        self._stderr.extend(process.stderr)
        process.stderr.clear()
        return code

    # ── what it says and uses ────────────────────────────────────────────────────────────────
    @property
    def stdout(self) -> str:
        """What the last run has printed before it was ready: the first key, above all."""
        assert self._process is not None, "the server was not started"
        return "".join(self._process.stdout)

    @property
    def stderr(self) -> str:
        """All that was written to stderr, over every run, oldest first."""
        now = list(self._process.stderr) if self._process is not None else []
        return "".join([*self._stderr, *now])

    def stderr_tail(self, lines: int = 60) -> str:
        return "\n".join(self.stderr.splitlines()[-lines:])

    def readyz(self) -> tuple[int, str]:
        """Status and text of the readiness check on the admin port."""
        return self._ask_admin("/readyz")

    def metrics(self, *, token: str = "") -> dict[str, float]:
        """Every series, by its name with its labels. ``token``: of an operator's log-in."""
        status, text = self._ask_admin("/metrics", token=token)
        assert status == HTTPStatus.OK, text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def _ask_admin(self, path: str, *, token: str = "") -> tuple[int, str]:
        host = self.admin_url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def assert_no_traceback(self) -> None:
        """The TRACE invariant: no unhandled exception in any run's log."""
        found = tracebacks(self.stderr)
        assert not found, f"TRACE: {len(found)} unhandled exceptions\n{found[0]}"

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1_024
        raise ServerFailed("the server has no memory: it has ended")


def tracebacks(log: str) -> list[str]:
    """Each unhandled exception in a log, with the lines around it."""
    lines = log.splitlines()
    return [
        "\n".join(lines[max(0, number - 2) : number + 40])
        for number, line in enumerate(lines)
        if _TRACEBACK.search(line)
    ]
