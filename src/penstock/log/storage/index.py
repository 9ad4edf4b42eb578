"""The two sparse indexes of a segment, one entry per INDEX_INTERVAL_BYTES of batches.

    .index   ┌─────────────────┬──────────┬───────────────┬───────┐
             │ relative offset │ position │ batch ordinal │ crc   │     big-endian, 16 bytes
             │ u32             │ u32      │ u32           │ u32   │
             └─────────────────┴──────────┴───────────────┴───────┘
    .time    ┌───────────────────────────────┬─────────────────┬───────┐
             │ highest timestamp so far, i64 │ relative offset │ crc   │     16 bytes
             │                               │ u32             │ u32   │
             └───────────────────────────────┴─────────────────┴───────┘

Entry n of both files describes the same batch. The first batch of a segment has an entry; when the
segment is closed, its last batch gets one too. The ordinal is the batch's entry number in
``.check``. Look-ups bisect in the file: a read from disk costs far more than the dozen small
preads, and no index has to be in memory.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from penstock.log.storage.entries import EntryFile
from penstock.log.storage.files import Disk

OFFSET_FIELDS = "III"
TIME_FIELDS = "qI"
ENTRY_BYTES = 16
assert struct.calcsize(">I" + OFFSET_FIELDS) == ENTRY_BYTES
assert struct.calcsize(">I" + TIME_FIELDS) == ENTRY_BYTES

RELATIVE_MAX = 2**32 - 1  # the maximum of a relative offset or a position


class BatchStart(NamedTuple):
    """A batch's start: base offset relative to the segment's, byte position, number."""

    relative: int
    position: int
    ordinal: int


START = BatchStart(0, 0, 0)


class SegmentIndex:
    __slots__ = ("_interval_bytes", "_last_position", "offsets", "times")

    def __init__(
        self, offsets: tuple[Path, int], times: tuple[Path, int], *, interval_bytes: int, disk: Disk
    ) -> None:
        self.offsets = EntryFile(*offsets, OFFSET_FIELDS, disk=disk)
        self.times = EntryFile(*times, TIME_FIELDS, disk=disk)
        self._interval_bytes = interval_bytes
        last = self.offsets.read(self.offsets.count - 1)
        self._last_position = -interval_bytes if last is None else last[1]

    @property
    def count(self) -> int:
        return self.offsets.count

    def note(self, place: BatchStart, *, timestamp_max: int) -> None:
        """Add an entry if the interval since the last one is reached. Called for every append."""
        if place.position - self._last_position >= self._interval_bytes:
            self.add(place, timestamp_max=timestamp_max)

    def add(self, place: BatchStart, *, timestamp_max: int) -> None:
        self.offsets.append(*place)
        self.times.append(timestamp_max, place.relative)
        self._last_position = place.position

    def seal(self, place: BatchStart, *, timestamp_max: int) -> None:
        """Index the segment's last batch, so that opening the segment needs one look-up."""
        if place.position != self._last_position:
            self.add(place, timestamp_max=timestamp_max)

    def find(self, relative: int) -> BatchStart | None:
        """Return the indexed batch at or before a relative offset; None: the index is damaged."""
        at = self.offsets.last_at_most(relative)
        if at is None:
            return None
        return START if at < 0 else self.place(at)

    def place(self, number: int) -> BatchStart | None:
        entry = self.offsets.read(number)
        return None if entry is None else BatchStart(*entry)

    def find_after(self, position: int) -> BatchStart | None:
        """Return the first indexed batch after a byte position, or None."""
        at = self.offsets.last_at_most(position, column=1)
        return None if at is None else self.place(at + 1)

    def find_time(self, timestamp_ms: int) -> int | None:
        """Return a relative offset before which all batches are older; None if damaged."""
        at = self.times.last_at_most(timestamp_ms - 1)
        if at is None:
            return None
        entry = (0, 0) if at < 0 else self.times.read(at)
        return None if entry is None else entry[1]

    def cut(self, count: int) -> None:
        self.offsets.cut(count)
        self.times.cut(count)
        last = self.offsets.read(count - 1)
        self._last_position = -self._interval_bytes if last is None else last[1]

    def flush(self) -> None:
        self.offsets.flush()
        self.times.flush()
