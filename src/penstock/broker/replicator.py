"""One replica of one partition on this node: its log, what the rules say about it
(``replication/replica.py``), and what has to be done because of that.

    a view of the row ──► saw ──► lead: restore the views, take requests (``partitions.lead``)
                              └─► follow: ask the leader, append what comes, cut what is not its
    a follower asks   ──► serve ──► batches, or where the histories part; None: nothing new yet
    an answer comes   ──► take ──► append, truncate or begin anew, then ask again

What an epoch's end makes void ends at once, in the turn in which the view came; what takes time
(reading the log into cursors, letting a sync run out) follows in ``_take_role``, one thing after
the other. The log is used by one of three at a time: a follower's answers, a restore in a thread,
or the partition that leads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from penstock.broker.journal import Flush
from penstock.broker.partition import CHECKPOINT_BYTES, Partition
from penstock.broker.restore import Fold, Restored, forget_beyond
from penstock.broker.surroundings import Surroundings
from penstock.log.epochs import write_epochs
from penstock.log.log import AppendsRefused, Log, SyncJob
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import (
    Damaged,
    DiskFull,
    LeaderMoved,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
)
from penstock.model.topic import Fsync, Topic
from penstock.replication.epochs import NO_EPOCH, EpochHistory
from penstock.replication.messages import Answer, Data, Fenced, Fetch, NotYet
from penstock.replication.replica import Append, Replica, Restart, Role, Serve, Truncate
from penstock.replication.row import Change, View

log_ = logging.getLogger(__name__)

READ_BYTES_MAX = 4 * 1_048_576  # for one follower in one answer
PENDING_SECONDS_MAX = 5.0  # for a client to wait until it is known what became of its request
FOLD_BYTES = 512 * 1_024  # of the log, read into cursors between two questions to the leader
ASYNC_CONFIG = "penstock.replication"

T = TypeVar("T")


class Home(Protocol):
    """The node, as its replicas see it."""

    surroundings: Surroundings

    def now_ms(self) -> int: ...

    def ask_soon(self, replicator: "Replicator", *, after_ms: int = 0) -> None:
        """It has a question for its leader."""
        ...

    def is_alive(self, node: int) -> bool: ...

    def look_soon(self) -> None:
        """Somebody may have to leave or enter an in-sync set."""
        ...

    @property
    def is_registered(self) -> bool:
        """Whether nobody can have taken this node for dead yet (R20)."""
        ...

    async def lead(self, replicator: "Replicator", leading: "Leading") -> Partition: ...

    async def release(self, partition: Partition, reason: NotLeader | Overloaded) -> None: ...


class Leading:
    """``journal.Replication``: one epoch in which this node leads. It ends with ``end``, and then
    does nothing any more, whoever still holds it."""

    def __init__(self, replicator: "Replicator") -> None:
        self._replicator = replicator
        self._replica = replicator.replica
        self.epoch = self._replica.epoch
        self.is_over = False
        self.is_paused = False  # about to hand over: what comes now waits for the next leader

    @property
    def high_watermark(self) -> int:
        return self._replica.high_watermark

    @property
    def is_awaited(self) -> bool:
        return self._replicator.topic.configs.get(ASYNC_CONFIG) != "async"

    @property
    def is_settled(self) -> bool:
        leader = self._replica.leader
        return leader is not None and leader.epoch == self.epoch and leader.is_settled

    def check_takes(self) -> None:
        leader = self._replica.leader
        if leader is None or self.is_over or self.is_paused:
            raise self._replicator.not_leader()
        row = leader.row
        home = self._replicator.home
        if not self.is_awaited and not home.is_registered:
            raise NotEnoughReplicas("This node may have been taken for dead: it does not answer.")
        alive = sum(home.is_alive(node) for node in row.whole)
        if alive < row.in_sync_min:
            raise NotEnoughReplicas(
                f"{self._replicator.key}: {alive} of {len(row.replicas)} replicas are in sync, and"
                f" the topic asks for {row.in_sync_min}."
            )

    def appended(self, next_offset: int) -> None:
        if not self.is_over:
            self._replica.appended(self.epoch, next_offset)
            self._replicator.wake()

    def synced(self, durable_offset: int) -> int:
        """A sync that ends after the epoch did tells nothing about the log of another."""
        if self.is_over:
            return self._replica.high_watermark
        return self._replica.synced(min(durable_offset, self._replica.end_offset))


class Replicator:
    def __init__(
        self,
        key: PartitionKey,
        topic: Topic,
        log: Log,
        history: EpochHistory,
        home: Home,
        *,
        incarnation: int,
        registered_at: int,
        node: int,
    ) -> None:
        self.key = key
        self.topic = topic
        self.log = log
        self.home = home
        self.partition: Partition | None = None  # while it leads
        self.leading: Leading | None = None
        self.leader_start = 0  # of the leader's log, as it said last
        self._loop = asyncio.get_running_loop()
        self._parked: set[Callable[[], None]] = set()
        self._role_task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None  # a follower's sync, cut or new beginning
        self._asked: Fetch | None = None  # on its way to the leader
        self._is_closed = False
        self._saved_epoch = history.last
        # What a follower makes of the log, as far as it is committed, so that it can lead at once.
        self._fold: Fold | None = None
        # Written by this node when it led, in the order of the log, and not answered yet.
        self._pending: deque[Flush] = deque()
        self._checkpoint_bytes = 0
        self.replica = Replica(
            node,
            incarnation,
            registered_at=registered_at,
            history=history,
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            durable_offset=self._durable_offset,
            high_watermark=log.start_offset,
        )

    def __repr__(self) -> str:
        return f"<replica of {self.key}: {self.replica.role.value} in {self.replica.epoch}>"

    @property
    def fsync(self) -> Fsync:
        return self.topic.fsync or self.home.surroundings.fsync_default

    @property
    def _durable_offset(self) -> int:
        """What counts as durable: where nobody waits for disks, all of it."""
        return self.log.durable_offset if self.fsync is Fsync.ALWAYS else self.log.end_offset

    def not_leader(self) -> NotLeader:
        view = self.replica.view
        leader = -1 if view is None or view.row.leader == self.replica.node else view.row.leader
        return NotLeader(str(self.key), leader=leader, epoch=self.replica.epoch)

    # ── Views ────────────────────────────────────────────────────────────────────────────────

    def saw(self, view: View) -> None:
        replica = self.replica
        before = (replica.epoch, replica.role)
        replica.see(view, now_ms=self.home.now_ms())
        if (replica.epoch, replica.role) == before:
            self._tell_watermark()
            return
        if replica.role is Role.HALTED:
            self._alarm(replica.halt_reason)
        leading = self.leading
        if leading is not None:
            # From here on nothing of the old epoch is taken or counted (R8).
            leading.is_over = True
            self._hand_over()
        self._asked = None  # what comes now is no answer to what will be asked
        self.wake()
        self._turn()

    def _turn(self) -> None:
        if self._role_task is None and not self._is_closed:
            self._role_task = self._loop.create_task(
                self._take_role(), name=f"take a role in {self.key}"
            )

    def _hand_over(self) -> None:
        """What clients wait for and is in the log may still be committed: by whoever leads now, if
        that log has it too. So they wait on, and are answered when this one knows; only what is
        cut off here, or not known in time, is answered as unknown."""
        if self.partition is None:
            return
        pending = self.partition.journal.hand_over(self.not_leader(), self._unknown())
        if pending:
            self._pending.extend(pending)
            self._loop.call_later(PENDING_SECONDS_MAX, self._give_up, pending)

    def _settle_pending(self) -> None:
        high_watermark = self.replica.high_watermark
        while self._pending and self._pending[0].end_offset <= high_watermark:
            self._pending.popleft().succeed()

    def _give_up_beyond(self, offset: int) -> None:
        """Cut off here. Another that has it still may lead one day: so this is not a no."""
        while self._pending and self._pending[-1].end_offset > offset:
            self._pending.pop().fail(self._unknown())

    def _give_up(self, pending: Sequence[Flush]) -> None:
        late = set(map(id, pending))
        for flush in [one for one in self._pending if id(one) in late]:
            self._pending.remove(flush)
            flush.fail(self._unknown())

    def _unknown(self) -> LeaderMoved:
        return LeaderMoved(
            f"The leader of {self.key} changed: nobody knows whether this was written. Ask again."
        )

    async def _take_role(self) -> None:
        try:
            while not self._is_closed:
                epoch, role = self.replica.epoch, self.replica.role
                await self._leave()
                if (epoch, role) != (self.replica.epoch, self.replica.role):
                    continue
                if role is Role.LEADER:
                    await self._lead()
                elif role is Role.FOLLOWER:
                    self.ask_soon()
                if (epoch, role) == (self.replica.epoch, self.replica.role):
                    return
        except Exception as error:
            log_.exception("replica stopped", extra={"partition": str(self.key)})
            self._halt(f"{type(error).__name__}: {error}")
        finally:
            self._role_task = None

    async def _leave(self) -> None:
        """Whatever this was: it uses the log no more when this returns."""
        partition, self.partition, self.leading = self.partition, None, None
        if partition is not None:
            await self.home.release(partition, self._unknown())
            self._note_start()
        if self._work is not None:
            await asyncio.wait([self._work])

    async def _lead(self) -> None:
        leading = Leading(self)
        await self._save_epochs()
        partition = await self.home.lead(self, leading)
        if self.replica.epoch != leading.epoch or self.replica.role is not Role.LEADER:
            # Overtaken while the log was being read.
            leading.is_over = True
            await self.home.release(partition, self._unknown())
            return
        self.partition, self.leading = partition, leading
        self.replica.synced(self._durable_offset)
        self._tell_watermark()
        self.wake()
        self.home.look_soon()

    async def restored(self, shares: Sequence[Topic]) -> Restored:
        """For ``Home.lead``: the views as the log has them, read in a thread."""
        fold, self._fold = self._fold, None
        wanted = frozenset(share.topic_id for share in shares)
        if fold is None or fold.damage is not None or fold.share_ids != wanted:
            # A share may have begun before this node knew of it.
            fold = await self._in_thread(lambda: self._new_fold(shares))
        fold.topic = self.topic

        def finish() -> Restored:
            fold.advance(self.log.end_offset)
            return fold.finish()

        return await self._in_thread(finish)

    def _new_fold(self, shares: Sequence[Topic]) -> Fold:
        return Fold(
            self.log,
            self.topic,
            self.key.index,
            shares=shares,
            surroundings=self.home.surroundings,
        )

    # ── As a leader ──────────────────────────────────────────────────────────────────────────

    def serve(self, fetch: Fetch, *, bytes_max: int) -> Answer[bytes] | None:
        """None: everything it asks for is not there yet."""
        if self.replica.leader is not None and self.partition is None:
            return NotYet(fetch)  # the log is being read into cursors
        self._note_start()
        found = self.replica.fetched(fetch, now_ms=self.home.now_ms())
        self._tell_watermark()
        if not isinstance(found, Serve):
            return found
        try:
            batches = self.log.read(fetch.offset, bytes_max=min(bytes_max, READ_BYTES_MAX))
        except Damaged as damage:
            if self.partition is not None:
                self.partition.found_damage(damage)
            return NotYet(fetch)
        if not batches:
            return None
        return Data(fetch, batches, self.replica.high_watermark)

    def _tell_watermark(self) -> None:
        partition = self.partition
        if partition is not None and self.leading is not None and not self.leading.is_over:
            partition.journal.replicated(self.replica.high_watermark)
            self._settle_pending()

    def park(self, wake: Callable[[], None]) -> None:
        self._parked.add(wake)

    def unpark(self, wake: Callable[[], None]) -> None:
        self._parked.discard(wake)

    def wake(self) -> None:
        """There is more to be had, or another answer."""
        if self._parked:
            parked, self._parked = self._parked, set()
            for wake in parked:
                wake()

    def propose(self) -> Change | None:
        """The next change of the in-sync set that is due."""
        leader = self.replica.leader
        if leader is None or self.partition is None:
            return None
        gone = [node for node in leader.row.replicas if not self.home.is_alive(node)]
        return leader.propose(now_ms=self.home.now_ms(), gone=gone)

    def refused(self, change: Change) -> None:
        """The store has said no to it."""
        if self.replica.leader is not None:
            self.replica.leader.refused(change)
            self.replica.synced(self.replica.durable_offset)
            self._tell_watermark()

    def doubted(self, change: Change) -> None:
        """Nobody knows whether the store carried it out, or still will."""
        if self.replica.leader is not None:
            self.replica.leader.doubted(change)

    # ── As a follower ────────────────────────────────────────────────────────────────────────

    @property
    def leader(self) -> int:
        follower = self.replica.follower
        return -1 if follower is None else follower.leader

    def ask_soon(self, *, after_ms: int = 0) -> None:
        if self.replica.follower is not None and not self._is_closed:
            self.home.ask_soon(self, after_ms=after_ms)

    def ask(self) -> Fetch | None:
        """None when there is nothing to ask any more, or not now: one question is on its way at
        a time, and none while something is being done to the log."""
        if self._role_task is not None or self._work is not None or self._is_closed:
            return None
        if self._asked is None:
            self._asked = self.replica.ask()
            return self._asked
        return None

    def unanswered(self, fetch: Fetch, *, after_ms: int) -> None:
        """Nobody answered, or there was no news."""
        if fetch is self._asked:
            self._asked = None
            self.ask_soon(after_ms=after_ms)

    def take(self, answer: Answer[bytes], *, leader_start: int = 0) -> None:
        """An answer; to a question that is not asked any more it is none (R16)."""
        if answer.asked is not self._asked:
            return
        self._asked = None
        if self._work is not None:
            return  # one thing at a time happens to a log; afterwards it is asked again
        try:
            self._do(answer, leader_start)
        except Exception as error:
            log_.exception("replica stopped", extra={"partition": str(self.key)})
            self._halt(f"{type(error).__name__}: {error}")

    def _do(self, answer: Answer[bytes], leader_start: int) -> None:
        step = self.replica.answered(answer)
        if isinstance(step, Append):
            self.leader_start = max(self.leader_start, leader_start)
            self._append(step)
        elif isinstance(step, Truncate):
            self._begin(self._truncate(step.to))
        elif isinstance(step, Restart):
            self._begin(self._restart(step.at))
        elif self.replica.role is Role.HALTED:
            self._alarm(self.replica.halt_reason)
        else:
            pause_ms = 50 if isinstance(answer, Fenced | NotYet) else 0
            self.ask_soon(after_ms=pause_ms)

    def _append(self, step: "Append[bytes]") -> None:
        replica = self.replica
        pause_ms = 0
        if step.batches:
            try:
                for data in step.batches:
                    self._append_batches(data)
            except (DiskFull, Damaged) as error:
                log_.warning(
                    "replica cannot append",
                    extra={"partition": str(self.key), "reason": str(error)},
                )
                pause_ms = 1_000
            except (OSError, AppendsRefused) as error:
                self._halt(f"append failed: {error}")
                return
        replica.followed(step.high_watermark)
        self._settle_pending()
        self._drop_finished()
        if self.fsync is Fsync.ALWAYS and replica.durable_offset < replica.end_offset:
            self._begin(self._sync())
            return
        replica.synced(replica.end_offset)
        self._go_on(after_ms=pause_ms)

    def _append_batches(self, data: bytes) -> None:
        now_ms = self.home.surroundings.clock.wall_ms()
        for header in self.log.append_stretch(data, now_ms=now_ms):
            self.replica.appended(header.leader_epoch, header.next_offset)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._work is None, "one thing at a time happens to a log"
        self._work = self._loop.create_task(self._run(work), name=f"replicate {self.key}")

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DiskFull as error:
            # Of a side file: nothing is lost, and there will be room one day.
            log_.warning("replica waits", extra={"at": str(self.key), "reason": str(error)})
            self._work = None
            self.ask_soon(after_ms=1_000)
            return
        except Exception as error:
            # After a failed sync or cut nobody knows what the disk holds: it is not tried again.
            self._halt(f"{type(error).__name__}: {error}")
            return
        finally:
            self._work = None
        try:
            self._go_on()
        except Exception as error:
            self._halt(f"{type(error).__name__}: {error}")  # reads what a disk may not give

    def _go_on(self, *, after_ms: int = 0) -> None:
        """Ask again, unless there is something to be done first that nothing may come between."""
        if self.replica.follower is None or self._role_task is not None or self._is_closed:
            return
        fold = self._fold
        if fold is None:
            self._begin(self._open_fold())
        elif not fold.advance(self.replica.high_watermark, bytes_max=FOLD_BYTES):
            self._begin(self._catch_up(fold))
        elif fold.replayed_bytes - self._checkpoint_bytes >= CHECKPOINT_BYTES:
            self._begin(self._checkpoint(fold))
        else:
            self.ask_soon(after_ms=after_ms)

    async def _open_fold(self) -> None:
        shares = self.home.surroundings.catalog.shares_of(self.key.topic_id)
        self._checkpoint_bytes = 0
        self._fold = await self._in_thread(lambda: self._new_fold(shares))

    async def _catch_up(self, fold: Fold) -> None:
        """Far behind: in a thread, which others' requests do not notice."""
        up_to = self.replica.high_watermark
        await self._in_thread(lambda: fold.advance(up_to))

    async def _checkpoint(self, fold: Fold) -> None:
        self._checkpoint_bytes = fold.replayed_bytes
        with suppress(OSError, DiskFull):  # it only saves reading again
            await self._in_thread(fold.checkpoint())

    async def _sync(self) -> None:
        job = self.log.begin_sync()
        if job is not None:
            await self._run_job(job)
        self.replica.synced(self._durable_offset)
        await self._save_epochs()

    async def _run_job(self, job: SyncJob) -> None:
        await self._in_thread(job.run)
        self.log.finish_sync(job)

    def sync_soon(self) -> None:
        """For topics that do not wait for it: called every interval."""
        if self.partition is None and self._work is None and self._role_task is None:
            if self.log.durable_offset == self.log.end_offset or self.log.refusal is not None:
                return
            self._begin(self._sync())

    async def _truncate(self, to: int) -> None:
        log_.warning(
            "replica cut to where it agrees with its leader",
            extra={"partition": str(self.key), "from": self.log.end_offset, "to": to},
        )
        self._give_up_beyond(to)
        # What was written down about the part that goes must go first.
        await self._in_thread(lambda: self._forget_beyond(to))
        end = await self._in_thread(lambda: self.log.truncate(to))
        if self._fold is not None and self._fold.offset > end:
            self._fold = None  # of what was committed nothing is cut; it was not known to be then
        self.replica.truncated(end)
        await self._save_epochs()

    async def _restart(self, at: int) -> None:
        log_.warning(
            "replica begins anew: its leader's log begins behind it",
            extra={"partition": str(self.key), "end": self.log.end_offset, "at": at},
        )
        self._fold = None
        self._give_up_beyond(-1)
        await self._in_thread(lambda: self._forget_beyond(-1))
        await self._in_thread(lambda: self.log.restart(at))
        self.replica.restarted(at)

    def _forget_beyond(self, offset: int) -> None:
        forget_beyond(self.log, offset)
        self._saved_epoch = NO_EPOCH  # the log removes what was saved of epochs itself

    def _drop_finished(self) -> None:
        """What the leader has dropped may go here too, as far as it is known to be committed."""
        start = min(self.leader_start, self.replica.high_watermark)
        if self._fold is not None:
            start = min(start, self._fold.offset)  # it has not read the rest yet
        if start > self.log.start_offset:
            detached = self.log.detach_before(start)
            if detached.paths:
                self._note_start()
                self._loop.run_in_executor(self.home.surroundings.pool, detached.remove)

    def _note_start(self) -> None:
        if self.log.start_offset > self.replica.start_offset:
            self.replica.trimmed(self.log.start_offset)

    async def _save_epochs(self) -> None:
        """So that the next start need not read the whole log for them."""
        history = self.replica.history
        if history.last != self._saved_epoch:
            self._saved_epoch = history.last
            entries, end = list(history), self.log.end_offset
            with suppress(OSError, DiskFull):
                await self._in_thread(lambda: write_epochs(self.log, entries, end))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self.home.surroundings.pool, work)

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def reincarnate(self, incarnation: int) -> None:
        """The node was taken for dead and has registered anew: what it was before does not count.
        The log is what it is; what is committed of it, its next leader will say."""
        before = self.replica
        if before.role is Role.HALTED:
            return
        if self.leading is not None:
            self.leading.is_over = True
            self._hand_over()
        self._asked = None
        self.replica = Replica(
            before.node,
            incarnation,
            registered_at=incarnation,
            history=before.history,
            start_offset=before.start_offset,
            end_offset=before.end_offset,
            durable_offset=before.durable_offset,
            high_watermark=before.high_watermark,
        )
        self.wake()
        self._turn()

    def _halt(self, reason: str) -> None:
        self.replica.halt(reason)
        self._give_up_beyond(-1)
        self._alarm(reason)

    def _alarm(self, reason: str) -> None:
        log_.critical("replica halted", extra={"partition": str(self.key), "reason": reason})

    async def close(self, *, is_clean: bool) -> None:
        """The log is closed when this returns."""
        self._is_closed = True
        if self.leading is not None:
            self.leading.is_over = True
        if self._role_task is not None:
            await asyncio.wait([self._role_task])
        partition = self.partition
        if (
            partition is not None
            and is_clean
            and partition.journal.high_watermark >= (self.log.end_offset)
        ):
            await partition.checkpoint()
        await self._leave()
        self._give_up_beyond(-1)
        self.wake()
        if is_clean and self.replica.role is not Role.HALTED and self.log.refusal is None:
            job = self.log.begin_sync()
            if job is not None:
                await self._run_job(job)
            self._saved_epoch = NO_EPOCH
            await self._save_epochs()
            self.log.drop_tail()
            await self._in_thread(self.log.close)
        else:
            self.log.close(clean=False)
            self.log.drop_tail()
