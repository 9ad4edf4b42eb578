"""The files in a partition's folder: their names, and the calls that open, sync or unlink them.

    format                          "penstock-log 1" and a line end
    00000000000000000000.log        batches, one after the other, exactly as they are sent
    00000000000000000000.index      start of a batch every few kibibytes        (rebuildable)
    00000000000000000000.time       the highest timestamp up to that batch      (rebuildable)
    00000000000000000000.check      a checksum of every batch's header          (rebuildable)
    recovery-point                  offset up to which all is synced; whether the stop was clean
    damage                          damaged ranges that were found, as JSON
    low-watermark                   the first offset of a stream that readers may see
    <name>.0.checkpoint  .1.        two generations of a snapshot of the owner's state
    00000000000000000000.restart    decision to delete everything and begin at that offset

A segment is named by the offset of its first record. ``docs/formats/log.md`` draws the formats. All
calls go through ``Disk``, so a test can simulate a full or broken disk.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from penstock.model.limits import MIB

FORMAT_FILE = "format"
FORMAT_VERSION = 1
FORMAT_PREFIX = b"penstock-log "
RECOVERY_POINT_FILE = "recovery-point"
DAMAGE_FILE = "damage"
LOW_WATERMARK_FILE = "low-watermark"

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_SUFFIX = ".time"
CHECK_SUFFIX = ".check"
CHECKPOINT_SUFFIX = ".checkpoint"
EPOCHS_CHECKPOINT = "epochs"  # the only checkpoint that the log itself removes, when truncated
RESTART_SUFFIX = ".restart"
SIDE_SUFFIXES = (INDEX_SUFFIX, TIME_SUFFIX, CHECK_SUFFIX)

_DIGITS = 20


def segment_path(folder: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    return folder / f"{base_offset:0{_DIGITS}d}{suffix}"


def segment_paths(folder: Path, base_offset: int) -> list[Path]:
    return [segment_path(folder, base_offset, each) for each in (LOG_SUFFIX, *SIDE_SUFFIXES)]


def base_offset_of(name: str) -> int | None:
    stem, dot, suffix = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem) if dot + suffix in (LOG_SUFFIX, *SIDE_SUFFIXES) else None


def format_version(content: bytes) -> int | None:
    number = content.removeprefix(FORMAT_PREFIX).strip()
    if not content.startswith(FORMAT_PREFIX) or not number.isdigit() or len(number) > 9:
        return None
    return int(number)


TMP_SUFFIX = ".tmp"
FILE_BYTES_MAX = 64 * MIB  # limit for files that are read whole


class Disk:
    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        """Return a second descriptor of an open file. It stays valid when the first is closed."""
        return os.dup(fd)

    def pread(self, fd: int, count: int, position: int) -> bytes:
        data = os.pread(fd, count, position)
        if len(data) == count or not data:
            return data
        parts, got = [data], len(data)
        while got < count and (data := os.pread(fd, count - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(fd, data, position)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def sync_data(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            self.close(fd)

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        self.sync_folder(folder.parent)

    def names(self, folder: Path) -> Sequence[str]:
        return sorted(path.name for path in folder.iterdir())

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


DISK = Disk()


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class SharedFile:
    """A file descriptor that is closed when the last reference to this object is gone."""

    __slots__ = ("_disk", "fd")

    def __init__(self, fd: int, disk: Disk) -> None:
        self.fd = fd
        self._disk = disk

    def pread(self, count: int, position: int) -> bytes:
        return self._disk.pread(self.fd, count, position)

    def __del__(self) -> None:
        self._disk.close(self.fd)


def write_all(disk: Disk, fd: int, data: bytes | bytearray, position: int) -> None:
    view = memoryview(data)
    while view:
        count = disk.pwrite(fd, bytes(view), position)
        if count <= 0:
            raise OSError(f"pwrite wrote only {count} bytes")
        view = view[count:]
        position += count


def read_whole(disk: Disk, path: Path) -> bytes | None:
    try:
        fd = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        return disk.pread(fd, min(disk.size(fd), FILE_BYTES_MAX), 0)
    finally:
        disk.close(fd)


def replace_durably(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a file's content durably. After a power cut, the file has the old or new content."""
    tmp = path.with_name(path.name + TMP_SUFFIX)
    fd = disk.open(tmp)
    try:
        disk.truncate(fd, 0)
        write_all(disk, fd, data, 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(tmp, path)
    disk.sync_folder(path.parent)


class ReadOnlyDisk(Disk):
    """A disk for inspection only. Missing files read as empty, and every write fails."""

    def open(self, path: Path) -> int:
        try:
            return self.open_read(path)
        except FileNotFoundError:
            return self.open_read(Path(os.devnull))

    def _refuse(self, *args: object) -> NoReturn:
        paths = [str(each) for each in args if isinstance(each, Path)]
        raise OSError(errno.EROFS, "the disk is opened read-only", *paths[:1])

    pwrite = truncate = make_folder = rename = unlink = _refuse  # type: ignore[assignment]
