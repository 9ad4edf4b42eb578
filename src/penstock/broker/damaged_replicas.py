"""Replicas on this node whose log was found damaged, and how they become whole again (R5).

What a damaged log says of the past is not all of it: whoever led by it would give out what was
deleted long ago. Nor does it mend by following, for a follower asks for what comes behind its end.
So where others have everything such a replica is put aside, and made anew (replication/mending.py).

Where nobody else has everything it goes on as it is, which is better than nothing, until somebody
has.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from penstock.broker.replicator import Replicator
from penstock.metadata.cluster_entries import PartitionKey
from penstock.metadata.cluster_view import ClusterView
from penstock.model.errors import PenstockError, VersionConflict
from penstock.replication import mending
from penstock.replication.epochs import NO_EPOCH
from penstock.replication.mending import Mending
from penstock.replication.row import View
from penstock.wire.internal.faults import OutcomeUnknown

log_ = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 1.0


class Reopen(Protocol):
    def __call__(self, replicator: Replicator, *, is_emptied: bool) -> None:
        """Close it, soon, and open it again: with its files, or with none."""
        ...


class DamagedReplicas:
    def __init__(
        self,
        node: int,
        view: ClusterView,
        replicas: Mapping[PartitionKey, Replicator],
        reopen: Reopen,
        *,
        moved: asyncio.Event,
    ) -> None:
        """``moved``: set whenever a row or a registration has changed; others wait for it too."""
        self._node = node
        self._view = view
        self._replicas = replicas
        self._reopen = reopen
        self._tasks: dict[Replicator, asyncio.Task[None]] = {}
        self._moved = moved
        self._is_stopped = False

    def found(self, replicator: Replicator, reason: str, *, asked_in: int = NO_EPOCH) -> bool:
        """Whether it is put aside already when this returns. ``asked_in``: the last epoch in which
        another, in whose place it is, may have asked its leader for something."""
        if self._is_stopped:
            return False
        if self._is_spare(replicator):
            self._put_aside(replicator, reason)
        if replicator not in self._tasks:
            self._tasks[replicator] = asyncio.create_task(
                self._run(replicator, reason, asked_in), name=f"make anew {replicator.key}"
            )
        return replicator.is_put_aside

    async def stop(self) -> None:
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_spare(self, replicator: Replicator) -> bool:
        view = self._row(replicator)
        return view is not None and mending.is_spare(view.row, self._node)

    def _row(self, replicator: Replicator) -> View | None:
        """None when it is none of this node's any more: then others see to it."""
        key = replicator.key
        view = self._view.rows.get(key)
        is_mine = self._replicas.get(key) is replicator
        return view if is_mine and view is not None and self._node in view.row.replicas else None

    def _put_aside(self, replicator: Replicator, reason: str) -> None:
        if not replicator.is_put_aside:
            at = str(replicator.key)
            log_.error("damaged replica put aside", extra={"at": at, "reason": reason})
            replicator.put_aside()

    async def _run(self, replicator: Replicator, reason: str, asked_in: int) -> None:
        try:
            while not replicator.is_put_aside:
                if self._is_spare(replicator):
                    self._put_aside(replicator, reason)
                elif self._row(replicator) is None:
                    return
                else:
                    await self._news()
            await self._make_anew(replicator, max(asked_in, replicator.replica.epoch))
        except Exception:
            log_.exception("damaged replica left aside", extra={"at": str(replicator.key)})
        finally:
            del self._tasks[replicator]

    async def _make_anew(self, replicator: Replicator, asked_in: int) -> None:
        key = replicator.key
        while (view := self._row(replicator)) is not None:
            step = mending.next_step(
                view.row,
                self._node,
                asked_in=asked_in,
                incarnations=self._view.incarnations,
            )
            if step is Mending.RESIGN:
                await self._resign(key, view)
            elif step is Mending.WAIT:
                await self._news()
            else:
                log_.info("damaged replica opened again", extra={"at": str(key), "how": step.value})
                self._reopen(replicator, is_emptied=step is Mending.EMPTY)
                return

    async def _resign(self, key: PartitionKey, view: View) -> None:
        try:
            try:
                await self._view.propose(key, mending.resign(view, self._node))
            except (VersionConflict, OutcomeUnknown):
                await self._view.refresh_rows()
        except PenstockError as error:
            log_.warning("damaged replica waits", extra={"at": str(key), "reason": str(error)})
            await asyncio.sleep(STORE_RETRY_SECONDS)

    async def _news(self) -> None:
        self._moved.clear()
        await self._moved.wait()
