"""The folder and the processes of a cluster that runs on one machine.

    cluster.json   ports of nodes and of etcd, the cluster's name
    master.key     the master key of all nodes, readable by its owner only
    running.json   processes that were started and may still run
    lock           held by the command that starts the processes
    etcd/ n1/ n2/  data
    logs/          output of each process

A process is identified by its pid, its start time and the boot id of the machine, so that a later
process with the same pid is not mistaken for it. The processes do not receive the terminal's
Ctrl-C, because the order of stopping matters: nodes deregister from etcd, so etcd stops last.
If ``up`` runs in the foreground, the processes end with it; ``--detach`` lets them continue."""

import base64
import contextlib
import fcntl
import http.client
import os
import platform
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from penstock.cli.terminal.failure import Conflict, Failure, NotFound
from penstock.net.child_process import start_child

PORT_BASE_DEFAULT = 9324  # port of the first node, and of the default endpoint
PORTS_PER_NODE = 10
BASES_MAX = 20  # base ports to try if none is given
BASE_STEP = 100
NODES_MAX = 9
UP = "up"  # the `up` command, if it stays in the foreground
ETCD = "etcd"

CHECK_EVERY_S = 0.1  # interval of readiness checks
STOP_SECONDS_MAX = 30.0  # after SIGTERM, before SIGKILL
LAST_LINES = 3
ERROR_LINES = 20  # lines at the end of a log that are searched for an error

T = TypeVar("T")


class Ports(NamedTuple):
    http: int
    admin: int
    kafka: int
    internal: int


class Layout(msgspec.Struct, frozen=True):
    name: str  # of the cluster, because one etcd may serve several clusters
    base: Annotated[int, msgspec.Meta(gt=0, lt=65_536)]
    nodes: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)]
    etcd: str  # address of an existing etcd; empty: start one

    def ports(self, node: int) -> Ports:
        first = self.base + (node - 1) * PORTS_PER_NODE
        return Ports(first, first + 1, first + 2, first + 3)

    @property
    def etcd_ports(self) -> tuple[int, int]:
        return self.base + 4, self.base + 5

    def all_ports(self, *, nodes: Iterable[int], with_etcd: bool) -> list[int]:
        found = [port for node in nodes for port in self.ports(node)]
        return [*found, *self.etcd_ports] if with_etcd and not self.etcd else found


class ProcessId(NamedTuple):
    name: str  # ETCD, UP or "n1", "n2", …
    pid: int
    started: int  # in kernel ticks since boot

    @property
    def is_alive(self) -> bool:
        return started_at(self.pid) == self.started


class _Running(msgspec.Struct):
    boot: str
    processes: Sequence[ProcessId]


def started_at(pid: int) -> int | None:
    """Return the start time of a process in kernel ticks, or None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before the bracket may contain blanks
    return None if fields[0] in "ZX" else int(fields[19])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.master_file = self.path / "master.key"
        self._layout_file = self.path / "cluster.json"
        self._running_file = self.path / "running.json"
        self._lock: int | None = None

    @property
    def is_there(self) -> bool:
        return self._layout_file.exists()

    def layout(self) -> Layout:
        return self._read(self._layout_file, Layout)

    def prepare(self, *, nodes: int | None, base: int | None, etcd: str | None) -> Layout:
        """Create the files of a new cluster, or add nodes to the existing cluster in the folder."""
        if not self.is_there:
            count = nodes or 3
            chosen = _free_base(count, etcd or "") if base is None else base
            layout = Layout(f"local-{os.urandom(4).hex()}", chosen, count, etcd or "")
        else:
            kept = self.layout()
            why = ""
            if nodes is not None and nodes < kept.nodes:
                why = f"it has {kept.nodes} nodes, and nodes cannot be removed"
                option = "--nodes"
            elif base is not None and base != kept.base:
                why, option = f"its ports begin at {kept.base}", "--port-base"
            elif etcd is not None and etcd != kept.etcd:
                why, option = f"it uses {kept.etcd or 'its own etcd'}", "--etcd"
            if why:
                what = f"the options do not match the cluster in {self.path}"
                raise Conflict(what, why, f"omit {option}, or use another --data DIR")
            layout = msgspec.structs.replace(kept, nodes=nodes or kept.nodes)
        if layout.ports(layout.nodes).internal > 65_535:
            raise Failure("--port-base is too high", f"ports from {layout.base} would exceed 65535")
        self._write(self._layout_file, layout)
        if not self.master_file.exists():
            self.master_file.touch(mode=0o600)
            self.master_file.write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
        self.logs.mkdir(exist_ok=True)
        return layout

    def lock(self) -> None:
        """Lock the folder until this process ends. Raises Conflict if it is already locked."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fix = f"stop it with `penstock cluster down --data {self.path}`"
            raise Conflict(f"the cluster in {self.path} is already running", fix=fix) from None

    def running(self) -> list[ProcessId]:
        if not self._running_file.exists():
            return []
        kept = self._read(self._running_file, _Running)
        return [one for one in kept.processes if one.is_alive] if kept.boot == _boot() else []

    def record(self, processes: Sequence[ProcessId]) -> None:
        self._write(self._running_file, _Running(_boot(), processes))

    def _read(self, file: Path, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except FileNotFoundError:
            raise NotFound(
                f"there is no cluster in {self.path}",
                f"the folder has no {file.name}",
                "start one with `penstock cluster up`, or give the folder of one with --data DIR",
            ) from None
        except msgspec.DecodeError:
            fix = "restore the file, or use another --data DIR"
            raise Failure(f"{file} cannot be read", "its JSON is not valid", fix) from None

    def _write(self, file: Path, value: Any) -> None:
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
        new.replace(file)


def port_in_use(ports: Iterable[int]) -> int | None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return port
    return None


def _free_base(nodes: int, etcd: str) -> int:
    for step in range(BASES_MAX):
        layout = Layout("", PORT_BASE_DEFAULT + step * BASE_STEP, nodes, etcd)
        if port_in_use(layout.all_ports(nodes=range(1, nodes + 1), with_etcd=True)) is None:
            return layout.base
    raise Failure("no free port range was found", fix="choose the first port with --port-base N")


class Process:
    def __init__(self, id_: ProcessId, child: "subprocess.Popen[bytes] | None" = None) -> None:
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
        """Return how the process ended, such as "was killed by signal 9". Call this only once."""
        os.close(self.fd)
        if self._child is None:
            return "ended"
        code = self._child.wait()
        return f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"


def in_stop_order(processes: Sequence[Process]) -> list[Process]:
    ranks = {UP: 0, ETCD: 2}
    return sorted(processes, key=lambda process: ranks.get(process.name, 1))


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
        "etcd": layout.etcd or f"127.0.0.1:{layout.etcd_ports[0]}",
        "data": str(folder.path / f"n{node}"),
        **{name: f"127.0.0.1:{port}" for name, port in listeners.items()},
    }
    command = [sys.executable, "-m", "penstock", "serve"]
    return command + [part for name, value in flags.items() for part in (f"--{name}", value)]


