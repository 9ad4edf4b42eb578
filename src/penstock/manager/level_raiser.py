"""Raising the feature level: the level that an operator requested applies once every node is
certain to support it.

Once the request is in the store, nodes that do not support the level cannot register
(``membership/cluster_view.py``), so one check of the registered nodes is enough. If one of them
does not, although the operator's command checks that first, the request is removed. Levels never go
down."""

import asyncio
import logging
from typing import Final

from penstock.manager.state_reader import read_nodes
from penstock.membership.cluster_view import ClusterLevel
from penstock.metadata.cluster_entries import LEVEL_KEY, MANAGER_KEY, LevelEntry, encode_entry
from penstock.metadata.store import Store
from penstock.model.errors import PenstockError, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown

RETRY_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class LevelRaiser:
    def __init__(self, store: Store, level: ClusterLevel, *, manager_created: int) -> None:
        """``manager_created``: the revision in which the manager's entry was created."""
        self._store = store
        self._level = level
        self._manager_created = manager_created
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Handle requests until cancelled."""
        end = self._level.on_change(self._changed.set)
        try:
            while True:
                self._changed.clear()
                is_done = await self._look()
                try:
                    async with asyncio.timeout(None if is_done else RETRY_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            end()

    async def _look(self) -> bool:
        """Return whether there is nothing to do until the entry changes."""
        entry, version = self._level.entry, self._level.version
        if not entry.wanted:
            return True
        try:
            nodes, _ = await read_nodes(self._store)
            behind = sorted(node for node, one in nodes.items() if entry.wanted not in one.levels)
            level = entry.level if behind else entry.wanted
            await self._store.txn(
                compare=((LEVEL_KEY, version),),
                compare_created=((MANAGER_KEY, self._manager_created),),
                puts=((LEVEL_KEY, encode_entry(LevelEntry(level))),),
            )
        except (VersionConflict, OutcomeUnknown):
            return False  # the watch reports the new entry; retry in any case
        except PenstockError as error:
            log.warning("feature level not raised yet", extra={"reason": str(error)})
            return False
        if behind:
            log.warning(
                "feature level not raised: some nodes do not support it",
                extra={"feature_level": entry.wanted, "nodes": ",".join(map(str, behind))},
            )
        return True
