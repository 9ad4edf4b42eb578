"""Processes that must not outlive the test or benchmark that started them."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], None] | None:
    """Return a ``preexec_fn``: the kernel kills the child when this process ends, also by SIGKILL.

    Linux sends the signal when the thread that started the child ends. None for a child of any
    other thread than the main thread, which would be killed too early."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    parent, libc = os.getpid(), ctypes.CDLL(None)  # loaded before the fork

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return ask
