"""A replica of a partition: its role according to the partition's row, and its offsets. It does no
I/O: the broker owns the log, the watch of the store and the network, and reports what happened.

A follower fetches the next batches, appends them, and truncates records that the leader's log does
not contain. A reply counts only if it belongs to the latest fetch and the log has not changed since
that fetch (rule R16). Otherwise a duplicate or late reply could truncate records that were
committed in the meantime."""

from collections.abc import Sequence
from copy import copy
from enum import Enum
from typing import Generic, NamedTuple

from penstock.replication.leader import Leader
from penstock.replication.messages import B, Behind, Data, Diverge, Fenced, Fetch, NotYet, Reply
from penstock.replication.replica_log import ReplicaLog
from penstock.replication.row import View


class Append(NamedTuple, Generic[B]):
    """The caller must append these batches, then call ``Replica.appended`` and ``followed``."""

    batches: Sequence[B]
    high_watermark: int  # of the leader


class Truncate(NamedTuple):
    """The caller must truncate the log at this offset, and fetch again."""

    to: int


class Restart(NamedTuple):
    """The caller must clear the log and begin at this offset, where the leader's log starts."""

    at: int


class Halt(NamedTuple):
    """The replica must stop, because a rule of replication was violated."""

    reason: str


Step = Append[B] | Truncate | Restart | Halt


class Role(Enum):
    WAITING = "waiting"  # for a row that gives this node a role
    LEADER = "leader"
    FOLLOWER = "follower"
    HALTED = "halted"


class Replica(ReplicaLog):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.role = Role.WAITING
        self.epoch = -1
        self.halt_reason = ""
        self.leader: Leader | None = None
        self._fetch: Fetch | None = None  # of a follower; replies to earlier ones are ignored
        self._fetch_number = 0
        self.view: View | None = None

    def see(self, view: View, *, now_ms: int) -> None:
        """Apply a new state of the partition's row. Earlier states are ignored."""
        row = view.row
        before = self.view
        if (
            self.role is Role.HALTED
            or view.revision < self.incarnation  # may be about an earlier process (R4)
            or (before is not None and view.revision <= before.revision)
        ):
            return
        if row.epoch < max(self.epoch, self.history.last):
            self.halt(
                f"the store's epoch {row.epoch} is older than the log's: {self.history.last}"
            )  # R4b
            return
        self.view = view
        if row.epoch > self.epoch or self.role is Role.WAITING:
            self._take_role(view, now_ms=now_ms)
        elif self.leader is not None:
            self.leader.saw(view)
            self._advance()

    def _take_role(self, view: View, *, now_ms: int) -> None:
        row = view.row
        self.epoch = row.epoch
        self.leader = self._fetch = None
        if row.leader == self.node and row.leader_incarnation == self.incarnation:
            self.role = Role.LEADER
            self.leader = Leader(self, view, now_ms=now_ms)
            self._advance()
        elif row.leader in (self.node, -1):
            # The leader is an earlier process of this node, or none: wait for an election.
            self.role = Role.WAITING
        else:
            self.role = Role.FOLLOWER

    def reincarnated(self, incarnation: int) -> "Replica":
        """Return a copy of this replica without a role, for a new registration of the node."""
        fresh = copy(self)
        fresh.incarnation = incarnation
        fresh.role, fresh.epoch, fresh.halt_reason = Role.WAITING, -1, ""
        fresh.leader = fresh.view = fresh._fetch = None
        return fresh

    def halt(self, reason: str) -> None:
        self.role = Role.HALTED
        self.halt_reason = reason
        self.leader = self._fetch = None

    def synced(self, durable_offset: int) -> int:
        assert durable_offset <= self.end_offset
        self.durable_offset = max(self.durable_offset, durable_offset)
        self._advance()
        return self.high_watermark

    def _advance(self) -> None:
        if self.leader is not None:
            self.leader.advance()

    @property
    def low_watermark_held(self) -> int:
        """The low watermark that every electable replica has stored; 0 unless this node leads."""
        return 0 if self.leader is None else self.leader.low_watermark_held

    @property
    def held_offset(self) -> int:
        """The offset up to which all replicas have the log on disk; 0 unless this node leads."""
        return 0 if self.leader is None else self.leader.held_offset

    def fetched(self, fetch: Fetch, *, now_ms: int) -> Diverge | Behind | Fenced | NotYet | None:
        """Process a follower's fetch. Returns None if records can be served, else the reply."""
        leader = self.leader
        if leader is None:
            return Fenced(fetch, self.epoch) if fetch.epoch < self.epoch else NotYet(fetch)
        found = leader.fetched(fetch, now_ms=now_ms)
        self._advance()
        return found

    def next_fetch(self) -> Fetch | None:
        if self.role is not Role.FOLLOWER:
            return None
        self._fetch_number += 1
        own, log = (self.node, self.incarnation, self.epoch), (self.end_offset, self.durable_offset)
        state = (*log, self.history.last, self._fetch_number, self.low_watermark)
        self._fetch = Fetch(*own, *state)
        return self._fetch

    def apply_reply(self, reply: Reply[B]) -> Step[B] | None:
        """Return what the caller must do with the log after this reply, or None."""
        if self.role is not Role.FOLLOWER:
            return None
        step = self._take(reply)
        if isinstance(step, Halt):
            self.halt(step.reason)
        return step

    def _take(self, reply: Reply[B]) -> Step[B] | None:
        fetch, history, end_offset = self._fetch, self.history, self.end_offset
        if (
            fetch is None
            or reply.fetch != fetch
            or fetch.offset != end_offset
            or fetch.last_epoch != history.last
        ):
            return None
        self._fetch = None
        if isinstance(reply, Data):
            return Append(reply.batches, reply.high_watermark)
        if isinstance(reply, Fenced | NotYet):
            return None
        committed = self.high_watermark
        if isinstance(reply, Behind):
            # All committed records are before the leader's start.
            at = reply.start_offset
            if at < committed:
                return Halt(f"the leader's log starts at {at}, but {committed} is committed")
            return Restart(at)
        # Truncate to where both logs agree by their epochs (R17), perhaps in several rounds. Never
        # to the high watermark, which may lag.
        _, own_end = history.end_of(reply.epoch, end_offset=end_offset)
        to = min(reply.end_offset, own_end)
        if to >= end_offset:
            return Halt(f"truncation to {to} requested, but the log ends at {end_offset}")
        if to < committed:
            return Halt(f"truncation to {to} requested, but {committed} is committed")
        return Restart(to) if to < self.start_offset else Truncate(to)
