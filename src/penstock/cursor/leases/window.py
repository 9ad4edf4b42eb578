"""The records that a lease cursor has read ahead, and what one receive chooses from them."""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

import msgspec

from penstock.cursor.leases.events import LeaseDetail
from penstock.cursor.leases.fold import LeaseState
from penstock.model.limits import DEFERRED_MAX, WINDOW_BYTES_MAX, WINDOW_RECORDS_MAX
from penstock.model.message import Record


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


class LeaseWindow(LeaseState):
    def __init__(self) -> None:
        super().__init__()
        self._window: deque[Record] = deque()  # read ahead of the head, decoded
        self._window_bytes = 0
        self._scan_from = 0
        self._is_dry = False  # the last feed added nothing: the next lease must not request another
        self._queue_delay_ms = 0  # of the last lease; FIFO only

    @property
    def head(self) -> int:
        return self._head

    @property
    def scan_from(self) -> int:
        """Offset from which to read the next records for ``feed``."""
        return self._scan_from

    @property
    def wants_feed(self) -> bool:
        """Whether the log has more to read ahead and the window has room."""
        return (
            self._backlog > len(self._window)
            and len(self._window) < WINDOW_RECORDS_MAX
            and self._window_bytes < WINDOW_BYTES_MAX
        )

    def _lacks(self, count: int, is_dry: bool) -> bool:
        """Return whether the window has fewer than ``count`` records although the log has more."""
        return (
            len(self._window) < count
            and not is_dry
            and self._backlog > len(self._window)
            and self._window_bytes < WINDOW_BYTES_MAX
        )

    def feed(
        self, records: Sequence[Record], next_offset: int, *, now_ms: int, wall_ms: int
    ) -> None:
        """Add records read from ``scan_from`` on to the window; ``next_offset`` follows them. Adds
        as many as fit: ``scan_from`` is then the first one left out. After a feed that adds
        nothing, the next lease uses the records that there are."""
        self._is_dry = True
        for record in records:
            if record.offset < self._scan_from:
                continue
            is_full = len(self._window) >= WINDOW_RECORDS_MAX
            if self._window and (is_full or self._window_bytes >= WINDOW_BYTES_MAX):
                self._scan_from = record.offset
                return
            self._is_dry = False
            self._window.append(record)
            self._window_bytes += size_of(record)
            self._scan_from = record.offset + 1
            self._on_fed(record, now_ms, wall_ms)
        self._scan_from = max(self._scan_from, next_offset)

    @abstractmethod
    def _on_fed(self, record: Record, now_ms: int, wall_ms: int) -> None:
        """Called when a record was added to the window."""

    def _on_head(self) -> None:
        window = self._window
        while window and window[0].offset < self._head:
            record = window.popleft()
            self._window_bytes -= size_of(record)
            self._on_dropped(record)
        if self._scan_from < self._head:
            self._scan_from = self._head

    def _on_restart(self) -> None:
        for record in self._window:
            self._on_dropped(record)
        self._window.clear()
        self._window_bytes = 0
        self._scan_from = 0

    @property
    def _may_skip(self) -> bool:
        """Whether memory allows to skip another record."""
        return len(self._table) - self._in_flight < DEFERRED_MAX

    def _pass(self, record: Record, selection: Selection) -> None:
        """Move the first record of the window out, as the head passes it."""
        self._window.popleft()
        self._window_bytes -= size_of(record)
        selection.passed += 1
        if self._delays:
            key = self._delays.key_of(record)
            if key in self._delays:
                selection.due_keys.append(key)

    @abstractmethod
    def _on_dropped(self, record: Record) -> None:
        """Called when a record has left the window without becoming an entry."""


def size_of(record: Record) -> int:
    """Return the approximate bytes that a record in the window takes in memory."""
    message = record.message
    size = len(message.body)
    if message.attributes is not None:
        size += sum([len(a.value) for a in message.attributes.values()])
    return size
