"""The decisions of a lease cursor: which consumer holds which record, and until when.

The caller, broker/partition/partition.py, owns the clock and the log. A decision has applied its
event when it returns, so two receives never pick the same record. Which records a receive gets is
decided in standard.py and fifo.py. Retention is checked when a record would be delivered, and by
``expire``, which the broker calls periodically so that idle queues drop records too."""

from collections.abc import Callable, Sequence
from heapq import heappop
from typing import NamedTuple

import msgspec

from penstock.cursor.leases.events import (
    AckEvent,
    CursorStats,
    Event,
    ExtendEvent,
    LeaseDetail,
    LeaseEvent,
    LeaseOutcome,
    Outcome,
    Pick,
    Selection,
    StartEvent,
    TrimEvent,
)
from penstock.cursor.leases.fold import LeaseState
from penstock.cursor.leases.obstacles import ObstacleCounter, ObstacleSearch, QueueTerms
from penstock.cursor.leases.parts import (
    DELAYED,
    HELD_PER_LEASE_MAX,
    LEASED,
    TAKEN,
    UNKNOWN,
    Attempt,
    Entry,
    due_at,
    is_dead,
)
from penstock.model.errors import ExpiredReceipt, InvalidRequest, NotLeased
from penstock.model.limits import ATTEMPT_WINDOW_MS, LEASE_MS_MAX
from penstock.model.message import AckReason, Claim, Record
from penstock.model.topic import PeekState

Results = tuple[Exception | None, ...]

# A single event with a million offsets would be too large to replicate.
EXPIRED_PER_EVENT_MAX = 1_000

_RECEIPT_EXPIRED = "The receipt handle has expired."
_NOT_LEASED = "The message does not exist or is not available for visibility timeout change."
_TOO_LONG = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]."


class RecordState(NamedTuple):
    """The state of a record that is not deleted. Times are on the monotonic clock."""

    state: PeekState
    until_ms: int | None = None  # end of the lease, the delay, or the lease that locks the group
    blocked_by: int | None = None  # offset in flight that locks the FIFO message group


