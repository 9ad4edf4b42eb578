"""The frontend of ``memory.py`` with usage counted and actions noted, and a broker to write to."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence

from tests.unit.broker.stage import Stage
from tests.unit.calls.routing_kit import Cluster
from tests.unit.frontend.memory import MemoryIdentities, Rig

from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.pipeline import Frontend
from penstock.frontend.facts.audit import AuditTrail
from penstock.frontend.facts.fact_log import FactLog
from penstock.frontend.facts.usage import UsageTable
from penstock.model.calls import BrokerPort, Ends, Fetch
from penstock.model.ports import Identities
from penstock.model.topic import Topic
from penstock.record.batch import parse_header, split_batches
from penstock.record.record import RawRecord, iter_records
from penstock.wire.facts.usage import UsageRow

ACCOUNT = "000000000000"
REGION = "us-east-1"


class CountedRig(Rig):
    def __init__(
        self,
        *,
        config: FrontendConfig | None = None,
        audit: AuditTrail | None = None,
        identities: Identities | None = None,
        is_timed: bool = False,
    ) -> None:
        super().__init__(config)
        self.table = UsageTable(now_ms=self.clock.now_ms, is_timed=is_timed)
        self.frontend = Frontend(
            broker=self.backend,
            everything=self.catalog,
            subscriptions=self.subscriptions,
            clock=self.clock,
            config=config or FrontendConfig(),
            meter=self.meter,
            entropy=secrets.token_bytes,
            perf=lambda: 0.0,
            identities=identities or MemoryIdentities(),
            usage=self.table,
            audit=audit,
        )

    def used(self) -> dict[tuple[str, str], UsageRow]:
        columns = self.table.take(now_ms=self.clock.now_ms)[1]
        return {(row.resource, row.op): row for row in columns.rows()}


class Ids:
    """Producer ids of one store: never the same twice, whoever asks."""

    def __init__(self) -> None:
        self._ids = itertools.count(1_000)

    async def next_id(self) -> int:
        return next(self._ids)


def fact_log(
    stage: Stage,
    name: str,
    ids: Ids,
    *,
    broker: BrokerPort | None = None,
    retention_ms: int = 1_000,
) -> FactLog:
    return FactLog(
        name,
        broker=broker or stage.broker,
        catalog=stage.catalog,
        next_producer_id=ids.next_id,
        namespace=(ACCOUNT, REGION),
        clock=stage.clock,
        entropy=secrets.token_bytes,
        retention_ms=retention_ms,
    )


def cluster_log(cluster: Cluster, node: int, name: str, ids: Ids) -> FactLog:
    """As one node of several has it, wherever it is led."""
    return FactLog(
        name,
        broker=cluster.routed(node),
        catalog=cluster.nodes[node].catalog,
        next_producer_id=ids.next_id,
        namespace=(ACCOUNT, REGION),
        clock=cluster.clock,
        entropy=secrets.token_bytes,
    )


async def records(stage: Stage, name: str) -> Sequence[RawRecord]:
    """All that the topic holds, oldest first; nothing if there is no such topic."""
    topic = stage.catalog.find(ACCOUNT, REGION, name)
    return [] if topic is None else await records_of(stage.broker, topic)


async def records_of(broker: BrokerPort, topic: Topic) -> Sequence[RawRecord]:
    ends = await broker.call(Ends(topic, 0))
    offset = ends.start_offset
    found: list[RawRecord] = []
    while offset < ends.high_watermark:
        fetched = await broker.call(
            Fetch(topic, 0, offset=offset, bytes_max=1_000_000, is_committed=False)
        )
        for batch in split_batches(fetched.buffers):
            header = parse_header(batch)
            offset = header.next_offset
            if not header.is_control:
                found.extend(iter_records(batch))
    return found
