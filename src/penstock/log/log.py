"""The log of one partition: append at the end, read from anywhere, sync many appends together.

The log is used by the thread of the event loop; only ``SyncJob.run`` runs in another thread, with
file descriptors of its own. The owner of the log assigns offsets and decides when to sync, what to
delete and where to truncate. A replica also appends batches of its leader (``append_copied``), cuts
off batches that its leader does not have (``truncate``) and can start empty (``restart``)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from penstock.log import replacement
from penstock.log.batch_cache import BatchCache, BatchCacheBudget
from penstock.log.readable import ReadableLog
from penstock.log.recovery import Recovery, RecoveryReport
from penstock.log.storage.checkpoint import RecoveryPoint, read_point, save_damage, write_point
from penstock.log.storage.files import DISK, EPOCHS_CHECKPOINT, Disk, is_full, segment_paths
from penstock.log.storage.headers import find_cut
from penstock.log.storage.scan import trimmed, verified
from penstock.log.storage.segment import NO_EPOCH, Cut, Segment
from penstock.log.storage.side_files import RELATIVE_MAX
from penstock.model import limits
from penstock.model.errors import DiskFull, PenstockError
from penstock.model.errors import OffsetOutOfRange as OffsetOutOfRange
from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import BatchHeader, parse_header


class AppendsRefused(PenstockError):
    """An earlier write or sync failed. The files may be wrong until the log is reopened."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes_max: int = limits.SEGMENT_BYTES_MAX
    segment_age_ms_max: int = limits.SEGMENT_AGE_MS_MAX
    index_interval_bytes: int = limits.INDEX_INTERVAL_BYTES
    tail_bytes_max: int = limits.TAIL_BYTES_MAX
    # Shared by all logs of a node; None: a separate budget.
    batch_cache_budget: BatchCacheBudget | None = None


@dataclass
class SyncJob:
    """Syncs dirty files in a thread. It does not use objects that the log's thread may change."""

    log: "Log"
    end_offset: int
    fds: list[int]
    is_folder_dirty: bool
    point: RecoveryPoint | None  # to write afterwards
    is_point_owed: bool = False  # the disk was full: the next sync writes the point

    def run(self) -> None:
        """Sync all files. After an error the log refuses appends, because the kernel may mark lost
        pages as clean, so that a second sync would falsely succeed."""
        log, disk = self.log, self.log.disk
        try:
            for fd in self.fds:
                disk.sync_data(fd)
            if self.is_folder_dirty:
                disk.sync_folder(log.folder)
        except OSError as error:
            log.refuse_appends(f"sync failed: {error}")
            raise
        finally:
            while self.fds:
                disk.close(self.fds.pop())
        if self.point is not None:
            try:
                write_point(log.folder, self.point, disk)
            except OSError as error:
                if not is_full(error):
                    log.refuse_appends(f"writing the recovery point failed: {error}")
                    raise
                self.is_point_owed = True


@dataclass
class Detached:
    """Segments that were removed from a log, oldest first. After a crash, they may exist again."""

    disk: Disk
    paths: list[Path]
    freed_bytes: int
    is_removed: bool = False
    _lock: Lock = field(default_factory=Lock)

    def remove(self) -> int:
        """Delete the files and return the bytes freed. Thread-safe."""
        with self._lock:
            if not self.is_removed:
                for path in self.paths:
                    self.disk.unlink(path)
                self.is_removed = True
        return self.freed_bytes


