"""The feature level of a cluster (``model/levels.py``), as known to one node.

    level 1 ──► an operator requests 2 ──► each node that registers from now on must support 2
                                      └──► the manager sees that all earlier nodes do ──► level 2

A registration compares the level entry. So it is either older than the request, and then the
manager checks that node, or its node supports the requested level: no node can slip through. In a
store without a cluster the first node starts with the highest level it supports. A store with a
cluster but without a level entry is from before feature levels.
"""

import logging
from collections.abc import Callable, Sequence

from penstock.metadata.cluster_entries import (
    LEVEL_KEY,
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    LevelEntry,
    decode_level,
    encode_entry,
)
from penstock.metadata.prefix_watch import PrefixWatch
from penstock.metadata.store import Change, ChangeKind, Store
from penstock.model.errors import Damaged, PenstockError, VersionConflict
from penstock.model.levels import Levels
from penstock.wire.internal.faults import HelloRefused, OutcomeUnknown
from penstock.wire.internal.frame import Hello

log = logging.getLogger(__name__)

NO_ENTRY = LevelEntry()


class LevelRefused(PenstockError):
    """This node does not support the level of its cluster."""


class ClusterLevel(PrefixWatch):
    def __init__(self, store: Store, levels: Levels | None = None) -> None:
        """``levels``: the levels that this node supports."""
        super().__init__(store, LEVEL_KEY)
        self.levels = levels or Levels()
        self.entry = NO_ENTRY
        self.version = 0  # of the entry
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change. Returns a function that removes the listener."""
        self._on_change.append(listener)
        return lambda: self._on_change.remove(listener)

    @property
    def in_force(self) -> int:
        """The level that may be used in messages and data. All nodes understand it: a node that has
        not yet seen a higher level simply continues with the lower one."""
        return self.entry.level

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Load the level. Raises LevelRefused, and the errors of the store."""
        await super().start()
        try:
            if not self.version:
                await self._begin()
            self.check()
        except BaseException:
            await self.stop()
            raise

    async def _begin(self) -> None:
        for prefix in (NODES_PREFIX, PARTITIONS_PREFIX):
            entries, _ = await self._store.list(prefix)
            if entries:
                return
        entry = encode_entry(LevelEntry(self.levels.highest))
        try:
            await self._store.put(LEVEL_KEY, entry, if_version=0)
        except (VersionConflict, OutcomeUnknown):
            pass  # the entry was written by another node, or perhaps by this one: read it
        await self.refresh()

    # ── Admission of nodes ───────────────────────────────────────────────────────────────────

    async def admit(self) -> tuple[str, int]:
        """Return the entry that this node's registration must compare. Raises LevelRefused."""
        await self.refresh()
        self.check()
        return LEVEL_KEY, self.version

    def check(self) -> None:
        """Raises LevelRefused if this node does not support the present and the requested level."""
        level, wanted = self.entry.level, self.entry.wanted or self.entry.level
        if level in self.levels and wanted in self.levels:
            return
        way = "an older" if level < self.levels.lowest else "a newer"
        at = f"at level {level}" if level not in self.levels else f"about to be at level {wanted}"
        raise LevelRefused(
            f"this node supports feature {self.levels}, but the cluster is {at}: run {way} version"
            " of Penstock on this node"
        )

    def check_hello(self, hello: Hello) -> None:
        """Raises HelloRefused for a node that does not support the level in force."""
        levels = Levels(hello.level_min, hello.level_max)
        if self.in_force not in levels:
            raise HelloRefused(
                f"Node {hello.node_id} supports feature {levels}; this cluster is at level"
                f" {self.in_force}."
            )

    # ── Updates ──────────────────────────────────────────────────────────────────────────────

    async def _fill(self) -> None:
        await self.refresh()

    async def refresh(self) -> None:
        entries, revision = await self._store.list(LEVEL_KEY)
        if revision < self.revision:
            return
        self.revision = revision
        found = [entry for entry in entries if entry.key == LEVEL_KEY]
        for entry in found:
            self._see(decode_level(LEVEL_KEY, entry.value), entry.version)
        if not found:
            self._see(NO_ENTRY, 0)

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.version <= self.revision:
                continue
            self.revision = change.version
            if change.key != LEVEL_KEY:
                continue
            if change.kind is ChangeKind.DELETE:
                log.error("feature level removed from the store")
                continue  # no node does that; the level in force stays
            try:
                self._see(decode_level(LEVEL_KEY, change.value), change.version)
            except Damaged as error:
                log.error("feature level unreadable", extra={"reason": str(error)})

    def _see(self, entry: LevelEntry, version: int) -> None:
        if entry.level < self.entry.level:
            # The store was set back, but data written at the higher level still exists.
            log.error(
                "feature level in the store decreased",
                extra={"feature_level": entry.level, "before": self.entry.level},
            )
            return
        if entry.level > self.entry.level and self.version:
            log.info("feature level raised", extra={"feature_level": entry.level})
        self.entry, self.version = entry, version
        for listener in tuple(self._on_change):
            listener()
