"""The log of a replica while it follows. Only one operation runs on it at a time.

    fetch ──► reply ──► append, truncate or restart ──► replay into cursors ──► fetch

Only one fetch is in progress, and none while a thread works on the log (``_work``). Segments that
the leader has deleted are deleted here too. A stream's low watermark is stored before records that
were sent with it are appended. A follower compacts its log on its own, up to the committed offset
that it has replayed; offsets do not change, so it need not be in step with the leader. Segments are
not replaced while a thread reads the log, and compaction is stopped before the log is truncated."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from penstock.broker.partition.partition import CHECKPOINT_BYTES
from penstock.broker.partition.replay import Replay, forget_beyond
from penstock.broker.replicas.open_replica import OpenReplica, about
from penstock.broker.storage.compaction import Compactor
from penstock.log.compaction import forget_clean_beyond
from penstock.log.log import AppendsRefused, SyncJob
from penstock.log.readable import write_epochs
from penstock.model.errors import Damaged, DiskFull
from penstock.model.ports import ProducerSeen
from penstock.model.topic import Fsync, Topic
from penstock.replication.epochs import NO_EPOCH
from penstock.replication.messages import Fenced, Fetch, NotYet, Reply
from penstock.replication.replica import Append, Restart, Role, Truncate
from penstock.wire.internal.node_calls import PartitionReply

log_ = logging.getLogger(__name__)
T = TypeVar("T")

REPLAY_BYTES = 512 * 1_024  # replayed into cursors between two fetches
PAUSE_MS = 50  # after the leader replied that it is not ready
FULL_PAUSE_MS = 1_000  # after a failed append


class FollowerLog:
    def __init__(self, owner: OpenReplica) -> None:
        self.leader_start = 0  # start of the leader's log, from its last reply
        self._held_offset = 0  # offset that all replicas have, from the leader's last reply
        # The cursors over the committed part of the log, so that this node can lead quickly.
        self.replay: Replay | None = None
        self._owner = owner
        self._key = owner.key
        self._log = owner.log
        self._loop = asyncio.get_running_loop()
        self._work: asyncio.Task[None] | None = None
        self._is_read_in_thread = False
        self._fetch: Fetch | None = None  # in progress
        self._saved_epoch = owner.replica.history.last
        self._checkpoint_bytes = 0
        self._compactor = self._new_compactor()

    @property
    def topic(self) -> Topic:
        return self._owner.topic

    async def producers(self) -> Sequence[ProducerSeen] | None:
        """Return the producers known from committed records, or None if the log is not replayed."""
        up_to = self._owner.replica.high_watermark
        if self.replay is None and self._work is None:
            self._continue()  # otherwise the log is replayed after the leader's next reply
        while (replay := self.replay) is None or replay.offset < up_to or self._is_read_in_thread:
            if self._work is None:
                return None
            await asyncio.wait([self._work])
        return replay.producers.seen(wall_ms=self._owner.context.clock.wall_ms())

    def next_fetch(self) -> Fetch | None:
        if self._work is not None or self._owner.is_changing_role or self._fetch is not None:
            return None
        self._fetch = self._owner.replica.next_fetch()
        return self._fetch

    def cancel_fetch(self) -> None:
        self._fetch = None
        self._held_offset = 0

    def fetch_failed(self, fetch: Fetch, *, after_ms: int) -> None:
        if fetch is self._fetch:
            self._fetch = None
            self._owner.fetch_soon(after_ms=after_ms)

    def apply_reply(self, reply: Reply[bytes], news: PartitionReply) -> None:
        """Apply a reply if it belongs to the fetch in progress (rule R16)."""
        if reply.fetch is not self._fetch:
            return
        self._fetch = None
        if self._work is not None or self._owner.is_changing_role:
            return  # the replica fetches again later, if it still follows
        self._held_offset = news.held_offset
        try:
            self._apply(reply, news.start_offset, news.low_watermark)
        except Exception as error:
            log_.exception("applying a fetch reply failed", extra={"partition": str(self._key)})
            self._owner.halt(f"{type(error).__name__}: {error}")

    def _apply(self, reply: Reply[bytes], leader_start: int, low_watermark: int) -> None:
        owner = self._owner
        step = owner.replica.apply_reply(reply)
        if isinstance(step, Append):
            if low_watermark > self._log.stored_low_watermark:
                # First of all, because the leader relies on it. The records are fetched again.
                self._begin(self._store_low_watermark(low_watermark))
                return
            self.leader_start = max(self.leader_start, leader_start)
            self._append(step)
        elif isinstance(step, Truncate):
            self._begin(self._truncate(step.to))
        elif isinstance(step, Restart):
            self._begin(self._restart(step.at))
        elif owner.replica.role is Role.HALTED:
            owner.log_halt(owner.replica.halt_reason)
        else:
            owner.fetch_soon(after_ms=PAUSE_MS if isinstance(reply, Fenced | NotYet) else 0)

    def _append(self, step: "Append[bytes]") -> None:
        owner, replica = self._owner, self._owner.replica
        pause_ms = 0
        try:
            for data in step.batches:
                now_ms = owner.context.clock.wall_ms()
                for header in self._log.append_copied(data, now_ms=now_ms):
                    replica.appended(header.leader_epoch, header.next_offset)
        except (DiskFull, Damaged) as error:
            log_.warning("replica append failed, retrying", extra=about(self._key, error))
            pause_ms = FULL_PAUSE_MS
        except (OSError, AppendsRefused) as error:
            owner.halt(f"appending to the log failed: {error}")
            return
        replica.followed(step.high_watermark)
        owner.committed()
        if owner.fsync is Fsync.ALWAYS and replica.durable_offset < replica.end_offset:
            self._begin(self._sync())
            return
        replica.synced(replica.end_offset)
        self._continue(after_ms=pause_ms)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._work is None, "only one operation runs on a log at a time"
        self._work = self._loop.create_task(self._run(work), name=f"replicate {self._key}")

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        owner = self._owner
        try:
            await work
        except DiskFull as error:
            # Only a metadata file could not be written; the replica continues when there is space.
            log_.warning("replica is waiting for disk space", extra=about(self._key, error))
            self._work = None
            owner.fetch_soon(after_ms=FULL_PAUSE_MS)
            return
        except Exception as error:
            # After a failed sync or truncation the state of the disk is unknown, so do not retry.
            owner.halt(f"{type(error).__name__}: {error}")
            return
        finally:
            self._work = None
        try:
            self._continue()
        except Exception as error:
            owner.halt(f"{type(error).__name__}: {error}")  # reading from disk failed

    def _continue(self, *, after_ms: int = 0) -> None:
        """Start the next work on the log: a replay, a checkpoint, or the next fetch."""
        replica = self._owner.replica
        if replica.role is not Role.FOLLOWER or self._owner.is_changing_role:
            return
        replay = self.replay
        if replay is None:
            self._begin(self._open_replay())
        elif not replay.advance(replica.high_watermark, bytes_max=REPLAY_BYTES):
            # A long part is replayed in a thread, so that requests do not wait.
            up_to = replica.high_watermark
            self._begin(self._read_in_thread(lambda: replay.advance(up_to)))
        elif replay.replayed_bytes - self._checkpoint_bytes >= CHECKPOINT_BYTES:
            self._begin(self._checkpoint(replay))
        else:
            if replay.damage is not None:
                self._owner.damaged(replay.damage)
            self._drop_segments()
            self._owner.fetch_soon(after_ms=after_ms)

    async def rest(self) -> None:
        if self._work is not None:
            await asyncio.wait([self._work])
        await self._compactor.stop()
        self._compactor = self._new_compactor()

    async def _open_replay(self) -> None:
        self._checkpoint_bytes = 0
        self.replay = await self._owner.in_thread(self._owner.new_replay())

    async def _read_in_thread(self, work: Callable[[], object]) -> None:
        self._is_read_in_thread = True
        try:
            await self._owner.in_thread(work)
        finally:
            self._is_read_in_thread = False

    async def _checkpoint(self, replay: Replay) -> None:
        if not self._owner.share_ids <= replay.share_ids:
            await self._open_replay()  # so that the checkpoint has the new shares
            return
        self._checkpoint_bytes = replay.replayed_bytes
        with suppress(OSError, DiskFull):  # without it, the next start only takes longer
            await self._owner.in_thread(replay.checkpoint())

    async def _sync(self) -> None:
        job = self._log.begin_sync()
        if job is not None:
            await self.run_sync(job)
        self._owner.replica.synced(self._owner.durable_offset)
        await self.save_epochs()

    async def sync_rest(self) -> None:
        replica, durable_offset = self._owner.replica, self._owner.durable_offset
        if durable_offset < replica.end_offset and self._log.refusal is None:
            await self._sync()
        else:
            # A sync that ended after its epoch was not counted.
            replica.synced(min(durable_offset, replica.end_offset))

    async def _store_low_watermark(self, offset: int) -> None:
        replay = self.replay

        def work() -> None:
            self._log.store_low_watermark(offset)
            if replay is not None:
                replay.clip(offset)

        await self._read_in_thread(work)
        self._owner.replica.low_watermark = offset

    async def run_sync(self, job: SyncJob) -> None:
        await self._owner.in_thread(job.run)
        self._log.finish_sync(job)

    def sync_soon(self) -> None:
        """Start a sync in the same cases as ``Partition.sync_soon``, if this replica follows."""
        owner, log, fsync = self._owner, self._log, self._owner.fsync
        if owner.replica.leader is not None or owner.is_changing_role:
            return
        if self._work is not None or log.refusal is not None:
            return
        if (fsync is Fsync.INTERVAL and log.durable_offset < log.end_offset) or (
            fsync is Fsync.NEVER and log.has_unsynced_sealed
        ):
            self._begin(self._sync())

    async def _truncate(self, to: int) -> None:
        fields = {"partition": str(self._key), "from": self._log.end_offset, "to": to}
        log_.warning("replica truncated to match its leader", extra=fields)
        end = await self._cut(to, lambda: self._log.truncate(to))
        if self.replay is not None and self.replay.offset > end:
            self.replay = None  # nothing committed is truncated, so it had read too far
        self._owner.replica.truncated(end)
        await self.save_epochs()

    async def _restart(self, at: int) -> None:
        fields = {"partition": str(self._key), "end": self._log.end_offset, "at": at}
        log_.warning("replica log emptied, copying the leader's log from its start", extra=fields)
        self.replay = None
        await self._cut(-1, lambda: self._log.restart(at))
        self._owner.replica.restarted(at)

    async def _cut(self, to: int, cut: Callable[[], T]) -> T:
        self._owner.fail_pending_after(to)
        await self._compactor.stop()

        def work() -> T:
            # First remove the files that describe the part to be truncated.
            forget_beyond(self._log, to)
            forget_clean_beyond(self._log, to)
            return cut()

        self._saved_epoch = NO_EPOCH  # the log has removed the saved epochs
        result = await self._owner.in_thread(work)
        self._compactor = self._new_compactor()
        return result

    async def save_epochs(self, *, is_last: bool = False) -> None:
        history = self._owner.replica.history
        if is_last or history.last != self._saved_epoch:
            self._saved_epoch = history.last
            entries, end = list(history), self._log.end_offset
            with suppress(OSError, DiskFull):
                await self._owner.in_thread(lambda: write_epochs(self._log, entries, end))

    def _drop_segments(self) -> None:
        """Delete segments that the leader deleted, once they are committed and replayed here."""
        start = max(self.leader_start, self._log.stored_low_watermark)
        start = min(start, self._owner.replica.high_watermark)
        if self.replay is not None:
            start = min(start, self.replay.offset)  # the rest is not replayed yet
        if start > self._log.start_offset:
            detached = self._log.detach_before(start)
            if detached.paths:
                self._owner.note_start()
                self._loop.run_in_executor(self._owner.context.pool, detached.remove)

    def _new_compactor(self) -> Compactor:
        return Compactor(self._log, self._owner.context, wait_unread=self._wait_unread)

    async def _wait_unread(self) -> None:
        while self._is_read_in_thread and self._work is not None:
            await asyncio.wait([self._work])

    async def compact(self) -> int:
        """Compact the log if this replica is a follower. Returns the number of bytes freed."""
        owner, replay = self._owner, self.replay
        if (
            not (owner.topic.configs or owner.context.defaults.configs)  # true for most topics
            or owner.replica.role is not Role.FOLLOWER
            or owner.is_changing_role
            or replay is None
            or replay.damage is not None
            or owner.shares
        ):
            return 0
        return await self._compactor.run(
            owner.topic,
            # None while the log is read in a thread: far behind, so wait for the next round.
            lambda: (
                replay.producers if self.replay is replay and not self._is_read_in_thread else None
            ),
            up_to=min(owner.replica.high_watermark, replay.offset),
            held_offset=self._held_offset,
        )
