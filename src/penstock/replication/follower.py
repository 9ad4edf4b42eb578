"""The follower's side of replication, for one epoch: fetch the next batches, append them, and
truncate what the leader's log does not contain. Without I/O.

A reply counts only if it belongs to the latest fetch and the log has not changed since (rule R16).
Otherwise a duplicate or late reply could truncate records that were committed in the meantime."""

from collections.abc import Sequence
from typing import Generic, NamedTuple

from penstock.replication.epochs import EpochHistory
from penstock.replication.messages import B, Behind, Data, Fenced, Fetch, NotYet, Reply


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


class Refresh(NamedTuple):
    """The caller must read the partition's row again, because there is a newer epoch."""


class Halt(NamedTuple):
    """The replica must stop, because a rule of replication was violated."""

    reason: str


class Ignore(NamedTuple):
    pass


Step = Append[B] | Truncate | Restart | Refresh | Halt | Ignore


class Follower:
    def __init__(self, node: int, incarnation: int, epoch: int, leader: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.epoch = epoch
        self.leader = leader
        self._fetch: Fetch | None = None
        self._number = 0

    def next_fetch(
        self, *, end_offset: int, durable_offset: int, last_epoch: int, low_watermark: int = 0
    ) -> Fetch:
        """Return the next fetch. The reply to an earlier one will be ignored."""
        self._number += 1
        own, log = (self.node, self.incarnation, self.epoch), (end_offset, durable_offset)
        self._fetch = Fetch(*own, *log, last_epoch, self._number, low_watermark)
        return self._fetch

    def take(
        self,
        reply: Reply[B],
        history: EpochHistory,
        *,
        start_offset: int,
        end_offset: int,
        high_watermark: int,
    ) -> Step[B]:
        fetch = self._fetch
        if (
            fetch is None
            or reply.fetch != fetch
            or fetch.offset != end_offset
            or fetch.last_epoch != history.last
        ):
            return Ignore()
        self._fetch = None
        if isinstance(reply, Data):
            return Append(reply.batches, reply.high_watermark)
        if isinstance(reply, Fenced):
            return Refresh()
        if isinstance(reply, NotYet):
            return Ignore()
        if isinstance(reply, Behind):
            # All committed records are before the leader's start.
            at = reply.start_offset
            if at < high_watermark:
                return Halt(f"the leader's log starts at {at}, but {high_watermark} is committed")
            return Restart(at)
        # Truncate to where both logs agree by their epochs (R17), perhaps in several rounds. Never
        # to the high watermark, which may lag.
        _, own_end = history.end_of(reply.epoch, end_offset=end_offset)
        to = min(reply.end_offset, own_end)
        if to >= end_offset:
            return Halt(f"truncation to {to} requested, but the log ends at {end_offset}")
        if to < high_watermark:
            return Halt(f"truncation to {to} requested, but {high_watermark} is committed")
        return Restart(to) if to < start_offset else Truncate(to)
