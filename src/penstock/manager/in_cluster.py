"""The manager inside the cluster: every node is a candidate, and one of them manages at a time.

A node becomes manager by creating the manager's entry in the store. The entry depends on the lease
of the node, so it disappears with the node, and a watch notifies the other nodes. The entry
guarantees nothing: two nodes may act as manager for a moment, so every change compares what it
relies on (rule R3 of docs/replication.md). A node that finds its own entry, written before a
restart or in a call whose reply was lost, manages until the entry disappears."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.manager import active_manager
from penstock.manager.active_manager import ActiveManager, Times, wait_for
from penstock.manager.cluster_state import read_nodes
from penstock.manager.decision_writer import AskStandings, cancelled
from penstock.manager.decisions import DecisionKind, Policy
from penstock.membership.cluster_view import ClusterLevel, ClusterView
from penstock.metadata import cluster_entries as stored
from penstock.metadata.cache import PrefixWatch
from penstock.metadata.cluster_entries import LevelEntry, ManagerEntry
from penstock.metadata.store import Change, ChangeKind, Store
from penstock.model.errors import Damaged, PenstockError, VersionConflict
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.replication.row import NO_NODE
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown

RETRY_SECONDS: Final = 1.0  # delay after an error of the store, or while this node has no lease

log = logging.getLogger(__name__)


class Holder(NamedTuple):
    node: int
    created: int  # the revision in which the entry was created


class Catalog(active_manager.Catalog, Protocol):
    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None: ...

    def on_tombstone(self, listener: Callable[[Topic], None]) -> None: ...


class Manager(PrefixWatch):
    def __init__(
        self,
        store: Store,
        node: int,
        *,
        view: ClusterView,
        catalog: Catalog,
        lease: Callable[[], int],
        ask_standings: AskStandings,
        clock: Clock,
        policy: Policy | None = None,
        times: Times | None = None,
        level: ClusterLevel | None = None,
    ) -> None:
        """Create a candidate. ``lease`` returns the lease of this node's registration, or 0. The
        caller starts and stops ``view``, ``catalog`` and ``level``."""
        super().__init__(store, stored.MANAGER_KEY)
        self._node = node
        self._lease = lease
        self._level = level
        self.counts: Counter[DecisionKind] = Counter()  # decisions written since this node started
        self._activate = partial(
            ActiveManager,
            store,
            view,
            catalog=catalog,
            ask_standings=ask_standings,
            policy=policy or Policy(),
            times=times or Times(),
            clock=clock,
            counts=self.counts,
        )
        self.passes = 0  # number of checks of due partitions, in tenures that have ended
        self._holder: Holder | None = None
        self._managed: Holder | None = None  # the entry under which this node manages or managed
        self.active: ActiveManager | None = None  # None unless this node manages
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        view.on_nodes(lambda: self.active.saw_nodes() if self.active else None)
        view.on_row(lambda *row: self.active.saw_row(*row) if self.active else None)
        catalog.on_change(lambda *topics: self.active.saw_topic(*topics) if self.active else None)
        catalog.on_tombstone(
            lambda tomb: self.active.saw_topic(tomb, None) if self.active else None
        )

    async def start(self) -> None:
        await super().start()
        self._task = asyncio.create_task(self._stand(), name="manager")

    async def stop(self) -> None:
        """Stop. If this node is the manager, another node can take over at once."""
        task, self._task = self._task, None
        await cancelled(filter(None, (task,)))
        await super().stop()
        await self._give_up()

    async def _give_up(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None or holder.node != self._node:
            return
        try:
            await self._store.txn(
                compare_created=((stored.MANAGER_KEY, holder.created),),
                deletes=(stored.MANAGER_KEY,),
            )
        except PenstockError as error:  # the entry disappears with the lease
            log.info("removing the manager entry failed", extra={"reason": str(error)})

    @property
    def manager(self) -> int:
        return NO_NODE if self._holder is None else self._holder.node

    @property
    def tenure_id(self) -> int:
        """The store revision at which the current manager took over."""
        return 0 if self._holder is None else self._holder.created

    def policy_changed(self) -> None:
        if self.active is not None:
            self.active.look_again(self.active.state.rows)

    async def _stand(self) -> None:
        while True:
            self._changed.clear()
            is_answered = False
            try:
                is_answered = self._holder is not None or await self._try_to_hold()
                if self._holder is not None and self._holder.node == self._node:
                    await self._manage(self._holder)
                    is_answered = self._holder is not None
            except PenstockError as error:
                log.warning("managing the cluster failed", extra={"reason": str(error)})
            except Exception as error:
                # Another node may succeed where this one failed.
                log.error("manager failed with an unexpected error", exc_info=error)
                await self._give_up()
            # If the store did not reply, the watch reports nothing either, so retry.
            await wait_for(self._changed, None if is_answered else RETRY_SECONDS)

    async def _try_to_hold(self) -> bool:
        """Try to become manager. Return whether there is a manager now."""
        lease = self._lease()
        if not lease:
            return False
        entry = stored.encode_entry(ManagerEntry(self._node))
        try:
            created = await self._store.txn(
                compare=((stored.MANAGER_KEY, 0),), puts=((stored.MANAGER_KEY, entry),), lease=lease
            )
        except (VersionConflict, OutcomeUnknown, DeadlineExceeded):
            await self._fill()
        else:
            if self.revision < created:
                self.revision = created
                self._holder = Holder(self._node, created)
        return self._holder is not None

    async def _manage(self, holder: Holder) -> None:
        log.info("this node became the manager", extra={"node": self._node})
        self.active = self._activate(manager_created=holder.created)
        self._managed = holder
        finalizing: asyncio.Task[None] | None = None
        if self._level is not None:
            raising = raise_levels(self._store, self._level, manager_created=holder.created)
            finalizing = asyncio.create_task(raising, name="feature level")
        try:
            await self.active.run()
        finally:
            self.passes += self.active.passes
            await cancelled(filter(None, (finalizing,)))
            self.active = None
            log.info("this node is no longer the manager", extra={"node": self._node})
        await self._fill()

    async def _fill(self) -> None:
        entries, revision = await self._store.list(stored.MANAGER_KEY)
        if revision < self.revision:
            return
        self.revision = revision
        self._holder = None
        for entry in entries:
            if entry.key == stored.MANAGER_KEY:
                self._holder = Holder(_node(entry.value), entry.create_revision)
        self._tell()

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.version <= self.revision:
                continue
            self.revision = change.version
            if change.key != stored.MANAGER_KEY:
                continue
            if change.kind is ChangeKind.DELETE:
                self._holder = None
            elif self._holder is None:
                self._holder = Holder(_node(change.value), change.version)
            else:  # the manager rewrote its entry
                self._holder = self._holder._replace(node=_node(change.value))
        self._tell()

    def _tell(self) -> None:
        if self.active is not None and self._holder != self._managed:
            self.active.depose()
        self._changed.set()


def _node(value: bytes) -> int:
    """Return the node id in the manager's entry, or NO_NODE if the entry is unreadable."""
    try:
        return stored.decode_manager(stored.MANAGER_KEY, value).node
    except Damaged:
        return NO_NODE


