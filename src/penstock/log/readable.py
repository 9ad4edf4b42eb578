"""The half of a log that changes no batches: reading them, finding times and epochs.

Recent batches are in memory; older ones are read from disk and verified. Snapshots of an owner's
state and the low watermark are kept here too: they lie beside the segments and touch none of them.
``log/log.py`` has the other half: appends, syncs and what goes away.
"""

import errno
from collections.abc import Sequence
from pathlib import Path

from penstock.log.checkpoint import (
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
    write_low_watermark,
)
from penstock.log.damage import Damage, DamagedRange, merge_damage
from penstock.log.files import Disk
from penstock.log.headers import Epochs, epochs_of
from penstock.log.segment import NO_EPOCH, Segment, SegmentInfo
from penstock.log.segments import Segments
from penstock.log.stretch import Stretch, stretch_of
from penstock.log.tail import Tail
from penstock.model.errors import DiskFull, OffsetOutOfRange


class ReadableLog:
    def __init__(
        self,
        folder: Path,
        segments: list[Segment],
        damage: Sequence[Damage],
        tail: Tail,
        disk: Disk,
    ) -> None:
        self.folder = folder
        self.disk = disk
        self.end_offset = segments[-1].end_offset
        self._segments = Segments(segments)
        self._dirty: dict[int, Segment] = {}  # appended to since the last sync, by base offset
        self._tail = tail
        self._damage = list(damage)
        self.stored_low_watermark = 0  # as the file says; 0: there is none

    # ── What it holds ────────────────────────────────────────────────────────────────────────

    @property
    def start_offset(self) -> int:
        return self._segments.start_offset

    @property
    def low_watermark(self) -> int:
        """The first offset that readers may see: of the file or the first segment, the larger."""
        return max(self.stored_low_watermark, self._segments.start_offset)

    @property
    def last_epoch(self) -> int:
        """Of the last batch; −1 when there has been none."""
        return self._segments.last.last_epoch

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def damage(self) -> Sequence[Damage]:
        """Found at opening and since."""
        return self._damage

    def note_damage(self, found: Sequence[Damage]) -> None:
        """Found by somebody else who has read the files."""
        self._damage = merge_damage(self._damage, list(found))

    def segments(self) -> Sequence[SegmentInfo]:
        return [segment.info for segment in self._segments]

    # ── Read ─────────────────────────────────────────────────────────────────────────────────

    def read(self, start: int, *, bytes_max: int, up_to: int | None = None) -> list[bytes]:
        """Whole batches from the one that holds ``start``, none that reaches to ``up_to`` or
        beyond; at least one, however large, if there is any. A read ends with its segment."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return []
        if self._tail.holds(start):
            return self._tail.read(start, bytes_max=bytes_max, up_to=end)
        segment = self._segments.holding(start)
        try:
            return segment.read(start, bytes_max=bytes_max, up_to=end)
        except DamagedRange as damaged:
            self._damage = merge_damage(self._damage, [damaged.damage])
            raise
        finally:
            self._segments.touch(segment, self._dirty)

    def read_stretch(
        self,
        start: int,
        *,
        bytes_max: int,
        up_to: int | None = None,
        as_slice: bool = False,
        with_empty: bool = False,
    ) -> Stretch:
        """As ``read``, for those who hand on what they get: a few buffers of many batches each,
        without those that hold nothing, and not more than is good for others (``log/stretch.py``
        has the bound, and says what is verified when). ``as_slice``: or a piece of the file.
        ``with_empty``: with those that hold nothing, as a replica needs them."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return Stretch((), start, 0)
        if self._tail.holds(start):
            batches = self._tail.read(start, bytes_max=bytes_max, up_to=end)
            return stretch_of(batches, start, with_empty=with_empty)
        segment = self._segments.holding(start)
        try:
            return segment.read_stretch(
                start,
                bytes_max=bytes_max,
                up_to=end,
                as_slice=as_slice,
                with_empty=with_empty,
            )
        except DamagedRange as damaged:
            self._damage = merge_damage(self._damage, [damaged.damage])
            raise
        finally:
            self._segments.touch(segment, self._dirty)

    def age_marks(self) -> None:
        """To be called now and then: what was written before the last time is new no more."""
        for segment in self._segments:
            if segment.marks:
                segment.marks.age()

    def _end_of_read(self, start: int, up_to: int | None) -> int:
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(start, self.start_offset, self.end_offset)
        return self.end_offset if up_to is None else min(up_to, self.end_offset)

    def find_time(self, timestamp_ms: int) -> int:
        """The first offset whose batch reaches the timestamp; the end when none does."""
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                try:
                    return segment.find_time(timestamp_ms)
                finally:
                    self._segments.touch(segment, self._dirty)
        return self.end_offset

    def epochs(self, start: int) -> Epochs:
        """The epochs from an offset to the end, each with the first offset of it there, by the
        headers of a few batches. On a log with damage perhaps not all of them."""
        found: Epochs = []
        for segment in self._segments.since(start):
            last_epoch = found[-1][0] if found else NO_EPOCH
            if not segment.bytes or segment.last_epoch == last_epoch:
                continue  # they never go back
            for epoch, offset in epochs_of(segment, max(start, segment.base_offset)):
                if found and offset <= start:
                    found.pop()
                if not found or epoch > found[-1][0]:
                    found.append((epoch, max(offset, start)))
            self._segments.touch(segment, self._dirty)
        return found

    # ── Checkpoints, memory ──────────────────────────────────────────────────────────────────

    def write_checkpoint(self, name: str, data: bytes) -> None:
        """Durable when it returns; safe in a thread, one at a time per name."""
        write_checkpoint(self.folder, name, data, self.disk)

    def read_checkpoint(self, name: str) -> bytes | None:
        return read_checkpoint(self.folder, name, self.disk)

    def remove_checkpoint(self, name: str) -> None:
        """Durable when it returns; as ``write_checkpoint``."""
        remove_checkpoint(self.folder, name, self.disk)

    def store_low_watermark(self, offset: int) -> None:
        """Durable when it returns; safe in a thread, one at a time."""
        try:
            write_low_watermark(self.folder, offset, self.disk)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull("no space left to store the low watermark") from None
        self.stored_low_watermark = offset

    def lower_low_watermark(self) -> None:
        """To the end of the log, if it is above: what is written next must not be hidden."""
        if self.stored_low_watermark > self.end_offset:
            self.store_low_watermark(self.end_offset)

    def drop_tail(self) -> None:
        """Give back the memory of recent batches. On the thread that appends: the budget is shared
        with other logs, and ``close`` may run on any."""
        self._tail.clear()
