"""The base class of ``Log``. It holds the segments, reads batches, finds timestamps and epochs, and
writes checkpoints and the low watermark. Recent batches are in memory; older batches are read from
disk and verified. ``log/log.py`` adds appends, syncs and removal."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.log.batch_cache import BatchCache
from penstock.log.storage.batch_buffers import BatchBuffers, buffers_of, read_buffers
from penstock.log.storage.checkpoint import (
    Damage,
    DamagedRange,
    merge_damage,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
    write_low_watermark,
)
from penstock.log.storage.files import EPOCHS_CHECKPOINT, Disk, is_full
from penstock.log.storage.headers import Epochs, epochs_of
from penstock.log.storage.segment import NO_EPOCH, Segment, SegmentInfo
from penstock.model.errors import DiskFull, OffsetOutOfRange

OPEN_SEGMENTS_MAX = 4  # closed segments whose four files stay open for readers


class Segments:
    """The segments of a log in order. The last one is active, and its files stay open. Of the
    others, only segments that were read recently or are not synced yet have open files."""

    def __init__(self, segments: list[Segment]) -> None:
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        # Least recently used first, without the active segment.
        self._open: OrderedDict[int, Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def last(self) -> Segment:
        return self._all[-1]

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.bytes for segment in self._all)

    @property
    def max_timestamp(self) -> int:
        return max(segment.max_timestamp for segment in self._all)

    def holding(self, offset: int) -> Segment:
        """Return the segment that holds an offset, or the active segment for the log's end."""
        return self._all[bisect_right(self._bases, offset) - 1]

    def since(self, offset: int) -> Sequence[Segment]:
        return self._all[max(0, bisect_right(self._bases, offset) - 1) :]

    def add(self, segment: Segment) -> None:
        self._all.append(segment)
        self._bases.append(segment.base_offset)

    def touch(self, segment: Segment, dirty: Container[int]) -> None:
        """Note that a segment was read. If too many segments have open files, close some."""
        if segment is self._all[-1]:
            return
        self._open[segment.base_offset] = segment
        self._open.move_to_end(segment.base_offset)
        if len(self._open) <= OPEN_SEGMENTS_MAX:
            return
        for base_offset, candidate in list(self._open.items()):
            if len(self._open) <= OPEN_SEGMENTS_MAX:
                break
            if base_offset not in dirty:
                del self._open[base_offset]
                candidate.close()

    def take_before(self, offset: int) -> list[Segment]:
        count = 0
        while count < len(self._all) - 1 and self._all[count].end_offset <= offset:
            count += 1
        return self._take(0, count)

    def take_after(self, segment: Segment) -> list[Segment]:
        first = bisect_right(self._bases, segment.base_offset)
        taken = self._take(first, len(self._all))
        self._open.pop(segment.base_offset, None)
        return taken

    def take_all(self, successor: Segment) -> list[Segment]:
        taken = self._take(0, len(self._all))
        self.add(successor)
        return taken

    def between(self, base_offset: int, end_offset: int) -> list[Segment]:
        """Return the segments that cover exactly this range of offsets, or an empty list."""
        first = bisect_left(self._bases, base_offset)
        after = bisect_left(self._bases, end_offset)
        found = self._all[first:after]
        if not found or found[0].base_offset != base_offset or found[-1].end_offset != end_offset:
            return []
        return found

    def close_files(self, segment: Segment) -> None:
        self._open.pop(segment.base_offset, None)
        segment.close()

    def replace(self, old: Sequence[Segment], made: Segment) -> None:
        first = bisect_left(self._bases, made.base_offset)
        after = first + len(old)
        assert list(old) == self._all[first:after], "the segments must be neighbours"
        assert after < len(self._all), "the active segment cannot be replaced"
        self._all[first:after] = [made]
        self._bases[first:after] = [made.base_offset]

    def _take(self, first: int, after: int) -> list[Segment]:
        taken = self._all[first:after]
        del self._all[first:after]
        del self._bases[first:after]
        for segment in taken:
            self.close_files(segment)
        return taken


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
        self.damage = list(damage)
        self.stored_low_watermark = 0  # value of the file; 0: there is no file

    @property
    def start_offset(self) -> int:
        return self._segments.start_offset

    @property
    def low_watermark(self) -> int:
        return max(self.stored_low_watermark, self._segments.start_offset)

    @property
    def last_epoch(self) -> int:
        return self._segments.last.last_epoch

    def note_damage(self, found: Sequence[Damage]) -> None:
        self.damage = merge_damage(self.damage, list(found))

    def segments(self) -> Sequence[SegmentInfo]:
        return [segment.info for segment in self._segments]

    def read(self, start: int, *, bytes_max: int, up_to: int | None = None) -> list[bytes]:
        """Return whole batches from offset ``start`` on. The first may exceed ``bytes_max``."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return []
        if self._cache.holds(start):
            return self._cache.read(start, bytes_max=bytes_max, up_to=end)
        segment = self._segments.holding(start)
        try:
            return segment.read(start, bytes_max=bytes_max, up_to=end)
        except DamagedRange as damaged:
            self.damage = merge_damage(self.damage, [damaged.damage])
            raise
        finally:
            self._segments.touch(segment, self._dirty)

    def read_buffers(
        self, start: int, *, bytes_max: int, up_to: int | None = None, as_slice: bool = False
    ) -> BatchBuffers:
        """Read batches like ``read``, but as a few buffers with many batches each. Empty batches
        are skipped. With ``as_slice``, a buffer may be a slice of the file."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return BatchBuffers((), start, 0)
        if self._cache.holds(start):
            batches = self._cache.read(start, bytes_max=bytes_max, up_to=end)
            return buffers_of(batches, start)
        segment = self._segments.holding(start)
        try:
            found = read_buffers(segment, start, bytes_max=bytes_max, up_to=end, as_slice=as_slice)
            if found is None:
                batches = segment.read(start, bytes_max=bytes_max, up_to=end)
                found = buffers_of(batches, start)
            return found
        except DamagedRange as damaged:
            self.damage = merge_damage(self.damage, [damaged.damage])
            raise
        finally:
            self._segments.touch(segment, self._dirty)

    def expire_recent(self) -> None:
        for segment in self._segments:
            if segment.recent:
                segment.recent.age()

    def _end_of_read(self, start: int, up_to: int | None) -> int:
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(start, self.start_offset, self.end_offset)
        return self.end_offset if up_to is None else min(up_to, self.end_offset)

    def find_time(self, timestamp_ms: int) -> int:
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                try:
                    return segment.find_time(timestamp_ms)
                finally:
                    self._segments.touch(segment, self._dirty)
        return self.end_offset

    def epochs(self, start: int) -> Epochs:
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

    def write_checkpoint(self, name: str, data: bytes) -> None:
        write_checkpoint(self.folder, name, data, self.disk)

    def read_checkpoint(self, name: str) -> bytes | None:
        return read_checkpoint(self.folder, name, self.disk)

    def remove_checkpoint(self, name: str) -> None:
        remove_checkpoint(self.folder, name, self.disk)

    def store_low_watermark(self, offset: int) -> None:
        try:
            write_low_watermark(self.folder, offset, self.disk)
        except OSError as error:
            if not is_full(error):
                raise
            raise DiskFull("the disk is full: the low watermark was not stored") from None
        self.stored_low_watermark = offset

    def lower_low_watermark(self) -> None:
        """Lower the low watermark to at most the log's end, or it would hide new records."""
        if self.stored_low_watermark > self.end_offset:
            self.store_low_watermark(self.end_offset)

    def drop_batch_cache(self) -> None:
        self._cache.clear()


