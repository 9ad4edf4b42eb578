"""One partition's log: append at the end, read from anywhere, sync by the group.

Synchronous and owned by one thread, the loop's. The one thing that happens elsewhere is
``SyncJob.run``: it works on descriptors of its own, so that appends, rolls and drops go on
meanwhile. Recent batches are kept in memory; older ones are read from disk and verified. The log
decides nothing: what an offset means, when to sync and what may be dropped is its owner's to say.

    append ──► active segment ──► begin_sync ──► SyncJob.run (a thread) ──► finish_sync
                    │ full or old                                            moves durable_offset
                    └► roll: a new file; the old one is read-only from here
"""

import errno
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.log.checkpoint import (
    RecoveryPoint,
    read_checkpoint,
    write_checkpoint,
    write_point,
)
from penstock.log.damage import Damage, DamagedRange, merge_damage, save_damage
from penstock.log.files import DISK, Disk
from penstock.log.layout import LOG_SUFFIX, SIDE_SUFFIXES, segment_path
from penstock.log.recovery import Recovery, RecoveryReport
from penstock.log.segment import Segment, SegmentInfo
from penstock.log.stretch import Stretch, stretch_of
from penstock.log.swap import move_in, remove_segments
from penstock.log.tail import Tail, TailBudget
from penstock.model.errors import DiskFull, PenstockError
from penstock.model.errors import OffsetOutOfRange as OffsetOutOfRange
from penstock.model.limits import (
    BATCH_BYTES_MAX,
    INDEX_INTERVAL_BYTES,
    SEGMENT_AGE_MS_MAX,
    SEGMENT_BYTES_MAX,
    TAIL_BYTES_MAX,
)
from penstock.record.batch import BatchHeader, parse_header

OPEN_SEGMENTS_MAX = 4  # closed segments whose files stay open for readers; four descriptors each


