"""Waiting for something another process will do and gives no signal for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(probe: Callable[[], T], *, seconds: float, what: str) -> T:
    """Ask until the answer is true, and give it; AssertionError when the deadline passes."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()  # never set: a wait that a reader of the code cannot mistake for work
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        pause.wait(0.02)
