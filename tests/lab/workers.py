"""The processes that load the cluster, as the run sees them: started at the clients' place, counted
while they work, ended all at once, and each one's end looked at."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import msgspec
from tests.lab.network import Place

READY_SECONDS_MAX = 90.0
END_SECONDS_MAX = 800.0  # producers and consumers end, then queues are drained, however slowly


class WorkersFailed(AssertionError):
    """A process that loads the cluster ended by itself, or not at all."""


class WorkerProcess:
    def __init__(
        self, module: str, work: Any, place: Place, folder: Path, *, name: str = ""
    ) -> None:
        """``name``: other than its work's, where several do the same."""
        self.name = name or str(work.name)
        self.calls = 0
        self._log = folder / f"{self.name}.stderr"
        self._ready = threading.Event()
        with self._log.open("wb") as stderr:
            self._popen = subprocess.Popen(
                [*place.enter, sys.executable, "-m", module, msgspec.json.encode(work).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), daemon=True)
        self._reader.start()

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                word, _, rest = line.strip().partition(" ")
                if word == "ready":
                    self._ready.set()
                elif word == "calls":
                    self.calls = int(rest)
        self._ready.set()

    def wait_ready(self) -> None:
        if not self._ready.wait(READY_SECONDS_MAX) or self._popen.poll() is not None:
            raise WorkersFailed(f"{self.name} did not begin\n{self.last_words()}")

    def tell_end(self) -> None:
        assert self._popen.stdin is not None
        if self._popen.stdin.closed:
            return  # it was told, or killed
        try:
            self._popen.stdin.write("end\n")
            self._popen.stdin.close()
        except OSError:
            pass  # it has ended already; how, wait_end says

    def wait_end(self) -> None:
        try:
            code = self._popen.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise WorkersFailed(f"{self.name} did not end\n{self.last_words()}") from None
        if code != 0:
            raise WorkersFailed(f"{self.name} ended with {code}\n{self.last_words()}")

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            self._popen.send_signal(number)

    def kill(self) -> None:
        if self.is_running:
            self._popen.kill()
            self._popen.wait(10)
        if self._popen.stdin is not None and not self._popen.stdin.closed:
            self._popen.stdin.close()
        self._reader.join(10)

    def last_words(self) -> str:
        return self._log.read_text("utf-8", "replace")[-4_000:]


class Workers:
    """All of them."""

    def __init__(self) -> None:
        self._all: list[WorkerProcess] = []
        self._pause = threading.Event()  # never set

    def add(self, worker: WorkerProcess) -> None:
        self._all.append(worker)

    def wait_ready(self) -> None:
        for worker in self._all:
            worker.wait_ready()

    @property
    def calls(self) -> int:
        return sum(worker.calls for worker in self._all)

    def wait_calls(self, more: int, *, seconds: float) -> bool:
        """Whether every process had this many more answered in time."""
        goals = [(worker, worker.calls + more) for worker in self._all]
        for _ in range(int(seconds / 0.1)):
            if all(worker.calls >= goal for worker, goal in goals):
                return True
            self.check()
            self._pause.wait(0.1)
        return False

    def check(self) -> None:
        """Raises WorkersFailed when one is gone."""
        for worker in self._all:
            if not worker.is_running:
                raise WorkersFailed(f"{worker.name} is gone\n{worker.last_words()}")

    def end(self) -> None:
        for worker in self._all:
            worker.tell_end()
        for worker in self._all:
            worker.wait_end()

    def close(self) -> None:
        for worker in self._all:
            worker.kill()
