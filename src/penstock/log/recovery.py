"""Opens the log in a partition's folder. After a clean stop, only the last batch of each segment is
checked. After any other stop, everything after the recovery point is scanned. An incomplete batch
at the end of the last segment is cut off and reported. Damage that is followed by whole records is
reported and never cut off. Side files that are missing, short or wrong are rebuilt."""

from dataclasses import dataclass
from pathlib import Path

from penstock.log.replacement import finish_replacements, finish_restart, remove_segments
from penstock.log.storage import checkpoint, files
from penstock.log.storage.scan import ZEROS_REASON, Scanner, header_fault, is_zero_from
from penstock.log.storage.segment import NO_EPOCH, Segment
from penstock.log.storage.side_files import HOLE, START, BatchStart, header_check
from penstock.model.errors import Damaged, PenstockError
from penstock.record.batch import HEADER_BYTES, parse_header


class FormatUnsupported(PenstockError): ...


@dataclass(slots=True)
class RecoveryReport:
    was_clean: bool = False
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    position: int = 0  # where the last segment was cut; its end if it was not
    reason: str | None = None  # why the last segment was cut
    end_offset: int = 0
    recovery_point: int = 0  # records below this offset were synced before the stop
    damage: tuple[checkpoint.Damage, ...] = ()
    doubts: int = 0  # DOUBT flags (``storage/checkpoint.py``)
    is_low_watermark_damaged: bool = False