class Log(ReadableLog):
    def __init__(self, folder: Path, config: LogConfig, *, now_ms: int, disk: Disk) -> None:
        recovery = Recovery(folder, interval_bytes=config.index_interval_bytes, disk=disk)
        self.recovery: RecoveryReport = recovery.run()
        cache = BatchCache(config.tail_bytes_max, config.batch_cache_budget)
        super().__init__(folder, recovery.segments, self.recovery.damage, cache, disk)
        self.stored_low_watermark = recovery.low_watermark
        self.config = config
        self._active = recovery.segments[-1]
        self._detached: list[Detached] = []
        self._doubts = self.recovery.doubts  # DOUBT flags; ``settle`` clears them
        self.refusal: str | None = None  # why appends are refused until the log is reopened
        self._is_closed = False

        self.durable_offset = self.end_offset
        # Segments below this offset are closed and synced, and no recovery truncates them.
        self.sealed_offset = recovery.sealed_offset
        self.size_bytes = self._segments.size_bytes
        self.last_timestamp_ms = self._segments.max_timestamp
        first = self._active.first_timestamp
        # A producer's timestamp can be wrong, so it never makes a segment older than the limit.
        self._active_since_ms = min(now_ms, max(first, now_ms - config.segment_age_ms_max))

        # Besides the dirty segments, the next sync job must sync:
        self._is_folder_dirty = not self._active.is_open  # ``make_files`` creates the files below
        self.has_unsynced_sealed = False
        self._job: SyncJob | None = None  # the job in progress
        self._active.make_files()

    @classmethod
    def open(cls, folder: Path, config: LogConfig, *, now_ms: int, disk: Disk = DISK) -> "Log":
        return cls(folder, config, now_ms=now_ms, disk=disk)

    def append(
        self, batch: bytes | memoryview, *, now_ms: int, header: BatchHeader | None = None
    ) -> int:
        """Append a batch and return its first offset. DiskFull leaves the log unchanged; after any
        other disk error the log refuses appends until it is reopened."""
        if self.refusal is not None:
            raise AppendsRefused(self.refusal)
        if header is None:
            header = parse_header(batch)
        size = len(batch)
        assert header.base_offset == self.end_offset, "an append must begin at the end of the log"
        assert header.total_bytes == size <= BATCH_BYTES_MAX, "append exactly one whole batch"
        active = self._active
        assert header.leader_epoch >= active.last_epoch, "epochs never decrease"
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
            self._cache.append(header.base_offset, active.end_offset, batch)
        else:
            self._cache.clear()  # borrowed memory cannot be kept: read the batch from the file
        return header.base_offset

    def append_copied(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[BatchHeader]:
        """Append whole batches of a leader, with unchanged offsets and epochs. They must follow the
        end of the log. Returns the headers of the appended batches, which are fewer if the disk
        became full in between. Raises Damaged or DiskFull if nothing was appended."""
        if self.refusal is not None:
            raise AppendsRefused(self.refusal)
        end_offset = self.end_offset
        view = trimmed(memoryview(data), end_offset)
        headers = verified(view, offset=end_offset, epoch=self.last_epoch, folder=self.folder)
        if not self._cache.is_empty:
            self._cache.clear()  # the cache must reach the end of the log, or be empty
        first = position = 0
        while first < len(headers):
            try:
                after, size = self._append_portion(headers, first, view[position:], now_ms)
            except DiskFull:
                if not first:
                    raise
                break
            first, position = after, position + size
        return headers[:first]

    def _append_portion(
        self, headers: Sequence[BatchHeader], first: int, view: memoryview, now_ms: int
    ) -> tuple[int, int]:
        """Append batches to one segment. Returns the next batch's index and the bytes appended."""
        config, active, header = self.config, self._active, headers[first]
        size = header.total_bytes
        if active.bytes and (
            not active.has_room(size, header.next_offset, bytes_max=config.segment_bytes_max)
            or now_ms - self._active_since_ms >= config.segment_age_ms_max
        ):
            self.roll(now_ms=now_ms)
            active = self._active
        if not active.bytes:
            self._active_since_ms = now_ms
        room, after = config.segment_bytes_max - active.bytes, first + 1
        while after < len(headers) and (
            size + headers[after].total_bytes <= room
            and headers[after].next_offset - active.base_offset <= RELATIVE_MAX
        ):
            size += headers[after].total_bytes
            after += 1
        try:
            active.append_many(view[:size], headers[first:after])
        except OSError as error:
            self.refuse_appends(f"append failed: {error}")
            raise
        self._dirty[active.base_offset] = active
        self.end_offset = active.end_offset
        self.size_bytes += size
        if active.max_timestamp > self.last_timestamp_ms:
            self.last_timestamp_ms = active.max_timestamp
        return after, size

    def refuse_appends(self, reason: str) -> None:
        """Refuse appends until the log is reopened. Thread-safe; the first reason is kept."""
        if self.refusal is None:
            self.refusal = reason

    def roll(self, *, now_ms: int) -> None:
        if self._active.bytes == 0:
            return
        segment = self._new_segment(self.end_offset)
        with self._refusing("roll", "the disk is full: no new segment was created"):
            self._active.seal()
            segment.make_files()
        # The segment and its side files stay open until they are synced.
        self._dirty[self._active.base_offset] = self._active
        segment.last_epoch = self._active.last_epoch
        self._segments.add(segment)
        self._active = segment
        self._active_since_ms = now_ms
        self._is_folder_dirty = True
        self.has_unsynced_sealed = True

    def _new_segment(self, base_offset: int) -> Segment:
        interval_bytes = self.config.index_interval_bytes
        return Segment(self.folder, base_offset, interval_bytes=interval_bytes, disk=self.disk)

    @contextmanager
    def _refusing(self, action: str, full: str | None = None) -> Iterator[None]:
        """Run a block of file operations. After an error, refuse appends. If ``full`` is given, a
        full disk instead raises DiskFull with this text and leaves the log unchanged."""
        try:
            yield
        except OSError as error:
            if full is not None and is_full(error):
                raise DiskFull(full) from None
            self.refuse_appends(f"{action} failed: {error}")
            raise

    def begin_sync(self) -> SyncJob | None:
        """Return a job that syncs all dirty files, or None if none are dirty. Only one job may run:
        the recovery point of a later job would cover unsynced files of an earlier one."""
        if self.refusal is not None:
            raise AppendsRefused(self.refusal)
        assert self._job is None, "a sync job is still in progress"
        if not self._dirty and not self._is_folder_dirty:
            return None
        # Header checks reach the page cache together with their batches, so that they survive a
        # crash of the process.
        self._active.files.flush()
        fds: list[int] = []
        dirty, self._dirty = self._dirty, {}
        for base_offset in sorted(dirty):
            segment = dirty[base_offset]
            files = segment.files
            chosen = (files.log_fd,) if segment is self._active else files.fds()
            fds += [self.disk.duplicate(fd) for fd in chosen]
            if segment is not self._active:
                self._segments.touch(segment, self._dirty)
        point = None
        if self.has_unsynced_sealed:
            point = RecoveryPoint(self._active.base_offset, doubts=self._doubts)
        self._job = SyncJob(self, self.end_offset, fds, self._is_folder_dirty, point)
        self._is_folder_dirty = self.has_unsynced_sealed = False
        return self._job

    def finish_sync(self, job: SyncJob) -> None:
        assert job is self._job, "not the job in progress"
        self._job = None
        if self.refusal is not None:
            raise AppendsRefused(self.refusal)
        self.durable_offset = max(self.durable_offset, job.end_offset)
        self.has_unsynced_sealed = self.has_unsynced_sealed or job.is_point_owed
        if job.point is not None and not job.is_point_owed:
            self.sealed_offset = max(self.sealed_offset, job.point.offset)

    def truncate(self, to: int) -> int:
        """Remove the batch that holds ``to`` and everything after it, durably. Returns the new end
        offset. After a crash the log may end anywhere between the old and the new end. May run in a
        thread if nothing else uses the log. The owner must remove later checkpoints first."""
        self._assert_at_rest()
        assert to >= self.start_offset, "to drop the whole log, call restart"
        if to >= self.end_offset:
            return self.end_offset
        segment, cut = self._find_cut(to)
        point = RecoveryPoint(min(self.sealed_offset, cut.end_offset), doubts=self._doubts)
        with self._refusing("truncation", "the disk is full: the log was not truncated"):
            # A pending rewrite of segments would bring back the removed batches.
            if replacement.has_rewrite(self.disk, self.folder):
                replacement.clear_rewritten(self.disk, self.folder)
            self.remove_checkpoint(EPOCHS_CHECKPOINT)
            write_point(self.folder, point, self.disk)
        self.sealed_offset = point.offset
        with self._refusing("truncation"):
            self._cut(segment, cut)
        self.lower_low_watermark()
        return self.end_offset

    def _find_cut(self, to: int) -> tuple[Segment, Cut]:
        segment = self._segments.holding(to)
        cut = find_cut(segment, to, epoch=self._epoch_before(segment))
        for damage in reversed(self.damage):
            # Known damage with no batch after it would look like a torn end: cut it off too.
            if (damage.file, damage.next_offset) == (segment.path.name, cut.end_offset):
                cut = find_cut(segment, damage.first_offset, epoch=self._epoch_before(segment))
        return segment, cut

    def _cut(self, segment: Segment, cut: Cut) -> None:
        taken = self._segments.take_after(segment)
        self._active = segment
        self._cache = self._cache.successor()
        self.end_offset = cut.end_offset
        self.durable_offset = min(self.durable_offset, cut.end_offset)
        for one in reversed(taken):
            self._dirty.pop(one.base_offset, None)
            self.disk.unlink(one.path)
            self.disk.sync_folder(self.folder)
            replacement.remove_segments(self.disk, self.folder, [one.base_offset])
        segment.cut(cut)
        self.size_bytes = self._segments.size_bytes
        self.last_timestamp_ms = self._segments.max_timestamp
        self._forget_damage()
        self._dirty[segment.base_offset] = segment
        self._is_folder_dirty = True
        job = self.begin_sync()
        assert job is not None, "a cut must leave something to sync"
        job.run()
        self.finish_sync(job)

    def _forget_damage(self) -> None:
        active, names = self._active, {segment.path.name for segment in self._segments}
        left = [
            damage
            for damage in self.damage
            if damage.file in names
            and (damage.file != active.path.name or damage.position < active.bytes)
        ]
        if left != self.damage:
            self.damage = left
            save_damage(self.folder, left, self.disk)

    def restart(self, at: int) -> None:
        """Delete all records and begin again as an empty log at offset ``at``. After a crash, the
        log is either the old or the new one. May run in a thread if nothing else uses the log."""
        self._assert_at_rest()
        assert at >= 0
        while self._detached:
            self._detached.pop().remove()  # the new segment may have the name of one of these files
        with self._refusing("restart", "the disk is full: the log was not restarted"):
            replacement.announce_restart(self.disk, self.folder, at)
        segment = self._new_segment(at)
        with self._refusing("restart"):
            self._segments.take_all(segment)
            replacement.carry_out_restart(self.disk, self.folder, at)
            segment.make_files()
        self._active = segment
        self._cache = self._cache.successor()
        self._dirty, self.damage = {}, []
        self._is_folder_dirty, self.has_unsynced_sealed = True, False  # the side files are new
        self.end_offset = self.durable_offset = self.sealed_offset = at
        self.size_bytes = 0
        self.last_timestamp_ms = segment.max_timestamp
        self.lower_low_watermark()

    def _assert_at_rest(self) -> None:
        if self.refusal is not None:
            raise AppendsRefused(self.refusal)
        assert self._job is None, "a sync is in progress"

    def _epoch_before(self, segment: Segment) -> int:
        epoch = NO_EPOCH
        for each in self._segments:
            if each is segment:
                break
            epoch = each.last_epoch
        return epoch

    def detach_before(self, offset: int) -> Detached:
        """Remove closed segments that end at or before ``offset`` from the log. Their files are
        deleted by ``Detached.remove``, which is slow and may run in a thread."""
        taken = self._segments.take_before(offset)
        detached = Detached(self.disk, [], sum(segment.bytes for segment in taken))
        for segment in taken:
            self._dirty.pop(segment.base_offset, None)
            # Batches are removed first; side files without batches are removed at the next opening.
            detached.paths += segment_paths(self.folder, segment.base_offset)
        if taken:
            gone = {segment.path.name for segment in taken}
            self.damage = [damage for damage in self.damage if damage.file not in gone]
            self.size_bytes -= detached.freed_bytes
            self._is_folder_dirty = True
            self._detached = [one for one in self._detached if not one.is_removed]
            self._detached.append(detached)
        return detached

    def replace_segments(self, made: Segment) -> int | None:
        """Replace old segments by ``made``, which was rewritten from them. Returns the bytes freed.
        If some of the old segments are gone, changes nothing and returns None."""
        assert not made.is_open, "close the rewritten segment before its files are moved"
        old = self._segments.between(made.base_offset, made.end_offset)
        if self._is_closed or not old:
            return None
        assert made.end_offset <= self.sealed_offset, "only sealed segments are replaced"
        for segment in old:
            self._dirty.pop(segment.base_offset, None)
            self._segments.close_files(segment)
        # After an error the next opening of the log finishes from the point that was reached.
        with self._refusing("replacing segments"):
            replacement.move_in(self.disk, self.folder, made.base_offset)
            replacement.remove_segments(
                self.disk, self.folder, [each.base_offset for each in old[1:]]
            )
        made.folder = self.folder
        names = {segment.path.name for segment in old}
        self.damage = [damage for damage in self.damage if damage.file not in names]
        self._cache.drop_before(made.end_offset)
        self._segments.replace(old, made)
        freed = sum(segment.bytes for segment in old) - made.bytes
        self.size_bytes -= freed
        return freed

    def settle(self) -> None:
        """Clear the DOUBT flags on disk after it was reported that records may be missing."""
        assert self._job is None, "a sync is in progress"
        if self._doubts:
            point = read_point(self.folder, self.disk) or RecoveryPoint(self.sealed_offset)
            write_point(self.folder, point._replace(doubts=0), self.disk)
            self._doubts = 0

    def close(self, *, clean: bool = True) -> None:
        """Sync, write the indexes and record a clean stop. Without ``clean``, after a failure, or
        while a sync job is unfinished, only close the files: the next start runs a recovery."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if clean and self.refusal is None and self._job is None:
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
        if tuple(self.damage) != self.recovery.damage:
            save_damage(self.folder, self.damage, self.disk)
        active = self._active
        point = RecoveryPoint(self.end_offset, True, active.base_offset, active.bytes, self._doubts)
        write_point(self.folder, point, self.disk)
