"""All replicas on this node: opened when a row names the node, told what rows say, and closed and
removed when they are to be here no more.

The order of a start is that of R4: nobody counts on this node any more; then its logs are looked
at, and what they may have lost is declared; then it registers, and only what rows say from then on
counts. A node whose lease ended while it lived goes through the same, without closing its logs.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.broker.damaged_replicas import DamagedReplicas
from penstock.broker.in_sync_sets import InSyncSets
from penstock.broker.leading import Leading
from penstock.broker.opening import log_config, open_log
from penstock.broker.partition import Partition
from penstock.broker.partitions import TOPICS_FOLDER, Partitions
from penstock.broker.replica_fetching import ReplicaAnswering, ReplicaAsking
from penstock.broker.replication_counts import ReplicationCounts
from penstock.broker.replicator import Replicator
from penstock.broker.surroundings import Surroundings
from penstock.log.epochs import read_epochs
from penstock.log.log import Log
from penstock.metadata.cluster_entries import PARTITIONS_PREFIX, PartitionKey, decode_row
from penstock.metadata.cluster_entries import partition_of as key_of
from penstock.metadata.cluster_view import ClusterView
from penstock.metadata.membership import Membership
from penstock.metadata.registered_at import RegisteredAt
from penstock.metadata.store import Store
from penstock.model.errors import (
    Damaged,
    DiskFull,
    NotLeader,
    Overloaded,
    PenstockError,
    VersionConflict,
)
from penstock.model.levels import LEVEL_FIRST
from penstock.model.topic import Fsync, Topic
from penstock.net.turns import in_turns
from penstock.replication.election import Found, declare_loss, loss_of
from penstock.replication.epochs import NO_EPOCH, EpochHistory
from penstock.replication.replica import Role
from penstock.replication.row import View
from penstock.wire.internal.calls import Answers, Asked, Caller
from penstock.wire.internal.faults import OutcomeUnknown
from penstock.wire.internal.replica_calls import (
    DROP,
    NOT_HERE,
    REPLICA_FETCH,
    STANDINGS,
    DropAsked,
    DropTold,
    StandingsAsked,
    StandingsTold,
)

log_ = logging.getLogger(__name__)

OPEN_AT_ONCE = 64
LEAVE_SECONDS_MAX = 10.0  # for others to lead, before a node that stops stops all the same
DROP_RETRY_SECONDS = 2.0
RESTART_RETRY_SECONDS = 1.0
OPEN_RETRY_SECONDS = 2.0


class Replicators:
    """Implements ``replicator.Home``."""

    def __init__(
        self,
        surroundings: Surroundings,
        partitions: Partitions,
        *,
        store: Store,
        view: ClusterView,
        membership: Membership,
        peer: Callable[[int], Caller],
        level: Callable[[], int] = lambda: LEVEL_FIRST,
    ) -> None:
        """``level``: the feature level in force."""
        self.surroundings = surroundings
        self.node = membership.entry.node
        self._partitions = partitions
        self._store = store
        self._view = view
        self._membership = membership
        self._registered_at = RegisteredAt(surroundings.folder)
        self._peer = peer
        self._level = level
        self._loop = asyncio.get_running_loop()
        self._replicas: dict[PartitionKey, Replicator] = {}
        self._opening: dict[PartitionKey, asyncio.Task[None]] = {}
        self._dropping: dict[PartitionKey, asyncio.Task[None]] = {}
        self._jobs: list[asyncio.Task[None]] = []
        self._again: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_started = False  # once: then what rows say is about this life
        self._is_coming_back = False  # all logs are looked at together: nobody else opens one
        self._rows_moved = asyncio.Event()
        self.counts = ReplicationCounts()
        self._in_sync_sets = InSyncSets(self._replicas, view, self.counts)
        self._damaged = DamagedReplicas(
            self.node, view, self._replicas, self._reopen, moved=self._rows_moved
        )
        self._asking = ReplicaAsking(
            self.node,
            incarnation=lambda: membership.incarnation,
            peer=peer,
            counts=self.counts,
        )
        self._answering = ReplicaAnswering(self._find, level=level, counts=self.counts)

    # ── Home ─────────────────────────────────────────────────────────────────────────────────

    def now_ms(self) -> int:
        return self.surroundings.clock.mono_ms()

    def ask_soon(self, replicator: Replicator, *, after_ms: int = 0) -> None:
        self._asking.ask_soon(replicator, after_ms=after_ms)

    def look_soon(self) -> None:
        self._in_sync_sets.look_soon()

    def is_alive(self, node: int) -> bool:
        return node == self.node or node in self._view.nodes

    @property
    def level(self) -> int:
        return self._level()

    @property
    def is_registered(self) -> bool:
        return self._membership.is_good

    async def lead(self, replicator: Replicator, leading: Leading) -> Partition:
        key = replicator.key
        restored = await replicator.restored(self.surroundings.catalog.shares_of(key.topic_id))
        if restored.damage is not None and self.damaged(replicator, restored.damage):
            raise replicator.not_leader()
        return await self._partitions.lead(
            replicator.topic, key.index, replicator.log, restored, leading
        )

    async def release(self, partition: Partition, reason: NotLeader | Overloaded) -> None:
        await self._partitions.release(partition, reason)

    def damaged(self, replicator: Replicator, damage: Damaged) -> bool:
        return self._damaged.found(replicator, str(damage))

    def _reopen(self, replicator: Replicator, *, is_emptied: bool) -> None:
        """For ``DamagedReplicas``. It is opened again when this has ended (``_spawn``)."""
        key = replicator.key

        async def close() -> None:
            del self._replicas[key]
            await replicator.close(is_clean=False)
            if is_emptied:
                folder = self._folder_of(key)
                await self._loop.run_in_executor(self.surroundings.pool, _remove, folder)

        if key not in self._dropping:
            self._dropping[key] = self._spawn(close(), self._dropping, key, "reopen")

    # ── Start ────────────────────────────────────────────────────────────────────────────────

    def register(self, answers: Answers) -> None:
        answers.add(REPLICA_FETCH, self._answering.fetch)
        answers.add(STANDINGS, self._standings)
        answers.add(DROP, self._drop_asked)

    async def start(self) -> None:
        self._folder().mkdir(parents=True, exist_ok=True)
        await self._come_back()
        self._is_started = True
        self._view.on_row(self._row_changed)
        self._view.on_nodes(self._nodes_changed)
        self.surroundings.catalog.on_change(self._catalog_changed)
        self.surroundings.defaults.on_change(self._defaults_changed)
        self._partitions.scrubber.logs = lambda: list(self._replicas.values())
        self._partitions.compact_also(lambda: [one.followed for one in self._replicas.values()])
        await self._look_around()
        await self._remove_deleted()
        self._jobs = [
            asyncio.create_task(self._in_sync_sets.run(), name="in-sync sets"),
            asyncio.create_task(self._sync_forever(), name="interval sync of followers"),
        ]

    async def _look_around(self) -> None:
        """Replicas have come to be, and know of no row. What the view has seen by itself since this
        node registered it does not tell again."""
        await self._view.refresh_rows()
        for key, view in tuple(self._view.rows.items()):
            if self.node in view.row.replicas:
                self._row_changed(key, view)

    async def _remove_deleted(self) -> None:
        """Folders of topics that were deleted while this node was away. One that nobody knows of is
        left alone and reported: a store may have been set back."""
        known = {key.topic_id for key in self._view.rows}
        for folder in sorted(self._folder().iterdir()):
            if folder.name in known:
                continue
            if self.surroundings.catalog.tombstone(folder.name) is None:
                log_.warning("folder without a topic left alone", extra={"folder": folder.name})
            else:
                await self._loop.run_in_executor(self.surroundings.pool, _remove, folder)

    async def _come_back(self) -> None:
        """R4, from the removal of the old entry to the new one."""
        self._is_coming_back = True
        try:
            await self._register()
        finally:
            self._is_coming_back = False

    async def _register(self) -> None:
        gone_at = await self._membership.clear()
        self._registered_at.check(gone_at)
        entries, _ = await self._store.list(PARTITIONS_PREFIX, min_revision=gone_at)
        rows = {}
        for entry in entries:
            row = decode_row(entry.key, entry.value)
            if self.node in row.replicas:
                rows[key_of(entry.key)] = View(gone_at, entry.version, row)
        wanted = list(rows)
        busy = [
            tasks[key]
            for tasks in (self._opening, self._dropping)
            for key in wanted
            if key in tasks
        ]
        if busy:
            await asyncio.wait(busy)  # a log has one owner
        logs: dict[PartitionKey, tuple[Topic, Log, EpochHistory]] = {}
        for start in range(0, len(wanted), OPEN_AT_ONCE):
            found = await asyncio.gather(
                *(self._look(key, rows[key]) for key in wanted[start : start + OPEN_AT_ONCE])
            )
            logs.update({key: one for key, one in found if one is not None})
        incarnation = await self._membership.register()
        for replicator in tuple(self._replicas.values()):
            replicator.reincarnate(incarnation)
        for key, (topic, log, history) in logs.items():
            self._add(key, topic, log, history)
        await self._loop.run_in_executor(
            self.surroundings.pool, self._registered_at.note, incarnation
        )

    async def _look(
        self, key: PartitionKey, view: View
    ) -> tuple[PartitionKey, tuple[Topic, Log, EpochHistory] | None]:
        """Open a log and say what it may have lost, before anybody can elect this node for it."""
        if key in self._replicas:
            return key, None  # it has never been out of this process's hands
        if key in self._dropping:
            return key, None  # it is looked at when that has ended
        topic = self.surroundings.catalog.find_id(key.topic_id)
        if topic is None:
            return key, None  # deleted, or the catalog is behind: opened when the row is seen
        log, history = await self._open(topic, key)
        report = log.recovery
        found = Found(
            is_there=not report.is_new,
            is_whole=not report.damage and not report.has_garbage and not report.is_short,
            end_offset=log.end_offset,
            recovery_point=report.recovery_point,
            was_stopped=report.was_stopped,
            is_synced=(topic.fsync or self.surroundings.fsync_default) is Fsync.ALWAYS,
        )
        reason = loss_of(view.row, found)
        if report.is_new and self._is_started:
            reason = None  # nobody has expected anything of it: the partition is new
        if reason is not None:
            await self._declare_loss(key, view, reason)
        # Until here the log itself remembers what it had to be repaired for.
        await self._loop.run_in_executor(self.surroundings.pool, log.settle)
        return key, (topic, log, history)

    async def _declare_loss(self, key: PartitionKey, view: View, reason: str) -> None:
        """Until the store has it, this node must not register."""
        while True:
            change = declare_loss(view, self.node)
            if change is None:
                return
            log_.error("replica may have lost something", extra={"at": str(key), "reason": reason})
            with contextlib.suppress(VersionConflict, OutcomeUnknown):
                await self._view.propose(key, change)
                return
            await self._view.refresh_rows()
            newer = self._view.rows.get(key)
            if newer is None:
                return
            view = newer

    async def _open(self, topic: Topic, key: PartitionKey) -> tuple[Log, EpochHistory]:
        def work() -> tuple[Log, EpochHistory]:
            log = open_log(topic, key.index, self._folder(), self.surroundings)
            return log, EpochHistory(read_epochs(log))

        return await self._loop.run_in_executor(self.surroundings.pool, work)

    def _add(
        self,
        key: PartitionKey,
        topic: Topic,
        log: Log,
        history: EpochHistory,
        *,
        asked_in: int = NO_EPOCH,
    ) -> Replicator:
        # The topic may have changed while the log was being opened.
        topic = self.surroundings.catalog.find_id(key.topic_id) or topic
        log.config = log_config(topic, self.surroundings)
        incarnation = self._membership.incarnation
        replicator = self._replicas[key] = Replicator(
            key,
            topic,
            log,
            history,
            self,
            incarnation=incarnation,
            registered_at=incarnation,
            node=self.node,
        )
        if log.damage:
            self._damaged.found(replicator, log.damage[0].reason, asked_in=asked_in)
        return replicator

    # ── Rows and topics ──────────────────────────────────────────────────────────────────────

    def _row_changed(self, key: PartitionKey, view: View | None) -> None:
        if self._is_stopped:
            return
        self._rows_moved.set()
        replicator = self._replicas.get(key)
        is_mine = view is not None and self.node in view.row.replicas
        if replicator is not None and view is not None and is_mine:
            self.counts.epochs += view.row.epoch > replicator.replica.epoch
            replicator.saw(view)
        elif replicator is None and is_mine:
            self._open_soon(key)
        elif replicator is not None and key not in self._dropping:
            self._dropping[key] = self._spawn(self._drop(key, view), self._dropping, key, "drop")

    def _nodes_changed(self) -> None:
        if not self._is_stopped and self._again is None:
            self._membership.seen_gone(self._view.incarnations.get(self.node))
        self._rows_moved.set()
        self.look_soon()

    def _open_soon(self, key: PartitionKey) -> None:
        if self._is_stopped or self._is_coming_back:
            return
        if key not in self._opening and key not in self._dropping:
            self._opening[key] = self._spawn(self._open_new(key), self._opening, key, "open")

    async def _open_new(self, key: PartitionKey) -> None:
        while True:
            view = self._view.rows.get(key)
            if view is None or self.node not in view.row.replicas:
                return
            if not self._membership.incarnation or self._is_coming_back:
                return
            try:
                _, opened = await self._look(key, view)
                break
            except (OSError, DiskFull) as error:  # there will be room one day
                log_.warning("replica not opened", extra={"at": str(key), "reason": str(error)})
            await asyncio.sleep(OPEN_RETRY_SECONDS)
        if opened is None:
            return  # the catalog will tell
        # There may have been one here before, in this same life.
        replicator = self._add(key, *opened, asked_in=view.row.epoch)
        view = self._view.rows.get(key)
        if view is not None and self.node in view.row.replicas:
            replicator.saw(view)

    def _catalog_changed(self, before: Topic | None, after: Topic | None) -> None:
        topic = after or before
        assert topic is not None
        if after is None:
            return  # its rows go, and then its replicas
        for index in self._view.of_topic(topic.topic_id):
            key = PartitionKey(topic.topic_id, index)
            replicator = self._replicas.get(key)
            if replicator is not None:
                replicator.topic = after
                replicator.log.config = log_config(after, self.surroundings)
            elif self.node in self._view.rows[key].row.replicas:
                self._open_soon(key)

    def _defaults_changed(self) -> None:
        self._partitions.spawn(in_turns(self._reconfigure_all()), "follow the defaults of topics")

    def _reconfigure_all(self) -> Generator[None, None, None]:
        for replicator in tuple(self._replicas.values()):
            replicator.log.config = log_config(replicator.topic, self.surroundings)
            yield

    async def _drop(self, key: PartitionKey, view: View | None) -> None:
        """To be here no more. Files go only if the topic was deleted, or if the partition's leader
        agrees that others have it (R22): a row that is not there is no reason."""
        replicator = self._replicas.pop(key)
        await replicator.close(is_clean=True)
        if view is None:
            if self.surroundings.catalog.tombstone(key.topic_id) is None:
                log_.warning("row gone without a tombstone: files kept", extra={"at": str(key)})
                return
        elif not await self._may_drop(key, view):
            return
        log_.info("replica removed", extra={"at": str(key)})
        folder = self._folder_of(key)
        await self._loop.run_in_executor(self.surroundings.pool, _remove, folder)

    async def _may_drop(self, key: PartitionKey, view: View) -> bool:
        while True:
            row = view.row
            try:
                caller = self._peer(row.leader)
                asked = DropAsked(key.topic_id, key.index, self.node, row.epoch)
                told = await caller.call(DROP, asked, timeout_ms=2_000)
                if told.is_right:
                    return True
            except PenstockError as error:
                log_.info("leader not asked yet", extra={"at": str(key), "reason": str(error)})
            await asyncio.sleep(DROP_RETRY_SECONDS)
            newer = self._view.rows.get(key)
            if newer is None:
                return self.surroundings.catalog.tombstone(key.topic_id) is not None
            if self.node in newer.row.replicas:
                return False  # wanted again; what is here is a beginning
            view = newer

    # ── What others ask ──────────────────────────────────────────────────────────────────────

    def _find(self, topic_id: str, index: int) -> Replicator | None:
        return self._replicas.get(PartitionKey(topic_id, index))

    def find(self, key: PartitionKey) -> Replicator | None:
        return self._replicas.get(key)

    def all(self) -> Iterable[Replicator]:
        return self._replicas.values()

    def _standings(self, request: StandingsAsked, _asked: Asked) -> StandingsTold:
        standings = []
        for topic_id, index in request.places:
            found = self._find(topic_id, index)
            if found is None or found.replica.role is Role.HALTED:
                standings.append(NOT_HERE)
            else:
                standings.append((found.replica.history.last, found.replica.end_offset))
        return StandingsTold(self._membership.incarnation, standings)

    def _drop_asked(self, request: DropAsked, _asked: Asked) -> DropTold:
        found = self._find(request.topic_id, request.index)
        leader = None if found is None else found.replica.leader
        return DropTold(
            leader is not None
            and leader.epoch == request.epoch
            and request.node not in leader.row.replicas
        )

    async def _sync_forever(self) -> None:
        while True:
            await asyncio.sleep(self.surroundings.fsync_interval_ms / 1_000)
            await in_turns(self._sync_all())

    def _sync_all(self) -> Generator[None, None, None]:
        for key, replicator in tuple(self._replicas.items()):
            if self._replicas.get(key) is replicator:  # not closed meanwhile
                replicator.followed.sync_soon()
                yield None

    # ── A life after death ───────────────────────────────────────────────────────────────────

    def lost_lease(self) -> None:
        """For ``Membership.on_lost``: others may lead what this node led."""
        if self._again is None and not self._is_stopped:
            self._again = asyncio.create_task(self._begin_again(), name="register again")

    async def _begin_again(self) -> None:
        """Register until this node has a lease and has seen the rows of its partitions. The lease
        may end again meanwhile: ``lost_lease`` starts nothing while this runs."""
        try:
            while True:
                try:
                    if not self._membership.lease:
                        await self._come_back()
                    await self._look_around()
                    if self._membership.lease:
                        return
                except PenstockError as error:
                    log_.warning("not registered yet", extra={"reason": str(error)})
                    await asyncio.sleep(RESTART_RETRY_SECONDS)
        finally:
            self._again = None

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    async def leave(self) -> None:
        """Let others lead, as long as there are any: their clients then notice nothing."""
        others = [node for node, other in self._view.nodes.items() if not other.is_leaving]
        if not set(others) - {self.node} or not self._membership.incarnation:
            return
        led = [one.leading for one in self._replicas.values() if self._is_led_for_others(one)]
        for leading in led:
            if leading is not None:
                leading.is_paused = True
        with contextlib.suppress(PenstockError, TimeoutError):
            await self._membership.change(is_leaving=True)
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                while any(self._is_led_for_others(one) for one in self._replicas.values()):
                    self._rows_moved.clear()
                    await self._rows_moved.wait()
        # Clients of other nodes wait for what was written here; only who follows on can tell them.
        await asyncio.gather(*(one.settle() for one in self._replicas.values()))

    def _is_led_for_others(self, replicator: Replicator) -> bool:
        leader = replicator.replica.leader
        if leader is None:
            return False
        able = leader.row.whole - {self.node}
        return any(
            node in able and not other.is_leaving for node, other in self._view.nodes.items()
        )

    async def stop(self) -> None:
        self._is_stopped = True
        await self._damaged.stop()
        jobs = [*self._jobs, *self._opening.values(), *self._dropping.values()]
        if self._again is not None:
            jobs.append(self._again)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._in_sync_sets.stop()
        await self._asking.stop()
        replicators = list(self._replicas.values())
        for start in range(0, len(replicators), OPEN_AT_ONCE):
            closing = [one.close(is_clean=True) for one in replicators[start:][:OPEN_AT_ONCE]]
            for result in await asyncio.gather(*closing, return_exceptions=True):
                if isinstance(result, BaseException):
                    log_.error("replica not closed cleanly", extra={"reason": str(result)})
        self._replicas.clear()
        await self._membership.stop()

    def troubles(self) -> Sequence[tuple[str, str]]:
        """Halted replicas as topic and partition, each with the reason."""
        return [
            (f"{one.topic.name}/{one.key.index}", str(one.replica.halt_reason))
            for one in self._replicas.values()
            if one.replica.role is Role.HALTED
        ]

    # ── Folders and tasks ────────────────────────────────────────────────────────────────────

    def _folder(self) -> Path:
        return self.surroundings.folder / TOPICS_FOLDER

    def _folder_of(self, key: PartitionKey) -> Path:
        return self._folder() / key.topic_id / str(key.index)

    def _spawn(
        self,
        work: Coroutine[Any, Any, None],
        tasks: dict[PartitionKey, asyncio.Task[None]],
        key: PartitionKey,
        name: str,
    ) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except PenstockError as error:
                log_.warning(name, extra={"at": str(key), "reason": str(error)})
            except Exception:
                log_.exception(name, extra={"at": str(key)})
            finally:
                if tasks.get(key) is asyncio.current_task():
                    del tasks[key]
            if tasks is self._dropping and not self._is_stopped:
                view = self._view.rows.get(key)
                if view is not None and self.node in view.row.replicas:
                    self._open_soon(key)

        task = asyncio.create_task(run(), name=f"{name} {key}")
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it begins
        return task


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # of the topic, when this was its last partition here
