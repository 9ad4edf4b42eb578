"""The lease cursor of a FIFO queue. Each message group is delivered in order and is locked while
one of its records is in flight.

Available groups wait in a line, so a group that fails repeatedly does not starve the others. A
receive takes as many records as it can from the first group before the next one, from the oldest
remaining record up to the first one in flight. A record without a group is a group by itself.

Each group has a queue of ascending offsets: first those examined by an earlier lease, then those of
records read ahead. A group is available if its first record is, and is in the line at most once. An
unavailable group found in the line is removed; the event that frees the group adds it again.

The queue's current delay applies to every record that was never leased nor skipped. So records
become due in log order, reading ahead stops at a delayed record, and no entry has the state
DELAYED."""

from collections import deque
from heapq import heappop, heappush
from itertools import islice

from penstock.cursor.leases.events import Selection
from penstock.cursor.leases.lease import LeaseCursor
from penstock.cursor.leases.parts import LEASED, READY, TAKEN, UNKNOWN, Entry, decode_snapshot
from penstock.cursor.leases.standard import StandardCursor
from penstock.model.limits import LOCK_STEPS_MAX, WINDOW_RECORDS_MAX
from penstock.model.message import Record

# Number of records that a receive wants in the window, to find those of its first group.
_LOOK_AHEAD = WINDOW_RECORDS_MAX // 2

GroupKey = str | int  # a record without a group has its offset as key


