"""The cluster as known to one node: live nodes, partition rows and the feature level, in memory and
updated by watches.

It may be out of date. A change based on it is compared by the store (``propose``), which refuses it
if the row has changed since. The revision of a view never decreases (R4): an older row never
replaces a newer one."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from penstock.metadata import cluster_entries as cluster
from penstock.metadata.cache import PrefixWatch
from penstock.metadata.store import Change as StoreChange
from penstock.metadata.store import ChangeKind, Store
from penstock.model.errors import Damaged, PenstockError, VersionConflict
from penstock.model.levels import Levels
from penstock.replication.row import Change, View
from penstock.wire.internal.faults import HelloRefused, OutcomeUnknown
from penstock.wire.internal.frame import Hello

log_ = logging.getLogger(__name__)

OnNodes = Callable[[], None]
OnRow = Callable[[cluster.PartitionKey, View | None], None]


@contextmanager
def _reported() -> Iterator[None]:
    """Skip an entry that cannot be read, so that the others are still used."""
    try:
        yield
    except Damaged as error:
        log_.error("unreadable cluster entry ignored", extra={"reason": str(error)})


class _Nodes(PrefixWatch):
    def __init__(self, store: Store) -> None:
        super().__init__(store, cluster.NODES_PREFIX)
        self.entries: dict[int, cluster.NodeEntry] = {}
        self.incarnations: dict[int, int] = {}
        self.listeners: list[OnNodes] = []

    async def _fill(self) -> None:
        entries, self.revision = await self._store.list(cluster.NODES_PREFIX)
        self.entries.clear()
        self.incarnations.clear()
        for one in entries:
            with _reported():
                self.entries[cluster.node_of(one.key)] = cluster.decode_node(one.key, one.value)
                self.incarnations[cluster.node_of(one.key)] = one.create_revision
        self._notify()

    def _take(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            with _reported():
                node = cluster.node_of(change.key)
                if change.kind is ChangeKind.DELETE:
                    self.entries.pop(node, None)
                    self.incarnations.pop(node, None)
                else:
                    self.entries[node] = cluster.decode_node(change.key, change.value)
                    # A new key, or one that keeps its create revision.
                    self.incarnations.setdefault(node, change.version)
        self.revision = max(self.revision, changes[-1].version)
        self._notify()

    def _notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()


class _Rows(PrefixWatch):
    def __init__(self, store: Store) -> None:
        super().__init__(store, cluster.PARTITIONS_PREFIX)
        self.views: dict[cluster.PartitionKey, View] = {}
        self.of_topic: dict[str, dict[int, View]] = {}
        self.listeners: list[OnRow] = []

    async def _fill(self) -> None:
        await self.refresh()

    async def refresh(self) -> int:
        entries, revision = await self._store.list(cluster.PARTITIONS_PREFIX)
        found = set()
        for entry in entries:
            with _reported():
                key = cluster.partition_of(entry.key)
                found.add(key)
                self.see(
                    key, View(revision, entry.version, cluster.decode_row(entry.key, entry.value))
                )
        for key in [key for key in self.views if key not in found]:
            self._forget(key, revision)
        self.revision = max(self.revision, revision)
        return revision

    def _take(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            with _reported():
                key = cluster.partition_of(change.key)
                if change.kind is ChangeKind.DELETE:
                    self._forget(key, change.version)
                else:
                    row = cluster.decode_row(change.key, change.value)
                    self.see(key, View(change.version, change.version, row))
        self.revision = max(self.revision, changes[-1].version)

    def see(self, key: cluster.PartitionKey, view: View) -> None:
        before = self.views.get(key)
        if before is not None and view.revision <= before.revision:
            return
        self.views[key] = view
        self.of_topic.setdefault(key.topic_id, {})[key.index] = view
        for listener in tuple(self.listeners):
            listener(key, view)

    def _forget(self, key: cluster.PartitionKey, revision: int) -> None:
        """Remove a row that is deleted at this revision, unless a newer view is known."""
        view = self.views.get(key)
        if view is None or view.revision >= revision:
            return
        del self.views[key]
        of_topic = self.of_topic[key.topic_id]
        del of_topic[key.index]
        if not of_topic:
            del self.of_topic[key.topic_id]
        for listener in tuple(self.listeners):
            listener(key, None)


class ClusterView:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes = _Nodes(store)
        self._rows = _Rows(store)
        self.nodes = self._nodes.entries
        self.incarnations = self._nodes.incarnations
        self.rows = self._rows.views
        self.refresh_rows = self._rows.refresh  # reads all rows, returns the revision of the read
        self.on_nodes = self._nodes.listeners.append
        # Listeners get each newer view of a row, None if the row was deleted.
        self.on_row = self._rows.listeners.append

    async def start(self) -> None:
        """Load everything into memory. Add listeners before."""
        await self._nodes.start()
        await self._rows.start()

    async def stop(self) -> None:
        await self._rows.stop()
        await self._nodes.stop()

    @property
    def trouble(self) -> str | None:
        return self._rows.trouble or self._nodes.trouble

    @property
    def revision(self) -> int:
        """The newest known revision of the store."""
        return max(self._nodes.revision, self._rows.revision)

    @property
    def resync_count(self) -> int:
        return self._nodes.resync_count + self._rows.resync_count

    def of_topic(self, topic_id: str) -> Mapping[int, View]:
        return self._rows.of_topic.get(topic_id, {})

    async def propose(self, key: cluster.PartitionKey, change: Change) -> None:
        """Write a change to the store. Raises VersionConflict if anything that it compares has
        changed, and OutcomeUnknown if the outcome is unknown: a later view shows it (R1, R2)."""
        version = await write_row(self._store, key, change)
        self._rows.see(key, View(version, version, change.row))


async def write_row(store: Store, key: cluster.PartitionKey, change: Change) -> int:
    """Write a row if neither it nor a node it relies on has changed. Raises VersionConflict."""
    return await store.txn(
        compare=((cluster.partition_key(key), change.version),),
        compare_created=[
            (cluster.node_key(node), made) for node, made in change.incarnations.items()
        ],
        puts=((cluster.partition_key(key), cluster.encode_entry(change.row)),),
    )


NO_ENTRY = cluster.LevelEntry()


class LevelRefused(PenstockError):
    """This node does not support the level of its cluster."""


class ClusterLevel(PrefixWatch):
    """The feature level of a cluster (``model/levels.py``).

    An operator requests a level. From then on each node that registers must support it, and when
    the manager sees that all earlier nodes do, it raises the level. A registration compares the
    level entry: so it is older than the request, and the manager checks that node, or its node
    supports the requested level. In a store without a cluster the first node starts with the
    highest level it supports; a cluster without a level entry is from before feature levels."""

    def __init__(self, store: Store, levels: Levels | None = None) -> None:
        """``levels``: the levels that this node supports."""
        super().__init__(store, cluster.LEVEL_KEY)
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
        """The level that may be used in messages and data: all nodes understand it."""
        return self.entry.level

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
        for prefix in (cluster.NODES_PREFIX, cluster.PARTITIONS_PREFIX):
            entries, _ = await self._store.list(prefix)
            if entries:
                return
        entry = cluster.encode_entry(cluster.LevelEntry(self.levels.highest))
        # If another node, or perhaps this one, has written the entry, it is read.
        with suppress(VersionConflict, OutcomeUnknown):
            await self._store.put(cluster.LEVEL_KEY, entry, if_version=0)
        await self.refresh()

    async def admit(self) -> tuple[str, int]:
        """Return the entry that this node's registration must compare. Raises LevelRefused."""
        await self.refresh()
        self.check()
        return cluster.LEVEL_KEY, self.version

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

    async def _fill(self) -> None:
        await self.refresh()

    async def refresh(self) -> None:
        entries, revision = await self._store.list(cluster.LEVEL_KEY)
        if revision < self.revision:
            return
        self.revision = revision
        found = [entry for entry in entries if entry.key == cluster.LEVEL_KEY]
        for entry in found:
            self._see(cluster.decode_level(cluster.LEVEL_KEY, entry.value), entry.version)
        if not found:
            self._see(NO_ENTRY, 0)

    def _take(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            if change.version <= self.revision:
                continue
            self.revision = change.version
            if change.key != cluster.LEVEL_KEY:
                continue
            if change.kind is ChangeKind.DELETE:
                log_.error("feature level removed from the store")
                continue  # no node does that; the level in force stays
            try:
                self._see(cluster.decode_level(cluster.LEVEL_KEY, change.value), change.version)
            except Damaged as error:
                log_.error("feature level unreadable", extra={"reason": str(error)})

    def _see(self, entry: cluster.LevelEntry, version: int) -> None:
        if entry.level < self.entry.level:
            # The store was set back, but data written at the higher level still exists.
            log_.error(
                "feature level in the store decreased",
                extra={"feature_level": entry.level, "before": self.entry.level},
            )
            return
        if entry.level > self.entry.level and self.version:
            log_.info("feature level raised", extra={"feature_level": entry.level})
        self.entry, self.version = entry, version
        for listener in tuple(self._on_change):
            listener()
