"""The results of decisions: the reply, the events to append, and when to try again.

A decision has already changed the cursor when it returns. The broker appends the events in their
order, waits until they are as durable as the queue requires, and then replies.
"""

from typing import Generic, TypeVar

import msgspec

from penstock.cursor.leases.events import Event, LeaseEvent
from penstock.model.message import Record

Reply = TypeVar("Reply")


class Outcome(msgspec.Struct, Generic[Reply], frozen=True, gc=False):
    reply: Reply
    events: tuple[Event, ...] = ()
    # Monotonic time at which a record may become available to a waiting consumer; None: never.
    wake_at_ms: int | None = None


class Pick(msgspec.Struct, frozen=True, gc=False):
    """One record taken by a lease."""

    offset: int
    lease_seq: int
    attempt: int  # number of leases in this queue, including this one
    first_leased_at_ms: int  # wall clock
    record: Record | None  # None: leased before, so read it from the log again


class LeaseOutcome(msgspec.Struct, frozen=True, gc=False):
    picks: tuple[Pick, ...] = ()
    # Leased too often: copy each to the dead-letter queue, then ack it as dead. These records are
    # held for redrive.HOLD_MS, so a crash in between loses nothing.
    dead: tuple[Pick, ...] = ()
    expired: int = 0  # records found to be past their retention
    event: LeaseEvent | None = None
    # Nothing was picked because too little of the log was read: feed from ``scan_from`` and lease
    # again. (Records may have been skipped, so there can still be an event.)
    needs_feed: bool = False
    is_over_limit: bool = False
    # When to try again; set if fewer records than requested were found.
    wake_at_ms: int | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        return () if self.event is None else (self.event,)


class CursorStats(msgspec.Struct, frozen=True, gc=False):
    visible: int
    in_flight: int
    delayed: int
