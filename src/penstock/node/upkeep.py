"""What a node does by itself now and then: say what its probes should show, forget what was deleted
long enough ago, write down when keys were used, take over renewed certificates."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from penstock.metadata.catalog import TOMBSTONE_MS
from penstock.model.errors import PenstockError
from penstock.model.troubles import Trouble, metadata_away
from penstock.net.listener import Listener
from penstock.node.basis import Basis
from penstock.node.broker_role import BrokerRole
from penstock.node.certificates import CertificateKeeper
from penstock.node.facts import Facts
from penstock.node.health_watch import watch_loop
from penstock.node.metadata_link import MetadataLink
from penstock.node.vault import Vault
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family

log_ = logging.getLogger(__name__)

CLUSTER_TOMBSTONE_MS = 7 * 24 * 3_600_000
TOMB_SWEEP_SECONDS = 60.0


class Upkeep:
    def __init__(
        self,
        basis: Basis,
        metadata: MetadataLink,
        role: BrokerRole,
        vault: Vault,
        facts: Facts,
        certificates: CertificateKeeper,
    ) -> None:
        self._basis = basis
        self._metadata = metadata
        self._role = role
        self._vault = vault
        self._facts = facts
        self._certificates = certificates
        self._jobs: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._report()
        self._begin(self._sweep_tombs(), "tombstone sweep")
        self._begin(watch_loop(self._basis.meter, self._report), "health watch")
        self._begin(self._vault.flush(), "identity flush")
        if self._certificates.has_any:
            self._begin(self._certificates.watch(), "certificate watch")

    def _begin(self, job: Coroutine[Any, Any, None], name: str) -> None:
        self._jobs.append(asyncio.create_task(job, name=name))

    def stop(self) -> None:
        for job in self._jobs:
            job.cancel()

    async def _sweep_tombs(self) -> None:
        """Forget deletions whose folders are gone and whose names are no longer guarded."""
        topics = self._basis.folder.path / "topics"
        while True:
            await asyncio.sleep(TOMB_SWEEP_SECONDS)
            try:
                is_clustered = self._basis.config.cluster.node != 0
                await self._metadata.topics.sweep(
                    now_ms=self._basis.clock.wall_ms(),
                    is_gone=lambda topic_id: not (topics / topic_id).exists(),
                    # A node that is away must find it when it comes back: without a tombstone
                    # nobody removes files.
                    kept_ms=CLUSTER_TOMBSTONE_MS if is_clustered else TOMBSTONE_MS,
                )
                await self._vault.data_keys.sweep()
            except PenstockError as error:  # a full disk, say: the next round tries again
                log_.warning("tombstones not swept", extra={"reason": str(error)})

    def _report(self) -> None:
        self._basis.health.show(
            [
                *self._role.troubles(),
                *self._metadata_troubles(),
                *self._vault.troubles(),
                *self._certificates.troubles(now_ms=self._basis.clock.wall_ms()),
                *self._facts.troubles(),
            ]
        )

    def _metadata_troubles(self) -> Iterable[Trouble]:
        """At most one: all copies of the metadata are of the same store."""
        reasons = (self._metadata.trouble, self._vault.trouble, self._role.trouble)
        reason = next((one for one in reasons if one is not None), None)
        if reason is not None:
            yield metadata_away(reason)

    def levels(self, http: Listener) -> Iterable[tuple[Family, Sample]]:
        """For the meter."""
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