class LeaseCursor(LeaseState):
    # Implemented for standard and FIFO queues:
    _needs_feed: Callable[[int, bool], bool]  # whether to feed before records are chosen
    # Returns the new head, and whether the event's size limit ended the search.
    _select: Callable[[Selection], tuple[int, bool]]
    _reads_on: Callable[[Selection], bool]  # whether to feed because too few records were found

    def __init__(self) -> None:
        super().__init__()
        self._queue_delay_ms = 0  # the queue's delay at the last lease; FIFO only

    # ── Lease ────────────────────────────────────────────────────────────────────────────────
    def lease(
        self,
        *,
        count: int,
        lease_ms: int,
        attempts_max: int | None,
        retention_ms: int,
        queue_delay_ms: int,
        in_flight_max: int,
        attempt_id: str | None = None,
        now_ms: int,
        wall_ms: int,
    ) -> LeaseOutcome:
        """Lease up to ``count`` records. If the outcome has ``needs_feed``, the caller must read
        records, pass them to ``feed`` (even if there are none), and call ``lease`` again."""
        assert not self._unhydrated, "hydrate restored entries before the first lease"
        if self._deadlines and self._deadlines[0][0] <= now_ms:
            self._advance(now_ms)
        self._queue_delay_ms = queue_delay_ms
        if attempt_id is not None and self.is_fifo:
            repeated = self._repeat(attempt_id, lease_ms, now_ms, wall_ms)
            if repeated is not None:
                return repeated
        room = in_flight_max - self._in_flight
        if room <= 0:
            return LeaseOutcome(is_over_limit=True, wake_at_ms=self.next_wake_ms())
        take = count if count < room else room
        is_dry, self._is_dry = self._is_dry, False
        if self._needs_feed(take, is_dry):
            return LeaseOutcome(needs_feed=True)
        bound_ms = wall_ms - retention_ms
        selection = Selection(take, attempts_max, bound_ms, now_ms, is_dry)
        head, is_cut = self._select(selection)
        if self.unwanted_tail and not self._window and (selection.picked or selection.passed):
            head = self._pass_tail(selection)
        event, picks, dead = self._decide_lease(
            selection, head, lease_ms, attempt_id if self.is_fifo else None, now_ms, wall_ms
        )
        expired = len(selection.expired) + selection.fresh_expired
        if len(picks) >= take:
            return LeaseOutcome(picks, dead, expired, event)
        return LeaseOutcome(
            picks,
            dead,
            expired,
            event,
            needs_feed=self._reads_on(selection),
            wake_at_ms=now_ms if is_cut else self.next_wake_ms(),
        )

    def _consider(self, selection: Selection, offset: int, entry: Entry) -> bool:
        if entry.sent_at_ms <= selection.bound_ms:
            if len(selection.expired) == EXPIRED_PER_EVENT_MAX:
                return False
            selection.expired.append(offset)
        elif is_dead(entry.attempts, selection.attempts_max):
            if len(selection.held) == HELD_PER_LEASE_MAX:
                return False
            selection.held.append(offset)
        else:
            selection.picked.append((offset, None))
        entry.state = TAKEN
        return True

    def _decide_lease(
        self,
        selection: Selection,
        head: int,
        lease_ms: int,
        attempt_id: str | None,
        now_ms: int,
        wall_ms: int,
    ) -> tuple[LeaseEvent | None, tuple[Pick, ...], tuple[Pick, ...]]:
        picked = selection.picked
        if not (picked or selection.passed or selection.held or selection.expired):
            return None, (), ()
        offsets = tuple([offset for offset, _ in picked])
        detail = selection.detail(attempt_id if picked else None)
        lease_seq = self._next_lease_seq
        event = LeaseEvent(lease_seq, lease_ms, head, selection.passed, offsets, wall_ms, detail)
        self._apply_lease(event, now_ms)
        table = self._table
        picks = []
        for offset, record in picked:
            entry = table[offset]
            picks.append(Pick(offset, lease_seq, entry.attempts, entry.first_leased_at_ms, record))
        dead = tuple([self._pick_of(offset) for offset in selection.held])
        return event, tuple(picks), dead

    def _repeat(
        self, attempt_id: str, lease_ms: int, now_ms: int, wall_ms: int
    ) -> LeaseOutcome | None:
        """Lease the records of an earlier attempt again, or return None if this is impossible."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.at_ms + ATTEMPT_WINDOW_MS <= now_ms:
            return None
        for offset in attempt.offsets:
            entry = self._table.get(offset)
            if entry is None or entry.is_changed or not _is_held(entry, attempt):
                return None
        lease_seq, offsets = attempt.lease_seq, attempt.offsets
        detail = LeaseDetail(attempt_id=attempt_id)
        event = LeaseEvent(lease_seq, lease_ms, self.head, 0, offsets, wall_ms, detail)
        self._apply_lease(event, now_ms)
        return LeaseOutcome(tuple([self._pick_of(o) for o in attempt.offsets]), event=event)

    def _pick_of(self, offset: int) -> Pick:
        entry = self._table[offset]
        return Pick(offset, entry.lease_seq, entry.attempts, entry.first_leased_at_ms, None)

    # ── Ack and extend ───────────────────────────────────────────────────────────────────────
    def ack(
        self,
        claims: Sequence[Claim],
        *,
        now_ms: int,
        reason: AckReason = AckReason.ACKED,
        is_strict: bool = False,
    ) -> Outcome[Results]:
        """Ack records, and return None or an error for each. Standard queues accept any receipt of
        a record; FIFO queues, and all queues if ``is_strict``, only that of the current lease."""
        if self._deadlines and self._deadlines[0][0] <= now_ms:
            self._advance(now_ms)
        results: list[Exception | None] = []
        gone: list[int] = []
        for claim in claims:
            offset = claim.offset
            entry = self._table.get(offset)
            error: Exception | None = None
            if is_strict and (entry is None or offset in gone or not _is_held(entry, claim)):
                error = NotLeased(_NOT_LEASED)
            elif entry is None:
                if offset >= self.head and self.is_fifo:
                    error = ExpiredReceipt(_RECEIPT_EXPIRED)
                # A crash lost the event of the lease. The ack must count, or the record would be
                # delivered again. (On FIFO queues this could break the order of the group.)
                elif self.head <= offset < self._next_offset and not (
                    offset in gone or offset in self._acked_ahead
                ):
                    gone.append(offset)
            elif self.is_fifo and reason is AckReason.ACKED and not _is_held(entry, claim):
                error = ExpiredReceipt(_RECEIPT_EXPIRED)
            elif offset not in gone:
                gone.append(offset)
            results.append(error)
        if not gone:
            return Outcome(tuple(results))
        event = AckEvent(reason, tuple(gone))
        self._apply_ack(event.offsets)
        # An ack can unlock a message group; on a standard queue it makes nothing available.
        return Outcome(tuple(results), (event,), now_ms if self.is_fifo else None)

    def extend(
        self, claims: Sequence[tuple[Claim, int]], *, now_ms: int, is_strict: bool = False
    ) -> Outcome[Results]:
        """Set new visibility timeouts; zero makes a record visible at once. Return for each claim
        None or an error: NotLeased (the record is gone, or with ``is_strict`` its lease has ended),
        InvalidRequest (more than twelve hours in total), or ExpiredReceipt (FIFO queues only)."""
        self._advance(now_ms)
        results: list[Exception | None] = []
        leases: list[tuple[int, int]] = []
        for claim, lease_ms in claims:
            results.append(self._refusal(claim, lease_ms, now_ms, is_strict=is_strict))
            if results[-1] is None:
                leases.append((claim.offset, lease_ms))
        if not leases:
            return Outcome(tuple(results))
        event = ExtendEvent(tuple(leases))
        self._apply_extend(event, now_ms)
        return Outcome(tuple(results), (event,), now_ms + min(ms for _, ms in leases))

    def _refusal(
        self, claim: Claim, lease_ms: int, now_ms: int, *, is_strict: bool
    ) -> Exception | None:
        entry = self._table.get(claim.offset)
        if entry is None or (is_strict and not _is_held(entry, claim)):
            return NotLeased(_NOT_LEASED)
        if self.is_fifo and not _is_held(entry, claim):
            return ExpiredReceipt(_RECEIPT_EXPIRED)
        held_ms = now_ms - entry.leased_at_ms if entry.state == LEASED else 0
        if lease_ms and held_ms + lease_ms > LEASE_MS_MAX:
            return InvalidRequest(_TOO_LONG)
        return None

    # ── Start, purge, trim, expire ───────────────────────────────────────────────────────────
    def start(self, offset: int, *, backlog: int) -> Outcome[None]:
        """Reset the cursor to ``offset``; ``backlog`` is the number of messages from there on."""
        self._apply_start(event := StartEvent(offset, backlog))
        return Outcome(None, (event,))

    def purge(self, *, end_offset: int) -> Outcome[None]:
        """Drop all messages: visible, delayed and in flight. ``end_offset`` is the log's end."""
        assert end_offset >= self._next_offset, "a purge must cover the whole log"
        self._apply_trim(event := TrimEvent(end_offset, self.unseen))
        return Outcome(None, (event,))

    def trim(self, start_offset: int, *, passed: int = 0) -> Outcome[int]:
        """Drop records below ``start_offset``, and return the number of messages that were not
        acked. ``passed`` is the number of those that were never leased."""
        if start_offset <= self.low_offset():
            return Outcome(0)
        assert start_offset > self.head or passed == 0, "messages passed but the head did not move"
        count = len(self._table)
        self._apply_trim(event := TrimEvent(start_offset, passed))
        return Outcome(count - len(self._table) + passed, (event,))

    def expire(self, *, retention_ms: int, now_ms: int, wall_ms: int) -> Outcome[int]:
        self._is_dry = False  # the log may have more records at the next lease
        self._advance(now_ms)
        bound_ms = wall_ms - retention_ms
        table = self._table
        old = [o for o, e in table.items() if UNKNOWN < e.sent_at_ms <= bound_ms]
        events: list[Event] = []
        for at in range(0, len(old), EXPIRED_PER_EVENT_MAX):
            ack = AckEvent(AckReason.EXPIRED, tuple(old[at : at + EXPIRED_PER_EVENT_MAX]))
            self._apply_ack(ack.offsets)
            events.append(ack)
        selection = Selection(0, None, bound_ms, now_ms)
        head = self._pass_expired(selection)
        event, _, _ = self._decide_lease(selection, head, 0, None, now_ms, wall_ms)
        if event is not None:
            events.append(event)
        unlocked_ms = now_ms if old and self.is_fifo else None
        return Outcome(len(old) + selection.fresh_expired, tuple(events), unlocked_ms)

    def _pass_expired(self, selection: Selection) -> int:
        window, head = self._window, self.head
        while window and self._retention_base(window[0]) <= selection.bound_ms:
            record = window[0]
            if record.offset not in self._acked_ahead:
                selection.fresh_expired += 1
            self._pass(record, selection)
            self._on_dropped(record)
            head = record.offset + 1
        return head

    # ── Unwanted records ─────────────────────────────────────────────────────────────────────
    def pass_unwanted(self, *, now_ms: int, wall_ms: int) -> Outcome[None]:
        """Move the head past unwanted records, if no record of the window comes before them."""
        if self._window or not self.unwanted_tail:
            return Outcome(None)
        selection = Selection(0, None, 0, now_ms)
        head = self._pass_tail(selection)
        event, _, _ = self._decide_lease(selection, head, 0, None, now_ms, wall_ms)
        return Outcome(None, () if event is None else (event,))

    def _pass_tail(self, selection: Selection) -> int:
        selection.passed += self.unwanted_tail
        self._unwanted -= self.unwanted_tail
        self.unwanted_tail = 0
        return self.scan_from

    # ── Queries ──────────────────────────────────────────────────────────────────────────────
    def stats(self, *, now_ms: int, queue_delay_ms: int = 0) -> CursorStats:
        self._advance(now_ms)
        backlog = self._backlog - self._unwanted
        ahead = min(backlog, self._delays.count(now_ms=now_ms, delay_ms=queue_delay_ms))
        known = len(self._table) - self._in_flight - self._delayed
        return CursorStats(backlog - ahead + known, self._in_flight, ahead + self._delayed)

    @property
    def in_flight_most(self) -> int:
        """The number of records in flight. Some leases that ended recently are still counted."""
        return self._in_flight

    def next_wake_ms(self) -> int | None:
        """Return when the next lease or delay of a record ends, or None if there is none."""
        deadlines = self._deadlines
        while deadlines:
            until_ms, offset = deadlines[0]
            entry = self._table.get(offset)
            if entry and entry.until_ms == until_ms and entry.state in (LEASED, DELAYED):
                return until_ms
            heappop(deadlines)  # stale: the lease was acked or extended
        return None

    def low_offset(self) -> int:
        """Return the lowest offset of a record that is not deleted."""
        return next(iter(self._table), self.head)

    def attempts_of(self, offset: int) -> int:
        entry = self._table.get(offset)
        return 0 if entry is None else entry.attempts

    def state_of(
        self, record: Record, *, now_ms: int, wall_ms: int, queue_delay_ms: int = 0
    ) -> RecordState | None:
        self._advance(now_ms)
        offset = record.offset
        entry = self._table.get(offset)
        if entry is None:
            if not self.head <= offset < self.until or offset in self._acked_ahead:
                return None
            if self.wants is not None and not (record.message.is_sealed or self.wants(record)):
                return None
            due_ms = self._due_ms(record, queue_delay_ms, now_ms, wall_ms)
            if due_ms > now_ms:
                return RecordState(PeekState.DELAYED, due_ms)
        elif entry.state in (LEASED, DELAYED):
            is_leased = entry.state == LEASED
            shown = PeekState.IN_FLIGHT if is_leased else PeekState.DELAYED
            return RecordState(shown, entry.until_ms)
        blocker = self._blocker(record.message.group, offset)
        if blocker is not None:
            return RecordState(PeekState.VISIBLE, self._table[blocker].until_ms, blocker)
        return RecordState(PeekState.VISIBLE)

    def _due_ms(self, record: Record, queue_delay_ms: int, now_ms: int, wall_ms: int) -> int:
        delay_ms = queue_delay_ms if self.is_fifo else record.message.delay_ms or 0
        return due_at(record, delay_ms, now_ms=now_ms, wall_ms=wall_ms)

    def _blocker(self, group: str | None, offset: int) -> int | None:  # noqa: ARG002 - for FIFO
        """Return the offset of the record in flight that locks this record's group, or None."""
        return None

    def find_obstacles(self, terms: QueueTerms) -> ObstacleSearch:
        """Count undelivered messages by reason. Yields often, so that other tasks can run."""
        self._advance(terms.now_ms)
        delay_ends_ms = self._delays.next_ms(now_ms=terms.now_ms, delay_ms=terms.queue_delay_ms)
        counter = ObstacleCounter(terms, is_fifo=self.is_fifo, delay_ends_ms=delay_ends_ms)
        yield from counter.add_all(self._table)
        for record in self._window:
            due_ms = self._due_ms(record, terms.queue_delay_ms, terms.now_ms, terms.wall_ms)
            if due_ms <= terms.now_ms and record.offset not in self._acked_ahead:
                counter.add_free(record.message.group, self._retention_base(record))
        found = yield from counter.result()
        return msgspec.structs.replace(found, is_read_ahead_full=not self._may_skip)


def _is_held(entry: Entry, claim: Claim | Attempt) -> bool:
    return entry.state == LEASED and entry.lease_seq == claim.lease_seq
