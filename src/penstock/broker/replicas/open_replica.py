"""The part of a replica that all its roles use: its log and offsets, the fetches that wait for new
records, and the appends that clients wait for."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import TypeVar

from penstock.broker.context.context import BrokerContext
from penstock.broker.partition.replay import Replay
from penstock.broker.storage.flush import Flush
from penstock.log.log import Log
from penstock.membership.cluster_view import ClusterView
from penstock.membership.registration import Membership
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import Damaged, LeaderMoved, NotLeader
from penstock.model.topic import Fsync, Topic
from penstock.replication.epochs import NO_EPOCH, EpochHistory
from penstock.replication.replica import Replica, Role

log_ = logging.getLogger(__name__)
T = TypeVar("T")


def about(key: PartitionKey, reason: object) -> dict[str, object]:
    return {"partition": str(key), "reason": str(reason)}


@dataclass(eq=False)
class HomeNode:
    """The node of a replica, and what this node knows about the cluster."""

    node: int
    context: BrokerContext
    view: ClusterView
    membership: Membership
    level: Callable[[], int]

    def is_alive(self, node: int) -> bool:
        return node == self.node or node in self.view.nodes

    @property
    def is_registered(self) -> bool:
        """Whether this node's lease is valid. If so, no other node considers it dead (rule R20)."""
        return self.membership.is_good


@dataclass(eq=False, repr=False)
class OpenReplica(ABC):
    key: PartitionKey
    topic: Topic
    log: Log
    home: HomeNode
    history: InitVar[EpochHistory]
    incarnation: InitVar[int]

    def __post_init__(self, history: EpochHistory, incarnation: int) -> None:
        self.context = self.home.context
        # Epoch and end offset of the leader's log, from its last reply.
        self.leader_end = (NO_EPOCH, -1)
        self._loop = asyncio.get_running_loop()
        self._waiting_fetches: set[Callable[[], None]] = set()
        self._role_task: asyncio.Task[None] | None = None
        self._is_closed = False
        # Appended in log order when this node led, and not confirmed to clients yet.
        self._pending: deque[Flush] = deque()
        self._low_watermark_waits: list[asyncio.Future[None]] = []
        self.replica = Replica(
            self.home.node,
            incarnation,
            history=history,
            start_offset=self.log.start_offset,
            end_offset=self.log.end_offset,
            durable_offset=self.durable_offset,
            high_watermark=self.log.start_offset,
            low_watermark=self.log.stored_low_watermark,
        )

    @abstractmethod
    def fetch_soon(self, *, after_ms: int = 0) -> None: ...

    @abstractmethod
    def damaged(self, damage: Damaged) -> None: ...

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

    @property
    def leader(self) -> int:
        view = self.replica.view
        return -1 if view is None or self.replica.role is not Role.FOLLOWER else view.row.leader

    @property
    def is_changing_role(self) -> bool:
        return self._role_task is not None or self._is_closed

    @property
    def shares(self) -> Sequence[Topic]:
        return self.context.catalog.shares_of(self.key.topic_id)

    @property
    def share_ids(self) -> frozenset[str]:
        return frozenset(share.topic_id for share in self.shares)

    def not_leader(self) -> NotLeader:
        view = self.replica.view
        leader = -1 if view is None or view.row.leader == self.replica.node else view.row.leader
        return NotLeader(str(self.key), leader=leader, epoch=self.replica.epoch)

    def outcome_unknown(self) -> LeaderMoved:
        moved = f"the leader of {self.key} changed during the request"
        return LeaderMoved(f"Outcome unknown: {moved}. Retry.")

    def new_replay(self) -> Callable[[], Replay]:
        """Return a function that opens a new replay. The caller runs the function in a thread."""
        shares, place = self.shares, (self.log, self.topic, self.key.index)
        return lambda: Replay(*place, shares=shares, context=self.context)

    def note_start(self) -> None:
        if self.log.start_offset > self.replica.start_offset:
            self.replica.trimmed(self.log.start_offset)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self.context.pool, work)

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

    def halt(self, reason: str) -> None:
        self.replica.halt(reason)
        self.fail_pending_after(-1)
        self._wake_low_watermark_waits()
        self.log_halt(reason)

    def log_halt(self, reason: str) -> None:
        log_.critical("replica halted", extra=about(self.key, reason))
