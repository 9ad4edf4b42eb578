"""Positions of batches in recently written bytes of a segment. The bytes between two positions are
sent without being read, because they were verified on arrival. Positions expire (``age``);
afterwards, their bytes are verified like all others."""

from array import array
from bisect import bisect_left, bisect_right

from penstock.model.limits import KIB

# Bytes between two ``RecentPositions``: a quarter of what most clients request at once.
POSITION_BYTES = 256 * KIB


class RecentPositions:
    __slots__ = ("_offsets", "_old_count", "_positions", "_records", "due_at", "records")

    def __init__(self) -> None:
        self.due_at = 0  # the first batch from this position on is added
        self.records = 0  # records appended by this process, without control records
        self.clear()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int) -> None:
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
        """Drop the positions that already existed at the previous call."""
        if self._old_count == len(self._offsets):
            self.clear()
            return
        for each in (self._offsets, self._positions, self._records):
            del each[: self._old_count]
        self._old_count = len(self._offsets)

    def find(
        self, start: int, *, bytes_max: int, up_to: int, end_offset: int, end_position: int
    ) -> tuple[int, int, int, int] | None:
        """Return position, size, next offset and record count of the longest slice that begins at
        offset ``start``, or None if no position is known for ``start``."""
        offsets, positions = self._offsets, self._positions
        first = bisect_left(offsets, start)
        if first == len(offsets) or offsets[first] != start:
            return None
        position = positions[first]
        if end_offset <= up_to and end_position - position <= bytes_max:
            size = end_position - position
            return position, size, end_offset, self.records - self._records[first]
        last = min(bisect_right(positions, position + bytes_max), bisect_right(offsets, up_to)) - 1
        if last <= first:
            return None
        count = self._records[last] - self._records[first]
        return position, positions[last] - position, offsets[last], count

    def next_after(self, start: int) -> int | None:
        at = bisect_right(self._offsets, start)
        return self._offsets[at] if at < len(self._offsets) else None