async def raise_levels(store: Store, level: ClusterLevel, *, manager_created: int) -> None:
    """Raise the feature level whenever an operator requests it. If a node does not support the
    level, remove the request instead. Nodes that do not support the level cannot register any
    more."""
    changed = asyncio.Event()
    end = level.on_change(changed.set)
    try:
        while True:
            changed.clear()
            is_done = await _raise_level(store, level, manager_created)
            await wait_for(changed, None if is_done else RETRY_SECONDS)
    finally:
        end()


async def _raise_level(store: Store, level: ClusterLevel, manager_created: int) -> bool:
    """Raise the feature level if requested. Return False if this must be retried."""
    entry, version = level.entry, level.version
    if not entry.wanted:
        return True
    try:
        nodes, _ = await read_nodes(store)
        behind = sorted(node for node, one in nodes.items() if entry.wanted not in one.levels)
        raised = LevelEntry(entry.level if behind else entry.wanted)
        await store.txn(
            compare=((stored.LEVEL_KEY, version),),
            compare_created=((stored.MANAGER_KEY, manager_created),),
            puts=((stored.LEVEL_KEY, stored.encode_entry(raised)),),
        )
    except (VersionConflict, OutcomeUnknown):
        return False
    except PenstockError as error:
        log.warning("raising the feature level failed, will retry", extra={"reason": str(error)})
        return False
    if behind:
        log.warning(
            "feature level not raised: some nodes do not support it",
            extra={"feature_level": entry.wanted, "nodes": ",".join(map(str, behind))},
        )
    return True
