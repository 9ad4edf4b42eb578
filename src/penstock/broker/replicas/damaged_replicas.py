"""Opens the logs of replicas, and repairs damaged replicas. If a log may have lost records, this is
stored in the partition's row in the metadata store before this node can be elected.

A damaged log may lack events, so as a leader it would deliver messages that were deleted long ago.
A follower fetches only records after the end of its log, so missing records are not fetched again.
If other replicas have all records, the damaged replica is quarantined and rebuilt. Otherwise it
stays in use until another replica has all records (rules R4 and R5 in docs/replication.md)."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.context.context import BrokerContext, open_log
from penstock.broker.context.timers import cancel_all
from penstock.broker.partition.partitions import TOPICS_FOLDER
from penstock.broker.replicas.open_replica import about
from penstock.broker.replicas.replicator import Replicator
from penstock.log.log import Log
from penstock.log.readable import read_epochs
from penstock.log.storage.checkpoint import DOUBT_CRASHED, DOUBT_GARBAGE, DOUBT_NEW, DOUBT_SHORT
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import PenstockError, VersionConflict
from penstock.model.topic import Fsync, Topic
from penstock.replication import election
from penstock.replication.election import Found, RepairStep, declare_loss, loss_of
from penstock.replication.epochs import NO_EPOCH, EpochHistory
from penstock.replication.row import View
from penstock.wire.internal.faults import OutcomeUnknown

log_ = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 1.0


class OpenedLog(NamedTuple):
    topic: Topic
    log: Log
    history: EpochHistory


@dataclass(eq=False)
class DamagedReplicas:
    node: int
    view: ClusterView
    replicas: Mapping[PartitionKey, Replicator]
    # Closes a replica soon and opens it again, with its files (False) or empty (True).
    reopen: Callable[[Replicator, bool], None]
    rows_changed: asyncio.Event  # set when rows or registrations change
    _tasks: dict[Replicator, asyncio.Task[None]] = field(default_factory=dict)
    _is_stopped: bool = False

    async def open(
        self, key: PartitionKey, view: View, context: BrokerContext, *, may_be_new: bool
    ) -> OpenedLog | None:
        """Open a replica's log. If records may be missing, store this in the partition's row,
        unless the log is new and ``may_be_new`` is set."""
        topic = context.catalog.find_id(key.topic_id)
        if topic is None:
            return None
        loop, pool = asyncio.get_running_loop(), context.pool

        def work() -> tuple[Log, EpochHistory]:
            log = open_log(topic, key.index, context.folder / TOPICS_FOLDER, context)
            return log, EpochHistory(read_epochs(log))

        log, history = await loop.run_in_executor(pool, work)
        report, doubts = log.recovery, log.recovery.doubts
        is_new = bool(doubts & DOUBT_NEW)
        found = Found(
            is_there=not is_new,
            is_whole=not report.damage and not doubts & (DOUBT_GARBAGE | DOUBT_SHORT),
            end_offset=log.end_offset,
            recovery_point=report.recovery_point,
            was_stopped=not doubts & DOUBT_CRASHED,
            is_synced=(topic.fsync or context.fsync_default) is Fsync.ALWAYS,
        )
        reason = loss_of(view.row, found)
        if reason is not None and not (is_new and may_be_new):
            await self._declare_loss(key, view, reason)
        # Until here the log itself remembers what was repaired.
        await loop.run_in_executor(pool, log.settle)
        return OpenedLog(topic, log, history)

    async def _declare_loss(self, key: PartitionKey, view: View | None, reason: str) -> None:
        """Store in the partition's row that this replica may have lost records."""
        while view is not None and (change := declare_loss(view, self.node)) is not None:
            log_.error("replica may have lost committed records", extra=about(key, reason))
            with contextlib.suppress(VersionConflict, OutcomeUnknown):
                await self.view.propose(key, change)
                return
            await self.view.refresh_rows()
            view = self.view.rows.get(key)

    def found(self, replicator: Replicator, reason: str, *, fetched_in: int = NO_EPOCH) -> bool:
        """Start the repair of a damaged replica. Returns whether it is quarantined. ``fetched_in``
        is the last epoch in which this node may have sent a fetch."""
        if self._is_stopped:
            return False
        if self._is_spare(replicator):
            self._quarantine(replicator, reason)
        if replicator not in self._tasks:
            self._tasks[replicator] = asyncio.create_task(
                self._run(replicator, reason, fetched_in), name=f"repair {replicator.key}"
            )
        return replicator.is_quarantined

    async def stop(self) -> None:
        self._is_stopped = True
        await cancel_all(self._tasks.values())

    def _is_spare(self, replicator: Replicator) -> bool:
        view = self._view_of(replicator)
        return view is not None and election.is_spare(view.row, self.node)

    def _view_of(self, replicator: Replicator) -> View | None:
        """Return the partition's row, or None if this node no longer has the replica."""
        key = replicator.key
        view = self.view.rows.get(key)
        is_open = self.replicas.get(key) is replicator
        return view if is_open and view is not None and self.node in view.row.replicas else None

    def _quarantine(self, replicator: Replicator, reason: str) -> None:
        if not replicator.is_quarantined:
            log_.error("damaged replica quarantined", extra=about(replicator.key, reason))
            replicator.quarantine()

    async def _run(self, replicator: Replicator, reason: str, fetched_in: int) -> None:
        try:
            while not replicator.is_quarantined:
                if self._is_spare(replicator):
                    self._quarantine(replicator, reason)
                elif self._view_of(replicator) is None:
                    return
                else:
                    await self._wait_changed()
            await self._rebuild(replicator, max(fetched_in, replicator.replica.epoch))
        except Exception:
            log_.exception("replica repair failed", extra={"partition": str(replicator.key)})
        finally:
            del self._tasks[replicator]

    async def _rebuild(self, replicator: Replicator, fetched_in: int) -> None:
        key = replicator.key
        while (view := self._view_of(replicator)) is not None:
            step = election.next_step(
                view.row, self.node, fetched_in=fetched_in, incarnations=self.view.incarnations
            )
            if step is RepairStep.RESIGN:
                await self._resign(key, view)
            elif step is RepairStep.WAIT:
                await self._wait_changed()
            else:
                fields = {"partition": str(key), "step": step.value}
                log_.info("reopening a damaged replica", extra=fields)
                self.reopen(replicator, step is RepairStep.EMPTY)
                return

    async def _resign(self, key: PartitionKey, view: View) -> None:
        try:
            try:
                await self.view.propose(key, election.resign(view, self.node))
            except (VersionConflict, OutcomeUnknown):
                await self.view.refresh_rows()
        except PenstockError as error:
            log_.warning("reporting a damaged replica failed, retrying", extra=about(key, error))
            await asyncio.sleep(STORE_RETRY_SECONDS)

    async def _wait_changed(self) -> None:
        self.rows_changed.clear()
        await self.rows_changed.wait()
