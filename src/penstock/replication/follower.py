"""A follower's side of replication: request the next batches, append them, and cut off what the
leader's log does not contain. Pure, and for one epoch.

A reply counts only if it belongs to the latest request and the log has not changed since (R16): a
duplicate or late reply could otherwise cut off what was committed since.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple

from penstock.replication.epochs import EpochHistory
from penstock.replication.messages import B, Behind, Data, Fenced, Fetch, NotYet, Reply


class Append(NamedTuple, Generic[B]):
    """Append these batches; then call ``Replica.appended`` and ``Replica.followed``."""

    batches: Sequence[B]
    high_watermark: int  # of the leader


class Truncate(NamedTuple):
    """Cut the log to this offset and send another request."""

    to: int


class Restart(NamedTuple):
    """Drop the log and begin at this offset: the leader has nothing before it."""

    at: int


class Refresh(NamedTuple):
    """There is a newer epoch: read the row again."""


class Halt(NamedTuple):
    """Something happened that the rules exclude. The replica must stop here."""

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
        """Return the next request; a request in progress is abandoned."""
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
            # All that is committed is before the leader's start.
            at = reply.start_offset
            if at < high_watermark:
                return Halt(f"restart at {at} requested, but {high_watermark} is committed")
            return Restart(at)
        # Cut the log to where both agree, by their epochs (R17), perhaps in several rounds. Never
        # to the high watermark, which lags.
        _, own_end = history.end_of(reply.epoch, end_offset=end_offset)
        to = min(reply.end_offset, own_end)
        if to >= end_offset:
            return Halt(f"truncation to {to} requested, but the log ends at {end_offset}")
        if to < high_watermark:
            return Halt(f"truncation to {to} requested, but {high_watermark} is committed")
        return Restart(to) if to < start_offset else Truncate(to)