# A checkpoint of the epochs. ``Log.truncate`` and ``Log.restart`` remove it. A crash may cut off
# the end of a log too. No leader continues an earlier leader's epoch, so the checkpoint is valid
# if the batch before its end offset has the last epoch of the checkpoint.
CHECKPOINT_VERSION = 1


class Saved(msgspec.Struct, array_like=True, frozen=True):
    version: int
    offset: int
    entries: list[tuple[int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Saved).decode


def write_epochs(log: ReadableLog, entries: Sequence[tuple[int, int]], offset: int) -> None:
    saved = Saved(CHECKPOINT_VERSION, offset, [entry for entry in entries if entry[1] < offset])
    log.write_checkpoint(EPOCHS_CHECKPOINT, _encode(saved))


def read_epochs(log: ReadableLog) -> Epochs:
    """Return all epochs of the log, each with its first offset."""
    start, end = log.start_offset, log.end_offset
    if start == end:
        return []
    saved = _read_saved(log)
    if saved is not None and start < saved.offset <= end and saved.entries[0][1] <= start:
        last = saved.entries[-1][0], saved.offset - 1
        since = log.epochs(saved.offset - 1)
        if since and since[0] == last:
            found = [(epoch, max(offset, start)) for epoch, offset in saved.entries]
            while len(found) > 1 and found[1][1] == start:
                del found[0]  # the epoch that holds ``start`` begins there
            return found + since[1:]
    return log.epochs(start)


def _read_saved(log: ReadableLog) -> Saved | None:
    try:
        saved = _decode(log.read_checkpoint(EPOCHS_CHECKPOINT) or b"")
    except msgspec.MsgspecError:
        return None
    entries = [*saved.entries, (2**63, saved.offset)]
    is_growing = all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(entries))
    is_good = saved.version == CHECKPOINT_VERSION and saved.entries and is_growing
    return saved if is_good else None
