"""The processes of a cluster on this machine, and their commands. Each process is addressed by its
pidfd, so that a signal never reaches another process that got the same pid.

The processes do not receive the terminal's Ctrl-C, because the order of stopping matters: nodes
deregister from etcd, so etcd stops last. Processes of a command in the foreground end with it, even
if it is killed; detached processes outlive their command and are recorded in the folder."""

import contextlib
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

from penstock.cli.cluster.folder import ETCD, UP, Folder, Layout, ProcessId, started_at
from penstock.cli.terminal.failure import Failure
from penstock.net.child_process import start_child

CHECK_EVERY_S = 0.1  # interval of readiness checks
STOP_SECONDS_MAX = 30.0  # after SIGTERM, before SIGKILL
LAST_LINES = 3
ERROR_LINES = 20  # lines at the end of a log that are searched for an error


class Process:
    """A running process, started by this command or an earlier one."""

    def __init__(self, id_: ProcessId, child: "subprocess.Popen[bytes] | None" = None) -> None:
        """Raises ProcessLookupError if the process has ended."""
        self.id = id_
        self.name = id_.name
        self._child = child
        self.fd = os.pidfd_open(id_.pid)
        if not id_.is_alive and child is None:
            os.close(self.fd)
            raise ProcessLookupError(id_.pid)

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, detach: bool
    ) -> "Process":
        """Start a process. ``detach``: it outlives this command."""
        end = None if detach else signal.SIGTERM
        with log.open("ab") as out:
            child = start_child(
                command, env=env, end=end, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        # The pid of a child is not reused before wait(), even if the child has ended.
        return cls(ProcessId(name, child.pid, started_at(child.pid) or 0), child)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def ended(self) -> str:
        """Return how the process ended, as far as known; call it when the pidfd is readable."""
        os.close(self.fd)
        if self._child is None:
            return "ended"
        code = self._child.wait()
        return f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"


def in_stop_order(processes: Sequence[Process]) -> list[Process]:
    """Sort processes: first a command in the foreground, which stops its own; then the nodes, one
    by one, so that each can hand over to another; etcd last."""
    ranks = {UP: 0, ETCD: 2}
    return sorted(processes, key=lambda process: ranks.get(process.name, 1))


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
    listeners = layout.ports(node)._asdict()
    flags = {
        "node": str(node),
        "etcd": layout.etcd_addresses,
        "data": str(folder.path / f"n{node}"),
        **{name: f"127.0.0.1:{port}" for name, port in listeners.items()},
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


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────


class StopSignals:
    """A context manager that turns Ctrl-C, SIGTERM and a closed terminal into a readable ``fd``, to
    be polled together with the pidfds of processes."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> "StopSignals":
        self.fd, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._received) for number in self.NUMBERS}
        return self

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # full: unread signals are pending
            os.write(self._writing, b"!")

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self.fd)
        os.close(self._writing)

    def clear(self) -> None:
        os.read(self.fd, 1)


def wait_readable(fds: Sequence[int], *, seconds: float | None) -> set[int]:
    """Return the descriptors that are readable, after at most ``seconds``."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return {fd for fd, _ in waiting.poll(None if seconds is None else int(seconds * 1_000))}


def stop_all(processes: Sequence[Process], signals: StopSignals) -> Iterator[str]:
    """Stop the processes one after the other and yield a line for each. After another stop signal,
    or if a process takes too long, they are killed."""
    is_hurried = False
    for process in processes:
        process.send(signal.SIGKILL if is_hurried else signal.SIGTERM)
        # A command in the foreground stops all of its processes itself.
        seconds = STOP_SECONDS_MAX * (len(processes) if process.name == UP else 1)
        while process.fd not in (ready := wait_readable([signals.fd, process.fd], seconds=seconds)):
            if signals.fd in ready:
                signals.clear()
                is_hurried = True
            yield f"{process.name} is killed"
            process.send(signal.SIGKILL)
        process.ended()
        yield f"{process.name} has stopped"


class StartStopped(Failure):
    """A stop signal arrived before the cluster was ready."""

    def __init__(self) -> None:
        super().__init__("stopped before the cluster was ready")


def wait_healthy(
    process: Process, port: int, path: str, *, log: Path, seconds: float, signals: StopSignals
) -> None:
    """Wait until the process is healthy. Raises Failure if it ends or is not healthy in time."""
    for _ in range(int(seconds / CHECK_EVERY_S)):
        if _is_healthy(port, path):
            return
        ready = wait_readable([signals.fd, process.fd], seconds=CHECK_EVERY_S)
        if signals.fd in ready:
            raise StartStopped
        if process.fd in ready:
            raise _start_failure(process.name, log)
    what = f"{process.name} is not ready after {seconds:g} s"
    raise Failure(what, _last_lines(_lines(log)), f"see {log}")


def _is_healthy(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _last_lines(lines: Sequence[str]) -> str:
    return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())


def _start_failure(name: str, log: Path) -> Failure:
    """Return the last error of a process that did not start. Nodes write errors as commands do:
    error, why, do."""
    lines = _lines(log)
    found: dict[str, str] = {}
    for line in lines[-ERROR_LINES:]:
        label, _, text = line.strip().partition(": ")
        if label == "error":
            found = {}
        if label in ("error", "why", "do"):
            found[label] = text
    if "error" not in found:
        return Failure(f"{name} did not start", _last_lines(lines), f"see {log}")
    do = f"{found['do']}; log file: {log}" if "do" in found else f"see {log}"
    return Failure(f"{name} did not start: {found['error']}", found.get("why", ""), do)
