"""From a simulated log to the real cursor, as ``broker/partition/replay.py`` does it: begun at a
checkpoint or at the log's start, taken as far as is committed, and finished by whoever leads.

A log whose beginning was dropped still holds events that speak of what stood there: a lease of
records on both sides of the cut, say. A fold that begins at the cut leaves those records out, and
counts for itself what the first event that moves the head has passed (``clipped``)."""

import msgspec
from tests.sim.disk import MESSAGE, Checkpoint, SimLog
from tests.sim.violation import Violation

from penstock.cursor.bookmark import BOOKMARK_TYPE, Bookmarks
from penstock.cursor.leases.dedup import DedupTable, dedup_key
from penstock.cursor.leases.events import Event, LeaseEvent, TrimEvent, clipped
from penstock.cursor.leases.fifo import open_cursor, restore_cursor
from penstock.cursor.leases.lease import LeaseCursor
from penstock.model.limits import DEDUP_WINDOW_MS
from penstock.model.topic import DedupScope


class Fold:
    def __init__(
        self, log: SimLog, checkpoint: Checkpoint | None, *, is_fifo: bool, now_ms: int
    ) -> None:
        self.log = log
        if checkpoint is not None and log.start <= checkpoint.offset <= log.end:
            self.cursor: LeaseCursor = restore_cursor(
                checkpoint.snapshot, now_ms=now_ms, elapsed_ms=0
            )
            self.offset = checkpoint.offset
            self.begun_at = checkpoint.begun_at
            self.bookmarks = Bookmarks(checkpoint.bookmarks)
            self.is_counted = True
        else:
            self.cursor = open_cursor(is_fifo=is_fifo)
            self.cursor.apply(TrimEvent(log.start, 0), offset=log.start - 1, now_ms=now_ms)
            self.offset = self.begun_at = log.start
            self.bookmarks = Bookmarks()
            self.is_counted = log.start == 0

    def advance(self, up_to: int, *, now_ms: int, elapsed_ms: int = 0) -> None:
        cursor = self.cursor
        for offset, entry in enumerate(self.log.between(self.offset, up_to), self.offset):
            if entry.kind == MESSAGE:
                cursor.appended(offset, 1, next_offset=offset + 1, now_ms=now_ms)
                continue
            if entry.kind == BOOKMARK_TYPE:
                assert isinstance(entry.value, bytes)
                self.bookmarks.apply(entry.value)
                continue
            event = entry.event
            if self.begun_at:
                event = self._clip(event)
            try:
                cursor.apply(event, offset=offset, now_ms=now_ms, elapsed_ms=elapsed_ms)
            except KeyError as unknown:
                what = f"SPLIT {offset} speaks of {unknown}, of which nothing is known"
                raise Violation(what) from unknown
        self.offset = max(self.offset, up_to)

    def _clip(self, event: Event) -> Event:
        """Of what this fold has seen itself. Where the head was before it began it cannot know, so
        what the first step passes is counted here; from then on the events are right."""
        event = clipped(event, self.begun_at)
        if self.is_counted or not isinstance(event, LeaseEvent | TrimEvent):
            return event
        head = event.head if isinstance(event, LeaseEvent) else event.start
        if head <= self.cursor.head:
            return event
        self.is_counted = True
        passed = len(self.log.messages(self.cursor.head, head))
        return msgspec.structs.replace(event, passed=passed)

    def checkpoint(self, *, now_ms: int) -> Checkpoint:
        snapshot = self.cursor.snapshot(now_ms=now_ms)
        return Checkpoint(self.offset, snapshot, self.begun_at, self.bookmarks.offsets())

    def finish(self, *, now_ms: int, wall_ms: int, is_fifo: bool) -> DedupTable:
        """For a leader: everything there is, and what events do not say from the records."""
        self.advance(self.log.end, now_ms=now_ms)
        records = [self.log[offset].record(offset) for offset in self.cursor.unhydrated()]
        self.cursor.hydrate(records, now_ms=now_ms, wall_ms=wall_ms)
        dedup = DedupTable()
        if is_fifo:
            _remember_recent(self.log, dedup, wall_ms)
        return dedup


def _remember_recent(log: SimLog, dedup: DedupTable, wall_ms: int) -> None:
    for offset, entry in enumerate(log.entries, log.start):
        if entry.kind == BOOKMARK_TYPE:
            continue
        if entry.kind != MESSAGE:
            event = entry.event
            if isinstance(event, TrimEvent):
                dedup.forget_below(event.start)
        elif entry.appended_at_ms + DEDUP_WINDOW_MS > wall_ms:
            message = entry.record(offset).message
            key = dedup_key(message, DedupScope.QUEUE)
            if key is not None:
                dedup.remember(key, offset, message.message_id, entry.appended_at_ms)
