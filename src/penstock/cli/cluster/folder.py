"""The folder of a cluster that runs on one machine: what must stay the same at its next start, and
which processes run now.

    cluster.json   ports of nodes and of etcd, the cluster's name
    master.key     the key that all nodes share, readable by its owner only
    running.json   processes that were started and have not been seen to end
    lock           held by the command that starts the processes
    etcd/ n1/ n2/  data
    logs/          output of each process

A process is identified by its pid, its start time and the boot id of the machine, so that a later
process with the same pid is not mistaken for it."""

import base64
import fcntl
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from penstock.cli.terminal.failure import Conflict, Failure, NotFound

PORT_BASE_DEFAULT = 9324  # of the first node: the default endpoint of commands
PORTS_PER_NODE = 10
BASES_MAX = 20  # base ports to try when none was named
BASE_STEP = 100
NODES_MAX = 9
UP = "up"  # the `up` command itself, when it stays in the foreground
ETCD = "etcd"

T = TypeVar("T")


class Ports(NamedTuple):
    http: int
    admin: int
    kafka: int
    internal: int


class Layout(msgspec.Struct, frozen=True):
    """What one ``up`` keeps for the next."""

    name: str  # of the cluster: one etcd may serve several
    base: Annotated[int, msgspec.Meta(gt=0, lt=65_536)]
    nodes: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)]
    etcd: str  # address of an existing etcd; empty: start one

    def ports(self, node: int) -> Ports:
        first = self.base + (node - 1) * PORTS_PER_NODE
        return Ports(first, first + 1, first + 2, first + 3)

    @property
    def etcd_ports(self) -> tuple[int, int]:
        """Ports for clients and for peers, between the first node's ports and the second's."""
        return self.base + 4, self.base + 5

    @property
    def etcd_addresses(self) -> str:
        return self.etcd or f"127.0.0.1:{self.etcd_ports[0]}"

    def all_ports(self, *, nodes: Iterable[int], with_etcd: bool) -> list[int]:
        found = [port for node in nodes for port in self.ports(node)]
        return [*found, *self.etcd_ports] if with_etcd and not self.etcd else found


class ProcessId(NamedTuple):
    """A process as recorded in ``running.json``."""

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
    """Return None if there is no such process, or if it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the process name before it may contain blanks
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
        """Return the layout of a new cluster, or the kept one with more nodes. Raises Failure if
        the options contradict the kept layout."""
        if not self.is_there:
            count = nodes or 3
            chosen = _free_base(count, etcd or "") if base is None else base
            layout = Layout(f"local-{os.urandom(4).hex()}", chosen, count, etcd or "")
        else:
            kept = self.layout()
            self._check_options(kept, nodes=nodes, base=base, etcd=etcd)
            layout = msgspec.structs.replace(kept, nodes=nodes or kept.nodes)
        if layout.ports(layout.nodes).internal > 65_535:
            raise Failure("--port-base is too high", f"port {layout.base} leaves too few ports")
        self._write(self._layout_file, layout)
        if not self.master_file.exists():
            self.master_file.touch(mode=0o600)
            self.master_file.write_bytes(base64.b64encode(os.urandom(32)) + b"\n")
        self.logs.mkdir(exist_ok=True)
        return layout

    def _check_options(
        self, kept: Layout, *, nodes: int | None, base: int | None, etcd: str | None
    ) -> None:
        if nodes is not None and nodes < kept.nodes:
            why = f"it has {kept.nodes} nodes, and the number of nodes cannot shrink"
            option = "--nodes"
        elif base is not None and base != kept.base:
            why, option = f"its ports begin at {kept.base}", "--port-base"
        elif etcd is not None and etcd != kept.etcd:
            why, option = f"it uses {kept.etcd or 'its own etcd'}", "--etcd"
        else:
            return
        what = f"the options do not match the cluster in {self.path}"
        raise Conflict(what, why, f"omit {option}, or use another --data DIR")

    def lock(self) -> None:
        """Lock the folder until this process ends. Raises Failure if another command holds it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fix = f"stop it with `penstock cluster down --data {self.path}`"
            raise Conflict(f"the cluster in {self.path} is already running", fix=fix) from None

    def running(self) -> list[ProcessId]:
        """Return the recorded processes that are still alive."""
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
                f"no cluster in {self.path}",
                f"the folder has no {file.name}",
                "start one with `penstock cluster up`, or give its folder with --data DIR",
            ) from None
        except msgspec.DecodeError:
            fix = "restore the file, or use another --data DIR"
            raise Failure(f"{file} cannot be read", "its content is not valid", fix) from None

    def _write(self, file: Path, value: Any) -> None:
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
        new.replace(file)


def port_in_use(ports: Iterable[int]) -> int | None:
    """Return the first port that is in use, or None."""
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
    raise Failure("too few free ports", fix="choose the first port with --port-base N")
