"""The systems whose streams are measured: how each is had, started and given a topic.

Each has one policy: ``never`` answers once the kernel has the bytes, ``always`` once the disk has
them. Only systems of one policy are compared. One that cannot be had raises ``NotAvailable``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from benchmarks.kafka.job import Driver
from benchmarks.kafka.systems.apache import ApacheKafka
from benchmarks.kafka.systems.bare import Bare
from benchmarks.kafka.systems.nats import Nats
from benchmarks.kafka.systems.penstock import Penstock
from benchmarks.kafka.systems.redis import Redis
from benchmarks.server import Server


class System(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> str: ...

    @property
    def raw_driver(self) -> Driver:
        """How requests made beforehand are sent to it."""
        ...

    @property
    def is_kafka(self) -> bool:
        """Whether a Kafka client can speak to it."""
        ...

    @property
    def warm_up_s(self) -> float:
        """Load it needs before its figures are fair: a JVM compiles while it runs."""
        ...

    def prepare(self) -> None:
        """Fetch what it needs. Bounded in time; does nothing the second time."""
        ...

    def start(self, *, folder: Path, cores: set[int]) -> Server: ...

    def create(self, server: Server, topic: str, partitions: int, *, readers: int) -> None: ...

    def delete(self, server: Server, topic: str, partitions: int) -> None: ...


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        Bare("never"),
        Penstock("never"),
        ApacheKafka("never"),
        Redis("never"),
        Nats("never"),
        Bare("always"),
        Penstock("always"),
        ApacheKafka("always"),
        Redis("always"),
    )
}
