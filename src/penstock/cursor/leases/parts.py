"""The parts of a lease cursor's state: entries, receive attempts, delay counts and snapshots."""

from collections.abc import Iterable

import msgspec

from penstock.cursor.rows import framed, unframed
from penstock.model.limits import ATTEMPT_IDS_MAX, ATTEMPT_WINDOW_MS, DELAY_MS_MAX, SECOND_MS
from penstock.model.message import Record

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
    """The state of one record. Entries are not tracked by the garbage collector (``gc=False``):
    with 120,000 messages in flight, a full collection would stop the partition for tens of
    milliseconds."""

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
    lease_seq: int
    offsets: tuple[int, ...]
    at_ms: int  # monotonic clock


class AttemptTable:
    """Recent receive attempts on a FIFO queue. A client that lost a reply retries with the same
    attempt id and gets the same messages under the same lease, although their groups are locked.

    Lease events contain the attempt id, so all replicas have the same table. They drop old attempts
    by count, at the same event; the age is checked only by lookups."""

    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}  # oldest first

    def is_repeat(self, attempt_id: str, lease_seq: int) -> bool:
        """Return whether a lease event repeats the lease of an earlier attempt."""
        attempt = self._attempts.get(attempt_id)
        return attempt is not None and attempt.lease_seq == lease_seq

    def find(self, attempt_id: str, *, now_ms: int) -> Attempt | None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.at_ms + ATTEMPT_WINDOW_MS <= now_ms:
            return None
        return attempt

    def remember(self, attempt_id: str, attempt: Attempt) -> None:
        self._attempts.pop(attempt_id, None)  # so that the attempt moves to the end
        self._attempts[attempt_id] = attempt
        if len(self._attempts) > ATTEMPT_IDS_MAX:
            del self._attempts[next(iter(self._attempts))]

    def rows(self, *, now_ms: int) -> list[tuple[str, int, tuple[int, ...], int]]:
        return [(i, a.lease_seq, a.offsets, now_ms - a.at_ms) for i, a in self._attempts.items()]

    def load(self, rows: Iterable[tuple[str, int, tuple[int, ...], int]], began_ms: int) -> None:
        self._attempts = {
            attempt_id: Attempt(lease_seq, offsets, began_ms - age_ms)
            for attempt_id, lease_seq, offsets, age_ms in rows
        }


# ── Delays ───────────────────────────────────────────────────────────────────────────────────

BUCKETS_MAX = 2 * DELAY_MS_MAX // SECOND_MS  # twice the maximum, as the wall clock may jump


def due_at(record: Record, delay_ms: int, *, now_ms: int, wall_ms: int) -> int:
    """Return when a record may be delivered, on the monotonic clock. A wall clock that was set back
    between append and read does not make the delay longer."""
    return now_ms + min(delay_ms, record.appended_at_ms + delay_ms - wall_ms)


class DelayBuckets:
    """Counts of delayed records that the cursor has not examined, by second of the wall clock.
    There are at most 1,800 buckets, however many messages are delayed.

    A standard queue counts a record in the second in which it is due. A FIFO queue counts it in the
    second of its append, because the queue's current delay applies to all records; callers pass
    that delay to ``count``."""

    def __init__(self, *, by_append: bool) -> None:
        self._by_append = by_append
        # second → number of records, and the latest of their due (or append) times
        self._buckets: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def __contains__(self, key: int) -> bool:
        return key in self._buckets

    def key_of(self, record: Record) -> int:
        delay_ms = 0 if self._by_append else record.message.delay_ms or 0
        return (record.appended_at_ms + delay_ms) // SECOND_MS

    def add(self, delay_ms: int, *, appended_at_ms: int, now_ms: int) -> None:
        """Count a record that was appended at ``now_ms`` on the monotonic clock."""
        ahead_ms = 0 if self._by_append else delay_ms
        key = (appended_at_ms + ahead_ms) // SECOND_MS
        count, from_ms = self._buckets.get(key, (0, 0))
        self._buckets[key] = (count + 1, max(from_ms, now_ms + ahead_ms))
        if len(self._buckets) > BUCKETS_MAX:
            # Possible only after the wall clock jumped; the oldest bucket is most likely due.
            del self._buckets[next(iter(self._buckets))]

    def remove(self, keys: Iterable[int]) -> None:
        for key in keys:
            count, from_ms = self._buckets.get(key, (0, 0))
            if count > 1:
                self._buckets[key] = (count - 1, from_ms)
            elif count == 1:
                del self._buckets[key]

    def count(self, *, now_ms: int, delay_ms: int = 0) -> int:
        if not self._buckets:
            return 0
        # Drop buckets that are due even with the longest possible delay.
        longest_ms = DELAY_MS_MAX if self._by_append else 0
        ended = [k for k, (_, from_ms) in self._buckets.items() if from_ms + longest_ms <= now_ms]
        for key in ended:
            del self._buckets[key]
        extra_ms = delay_ms if self._by_append else 0
        return sum(n for n, from_ms in self._buckets.values() if from_ms + extra_ms > now_ms)

    def next_ms(self, *, now_ms: int, delay_ms: int = 0) -> int | None:
        """Return when the first delayed record is due, to the second, or None if there is none."""
        extra_ms = delay_ms if self._by_append else 0
        due = (from_ms + extra_ms for _, from_ms in self._buckets.values())
        return min((each for each in due if each > now_ms), default=None)

    def clear(self) -> None:
        self._buckets.clear()

    def rows(self, *, now_ms: int) -> list[tuple[int, int, int]]:
        return [(key, n, from_ms - now_ms) for key, (n, from_ms) in self._buckets.items()]

    def load(self, rows: Iterable[tuple[int, int, int]], began_ms: int) -> None:
        self._buckets = {key: (n, began_ms + left_ms) for key, n, left_ms in rows}


# ── Checkpoints ──────────────────────────────────────────────────────────────────────────────

_MAGIC = b"PCS1"

# offset, lease_seq, attempts, first_leased_at_ms, is_changed, left_ms (-1 if not leased), age_ms
EntryRow = tuple[int, int, int, int, bool, int, int]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state of a lease cursor, which only makes a start faster and may be deleted. Times are
    durations left or elapsed when the snapshot was written, because a monotonic clock has no
    meaning for the next process. Message groups, due times and deduplication ids are not included;
    they are read from the log.

    To change the layout, add fields at the end with a default, or take a new magic number. If the
    magic number is unknown, the broker replays the log instead."""

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
    """Decode a snapshot. Raises Damaged if ``encoded`` did not create these bytes."""
    return unframed(data, _MAGIC, _decoder, "cursor snapshot")
