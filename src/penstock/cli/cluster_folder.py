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
import json
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.failure import ExitCode, Failure

PORT_BASE_DEFAULT = 9324  # of the first node: the default endpoint of commands
PORTS_PER_NODE = 10
BASES_MAX = 20  # base ports to try when none was named
BASE_STEP = 100
NODES_MAX = 9
UP = "up"  # the `up` command itself, when it stays in the foreground
ETCD = "etcd"


class Ports(NamedTuple):
    http: int
    admin: int
    kafka: int
    internal: int


class Layout(NamedTuple):
    """What one ``up`` keeps for the next."""

    name: str  # of the cluster: one etcd may serve several
    base: int
    nodes: int
    etcd: str  # address of an existing etcd; empty: start one

    def ports(self, node: int) -> Ports:
        first = self.base + (node - 1) * PORTS_PER_NODE
        return Ports(first, first + 1, first + 2, first + 3)

    @property
    def etcd_ports(self) -> tuple[int, int]:
        """Ports for clients and for peers, between the first node's ports and the second's."""
        return self.base + 4, self.base + 5

    @property
    def etcd_places(self) -> str:
        return self.etcd or f"127.0.0.1:{self.etcd_ports[0]}"

    def all_ports(self, *, nodes: Iterable[int], with_etcd: bool) -> list[int]:
        found = [port for node in nodes for port in self.ports(node)]
        return [*found, *self.etcd_ports] if with_etcd and not self.etcd else found


class Known(NamedTuple):
    """A process as recorded in ``running.json``."""

    name: str  # ETCD, UP or "n1", "n2", …
    pid: int
    started: int  # in kernel ticks since boot

    @property
    def is_alive(self) -> bool:
        return started_at(self.pid) == self.started


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

    # ── Layout ───────────────────────────────────────────────────────────────────────────────

    def layout(self) -> Layout:
        kept = self._read(self._layout_file)
        try:
            layout = Layout(
                str(kept["name"]), int(kept["base"]), int(kept["nodes"]), str(kept["etcd"])
            )
            if 1 <= layout.nodes <= NODES_MAX and 0 < layout.base < 65_536:
                return layout
        except (KeyError, TypeError, ValueError):
            pass
        raise _unreadable(self._layout_file)

    def settle(self, *, nodes: int | None, base: int | None, etcd: str | None) -> Layout:
        """Return the layout of a new cluster, or the kept one with more nodes. Raises Failure if
        the options contradict the kept layout."""
        if not self.is_there:
            count = nodes or 3
            chosen = _free_base(count, etcd or "") if base is None else base
            layout = Layout(f"local-{os.urandom(4).hex()}", chosen, count, etcd or "")
        else:
            kept = self.layout()
            _check_kept(kept, nodes=nodes, base=base, etcd=etcd, folder=self.path)
            layout = kept._replace(nodes=nodes or kept.nodes)
        if layout.ports(layout.nodes).internal > 65_535:
            raise Failure("there are no such ports", f"{layout.base} is too high")
        self._write(self._layout_file, layout._asdict())
        self._make_key()
        self.logs.mkdir(exist_ok=True)
        return layout

    def _make_key(self) -> None:
        try:
            fd = os.open(self.master_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        with os.fdopen(fd, "wb") as file:
            file.write(base64.b64encode(os.urandom(32)) + b"\n")

    # ── Processes ────────────────────────────────────────────────────────────────────────────

    def take(self) -> None:
        """Lock the folder until this process ends. Raises Failure if another command holds it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _runs_already(self.path) from None

    def running(self) -> list[Known]:
        """Return the recorded processes that are still alive."""
        if not self._running_file.exists():
            return []
        kept = self._read(self._running_file)
        try:
            if kept["boot"] != _boot():
                return []
            found = [Known(str(n), int(p), int(s)) for n, p, s in kept["processes"]]
        except (KeyError, TypeError, ValueError):
            raise _unreadable(self._running_file) from None
        return [one for one in found if one.is_alive]

    def note(self, processes: Sequence[Known]) -> None:
        self._write(self._running_file, {"boot": _boot(), "processes": processes})

    # ── Files ────────────────────────────────────────────────────────────────────────────────

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            kept = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            raise Failure(
                f"there is no cluster in {self.path}",
                f"it has no {file.name}",
                "start one with `penstock cluster up`, or name its folder with --data DIR",
                exit_code=ExitCode.NOT_FOUND,
            ) from None
        except ValueError:
            raise _unreadable(file) from None
        if not isinstance(kept, dict):
            raise _unreadable(file)
        return kept

    def _write(self, file: Path, value: dict[str, Any]) -> None:
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
        new.replace(file)


def _check_kept(
    kept: Layout, *, nodes: int | None, base: int | None, etcd: str | None, folder: Path
) -> None:
    why = fix = ""
    if nodes is not None and nodes < kept.nodes:
        why = f"it has {kept.nodes} nodes, and messages on all of them"
        fix = "leave --nodes out"
    elif base is not None and base != kept.base:
        why, fix = f"its ports begin at {kept.base}", "leave --port-base out"
    elif etcd is not None and etcd != kept.etcd:
        why, fix = f"it is kept in {kept.etcd or 'an etcd of its own'}", "leave --etcd out"
    if why:
        what = f"the cluster in {folder} is another one"
        raise Failure(what, why, f"{fix}, or take another --data", exit_code=ExitCode.CONFLICT)


def _runs_already(folder: Path) -> Failure:
    return Failure(
        f"the cluster in {folder} runs already",
        fix=f"stop it with `penstock cluster down --data {folder}`",
        exit_code=ExitCode.CONFLICT,
    )


def _unreadable(file: Path) -> Failure:
    return Failure(
        f"{file} cannot be read",
        "it is not as `penstock cluster up` writes it",
        "put it back, or take another --data",
    )


# ── Ports ────────────────────────────────────────────────────────────────────────────────────


def taken(ports: Iterable[int]) -> int | None:
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
    for turn in range(BASES_MAX):
        layout = Layout("", PORT_BASE_DEFAULT + turn * BASE_STEP, nodes, etcd)
        if taken(layout.all_ports(nodes=range(1, nodes + 1), with_etcd=True)) is None:
            return layout.base
    raise Failure("there are too few free ports", fix="name where they begin: --port-base N")
