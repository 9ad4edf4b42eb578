"""One replica of a partition on this node. It connects its log, the replication rules
(``replication/replica.py``) and, while it leads, the ``Partition``.

When a new epoch arrives, the work of the old role ends at once, without an await. Slow steps follow
in ``_take_role``, one after the other. The log has one user at a time: the follower
(``follower_log.py``), a replay in a thread, or the leading ``Partition``."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.partition.partition import Partition
from penstock.broker.partition.replay import Replay
from penstock.broker.replicas.follower_log import FollowerLog
from penstock.broker.replicas.leadership import Leadership
from penstock.broker.storage.flush import Flush
from penstock.log.log import Log
from penstock.log.storage.checkpoint import Damage, DamagedRange
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import Damaged, LeaderMoved, NotLeader, TopicNotFound
from penstock.model.topic import Fsync, Topic
from penstock.replication.epochs import NO_EPOCH, EpochHistory
from penstock.replication.messages import Data, Fetch, NotYet, Reply
from penstock.replication.replica import Replica, Role
from penstock.replication.row import Change, View

if TYPE_CHECKING:
    from penstock.broker.replicas.replicators import Replicators

log_ = logging.getLogger(__name__)

READ_BYTES_MAX = 4 * 1_048_576  # per follower and reply
PENDING_SECONDS_MAX = 5.0  # maximum wait of a client for the outcome after an election

T = TypeVar("T")


class Replicator:
    def __init__(
        self,
        key: PartitionKey,
        topic: Topic,
        log: Log,
        history: EpochHistory,
        home: "Replicators",
        *,
        incarnation: int,
    ) -> None:
        self.key = key
        self.topic = topic
        self.log = log
        self.home = home
        self.context = home.context
        self.partition: Partition | None = None  # set while this replica leads
        self.leadership: Leadership | None = None
        # Epoch and end offset of the leader's log, from its last reply.
        self.leader_end = (NO_EPOCH, -1)
        self.is_quarantined = False  # once True, this replica is never used again
        self._loop = asyncio.get_running_loop()
        self._waiting_fetches: set[Callable[[], None]] = set()
        self._role_task: asyncio.Task[None] | None = None
        self._is_closed = False
        # Appended in log order when this node led, and not confirmed to clients yet.
        self._pending: deque[Flush] = deque()
        self._low_watermark_waits: list[asyncio.Future[None]] = []
        self.replica = Replica(
            home.node,
            incarnation,
            history=history,
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            durable_offset=self.durable_offset,
            high_watermark=log.start_offset,
            low_watermark=log.stored_low_watermark,
        )
        self.follower_log = FollowerLog(self)

    def __repr__(self) -> str:
        return f"<replica of {self.key}: {self.replica.role.value} in {self.replica.epoch}>"

    @property
    def fsync(self) -> Fsync:
        return self.topic.fsync or self.context.fsync_default

    @property
    def durable_offset(self) -> int:
        """The offset after the last record. With fsync ``always``, only durable records count."""
        return self.log.durable_offset if self.fsync is Fsync.ALWAYS else self.log.end_offset

    @property
    def lag_count(self) -> int:
        """The number of records that this replica lags behind the leader, or 0 if unknown."""
        epoch, end = self.leader_end
        replica = self.replica
        if replica.role is not Role.FOLLOWER or epoch != replica.epoch:
            return 0
        return max(0, end - replica.end_offset)

    def not_leader(self) -> NotLeader:
        view = self.replica.view
        leader = -1 if view is None or view.row.leader == self.replica.node else view.row.leader
        return NotLeader(str(self.key), leader=leader, epoch=self.replica.epoch)

    def outcome_unknown(self) -> LeaderMoved:
        moved = f"the leader of {self.key} changed during the request"
        return LeaderMoved(f"Outcome unknown: {moved}. Retry.")

    def update(self, view: View) -> None:
        replica = self.replica
        before = (replica.epoch, replica.role)
        holders = () if replica.view is None else replica.view.row.replicas
        replica.see(view, now_ms=self.home.now_ms())
        if (replica.epoch, replica.role) == before:
            self._apply_watermark()
            if view.row.replicas != holders:
                self.wake()  # a node that is no longer a replica must notice
            return
        if replica.role is Role.HALTED:
            self.log_halt(replica.halt_reason)
        self._change_role()

    def _change_role(self) -> None:
        """End the old role at once, and start a task that takes the new role."""
        self._end_leadership()
        self.follower_log.cancel_fetch()
        self.wake()
        if self._role_task is None and not self._is_closed:
            name = f"take a role in {self.key}"
            self._role_task = self._loop.create_task(self._take_role(), name=name)

    def _end_leadership(self) -> None:
        """Stop accepting appends in the old epoch (rule R8). The next leader may still commit
        appends that were not confirmed yet, so their clients wait for the outcome."""
        if self.leadership is None or self.leadership.is_over:
            return
        self.leadership.is_over = True
        if self.partition is not None:
            pending = self.partition.journal.hand_over(self.not_leader(), self.outcome_unknown())
            if pending:
                self._pending.extend(pending)
                self._loop.call_later(PENDING_SECONDS_MAX, self._fail_late, pending)
        self._wake_low_watermark_waits()

    def committed(self) -> None:
        """Confirm appends that this node accepted as leader and that are committed now."""
        high_watermark = self.replica.high_watermark
        while self._pending and self._pending[0].end_offset <= high_watermark:
            self._pending.popleft().settle()

    def fail_pending_after(self, offset: int) -> None:
        """Fail pending appends beyond an offset with LeaderMoved: the outcome is unknown."""
        while self._pending and self._pending[-1].end_offset > offset:
            self._pending.pop().settle(self.outcome_unknown())

    def _fail_late(self, pending: Sequence[Flush]) -> None:
        late = set(map(id, pending))
        for flush in [each for each in self._pending if id(each) in late]:
            self._pending.remove(flush)
            flush.settle(self.outcome_unknown())

    async def settle(self) -> None:
        """Wait for the outcome of all appends that this node accepted as leader."""
        waiting = [flush.committed.wait() for flush in self._pending]
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _take_role(self) -> None:
        try:
            while not self._is_closed:
                epoch, role = self.replica.epoch, self.replica.role
                await self._leave_role()
                if (epoch, role) != (self.replica.epoch, self.replica.role):
                    continue
                if role is not Role.HALTED:
                    await self.follower_log.sync_rest()
                if role is Role.LEADER:
                    await self._lead()
                elif role is Role.FOLLOWER:
                    self.fetch_soon()
                if (epoch, role) == (self.replica.epoch, self.replica.role):
                    return
        except Exception as error:
            log_.exception("replica role change failed", extra={"partition": str(self.key)})
            self.halt(f"{type(error).__name__}: {error}")
        finally:
            self._role_task = None

    async def _leave_role(self) -> None:
        """End the old role, and wait until it no longer uses the log."""
        partition, self.partition, self.leadership = self.partition, None, None
        if partition is not None:
            await self.home.partitions.release(partition, self.outcome_unknown())
            self.note_start()
        await self.follower_log.rest()

    async def _lead(self) -> None:
        leadership = Leadership(self)
        await self.follower_log.save_epochs()
        # An operator may have elected this replica although it ends below the low watermark. New
        # records must not be hidden by it.
        await self.in_thread(self.log.lower_low_watermark)
        self.replica.low_watermark = self.log.stored_low_watermark
        try:
            partition = await self.home.lead(self, leadership)
        except (NotLeader, TopicNotFound):
            # The log is damaged and another replica will lead; or the topic was deleted, and this
            # replica will be closed.
            leadership.is_over = True
            return
        if self.replica.epoch != leadership.epoch or self.replica.role is not Role.LEADER:
            # The row changed while the log was being read.
            leadership.is_over = True
            await self.home.partitions.release(partition, self.outcome_unknown())
            return
        self.partition, self.leadership = partition, leadership
        self.replica.synced(self.durable_offset)
        self._apply_watermark()
        self.wake()
        self.home.check_in_sync_soon()

    async def restored(self) -> Replay:
        replay, self.follower_log.replay = self.follower_log.replay, None
        if replay is None or replay.damage is not None or replay.share_ids != self.share_ids:
            # The follower may not have known a new share.
            replay = await self.in_thread(self.new_replay())
        replay.topic = self.topic
        return await self.in_thread(replay.finish)

    def new_replay(self) -> Callable[[], Replay]:
        """Return a function that opens a new replay. The caller runs the function in a thread."""
        shares, place = self.shares, (self.log, self.topic, self.key.index)
        return lambda: Replay(*place, shares=shares, context=self.context)

    @property
    def shares(self) -> Sequence[Topic]:
        return self.context.catalog.shares_of(self.key.topic_id)

    @property
    def share_ids(self) -> frozenset[str]:
        return frozenset(share.topic_id for share in self.shares)

    def serve(self, fetch: Fetch, *, bytes_max: int) -> Reply[bytes] | None:
        """Return the reply to a follower's fetch, or None if there are no new records yet."""
        if self.replica.leader is not None and self.partition is None:
            return NotYet(fetch)  # the log is being replayed
        self.note_start()
        found = self.replica.fetched(fetch, now_ms=self.home.now_ms())
        self._apply_watermark()
        if found is not None:
            return found
        try:
            batches = self.log.read(fetch.offset, bytes_max=min(bytes_max, READ_BYTES_MAX))
        except Damaged as damage:
            if self.partition is not None:
                self.partition.found_damage(damage)
            return NotYet(fetch)
        return Data(fetch, batches, self.replica.high_watermark) if batches else None

    def _apply_watermark(self) -> None:
        partition = self.partition
        if partition is not None and self.leadership is not None and not self.leadership.is_over:
            partition.journal.replicated(self.replica.high_watermark)
            self.committed()
            if self._low_watermark_waits:
                self._wake_low_watermark_waits()

    async def low_watermark_moved(self) -> None:
        """Wait until a replica has stored a low watermark or the set of replicas has changed."""
        moved = self._loop.create_future()
        self._low_watermark_waits.append(moved)
        await moved

    def _wake_low_watermark_waits(self) -> None:
        waits, self._low_watermark_waits = self._low_watermark_waits, []
        for each in waits:
            if not each.done():
                each.set_result(None)

    def park(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, when there may be new records for a waiting fetch."""
        self._waiting_fetches.add(wake)

    def unpark(self, wake: Callable[[], None]) -> None:
        self._waiting_fetches.discard(wake)

    def wake(self) -> None:
        if self._waiting_fetches:
            waiting, self._waiting_fetches = self._waiting_fetches, set()
            for wake in waiting:
                wake()

    def propose(self) -> Change | None:
        leader = self.replica.leader
        if leader is None or self.partition is None:
            return None
        gone = [node for node in leader.row.replicas if not self.home.is_alive(node)]
        return leader.propose(now_ms=self.home.now_ms(), gone=gone)

    def change_rejected(self, change: Change) -> None:
        if self.replica.leader is not None:
            self.replica.leader.refused(change)
            self.replica.synced(self.replica.durable_offset)
            self._apply_watermark()

    def change_unknown(self, change: Change) -> None:
        if self.replica.leader is not None:
            self.replica.leader.doubted(change)

    @property
    def leader(self) -> int:
        view = self.replica.view
        return -1 if view is None or self.replica.role is not Role.FOLLOWER else view.row.leader

    @property
    def is_changing_role(self) -> bool:
        return self._role_task is not None or self._is_closed

    def fetch_soon(self, *, after_ms: int = 0) -> None:
        if self.replica.role is Role.FOLLOWER and not self._is_closed:
            self.home.fetch_soon(self, after_ms=after_ms)

    def note_start(self) -> None:
        if self.log.start_offset > self.replica.start_offset:
            self.replica.trimmed(self.log.start_offset)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self.context.pool, work)

    def reincarnate(self, incarnation: int) -> None:
        """Give up the role, because this node was considered dead and has registered again."""
        before = self.replica
        if before.role is Role.HALTED:
            return
        self._end_leadership()
        self.replica = before.reincarnated(incarnation)
        self._change_role()

    def damaged(self, damage: Damaged) -> None:
        self.home.damaged(self, damage)

    def note_damage(self, found: Sequence[Damage]) -> None:
        if self._is_closed:
            return
        self.damaged(DamagedRange(self.log.folder, found[0]))
        if self.partition is not None and not self.is_quarantined:
            self.partition.note_damage(found)

    def quarantine(self) -> None:
        """Stop using this log permanently. It is damaged, and other replicas have all records."""
        self.is_quarantined = True
        self._end_leadership()
        self.replica.halt("the log is damaged; it will be rebuilt once another node leads")
        self.fail_pending_after(-1)
        self._change_role()

    def halt(self, reason: str) -> None:
        self.replica.halt(reason)
        self.fail_pending_after(-1)
        self._wake_low_watermark_waits()
        self.log_halt(reason)

    def log_halt(self, reason: str) -> None:
        log_.critical("replica halted", extra={"partition": str(self.key), "reason": reason})

    async def close(self, *, is_clean: bool) -> None:
        self._is_closed = True
        if self.leadership is not None:
            self.leadership.is_over = True
            self._wake_low_watermark_waits()
        if self._role_task is not None:
            await asyncio.wait([self._role_task])
        partition = self.partition
        if (
            partition is not None
            and is_clean
            and partition.journal.high_watermark >= self.log.end_offset
        ):
            await partition.checkpoint()
        await self._leave_role()
        self.fail_pending_after(-1)
        self.wake()
        if is_clean and self.replica.role is not Role.HALTED and self.log.refusal is None:
            job = self.log.begin_sync()
            if job is not None:
                await self.follower_log.run_sync(job)
            await self.follower_log.save_epochs(is_last=True)
            self.log.drop_batch_cache()
            await self.in_thread(self.log.close)
        else:
            self.log.close(clean=False)
            self.log.drop_batch_cache()
