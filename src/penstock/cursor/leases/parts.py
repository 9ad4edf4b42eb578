"""The parts of a lease cursor: entries, receive attempts, delays, dead letters and snapshots."""

from collections.abc import Iterable

import msgspec

from penstock.cursor.rows import framed, unframed
from penstock.model.limits import ATTEMPTS_MAX, DELAY_MS_MAX, SECOND_MS
from penstock.model.message import Message, Record
from penstock.model.names import uuid_text

# ── Entries: records below the cursor's head (next unexamined offset) that are not gone yet ──
#
#     READY ──lease──► LEASED ──deadline, release──► READY ──...──► gone (ack, expiry, trim)
#     DELAYED ──due──► READY
#     RESTORED (replayed from the log, record not read yet) ──hydrate──► READY or DELAYED
#
# TAKEN is used only while a receive chooses its records.
READY = 0
LEASED = 1
DELAYED = 2
TAKEN = 3
RESTORED = 4

UNKNOWN = -1  # sent_at_ms of an entry whose record has not been read yet


class Entry(msgspec.Struct, gc=False):
    """The state of one record. With 120,000 messages in flight, a full garbage collection would
    take tens of milliseconds, so entries are not tracked by it (``gc=False``)."""

    state: int
    group: str | None = None
    sent_at_ms: int = UNKNOWN  # start of the retention period
    attempts: int = 0
    lease_seq: int = 0
    until_ms: int = 0  # end of the lease or of the delay; monotonic clock
    leased_at_ms: int = 0  # monotonic clock; a lease ends at most twelve hours after this
    first_leased_at_ms: int = 0  # wall clock
    is_changed: bool = False  # whether the lease was extended or released


