"""A server under test: started on a core of its own, known to be ready, ended for certain.

Ready is an event where the server says so on its output, and otherwise the first answer to a
request. Only processes started here are ever signalled.
"""

import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.children import end_with_parent

from benchmarks import proc

START_S_MAX = 180.0  # a JVM on a busy machine
STOP_S_MAX = 15.0
POLL_S = 0.02
OUTPUT_LINES_MAX = 40  # kept to explain a failed start


class NotAvailable(Exception):
    """This system cannot be had on this machine. The text is the reason, for the table."""


class Server:
    """A running process. ``ready_s`` is what it took from start to ready."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cores: set[int], folder: Path
    ) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.ready_s = 0.0
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES_MAX)
        self._ready = threading.Event()
        self._ready_line = ""
        self._started_at = time.perf_counter()
        own_cores = os.sched_getaffinity(0)
        # Threads inherit the cores of the process that starts them: set ours, start, set back.
        os.sched_setaffinity(0, cores)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                cwd=folder,
                start_new_session=True,
                preexec_fn=end_with_parent(),
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise NotAvailable(f"cannot start {command[0]}: {error.strerror}") from error
        finally:
            os.sched_setaffinity(0, own_cores)
        self._reader = threading.Thread(target=self._read_output, name="server output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_line(self, prefix: str = "ready", address: str = "http") -> None:
        """Until it prints a line that begins so and names its address: ``http=URL``, or, for
        another kind of address, ``kind=HOST:PORT``."""
        deadline = self._started_at + START_S_MAX
        while not self._ready.wait(POLL_S):
            self._check_alive(deadline)
        found = re.search(address + r"=(?:\w+://)?([^:/\s]+):(\d+)", self._ready_line)
        if not self._ready_line.startswith(prefix) or found is None:
            self.stop()
            raise NotAvailable(f"its ready line names no address: {self._ready_line[:120]}")
        self.host, self.port = found[1], int(found[2])

    def address_of(self, kind: str) -> str:
        """Return an address of the ready line, such as the URL behind ``admin=``."""
        found = re.search(rf"\b{kind}=(\S+)", self._ready_line)
        assert found is not None, self._ready_line
        return found[1]

    def wait_for_answer(self, port: int, path: str) -> None:
        """Until a request is answered, whatever the answer."""
        deadline = self._started_at + START_S_MAX
        self.port = port
        url = f"http://{self.host}:{port}{path}"
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except urllib.error.HTTPError as answer:
                answer.close()
                break
            except OSError:
                self._check_alive(deadline)
                self._ready.wait(POLL_S)
        self.ready_s = time.perf_counter() - self._started_at

    def wait_for_port(self, port: int) -> None:
        """Until it takes connections."""
        deadline = self._started_at + START_S_MAX
        self.port = port
        while True:
            try:
                socket.create_connection((self.host, port), timeout=5).close()
                break
            except OSError:
                self._check_alive(deadline)
                self._ready.wait(POLL_S)
        self.ready_s = time.perf_counter() - self._started_at

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for_output(self, prefix: str) -> str:
        """Return the next line that begins so. Raises NotAvailable."""
        deadline = time.perf_counter() + START_S_MAX
        while True:
            for line in list(self._output):
                if line.startswith(prefix):
                    self._output.remove(line)
                    return line
            self._check_alive(deadline)
            time.sleep(POLL_S)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, politely first. Its process group too: some servers have children."""
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(STOP_S_MAX)
        self._reader.join(STOP_S_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def rss_bytes(self) -> int:
        return proc.memory_bytes(self.pid)

    def _read_output(self) -> None:
        # Read to the end even when nobody cares: a full pipe would stop the server.
        assert self._process.stdout is not None, "started with a pipe"
        for line in self._process.stdout:
            self._output.append(line.rstrip())
            if line.startswith("ready") and not self._ready.is_set():
                self._ready_line = line
                self.ready_s = time.perf_counter() - self._started_at
                self._ready.set()

    def _check_alive(self, deadline: float) -> None:
        status = self._process.poll()
        if status is not None:
            self.stop()
            last = next((line for line in reversed(self._output) if line.strip()), "no output")
            raise NotAvailable(f"ended with status {status} at start: {last[:200]}")
        if time.perf_counter() > deadline:
            self.stop()
            raise NotAvailable(f"not ready after {START_S_MAX:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
