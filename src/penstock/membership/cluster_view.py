"""The cluster as known to one node: live nodes, rows (leader and replicas of each partition) and
the feature level, kept in memory and updated by watches of the metadata store.

The view may be out of date. When a change is written (``propose``), the store rejects it if the row
has changed meanwhile. An older row never replaces a newer one in the view (rule R4 of
docs/replication.md)."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from penstock.metadata import cluster_entries as cluster
from penstock.metadata.cache import PrefixWatch, WatchGroup, put_in
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
    """Run a block that reads an entry. If the entry is damaged, log this and go on."""
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
                    # An existing key keeps its create revision.
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
        put_in(self.of_topic, key.topic_id, key.index, view)
        for listener in tuple(self.listeners):
            listener(key, view)

    def _forget(self, key: cluster.PartitionKey, revision: int) -> None:
        view = self.views.get(key)
        if view is None or view.revision >= revision:
            return
        del self.views[key]
        put_in(self.of_topic, key.topic_id, key.index, None)
        for listener in tuple(self.listeners):
            listener(key, None)


class ClusterView(WatchGroup):
    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes = _Nodes(store)
        self._rows = _Rows(store)
        super().__init__(self._nodes, self._rows)  # listeners must be added before the start
        self.nodes = self._nodes.entries
        self.incarnations = self._nodes.incarnations
        self.rows = self._rows.views
        self.refresh_rows = self._rows.refresh  # reads all rows, returns the revision of the read
        self.on_nodes = self._nodes.listeners.append
        # Listeners get each newer view of a row, or None if the row was deleted.
        self.on_row = self._rows.listeners.append

    @property
    def revision(self) -> int:
        return max(self._nodes.revision, self._rows.revision)

    @property
    def resync_count(self) -> int:
        return self._nodes.resync_count + self._rows.resync_count

    def of_topic(self, topic_id: str) -> Mapping[int, View]:
        return self._rows.of_topic.get(topic_id, {})

    async def propose(self, key: cluster.PartitionKey, change: Change) -> None:
        """Write a change of a partition's row to the store. Raises VersionConflict if the row or
        one of its nodes has changed meanwhile, and OutcomeUnknown if the store did not reply."""
        version = await write_row(self._store, key, change)
        self._rows.see(key, View(version, version, change.row))


async def write_row(store: Store, key: cluster.PartitionKey, change: Change) -> int:
    """Write a row (a partition's leader and replicas). Raises VersionConflict if it has changed."""
    return await store.txn(
        compare=((cluster.partition_key(key), change.version),),
        compare_created=[
            (cluster.node_key(node), made) for node, made in change.incarnations.items()
        ],
        puts=((cluster.partition_key(key), cluster.encode_entry(change.row)),),
    )


NO_ENTRY = cluster.LevelEntry()


class LevelRefused(PenstockError):
    """Raised if this node does not support the feature level of its cluster."""


class ClusterLevel(PrefixWatch):
    """The feature level of a cluster (``model/levels.py``).

    An operator requests a level. From then on each node that registers must support it. When the
    manager sees that all registered nodes support it, the manager raises the level. Because a
    registration fails if the level entry has changed, no node can register unnoticed in between. In
    an empty store the first node starts with the highest level it supports; a cluster without a
    level entry was created before feature levels existed."""

    def __init__(self, store: Store, levels: Levels | None = None) -> None:
        super().__init__(store, cluster.LEVEL_KEY)
        self.levels = levels or Levels()
        self.entry = NO_ENTRY
        self.version = 0  # version of the entry
        self._on_change: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change of the level. Returns a function to remove it."""
        self._on_change.append(listener)
        return lambda: self._on_change.remove(listener)

    @property
    def in_force(self) -> int:
        """The current level. All nodes understand it, so it may be used in messages and data."""
        return self.entry.level

    async def start(self) -> None:
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
        # The entry may have been written by another node, or by this one with a lost reply.
        with suppress(VersionConflict, OutcomeUnknown):
            await self._store.put(cluster.LEVEL_KEY, entry, if_version=0)
        await self.refresh()

    async def admit(self) -> tuple[str, int]:
        """Check the level of this node, and return the key and version of the level entry, which
        must be unchanged when this node registers."""
        await self.refresh()
        self.check()
        return cluster.LEVEL_KEY, self.version

    def check(self) -> None:
        """Raise LevelRefused unless this node supports the current and the requested level."""
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
        """Raise HelloRefused if the node that sent ``hello`` does not support the current level."""
        levels = Levels(hello.level_min, hello.level_max)
        if self.in_force not in levels:
            raise HelloRefused(
                f"Node {hello.node_id} supports feature {levels}; this cluster is at level"
                f" {self.in_force}."
            )

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

    _fill = refresh

    def _take(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            if change.version <= self.revision:
                continue
            self.revision = change.version
            if change.key != cluster.LEVEL_KEY:
                continue
            if change.kind is ChangeKind.DELETE:
                log_.error("feature level removed from the store")
                continue  # keep the level
            try:
                self._see(cluster.decode_level(cluster.LEVEL_KEY, change.value), change.version)
            except Damaged as error:
                log_.error("feature level unreadable", extra={"reason": str(error)})

    def _see(self, entry: cluster.LevelEntry, version: int) -> None:
        if entry.level < self.entry.level:
            # An older store was restored, but data written at the higher level still exists.
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
