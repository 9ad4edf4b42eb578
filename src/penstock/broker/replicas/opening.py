"""Opens the logs of replicas, and declares in their rows which may have lost records, before this
node can be elected with them (R4, R5)."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import NamedTuple

from penstock.broker.context.context import BrokerContext
from penstock.broker.storage.log_opening import open_log
from penstock.log.epochs import read_epochs
from penstock.log.log import Log
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import VersionConflict
from penstock.model.topic import Fsync, Topic
from penstock.replication.election import Found, declare_loss, loss_of
from penstock.replication.epochs import EpochHistory
from penstock.replication.row import View
from penstock.wire.internal.faults import OutcomeUnknown

log_ = logging.getLogger(__name__)


class OpenedLog(NamedTuple):
    topic: Topic
    log: Log
    history: EpochHistory


class LogOpener:
    def __init__(
        self, context: BrokerContext, topics_folder: Path, view: ClusterView, node: int
    ) -> None:
        self._context = context
        self._topics_folder = topics_folder
        self._view = view
        self._node = node

    async def open(self, key: PartitionKey, view: View, *, may_be_new: bool) -> OpenedLog | None:
        """Open a log and declare its loss, if any. ``may_be_new``: no records are expected of a log
        that does not exist. Returns None if the catalog does not have the topic, because it was
        deleted or the catalog lags: the log is opened when the topic is seen."""
        topic = self._context.catalog.find_id(key.topic_id)
        if topic is None:
            return None
        loop, pool = asyncio.get_running_loop(), self._context.pool

        def work() -> tuple[Log, EpochHistory]:
            log = open_log(topic, key.index, self._topics_folder, self._context)
            return log, EpochHistory(read_epochs(log))

        log, history = await loop.run_in_executor(pool, work)
        report = log.recovery
        found = Found(
            is_there=not report.is_new,
            is_whole=not report.damage and not report.has_garbage and not report.is_short,
            end_offset=log.end_offset,
            recovery_point=report.recovery_point,
            was_stopped=report.was_stopped,
            is_synced=(topic.fsync or self._context.fsync_default) is Fsync.ALWAYS,
        )
        reason = loss_of(view.row, found)
        if reason is not None and not (report.is_new and may_be_new):
            await self._declare_loss(key, view, reason)
        # Until here the log itself remembers what was repaired.
        await loop.run_in_executor(pool, log.settle)
        return OpenedLog(topic, log, history)

    async def _declare_loss(self, key: PartitionKey, view: View, reason: str) -> None:
        """Return when the store has it: before that, this node must not register."""
        while True:
            change = declare_loss(view, self._node)
            if change is None:
                return
            log_.error(
                "replica may lack committed records",
                extra={"partition": str(key), "reason": reason},
            )
            with contextlib.suppress(VersionConflict, OutcomeUnknown):
                await self._view.propose(key, change)
                return
            await self._view.refresh_rows()
            newer = self._view.rows.get(key)
            if newer is None:
                return
            view = newer
