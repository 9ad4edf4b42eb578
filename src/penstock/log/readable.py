"""The half of a log that changes no batches: reading batches, finding timestamps and epochs.

Recent batches are in memory; older ones are read from disk and verified. Checkpoints and the low
watermark are here too: they are separate files that do not affect segments. ``log/log.py`` has the
other half: appends, syncs and removal.
"""

from collections.abc import Sequence
from pathlib import Path

from penstock.log.batch_cache import BatchCache
from penstock.log.segments import Segments
from penstock.log.storage.batch_buffers import BatchBuffers, buffers_of
from penstock.log.storage.checkpoint import (
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
    write_low_watermark,
)
from penstock.log.storage.damage import Damage, DamagedRange, merge_damage
from penstock.log.storage.files import Disk, is_full
from penstock.log.storage.headers import Epochs, epochs_of
from penstock.log.storage.segment import NO_EPOCH, Segment, SegmentInfo
from penstock.model.errors import DiskFull, OffsetOutOfRange


class ReadableLog:
    def __init__(
        self,
        folder: Path,
        segments: list[Segment],
        damage: Sequence[Damage],
        cache: BatchCache,
        disk: Disk,
    ) -> None:
        self.folder = folder
        self.disk = disk
        self.end_offset = segments[-1].end_offset
        self._segments = Segments(segments)
        self._dirty: dict[int, Segment] = {}  # appended to since the last sync, by base offset
        self._cache = cache
        self._damage = list(damage)
        self.stored_low_watermark = 0  # value of the file; 0: there is no file

    # ── State ────────────────────────────────────────────────────────────────────────────────

    @property
    def start_offset(self) -> int:
        return self._segments.start_offset

    @property
    def low_watermark(self) -> int:
        """The first offset that readers may see: the stored one, but at least the log's start."""
        return max(self.stored_low_watermark, self._segments.start_offset)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch; −1 if there has been none."""
        return self._segments.last.last_epoch

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def damage(self) -> Sequence[Damage]:
        """Damage found at opening and since."""
        return self._damage

    def note_damage(self, found: Sequence[Damage]) -> None:
        """Add damage that another reader of the files found."""
        self._damage = merge_damage(self._damage, list(found))

    def segments(self) -> Sequence[SegmentInfo]:
        return [segment.info for segment in self._segments]

    # ── Read ─────────────────────────────────────────────────────────────────────────────────

    def read(self, start: int, *, bytes_max: int, up_to: int | None = None) -> list[bytes]:
        """Return whole batches from the one that holds ``start`` on, up to ``up_to`` or the
        segment's end; at least one, however large, if there is any."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return []
        if self._cache.holds(start):
            return self._cache.read(start, bytes_max=bytes_max, up_to=end)
        segment = self._segments.holding(start)
        try:
            return segment.read(start, bytes_max=bytes_max, up_to=end)
        except DamagedRange as damaged:
            self._damage = merge_damage(self._damage, [damaged.damage])
            raise
        finally:
            self._segments.touch(segment, self._dirty)

    def read_buffers(
        self,
        start: int,
        *,
        bytes_max: int,
        up_to: int | None = None,
        as_slice: bool = False,
        with_empty: bool = False,
    ) -> BatchBuffers:
        """Like ``read``, for callers that forward the bytes: return a few buffers of many batches
        each, without empty batches, and at most the bound of ``batch_buffers.py``, which also
        describes the verification. ``as_slice``: a slice of the file may be returned instead.
        ``with_empty``: include empty batches, as replicas need."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return BatchBuffers((), start, 0)
        if self._cache.holds(start):
            batches = self._cache.read(start, bytes_max=bytes_max, up_to=end)
            return buffers_of(batches, start, with_empty=with_empty)
        segment = self._segments.holding(start)
        try:
            return segment.read_buffers(
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

    def expire_recent(self) -> None:
        """Drop the marks that existed at the last call. To be called periodically."""
        for segment in self._segments:
            if segment.recent:
                segment.recent.age()

    def _end_of_read(self, start: int, up_to: int | None) -> int:
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(start, self.start_offset, self.end_offset)
        return self.end_offset if up_to is None else min(up_to, self.end_offset)

    def find_time(self, timestamp_ms: int) -> int:
        """Return the first offset whose batch reaches the timestamp, or the end offset."""
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                try:
                    return segment.find_time(timestamp_ms)
                finally:
                    self._segments.touch(segment, self._dirty)
        return self.end_offset

    def epochs(self, start: int) -> Epochs:
        """Return the epochs from an offset to the end, each with its first offset there, from the
        headers of a few batches. May be incomplete if the log is damaged."""
        found: Epochs = []
        for segment in self._segments.since(start):
            last_epoch = found[-1][0] if found else NO_EPOCH
            if not segment.bytes or segment.last_epoch == last_epoch:
                continue  # epochs never decrease
            for epoch, offset in epochs_of(segment, max(start, segment.base_offset)):
                if found and offset <= start:
                    found.pop()
                if not found or epoch > found[-1][0]:
                    found.append((epoch, max(offset, start)))
            self._segments.touch(segment, self._dirty)
        return found

    # ── Checkpoints, low watermark, memory ───────────────────────────────────────────────────

    def write_checkpoint(self, name: str, data: bytes) -> None:
        """Write a checkpoint, durably. Safe in a thread, one at a time per name."""
        write_checkpoint(self.folder, name, data, self.disk)

    def read_checkpoint(self, name: str) -> bytes | None:
        return read_checkpoint(self.folder, name, self.disk)

    def remove_checkpoint(self, name: str) -> None:
        """Remove a checkpoint, durably. Safe in a thread, one at a time per name."""
        remove_checkpoint(self.folder, name, self.disk)

    def store_low_watermark(self, offset: int) -> None:
        """Write the low watermark, durably. Safe in a thread, one at a time."""
        try:
            write_low_watermark(self.folder, offset, self.disk)
        except OSError as error:
            if not is_full(error):
                raise
            raise DiskFull("no space left to store the low watermark") from None
        self.stored_low_watermark = offset

    def lower_low_watermark(self) -> None:
        """Lower the low watermark to at most the log's end: new records must not be hidden."""
        if self.stored_low_watermark > self.end_offset:
            self.store_low_watermark(self.end_offset)

    def drop_batch_cache(self) -> None:
        """Free the memory of recent batches. Call this on the thread that appends: the budget is
        shared with other logs, and ``close`` may run on any thread."""
        self._cache.clear()
