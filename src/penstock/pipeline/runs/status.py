"""The status of a job, in the file ``status.json`` of the job's folder, which the runner replaces
after every batch. A lock, which the kernel releases when the process ends, shows whether the runner
is alive, and prevents a second run with the same checkpoint."""

import fcntl
import os
import threading
from enum import StrEnum
from pathlib import Path

import msgspec

from penstock.pipeline.files import replacing

NAME = "status.json"
_LOCK = "lock"
_BYTES_MAX = 65_536
_CLAIM_TRIES = 5
_CLAIM_PAUSE_S = 0.05
ERROR_CHARACTERS_MAX = 2_000


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"  # waits before a retry
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    DEAD = "dead"  # never written: the runner ended without writing its last status


ENDED = frozenset({State.DONE, State.STOPPED, State.FAILED, State.DEAD})


class Kind(StrEnum):
    JOB = "job"
    REPORT = "report"
    VERIFY = "verify"
    CLUSTER = "cluster"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    state: State
    pid: int
    mode: str
    started_at_ms: int
    updated_at_ms: int
    restarts: int = 0
    batches: int = 0  # of this run
    last_batch: int | None = None  # its number in the checkpoint
    rows: int = 0  # of this run
    rows_per_s: float = 0.0
    lag: int | None = None  # records not read yet, if the source reports them
    error: str = ""
    kind: Kind = Kind.JOB


class JobRunning(Exception):
    def __init__(self, folder: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{holder} already runs this job on {folder}")
        self.pid = pid


class Claim:
    """The exclusive right to run a job in a folder. It ends with ``close`` or with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        pause = threading.Event()
        for _ in range(_CLAIM_TRIES):
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pause.wait(_CLAIM_PAUSE_S)  # `is_claimed` may hold the lock for a moment
            else:
                return
        os.close(self._handle)
        known = read_status(folder)
        raise JobRunning(folder, known.pid if known is not None else None)

    def close(self) -> None:
        os.close(self._handle)


def is_claimed(folder: Path) -> bool:
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def write_status(folder: Path, status: Status) -> None:
    with replacing(folder / NAME) as file:
        file.write(msgspec.json.encode(status))


def read_status(folder: Path) -> Status | None:
    """Return the last status. Its state is DEAD if the process ended unexpectedly."""
    try:
        with (folder / NAME).open("rb") as file:
            status = msgspec.json.decode(file.read(_BYTES_MAX), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
    if status.state not in ENDED and not is_claimed(folder):
        return msgspec.structs.replace(status, state=State.DEAD)
    return status


def statuses(root: Path) -> list[Status]:
    if not root.is_dir():
        return []
    found = (read_status(folder) for folder in sorted(root.iterdir()) if folder.is_dir())
    return [status for status in found if status is not None]
