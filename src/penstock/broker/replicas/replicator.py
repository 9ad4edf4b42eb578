"""One replica of a partition on this node. It connects its log, the replication rules
(``replication/replica.py``) and, while it leads, the ``Partition``.

When a new epoch arrives, the work of the old role ends at once, without an await. Slow steps follow
in ``_take_role``, one after the other. The log has one user at a time: the follower
(``follower_log.py``), a replay in a thread, or the leading ``Partition``."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.broker.partition.partition import Partition
from penstock.broker.partition.partitions import Partitions
from penstock.broker.partition.replay import Replay
from penstock.broker.replicas.follower_log import FollowerLog
from penstock.broker.replicas.leadership import Leadership
from penstock.broker.replicas.open_replica import HomeNode, OpenReplica
from penstock.log.storage.checkpoint import Damage, DamagedRange
from penstock.model.errors import Damaged, NotLeader, TopicNotFound
from penstock.replication.epochs import EpochHistory
from penstock.replication.messages import Data, Fetch, NotYet, Reply
from penstock.replication.replica import Role
from penstock.replication.row import Change, View

log_ = logging.getLogger(__name__)

READ_BYTES_MAX = 4 * 1_048_576  # per follower and reply
PENDING_SECONDS_MAX = 5.0  # maximum wait of a client for the outcome after an election


@dataclass(eq=False)
class Home(HomeNode):
    """The node of a replica, and what the node does for its replicas."""

    partitions: Partitions
    fetch_soon: Callable[["Replicator", int], None]  # after a pause in ms
    check_in_sync_soon: Callable[[], None]
    damaged: Callable[["Replicator", Damaged], bool]  # returns whether it is quarantined


@dataclass(eq=False, repr=False)
class Replicator(OpenReplica):
    home: Home

    def __post_init__(self, history: EpochHistory, incarnation: int) -> None:
        super().__post_init__(history, incarnation)
        self.partition: Partition | None = None  # set while this replica leads
        self.leadership: Leadership | None = None
        self.is_quarantined = False  # once True, this replica is never used again
        self.follower_log = FollowerLog(self)

    def update(self, view: View) -> None:
        replica = self.replica
        before = (replica.epoch, replica.role)
        holders = () if replica.view is None else replica.view.row.replicas
        replica.see(view, now_ms=self.context.clock.mono_ms())
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
            restored = await self._restored()
            if restored.damage is not None and self.home.damaged(self, restored.damage):
                raise self.not_leader()
            place = (self.topic, self.key.index, self.log)
            partition = await self.home.partitions.lead(*place, restored, leadership)
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

    async def _restored(self) -> Replay:
        replay, self.follower_log.replay = self.follower_log.replay, None
        if replay is None or replay.damage is not None or replay.share_ids != self.share_ids:
            # The follower may not have known a new share.
            replay = await self.in_thread(self.new_replay())
        replay.topic = self.topic
        return await self.in_thread(replay.finish)

    def serve(self, fetch: Fetch, *, bytes_max: int) -> Reply[bytes] | None:
        """Return the reply to a follower's fetch, or None if there are no new records yet."""
        if self.replica.leader is not None and self.partition is None:
            return NotYet(fetch)  # the log is being replayed
        self.note_start()
        found = self.replica.fetched(fetch, now_ms=self.context.clock.mono_ms())
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

    def propose(self) -> Change | None:
        leader = self.replica.leader
        if leader is None or self.partition is None:
            return None
        gone = [node for node in leader.row.replicas if not self.home.is_alive(node)]
        return leader.propose(now_ms=self.context.clock.mono_ms(), gone=gone)

    def change_rejected(self, change: Change) -> None:
        if self.replica.leader is not None:
            self.replica.leader.refused(change)
            self.replica.synced(self.replica.durable_offset)
            self._apply_watermark()

    def change_unknown(self, change: Change) -> None:
        if self.replica.leader is not None:
            self.replica.leader.doubted(change)

    def fetch_soon(self, *, after_ms: int = 0) -> None:
        if self.replica.role is Role.FOLLOWER and not self._is_closed:
            self.home.fetch_soon(self, after_ms)

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
