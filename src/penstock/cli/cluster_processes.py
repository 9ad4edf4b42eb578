"""Starts, waits for and stops the processes of a cluster on this machine. Each process is addressed
by its pidfd, so that a signal never reaches another process that got the same pid.

The processes do not receive the terminal's Ctrl-C, because the order of stopping matters: nodes
deregister from etcd, so etcd stops last. Processes of a command in the foreground end with it, even
if it is killed; detached processes outlive their command and are recorded in the folder."""

import contextlib
import ctypes
import http.client
import os
import platform
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from penstock.cli.cluster_folder import UP, Folder, Known, Layout, started_at
from penstock.cli.failure import Failure

PR_SET_PDEATHSIG = 1
ASK_EVERY_S = 0.1  # interval of readiness checks
STOP_SECONDS_MAX = 30.0  # after SIGTERM, before SIGKILL
LAST_LINES = 3
ERROR_LINES = 20  # lines at the end of a log that are searched for an error


class Process:
    """A running process, started by this command or an earlier one."""

    def __init__(self, known: Known, child: "subprocess.Popen[bytes] | None" = None) -> None:
        """Raises ProcessLookupError if the process has ended."""
        self.known = known
        self.name = known.name
        self._child = child
        self.fd = os.pidfd_open(known.pid)
        if not known.is_alive and child is None:
            os.close(self.fd)
            raise ProcessLookupError(known.pid)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def ended(self) -> str:
        """Return how the process ended, as far as known; call it when the pidfd is readable."""
        os.close(self.fd)
        if self._child is None:
            return "ended"
        code = self._child.wait()
        return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"


def started(
    name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, stays: bool
) -> Process:
    """Start a process. ``stays``: it outlives this command."""
    libc = None if stays else ctypes.CDLL(None)  # loaded before the fork

    def end_with_parent() -> None:
        assert libc is not None
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    with log.open("ab") as out:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(env),
            start_new_session=True,
            preexec_fn=None if stays else end_with_parent,  # safe: this process has no threads
        )
    # The pid of a child is not reused before wait(), even if the child has ended.
    return Process(Known(name, child.pid, started_at(child.pid) or 0), child)


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def last_words(log: Path) -> str:
    return " | ".join(line.strip() for line in _lines(log)[-LAST_LINES:] if line.strip())


def why_ended(name: str, log: Path) -> Failure:
    """Return the last error of a process that did not start. Nodes write errors as commands do:
    error, why, do."""
    told: dict[str, str] = {}
    for line in _lines(log)[-ERROR_LINES:]:
        label, _, text = line.strip().partition(": ")
        if label == "error":
            told = {}
        if label in ("error", "why", "do"):
            told[label] = text
    if "error" not in told:
        return Failure(f"{name} did not start", last_words(log), f"see {log}")
    do = f"{told['do']}; its log: {log}" if "do" in told else f"see {log}"
    return Failure(f"{name} did not start: {told['error']}", told.get("why", ""), do)


# ── Commands and environments ────────────────────────────────────────────────────────────────


def etcd_command(program: str, layout: Layout, folder: Folder) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in layout.etcd_ports)
    options = {
        "name": "penstock",
        "data-dir": str(folder.path / "etcd"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"penstock={peer}",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
    }
    return [program, *(f"--{name}={value}" for name, value in options.items())]


def etcd_environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD")}
    if platform.machine() in ("aarch64", "arm64"):
        env["ETCD_UNSUPPORTED_ARCH"] = "arm64"  # etcd 3.4 refuses to start without it
    return env


def node_command(node: int, layout: Layout, folder: Folder) -> list[str]:
    ports = layout.ports(node)
    flags = {
        "node": str(node),
        "etcd": layout.etcd_places,
        "data": str(folder.path / f"n{node}"),
        "http": f"127.0.0.1:{ports.http}",
        "admin": f"127.0.0.1:{ports.admin}",
        "kafka": f"127.0.0.1:{ports.kafka}",
        "internal": f"127.0.0.1:{ports.internal}",
    }
    command = [sys.executable, "-m", "penstock", "serve"]
    return command + [part for name, value in flags.items() for part in (f"--{name}", value)]


def node_environment(node: int, layout: Layout, folder: Folder) -> dict[str, str]:
    """Return the environment of a node; the caller's variables apply to all nodes."""
    return {
        "PENSTOCK_CLUSTER__REPLICAS": str(min(3, layout.nodes)),
        "PENSTOCK_CLUSTER__IN_SYNC_MIN": str(min(2, layout.nodes)),
        **os.environ,
        "PENSTOCK_NODE__NAME": f"n{node}",
        "PENSTOCK_INTERNAL__CLUSTER": layout.name,
        "PENSTOCK_KEYS__MASTER_FILE": str(folder.master_file),
    }


def is_well(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────


class Told:
    """A context manager that turns Ctrl-C, SIGTERM and a closed terminal into a readable ``fd``, to
    be polled together with the pidfds of processes."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> "Told":
        self.fd, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._hear) for number in self.NUMBERS}
        return self

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # full: unread signals are pending
            os.write(self._writing, b"!")

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self.fd)
        os.close(self._writing)

    def forget(self) -> None:
        os.read(self.fd, 1)


def happened(fds: Sequence[int], *, seconds: float | None) -> set[int]:
    """Return the descriptors that are readable, after at most ``seconds``."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return {fd for fd, _ in waiting.poll(None if seconds is None else int(seconds * 1_000))}


def end_all(processes: Sequence[Process], told: Told) -> Iterator[str]:
    """Stop the processes one after the other and yield a line for each. After another stop signal,
    or if a process takes too long, they are killed."""
    is_hurried = False
    for process in processes:
        process.send(signal.SIGKILL if is_hurried else signal.SIGTERM)
        # A command in the foreground stops all of its processes itself.
        seconds = STOP_SECONDS_MAX * (len(processes) if process.name == UP else 1)
        while process.fd not in (said := happened([told.fd, process.fd], seconds=seconds)):
            if told.fd in said:
                told.forget()
                is_hurried = True
            yield f"{process.name} has to end now"
            process.send(signal.SIGKILL)
        process.ended()
        yield f"{process.name} has stopped"


class GivenUp(Failure):
    """A stop signal arrived while we waited."""


def stop_starting() -> NoReturn:
    raise GivenUp("stopped before everything was ready")


def wait_well(
    process: Process, port: int, path: str, *, log: Path, seconds: float, told: Told
) -> None:
    """Wait until the process is healthy. Raises Failure if it ends or is not healthy in time."""
    for _ in range(int(seconds / ASK_EVERY_S)):
        if is_well(port, path):
            return
        said = happened([told.fd, process.fd], seconds=ASK_EVERY_S)
        if told.fd in said:
            stop_starting()
        if process.fd in said:
            raise why_ended(process.name, log)
    raise Failure(f"{process.name} is not ready after {seconds:g} s", last_words(log), f"see {log}")