class Recovery:
    def __init__(self, folder: Path, *, interval_bytes: int, disk: files.Disk) -> None:
        self.folder = folder
        self.disk = disk
        self.interval_bytes = interval_bytes
        self.segments: list[Segment] = []
        self.sealed_offset = 0  # closed segments below this need no scan at the next opening
        self._point = checkpoint.RecoveryPoint(0)
        self._damage: list[checkpoint.Damage] = []
        self.report = RecoveryReport()
        self._epoch = NO_EPOCH  # epoch of the last batch so far
        self.low_watermark = 0
        self._has_stale_checks = False  # checks of the last segment were removed but not synced

    def run(self) -> RecoveryReport:
        try:
            return self._run()
        except BaseException:
            for segment in self.segments:
                segment.close()
            raise

    def _run(self) -> RecoveryReport:
        self._prepare_folder()
        finish_restart(self.disk, self.folder)
        finish_replacements(self.disk, self.folder)
        bases = self._bases()
        known = [] if not bases else checkpoint.load_damage(self.folder, self.disk)
        point = checkpoint.read_point(self.folder, self.disk)
        was_clean = not bases and point is None
        if point is not None:
            self._point = point
            self.sealed_offset = point.offset
            was_clean = point.is_clean and self._is_as_left(point, bases)
        report = self.report
        report.was_clean, report.recovery_point = was_clean, self._point.offset
        report.doubts = checkpoint.DOUBT_NEW if point is None else point.doubts
        report.doubts |= 0 if was_clean else checkpoint.DOUBT_CRASHED
        for at, base_offset in enumerate(bases, 1):
            next_base = bases[at] if at < len(bases) else None
            if not self._open_segment(base_offset, next_base, was_clean=was_clean):
                self._remove(bases[at:])
                break
        if not self.segments:
            self.segments.append(self._segment(0))
        last = self.segments[-1]
        # Save damage before the recovery point marks the segments as not needing a scan.
        damage = checkpoint.merge_damage(
            [one for one in known if self._is_there(one)], self._damage
        )
        if damage != known:
            checkpoint.save_damage(self.folder, damage, self.disk)
        report.damage = tuple(damage)
        report.position, report.end_offset = last.bytes, last.end_offset
        report.doubts |= checkpoint.DOUBT_SHORT if last.end_offset < self._point.offset else 0
        self._read_low_watermark(last.end_offset)
        if not was_clean or report.truncated_bytes:
            self._make_durable(last)
        return report

    def _read_low_watermark(self, end_offset: int) -> None:
        """Read the low watermark. If it is above the log's end, lower it to the log's end."""
        try:
            self.low_watermark = checkpoint.read_low_watermark(self.folder, self.disk)
        except Damaged:
            self.report.is_low_watermark_damaged = True
            self.report.doubts |= checkpoint.DOUBT_GARBAGE
        if self.low_watermark > end_offset:
            checkpoint.write_low_watermark(self.folder, end_offset, self.disk)
            self.low_watermark = end_offset

    def _is_there(self, damage: checkpoint.Damage) -> bool:
        last = self.segments[-1]
        if damage.file == last.path.name:
            return damage.position < last.bytes
        return any(damage.file == segment.path.name for segment in self.segments)

    def _prepare_folder(self) -> None:
        disk, folder = self.disk, self.folder
        disk.make_folder(folder)
        content = files.read_whole(disk, folder / files.FORMAT_FILE)
        if content is None:
            files.replace_durably(
                disk,
                folder / files.FORMAT_FILE,
                b"%b%d\n" % (files.FORMAT_PREFIX, files.FORMAT_VERSION),
            )
            return
        version = files.format_version(content)
        if version is None or version > files.FORMAT_VERSION:
            shown = "unknown" if version is None else str(version)
            raise FormatUnsupported(
                f"{folder} has log format {shown}; this version reads formats up to"
                f" {files.FORMAT_VERSION}"
            )

    def _bases(self) -> list[int]:
        """Return the segments' base offsets. Deletes temporary and orphaned side files."""
        disk, folder = self.disk, self.folder
        names = disk.names(folder)
        bases = {
            files.base_offset_of(name) for name in names if name.endswith(files.LOG_SUFFIX)
        } - {None}
        for name in names:
            base_offset = files.base_offset_of(name)
            is_orphan = base_offset is not None and base_offset not in bases
            if name.endswith(files.TMP_SUFFIX) or is_orphan:
                disk.unlink(folder / name)
        return sorted(base for base in bases if base is not None)

    def _is_as_left(self, point: checkpoint.RecoveryPoint, bases: list[int]) -> bool:
        if not bases or bases[-1] != point.last_base:
            return False
        fd = self.disk.open_read(files.segment_path(self.folder, bases[-1]))
        try:
            return self.disk.size(fd) == point.last_bytes
        finally:
            self.disk.close(fd)

    def _remove(self, bases: list[int]) -> None:
        for base_offset in reversed(bases):
            fd = self.disk.open_read(files.segment_path(self.folder, base_offset))
            try:
                size = self.disk.size(fd)
                if not is_zero_from(self.disk, fd, 0, size):
                    self._doubt(checkpoint.DOUBT_GARBAGE)
            finally:
                self.disk.close(fd)
            self.report.truncated_bytes += size
            remove_segments(self.disk, self.folder, [base_offset])

    def _doubt(self, doubt: int) -> None:
        """Mark the log on disk as possibly incomplete, before a repair removes the evidence."""
        if not self.report.doubts & doubt:
            self.report.doubts |= doubt
            self._write_point(self._point._replace(is_clean=False, doubts=self.report.doubts))

    def _write_point(self, point: checkpoint.RecoveryPoint) -> bool:
        """Write the recovery point. Returns False if the disk is full."""
        try:
            checkpoint.write_point(self.folder, point, self.disk)
        except OSError as error:
            if not files.is_full(error):
                raise
            return False
        return True

    def _segment(self, base_offset: int) -> Segment:
        return Segment(self.folder, base_offset, interval_bytes=self.interval_bytes, disk=self.disk)

    def _open_segment(self, base_offset: int, next_base: int | None, *, was_clean: bool) -> bool:
        """Open a segment, and scan it if necessary. Returns False if the log ends in the segment.

        A sync moves the recovery point past closed segments before it reports success. So records
        after a segment that is not below the recovery point were never confirmed, and an incomplete
        batch in such a segment is the end of the log. In a segment below the recovery point it is
        damage: bytes that were on disk have changed."""
        segment = self._segment(base_offset)
        self.segments.append(segment)
        is_synced = was_clean or (next_base is not None and next_base <= self._point.offset)
        is_whole = True
        if not (is_synced and open_quickly(segment, next_base, epoch=self._epoch)):
            resume = (START, 0, -1) if is_synced else self._resume(segment)
            may_cut = next_base is None or not is_synced
            is_whole = self._scan(segment, next_base, resume, may_cut=may_cut)
        self._epoch = segment.last_epoch
        if next_base is not None and is_whole:
            segment.close()
        return is_whole

    def _resume(self, segment: Segment) -> tuple[BatchStart, int, int]:
        """Return the last indexed batch before the recovery point. A scan can begin there."""
        index, checks = segment.files.index, segment.files.checks
        number = index.offsets.last_at_most(self._point.offset - segment.base_offset)
        if number is None or number <= 0:
            return START, 0, -1
        place, time = index.place(number), index.times.read(number)
        size = self.disk.size(segment.files.log_fd)
        if place is None or time is None or place.position >= size or place.ordinal > checks.count:
            return START, 0, -1
        return place, number, time[0]

    def _scan(
        self,
        segment: Segment,
        next_base: int | None,
        resume: tuple[BatchStart, int, int],
        *,
        may_cut: bool,
    ) -> bool:
        start, number, timestamp = resume
        scan = Scanner(segment.files, start, epoch=self._epoch, max_timestamp=timestamp).run()
        if start is not START and scan.last is None:
            start, number = START, 0  # the index led to no valid batch: scan all
            scan = Scanner(segment.files, epoch=self._epoch).run()
        size = scan.size
        self.report.scanned_bytes += size - start.position
        self._damage += scan.damage
        is_whole = scan.position == size and next_base in (None, scan.offset)
        if may_cut:
            segment.bytes, segment.end_offset = scan.position, scan.offset
            if scan.position < size:
                if scan.tail_reason != ZEROS_REASON:
                    self._doubt(checkpoint.DOUBT_GARBAGE)
                self.report.reason = scan.tail_reason
                self.report.truncated_bytes += size - scan.position
                self.disk.truncate(segment.files.log_fd, scan.position)
            elif not is_whole:
                self.report.reason = f"records up to offset {next_base} were never synced"
        else:
            assert next_base is not None, "only the last segment may be cut"
            segment.bytes, segment.end_offset = size, next_base
            if not is_whole:
                self._damage.append(scan.gap_before(segment.path.name, next_base))
                if scan.position < size:
                    # Without this entry the bytes would be taken for a batch whose check was lost.
                    scan.checks.append(HOLE)
                    scan.ordinal += 1
                is_whole = True
        if next_base is not None:
            scan.seal()
        is_stale = segment.rebuild(scan, from_place=number, from_ordinal=start.ordinal)
        self._has_stale_checks = is_stale
        segment.last_epoch, segment.batch_count = scan.epoch, scan.ordinal
        segment.max_timestamp, segment.last = scan.max_timestamp, scan.last or START
        segment.first_timestamp = _first_timestamp(segment)
        return is_whole or next_base is None

    def _make_durable(self, last: Segment) -> None:
        for segment in self.segments:
            if segment.end_offset > self._point.offset or segment is last:
                self.disk.sync_data(segment.files.log_fd)
                # If the header check of a removed batch reappeared after a power cut, its successor
                # would look damaged.
                if segment is not last or self._has_stale_checks:
                    for fd in segment.files.fds()[1:]:
                        self.disk.sync_data(fd)
                if segment is not last:
                    segment.close()
        self.disk.sync_folder(self.folder)
        if self._write_point(checkpoint.RecoveryPoint(last.end_offset, doubts=self.report.doubts)):
            self.sealed_offset = last.end_offset


