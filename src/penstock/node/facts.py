"""What a node writes down about its callers and itself: what they used, what they changed, and how
it is doing. The parts are made, started and stopped together, and each may be switched off."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from penstock import __version__
from penstock.frontend.audit import AuditTrail
from penstock.frontend.fact_log import FactLog
from penstock.frontend.fact_writer import STOP_SECONDS_MAX, Leads, leads_all
from penstock.frontend.routing import BrokerCalls
from penstock.frontend.telemetry_writer import GroupOffsets, TelemetryWriter
from penstock.frontend.usage import UsageTable
from penstock.frontend.usage_writer import UsageWriter
from penstock.metadata.catalog import StoredCatalog
from penstock.metadata.producer_ids import StoredProducerIds
from penstock.model.ports import Clock
from penstock.model.troubles import Trouble, facts_not_written
from penstock.node.config import Config
from penstock.node.vitals import read_vitals

USAGE_TOPIC = "__usage"
AUDIT_TOPIC = "__audit"
TELEMETRY_TOPIC = "__telemetry"


class Facts:
    def __init__(
        self,
        config: Config,
        *,
        node: str,
        broker: BrokerCalls,
        catalog: StoredCatalog,
        producer_ids: StoredProducerIds,
        clock: Clock,
        entropy: Callable[[int], bytes],
        groups: GroupOffsets | None = None,
        leads: Leads = leads_all,
    ) -> None:
        """``groups``: whose lags are told. ``leads``: of which partitions this node is to tell."""

        def log_of(topic: str, retention_ms: int) -> FactLog:
            return FactLog(
                topic,
                streams=broker,
                catalog=catalog,
                next_producer_id=producer_ids.next_id,
                namespace=(config.node.account, config.node.region),
                clock=clock,
                entropy=entropy,
                retention_ms=retention_ms,
            )

        self.usage: UsageTable | None = None
        self.audit: AuditTrail | None = None
        self._writer: UsageWriter | None = None
        self._telemetry: TelemetryWriter | None = None
        if config.usage.enabled or config.telemetry.enabled:
            self.usage = UsageTable(
                now_ms=clock.wall_ms(),
                is_timed=config.telemetry.enabled,
                own_account=config.node.account,
            )
        if config.usage.enabled:
            assert self.usage is not None, "made above"
            self._writer = UsageWriter(
                self.usage,
                log_of(USAGE_TOPIC, config.usage.retention_ms),
                node=node,
                clock=clock,
                entropy=entropy,
                flush_ms=config.usage.flush_ms,
                stored_in=(catalog, broker),
                leads=leads,
            )
        if config.telemetry.enabled:
            assert self.usage is not None, "made above"
            self._telemetry = TelemetryWriter(
                self.usage,
                log_of(TELEMETRY_TOPIC, config.telemetry.retention_ms),
                node=node,
                account=config.node.account,
                catalog=catalog,
                broker=broker,
                clock=clock,
                entropy=entropy,
                vitals=partial(read_vitals, Path(config.node.data)),
                groups=groups,
                leads=leads,
                flush_ms=config.telemetry.flush_ms,
                is_only_reader=not config.usage.enabled,
            )
        if config.audit.enabled:
            self.audit = AuditTrail(
                log_of(AUDIT_TOPIC, config.audit.retention_ms),
                node=node,
                clock=clock,
                own_account=config.node.account,
            )

    def start(self) -> None:
        """After the broker."""
        if self._writer is not None:
            self._writer.start()
        if self._telemetry is not None:
            self._telemetry.start()
        if self.audit is not None:
            self.audit.start(version=__version__)

    async def stop(self) -> None:
        """When nobody is served any more, and before the broker. All have the same few seconds:
        where the log of one takes nothing, those of the others hardly do."""
        async with asyncio.TaskGroup() as stopping:
            stopping.create_task(self._stop_counting(), name="stop counting")
            if self.audit is not None:
                ending = self.audit.stop(seconds_max=STOP_SECONDS_MAX)
                stopping.create_task(ending, name="stop the audit trail")

    async def _stop_counting(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_SECONDS_MAX
        if self._writer is not None:
            await self._writer.stop(seconds_max=STOP_SECONDS_MAX)
        if self._telemetry is not None:  # behind usage, whose last counts pass through it
            await self._telemetry.stop(seconds_max=max(0.0, until - loop.time()))

    def troubles(self) -> Iterable[Trouble]:
        writers = (("usage", self._writer), ("telemetry", self._telemetry), ("audit", self.audit))
        for what, writer in writers:
            if writer is not None and writer.trouble is not None:
                yield facts_not_written(what, writer.trouble)
