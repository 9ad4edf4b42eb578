"""A cluster of real processes by role: metadata nodes, and nodes that are frontend and broker and
ask them. Built on ``server``; what is done to the processes is left to the tests."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness.server import Server, penstock_command, stable_port

MASTER = base64.b64encode(bytes(range(32))).decode()
SHARED = {"PENSTOCK_MASTER_KEY": MASTER}


class MetadataServer(Server):
    """``penstock serve --role metadata``, on a port that outlives it."""

    def __init__(
        self,
        data: Path,
        *,
        listen: str = "",
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(data, arguments=arguments, env=env)
        self.listen = listen or f"127.0.0.1:{stable_port()}"

    def command(self) -> list[str]:
        command = [penstock_command(), "serve", "--data", str(self.data), "--role", "metadata"]
        return [*command, "--internal", self.listen, "--admin", "127.0.0.1:0", *self.arguments]


def attached(
    data: Path,
    *metadata: str,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    kafka_port: int | None = None,
) -> Server:
    """A node that is everything but the metadata, which is at these addresses."""
    roles = ("--role", "frontend,broker", "--metadata", ",".join(metadata))
    return Server(
        data,
        arguments=(*roles, *arguments),
        env={**SHARED, **(env or {})},
        kafka_port=kafka_port,
        port=stable_port(),
    )