def node_environment(node: int, layout: Layout, folder: Folder) -> dict[str, str]:
    return {
        "PENSTOCK_CLUSTER__REPLICAS": str(min(3, layout.nodes)),
        "PENSTOCK_CLUSTER__IN_SYNC_MIN": str(min(2, layout.nodes)),
        **os.environ,
        "PENSTOCK_NODE__NAME": f"n{node}",
        "PENSTOCK_INTERNAL__CLUSTER": layout.name,
        "PENSTOCK_KEYS__MASTER_FILE": str(folder.master_file),
    }


class StopSignals:
    """A handler of Ctrl-C, SIGTERM and a closed terminal. Each makes ``fd`` readable."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> "StopSignals":
        self.fd, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._received) for number in self.NUMBERS}
        return self

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of unread signals
            os.write(self._writing, b"!")

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self.fd)
        os.close(self._writing)

    def clear(self) -> None:
        os.read(self.fd, 1)


def wait_readable(fds: Sequence[int], *, seconds: float | None) -> set[int]:
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return {fd for fd, _ in waiting.poll(None if seconds is None else int(seconds * 1_000))}


def stop_all(processes: Sequence[Process], signals: StopSignals) -> Iterator[str]:
    """Stop the processes one by one, and yield progress messages. A process is killed if it is
    still running after 30 seconds. A stop signal kills all remaining processes at once."""
    is_hurried = False
    for process in processes:
        process.send(signal.SIGKILL if is_hurried else signal.SIGTERM)
        # A command in the foreground stops all of its processes itself.
        seconds = STOP_SECONDS_MAX * (len(processes) if process.name == UP else 1)
        while process.fd not in (ready := wait_readable([signals.fd, process.fd], seconds=seconds)):
            if signals.fd in ready:
                signals.clear()
                is_hurried = True
            yield f"killing {process.name}"
            process.send(signal.SIGKILL)
        process.ended()
        yield f"{process.name} has stopped"


class StartStopped(Failure):
    pass


def wait_healthy(
    process: Process, port: int, path: str, *, log: Path, seconds: float, signals: StopSignals
) -> None:
    for _ in range(int(seconds / CHECK_EVERY_S)):
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as there,
        ):
            there.request("GET", path)
            if there.getresponse().status == 200:
                return
        ready = wait_readable([signals.fd, process.fd], seconds=CHECK_EVERY_S)
        if signals.fd in ready:
            raise StartStopped("the start was stopped before the cluster was ready")
        if process.fd in ready:
            raise _failure(f"{process.name} did not start", log, has_ended=True)
    raise _failure(f"{process.name} is not ready after {seconds:g} s", log, has_ended=False)


def _failure(what: str, log: Path, *, has_ended: bool) -> Failure:
    """Return a Failure with the last error in the log file, or with the last lines of the file."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = log.read_text("utf-8", "replace").splitlines()
    found: dict[str, str] = {}
    for line in lines[-ERROR_LINES:] if has_ended else ():
        label, _, text = line.strip().partition(": ")
        if label == "error":
            found = {}
        if label in ("error", "why", "do"):
            found[label] = text
    if "error" not in found:
        last = " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())
        return Failure(what, last, f"see {log}")
    do = f"{found['do']}; log file: {log}" if "do" in found else f"see {log}"
    return Failure(f"{what}: {found['error']}", found.get("why", ""), do)
