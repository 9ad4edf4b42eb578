"""The events that a lease cursor writes to its partition's log; their fold is the queue's state.

Each event is the value of one control record. It states the decision, not the reason, and contains
durations instead of times of day, so that every replica uses its local clock. Replay needs no
message contents: a lease names the records that it leased and the ones that it skipped.

    type  event    fields, in order, as a MessagePack array
    64    Lease    lease_seq, duration_ms, head, passed, offsets, leased_at_ms, detail or nil
                   detail: skipped, held, expired, due_keys, attempt_id (rarely used)
    65    Extend   [[offset, duration_ms], ...]
    66    Ack      reason, offsets
    67    Trim     start, passed
    68    Start    start, backlog

The events of a share have SHARE_STEP added to the type and the share's id, sixteen bytes, before
the value: a replay finds the share without decoding the value. To change a layout: add fields at
the end with a default. To change a meaning: take a new type number and keep decoding the old one.
"""

from enum import IntEnum
from typing import Generic, TypeAlias, TypeVar

import msgspec

from penstock.model.message import Record


class AckReason(IntEnum):
    ACKED = 0  # by a consumer
    DEAD = 1  # copied to the dead-letter queue
    EXPIRED = 2  # past its retention


class LeaseDetail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    skipped: tuple[int, ...] = ()  # newly skipped: delayed, group locked, noisy group
    held: tuple[int, ...] = ()  # leased while they are copied to the dead-letter queue
    expired: tuple[int, ...] = ()  # known records found to be past their retention
    due_keys: tuple[int, ...] = ()  # delay buckets of the records the head passed
    attempt_id: str | None = None


class LeaseEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lease_seq: int
    duration_ms: int
    head: int  # the cursor's head after this lease
    passed: int  # messages between the head before and the head after
    offsets: tuple[int, ...]
    leased_at_ms: int  # wall clock, only shown to people
    detail: LeaseDetail | None = None


class ExtendEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    leases: tuple[tuple[int, int], ...]  # (offset, milliseconds from now); zero releases


class AckEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    reason: AckReason
    offsets: tuple[int, ...]


class TrimEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nothing below ``start`` exists any more: a purge, or segments dropped by retention."""

    start: int
    passed: int  # messages between the head and ``start``


class StartEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cursor starts, or starts again, at ``start`` and forgets all earlier state."""

    start: int
    backlog: int  # messages from there to this event


Event: TypeAlias = LeaseEvent | ExtendEvent | AckEvent | TrimEvent | StartEvent

_TYPES: dict[type, int] = {
    LeaseEvent: 64,
    ExtendEvent: 65,
    AckEvent: 66,
    TrimEvent: 67,
    StartEvent: 68,
}
TRIM_TYPE = _TYPES[TrimEvent]
SHARE_STEP = 16
SHARE_ID_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode
_DECODERS: dict[int, "msgspec.msgpack.Decoder[Event]"] = {
    number: msgspec.msgpack.Decoder(event_type) for event_type, number in _TYPES.items()
}


def encode(event: Event) -> tuple[int, bytes]:
    return _TYPES[type(event)], _encode(event)


def encode_shared(share_id: bytes, event: Event) -> tuple[int, bytes]:
    assert len(share_id) == SHARE_ID_BYTES
    return _TYPES[type(event)] + SHARE_STEP, share_id + _encode(event)


def is_shared_type(number: int) -> bool:
    """Return whether a control record of this type belongs to a share; see ``split_shared``."""
    return number - SHARE_STEP in _DECODERS


def split_shared(number: int, data: bytes | memoryview) -> tuple[bytes, int, memoryview]:
    """Return the share's id, and the arguments for ``decode``."""
    if len(data) < SHARE_ID_BYTES:
        raise ValueError(f"control record of type {number} is too short for an event of a share")
    view = memoryview(data)
    return bytes(view[:SHARE_ID_BYTES]), number - SHARE_STEP, view[SHARE_ID_BYTES:]


def is_event_type(number: int) -> bool:
    """Return whether a control record of this type belongs to the lease cursor."""
    return number in _DECODERS


def decode(number: int, data: bytes | memoryview) -> Event:
    """Decode an event. Raises ValueError for an unknown type or value: the log is damaged or newer
    than this program, and a guess would redeliver or lose messages."""
    decoder = _DECODERS.get(number)
    if decoder is None:
        raise ValueError(f"control record type {number} is not a cursor event")
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"control record of type {number} is malformed: {error}") from error


def clipped(event: Event, start: int) -> Event:
    """Return the event without the records below ``start``, where a log whose beginning was dropped
    now begins: its events may be about records on both sides, for example a lease."""
    if isinstance(event, LeaseEvent):
        detail = event.detail
        if detail is not None:
            detail = msgspec.structs.replace(
                detail,
                skipped=_from(detail.skipped, start),
                held=_from(detail.held, start),
                expired=_from(detail.expired, start),
            )
        return msgspec.structs.replace(event, offsets=_from(event.offsets, start), detail=detail)
    if isinstance(event, AckEvent):
        return msgspec.structs.replace(event, offsets=_from(event.offsets, start))
    if isinstance(event, ExtendEvent):
        return ExtendEvent(tuple([each for each in event.leases if each[0] >= start]))
    return event


def _from(offsets: tuple[int, ...], start: int) -> tuple[int, ...]:
    return tuple([offset for offset in offsets if offset >= start])


# ── Results of decisions ─────────────────────────────────────────────────────────────────────
# A decision has already changed the cursor when it returns. The broker appends the events in their
# order, waits until they are as durable as the queue requires, and then replies.

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


class Selection(msgspec.Struct, gc=False):
    """What one receive requests, and the records chosen so far; becomes one lease event."""

    take: int
    attempts_max: int | None
    bound_ms: int  # records sent up to this time are past their retention
    now_ms: int
    is_dry: bool = False  # the last feed added nothing
    picked: list[tuple[int, Record | None]] = []
    held: list[int] = []
    expired: list[int] = []  # from the table
    fresh_expired: int = 0
    skipped: list[int] = []
    passed: int = 0
    due_keys: list[int] = []
    reads_on: bool = False  # all records of the window are locked: read beyond it

    def detail(self, attempt_id: str | None) -> LeaseDetail | None:
        if not (self.skipped or self.held or self.expired or self.due_keys or attempt_id):
            return None
        return LeaseDetail(
            tuple(self.skipped),
            tuple(self.held),
            tuple(self.expired),
            tuple(self.due_keys),
            attempt_id,
        )
