"""The cluster as known to one node: live nodes and partition rows.

Held in memory and updated by two watches, so it may be out of date. A change based on it is
compared by the store (``propose``), which refuses it if the row has changed since. The revision of
a view never decreases (R4): an older row never replaces a newer one.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from penstock.metadata.cluster_entries import (
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    NodeEntry,
    PartitionKey,
    decode_node,
    decode_row,
    encode_entry,
    node_key,
    node_of,
    partition_key,
    partition_of,
)
from penstock.metadata.following import Following
from penstock.metadata.store import Change as StoreChange
from penstock.metadata.store import ChangeKind, Store
from penstock.model.errors import Damaged
from penstock.replication.row import Change, View

log_ = logging.getLogger(__name__)

OnNodes = Callable[[], None]
OnRow = Callable[[PartitionKey, View | None], None]


@contextmanager
def _reported() -> Iterator[None]:
    """Skip an entry that cannot be read, so that the others are still used."""
    try:
        yield
    except Damaged as error:
        log_.error("an entry of the cluster cannot be read", extra={"reason": str(error)})


class ClusterView:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.nodes: dict[int, NodeEntry] = {}
        self.incarnations: dict[int, int] = {}
        self.rows: dict[PartitionKey, View] = {}
        self._of_topic: dict[str, dict[int, View]] = {}
        self._on_nodes: list[OnNodes] = []
        self._on_row: list[OnRow] = []
        self._nodes_revision = 0
        self._rows_revision = 0
        self._nodes = Following(
            store,
            NODES_PREFIX,
            fill=self._fill_nodes,
            take=self._take_nodes,
            revision=lambda: self._nodes_revision,
        )
        self._rows = Following(
            store,
            PARTITIONS_PREFIX,
            fill=self._fill_rows,
            take=self._take_rows,
            revision=lambda: self._rows_revision,
        )

    async def start(self) -> None:
        """Load everything into memory. Add listeners before."""
        await self._nodes.start()
        await self._rows.start()

    async def stop(self) -> None:
        await self._rows.stop()
        await self._nodes.stop()

    def on_nodes(self, listener: OnNodes) -> None:
        self._on_nodes.append(listener)

    def on_row(self, listener: OnRow) -> None:
        """Call ``listener`` with each newer view of a row, None if the row was deleted."""
        self._on_row.append(listener)

    @property
    def trouble(self) -> str | None:
        return self._rows.trouble or self._nodes.trouble

    @property
    def revision(self) -> int:
        """The newest known revision of the store."""
        return max(self._nodes_revision, self._rows_revision)

    @property
    def resync_count(self) -> int:
        return self._nodes.resync_count + self._rows.resync_count

    def of_topic(self, topic_id: str) -> Mapping[int, View]:
        return self._of_topic.get(topic_id, {})

    # ── Nodes ────────────────────────────────────────────────────────────────────────────────

    async def _fill_nodes(self) -> None:
        entries, revision = await self._store.list(NODES_PREFIX)
        self.nodes, self.incarnations = {}, {}
        for one in entries:
            with _reported():
                self.nodes[node_of(one.key)] = decode_node(one.key, one.value)
                self.incarnations[node_of(one.key)] = one.create_revision
        self._nodes_revision = revision
        self._tell_nodes()

    def _take_nodes(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            with _reported():
                node = node_of(change.key)
                if change.kind is ChangeKind.DELETE:
                    self.nodes.pop(node, None)
                    self.incarnations.pop(node, None)
                else:
                    self.nodes[node] = decode_node(change.key, change.value)
                    # A new key, or one that keeps its create revision.
                    self.incarnations.setdefault(node, change.version)
            self._nodes_revision = max(self._nodes_revision, change.version)
        self._tell_nodes()

    def _tell_nodes(self) -> None:
        for listener in tuple(self._on_nodes):
            listener()

    # ── Rows ─────────────────────────────────────────────────────────────────────────────────

    async def _fill_rows(self) -> None:
        await self.refresh_rows()

    async def refresh_rows(self) -> int:
        """Read all rows again. Returns the revision at which they were read."""
        entries, revision = await self._store.list(PARTITIONS_PREFIX)
        found = set()
        for entry in entries:
            with _reported():
                key = partition_of(entry.key)
                found.add(key)
                self._see(key, View(revision, entry.version, decode_row(entry.key, entry.value)))
        for key in [key for key, view in self.rows.items() if key not in found]:
            if self.rows[key].revision < revision:
                self._forget(key)
        self._rows_revision = max(self._rows_revision, revision)
        return revision

    def _take_rows(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            with _reported():
                key = partition_of(change.key)
                if change.kind is ChangeKind.DELETE:
                    view = self.rows.get(key)
                    if view is not None and view.revision < change.version:
                        self._forget(key)
                else:
                    row = decode_row(change.key, change.value)
                    self._see(key, View(change.version, change.version, row))
            self._rows_revision = max(self._rows_revision, change.version)

    def _see(self, key: PartitionKey, view: View) -> None:
        before = self.rows.get(key)
        if before is not None and view.revision <= before.revision:
            return
        self.rows[key] = view
        self._of_topic.setdefault(key.topic_id, {})[key.index] = view
        for listener in tuple(self._on_row):
            listener(key, view)

    def _forget(self, key: PartitionKey) -> None:
        del self.rows[key]
        of_topic = self._of_topic[key.topic_id]
        del of_topic[key.index]
        if not of_topic:
            del self._of_topic[key.topic_id]
        for listener in tuple(self._on_row):
            listener(key, None)

    async def propose(self, key: PartitionKey, change: Change) -> None:
        """Write a change to the store. Raises VersionConflict if anything that it compares has
        changed, and OutcomeUnknown if the outcome is unknown: a later view shows it (R1, R2)."""
        version = await self._store.txn(
            compare=((partition_key(key), change.version),),
            compare_created=[(node_key(node), made) for node, made in change.incarnations.items()],
            puts=((partition_key(key), encode_entry(change.row)),),
        )
        self._see(key, View(version, version, change.row))
