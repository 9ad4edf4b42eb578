"""Periodic jobs of a node: health checks, removal of old tombstones and data keys, storing when
keys were used, loading renewed certificates."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from penstock.metadata.topics.catalog import TOMBSTONE_MS
from penstock.model.errors import PenstockError
from penstock.model.troubles import Trouble, metadata_away
from penstock.net.listener import Listener
from penstock.node.listening.certificates import CertificateKeeper
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.facts import Facts
from penstock.node.process.health_watch import watch_loop
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.security import NodeSecurity
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family

log_ = logging.getLogger(__name__)

CLUSTER_TOMBSTONE_MS = 7 * 24 * 3_600_000
TOMB_SWEEP_SECONDS = 60.0


class BackgroundJobs:
    def __init__(
        self,
        setup: NodeSetup,
        metadata: MetadataLink,
        role: BrokerRole,
        security: NodeSecurity,
        facts: Facts,
        certificates: CertificateKeeper,
    ) -> None:
        self._setup = setup
        self._metadata = metadata
        self._role = role
        self._security = security
        self._facts = facts
        self._certificates = certificates
        self._jobs: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._report()
        self._begin(self._sweep_tombs(), "tombstone sweep")
        self._begin(watch_loop(self._setup.meter, self._report), "health watch")
        self._begin(self._security.flush(), "identity flush")
        if self._certificates.has_any:
            self._begin(self._certificates.watch(), "certificate watch")

    def _begin(self, job: Coroutine[Any, Any, None], name: str) -> None:
        self._jobs.append(asyncio.create_task(job, name=name))

    def stop(self) -> None:
        for job in self._jobs:
            job.cancel()

    async def _sweep_tombs(self) -> None:
        """Remove tombstones whose folders are gone and whose names are no longer guarded."""
        topics = self._setup.folder.path / "topics"
        while True:
            await asyncio.sleep(TOMB_SWEEP_SECONDS)
            try:
                is_clustered = self._setup.config.cluster.node != 0
                await self._metadata.topics.sweep(
                    now_ms=self._setup.clock.wall_ms(),
                    is_gone=lambda topic_id: not (topics / topic_id).exists(),
                    # A node that was down must find it: files are removed only by a tombstone.
                    kept_ms=CLUSTER_TOMBSTONE_MS if is_clustered else TOMBSTONE_MS,
                )
                await self._security.data_keys.sweep()
            except PenstockError as error:  # for example a full disk: retried
                log_.warning("tombstones not removed", extra={"reason": str(error)})

    def _report(self) -> None:
        self._setup.health.show(
            [
                *self._role.troubles(),
                *self._metadata_troubles(),
                *self._security.troubles(),
                *self._certificates.troubles(now_ms=self._setup.clock.wall_ms()),
                *self._facts.troubles(),
            ]
        )

    def _metadata_troubles(self) -> Iterable[Trouble]:
        """Return at most one: all copies of the metadata are of the same store."""
        reasons = (self._metadata.trouble, self._security.trouble, self._role.trouble)
        reason = next((one for one in reasons if one is not None), None)
        if reason is not None:
            yield metadata_away(reason)

    def levels(self, http: Listener) -> Iterable[tuple[Family, Sample]]:
        yield families.DISK_FREE, ((), self._role.disk.free_bytes)
        yield from self._certificates.samples()
        yield from self._metadata.samples()
        damages = self._role.broker.partitions.damages()
        yield families.PARTITIONS_DAMAGED, ((), len(damages))
        scrubber = self._role.broker.partitions.scrubber
        yield families.SCRUB_ROUNDS, ((), scrubber.round_count)
        yield families.SCRUBBED, ((), scrubber.read_bytes)
        yield families.SCRUB_DAMAGES, ((), scrubber.damage_count)
        yield families.CONNECTIONS, ((), len(http.connections))
