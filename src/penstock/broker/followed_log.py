"""What a replica does to its log while it follows: one thing after the other.

    a question ──► an answer ──► append, cut or begin anew ──► read on into cursors ──► a question

One question is on its way at a time, and none while something is being done to the log that a
thread is needed for (``_work``): a sync, a cut, a new beginning, reading far into the cursors.

Whatever the leader has dropped from the front is dropped here when it says so. The low watermark of
a stream is stored before anything that was sent with it is appended. Compaction is not
copied from the leader: a follower does its own, by the same rules and below the same bounds, as far
as it has read what is committed itself. Offsets stay what they are on both, so it does not matter
which of them was there first. A round runs beside all of the above; only what it puts into the
place of the old waits while a thread reads the log, and it is ended before the log is cut.

Which role the replica has, and what is answered to whom, is ``replicator.py``'s to say.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from penstock.broker.compaction import Compactor
from penstock.broker.partition import CHECKPOINT_BYTES
from penstock.broker.restore import Fold, forget_beyond
from penstock.broker.surroundings import Surroundings
from penstock.log.compaction import Aborted, Unreadable, forget_clean_beyond
from penstock.log.epochs import write_epochs
from penstock.log.log import AppendsRefused, Log, SyncJob
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import Damaged, DiskFull
from penstock.model.names import is_internal
from penstock.model.ports import ProducerSeen
from penstock.model.stream import settings_of
from penstock.model.topic import Fsync, Topic
from penstock.replication.epochs import NO_EPOCH
from penstock.replication.messages import Answer, Fenced, Fetch, NotYet
from penstock.replication.replica import Append, Replica, Restart, Role, Truncate

log_ = logging.getLogger(__name__)

FOLD_BYTES = 512 * 1_024  # of the log, read into cursors between two questions to the leader
PAUSE_MS = 50  # before somebody who cannot answer yet is asked again
FULL_PAUSE_MS = 1_000  # before more is asked for than there was room for

T = TypeVar("T")


class Owner(Protocol):
    """The replica whose log it is."""

    key: PartitionKey
    log: Log
    topic: Topic
    replica: Replica

    @property
    def surroundings(self) -> Surroundings: ...

    @property
    def fsync(self) -> Fsync: ...

    @property
    def durable_offset(self) -> int:
        """What counts as durable."""
        ...

    @property
    def is_turning(self) -> bool:
        """It is about to be something else, or to be closed: nothing new is begun."""
        ...

    def new_fold(self) -> Fold:
        """Reads checkpoints: for a thread."""
        ...

    def ask_soon(self, *, after_ms: int = 0) -> None: ...

    def committed(self) -> None:
        """More is known to be committed."""
        ...

    def give_up_beyond(self, offset: int) -> None:
        """What lies behind it is cut off here."""
        ...

    def note_start(self) -> None:
        """The log may begin elsewhere now."""
        ...

    def damaged(self, damage: Damaged) -> None: ...

    def halt(self, reason: str) -> None: ...

    def alarm(self, reason: str) -> None: ...


class FollowedLog:
    def __init__(self, owner: Owner) -> None:
        self.leader_start = 0  # of the leader's log, as it said last
        self._held_offset = 0  # what every replica has, as this epoch's leader said last
        # What is made of the log as far as it is committed, so that this node can lead at once.
        self.fold: Fold | None = None
        self._owner = owner
        self._key = owner.key
        self._log = owner.log
        self._loop = asyncio.get_running_loop()
        self._work: asyncio.Task[None] | None = None
        self._is_read_in_thread = False
        self._asked: Fetch | None = None  # on its way to the leader
        self._saved_epoch = owner.replica.history.last
        self._checkpoint_bytes = 0
        self._compactor = self._new_compactor()

    @property
    def topic(self) -> Topic:
        return self._owner.topic

    async def producers(self) -> Sequence[ProducerSeen] | None:
        """Return the producers of the committed part of the log; None if it cannot be read now."""
        up_to = self._owner.replica.high_watermark
        if self.fold is None and self._work is None:
            self._go_on()  # otherwise the log is read with the next answer of the leader
        while (fold := self.fold) is None or fold.offset < up_to or self._is_read_in_thread:
            if self._work is None:
                return None
            await asyncio.wait([self._work])
        return fold.producers()

    # ── Questions and answers ────────────────────────────────────────────────────────────────

    def ask(self) -> Fetch | None:
        """None when there is nothing to ask any more, or not now."""
        if self._work is not None or self._owner.is_turning:
            return None
        if self._asked is None:
            self._asked = self._owner.replica.ask()
            return self._asked
        return None

    def forget_question(self) -> None:
        """What comes now is no answer to what will be asked. Nor does it count what another leader
        has said about the other replicas."""
        self._asked = None
        self._held_offset = 0

    def unanswered(self, fetch: Fetch, *, after_ms: int) -> None:
        """Nobody answered, or there was no news."""
        if fetch is self._asked:
            self._asked = None
            self._owner.ask_soon(after_ms=after_ms)

    def take(
        self,
        answer: Answer[bytes],
        *,
        leader_start: int = 0,
        held_offset: int = 0,
        low_watermark: int = 0,
    ) -> None:
        """An answer; to a question that is not asked any more it is none (R16)."""
        if answer.asked is not self._asked:
            return
        self._asked = None
        if self._work is not None or self._owner.is_turning:
            return  # one thing at a time happens to a log; afterwards it is asked again, if at all
        self._held_offset = held_offset
        try:
            self._do(answer, leader_start, low_watermark)
        except Exception as error:
            log_.exception("replica stopped", extra={"partition": str(self._key)})
            self._owner.halt(f"{type(error).__name__}: {error}")

    def _do(self, answer: Answer[bytes], leader_start: int, low_watermark: int) -> None:
        owner = self._owner
        step = owner.replica.answered(answer)
        if isinstance(step, Append):
            if low_watermark > self._log.stored_low_watermark:
                # Before what the leader decided with it: the records are asked for again.
                self._begin(self._store_low_watermark(low_watermark))
                return
            self.leader_start = max(self.leader_start, leader_start)
            self._append(step)
        elif isinstance(step, Truncate):
            self._begin(self._truncate(step.to))
        elif isinstance(step, Restart):
            self._begin(self._restart(step.at))
        elif owner.replica.role is Role.HALTED:
            owner.alarm(owner.replica.halt_reason)
        else:
            owner.ask_soon(after_ms=PAUSE_MS if isinstance(answer, Fenced | NotYet) else 0)

    def _append(self, step: "Append[bytes]") -> None:
        owner, replica = self._owner, self._owner.replica
        pause_ms = 0
        if step.batches:
            try:
                for data in step.batches:
                    self._append_batches(data)
            except (DiskFull, Damaged) as error:
                log_.warning(
                    "replica cannot append",
                    extra={"partition": str(self._key), "reason": str(error)},
                )
                pause_ms = FULL_PAUSE_MS
            except (OSError, AppendsRefused) as error:
                owner.halt(f"append failed: {error}")
                return
        replica.followed(step.high_watermark)
        owner.committed()
        if owner.fsync is Fsync.ALWAYS and replica.durable_offset < replica.end_offset:
            self._begin(self._sync())
            return
        replica.synced(replica.end_offset)
        self._go_on(after_ms=pause_ms)

    def _append_batches(self, data: bytes) -> None:
        now_ms = self._owner.surroundings.clock.wall_ms()
        for header in self._log.append_stretch(data, now_ms=now_ms):
            self._owner.replica.appended(header.leader_epoch, header.next_offset)

    # ── One thing at a time ──────────────────────────────────────────────────────────────────

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._work is None, "one thing at a time happens to a log"
        self._work = self._loop.create_task(self._run(work), name=f"replicate {self._key}")

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        owner = self._owner
        try:
            await work
        except DiskFull as error:
            # Of a side file: nothing is lost, and there will be room one day.
            log_.warning("replica waits", extra={"at": str(self._key), "reason": str(error)})
            self._work = None
            owner.ask_soon(after_ms=FULL_PAUSE_MS)
            return
        except Exception as error:
            # After a failed sync or cut nobody knows what the disk holds: it is not tried again.
            owner.halt(f"{type(error).__name__}: {error}")
            return
        finally:
            self._work = None
        try:
            self._go_on()
        except Exception as error:
            owner.halt(f"{type(error).__name__}: {error}")  # reads what a disk may not give

    def _go_on(self, *, after_ms: int = 0) -> None:
        """Ask again, unless there is something to be done first that nothing may come between."""
        replica = self._owner.replica
        if replica.follower is None or self._owner.is_turning:
            return
        fold = self.fold
        if fold is None:
            self._begin(self._open_fold())
        elif not fold.advance(replica.high_watermark, bytes_max=FOLD_BYTES):
            self._begin(self._catch_up(fold))
        elif fold.replayed_bytes - self._checkpoint_bytes >= CHECKPOINT_BYTES:
            self._begin(self._checkpoint(fold))
        else:
            if fold.damage is not None:
                self._owner.damaged(fold.damage)
            self._drop_finished()
            self._owner.ask_soon(after_ms=after_ms)

    async def rest(self) -> None:
        """Nobody uses the log when this returns. Begin nothing meanwhile (``is_turning``)."""
        if self._work is not None:
            await asyncio.wait([self._work])
        await self._compactor.stop()
        self._compactor = self._new_compactor()

    # ── Reading along ────────────────────────────────────────────────────────────────────────

    async def _open_fold(self) -> None:
        self._checkpoint_bytes = 0
        self.fold = await self._in_thread(self._owner.new_fold)

    async def _catch_up(self, fold: Fold) -> None:
        """Far behind: in a thread, which others' requests do not notice."""
        up_to = self._owner.replica.high_watermark
        self._is_read_in_thread = True
        try:
            await self._in_thread(lambda: fold.advance(up_to))
        finally:
            self._is_read_in_thread = False

    async def _checkpoint(self, fold: Fold) -> None:
        self._checkpoint_bytes = fold.replayed_bytes
        with suppress(OSError, DiskFull):  # it only saves reading again
            await self._in_thread(fold.checkpoint())

    # ── Sync, cut, begin anew ────────────────────────────────────────────────────────────────

    async def _sync(self) -> None:
        job = self._log.begin_sync()
        if job is not None:
            await self.run_job(job)
        self._owner.replica.synced(self._owner.durable_offset)
        await self.save_epochs()

    async def sync_rest(self) -> None:
        """What was appended under another leader, this node perhaps, and is not on disk yet. If
        nothing is appended any more nobody else would sync it, and the leader would wait for it
        before it says that it is committed."""
        replica, durable_offset = self._owner.replica, self._owner.durable_offset
        if durable_offset < replica.end_offset and self._log.refusal is None:
            await self._sync()
        else:
            # A sync that ended behind the old epoch was not counted then.
            replica.synced(min(durable_offset, replica.end_offset))

    async def _store_low_watermark(self, offset: int) -> None:
        fold = self.fold

        def work() -> None:
            self._log.store_low_watermark(offset)
            if fold is not None:
                fold.clip(offset)

        self._is_read_in_thread = True
        try:
            await self._in_thread(work)
        finally:
            self._is_read_in_thread = False
        self._owner.replica.stored_low_watermark(offset)

    async def run_job(self, job: SyncJob) -> None:
        await self._in_thread(job.run)
        self._log.finish_sync(job)

    def sync_soon(self) -> None:
        """Called every interval, for topics that do not wait for it. Those that never sync do so
        all the same behind a segment: its files stay open until then, and nobody compacts it."""
        owner, log, fsync = self._owner, self._log, self._owner.fsync
        if owner.replica.leader is not None or owner.is_turning:
            return
        if self._work is not None or log.refusal is not None:
            return
        if (fsync is Fsync.INTERVAL and log.durable_offset < log.end_offset) or (
            fsync is Fsync.NEVER and log.has_unsynced_sealed
        ):
            self._begin(self._sync())

    async def _truncate(self, to: int) -> None:
        log_.warning(
            "replica cut to where it agrees with its leader",
            extra={"partition": str(self._key), "from": self._log.end_offset, "to": to},
        )
        self._owner.give_up_beyond(to)
        await self._compactor.stop()
        # What was written down about the part that goes must go first.
        await self._in_thread(lambda: self._forget_beyond(to))
        end = await self._in_thread(lambda: self._log.truncate(to))
        self._compactor = self._new_compactor()
        if self.fold is not None and self.fold.offset > end:
            self.fold = None  # of what was committed nothing is cut; it was not known to be then
        self._owner.replica.truncated(end)
        await self.save_epochs()

    async def _restart(self, at: int) -> None:
        log_.warning(
            "replica begins anew: its leader's log begins behind it",
            extra={"partition": str(self._key), "end": self._log.end_offset, "at": at},
        )
        self.fold = None
        self._owner.give_up_beyond(-1)
        await self._compactor.stop()
        await self._in_thread(lambda: self._forget_beyond(-1))
        await self._in_thread(lambda: self._log.restart(at))
        self._compactor = self._new_compactor()
        self._owner.replica.restarted(at)

    def _forget_beyond(self, offset: int) -> None:
        forget_beyond(self._log, offset)
        forget_clean_beyond(self._log, offset)
        self._saved_epoch = NO_EPOCH  # the log removes what was saved of epochs itself

    async def save_epochs(self, *, is_last: bool = False) -> None:
        """So that the next start need not read the whole log for them. ``is_last``: up to the end,
        also if there is no new one."""
        history = self._owner.replica.history
        if is_last or history.last != self._saved_epoch:
            self._saved_epoch = history.last
            entries, end = list(history), self._log.end_offset
            with suppress(OSError, DiskFull):
                await self._in_thread(lambda: write_epochs(self._log, entries, end))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._owner.surroundings.pool, work)

    # ── What goes ────────────────────────────────────────────────────────────────────────────

    def _drop_finished(self) -> None:
        """What the leader has dropped may go here too, as far as it is known to be committed."""
        start = max(self.leader_start, self._log.stored_low_watermark)
        start = min(start, self._owner.replica.high_watermark)
        if self.fold is not None:
            start = min(start, self.fold.offset)  # it has not read the rest yet
        if start > self._log.start_offset:
            detached = self._log.detach_before(start)
            if detached.paths:
                self._owner.note_start()
                self._loop.run_in_executor(self._owner.surroundings.pool, detached.remove)

    def _new_compactor(self) -> Compactor:
        surroundings = self._owner.surroundings
        return Compactor(
            self._log,
            clock=surroundings.clock,
            pool=surroundings.pool,
            disk=surroundings.disk,
            at_rest=self._unread,
        )

    async def _unread(self) -> None:
        """Segments must not change while a thread reads them."""
        while self._is_read_in_thread and self._work is not None:
            await asyncio.wait([self._work])

    async def compact(self) -> int:
        """One round, as ``Partition.compact``, where this node follows. Returns the bytes freed."""
        owner, fold = self._owner, self.fold
        defaults = owner.surroundings.defaults
        if (
            not (owner.topic.configs or defaults.configs)  # of thousands, hardly any is compacted
            or owner.replica.follower is None
            or owner.is_turning
            or fold is None
            or fold.damage is not None
            or self._is_read_in_thread  # it is changing, and far behind: the next time will do
        ):
            return 0
        settings = settings_of(owner.topic, defaults)
        if not settings.is_compacted or owner.surroundings.catalog.shares_of(self._key.topic_id):
            return 0
        up_to = fold.last_stable_offset(owner.replica.high_watermark)

        def forget(gone: Collection[Aborted]) -> None:
            # Where it cannot be done now, the next round finds the same again.
            if self.fold is fold and not self._is_read_in_thread:
                fold.forget_aborted(gone)

        try:
            return await self._compactor.run(
                settings,
                up_to=up_to,
                aborted=fold.aborted_below(up_to),
                forget=forget,
                held_offset=self._held_offset,
                uses_reserve=is_internal(owner.topic.name),
            )
        except Unreadable as unreadable:
            with suppress(Damaged):
                self._log.read(unreadable.offset, bytes_max=1)  # the log remembers how far it goes
            raise
