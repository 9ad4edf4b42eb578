"""The cluster under test: three nodes and three etcd members, each at a place of its own and each
node on a disk of its own where the machine allows it. Starts it, says who leads what, and keeps
what nodes said and did for the report. What is done to it is in ``faults``."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from types import TracebackType

from tests.harness import disk as disks
from tests.harness.disk import LoopDisk
from tests.harness.etcd import EtcdCluster
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command, stable_port
from tests.lab import network
from tests.lab.network import Loopback, Namespaces, Place, run_prefix
from tests.lab.rows import NAMESPACE, RowWatch

from penstock.model.limits import MIB

NODES = (1, 2, 3)
MEMBERS = 3
REPLICAS = 3
DISK_MIB = 512
LEASE_MS = 6_000  # after which a silent node is taken for dead: the default, and what DARK counts
SETTLE_SECONDS_MAX = 90.0
SCRUB_ROUNDS = "penstock_scrub_rounds_total"


class LabNode(Server):
    """``penstock serve`` at a place; its ports stay the same over restarts."""

    def __init__(
        self, number: int, place: Place, data: Path, etcd: tuple[str, ...], env: Mapping[str, str]
    ) -> None:
        super().__init__(
            data,
            port=stable_port(),
            kafka_port=stable_port(),
            env={
                "PENSTOCK_NODE__NAME": f"n{number}",
                # Damage that a fault has left is found within the run.
                "PENSTOCK_LOG__SCRUB_INTERVAL_MS": "2000",
                "PENSTOCK_LOG__SCRUB_BYTES_PER_SECOND": str(64 * MIB),
                **env,
            },
        )
        self.number = number
        self.place = place
        self._etcd = ",".join(etcd)
        self._internal_port = stable_port()
        self._admin_port = stable_port()

    def command(self) -> list[str]:
        host = self.place.address
        return [
            *self.place.enter,
            *(penstock_command(), "serve", "--data", str(self.data), "--fsync", self.fsync),
            *("--http", f"{host}:{self.port}", "--kafka", f"{host}:{self.kafka_port}"),
            *("--admin", f"{host}:{self._admin_port}"),
            *("--internal", f"{host}:{self._internal_port}"),
            *("--node", str(self.number), "--etcd", self._etcd, "--insecure", "--auth", "off"),
        ]


class LabCluster:
    """``with LabCluster(folder) as cluster: ...``: all are ready and see each other."""

    def __init__(self, folder: Path, *, with_disks: bool = True) -> None:
        self._folder = folder
        self._stack = ExitStack()
        lacking = network.unavailable()
        self.net: Namespaces | Loopback = Loopback(lacking) if lacking else Namespaces()
        self._stack.callback(self.net.close)
        self.disks_lacking = disks.unavailable() if with_disks else "not asked for"
        self.disks: dict[int, LoopDisk] = {}
        self.nodes: dict[int, LabNode] = {}
        self.etcd: EtcdCluster
        self.rows: RowWatch
        self.clients: Place
        self._last_number = max(NODES)
        self.former_logs: dict[int, str] = {}  # of nodes that are none any more
        master = base64.b64encode(os.urandom(32)).decode()
        self._env = {"PENSTOCK_MASTER_KEY": master}

    def __enter__(self) -> LabCluster:
        try:
            members = [self.net.place(f"e{number}") for number in range(MEMBERS)]
            self.etcd = EtcdCluster(
                self.etcd_folder,
                members=MEMBERS,
                hosts=[place.address for place in members],
                enter=[place.enter for place in members],
            )
            self._stack.enter_context(self.etcd)
            self.rows = self._stack.enter_context(RowWatch(self.etcd))
            for number in NODES:
                self.add(number)
            self.clients = self.net.place("cl")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def etcd_folder(self) -> Path:
        return self._folder / "etcd"

    def add(self, number: int) -> LabNode:
        folder = self._folder / f"{run_prefix()}-n{number}"
        folder.mkdir(parents=True)
        data = folder / "data"
        if self.disks_lacking is None:
            disk = self.disks[number] = LoopDisk(folder, mib=DISK_MIB)
            self._stack.enter_context(disk)
            data = disk.path / "data"
        place = self.net.place(f"n{number}")
        node = LabNode(number, place, data, self.etcd.endpoints, self._env)
        self.nodes[number] = node
        self._stack.enter_context(node)
        return node

    def forget(self, number: int) -> None:
        """A node that has been emptied and has ended is none any more; its number is used up."""
        assert not self.nodes[number].is_running, "it runs"
        self.former_logs[number] = self.nodes[number].stderr
        del self.nodes[number]
        self.disks.pop(number, None)

    def drain(self, number: int) -> None:
        """An operator's wish, put where operators' wishes are kept."""
        self.etcd.put(f"{NAMESPACE}/wishes/drains/{number}".encode(), b"")

    def undrain(self, number: int) -> None:
        self.etcd.delete(f"{NAMESPACE}/wishes/drains/{number}".encode())

    def new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    # ── Who is who ───────────────────────────────────────────────────────────────────────────

    def leaders(self) -> list[int]:
        """Nodes that lead at least half as many partitions as the one that leads the most."""
        led = Counter(row.leader for row in self.rows.rows.values())
        running = {number: led[number] for number, node in self.nodes.items() if node.is_running}
        most = max(running.values())
        return [number for number, count in sorted(running.items()) if 2 * count >= max(most, 1)]

    def followers(self, leader: int) -> list[int]:
        return [number for number in self.nodes if number != leader]

    def node_at(self, address: str) -> int | None:
        """Whose address, host:port, this is."""
        for number, node in self.nodes.items():
            if address in (f"{node.place.address}:{node.port}", node.kafka):
                return number
        return None

    def member_names(self) -> list[str]:
        return [f"e{number}" for number in range(MEMBERS)]

    # ── Being well ───────────────────────────────────────────────────────────────────────────

    @property
    def is_settled(self) -> bool:
        """Every node runs and is registered, and every partition has a leader and all its replicas
        in sync; those aside that come and go all the time."""
        alive, rows = self.rows.nodes, self.rows.lasting()
        if not rows:
            return False  # nothing has been heard of the cluster yet
        return all(node.is_running for node in self.nodes.values()) and all(
            row.leader in alive
            and row.in_sync == set(row.replicas)
            and len(row.replicas) >= REPLICAS
            and not row.lost
            for row in rows
        )

    def wait_settled(self, *, seconds: float = SETTLE_SECONDS_MAX) -> None:
        try:
            eventually(lambda: self.is_settled, seconds=seconds, what="a settled cluster")
        except AssertionError as error:
            # What is missing at the end, not what was when the wait began.
            raise AssertionError(f"{error}: {self.unsettled()}") from None

    def wait_scrubbed(self, *, seconds: float = SETTLE_SECONDS_MAX) -> None:
        """Until every node has read over all its logs, from beginning to end: what is damaged was
        found, and is then no settled cluster."""
        begun = {number: node.metrics()[SCRUB_ROUNDS] for number, node in self.nodes.items()}
        eventually(
            lambda: all(
                node.metrics()[SCRUB_ROUNDS] >= begun[number] + 2
                for number, node in self.nodes.items()
            ),
            seconds=seconds,
            what="every node has read over its logs",
        )

    def not_ready(self) -> list[str]:
        """What nodes have to say about themselves, of those that do not call themselves ready."""
        told = {number: node.readyz() for number, node in self.nodes.items()}
        return [
            f"n{number} is not ready: {text}"
            for number, (status, text) in told.items()
            if status != HTTPStatus.OK
        ]

    def unsettled(self) -> str:
        rows = [f"{key}: {row}" for key, row in self.rows.rows.items()]
        return f"alive {sorted(self.rows.nodes)}; {len(rows)} rows; " + "; ".join(
            text
            for text, row in zip(rows, self.rows.rows.values(), strict=False)
            if len(row.whole) < REPLICAS or row.leader not in self.rows.nodes
        )
