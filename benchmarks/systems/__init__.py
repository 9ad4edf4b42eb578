"""The systems that are measured, by name: how each is had, started and told to be ready.

A system that cannot be had on this machine raises ``NotAvailable`` from ``prepare`` or ``start``
with the reason; the table then says so, and nothing fails.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from benchmarks.server import Server
from benchmarks.systems.bare import Bare
from benchmarks.systems.elasticmq import ElasticMQ
from benchmarks.systems.localstack import LocalStack
from benchmarks.systems.moto import Moto
from benchmarks.systems.penstock import Penstock


class System(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def is_queue(self) -> bool:
        """False for the bare listener, which only shows what a request costs at least."""
        ...

    @property
    def warm_up_s(self) -> float:
        """Load it needs before its figures are fair: a JVM compiles while it runs."""
        ...

    def prepare(self) -> None:
        """Fetch and install what it needs. Bounded in time; does nothing the second time."""
        ...

    def start(self, *, folder: Path, cores: set[int]) -> Server: ...


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        Bare(),
        Penstock("never"),
        Penstock("always"),
        ElasticMQ(),
        Moto(),
        LocalStack(),
    )
}