class FifoCursor(LeaseCursor):
    is_fifo = True

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[GroupKey, deque[int]] = {}
        self._line: deque[GroupKey] = deque()
        self._in_line: set[GroupKey] = set()
        # Heap of window offsets that are first in their group; when due, the group joins the line.
        self._arrivals: list[int] = []
        self._arriving: set[int] = set()
        # The records of the window by offset, with their append times on the monotonic clock.
        self._fresh: dict[int, tuple[Record, int]] = {}
        self._last_append_ms: int | None = None

    def _needs_feed(self, take: int, is_dry: bool) -> bool:  # noqa: ARG002 - for standard queues
        return self._lacks(_LOOK_AHEAD, is_dry) and self._may_skip

    def _select(self, selection: Selection) -> tuple[int, bool]:
        head = self._pass_expired(selection)
        is_cut, is_delayed = self._take_groups(selection, selection.now_ms - self._queue_delay_ms)
        is_stuck = not (selection.picked or is_cut or is_delayed or selection.is_dry)
        selection.reads_on = is_stuck and self._is_locked(selection.now_ms)
        last = max((o for o, record in selection.picked if record is not None), default=-1)
        if selection.reads_on and self._window:
            last = self._window[-1].offset  # all records are locked: make room to read further
        return max(head, self._pass_to(selection, last)), is_cut

    def _reads_on(self, selection: Selection) -> bool:
        return selection.reads_on

    def _take_groups(self, selection: Selection, due_ms: int) -> tuple[bool, bool]:
        """Pick records of available groups; those appended after ``due_ms`` are still delayed.
        Return whether the lease event is full, and whether a group waits for a delayed record."""
        self._admit(due_ms)
        line = self._line
        while line and len(selection.picked) < selection.take:
            key = line[0]
            front = self._front(key)
            entry = None if front is None else self._table.get(front)
            is_free = front is not None and (entry is None or entry.state == READY)
            if is_free and not self._walk(key, selection, due_ms):
                return True, False
            line.popleft()
            self._in_line.discard(key)
        return False, bool(self._arrivals)

    def _admit(self, due_ms: int) -> None:
        """Make groups available whose first record is no longer delayed."""
        arrivals = self._arrivals
        while arrivals:
            offset = arrivals[0]
            fresh = self._fresh.get(offset)
            if fresh is not None and fresh[1] > due_ms:
                return
            heappop(arrivals)
            self._arriving.discard(offset)
            entry = self._table.get(offset)
            if fresh is not None:
                self._join(_key_of(fresh[0].message.group, offset))
            elif entry is not None:
                self._join(_key_of(entry.group, offset))

    def _walk(self, key: GroupKey, selection: Selection, due_ms: int) -> bool:
        """Pick records of one group, oldest first. Return False if the lease event is full."""
        for offset in self._groups[key]:
            if len(selection.picked) == selection.take:
                break
            entry = self._table.get(offset)
            if entry is None:
                fresh = self._fresh.get(offset)
                if fresh is None:
                    continue
                if fresh[1] > due_ms:
                    if offset == self._groups[key][0]:
                        self._line_up(key)  # the queue's delay was raised: it joins again when due
                    break
                selection.picked.append((offset, fresh[0]))
            elif entry.state == LEASED:
                break
            elif entry.state == TAKEN:
                continue
            elif not self._consider(selection, offset, entry):
                return False
            elif selection.held and selection.held[-1] == offset:
                break  # the group is locked until this record is in the dead-letter queue
        return True

    def _pass_to(self, selection: Selection, last: int) -> int:
        window = self._window
        picked = {offset for offset, record in selection.picked if record is not None}
        while window and window[0].offset <= last:
            record = window[0]
            offset = record.offset
            is_picked = offset in picked
            state = TAKEN if is_picked else READY
            self._table[offset] = Entry(state, record.message.group, record.appended_at_ms)
            if not is_picked:
                selection.skipped.append(offset)
            self._pass(record, selection)
            del self._fresh[offset]
        return last + 1

    def _is_locked(self, now_ms: int) -> bool:
        if self._backlog <= len(self._window) or not self._may_skip:
            return False
        if not self._window:
            return True
        _, appended_ms = self._fresh[self._window[-1].offset]
        return appended_ms + self._queue_delay_ms <= now_ms

    def _front(self, key: GroupKey) -> int | None:
        """Return the offset of the oldest remaining record of a group."""
        offsets = self._groups.get(key)
        if offsets is None:
            return None
        while offsets:
            offset = offsets[0]
            if offset in self._table or offset in self._fresh:
                return offset
            offsets.popleft()
        del self._groups[key]
        return None

    def _blocker(self, group: str | None, offset: int) -> int | None:
        if group is None:
            return None
        for earlier in islice(self._groups.get(group, ()), LOCK_STEPS_MAX):
            if earlier >= offset:
                return None
            entry = self._table.get(earlier)
            if entry is not None and entry.state == LEASED:
                return earlier
        return None

    def _line_up(self, key: GroupKey) -> None:
        front = self._front(key)
        if front is None:
            return
        entry = self._table.get(front)
        if entry is None:
            if front not in self._arriving:
                self._arriving.add(front)
                heappush(self._arrivals, front)
        elif entry.state == READY:
            self._join(key)

    def _join(self, key: GroupKey) -> None:
        if key not in self._in_line:
            self._in_line.add(key)
            self._line.append(key)

    def _rebuild(self) -> None:
        if self._unhydrated:
            return  # the groups of some records are unknown; ``hydrate`` calls this again
        self._groups = {}
        for offset, entry in self._table.items():
            self._groups.setdefault(_key_of(entry.group, offset), deque()).append(offset)
        for record in self._window:
            key = _key_of(record.message.group, record.offset)
            self._groups.setdefault(key, deque()).append(record.offset)
        self._line.clear()
        self._in_line.clear()
        self._arrivals.clear()
        self._arriving.clear()
        for key in list(self._groups):
            self._line_up(key)

    def _on_fed(self, record: Record, now_ms: int, wall_ms: int) -> None:
        # Append times must ascend even if the wall clock jumped between reads.
        appended_ms = now_ms - max(0, wall_ms - record.appended_at_ms)
        if self._last_append_ms is not None:
            appended_ms = max(appended_ms, self._last_append_ms)
        self._last_append_ms = appended_ms
        offset = record.offset
        self._fresh[offset] = (record, appended_ms)
        key = _key_of(record.message.group, offset)
        offsets = self._groups.get(key)
        if offsets is None:
            self._groups[key] = deque((offset,))
            self._line_up(key)
        else:
            offsets.append(offset)

    def _on_dropped(self, record: Record) -> None:
        self._fresh.pop(record.offset, None)
        self._line_up(_key_of(record.message.group, record.offset))

    def _on_ready(self, offset: int, entry: Entry) -> None:
        if entry.sent_at_ms != UNKNOWN:
            self._line_up(_key_of(entry.group, offset))

    _on_gone = _on_ready

    def next_wake_ms(self) -> int | None:
        ends_ms = super().next_wake_ms()
        arrivals = self._arrivals
        if arrivals and arrivals[0] in self._fresh:
            due_ms = self._fresh[arrivals[0]][1] + self._queue_delay_ms
            return due_ms if ends_ms is None else min(ends_ms, due_ms)
        return ends_ms


def _key_of(group: str | None, offset: int) -> GroupKey:
    return offset if group is None else group


def open_cursor(*, is_fifo: bool) -> LeaseCursor:
    return FifoCursor() if is_fifo else StandardCursor()


def restore_cursor(data: bytes, *, now_ms: int, elapsed_ms: int) -> LeaseCursor:
    """Return a cursor with the state of a snapshot made ``elapsed_ms`` ago. The caller then applies
    the later events of the log and calls ``hydrate``. Raises Damaged if the snapshot is unreadable;
    the caller must then replay the whole log."""
    state = decode_snapshot(data)
    cursor = open_cursor(is_fifo=state.is_fifo)
    cursor.load(state, now_ms=now_ms, elapsed_ms=elapsed_ms)
    return cursor
