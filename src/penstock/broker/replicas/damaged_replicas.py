"""Repairs replicas on this node whose log was found damaged (R5).

A damaged log may lack events, so a leader with it would deliver messages that were deleted long
ago. Following does not repair it, for a follower fetches only what comes after its end. So if other
replicas have everything, the damaged replica is quarantined and rebuilt (replication/repair.py). If
no other replica has everything, it continues as it is, until one has.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from penstock.broker.replicas.replicator import Replicator
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import PenstockError, VersionConflict
from penstock.replication import repair
from penstock.replication.epochs import NO_EPOCH
from penstock.replication.repair import RepairStep
from penstock.replication.row import View
from penstock.wire.internal.faults import OutcomeUnknown

log_ = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 1.0


class Reopen(Protocol):
    def __call__(self, replicator: Replicator, *, is_emptied: bool) -> None:
        """Close a replica soon, and open it again: with its files, or empty."""
        ...


class DamagedReplicas:
    def __init__(
        self,
        node: int,
        view: ClusterView,
        replicas: Mapping[PartitionKey, Replicator],
        reopen: Reopen,
        *,
        rows_changed: asyncio.Event,
    ) -> None:
        """``rows_changed``: set whenever a row or a registration has changed; others wait for it
        too."""
        self._node = node
        self._view = view
        self._replicas = replicas
        self._reopen = reopen
        self._tasks: dict[Replicator, asyncio.Task[None]] = {}
        self._rows_changed = rows_changed
        self._is_stopped = False

    def found(self, replicator: Replicator, reason: str, *, fetched_in: int = NO_EPOCH) -> bool:
        """Begin to repair a replica; return whether it is quarantined already. ``fetched_in``: the
        last epoch in which an earlier replica of this node may have sent its leader a fetch."""
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
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_spare(self, replicator: Replicator) -> bool:
        view = self._view_of(replicator)
        return view is not None and repair.is_spare(view.row, self._node)

    def _view_of(self, replicator: Replicator) -> View | None:
        """Return the view of the row; None if the replica does not belong to this node any more."""
        key = replicator.key
        view = self._view.rows.get(key)
        is_open = self._replicas.get(key) is replicator
        return view if is_open and view is not None and self._node in view.row.replicas else None

    def _quarantine(self, replicator: Replicator, reason: str) -> None:
        if not replicator.is_quarantined:
            log_.error(
                "damaged replica quarantined",
                extra={"partition": str(replicator.key), "reason": reason},
            )
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
            step = repair.next_step(
                view.row,
                self._node,
                fetched_in=fetched_in,
                incarnations=self._view.incarnations,
            )
            if step is RepairStep.RESIGN:
                await self._resign(key, view)
            elif step is RepairStep.WAIT:
                await self._wait_changed()
            else:
                log_.info(
                    "damaged replica reopened", extra={"partition": str(key), "step": step.value}
                )
                self._reopen(replicator, is_emptied=step is RepairStep.EMPTY)
                return

    async def _resign(self, key: PartitionKey, view: View) -> None:
        try:
            try:
                await self._view.propose(key, repair.resign(view, self._node))
            except (VersionConflict, OutcomeUnknown):
                await self._view.refresh_rows()
        except PenstockError as error:
            log_.warning(
                "damaged replica not reported yet",
                extra={"partition": str(key), "reason": str(error)},
            )
            await asyncio.sleep(STORE_RETRY_SECONDS)

    async def _wait_changed(self) -> None:
        self._rows_changed.clear()
        await self._rows_changed.wait()
