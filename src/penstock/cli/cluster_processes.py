"""Processes of a cluster on this machine: started, waited for, ended; each by its own descriptor,
so that no other process is ever meant.

They do not share the terminal's Ctrl-C: the order in which they end matters, nodes before the etcd
that they take leave of. Those that belong to a command in the foreground end with it, even if it is
killed; those that were started to stay are on their own, and written down.
"""

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
ASK_EVERY_S = 0.1  # whether somebody is ready
STOP_SECONDS_MAX = 30.0  # for one that was asked to end, before it is made to
LAST_LINES = 3
ERROR_LINES = 20  # at the end of a log, in which an error is looked for


class Process:
    """One that runs, ours or another command's."""

    def __init__(self, known: Known, child: "subprocess.Popen[bytes] | None" = None) -> None:
        """Raises ProcessLookupError if it has ended."""
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
        """How, as far as we may know; once its descriptor says so."""
        os.close(self.fd)
        if self._child is None:
            return "ended"
        code = self._child.wait()
        return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"


def started(
    name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, stays: bool
) -> Process:
    """``stays``: it lives on when this command ends."""
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
            preexec_fn=None if stays else end_with_parent,  # there are no threads here
        )
    # As long as it is our child its number cannot be another's, dead or alive.
    return Process(Known(name, child.pid, started_at(child.pid) or 0), child)


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def last_words(log: Path) -> str:
    return " | ".join(line.strip() for line in _lines(log)[-LAST_LINES:] if line.strip())


def why_ended(name: str, log: Path) -> Failure:
    """Return the last error of a process that did not start, which a node writes as a command
    does: error, why, do."""
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


# ── What is started ──────────────────────────────────────────────────────────────────────────


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
        env["ETCD_UNSUPPORTED_ARCH"] = "arm64"  # version 3.4 wants to hear that
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
    """With settings of the caller's for all nodes, such as PENSTOCK_LOG__FSYNC."""
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
    """``with Told() as told: ...``: Ctrl-C, SIGTERM and a closed terminal become something to be
    waited for beside the ends of processes."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> "Told":
        self.fd, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._hear) for number in self.NUMBERS}
        return self

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it has been told often enough
            os.write(self._writing, b"!")

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self.fd)
        os.close(self._writing)

    def forget(self) -> None:
        os.read(self.fd, 1)


def happened(fds: Sequence[int], *, seconds: float | None) -> set[int]:
    """Which of them have something to say."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return {fd for fd, _ in waiting.poll(None if seconds is None else int(seconds * 1_000))}


def end_all(processes: Sequence[Process], told: Told) -> Iterator[str]:
    """Asks one after the other to end, and returns when all have: each end in a line. When that is
    said once more, or one takes too long, they are ended at once."""
    is_hurried = False
    for process in processes:
        process.send(signal.SIGKILL if is_hurried else signal.SIGTERM)
        # A command in the foreground ends all of the others.
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
    """Somebody said stop while we waited."""


def stop_starting() -> NoReturn:
    raise GivenUp("stopped before everything was ready")


def wait_well(
    process: Process, port: int, path: str, *, log: Path, seconds: float, told: Told
) -> None:
    """Until it answers there. Raises Failure when it ends instead."""
    for _ in range(int(seconds / ASK_EVERY_S)):
        if is_well(port, path):
            return
        said = happened([told.fd, process.fd], seconds=ASK_EVERY_S)
        if told.fd in said:
            stop_starting()
        if process.fd in said:
            raise why_ended(process.name, log)
    raise Failure(f"{process.name} is not ready after {seconds:g} s", last_words(log), f"see {log}")
