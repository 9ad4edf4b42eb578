"""Writes facts, which are usage, audit, telemetry and delivery records, to internal topics."""

import asyncio
import os
import resource
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from penstock import __version__
from penstock.cursor.coordinator_calls import Coordinators
from penstock.frontend.facts.audit import AuditTrail
from penstock.frontend.facts.deliveries import DeliveryWriter
from penstock.frontend.facts.fact_log import STOP_SECONDS_MAX, FactLog, Leads, leads_all
from penstock.frontend.facts.telemetry_writer import ProcessStats, TelemetryWriter
from penstock.frontend.facts.usage import UsageTable, UsageWriter
from penstock.metadata.topics.catalog import StoredCatalog, StoredProducerIds
from penstock.model.calls import BrokerPort
from penstock.model.troubles import FACTS_NOT_WRITTEN, Trouble
from penstock.node.process.node_setup import NodeSetup

USAGE_TOPIC = "__usage"
AUDIT_TOPIC = "__audit"
TELEMETRY_TOPIC = "__telemetry"
DELIVERIES_TOPIC = "__deliveries"
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Facts:
    def __init__(
        self,
        setup: NodeSetup,
        broker: BrokerPort,
        catalog: StoredCatalog,
        producer_ids: StoredProducerIds,
        *,
        groups: Coordinators | None = None,  # whose lags are reported
        leads: Leads = leads_all,  # returns whether this node reports a partition
    ) -> None:
        config, node, clock, entropy = setup.config, setup.name, setup.clock, setup.entropy

        def log_of(topic: str, retention_ms: int) -> FactLog:
            return FactLog(
                topic,
                broker=broker,
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
            assert self.usage is not None, "created above"
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
            assert self.usage is not None, "created above"
            self._telemetry = TelemetryWriter(
                self.usage,
                log_of(TELEMETRY_TOPIC, config.telemetry.retention_ms),
                node=node,
                account=config.node.account,
                catalog=catalog,
                broker=broker,
                clock=clock,
                entropy=entropy,
                vitals=partial(read_process_stats, Path(config.node.data)),
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

        # The topic is created with the first row, so only at a feature level that has push.
        self.deliveries = DeliveryWriter(
            log_of(DELIVERIES_TOPIC, config.push.deliveries_retention_ms),
            node=node,
            clock=clock,
            entropy=entropy,
        )

    def start(self) -> None:
        for writer in (self._writer, self._telemetry, self.deliveries):
            if writer is not None:
                writer.start()
        if self.audit is not None:
            self.audit.start(version=__version__)

    async def stop(self) -> None:
        """Write the last records. Call this after the last request, before the broker stops."""
        async with asyncio.TaskGroup() as stopping:
            stopping.create_task(self._stop_counting(), name="stop counting")
            ending = self.deliveries.stop(seconds_max=STOP_SECONDS_MAX)
            stopping.create_task(ending, name="stop recording deliveries")
            if self.audit is not None:
                ending = self.audit.stop(seconds_max=STOP_SECONDS_MAX)
                stopping.create_task(ending, name="stop the audit trail")

    async def _stop_counting(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_SECONDS_MAX
        if self._writer is not None:
            await self._writer.stop(seconds_max=STOP_SECONDS_MAX)
        if self._telemetry is not None:  # after usage, whose last counts pass through it
            await self._telemetry.stop(seconds_max=max(0.0, until - loop.time()))

    def troubles(self) -> Iterable[Trouble]:
        writers = (
            ("usage", self._writer),
            ("telemetry", self._telemetry),
            ("audit", self.audit),
            ("deliveries", self.deliveries),
        )
        for what, writer in writers:
            if writer is not None and writer.trouble is not None:
                yield FACTS_NOT_WRITTEN.filled(writer.trouble, what=what)


def read_process_stats(data: Path) -> ProcessStats:
    times = os.times()
    return ProcessStats(
        cpu_ms=int((times.user + times.system) * 1_000),
        rss_bytes=_rss_bytes(),
        disk_free_bytes=shutil.disk_usage(data).free,
    )


def _rss_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except OSError:  # not Linux: the maximum so far
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
