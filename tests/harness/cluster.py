"""A real cluster on one machine: an etcd and several ``penstock serve`` processes, each with a data
folder and ports that it keeps over restarts."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from confluent_kafka.admin import AdminClient
from tests.harness.etcd import EtcdCluster
from tests.harness.server import Server, stable_port


class ClusterNode(Server):
    code: Path | None = None  # the folder ``src`` of another version; None: this version

    def __init__(
        self,
        number: int,
        folder: Path,
        etcd: Sequence[str],
        *,
        fsync: str = "always",
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.internal_address = f"127.0.0.1:{stable_port()}"
        super().__init__(
            folder / f"n{number}",
            fsync=fsync,
            port=stable_port(),
            kafka_port=stable_port(),
            arguments=(
                "--node",
                str(number),
                "--etcd",
                ",".join(etcd),
                "--internal",
                self.internal_address,
                *arguments,
            ),
            env={"PENSTOCK_NODE__NAME": f"n{number}", **(env or {})},
        )
        self.number = number

    def command(self) -> list[str]:
        command = super().command()
        return command if self.code is None else [sys.executable, "-m", "penstock", *command[1:]]

    def _environment(self) -> dict[str, str]:
        env = super()._environment()
        return env if self.code is None else {**env, "PYTHONPATH": str(self.code)}


class PenstockCluster:
    """``with PenstockCluster(tmp_path) as cluster: ...``: three nodes that are ready and see each
    other."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        etcd_members: int = 1,
        fsync: str = "always",
        env: Mapping[str, str] | None = None,
        code: Path | None = None,
    ) -> None:
        self._stack = ExitStack()
        self.etcd = EtcdCluster(folder / "etcd", members=etcd_members)
        self._folder = folder
        self._fsync = fsync
        self._count = nodes
        self._code = code
        master = base64.b64encode(os.urandom(32)).decode()
        self._env = {"PENSTOCK_MASTER_KEY": master, **(env or {})}
        self.nodes: dict[int, ClusterNode] = {}

    def __enter__(self) -> PenstockCluster:
        try:
            self._stack.enter_context(self.etcd)
            for number in range(1, self._count + 1):
                self.add(number)
        except BaseException:
            self._stack.close()
            raise
        return self

    def add(self, number: int, *, arguments: Sequence[str] = ()) -> ClusterNode:
        node = ClusterNode(
            number,
            self._folder,
            self.etcd.endpoints,
            fsync=self._fsync,
            arguments=arguments,
            env=self._env,
        )
        node.code = self._code
        self.nodes[number] = node
        self._stack.enter_context(node)
        return node

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes.values())

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the node that leads each partition of a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return {number: one.leader for number, one in found.items()}
