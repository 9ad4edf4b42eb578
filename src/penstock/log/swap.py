"""Putting rewritten segments in the place of old ones, so that a crash at any point leaves the old
or the new, never some of each.

A segment is four files and may replace several, so no single rename does it. The new files are
made in a folder of their own; then an empty file is put beside the old ones whose name says what
is about to happen. From that moment on whoever opens the log carries it to its end.

    rewritten/<base>.log .index .time .check     written and synced
    <base>-<end>.swap                            made, folder synced: the decision
    rewritten/<base>.* renamed over <base>.*     in any order, nothing synced in between
    segments that start behind base and before end removed, likewise
    folder synced
    <base>-<end>.swap                            removed, folder synced: done

Until the mark is gone, the side files beside the segment are not believed: they may belong to the
batches before or after. They are removed when the log is opened, and built again.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from penstock.log.files import Disk, replace_durably
from penstock.log.layout import LOG_SUFFIX, SIDE_SUFFIXES, base_offset_of, segment_path
from penstock.record.batch import HEADER_BYTES, parse_header

SPARE_FOLDER = "rewritten"
SWAP_SUFFIX = ".swap"
_NAME = re.compile(r"(\d{20})-(\d{20})\.swap\Z")


def spare_folder(folder: Path) -> Path:
    return folder / SPARE_FOLDER


def mark_path(folder: Path, base_offset: int, end_offset: int) -> Path:
    return folder / f"{base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"


def is_in_swap(disk: Disk, folder: Path, base_offset: int) -> bool:
    """Whether a swap that was decided and not finished speaks of this segment."""
    marks = (_NAME.match(name) for name in disk.names(folder))
    return any(int(mark[1]) <= base_offset < int(mark[2]) for mark in marks if mark is not None)


def has_rewrite(disk: Disk, folder: Path) -> bool:
    """Whether anything of a rewrite is there, decided or not."""
    return any(name == SPARE_FOLDER or _NAME.match(name) for name in disk.names(folder))


def clear_spare(disk: Disk, folder: Path) -> None:
    """Make room for the next rewrite. A mark whose removal failed must not speak of its files."""
    for name in disk.names(folder):
        match = _NAME.match(name)
        if match is not None:
            conclude(disk, folder, int(match[1]), int(match[2]))
    spare = spare_folder(folder)
    disk.make_folder(spare)
    for name in disk.names(spare):
        disk.unlink(spare / name)


def announce(disk: Disk, folder: Path, base_offset: int, end_offset: int) -> None:
    """The new files are whole and synced: from here on they will take the place of the old."""
    disk.sync_folder(spare_folder(folder))
    replace_durably(disk, mark_path(folder, base_offset, end_offset), b"")


def move_in(disk: Disk, folder: Path, base_offset: int) -> None:
    for suffix in (LOG_SUFFIX, *SIDE_SUFFIXES):
        source = segment_path(spare_folder(folder), base_offset, suffix)
        disk.rename(source, segment_path(folder, base_offset, suffix))


def remove_segments(disk: Disk, folder: Path, bases: Iterable[int]) -> None:
    for base_offset in bases:
        for suffix in (LOG_SUFFIX, *SIDE_SUFFIXES):
            disk.unlink(segment_path(folder, base_offset, suffix))


def conclude(disk: Disk, folder: Path, base_offset: int, end_offset: int) -> None:
    """All is in its place. A mark that came back later would vouch for files of another rewrite,
    so its removal is made durable before there can be one."""
    disk.sync_folder(folder)
    disk.unlink(mark_path(folder, base_offset, end_offset))
    disk.sync_folder(folder)


def withdraw(disk: Disk, folder: Path, base_offset: int, end_offset: int) -> None:
    """Nothing has been moved and nothing will be. The mark goes first: without its files it would
    be taken for one whose files have been moved."""
    conclude(disk, folder, base_offset, end_offset)
    clear_spare(disk, folder)


def finish_swaps(disk: Disk, folder: Path) -> None:
    """At opening: carry what was decided to its end, and remove what was not."""
    names = set(disk.names(folder))
    for name in sorted(names):
        match = _NAME.match(name)
        if match is not None:
            _finish(disk, folder, names, int(match[1]), int(match[2]))
    if SPARE_FOLDER in names:
        clear_spare(disk, folder)


def _finish(disk: Disk, folder: Path, names: set[str], base_offset: int, end_offset: int) -> None:
    path = segment_path(folder, base_offset)
    spare = segment_path(spare_folder(folder), base_offset)
    if path.name in names:  # otherwise it was dropped meanwhile, and stays dropped
        if SPARE_FOLDER in names and spare.name in disk.names(spare.parent):
            disk.rename(spare, path)
        for suffix in SIDE_SUFFIXES:
            disk.unlink(segment_path(folder, base_offset, suffix))
        # What follows is removed only if the segment really holds it all.
        if _last_offset(disk, path, base_offset) == end_offset:
            bases = {base_offset_of(name) for name in names} - {None}
            inside = (
                base for base in bases if base is not None and base_offset < base < end_offset
            )
            remove_segments(disk, folder, sorted(inside))
    conclude(disk, folder, base_offset, end_offset)


def _last_offset(disk: Disk, path: Path, base_offset: int) -> int:
    """Where a segment ends, going from header to header."""
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
