"""A replica of a partition: its role according to the partition's row, and its offsets. It does no
I/O: the broker owns the log, the watch of the store and the network, and reports what happened."""

from copy import copy
from enum import Enum
from typing import NamedTuple

from penstock.replication.epochs import EpochHistory
from penstock.replication.follower import Append, Follower, Halt, Restart, Step, Truncate
from penstock.replication.leader import Leader, Serve
from penstock.replication.messages import B, Behind, Diverge, Fenced, Fetch, NotYet, Reply
from penstock.replication.row import View


class Role(Enum):
    WAITING = "waiting"  # for a row that gives this node a role
    LEADER = "leader"
    FOLLOWER = "follower"
    HALTED = "halted"


class Seen(NamedTuple):
    is_new_epoch: bool  # requests in progress have an unknown outcome (R8)
    high_watermark: int


class Replica:
    def __init__(
        self,
        node: int,
        incarnation: int,
        *,
        registered_at: int,
        history: EpochHistory,
        start_offset: int,
        end_offset: int,
        durable_offset: int,
        high_watermark: int,
        low_watermark: int = 0,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.role = Role.WAITING
        self.epoch = -1
        self.halt_reason = ""
        self.history = history
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.durable_offset = durable_offset
        self.high_watermark = min(high_watermark, end_offset)
        self.low_watermark = low_watermark  # as stored on disk; 0 if never
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.view: View | None = None
        self._registered_at = registered_at  # earlier rows may be about an earlier process (R4)

    def see(self, view: View, *, now_ms: int) -> Seen:
        """Apply the partition's state from the store, unless it is older than the last one."""
        row = view.row
        before = self.view
        if (
            self.role is Role.HALTED
            or view.revision < self._registered_at
            or (before is not None and view.revision <= before.revision)
        ):
            return Seen(False, self.high_watermark)
        if row.epoch < max(self.epoch, self.history.last):
            self.halt(
                f"the store's epoch {row.epoch} is older than the log's: {self.history.last}"
            )  # R4b
            return Seen(False, self.high_watermark)
        self.view = view
        is_new = row.epoch > self.epoch
        if is_new or self.role is Role.WAITING:
            self._take_role(view, now_ms=now_ms)
        elif self.leader is not None:
            self.leader.saw(view)
            self._advance()
        return Seen(is_new, self.high_watermark)

    def _take_role(self, view: View, *, now_ms: int) -> None:
        row = view.row
        self.epoch = row.epoch
        self.leader = None
        self.follower = None
        if row.leader == self.node and row.leader_incarnation == self.incarnation:
            self.role = Role.LEADER
            self.leader = Leader(
                self.node,
                view,
                end_offset=self.end_offset,
                high_watermark=self.high_watermark,
                now_ms=now_ms,
                low_watermark=self.low_watermark,
            )
            self._advance()
        elif row.leader in (self.node, -1):
            # The leader is an earlier process of this node, or none: wait for an election.
            self.role = Role.WAITING
        else:
            self.role = Role.FOLLOWER
            self.follower = Follower(self.node, self.incarnation, row.epoch, row.leader)

    def reincarnated(self, incarnation: int) -> "Replica":
        """Return a copy for a new registration of this node, with the same log and no role."""
        fresh = copy(self)
        fresh.incarnation = fresh._registered_at = incarnation
        fresh.role, fresh.epoch, fresh.halt_reason = Role.WAITING, -1, ""
        fresh.leader = fresh.follower = fresh.view = None
        return fresh

    def halt(self, reason: str) -> None:
        self.role = Role.HALTED
        self.halt_reason = reason
        self.leader = None
        self.follower = None

    def appended(self, epoch: int, next_offset: int) -> None:
        """Record an appended batch of this epoch, which ends before ``next_offset``."""
        self.history.append(epoch, self.end_offset)
        assert next_offset > self.end_offset, "a batch must have at least one offset"
        self.end_offset = next_offset

    def synced(self, durable_offset: int) -> int:
        assert durable_offset <= self.end_offset
        self.durable_offset = max(self.durable_offset, durable_offset)
        self._advance()
        return self.high_watermark

    def _advance(self) -> None:
        if self.leader is not None:
            self.high_watermark = self.leader.advance(self.durable_offset)

    def truncated(self, to: int) -> None:
        assert self.high_watermark <= to <= self.end_offset
        self.end_offset = to
        self.durable_offset = min(self.durable_offset, to)
        self.low_watermark = min(self.low_watermark, to)
        self.history.truncate(to)

    def restarted(self, at: int) -> None:
        self.start_offset = self.end_offset = self.durable_offset = at
        self.high_watermark = at
        self.low_watermark = min(self.low_watermark, at)
        self.history.truncate(-1)

    def trimmed(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.history.trim(start_offset)

    def stored_low_watermark(self, offset: int) -> None:
        self.low_watermark = offset
        if self.leader is not None:
            self.leader.low_watermark = offset

    @property
    def low_watermark_held(self) -> int:
        """On a leader, the low watermark that every electable replica has stored."""
        return 0 if self.leader is None else self.leader.low_watermark_held

    @property
    def held_offset(self) -> int:
        """On a leader, the offset that all replicas have on disk; elsewhere 0."""
        return 0 if self.leader is None else self.leader.held_offset(self.durable_offset)

    def fetched(self, fetch: Fetch, *, now_ms: int) -> Serve | Diverge | Behind | Fenced | NotYet:
        leader = self.leader
        if leader is None:
            return Fenced(fetch, self.epoch) if fetch.epoch < self.epoch else NotYet(fetch)
        found = leader.fetched(
            fetch,
            self.history,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            now_ms=now_ms,
        )
        self._advance()
        return found

    def next_fetch(self) -> Fetch | None:
        if self.follower is None:
            return None
        return self.follower.next_fetch(
            end_offset=self.end_offset,
            durable_offset=self.durable_offset,
            last_epoch=self.history.last,
            low_watermark=self.low_watermark,
        )

    def apply_reply(self, reply: Reply[B]) -> Step[B] | None:
        """Return the operation to apply to the log. The caller reports when it is done."""
        if self.follower is None:
            return None
        step = self.follower.take(
            reply,
            self.history,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            high_watermark=self.high_watermark,
        )
        if isinstance(step, Halt):
            self.halt(step.reason)
        return step

    def followed(self, leader_watermark: int) -> int:
        """Advance the high watermark to the leader's, but not beyond the end of this log."""
        self.high_watermark = max(self.high_watermark, min(leader_watermark, self.end_offset))
        return self.high_watermark


__all__ = ["Append", "Replica", "Restart", "Role", "Seen", "Serve", "Truncate"]
