"""What a decision returns: the reply, the events to append, and when to look again.

A decision has already changed the cursor when it returns. The shell appends the events in the
order it got them, waits until they are as durable as the queue demands, and then replies.
"""

from typing import Generic, TypeVar

import msgspec

from penstock.cursor.events import Event, LeaseEvent
from penstock.model.message import Record

Reply = TypeVar("Reply")


class Outcome(msgspec.Struct, Generic[Reply], frozen=True, gc=False):
    reply: Reply
    events: tuple[Event, ...] = ()
    # Monotonic time at which this decision may let a waiting consumer have something; None: never.
    wake_at_ms: int | None = None


class Pick(msgspec.Struct, frozen=True, gc=False):
    """One record taken by a lease."""

    offset: int
    lease_seq: int
    attempt: int  # leases in this queue, this one included
    first_leased_at_ms: int  # wall clock
    record: Record | None  # None: leased before, so it must be read from the log again


class LeaseOutcome(msgspec.Struct, frozen=True, gc=False):
    picks: tuple[Pick, ...] = ()
    # Leased too often already: copy each to the dead-letter queue, then ack it as dead. They are
    # held for redrive.HOLD_MS, so a shell that dies in between loses nothing.
    dead: tuple[Pick, ...] = ()
    expired: int = 0  # records found to be past their retention
    event: LeaseEvent | None = None
    # Nothing was picked because too little of the log has been read: feed from ``scan_from`` and
    # lease again. (Records may have been passed over, so there can be an event all the same.)
    needs_feed: bool = False
    is_over_limit: bool = False
    # Set when fewer than asked for were found: when to try again.
    wake_at_ms: int | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        return () if self.event is None else (self.event,)


class CursorStats(msgspec.Struct, frozen=True, gc=False):
    visible: int
    in_flight: int
    delayed: int