def open_quickly(segment: Segment, next_base: int | None, *, epoch: int = NO_EPOCH) -> bool:
    """Open a segment without a scan, by checking its last batch. Returns False if the segment was
    not closed properly and must be scanned. ``epoch`` is the last epoch before the segment."""
    opened = segment.files
    size = segment.disk.size(opened.log_fd)
    index, checks = opened.index, opened.checks
    segment.last_epoch = epoch
    if size == 0:
        return next_base is None and index.count == 0 and checks.count == 0
    number = index.count - 1
    place, time = index.place(number), index.times.read(number)
    if place is None or time is None or index.times.count != index.count:
        return False
    raw = segment.disk.pread(opened.log_fd, HEADER_BYTES, place.position)
    if checks.count != place.ordinal + 1 or len(raw) < HEADER_BYTES:
        return False
    header = parse_header(raw)
    if (
        header_fault(header, segment.base_offset + place.relative) is not None
        or header.leader_epoch < epoch
        or checks.read(place.ordinal) != (header_check(raw),)
        or place.position + header.total_bytes != size
        or (next_base is not None and header.next_offset != next_base)
    ):
        return False
    segment.bytes, segment.end_offset = size, header.next_offset
    segment.last_epoch, segment.batch_count = header.leader_epoch, checks.count
    segment.max_timestamp, segment.last = time[0], place
    segment.first_timestamp = _first_timestamp(segment)
    return True


def _first_timestamp(segment: Segment) -> int:
    raw = segment.disk.pread(segment.files.log_fd, HEADER_BYTES, 0)
    return parse_header(raw).base_timestamp if len(raw) == HEADER_BYTES else -1
