"""Positions of batches in recently written bytes.

Recent bytes are served as slices of the file, unread: they were valid when they arrived, and
reading them now would read the page cache, not the disk. One position per POSITION_BYTES is
enough: a reader that starts at one continues from position to position, any other reader reaches
one with its first read. The log's owner calls ``age`` periodically; positions that have expired are
dropped, and their bytes are then verified like all others (``log/storage/batch_buffers.py``).
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from penstock.model.limits import KIB

# Bytes from one position to the next: a quarter of what most clients request at once. A position
# takes 24 bytes of memory.
POSITION_BYTES = 256 * KIB


class RecentSlice(NamedTuple):
    position: int
    size: int
    next_offset: int
    record_count: int


class RecentPositions:
    """The recent positions of one segment."""

    __slots__ = ("_offsets", "_old_count", "_positions", "_records", "due_at", "records")

    def __init__(self) -> None:
        self.due_at = 0  # position from which on the next batch gets a position
        self.records = 0  # records appended by this process, without those of control batches
        self.clear()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int) -> None:
        """Note a batch that begins here; ``records`` does not count it yet."""
        self._offsets.append(offset)
        self._positions.append(position)
        self._records.append(self.records)
        self.due_at = position + POSITION_BYTES

    def clear(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._records = array("q")
        self._old_count = 0
        self.due_at = 0

    def age(self) -> None:
        """Drop the positions that existed at the last call."""
        if self._old_count == len(self._offsets):
            self.clear()
            return
        for each in (self._offsets, self._positions, self._records):
            del each[: self._old_count]
        self._old_count = len(self._offsets)

    def find(
        self, start: int, *, bytes_max: int, up_to: int, end_offset: int, end_position: int
    ) -> RecentSlice | None:
        """Return the longest slice from the position at ``start`` to another, or to the segment's
        end, at most ``bytes_max`` and ``up_to``. None if there is none."""
        offsets, positions = self._offsets, self._positions
        first = bisect_left(offsets, start)
        if first == len(offsets) or offsets[first] != start:
            return None
        position = positions[first]
        if end_offset <= up_to and end_position - position <= bytes_max:
            size = end_position - position
            return RecentSlice(position, size, end_offset, self.records - self._records[first])
        last = min(bisect_right(positions, position + bytes_max), bisect_right(offsets, up_to)) - 1
        if last <= first:
            return None
        count = self._records[last] - self._records[first]
        return RecentSlice(position, positions[last] - position, offsets[last], count)

    def next_after(self, start: int) -> int | None:
        at = bisect_right(self._offsets, start)
        return self._offsets[at] if at < len(self._offsets) else None
