"""Child processes that end when this process ends, even if this process is killed (Linux only)."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1


def start_child(
    command: Sequence[str], *, env: Mapping[str, str], end: signal.Signals | None, **streams: Any
) -> "subprocess.Popen[bytes]":
    """Start a child process that receives the signal ``end`` when this process ends."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # loaded before the fork

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(end or 0), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(1)

    preexec = end_with_parent if end is not None and sys.platform == "linux" else None
    return subprocess.Popen(  # noqa: S603 - commands of this program, without a shell
        command, env=env, start_new_session=True, preexec_fn=preexec, **streams
    )