# ── Receive attempts ─────────────────────────────────────────────────────────────────────────


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A recent receive attempt on a FIFO queue. A client that lost a reply retries with the same
    attempt id and gets the same messages under the same lease, although their groups are locked.
    Lease events contain the attempt id, so all replicas have the same attempts. If there are too
    many, the oldest are dropped; an attempt that is too old is ignored when it is looked up."""

    lease_seq: int
    offsets: tuple[int, ...]
    at_ms: int  # monotonic clock


# ── Delays ───────────────────────────────────────────────────────────────────────────────────

BUCKETS_MAX = 2 * DELAY_MS_MAX // SECOND_MS  # twice the maximum, as the wall clock may jump


def due_at(record: Record, delay_ms: int, *, now_ms: int, wall_ms: int) -> int:
    """Return when a record may be delivered, on the monotonic clock. A wall clock that was set back
    between append and read does not make the delay longer."""
    return now_ms + min(delay_ms, record.appended_at_ms + delay_ms - wall_ms)


class DelayBuckets(dict[int, tuple[int, int]]):
    """The delayed records that no lease has examined, counted by second of the wall clock (at most
    1,800 seconds). A standard queue counts a record in the second in which it is due. A FIFO queue
    counts it in the second of its append, because one delay applies to all records. Each value is
    the number of records and the latest of their due times (FIFO: append times)."""

    def __init__(self, *, by_append: bool) -> None:
        self._by_append = by_append

    def key_of(self, record: Record) -> int:
        delay_ms = 0 if self._by_append else record.message.delay_ms or 0
        return (record.appended_at_ms + delay_ms) // SECOND_MS

    def add(self, delay_ms: int, *, appended_at_ms: int, now_ms: int) -> None:
        """Count a record that was appended at ``now_ms`` on the monotonic clock."""
        ahead_ms = 0 if self._by_append else delay_ms
        key = (appended_at_ms + ahead_ms) // SECOND_MS
        count, from_ms = self.get(key, (0, 0))
        self[key] = (count + 1, max(from_ms, now_ms + ahead_ms))
        if len(self) > BUCKETS_MAX:
            # Possible only after the wall clock jumped; the oldest bucket is most likely due.
            del self[next(iter(self))]

    def take(self, keys: Iterable[int]) -> None:
        for key in keys:
            count, from_ms = self.get(key, (0, 0))
            if count > 1:
                self[key] = (count - 1, from_ms)
            elif count == 1:
                del self[key]

    def count(self, *, now_ms: int, delay_ms: int = 0) -> int:
        if not self:
            return 0
        # Drop buckets that are due even with the longest possible delay.
        longest_ms = DELAY_MS_MAX if self._by_append else 0
        ended = [k for k, (_, from_ms) in self.items() if from_ms + longest_ms <= now_ms]
        for key in ended:
            del self[key]
        extra_ms = delay_ms if self._by_append else 0
        return sum(n for n, from_ms in self.values() if from_ms + extra_ms > now_ms)

    def next_ms(self, *, now_ms: int, delay_ms: int = 0) -> int | None:
        """Return when the next delayed record is due, or None if no record is delayed."""
        extra_ms = delay_ms if self._by_append else 0
        due = (from_ms + extra_ms for _, from_ms in self.values())
        return min((each for each in due if each > now_ms), default=None)

    def rows(self, *, now_ms: int) -> list[tuple[int, int, int]]:
        return [(key, n, from_ms - now_ms) for key, (n, from_ms) in self.items()]

    def load(self, rows: Iterable[tuple[int, int, int]], began_ms: int) -> None:
        self.update({key: (n, began_ms + left_ms) for key, n, left_ms in rows})


# ── Dead letters: records that were leased too often, and the messages written for them ──────
#
# The cursor holds such a record under an internal lease that does not count as an attempt. The
# broker appends a copy to the dead-letter queue, waits until it is durable, and acks the original.
# After a crash in between, the copy is appended again, and its deduplication id marks it as a
# duplicate.

# Long enough to append to another partition under load, and no longer than an ordinary lease, in
# case of a crash.
HOLD_MS = 30 * SECOND_MS
# Bounds the work of one receive on a long run of dead records.
HELD_PER_LEASE_MAX = 100


def is_dead(attempts: int, attempts_max: int | None) -> bool:
    return attempts_max is not None and attempts >= attempts_max


def dead_letter(
    record: Record, *, attempts: int, source_arn: str, origin: str, is_fifo: bool
) -> Message:
    """Return the message to append to the dead-letter queue. It keeps its id, attributes, sending
    time and attempts, but not its delay. A standard queue deduplicates it by ``origin``, the topic,
    partition and offset of the record. A FIFO queue uses the message id, plus ``origin`` if the
    message was a dead letter before, because it may return to the same queue."""
    message = record.message
    dedup_id = origin
    if is_fifo:
        dedup_id = uuid_text(message.message_id)
        if message.source_arn is not None:
            dedup_id += f":{origin}"
    return msgspec.structs.replace(
        message,
        attempts=min(message.attempts + attempts, ATTEMPTS_MAX),
        source_arn=source_arn,
        sent_at_ms=record.sent_at_ms,
        dedup_id=dedup_id,
        delay_ms=None,
    )


# ── Checkpoints ──────────────────────────────────────────────────────────────────────────────

_MAGIC = b"PCS1"

# offset, lease_seq, attempts, first_leased_at_ms, is_changed, left_ms (-1 if not leased), age_ms
EntryRow = tuple[int, int, int, int, bool, int, int]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state of a lease cursor, stored so that a start is faster; it may be deleted. Times are
    durations left or elapsed, because a monotonic clock has no meaning for the next process. State
    that depends on messages is read from the log. To change the layout, add fields at the end
    with a default, or take a new magic number, which makes older brokers replay the log instead."""

    is_fifo: bool
    head: int
    next_offset: int
    appended_count: int
    passed_count: int
    next_lease_seq: int
    entries: list[EntryRow]
    acked_ahead: list[int]
    attempts: list[tuple[str, int, tuple[int, ...], int]]
    delays: list[tuple[int, int, int]]

    def encoded(self) -> bytes:
        return framed(_MAGIC, self)


_decoder = msgspec.msgpack.Decoder(Snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode a snapshot. Raises Damaged if the bytes are not a valid snapshot."""
    return unframed(data, _MAGIC, _decoder, "cursor snapshot")
