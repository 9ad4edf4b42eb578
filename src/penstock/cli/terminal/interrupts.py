"""Delays Ctrl-C until a safe moment.

An interrupt after reading input but before the server's reply, or after printing a record but
before committing it, would leave the user guessing. Within ``held`` the first Ctrl-C takes effect
when the step is done; a second one takes effect at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupts:
    """Use it so: ``with Interrupts() as interrupts: ... with interrupts.held(): ...``"""

    def __init__(self) -> None:
        self._is_held = False
        self._is_asked = False
        self._before: Any = None
        # Only the main thread receives signals; in other threads this class does nothing.
        self._is_listening = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupts":
        if self._is_listening:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_listening:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_held or self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_asked:
            raise KeyboardInterrupt
