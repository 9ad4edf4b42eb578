"""``python benchmarks/counting.py serve …``: ``penstock serve`` that can count its Python calls and
opcodes. Unlike processor time, these counts are the same on a busy machine.

SIGUSR1 starts the count. SIGUSR2 ends it and prints ``counted CALLS OPCODES``."""

import runpy
import signal
import sys
from types import FrameType
from typing import Any


class Counter:
    def __init__(self) -> None:
        self._calls = self._opcodes = 0

    def start(self, *_signal: object) -> None:
        self._calls = self._opcodes = 0
        sys.settrace(self._trace)

    def stop(self, *_signal: object) -> None:
        sys.settrace(None)
        print(f"counted {self._calls} {self._opcodes}", flush=True)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        """For ``sys.settrace``. A coroutine that continues after an await is a call too."""
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if event == "call":
            self._calls += 1
        elif event == "opcode":
            self._opcodes += 1
        return self._trace


if __name__ == "__main__":
    counter = Counter()
    signal.signal(signal.SIGUSR1, counter.start)
    signal.signal(signal.SIGUSR2, counter.stop)
    sys.path.pop(0)  # this folder, whose modules must not hide others
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)
