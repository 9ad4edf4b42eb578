"""Read-only inspection of logs on disk, for ``penstock storage`` and the scrubber. No file is
created, truncated or rebuilt. The log of a running server may end in the middle of a write."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.log.recovery import open_quickly
from penstock.log.replacement import is_being_replaced
from penstock.log.storage.checkpoint import (
    Damage,
    RecoveryPoint,
    is_whole_checkpoint,
    load_damage,
    read_point,
)
from penstock.log.storage.files import CHECKPOINT_SUFFIX, LOG_SUFFIX, ReadOnlyDisk, base_offset_of
from penstock.log.storage.scan import WINDOW_BYTES, Scanner
from penstock.log.storage.segment import Segment
from penstock.model.limits import INDEX_INTERVAL_BYTES
from penstock.record.batch import HEADER_BYTES, parse_header

TOPICS_FOLDER = "topics"


class PartitionFolder(NamedTuple):
    topic_id: str
    partition: int
    folder: Path


def find_partitions(data_folder: Path) -> list[PartitionFolder]:
    return sorted(
        PartitionFolder(folder.parent.name, int(folder.name), folder)
        for folder in data_folder.glob(f"{TOPICS_FOLDER}/*/*")
        if folder.name.isdigit() and segment_bases(folder)
    )


def segment_bases(folder: Path) -> list[int]:
    names = (path.name for path in folder.glob(f"*{LOG_SUFFIX}"))
    return sorted(base for base in map(base_offset_of, names) if base is not None)


@dataclass(slots=True)
class PartitionSummary:
    place: PartitionFolder
    start_offset: int
    end_offset: int
    size_bytes: int
    segments: int
    max_timestamp: int
    was_clean: bool
    damage: list[Damage]


def summarize(place: PartitionFolder) -> PartitionSummary:
    disk = ReadOnlyDisk()
    segments = segments_of(place)
    point = read_point(place.folder, disk) or RecoveryPoint(0)
    size_bytes, end_offset, max_timestamp = 0, segments[-1][0], -1
    was_clean = False
    for base_offset, next_base in segments:
        segment = _segment(place.folder, base_offset)
        try:
            file_bytes = disk.size(segment.files.log_fd)
            size_bytes += file_bytes
            if next_base is None:
                left = (True, base_offset, file_bytes)
                was_clean = (point.is_clean, point.last_base, point.last_bytes) == left
            if open_quickly(segment, next_base):
                end_offset = segment.end_offset
                max_timestamp = max(max_timestamp, segment.max_timestamp)
            elif next_base is None:
                scan = Scanner(segment.files).run()
                end_offset = scan.offset
                max_timestamp = max(max_timestamp, scan.max_timestamp)
        finally:
            segment.close()
    return PartitionSummary(
        place=place,
        start_offset=segments[0][0],
        end_offset=end_offset,
        size_bytes=size_bytes,
        segments=len(segments),
        max_timestamp=max_timestamp,
        was_clean=was_clean,
        damage=load_damage(place.folder, disk),
    )


class SegmentReport(NamedTuple):
    path: Path
    bytes: int
    batches: int
    end_offset: int
    damage: list[Damage]
    remarks: list[str]  # problems that the next start of the server repairs


def verify_segment(folder: Path, base_offset: int, next_base: int | None) -> SegmentReport:
    with closing(Verification(folder, base_offset, next_base)) as verification:
        while verification.advance():
            pass
        return verification.result()


class Verification:
    """A verification of the first ``bytes_max`` bytes of a segment, in steps. ``next_base`` is the
    base offset of the next segment. If it is None, this is the last segment, and an incomplete
    batch at its end is not damage."""

    def __init__(
        self, folder: Path, base_offset: int, next_base: int | None, *, bytes_max: int | None = None
    ) -> None:
        self._segment = segment = _segment(folder, base_offset)
        self._next_base = next_base
        try:
            self._scanner = Scanner(segment.files, bytes_max=bytes_max)
            # This check comes after opening the files: if no replacement is in progress now, the
            # four files belong together.
            self._is_swapped = is_being_replaced(segment.disk, folder, base_offset)
        except BaseException:
            segment.close()
            raise

    def advance(self, window_bytes: int = WINDOW_BYTES) -> int:
        """Verify about ``window_bytes``. Returns the number of bytes verified, or 0 at the end."""
        if self._is_swapped:
            return 0
        position = self._scanner.scan.position
        is_more = self._scanner.advance(window_bytes)
        return max(1, self._scanner.scan.position - position) if is_more else 0

    def result(self) -> SegmentReport:
        segment, scan, next_base = self._segment, self._scanner.scan, self._next_base
        if self._is_swapped:
            remark = "not verified: compaction is replacing this segment"
            end_offset = segment.base_offset if next_base is None else next_base
            return SegmentReport(segment.path, scan.size, 0, end_offset, [], [remark])
        damage, remarks = list(scan.damage), []
        if next_base is not None:
            scan.seal()
            if scan.position != scan.size or scan.offset != next_base:
                damage.append(scan.gap_before(segment.path.name, next_base))
        elif scan.position != scan.size:
            remarks.append(f"incomplete end, {scan.size - scan.position} bytes: {scan.tail_reason}")
        if not damage and not segment.is_indexed(scan):
            remarks.append("index or header checksums are outdated")
        return SegmentReport(segment.path, scan.size, scan.ordinal, scan.offset, damage, remarks)

    def close(self) -> None:
        self._segment.close()


def verify_checkpoints(folder: Path) -> list[str]:
    """Return a message for each corrupt checkpoint file. Replaying the log replaces these files."""
    disk = ReadOnlyDisk()
    return [
        f"{path.name} is corrupt or incomplete"
        for path in sorted(folder.glob(f"*{CHECKPOINT_SUFFIX}"))
        if not is_whole_checkpoint(path, disk)
    ]


def lost_offsets(folder: Path, end_offset: int) -> int:
    point = read_point(folder, ReadOnlyDisk())
    return 0 if point is None else max(0, point.offset - end_offset)


def iter_segment(path: Path) -> Iterator[bytes | Damage]:
    base_offset = base_offset_of(path.name)
    assert base_offset is not None, "not the name of a segment file"
    segment = _segment(path.parent, base_offset)
    try:
        scan = Scanner(segment.files).run()
        damages = {damage.position: damage for damage in scan.damage}
        fd, disk, position = segment.files.log_fd, segment.disk, 0
        while position < scan.position:
            damage = damages.get(position)
            if damage is not None:
                yield damage
                position += damage.size_bytes
                continue
            header = parse_header(disk.pread(fd, HEADER_BYTES, position))
            yield disk.pread(fd, header.total_bytes, position)
            position += header.total_bytes
        if position < scan.size:
            size, reason = scan.size - position, scan.tail_reason or "not a batch"
            yield Damage(path.name, position, size, scan.offset, scan.offset, reason)
    finally:
        segment.close()


def _segment(folder: Path, base_offset: int) -> Segment:
    return Segment(folder, base_offset, interval_bytes=INDEX_INTERVAL_BYTES, disk=ReadOnlyDisk())


def segments_of(place: PartitionFolder) -> list[tuple[int, int | None]]:
    """Return each segment's base offset, paired with the next segment's base offset or None."""
    bases = segment_bases(place.folder)
    return list(zip(bases, (*bases[1:], None), strict=True))
