"""All replicas on this node. A replica is opened when its partition's row in the metadata store
names this node, updated when the row changes, and closed when the row no longer names the node.

A node starts in this order (rule R4 in docs/replication.md): it removes its old registration, so
that no node relies on it; it opens its logs, and reports to the store which replicas may have lost
records; it registers, and ignores versions of rows from before its registration. A node whose lease
ended while it was running does the same without closing its logs."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.broker.context.context import BrokerContext, log_config
from penstock.broker.context.timers import cancel_all
from penstock.broker.partition.partitions import TOPICS_FOLDER, Partitions, one_by_one
from penstock.broker.replicas.damaged_replicas import DamagedReplicas, OpenedLog
from penstock.broker.replicas.fetching import ReplicaFetcher, ReplicaServer
from penstock.broker.replicas.in_sync_sets import InSyncSets
from penstock.broker.replicas.leadership import ReplicationCounts
from penstock.broker.replicas.open_replica import about
from penstock.broker.replicas.replicator import Home, Replicator
from penstock.membership.cluster_view import ClusterView
from penstock.membership.registration import Membership, RegisteredAt
from penstock.metadata.cluster_entries import PARTITIONS_PREFIX, PartitionKey, decode_row
from penstock.metadata.cluster_entries import partition_of as key_of
from penstock.metadata.store import Store
from penstock.model.errors import DiskFull, PenstockError
from penstock.model.levels import LEVEL_FIRST
from penstock.model.topic import Topic
from penstock.net.slices import in_slices
from penstock.replication.epochs import NO_EPOCH
from penstock.replication.replica import Role
from penstock.replication.row import View
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.node_calls import DROP, DropRequest

log_ = logging.getLogger(__name__)

OPEN_AT_ONCE = 64
LEAVE_SECONDS_MAX = 10.0  # wait of a stopping node for new leaders
DROP_RETRY_SECONDS = 2.0
RESTART_RETRY_SECONDS = 1.0
OPEN_RETRY_SECONDS = 2.0


class Replicators:
    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        *,
        store: Store,
        view: ClusterView,
        membership: Membership,
        peer: Callable[[int], Caller],
        level: Callable[[], int] = lambda: LEVEL_FIRST,
    ) -> None:
        self.context = context
        self.node = membership.entry.node
        self.partitions = partitions
        self._store = store
        self._view = view
        self._membership = membership
        self._registered_at = RegisteredAt(context.folder)
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._folder = context.folder / TOPICS_FOLDER
        self._replicas: dict[PartitionKey, Replicator] = {}
        self._opening: dict[PartitionKey, asyncio.Task[None]] = {}
        self._dropping: dict[PartitionKey, asyncio.Task[None]] = {}
        self._jobs: list[asyncio.Task[None]] = []
        self._registering_again: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_started = False  # rows refer to this process from then on
        self._is_registering = False  # all logs are opened together; no other task opens one
        self._rows_changed = asyncio.Event()
        self.counts = ReplicationCounts()
        self._in_sync_sets = InSyncSets(self._replicas, view, self.counts)
        replicas, changed = self._replicas, self._rows_changed
        self._damaged = DamagedReplicas(self.node, view, replicas, self._reopen, changed)
        incarnation, counts = (lambda: membership.incarnation), self.counts
        self._fetcher = ReplicaFetcher(self.node, incarnation=incarnation, peer=peer, counts=counts)
        self._server = ReplicaServer(self.find, incarnation=incarnation, level=level, counts=counts)
        self.register = self._server.register
        self.now_ms = context.clock.mono_ms
        self.check_in_sync_soon = self._in_sync_sets.check_soon
        self._home = Home(
            self.node,
            context,
            view,
            membership,
            level,
            partitions,
            fetch_soon=self._fetcher.fetch_soon,
            check_in_sync_soon=self.check_in_sync_soon,
            damaged=lambda found, damage: self._damaged.found(found, str(damage)),
        )

    def _reopen(self, replicator: Replicator, is_emptied: bool) -> None:
        key = replicator.key

        async def close() -> None:
            del self._replicas[key]
            await replicator.close(is_clean=False)
            if is_emptied:
                await self._remove(self._folder_of(key))

        if key not in self._dropping:
            self._spawn(close(), self._dropping, key, "reopen")

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._register()
        self._is_started = True
        self._view.on_row(self._row_changed)
        self._view.on_nodes(self._nodes_changed)
        self.context.catalog.on_change(self._catalog_changed)
        self.context.defaults.on_change(self._defaults_changed)
        self.partitions.scrubber.logs = lambda: list(self._replicas.values())
        self.partitions.also = lambda: [each.follower_log for each in self.all()]
        await self._refresh_rows()
        await self._remove_deleted()
        self._jobs = [asyncio.create_task(self._in_sync_sets.run(), name="in-sync sets")]

    async def _refresh_rows(self) -> None:
        """Read and apply the rows of all partitions, because a watch reports only changes."""
        await self._view.refresh_rows()
        for key, view in tuple(self._view.rows.items()):
            if self.node in view.row.replicas:
                self._row_changed(key, view)

    async def _remove_deleted(self) -> None:
        """Remove folders of topics that were deleted while this node was down. Folders of unknown
        topics are kept, because the metadata store may have been restored from an old backup."""
        known = {key.topic_id for key in self._view.rows}
        for folder in sorted(self._folder.iterdir()):
            if folder.name in known:
                continue
            if self.context.catalog.tombstone(folder.name) is None:
                log_.warning(
                    "keeping the folder of an unknown topic", extra={"folder": folder.name}
                )
            else:
                await self._remove(folder)

    async def _register(self) -> None:
        self._is_registering = True
        try:
            await self._open_and_register()
        finally:
            self._is_registering = False

    async def _open_and_register(self) -> None:
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
            await asyncio.wait(busy)  # a log must have only one owner
        logs: dict[PartitionKey, OpenedLog] = {}
        for start in range(0, len(wanted), OPEN_AT_ONCE):
            keys = wanted[start : start + OPEN_AT_ONCE]
            found = await asyncio.gather(*(self._open(key, rows[key]) for key in keys))
            logs.update({key: log for key, log in zip(keys, found, strict=True) if log is not None})
        incarnation = await self._membership.register()
        for replicator in tuple(self._replicas.values()):
            replicator.reincarnate(incarnation)
        for key, log in logs.items():
            self._add(key, log)
        await self._loop.run_in_executor(self.context.pool, self._registered_at.note, incarnation)

    async def _open(self, key: PartitionKey, view: View) -> OpenedLog | None:
        if key in self._replicas or key in self._dropping:
            return None  # still open, or opened again after the drop
        return await self._damaged.open(key, view, self.context, may_be_new=self._is_started)

    def _add(
        self, key: PartitionKey, opened: OpenedLog, *, fetched_in: int = NO_EPOCH
    ) -> Replicator:
        log = opened.log
        # The topic may have changed while the log was being opened.
        topic = self.context.catalog.find_id(key.topic_id) or opened.topic
        log.config = log_config(topic, self.context)
        replicator = self._replicas[key] = Replicator(
            key, topic, log, self._home, opened.history, self._membership.incarnation
        )
        if log.damage:
            self._damaged.found(replicator, log.damage[0].reason, fetched_in=fetched_in)
        return replicator

    def _row_changed(self, key: PartitionKey, view: View | None) -> None:
        if self._is_stopped:
            return
        self._rows_changed.set()
        replicator = self._replicas.get(key)
        is_replica = view is not None and self.node in view.row.replicas
        if replicator is not None and view is not None and is_replica:
            self.counts.epochs += view.row.epoch > replicator.replica.epoch
            replicator.update(view)
        elif replicator is None and is_replica:
            self._open_soon(key)
        elif replicator is not None and key not in self._dropping:
            self._spawn(self._drop(key, view), self._dropping, key, "drop")

    def _nodes_changed(self) -> None:
        if not self._is_stopped and self._registering_again is None:
            self._membership.seen_gone(self._view.incarnations.get(self.node))
        self._rows_changed.set()
        self.check_in_sync_soon()

    def _open_soon(self, key: PartitionKey) -> None:
        if self._is_stopped or self._is_registering:
            return
        if key not in self._opening and key not in self._dropping:
            self._spawn(self._open_new(key), self._opening, key, "open")

    def _own_view(self, key: PartitionKey) -> View | None:
        view = self._view.rows.get(key)
        return view if view is not None and self.node in view.row.replicas else None

    async def _open_new(self, key: PartitionKey) -> None:
        while True:
            view = self._own_view(key)
            if view is None or not self._membership.incarnation or self._is_registering:
                return
            try:
                opened = await self._open(key, view)
                break
            except (OSError, DiskFull) as error:  # retried until there is space
                log_.warning("opening a replica failed, retrying", extra=about(key, error))
            await asyncio.sleep(OPEN_RETRY_SECONDS)
        if opened is None:
            return  # opened when the topic is in the catalog
        # This process may have had the replica before.
        replicator = self._add(key, opened, fetched_in=view.row.epoch)
        view = self._own_view(key)
        if view is not None:
            replicator.update(view)

    def _catalog_changed(self, _before: Topic | None, after: Topic | None) -> None:
        if after is None:
            return  # its rows are deleted next, and then its replicas
        for index in self._view.of_topic(after.topic_id):
            key = PartitionKey(after.topic_id, index)
            replicator = self._replicas.get(key)
            if replicator is not None:
                replicator.topic = after
                self._reconfigure(replicator)
            elif self.node in self._view.rows[key].row.replicas:
                self._open_soon(key)

    def _defaults_changed(self) -> None:
        work = in_slices(one_by_one(self._reconfigure, tuple(self._replicas.values())))
        self.partitions.spawn(work, "apply topic defaults")

    def _reconfigure(self, replicator: Replicator) -> None:
        replicator.log.config = log_config(replicator.topic, self.context)

    async def _drop(self, key: PartitionKey, view: View | None) -> None:
        """Close a replica. Its files are removed only if the topic was deleted or the partition's
        leader confirms that this node is no longer a replica (rule R22)."""
        replicator = self._replicas.pop(key)
        await replicator.close(is_clean=True)
        if view is None:
            if self.context.catalog.tombstone(key.topic_id) is None:
                text = "partition missing in the store but not deleted, keeping its files"
                log_.warning(text, extra={"partition": str(key)})
                return
        elif not await self._may_drop(key, view):
            return
        log_.info("removing the files of a dropped replica", extra={"partition": str(key)})
        await self._remove(self._folder_of(key))

    async def _may_drop(self, key: PartitionKey, view: View) -> bool:
        while True:
            row = view.row
            try:
                request = DropRequest(key.topic_id, key.index, self.node, row.epoch)
                reply = await self._peer(row.leader).call(DROP, request, timeout_ms=2_000)
                if reply.is_right:
                    return True
            except PenstockError as error:
                text = "leader has not confirmed yet that a replica may be removed"
                log_.info(text, extra=about(key, error))
            await asyncio.sleep(DROP_RETRY_SECONDS)
            newer = self._view.rows.get(key)
            if newer is None:
                return self.context.catalog.tombstone(key.topic_id) is not None
            if self.node in newer.row.replicas:
                return False  # it is a replica again and keeps its files
            view = newer

    def find(self, key: PartitionKey) -> Replicator | None:
        return self._replicas.get(key)

    def all(self) -> Iterable[Replicator]:
        return self._replicas.values()

    def troubles(self) -> Sequence[tuple[str, str]]:
        return [
            (f"{each.topic.name}/{each.key.index}", str(each.replica.halt_reason))
            for each in self._replicas.values()
            if each.replica.role is Role.HALTED
        ]

    def lost_lease(self) -> None:
        """Register again, because the lease was lost and other nodes may lead the partitions."""
        if self._registering_again is None and not self._is_stopped:
            work = self._register_again()
            self._registering_again = asyncio.create_task(work, name="register again")

    async def _register_again(self) -> None:
        try:
            while True:
                try:
                    if not self._membership.lease:
                        await self._register()
                    await self._refresh_rows()
                    if self._membership.lease:
                        return
                except PenstockError as error:
                    log_.warning("node registration failed, retrying", extra={"reason": str(error)})
                    await asyncio.sleep(RESTART_RETRY_SECONDS)
        finally:
            self._registering_again = None

    async def leave(self) -> None:
        """Hand over leadership to other nodes, if there are any. Call this before ``stop``."""
        others = {node for node, entry in self._view.nodes.items() if not entry.is_leaving}
        if not others - {self.node} or not self._membership.incarnation:
            return
        for each in self._replicas.values():
            if each.leadership is not None and self._may_hand_over(each):
                each.leadership.is_paused = True
        with contextlib.suppress(PenstockError, TimeoutError):
            await self._membership.change(is_leaving=True)
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                while any(self._may_hand_over(each) for each in self._replicas.values()):
                    self._rows_changed.clear()
                    await self._rows_changed.wait()
        # Only the next leader can confirm pending appends, so wait for their outcome.
        await asyncio.gather(*(each.settle() for each in self._replicas.values()))

    def _may_hand_over(self, replicator: Replicator) -> bool:
        leader = replicator.replica.leader
        if leader is None:
            return False
        able, nodes = leader.row.whole - {self.node}, self._view.nodes
        return any(node in able and not entry.is_leaving for node, entry in nodes.items())

    async def stop(self) -> None:
        self._is_stopped = True
        await self._damaged.stop()
        changing = (*self._opening.values(), *self._dropping.values())
        await cancel_all((*self._jobs, *changing, self._registering_again))
        await self._in_sync_sets.stop()
        await self._fetcher.stop()
        replicators = list(self._replicas.values())
        for start in range(0, len(replicators), OPEN_AT_ONCE):
            closing = [each.close(is_clean=True) for each in replicators[start:][:OPEN_AT_ONCE]]
            for result in await asyncio.gather(*closing, return_exceptions=True):
                if isinstance(result, BaseException):
                    log_.error("replica not closed cleanly", extra={"reason": str(result)})
        self._replicas.clear()
        await self._membership.stop()

    def _folder_of(self, key: PartitionKey) -> Path:
        return self._folder / key.topic_id / str(key.index)

    async def _remove(self, folder: Path) -> None:
        await self._loop.run_in_executor(self.context.pool, _remove_folder, folder)

    def _spawn(
        self,
        work: Coroutine[Any, Any, None],
        tasks: dict[PartitionKey, asyncio.Task[None]],
        key: PartitionKey,
        name: str,
    ) -> None:
        async def run() -> None:
            try:
                await work
            except PenstockError as error:
                log_.warning("replica task failed", extra={"task": name} | about(key, error))
            except Exception:
                log_.exception("replica task failed", extra={"task": name, "partition": str(key)})
            finally:
                if tasks.get(key) is asyncio.current_task():
                    del tasks[key]
            if tasks is self._dropping and not self._is_stopped and self._own_view(key) is not None:
                self._open_soon(key)

        tasks[key] = asyncio.create_task(run(), name=f"{name} {key}")
        tasks[key].add_done_callback(lambda _: work.close())  # if cancelled before it began


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # the topic's folder, if this was its last partition
