"""The state of a queue's partition, derived from the events in its log, and the records read ahead.
Only this module changes that state: decisions (lease.py) create an event and apply it here, and
restarts and followers apply the same events from the log, so all arrive at the same state.

- ``head`` is the first offset that no lease has examined. Records after it need no memory.
- The table has the records below the head that are in flight, skipped or available again.
- Counts of appended messages and of messages below the head come from batch headers alone.
- Deadlines are in a heap with lazy deletion. The end of a lease is not an event.
- The window has a bounded number of decoded records from the head on. Records that a share does not
  want are only counted. No event names them, so they are finished when the head passes (ADR 10).

Replay does not decode messages. An entry created by replay therefore lacks its group, sending time
and due time until ``hydrate`` gets its record; a leader calls it before the first lease."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from penstock.cursor.leases.events import (
    AckEvent,
    Event,
    ExtendEvent,
    LeaseEvent,
    Selection,
    StartEvent,
    TrimEvent,
)
from penstock.cursor.leases.parts import (
    DELAYED,
    HOLD_MS,
    LEASED,
    READY,
    RESTORED,
    TAKEN,
    Attempt,
    DelayBuckets,
    Entry,
    Snapshot,
    due_at,
)
from penstock.model.limits import (
    ATTEMPT_IDS_MAX,
    DEFERRED_MAX,
    JUDGED_BYTES_MAX,
    JUDGED_RECORDS_MAX,
    OFFSET_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_RECORDS_MAX,
)
from penstock.model.message import Record

_STALE_MIN = 1_024  # with fewer stale heap items a sweep is not worth its cost


class LeaseState:
    is_fifo: bool
    # Callbacks, implemented for standard and FIFO queues.
    _on_ready: Callable[[int, Entry], None]  # an entry may be leased again
    _on_fed: Callable[[Record, int, int], None]  # a record was added to the window (now, wall)
    _on_dropped: Callable[[Record], None]  # a record left the window without becoming an entry
    _rebuild: Callable[[], None]  # compute the order of delivery again
    _on_leased: Callable[[str], None] = staticmethod(lambda _group: None)
    _on_lease_ended: Callable[[str], None] = staticmethod(lambda _group: None)

    def _on_gone(self, offset: int, entry: Entry) -> None: ...

    def __init__(self) -> None:
        # Derived from the log, so equal on all replicas that have applied the same events.
        self.head = 0
        self._next_offset = 0
        self._appended_count = 0
        self._passed_count = 0
        self._next_lease_seq = 1
        self._table: dict[int, Entry] = {}  # ascending offsets: entries are added as the head moves
        # Records that were acked although a crash lost the event of their lease.
        self._acked_ahead: set[int] = set()
        self._acked_order: list[int] = []  # the same offsets as a heap
        self._attempts: dict[str, Attempt] = {}  # by attempt id, oldest first
        # Local to this node: clocks, and state that needs the contents of records.
        self._deadlines: list[tuple[int, int]] = []  # (until_ms, offset), including stale ones
        self._deadlines_max = _STALE_MIN
        self._in_flight = 0
        self._delayed = 0
        self._unhydrated: set[int] = set()
        self._delays = DelayBuckets(by_append=self.is_fifo)
        self._window: deque[Record] = deque()  # read ahead of the head, decoded
        self._window_bytes = 0
        self.scan_from = 0  # offset from which to read the next records for ``feed``
        self._is_dry = False  # whether the last ``feed`` added nothing; prevents endless feeding
        self.until = OFFSET_MAX  # the records from this offset on are not delivered or counted
        # The records that a share wants; None: all. A change applies to the records read next.
        self.wants: Callable[[Record], bool] | None = None
        self.unwanted_tail = 0  # unwanted records that were read after the last of the window
        self._gaps: dict[int, int] = {}  # offset in the window → unwanted records before it
        self._unwanted = 0  # all of them: the tail and the gaps

    # ── Applying events ──────────────────────────────────────────────────────────────────────
    def appended(
        self,
        base_offset: int,
        count: int,
        *,
        next_offset: int,
        delays: Sequence[tuple[int, int]] = (),
        appended_at_ms: int = 0,
        now_ms: int,
        elapsed_ms: int = 0,
    ) -> None:
        """Count appended messages. ``delays`` lists (offset, delay) of the delayed messages. A
        delayed message that is not listed counts as visible until it is read."""
        assert base_offset >= self._next_offset, "appends must follow the order of the log"
        if next_offset > self.until:
            count = max(0, min(count, self.until - base_offset))
        self._appended_count += count
        self._next_offset = next_offset
        began_ms = now_ms - elapsed_ms
        for offset, delay_ms in delays:
            if delay_ms > 0 and self.head <= offset < self.until:
                self._delays.add(delay_ms, appended_at_ms=appended_at_ms, now_ms=began_ms)

    def apply(self, event: Event, *, offset: int, now_ms: int, elapsed_ms: int = 0) -> None:
        """Replay an event written ``elapsed_ms`` ago. A lease gets only the time it has left."""
        if isinstance(event, LeaseEvent):
            assert event.head <= offset, "a lease event must come after its records"
            self._add_restored(event)
            self._apply_lease(event, now_ms, elapsed_ms)
            self._on_head()
        elif isinstance(event, AckEvent):
            self._apply_ack(event.offsets)
        elif isinstance(event, ExtendEvent):
            self._apply_extend(event, now_ms, elapsed_ms)
        elif isinstance(event, StartEvent):
            self._apply_start(event)
        else:
            self._apply_trim(event)

    def _apply_lease(self, event: LeaseEvent, now_ms: int, elapsed_ms: int = 0) -> None:
        detail = event.detail
        if event.head > self.head:
            self.head = event.head
            self._passed_count += event.passed
            if self._acked_order:
                self._forget_acked_ahead()
        attempt = 1
        if detail is not None:
            if detail.attempt_id is not None:
                known = self._attempts.get(detail.attempt_id)
                if known is not None and known.lease_seq == event.lease_seq:
                    attempt = 0  # this lease repeats an earlier receive
                else:
                    self._attempts.pop(detail.attempt_id, None)  # so that it moves to the end
                    made = Attempt(event.lease_seq, event.offsets, now_ms - elapsed_ms)
                    self._attempts[detail.attempt_id] = made
                    if len(self._attempts) > ATTEMPT_IDS_MAX:
                        del self._attempts[next(iter(self._attempts))]
            if detail.expired:
                self._apply_ack(detail.expired)
            if detail.due_keys:
                self._delays.take(detail.due_keys)
            until_ms = now_ms + max(0, HOLD_MS - elapsed_ms)
            for offset in detail.held:
                self._lease_entry(offset, event, 0, until_ms, now_ms - elapsed_ms)
        until_ms = now_ms + max(0, event.duration_ms - elapsed_ms)
        for offset in event.offsets:
            self._lease_entry(offset, event, attempt, until_ms, now_ms - elapsed_ms)
        if len(self._deadlines) > self._deadlines_max:
            self._sweep_deadlines()
        if event.lease_seq >= self._next_lease_seq:
            self._next_lease_seq = event.lease_seq + 1

    def _lease_entry(
        self, offset: int, event: LeaseEvent, attempt: int, until_ms: int, leased_at_ms: int
    ) -> None:
        entry = self._table[offset]
        if entry.state != LEASED:
            self._begin_lease(entry)
        if attempt:
            # Attempts count when the lease begins, so that a consumer that crashes uses one too.
            entry.attempts += attempt
            if entry.attempts == 1:
                entry.first_leased_at_ms = event.leased_at_ms
        entry.lease_seq = event.lease_seq
        entry.until_ms = until_ms
        entry.leased_at_ms = leased_at_ms
        entry.is_changed = False
        heappush(self._deadlines, (until_ms, offset))

    def _add_restored(self, event: LeaseEvent) -> None:
        table = self._table
        head = self.head
        fresh = [o for o in event.offsets if o >= head and o not in table]
        if event.detail is not None and event.detail.skipped:
            fresh += [o for o in event.detail.skipped if o not in table]
        if fresh:
            for offset in sorted(fresh):
                table[offset] = Entry(RESTORED)
            self._unhydrated.update(fresh)

    def _apply_extend(self, event: ExtendEvent, now_ms: int, elapsed_ms: int = 0) -> None:
        for offset, duration_ms in event.leases:
            entry = self._table[offset]
            entry.is_changed = True
            if duration_ms == 0:
                if entry.state == LEASED:
                    self._end_lease(entry)
                    entry.state = READY
                    self._on_ready(offset, entry)
                continue
            if entry.state != LEASED:
                # A consumer may extend a lease that has ended, which is not a new attempt.
                self._begin_lease(entry)
                entry.leased_at_ms = now_ms - elapsed_ms
            entry.until_ms = now_ms + max(0, duration_ms - elapsed_ms)
            self._arm(entry.until_ms, offset)

    def _apply_ack(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            entry = self._table.pop(offset, None)
            if entry is not None:
                self._leave(offset, entry)
                self._on_gone(offset, entry)
            elif offset >= self.head and offset not in self._acked_ahead:
                self._acked_ahead.add(offset)
                heappush(self._acked_order, offset)

    def _apply_trim(self, event: TrimEvent) -> None:
        start = event.start
        gone = [(o, e) for o, e in self._table.items() if o < start]
        for offset, entry in gone:
            del self._table[offset]
            self._leave(offset, entry)
        if start > self.head:
            self.head = start
            self._passed_count += event.passed
            self._forget_acked_ahead()
            self._on_head()
            if self._backlog <= 0:
                self._delays.clear()
        self._next_offset = max(self._next_offset, start)
        self._sweep_deadlines()
        self._rebuild()

    def _apply_start(self, event: StartEvent) -> None:
        for offset, entry in self._table.items():
            self._leave(offset, entry)
        self._table.clear()
        self._acked_ahead.clear()
        self._acked_order.clear()
        self._attempts.clear()
        self._delays.clear()  # unread delayed records count as visible until they are read
        self._drop_window()
        self.head = event.start
        self._passed_count = self._appended_count - event.backlog
        self._next_offset = max(self._next_offset, event.start)
        self._on_head()
        self._sweep_deadlines()
        self._rebuild()

    # ── Bookkeeping ──────────────────────────────────────────────────────────────────────────
    @property
    def _backlog(self) -> int:
        return self._appended_count - self._passed_count - len(self._acked_ahead)

    @property
    def unseen(self) -> int:
        """The number of messages that no lease has examined."""
        return self._appended_count - self._passed_count

    def _forget_acked_ahead(self) -> None:
        order = self._acked_order
        while order and order[0] < self.head:
            self._acked_ahead.discard(heappop(order))

    def _leave(self, offset: int, entry: Entry) -> None:
        if entry.state == LEASED:
            self._end_lease(entry)
        elif entry.state == DELAYED:
            self._delayed -= 1
        if self._unhydrated:
            self._unhydrated.discard(offset)

    def _begin_lease(self, entry: Entry) -> None:
        if entry.state == DELAYED:
            self._delayed -= 1
        entry.state = LEASED
        self._in_flight += 1
        if entry.group is not None:
            self._on_leased(entry.group)

    def _end_lease(self, entry: Entry) -> None:
        self._in_flight -= 1
        if entry.group is not None:
            self._on_lease_ended(entry.group)

    def _put_off(self, offset: int, entry: Entry, due_ms: int) -> None:
        entry.state = DELAYED
        entry.until_ms = due_ms
        self._delayed += 1
        self._arm(due_ms, offset)

    def _arm(self, until_ms: int, offset: int) -> None:
        heappush(self._deadlines, (until_ms, offset))
        if len(self._deadlines) > self._deadlines_max:
            self._sweep_deadlines()

    def _sweep_deadlines(self) -> None:
        timed = (LEASED, DELAYED)
        self._deadlines = [(e.until_ms, o) for o, e in self._table.items() if e.state in timed]
        heapify(self._deadlines)
        self._deadlines_max = 2 * len(self._deadlines) + _STALE_MIN

    def _advance(self, now_ms: int) -> None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            until_ms, offset = heappop(deadlines)
            entry = self._table.get(offset)
            if entry is None or entry.until_ms != until_ms:
                continue
            if entry.state == LEASED:
                self._end_lease(entry)
            elif entry.state == DELAYED:
                self._delayed -= 1
            else:
                continue
            entry.state = READY
            self._on_ready(offset, entry)

    # ── Hydration: message contents that replay does not decode ──────────────────────────────
    def unhydrated(self) -> list[int]:
        """Return the offsets of records to pass to ``hydrate`` before the first lease."""
        return sorted(self._unhydrated)

    def hydrate(self, records: Iterable[Record], *, now_ms: int, wall_ms: int) -> None:
        for record in records:
            if record.offset not in self._unhydrated:
                continue
            self._unhydrated.discard(record.offset)
            entry = self._table[record.offset]
            entry.group = record.message.group
            entry.sent_at_ms = self._retention_base(record)
            if entry.state == LEASED:
                if entry.group is not None:
                    self._on_leased(entry.group)
            elif entry.state == RESTORED:
                entry.state = READY
                delay_ms = record.message.delay_ms
                if not delay_ms or self.is_fifo or entry.attempts:
                    continue
                due_ms = due_at(record, delay_ms, now_ms=now_ms, wall_ms=wall_ms)
                if due_ms > now_ms:
                    self._put_off(record.offset, entry, due_ms)
        if not self._unhydrated:
            self._rebuild()

    def _retention_base(self, record: Record) -> int:
        return record.appended_at_ms if self.is_fifo else record.sent_at_ms

    # ── Snapshots ────────────────────────────────────────────────────────────────────────────
    def snapshot(self, *, now_ms: int) -> bytes:
        """Return the encoded state. All events so far must be in the log. The caller stores the
        log's end offset with the snapshot, because replay continues from there."""
        assert all(e.state != TAKEN for e in self._table.values()), "no snapshot during a lease"
        entries = [
            (
                offset,
                e.lease_seq,
                e.attempts,
                e.first_leased_at_ms,
                e.is_changed,
                max(0, e.until_ms - now_ms) if e.state == LEASED else -1,
                now_ms - e.leased_at_ms,
            )
            for offset, e in self._table.items()
        ]
        known = self._attempts.items()
        attempts = [(i, a.lease_seq, a.offsets, now_ms - a.at_ms) for i, a in known]
        head = (self.is_fifo, self.head, self._next_offset)
        counts = (self._appended_count, self._passed_count, self._next_lease_seq)
        acked, delays = sorted(self._acked_ahead), self._delays.rows(now_ms=now_ms)
        return Snapshot(*head, *counts, entries, acked, attempts, delays).encoded()

    def load(self, snapshot: Snapshot, *, now_ms: int, elapsed_ms: int) -> None:
        assert snapshot.is_fifo is self.is_fifo, "the snapshot is of another queue type"
        began_ms = now_ms - elapsed_ms
        self.head, self._next_offset = snapshot.head, snapshot.next_offset
        self._appended_count, self._passed_count = snapshot.appended_count, snapshot.passed_count
        self._next_lease_seq = snapshot.next_lease_seq
        for offset, lease_seq, attempts, first_ms, is_changed, left_ms, age_ms in snapshot.entries:
            entry = Entry(RESTORED, attempts=attempts, lease_seq=lease_seq, is_changed=is_changed)
            entry.first_leased_at_ms = first_ms
            entry.leased_at_ms = began_ms - age_ms
            if left_ms >= 0:
                entry.state = LEASED
                entry.until_ms = now_ms + max(0, left_ms - elapsed_ms)
                self._in_flight += 1
            self._table[offset] = entry
        self._unhydrated = set(self._table)
        self._acked_ahead = set(snapshot.acked_ahead)
        self._acked_order = sorted(snapshot.acked_ahead)
        for attempt_id, lease_seq, offsets, age_ms in snapshot.attempts:
            self._attempts[attempt_id] = Attempt(lease_seq, offsets, began_ms - age_ms)
        self._delays.load(snapshot.delays, began_ms)
        self._sweep_deadlines()
        self._on_head()

    # ── The window ───────────────────────────────────────────────────────────────────────────
    @property
    def wants_feed(self) -> bool:
        return self._lacks(WINDOW_RECORDS_MAX, is_dry=False)

    def _lacks(self, count: int, is_dry: bool) -> bool:
        return (
            len(self._window) < count
            and not is_dry
            and self._backlog - self._unwanted > len(self._window)
            and self._window_bytes < WINDOW_BYTES_MAX
        )

    def feed(
        self, records: Sequence[Record], next_offset: int, *, now_ms: int, wall_ms: int
    ) -> None:
        """Add records to the window (the records read ahead) until the window is full."""
        self._is_dry = True
        wants, until = self.wants, self.until
        judged_count = judged_bytes = 0
        for record in records:
            if record.offset < self.scan_from:
                continue
            if record.offset >= until:
                self.scan_from = record.offset
                return
            is_full = len(self._window) >= WINDOW_RECORDS_MAX
            if self._window and (is_full or self._window_bytes >= WINDOW_BYTES_MAX):
                self.scan_from = record.offset
                return
            self._is_dry = False
            self.scan_from = record.offset + 1
            if wants is not None:
                if judged_count == JUDGED_RECORDS_MAX or judged_bytes >= JUDGED_BYTES_MAX:
                    self.scan_from = record.offset
                    return
                judged_count += 1
                judged_bytes += size_of(record)
                is_acked = record.offset in self._acked_ahead  # counted as read already
                if not (is_acked or record.message.is_sealed or wants(record)):
                    self.unwanted_tail += 1
                    self._unwanted += 1
                    continue
            if self.unwanted_tail:
                self._gaps[record.offset] = self.unwanted_tail
                self.unwanted_tail = 0
            self._window.append(record)
            self._window_bytes += size_of(record)
            self._on_fed(record, now_ms, wall_ms)
        self.scan_from = max(self.scan_from, next_offset)

    def _drop_window(self) -> None:
        for record in self._window:
            self._on_dropped(record)
        self._window.clear()
        self._gaps.clear()
        self._window_bytes = self.scan_from = self.unwanted_tail = self._unwanted = 0

    def _on_head(self) -> None:
        if self._unwanted:
            self._drop_window()  # how many of them are below the head is not known: read again
        window = self._window
        while window and window[0].offset < self.head:
            record = window.popleft()
            self._window_bytes -= size_of(record)
            self._on_dropped(record)
        if self.scan_from < self.head:
            self.scan_from = self.head

    @property
    def _may_skip(self) -> bool:
        """Return False if the limit of skipped records, which stay in memory, is reached."""
        return len(self._table) - self._in_flight < DEFERRED_MAX

    def _pass(self, record: Record, selection: Selection) -> None:
        self._window.popleft()
        self._window_bytes -= size_of(record)
        selection.passed += 1
        if self._gaps:
            gap = self._gaps.pop(record.offset, 0)
            self._unwanted -= gap
            selection.passed += gap
        if self._delays:
            key = self._delays.key_of(record)
            if key in self._delays:
                selection.due_keys.append(key)


def size_of(record: Record) -> int:
    message = record.message
    size = len(message.body)
    if message.attributes is not None:
        size += sum([len(a.value) for a in message.attributes.values()])
    return size
