"""Replaces segments by a rewritten one, and restarts a log empty at another offset. A crash at any
point leaves the old or the new segments: an empty file, the mark, is created first, and once it
exists, opening the log finishes the change.

    rewritten/<base>.log .index .time .check     written and synced
    <base>-<end>.swap                            created, folder synced: the decision
    rewritten/<base>.* renamed over <base>.*     in any order, nothing synced in between
    segments that start after base and before end are removed, then the folder is synced
    <base>-<end>.swap                            removed, folder synced: done

    <at>.restart                    created, folder synced: the decision
    segments, side files, rewritten segments, checkpoints, list of damage    removed
    <at>.log                        created empty, folder synced
    recovery-point                  replaced by one at this offset
    <at>.restart                    removed, folder synced: done

While the mark of a swap exists, the side files of the segment may belong to the old or the new
batches, so opening the log rebuilds them. While the mark of a restart exists, nothing is appended,
and each opening performs the restart from its beginning.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from penstock.log.storage.checkpoint import DOUBT_NEW, RecoveryPoint, read_point, write_point
from penstock.log.storage.files import (
    CHECKPOINT_SUFFIX,
    DAMAGE_FILE,
    RESTART_SUFFIX,
    SIDE_SUFFIXES,
    Disk,
    base_offset_of,
    replace_durably,
    segment_path,
    segment_paths,
)
from penstock.record.batch import HEADER_BYTES, parse_header

REWRITTEN_FOLDER = "rewritten"
SWAP_SUFFIX = ".swap"
_NAME = re.compile(r"(\d{20})-(\d{20})\.swap\Z")


def rewritten_folder(folder: Path) -> Path:
    return folder / REWRITTEN_FOLDER


def mark_path(folder: Path, base_offset: int, end_offset: int) -> Path:
    return folder / f"{base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"


def is_being_replaced(disk: Disk, folder: Path, base_offset: int) -> bool:
    marks = (_NAME.match(name) for name in disk.names(folder))
    return any(int(mark[1]) <= base_offset < int(mark[2]) for mark in marks if mark is not None)


def has_rewrite(disk: Disk, folder: Path) -> bool:
    return any(name == REWRITTEN_FOLDER or _NAME.match(name) for name in disk.names(folder))


def clear_rewritten(disk: Disk, folder: Path) -> None:
    for name in disk.names(folder):
        match = _NAME.match(name)
        if match is not None:
            end_replacement(disk, folder, int(match[1]), int(match[2]))
    spare = rewritten_folder(folder)
    disk.make_folder(spare)
    for name in disk.names(spare):
        disk.unlink(spare / name)


def begin_replacement(disk: Disk, folder: Path, base_offset: int, end_offset: int) -> None:
    """Create the mark file. From now on, the replacement is completed even after a crash."""
    disk.sync_folder(rewritten_folder(folder))
    replace_durably(disk, mark_path(folder, base_offset, end_offset), b"")


def move_in(disk: Disk, folder: Path, base_offset: int) -> None:
    for path in segment_paths(folder, base_offset):
        disk.rename(rewritten_folder(folder) / path.name, path)


def remove_segments(disk: Disk, folder: Path, bases: Iterable[int]) -> None:
    for base_offset in bases:
        for path in segment_paths(folder, base_offset):
            disk.unlink(path)


def end_replacement(disk: Disk, folder: Path, base_offset: int, end_offset: int) -> None:
    """Remove the mark file durably, so that a crash cannot bring it back for the next rewrite."""
    disk.sync_folder(folder)
    disk.unlink(mark_path(folder, base_offset, end_offset))
    disk.sync_folder(folder)


def finish_replacements(disk: Disk, folder: Path) -> None:
    """Finish replacements that have a mark file, and delete other rewritten segments."""
    names = set(disk.names(folder))
    for name in sorted(names):
        match = _NAME.match(name)
        if match is not None:
            _finish(disk, folder, names, int(match[1]), int(match[2]))
    if REWRITTEN_FOLDER in names:
        clear_rewritten(disk, folder)


def _finish(disk: Disk, folder: Path, names: set[str], base_offset: int, end_offset: int) -> None:
    path = segment_path(folder, base_offset)
    spare = segment_path(rewritten_folder(folder), base_offset)
    if path.name in names:  # otherwise the segment was dropped meanwhile
        if REWRITTEN_FOLDER in names and spare.name in disk.names(spare.parent):
            disk.rename(spare, path)
        for suffix in SIDE_SUFFIXES:
            disk.unlink(segment_path(folder, base_offset, suffix))
        # Following segments are removed only if this segment really holds all their offsets.
        if _last_offset(disk, path, base_offset) == end_offset:
            bases = {base for name in names if (base := base_offset_of(name)) is not None}
            inside = sorted(base for base in bases if base_offset < base < end_offset)
            remove_segments(disk, folder, inside)
    end_replacement(disk, folder, base_offset, end_offset)


def _last_offset(disk: Disk, path: Path, base_offset: int) -> int:
    fd = disk.open_read(path)
    try:
        size, position, offset = disk.size(fd), 0, base_offset
        while position < size:
            raw = disk.pread(fd, HEADER_BYTES, position)
            if len(raw) < HEADER_BYTES:
                break
            header = parse_header(raw)
            if header.base_offset != offset or header.total_bytes < HEADER_BYTES:
                break
            position, offset = position + header.total_bytes, header.next_offset
        return offset
    finally:
        disk.close(fd)


def restart_path(folder: Path, at: int) -> Path:
    return segment_path(folder, at, RESTART_SUFFIX)


def announce_restart(disk: Disk, folder: Path, at: int) -> None:
    """Create the mark file. From now on, the restart is completed even after a crash."""
    replace_durably(disk, restart_path(folder, at), b"")


def carry_out_restart(disk: Disk, folder: Path, at: int) -> None:
    point = read_point(folder, disk)
    doubts = DOUBT_NEW if point is None else point.doubts
    if has_rewrite(disk, folder):
        clear_rewritten(disk, folder)
    for name in reversed(disk.names(folder)):
        is_segment = base_offset_of(name) is not None
        if is_segment or name == DAMAGE_FILE or name.endswith((CHECKPOINT_SUFFIX, SWAP_SUFFIX)):
            disk.unlink(folder / name)
    disk.close(disk.open(segment_path(folder, at)))
    disk.sync_folder(folder)
    write_point(folder, RecoveryPoint(at, doubts=doubts), disk)
    disk.unlink(restart_path(folder, at))
    disk.sync_folder(folder)


def finish_restart(disk: Disk, folder: Path) -> None:
    for name in disk.names(folder):
        stem = name.removesuffix(RESTART_SUFFIX)
        if stem != name and stem.isdigit():
            carry_out_restart(disk, folder, int(stem))