class AppendsRefused(PenstockError):
    """A write or sync failed earlier. What the disk holds is unknown until the log is reopened."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    segment_age_ms_max: int = SEGMENT_AGE_MS_MAX
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    tail_bytes_max: int = TAIL_BYTES_MAX
    tail_budget: TailBudget | None = None  # shared by all logs of a node; None: each its own


class SyncJob:
    """What was dirty at one moment. Made by ``Log.begin_sync``, run once, in any thread, then
    handed to ``Log.finish_sync`` before the next one is begun."""

    __slots__ = (
        "_disk",
        "_fds",
        "_folder",
        "_log",
        "_point",
        "end_offset",
        "is_point_owed",
        "sealed_offset",
    )

    def __init__(
        self,
        log: "Log",
        fds: list[int],
        *,
        folder: Path | None,
        point: RecoveryPoint | None,
        disk: Disk,
    ) -> None:
        self.end_offset = log.end_offset
        self._log = log
        self._fds = fds
        self._folder = folder
        self._point = point
        self._disk = disk
        self.sealed_offset = 0 if point is None else point.offset
        self.is_point_owed = False  # the disk was too full to write it: the next sync will

    def run(self) -> None:
        """Returns when it is all on disk. An error is final: after a failed sync the kernel may
        call lost pages clean, so asking again would get a false yes."""
        try:
            for fd in self._fds:
                self._disk.sync_data(fd)
            if self._folder is not None:
                self._disk.sync_folder(self._folder)
        except OSError as error:
            self._log.refuse_appends(f"sync failed: {error}")
            raise
        finally:
            self._close_fds()
        if self._point is not None:
            self._write_point(self._point)

    def _write_point(self, point: RecoveryPoint) -> None:
        try:
            write_point(self._log.folder, point, self._disk)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._log.refuse_appends(f"writing the recovery point failed: {error}")
                raise
            self.is_point_owed = True

    def _close_fds(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            self._disk.close(fd)


class Detached:
    """Segments that a log has let go of, oldest first. Not removed because of a crash, they are
    part of it again at the next opening, and what they hold is as finished as it was."""

    __slots__ = ("_disk", "freed_bytes", "paths")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.paths: list[Path] = []
        self.freed_bytes = 0

    def remove(self) -> int:
        """Returns the bytes freed. Safe in a thread."""
        for path in self.paths:
            self._disk.unlink(path)
        return self.freed_bytes


class Log:
    def __init__(self, folder: Path, config: LogConfig, *, now_ms: int, disk: Disk) -> None:
        """Use ``Log.open``."""
        recovery = Recovery(folder, interval_bytes=config.index_interval_bytes, disk=disk)
        self.folder = folder
        self.recovery: RecoveryReport = recovery.run()
        self.config = config
        self.disk = disk
        self._segments = recovery.segments
        self._active = self._segments[-1]
        self._bases = [segment.base_offset for segment in self._segments]
        # Open for readers, least recently used first; never the active or an unsynced one.
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._tail = Tail(config.tail_bytes_max, config.tail_budget)
        self._damage = list(self.recovery.damage)
        self._refused: str | None = None
        self._is_closed = False

        self.end_offset = self._active.end_offset
        self.durable_offset = self.end_offset
        # Segments below it are closed, synced and passed by the recovery point: nobody writes to
        # them any more, and no opening of the log will cut them.
        self.sealed_offset = recovery.sealed_offset
        self.size_bytes = sum(segment.bytes for segment in self._segments)
        self.last_timestamp_ms = max(segment.max_timestamp for segment in self._segments)
        first = self._active.first_timestamp
        # A producer's clock may be anywhere: it cannot make the segment older than the limit.
        self._active_since_ms = min(now_ms, max(first, now_ms - config.segment_age_ms_max))

        # What the next sync job has to cover:
        self._dirty: dict[int, Segment] = {}
        self._is_folder_dirty = not self._active.is_open  # it is made in the next line
        self._is_rolled = False
        self._job: SyncJob | None = None  # begun and not finished
        self._active.make_files()

    @classmethod
    def open(cls, folder: Path, config: LogConfig, *, now_ms: int, disk: Disk = DISK) -> "Log":
        """Create or recover. What had to be done to get here is in ``recovery``."""
        return cls(folder, config, now_ms=now_ms, disk=disk)

    # ── What it holds ────────────────────────────────────────────────────────────────────────

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def damage(self) -> Sequence[Damage]:
        """Found at opening and since."""
        return self._damage

    @property
    def refusal(self) -> str | None:
        """Why it takes no appends until it is opened again; None while it does."""
        return self._refused

    @property
    def has_unsynced_sealed(self) -> bool:
        """Whether segments are held open only because nobody has synced since the roll."""
        return self._is_rolled

    def segments(self) -> Sequence[SegmentInfo]:
        return [segment.info for segment in self._segments]

    # ── Append ───────────────────────────────────────────────────────────────────────────────

    def append(
        self, batch: bytes | memoryview, *, now_ms: int, header: BatchHeader | None = None
    ) -> int:
        """Returns the batch's first offset. ``header`` is the batch's own, for whoever has it at
        hand. DiskFull leaves the log as it was; any other failure of the disk propagates, and the
        log takes no more until it is opened again."""
        if self._refused is not None:
            raise AppendsRefused(self._refused)
        if header is None:
            header = parse_header(batch)
        size = len(batch)
        assert header.base_offset == self.end_offset, "appends are contiguous"
        assert header.total_bytes == size <= BATCH_BYTES_MAX, "one whole batch"
        active = self._active
        config = self.config
        if active.bytes and (
            not active.has_room(size, header.next_offset, bytes_max=config.segment_bytes_max)
            or now_ms - self._active_since_ms >= config.segment_age_ms_max
        ):
            self.roll(now_ms=now_ms)
            active = self._active
        elif not active.bytes:
            self._active_since_ms = now_ms
        try:
            active.append(batch, header)
        except OSError as error:
            self.refuse_appends(f"append failed: {error}")
            raise
        self._dirty[active.base_offset] = active
        self.end_offset = active.end_offset
        self.size_bytes += size
        if header.max_timestamp > self.last_timestamp_ms:
            self.last_timestamp_ms = header.max_timestamp
        if isinstance(batch, bytes):
            self._tail.append(header.base_offset, active.end_offset, batch)
        else:
            self._tail.clear()  # of borrowed memory nothing can be kept: read it from the file
        return header.base_offset

    def refuse_appends(self, reason: str) -> None:
        """Safe from any thread; the first reason stays."""
        if self._refused is None:
            self._refused = reason

    def roll(self, *, now_ms: int) -> None:
        """Close the active segment and start the next. Nothing happens to an empty one."""
        if self._active.bytes == 0:
            return
        segment = Segment(
            self.folder,
            self.end_offset,
            interval_bytes=self.config.index_interval_bytes,
            disk=self.disk,
        )
        try:
            self._active.seal()
            segment.make_files()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.refuse_appends(f"roll failed: {error}")
                raise
            raise DiskFull("no space left for a new segment") from None
        # Kept open until it is synced, its side files too.
        self._dirty[self._active.base_offset] = self._active
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        self._active_since_ms = now_ms
        self._is_folder_dirty = True
        self._is_rolled = True

    # ── Read ─────────────────────────────────────────────────────────────────────────────────

    def read(self, start: int, *, bytes_max: int, up_to: int | None = None) -> list[bytes]:
        """Whole batches from the one that holds ``start``, none that reaches to ``up_to`` or
        beyond; at least one, however large, if there is any. A read ends with its segment."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return []
        if self._tail.holds(start):
            return self._tail.read(start, bytes_max=bytes_max, up_to=end)
        segment = self._segments[bisect_right(self._bases, start) - 1]
        try:
            return segment.read(start, bytes_max=bytes_max, up_to=end)
        except DamagedRange as damaged:
            self._damage = merge_damage(self._damage, [damaged.damage])
            raise
        finally:
            self._touch(segment)

    def read_stretch(
        self, start: int, *, bytes_max: int, up_to: int | None = None, as_slice: bool = False
    ) -> Stretch:
        """As ``read``, for those who hand on what they get: a few buffers of many batches each,
        without those that hold nothing, and not more than is good for others (``log/stretch.py``
        has the bound, and says what is verified when). ``as_slice``: or a piece of the file."""
        end = self._end_of_read(start, up_to)
        if start >= end:
            return Stretch((), start, 0)
        if self._tail.holds(start):
            return stretch_of(self._tail.read(start, bytes_max=bytes_max, up_to=end), start)
        segment = self._segments[bisect_right(self._bases, start) - 1]
        try:
            return segment.read_stretch(start, bytes_max=bytes_max, up_to=end, as_slice=as_slice)
        except DamagedRange as damaged:
            self._damage = merge_damage(self._damage, [damaged.damage])
            raise
        finally:
            self._touch(segment)

    def age_marks(self) -> None:
        """To be called now and then: what was written before the last time is new no more."""
        for segment in self._segments:
            if segment.marks:
                segment.marks.age()

    def _end_of_read(self, start: int, up_to: int | None) -> int:
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(start, self.start_offset, self.end_offset)
        return self.end_offset if up_to is None else min(up_to, self.end_offset)

    def _touch(self, segment: Segment) -> None:
        """Bound how many closed segments are open."""
        if segment is self._active:
            return
        self._open[segment.base_offset] = segment
        self._open.move_to_end(segment.base_offset)
        if len(self._open) <= OPEN_SEGMENTS_MAX:
            return
        for base_offset, candidate in list(self._open.items()):
            if len(self._open) <= OPEN_SEGMENTS_MAX:
                break
            if base_offset not in self._dirty:
                del self._open[base_offset]
                candidate.close()

    def find_time(self, timestamp_ms: int) -> int:
        """The first offset whose batch reaches the timestamp; the end when none does."""
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                try:
                    return segment.find_time(timestamp_ms)
                finally:
                    self._touch(segment)
        return self.end_offset

    # ── Sync ─────────────────────────────────────────────────────────────────────────────────

    def begin_sync(self) -> SyncJob | None:
        """What is dirty now, as a job for a thread; None when nothing is. One at a time: the
        recovery point that a later job writes would vouch for what an earlier has not synced."""
        if self._refused is not None:
            raise AppendsRefused(self._refused)
        assert self._job is None, "the job before is finished first"
        if not self._dirty and not self._is_folder_dirty:
            return None
        # Header checks reach the page cache with the batches they belong to, so that they are
        # there after a crash of the process.
        self._active.files.flush()
        fds: list[int] = []
        dirty, self._dirty = self._dirty, {}
        for base_offset in sorted(dirty):
            segment = dirty[base_offset]
            files = segment.files
            chosen = (files.log_fd,) if segment is self._active else files.fds()
            fds += [self.disk.duplicate(fd) for fd in chosen]
            if segment is not self._active:
                self._touch(segment)
        point = RecoveryPoint(self._active.base_offset) if self._is_rolled else None
        folder = self.folder if self._is_folder_dirty else None
        self._is_folder_dirty = self._is_rolled = False
        self._job = SyncJob(self, fds, folder=folder, point=point, disk=self.disk)
        return self._job

    def finish_sync(self, job: SyncJob) -> None:
        """The job has run: what it covered is durable."""
        assert job is self._job, "the job that was begun"
        self._job = None
        if self._refused is not None:
            raise AppendsRefused(self._refused)
        self.durable_offset = max(self.durable_offset, job.end_offset)
        self._is_rolled = self._is_rolled or job.is_point_owed
        if not job.is_point_owed:
            self.sealed_offset = max(self.sealed_offset, job.sealed_offset)

    # ── Drop, checkpoints, close ─────────────────────────────────────────────────────────────

    def drop_before(self, offset: int) -> int:
        """Remove whole segments that end at or before ``offset``, never the active one. Returns
        the bytes freed."""
        return self.detach_before(offset).remove()

    def detach_before(self, offset: int) -> "Detached":
        """The same in two steps: the segments are no longer part of the log at once; unlinking
        large files takes a file system a while, so a thread may do that."""
        detached = Detached(self.disk)
        freed = count = 0
        for segment in self._segments[:-1]:
            if segment.end_offset > offset:
                break
            self._dirty.pop(segment.base_offset, None)
            self._open.pop(segment.base_offset, None)
            segment.close()
            # The batches go first: side files without them are swept up at the next opening.
            for suffix in (LOG_SUFFIX, *SIDE_SUFFIXES):
                detached.paths.append(segment_path(self.folder, segment.base_offset, suffix))
            freed += segment.bytes
            count += 1
        if count:
            gone = {segment.path.name for segment in self._segments[:count]}
            del self._segments[:count]
            del self._bases[:count]
            self._damage = [damage for damage in self._damage if damage.file not in gone]
            self.size_bytes -= freed
            self._is_folder_dirty = True
        detached.freed_bytes = freed
        return detached

    def replace_segments(self, made: Segment) -> int | None:
        """Let a rewritten stretch of the log, lying ready beside it (``log/swap.py``), take the
        place of the segments it was made from. Offsets stay what they are. Returns the bytes
        freed; None, and nothing happens, when some of those segments are gone by now."""
        assert not made.is_open, "its files move"
        first = bisect_left(self._bases, made.base_offset)
        after = bisect_left(self._bases, made.end_offset)
        old = self._segments[first:after]
        if self._is_closed or not old or old[0].base_offset != made.base_offset:
            return None
        assert old[-1].end_offset == made.end_offset <= self.sealed_offset, "whole, closed segments"
        for segment in old:
            self._dirty.pop(segment.base_offset, None)
            self._open.pop(segment.base_offset, None)
            segment.close()
        try:
            move_in(self.disk, self.folder, made.base_offset)
            remove_segments(self.disk, self.folder, self._bases[first + 1 : after])
        except OSError as error:
            # Opening the log again carries it to its end, from wherever it stands now.
            self.refuse_appends(f"replacing segments failed: {error}")
            raise
        made.folder = self.folder
        names = {segment.path.name for segment in old}
        self._damage = [damage for damage in self._damage if damage.file not in names]
        self._tail.drop_before(made.end_offset)
        self._segments[first:after] = [made]
        self._bases[first:after] = [made.base_offset]
        freed = sum(segment.bytes for segment in old) - made.bytes
        self.size_bytes -= freed
        return freed

    def write_checkpoint(self, name: str, data: bytes) -> None:
        """Durable when it returns; safe in a thread, one at a time per name."""
        write_checkpoint(self.folder, name, data, self.disk)

    def read_checkpoint(self, name: str) -> bytes | None:
        return read_checkpoint(self.folder, name, self.disk)

    def drop_tail(self) -> None:
        """Give back the memory of recent batches. On the thread that appends: the budget is shared
        with other logs, and ``close`` may run on any."""
        self._tail.clear()

    def close(self, *, clean: bool = True) -> None:
        """Sync, write out the indexes, leave the mark of a clean stop. Without ``clean``, or with
        a sync job begun and not finished, only let go of the files, as a crash would."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if clean and self._refused is None and self._job is None:
                self._close_cleanly()
        finally:
            self.refuse_appends("the log is closed")
            for segment in self._segments:
                segment.close()

    def _close_cleanly(self) -> None:
        job = self.begin_sync()
        if job is not None:
            job.run()
            self.finish_sync(job)
        self._active.seal()
        for fd in self._active.files.fds():
            self.disk.sync_data(fd)
        if tuple(self._damage) != self.recovery.damage:
            save_damage(self.folder, self._damage, self.disk)
        active = self._active
        point = RecoveryPoint(self.end_offset, True, active.base_offset, active.bytes)
        write_point(self.folder, point, self.disk)
