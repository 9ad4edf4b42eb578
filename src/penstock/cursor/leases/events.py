"""The events that a lease cursor writes to its partition's log, from which its state is rebuilt.

Each event is the value of one control record. It contains durations instead of times of day, so
every replica uses its local clock. Replay needs no message contents: a lease event lists the
records that it leased and skipped. ``head`` is the first offset that no lease has examined, and
``passed`` the number of messages that the head moved past.

    type  event    fields, in order, as a MessagePack array
    64    Lease    lease_seq, duration_ms, head, passed, offsets, leased_at_ms, detail or nil
                   detail: skipped, held, expired, due_keys, attempt_id (rarely used)
    65    Extend   [[offset, duration_ms], ...]
    66    Ack      reason, offsets
    67    Trim     start, passed
    68    Start    start, backlog
    69    Bookmark (cursor/bookmark.py)

For a share, SHARE_STEP is added to the type, and the share's id (sixteen bytes) precedes the value.
To change a layout, add fields at the end with a default. To change the meaning of a field, take a
new type number and keep decoding the old one."""

from typing import Generic, TypeAlias, TypeVar

import msgspec

from penstock.model.message import AckReason, Record


class LeaseDetail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    skipped: tuple[int, ...] = ()  # records that are delayed or whose group is locked or noisy
    held: tuple[int, ...] = ()  # records that are being copied to the dead-letter queue
    expired: tuple[int, ...] = ()  # records past their retention
    due_keys: tuple[int, ...] = ()  # keys in ``DelayBuckets`` of the records that the head passed
    attempt_id: str | None = None


class LeaseEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lease_seq: int
    duration_ms: int
    head: int  # the first offset that no lease has examined, after this lease
    passed: int  # number of messages that the head moved past
    offsets: tuple[int, ...]
    leased_at_ms: int  # wall clock, for display only
    detail: LeaseDetail | None = None


class ExtendEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    leases: tuple[tuple[int, int], ...]  # (offset, duration in ms); zero releases the record


class AckEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    reason: AckReason
    offsets: tuple[int, ...]


class TrimEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Drops all records below ``start``, because of a purge or of retention."""

    start: int
    passed: int  # number of messages between the head and ``start``


class StartEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Resets the cursor to the offset ``start``."""

    start: int
    backlog: int  # number of messages between ``start`` and this event


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
    return number - SHARE_STEP in _DECODERS


def split_shared(number: int, data: bytes | memoryview) -> tuple[bytes, int, memoryview]:
    """Split the value of a share's event into the share's id, the event type and the event."""
    if len(data) < SHARE_ID_BYTES:
        raise ValueError(f"control record of type {number} is too short: it has no share id")
    view = memoryview(data)
    return bytes(view[:SHARE_ID_BYTES]), number - SHARE_STEP, view[SHARE_ID_BYTES:]


def is_event_type(number: int) -> bool:
    return number in _DECODERS


def decode(number: int, data: bytes | memoryview) -> Event:
    """Decode an event. Raises ValueError if it is damaged or has an unknown type."""
    decoder = _DECODERS.get(number)
    if decoder is None:
        raise ValueError(f"control record of type {number} is not a cursor event")
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"control record of type {number} is malformed: {error}") from error


def clipped(event: Event, start: int) -> Event:
    """Return the event without the records below ``start``, the first offset of a trimmed log."""
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
# A decision has already changed the cursor when it returns. The broker appends the events in order,
# waits until they are as durable as the queue requires, and then replies.

Reply = TypeVar("Reply")


class Outcome(msgspec.Struct, Generic[Reply], frozen=True, gc=False):
    reply: Reply
    events: tuple[Event, ...] = ()
    # Monotonic time at which a record may become available to a waiting consumer, or None.
    wake_at_ms: int | None = None


class Pick(msgspec.Struct, frozen=True, gc=False):
    offset: int
    lease_seq: int
    attempt: int  # number of times the record was leased, including this lease
    first_leased_at_ms: int  # wall clock
    record: Record | None  # None if the record must be read from the log


class LeaseOutcome(msgspec.Struct, frozen=True, gc=False):
    picks: tuple[Pick, ...] = ()
    # Records to copy to the dead-letter queue and then ack. They are held for ``HOLD_MS``, so a
    # crash in between loses nothing.
    dead: tuple[Pick, ...] = ()
    expired: int = 0  # number of records found to be past their retention
    event: LeaseEvent | None = None
    # Too little of the log was read: the caller must ``feed`` the cursor and call ``lease`` again.
    needs_feed: bool = False
    is_over_limit: bool = False
    # When to try again, if fewer records than requested were found.
    wake_at_ms: int | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        return () if self.event is None else (self.event,)


class CursorStats(msgspec.Struct, frozen=True, gc=False):
    visible: int
    in_flight: int
    delayed: int


class Selection(msgspec.Struct, gc=False):
    """The parameters of a receive request, and the records chosen for it so far."""

    take: int
    attempts_max: int | None
    bound_ms: int  # records sent up to this time are past their retention
    now_ms: int
    is_dry: bool = False  # the last ``feed`` added nothing
    picked: list[tuple[int, Record | None]] = []
    held: list[int] = []
    expired: list[int] = []  # offsets of expired entries
    fresh_expired: int = 0
    skipped: list[int] = []
    passed: int = 0
    due_keys: list[int] = []
    reads_on: bool = False  # whether to read on, because all records of the window are locked

    def detail(self, attempt_id: str | None) -> LeaseDetail | None:
        if not (self.skipped or self.held or self.expired or self.due_keys or attempt_id):
            return None
        offsets = (tuple(self.skipped), tuple(self.held), tuple(self.expired))
        return LeaseDetail(*offsets, tuple(self.due_keys), attempt_id)
