"""The lease cursor of a standard queue, which chooses the records that a receive gets.

A receive first gets records that became available again, lowest offset first, then new records in
log order. A delayed new record is skipped until it is due.

Fairness: a message group with many messages must not make the other groups wait. A group is noisy
while it has at least thirty records in flight, and more than a tenth of all records in flight. Its
records are parked: records of other groups are delivered first, and parked records only when there
are none, beginning with the group that has the fewest in flight. Records without a group are never
parked. A noisy group may still use all idle consumers. The number of parked groups is bounded,
because each receive checks all of them."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush

from penstock.cursor.leases.events import Selection
from penstock.cursor.leases.fold import size_of
from penstock.cursor.leases.lease import LeaseCursor
from penstock.cursor.leases.parts import READY, TAKEN, Entry, due_at
from penstock.model.message import Record

_STALE_MIN = 1_024
IN_FLIGHT_MIN = 30
SHARE = 10  # a group is noisy above 1/SHARE of all records in flight
GROUPS_MAX = 64
# Number of records that may be parked to find records of quiet groups after them.
PARKED_MAX = 4_096


class FairShare:
    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._large_groups: set[str] = set()  # groups with IN_FLIGHT_MIN or more in flight
        self._parked: dict[str, deque[int]] = {}
        self._parked_count = 0

    @property
    def is_needed(self) -> bool:
        """Whether any group has many records in flight, or has records held back for fairness."""
        return bool(self._large_groups) or bool(self._parked)

    @property
    def may_park(self) -> bool:
        return self._parked_count < PARKED_MAX and len(self._parked) < GROUPS_MAX

    def leased(self, group: str) -> None:
        count = self._in_flight.get(group, 0) + 1
        self._in_flight[group] = count
        if count == IN_FLIGHT_MIN:
            self._large_groups.add(group)

    def lease_ended(self, group: str) -> None:
        count = self._in_flight[group] = self._in_flight[group] - 1
        if count == 0:
            del self._in_flight[group]
        if count == IN_FLIGHT_MIN - 1:
            self._large_groups.discard(group)

    def noisy_groups(self, total: int) -> set[str]:
        return {group for group in self._large_groups if self._in_flight[group] * SHARE > total}

    def park(self, group: str, offset: int) -> None:
        self._parked.setdefault(group, deque()).append(offset)
        self._parked_count += 1

    def parked_fronts(self) -> Iterator[tuple[str, int]]:
        return ((group, offsets[0]) for group, offsets in self._parked.items())

    def quietest(self) -> str | None:
        count = self._in_flight.get
        return min(self._parked, key=lambda g: (count(g, 0), self._parked[g][0]), default=None)

    def unpark(self, group: str) -> int:
        offsets = self._parked[group]
        offset = offsets.popleft()
        self._parked_count -= 1
        if not offsets:
            del self._parked[group]
        return offset

    def clear_parked(self) -> None:
        self._parked.clear()
        self._parked_count = 0


class StandardCursor(LeaseCursor):
    is_fifo = False

    def __init__(self) -> None:
        super().__init__()
        self._ready: list[int] = []  # heap of offsets; stale if the entry is not READY
        self._ready_max = _STALE_MIN
        self._due: dict[int, int] = {}  # offset → due time of delayed records in the window
        self._fair = fair = FairShare()
        self._on_leased, self._on_lease_ended = fair.leased, fair.lease_ended

    def _needs_feed(self, take: int, is_dry: bool) -> bool:
        return len(self._window) < take and len(self._ready) < take and self._lacks(take, is_dry)

    def _select(self, selection: Selection) -> tuple[int, bool]:
        if self._fair.is_needed:
            return self._take_fairly(selection)
        is_cut = bool(self._ready) and self._take_again(selection)
        if is_cut or len(selection.picked) >= selection.take:
            return self.head, is_cut
        return self._take_fresh(selection, self.head), False

    def _reads_on(self, selection: Selection) -> bool:
        return not selection.picked and self._lacks(1, selection.is_dry) and self._may_skip

    def next_offset(self, *, now_ms: int) -> int | None:
        """Return the lowest offset that can be leased without reading more of the log."""
        self._is_dry = False  # the log may have more records at the next lease
        if self._deadlines and self._deadlines[0][0] <= now_ms:
            self._advance(now_ms)
        ready, table = self._ready, self._table
        while ready and ((entry := table.get(ready[0])) is None or entry.state != READY):
            heappop(ready)
        found = [*ready[:1], *(offset for _, offset in self._fair.parked_fronts())]
        if self._window:
            found.append(self._window[0].offset)
        return min(found, default=None)

    @contextmanager
    def only_below(self, offset: int) -> Iterator[None]:
        """Within this context, lease only records below ``offset`` or held back for fairness."""
        window = self._window
        later = [window.pop() for _ in range(len(window)) if window[-1].offset >= offset]
        tail = self.unwanted_tail if later else 0
        self.unwanted_tail -= tail
        ready = self._ready
        self._ready = [each for each in ready if each < offset]
        heapify(self._ready)
        self._is_dry = True
        try:
            yield
        finally:
            self._is_dry = False
            window.extend(reversed(later))
            self.unwanted_tail += tail
            for each in ready:
                if each >= offset:
                    heappush(self._ready, each)

    def _take_again(self, selection: Selection) -> bool:
        """Pick records that became available again. Return True if the lease event is full."""
        ready = self._ready
        while ready and len(selection.picked) < selection.take:
            offset = ready[0]
            entry = self._table.get(offset)
            if entry is None or entry.state != READY:
                heappop(ready)
                continue
            if not self._consider(selection, offset, entry):
                return True
            heappop(ready)
        return False

    def _take_fresh(self, selection: Selection, head: int) -> int:
        window = self._window
        picked, take, bound_ms = selection.picked, selection.take, selection.bound_ms
        # Fast path, as this loop takes most of the time of a receive: if no record is delayed or
        # acked, only retention must be checked.
        is_plain = not (self._due or self._delays or self._acked_ahead or self._gaps)
        while window and len(picked) < take:
            record = window[0]
            offset = record.offset
            message = record.message
            sent_at_ms = message.sent_at_ms
            if sent_at_ms is None:
                sent_at_ms = record.appended_at_ms
            if is_plain and sent_at_ms > bound_ms:
                window.popleft()
                self._window_bytes -= size_of(record)
                self._table[offset] = Entry(TAKEN, message.group, sent_at_ms)
                selection.passed += 1
                picked.append((offset, record))
            else:
                entry = self._enter(record, sent_at_ms, selection)
                if entry is None:
                    break
                if entry.state == TAKEN:
                    picked.append((offset, record))
            head = offset + 1
        return head

    def _enter(self, record: Record, sent_at_ms: int, selection: Selection) -> Entry | None:
        """Take the first record that was read ahead. Return its entry, in state TAKEN if it can be
        leased, or None if the record is delayed but no more records may be skipped."""
        offset = record.offset
        due_ms = self._due.get(offset, 0) if self._due else 0
        entry = Entry(TAKEN, record.message.group, sent_at_ms)
        if sent_at_ms <= selection.bound_ms or (self._acked_ahead and offset in self._acked_ahead):
            if offset not in self._acked_ahead:
                selection.fresh_expired += 1
            entry.state = READY
        elif due_ms > selection.now_ms:
            if not self._may_skip:
                return None
            self._table[offset] = entry
            self._put_off(offset, entry, due_ms)
            selection.skipped.append(offset)
        else:
            self._table[offset] = entry
        if self._due:
            self._due.pop(offset, None)
        self._pass(record, selection)
        return entry

    def _take_fairly(self, selection: Selection) -> tuple[int, bool]:
        """Pick records of groups with few records in flight, then of the other groups. Return the
        first offset that was not examined, and whether the lease event is full."""
        fair = self._fair
        noisy = fair.noisy_groups(self._in_flight)
        picked, take = selection.picked, selection.take
        while len(picked) < take:
            offset = self._next_quiet(noisy)
            if offset is None:
                break
            entry = self._table[offset]
            if not self._consider(selection, offset, entry):
                heappush(self._ready, offset)
                return self.head, True
        head = self._take_quiet_fresh(selection, noisy)
        left = self._backlog - self._unwanted - selection.passed
        is_read_through = not self._window and left > 0
        if is_read_through and not selection.is_dry and fair.may_park and self._may_skip:
            return head, False  # read more: records of quiet groups may follow
        while len(picked) < take:
            group = fair.quietest()
            if group is None:
                break
            offset = fair.unpark(group)
            parked = self._table.get(offset)
            if parked is None or parked.state != READY:
                continue
            if not self._consider(selection, offset, parked):
                heappush(self._ready, offset)
                return head, True
        if len(picked) < take and self._window:
            # No records are parked and no more can be parked: take the rest in log order.
            head = self._take_fresh(selection, head)
        return head, False

    def _next_quiet(self, noisy: set[str]) -> int | None:
        ready = self._ready
        fair = self._fair
        while ready:
            entry = self._table.get(ready[0])
            if entry is None or entry.state != READY:
                heappop(ready)
            elif entry.group in noisy and entry.group is not None and fair.may_park:
                fair.park(entry.group, heappop(ready))
            else:
                break
        while True:
            calm = min(((o, g) for g, o in fair.parked_fronts() if g not in noisy), default=None)
            if calm is None or (ready and ready[0] < calm[0]):
                return heappop(ready) if ready else None
            offset = fair.unpark(calm[1])
            entry = self._table.get(offset)
            if entry is not None and entry.state == READY:
                return offset

    def _take_quiet_fresh(self, selection: Selection, noisy: set[str]) -> int:
        window = self._window
        head = self.head
        while window and len(selection.picked) < selection.take:
            record = window[0]
            group = record.message.group
            is_noisy = group in noisy
            if is_noisy and not (self._fair.may_park and self._may_skip):
                break
            entry = self._enter(record, record.sent_at_ms, selection)
            if entry is None:
                break
            head = record.offset + 1
            if entry.state != TAKEN:
                continue
            if is_noisy and group is not None:
                entry.state = READY
                self._fair.park(group, record.offset)
                selection.skipped.append(record.offset)
            else:
                selection.picked.append((record.offset, record))
        return head

    def _on_ready(self, offset: int, entry: Entry) -> None:  # noqa: ARG002 - for FIFO
        heappush(self._ready, offset)
        if len(self._ready) > self._ready_max:
            self._rebuild()

    def _on_fed(self, record: Record, now_ms: int, wall_ms: int) -> None:
        delay_ms = record.message.delay_ms
        if delay_ms:
            due_ms = due_at(record, delay_ms, now_ms=now_ms, wall_ms=wall_ms)
            if due_ms > now_ms:
                self._due[record.offset] = due_ms

    def _on_dropped(self, record: Record) -> None:
        self._due.pop(record.offset, None)

    def _rebuild(self) -> None:
        # An ascending list is a heap already.
        self._ready = [o for o, e in self._table.items() if e.state == READY]
        self._ready_max = 2 * len(self._ready) + _STALE_MIN
        self._fair.clear_parked()
