"""One replica of one partition on this node: its log, what the rules say about it
(``replication/replica.py``), and what has to be done because of that.

    a view of the row ──► saw ──► lead: restore the views, take requests (``partitions.lead``)
                              └─► follow: ask the leader, append what comes, cut what is not its
    a follower asks   ──► serve ──► batches, or where the histories part; None: nothing new yet

What an epoch's end makes void ends at once, in the turn in which the view came; what takes time
(reading the log into cursors, letting a sync run out) follows in ``_take_role``, one thing after
the other. The log is used by one of three at a time: a follower's answers (``followed_log.py``), a
restore in a thread, or the partition that leads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.broker.flush import Flush
from penstock.broker.followed_log import FollowedLog
from penstock.broker.leading import Leading
from penstock.broker.partition import Partition
from penstock.broker.restore import Fold, Restored
from penstock.broker.surroundings import Surroundings
from penstock.log.damage import Damage, DamagedRange
from penstock.log.log import Log
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import (
    Damaged,
    LeaderMoved,
    NotLeader,
    Overloaded,
    TopicNotFound,
)
from penstock.model.topic import Fsync, Topic
from penstock.replication.epochs import NO_EPOCH, EpochHistory
from penstock.replication.messages import Answer, Data, Fetch, NotYet
from penstock.replication.replica import Replica, Role, Serve
from penstock.replication.row import Change, View

log_ = logging.getLogger(__name__)

READ_BYTES_MAX = 4 * 1_048_576  # for one follower in one answer
PENDING_SECONDS_MAX = 5.0  # for a client to wait until it is known what became of its request

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
    def level(self) -> int:
        """The feature level in force."""
        ...

    @property
    def is_registered(self) -> bool:
        """Whether nobody can have taken this node for dead yet (R20)."""
        ...

    async def lead(self, replicator: "Replicator", leading: "Leading") -> Partition:
        """Raises NotLeader when this node must not after all."""
        ...

    def damaged(self, replicator: "Replicator", damage: Damaged) -> bool:
        """Its log is, as has been found: whether it was put aside for it."""
        ...

    async def release(self, partition: Partition, reason: NotLeader | Overloaded) -> None: ...


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
        # Epoch and end of the leader's log, as it said last: how far behind this one is.
        self.leader_end = (NO_EPOCH, -1)
        self._loop = asyncio.get_running_loop()
        self._parked: set[Callable[[], None]] = set()
        self._role_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_put_aside = False  # for good: another takes its place
        # Written by this node when it led, in the order of the log, and not answered yet.
        self._pending: deque[Flush] = deque()
        self._low_watermark_waits: list[asyncio.Future[None]] = []
        self.replica = Replica(
            node,
            incarnation,
            registered_at=registered_at,
            history=history,
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            durable_offset=self.durable_offset,
            high_watermark=log.start_offset,
            low_watermark=log.stored_low_watermark,
        )
        self.followed = FollowedLog(self)

    def __repr__(self) -> str:
        return f"<replica of {self.key}: {self.replica.role.value} in {self.replica.epoch}>"

    @property
    def fsync(self) -> Fsync:
        return self.topic.fsync or self.home.surroundings.fsync_default

    @property
    def durable_offset(self) -> int:
        """What counts as durable: where nobody waits for disks, all of it."""
        return self.log.durable_offset if self.fsync is Fsync.ALWAYS else self.log.end_offset

    def not_leader(self) -> NotLeader:
        view = self.replica.view
        leader = -1 if view is None or view.row.leader == self.replica.node else view.row.leader
        return NotLeader(str(self.key), leader=leader, epoch=self.replica.epoch)

    @property
    def behind_count(self) -> int:
        """Records that the leader has and this one has not; 0 when it has not said."""
        epoch, end = self.leader_end
        replica = self.replica
        if replica.role is not Role.FOLLOWER or epoch != replica.epoch:
            return 0
        return max(0, end - replica.end_offset)

    # ── Views ────────────────────────────────────────────────────────────────────────────────

    def saw(self, view: View) -> None:
        replica = self.replica
        before = (replica.epoch, replica.role)
        holders = () if replica.view is None else replica.view.row.replicas
        replica.see(view, now_ms=self.home.now_ms())
        if (replica.epoch, replica.role) == before:
            self._tell_watermark()
            if view.row.replicas != holders:
                self.wake()  # who is none any more need not wait to hear so
            return
        if replica.role is Role.HALTED:
            self.alarm(replica.halt_reason)
        self._end_leading()
        self.followed.forget_question()
        self.wake()
        self._turn()

    def _turn(self) -> None:
        if self._role_task is None and not self._is_closed:
            self._role_task = self._loop.create_task(
                self._take_role(), name=f"take a role in {self.key}"
            )

    def _end_leading(self) -> None:
        """From here on nothing of the old epoch is taken or counted (R8)."""
        if self.leading is not None:
            self.leading.is_over = True
            self._hand_over()
            self._wake_low_watermark_waits()

    def _hand_over(self) -> None:
        """What clients wait for and is in the log may still be committed: by whoever leads now, if
        that log has it too. So they wait on, and are answered when this one knows; only what is
        cut off here, or not known in time, is answered as unknown."""
        if self.partition is None:
            return
        pending = self.partition.journal.hand_over(self.not_leader(), self.unknown())
        if pending:
            self._pending.extend(pending)
            self._loop.call_later(PENDING_SECONDS_MAX, self._give_up, pending)

    def committed(self) -> None:
        """What this node had written when it led, and is known to be committed, is answered."""
        high_watermark = self.replica.high_watermark
        while self._pending and self._pending[0].end_offset <= high_watermark:
            self._pending.popleft().succeed()

    def give_up_beyond(self, offset: int) -> None:
        """Cut off here. Another that has it still may lead one day: so this is not a no."""
        while self._pending and self._pending[-1].end_offset > offset:
            self._pending.pop().fail(self.unknown())

    def _give_up(self, pending: Sequence[Flush]) -> None:
        late = set(map(id, pending))
        for flush in [one for one in self._pending if id(one) in late]:
            self._pending.remove(flush)
            flush.fail(self.unknown())

    async def settle(self) -> None:
        """Returns when it is known what became of all that this node wrote when it led, or will
        not be known in time."""
        waiting = [flush.committed.wait() for flush in self._pending]
        await asyncio.gather(*waiting, return_exceptions=True)

    def unknown(self) -> LeaderMoved:
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
                if role is not Role.HALTED:
                    await self.followed.sync_rest()
                if role is Role.LEADER:
                    await self._lead()
                elif role is Role.FOLLOWER:
                    self.ask_soon()
                if (epoch, role) == (self.replica.epoch, self.replica.role):
                    return
        except Exception as error:
            log_.exception("replica stopped", extra={"partition": str(self.key)})
            self.halt(f"{type(error).__name__}: {error}")
        finally:
            self._role_task = None

    async def _leave(self) -> None:
        """Whatever this was: it uses the log no more when this returns."""
        partition, self.partition, self.leading = self.partition, None, None
        if partition is not None:
            await self.home.release(partition, self.unknown())
            self.note_start()
        await self.followed.rest()

    async def _lead(self) -> None:
        leading = Leading(self)
        await self.followed.save_epochs()
        await self._lower_low_watermark()
        try:
            partition = await self.home.lead(self, leading)
        except NotLeader:
            leading.is_over = True
            return  # the log is damaged, and somebody else will
        except TopicNotFound:
            leading.is_over = True
            return  # deleted meanwhile: this replica is closed when the partition's row goes
        if self.replica.epoch != leading.epoch or self.replica.role is not Role.LEADER:
            # Overtaken while the log was being read.
            leading.is_over = True
            await self.home.release(partition, self.unknown())
            return
        self.partition, self.leading = partition, leading
        self.replica.synced(self.durable_offset)
        self._tell_watermark()
        self.wake()
        self.home.look_soon()

    async def _lower_low_watermark(self) -> None:
        """Elected by an operator with less than it was told of: what is written next must not be
        hidden."""
        await self._in_thread(self.log.lower_low_watermark)
        self.replica.stored_low_watermark(self.log.stored_low_watermark)

    async def restored(self, shares: Sequence[Topic]) -> Restored:
        """For ``Home.lead``: the views as the log has them, read in a thread."""
        fold, self.followed.fold = self.followed.fold, None
        wanted = frozenset(share.topic_id for share in shares)
        if fold is None or fold.damage is not None or fold.share_ids != wanted:
            # A share may have begun before this node knew of it.
            fold = await self._in_thread(lambda: self._fold_with(shares))
        fold.topic = self.topic

        def finish() -> Restored:
            fold.advance(self.log.end_offset)
            return fold.finish()

        return await self._in_thread(finish)

    def new_fold(self) -> Fold:
        return self._fold_with(self.home.surroundings.catalog.shares_of(self.key.topic_id))

    def _fold_with(self, shares: Sequence[Topic]) -> Fold:
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
        self.note_start()
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
            self.committed()
            if self._low_watermark_waits:
                self._wake_low_watermark_waits()

    async def low_watermark_moved(self) -> None:
        """Return when the replicas that may be elected, or what they have stored, changed."""
        moved = self._loop.create_future()
        self._low_watermark_waits.append(moved)
        await moved

    def _wake_low_watermark_waits(self) -> None:
        waits, self._low_watermark_waits = self._low_watermark_waits, []
        for one in waits:
            if not one.done():
                one.set_result(None)

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

    @property
    def surroundings(self) -> Surroundings:
        return self.home.surroundings

    @property
    def is_turning(self) -> bool:
        return self._role_task is not None or self._is_closed

    def ask_soon(self, *, after_ms: int = 0) -> None:
        if self.replica.follower is not None and not self._is_closed:
            self.home.ask_soon(self, after_ms=after_ms)

    def note_start(self) -> None:
        if self.log.start_offset > self.replica.start_offset:
            self.replica.trimmed(self.log.start_offset)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self.home.surroundings.pool, work)

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def reincarnate(self, incarnation: int) -> None:
        """The node was taken for dead and has registered anew: what it was before does not count.
        The log is what it is; what is committed of it, its next leader will say."""
        before = self.replica
        if before.role is Role.HALTED:
            return
        self._end_leading()
        self.followed.forget_question()
        self.replica = Replica(
            before.node,
            incarnation,
            registered_at=incarnation,
            history=before.history,
            start_offset=before.start_offset,
            end_offset=before.end_offset,
            durable_offset=before.durable_offset,
            high_watermark=before.high_watermark,
            low_watermark=before.low_watermark,
        )
        self.wake()
        self._turn()

    def damaged(self, damage: Damaged) -> None:
        self.home.damaged(self, damage)

    def note_damage(self, found: Sequence[Damage]) -> None:
        """For the scrubber."""
        if self._is_closed:
            return
        self.damaged(DamagedRange(self.log.folder, found[0]))
        if self.partition is not None and not self.is_put_aside:
            self.partition.note_damage(found)

    def put_aside(self) -> None:
        """Neither lead nor follow with this log any more: it is damaged, and others have it."""
        self.is_put_aside = True
        self._end_leading()
        self.replica.halt("the log is damaged; it is made anew when somebody else leads")
        self.give_up_beyond(-1)
        self.followed.forget_question()
        self.wake()
        self._turn()

    def halt(self, reason: str) -> None:
        self.replica.halt(reason)
        self.give_up_beyond(-1)
        self._wake_low_watermark_waits()
        self.alarm(reason)

    def alarm(self, reason: str) -> None:
        log_.critical("replica halted", extra={"partition": str(self.key), "reason": reason})

    async def close(self, *, is_clean: bool) -> None:
        """The log is closed when this returns."""
        self._is_closed = True
        if self.leading is not None:
            self.leading.is_over = True
            self._wake_low_watermark_waits()
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
        self.give_up_beyond(-1)
        self.wake()
        if is_clean and self.replica.role is not Role.HALTED and self.log.refusal is None:
            job = self.log.begin_sync()
            if job is not None:
                await self.followed.run_job(job)
            await self.followed.save_epochs(is_last=True)
            self.log.drop_tail()
            await self._in_thread(self.log.close)
        else:
            self.log.close(clean=False)
            self.log.drop_tail()
