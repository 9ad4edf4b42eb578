"""The in-cluster manager: every node is a candidate, one of them manages at a time.

A node becomes manager by writing the manager's entry while there is none. The entry depends on the
lease of the node, so it disappears with the node, and the watch notifies the others. The entry
guarantees nothing: two nodes may act as manager for a moment, so every change compares what it
relies on (R3). For the same reason, a node that finds its own entry, written before a restart or in
a call whose reply was lost, simply manages until the entry disappears.

``tenure.py`` contains the manager's work, ``decisions.py`` and ``moving.py`` its decisions.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.manager import tenure
from penstock.manager.asking import AskStandings
from penstock.manager.decisions import Policy, Why
from penstock.manager.finalizing import Finalizing
from penstock.manager.known import Known
from penstock.manager.tenure import Tenure, Times
from penstock.metadata.cluster_entries import (
    MANAGER_KEY,
    ManagerEntry,
    PartitionKey,
    decode_manager,
    encode_entry,
)
from penstock.metadata.cluster_level import ClusterLevel
from penstock.metadata.cluster_view import ClusterView
from penstock.metadata.following import Following
from penstock.metadata.store import Change, ChangeKind, Store
from penstock.model.errors import Damaged, PenstockError, VersionConflict
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.replication.row import NOBODY, View
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown

RETRY_SECONDS: Final = 1.0  # after an error of the store, or while this node has no lease

log = logging.getLogger(__name__)


class Holder(NamedTuple):
    node: int
    created: int  # the revision in which the entry was created


class Catalog(tenure.Catalog, Protocol):
    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None: ...

    def on_tombstone(self, listener: Callable[[Topic], None]) -> None: ...


class Manager:
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
        """``lease`` returns the lease of this node's registration, 0 while it has none. ``view``,
        ``catalog`` and ``level`` are already started, and are not stopped by ``stop``."""
        self._store = store
        self._node = node
        self._view = view
        self._catalog = catalog
        self._lease = lease
        self._ask_standings = ask_standings
        self._clock = clock
        self._policy = policy or Policy()
        self._times = times or Times()
        self._level = level
        self.counts: Counter[Why] = Counter()  # decisions written since this node started
        self.passes = 0  # checks of due partitions, in tenures that have ended
        self._holder: Holder | None = None
        self._revision = 0
        self._managed: Holder | None = None  # the entry under which this node manages or managed
        self._tenure: Tenure | None = None
        self._changed = asyncio.Event()
        self._following = Following(
            store, MANAGER_KEY, fill=self._fill, take=self._take, revision=lambda: self._revision
        )
        self._task: asyncio.Task[None] | None = None
        view.on_nodes(self._on_nodes)
        view.on_row(self._on_row)
        catalog.on_change(self._on_topic)
        catalog.on_tombstone(lambda tomb: self._on_topic(tomb, None))

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Become a candidate. Raises the errors of the store."""
        assert self._task is None, "a node stands once"
        await self._following.start()
        self._task = asyncio.create_task(self._stand(), name="manager")

    async def stop(self) -> None:
        """Stop; if this node is the manager, another can take over at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._following.stop()
        await self._give_up()

    async def _give_up(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None or holder.node != self._node:
            return
        try:
            await self._store.txn(
                compare_created=((MANAGER_KEY, holder.created),), deletes=(MANAGER_KEY,)
            )
        except PenstockError as error:  # the entry disappears with the lease
            log.info("the manager's entry was left", extra={"why": str(error)})

    @property
    def is_managing(self) -> bool:
        return self._tenure is not None

    @property
    def manager(self) -> int:
        """The node that manages, as far as this node knows."""
        return NOBODY if self._holder is None else self._holder.node

    @property
    def tenure_id(self) -> int:
        """The revision in which that node became the manager; it increases with each manager."""
        return 0 if self._holder is None else self._holder.created

    @property
    def tenure(self) -> Tenure | None:
        """The current tenure; None unless this node manages."""
        return self._tenure

    @property
    def known(self) -> Known | None:
        """The cluster state for a summary (``overview.py``); None unless this node manages."""
        return None if self._tenure is None else self._tenure.known

    def policy_changed(self) -> None:
        """Called when the policy has been changed in place."""
        if self._tenure is not None:
            self._tenure.saw_policy()

    # ── Candidacy ────────────────────────────────────────────────────────────────────────────

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
                log.warning("the cluster cannot be managed", extra={"why": str(error)})
            except Exception as error:
                # Another node may succeed where this one failed.
                log.error("the manager failed", exc_info=error)
                await self._give_up()
            try:
                # If the store did not reply, the watch reports nothing either: retry.
                async with asyncio.timeout(None if is_answered else RETRY_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _try_to_hold(self) -> bool:
        """Try to become manager. Returns whether there is a manager now."""
        lease = self._lease()
        if not lease:
            return False
        entry = encode_entry(ManagerEntry(self._node))
        try:
            created = await self._store.txn(
                compare=((MANAGER_KEY, 0),), puts=((MANAGER_KEY, entry),), lease=lease
            )
        except (VersionConflict, OutcomeUnknown, DeadlineExceeded):
            await self._fill()
        else:
            if self._revision < created:
                self._revision = created
                self._holder = Holder(self._node, created)
        return self._holder is not None

    async def _manage(self, holder: Holder) -> None:
        """Manage until another node does."""
        log.info("this node manages the cluster", extra={"node": self._node})
        self._tenure = Tenure(
            self._store,
            self._view,
            manager_created=holder.created,
            catalog=self._catalog,
            ask_standings=self._ask_standings,
            policy=self._policy,
            times=self._times,
            clock=self._clock,
            counts=self.counts,
        )
        self._managed = holder
        finalizing: asyncio.Task[None] | None = None
        if self._level is not None:
            level = Finalizing(self._store, self._level, manager_created=holder.created)
            finalizing = asyncio.create_task(level.run(), name="feature level")
        try:
            await self._tenure.run()
        finally:
            self.passes += self._tenure.passes
            if finalizing is not None:
                finalizing.cancel()
                await asyncio.wait((finalizing,))
            self._tenure = None
            log.info("this node manages the cluster no longer", extra={"node": self._node})
        await self._fill()

    # ── The manager's entry ──────────────────────────────────────────────────────────────────

    async def _fill(self) -> None:
        entries, revision = await self._store.list(MANAGER_KEY)
        if revision < self._revision:
            return
        self._revision = revision
        self._holder = None
        for entry in entries:
            if entry.key == MANAGER_KEY:
                self._holder = Holder(_node(entry.value), entry.create_revision)
        self._tell()

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.version <= self._revision:
                continue
            self._revision = change.version
            if change.key != MANAGER_KEY:
                continue
            if change.kind is ChangeKind.DELETE:
                self._holder = None
            elif self._holder is None:
                self._holder = Holder(_node(change.value), change.version)
            else:  # rewritten by its holder
                self._holder = self._holder._replace(node=_node(change.value))
        self._tell()

    def _tell(self) -> None:
        if self._tenure is not None and self._holder != self._managed:
            self._tenure.depose()
        self._changed.set()

    # ── Notifications ────────────────────────────────────────────────────────────────────────

    def _on_nodes(self) -> None:
        if self._tenure is not None:
            self._tenure.saw_nodes()

    def _on_row(self, key: PartitionKey, view: View | None) -> None:
        if self._tenure is not None:
            self._tenure.saw_row(key, view)

    def _on_topic(self, before: Topic | None, after: Topic | None) -> None:
        if self._tenure is not None:
            self._tenure.saw_topic(before, after)


def _node(value: bytes) -> int:
    """Return the node of the entry; an unreadable entry still counts as held."""
    try:
        return decode_manager(MANAGER_KEY, value).node
    except Damaged:
        return NOBODY
