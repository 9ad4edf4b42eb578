"""The only module that opens, syncs and unlinks.

``Disk`` is the seam: everything the log does to a file system goes through one of these methods,
so that a test can hand in a disk that is full, torn or broken without patching ``os``. Calls are
positioned (``pread``, ``pwrite``): no descriptor has a position that two callers could disagree
about.

A small file is replaced durably: written beside, synced, renamed over, folder synced. After a
power cut it is the old one or the new one, never half of each.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from penstock.model.limits import MIB

TMP_SUFFIX = ".tmp"
FILE_BYTES_MAX = 64 * MIB  # of a file that is read whole


class Disk:
    """The real one. Errors are the OSErrors of the system."""

    def open(self, path: Path) -> int:
        """For reading and writing; made when missing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        """A second descriptor of the same open file: it outlives a close and an unlink."""
        return os.dup(fd)

    def pread(self, fd: int, count: int, position: int) -> bytes:
        """As much as there is: fewer bytes than asked for only at the end of the file."""
        data = os.pread(fd, count, position)
        if len(data) == count or not data:
            return data
        parts = [data]
        got = len(data)
        while got < count:
            data = os.pread(fd, count - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """May write less than asked, as the system call does; the caller looks."""
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
        """With its parents, each durable in the one above it."""
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
        """A file that is already gone is as good as removed."""
        path.unlink(missing_ok=True)


DISK = Disk()


class SharedFile:
    """A descriptor that several hold, and that is closed when the last of them lets go: a segment
    may be closed or removed while pieces of it are on their way to a client."""

    __slots__ = ("_disk", "fd")

    def __init__(self, fd: int, disk: Disk) -> None:
        self.fd = fd
        self._disk = disk

    def pread(self, count: int, position: int) -> bytes:
        return self._disk.pread(self.fd, count, position)

    def __del__(self) -> None:
        self._disk.close(self.fd)


def write_all(disk: Disk, fd: int, data: bytes | bytearray, position: int) -> None:
    """For files that are not on the hot path: goes on after a short write."""
    view = memoryview(data)
    while view:
        count = disk.pwrite(fd, bytes(view), position)
        if count <= 0:
            raise OSError(f"pwrite wrote {count} bytes")
        view = view[count:]
        position += count


def read_whole(disk: Disk, path: Path) -> bytes | None:
    """A small file's content; None when there is no such file."""
    try:
        fd = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        return disk.pread(fd, min(disk.size(fd), FILE_BYTES_MAX), 0)
    finally:
        disk.close(fd)


def replace_durably(disk: Disk, path: Path, data: bytes) -> None:
    """When this returns, the file has this content whatever happens next."""
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
    """For looking at a log that is not ours to change: what is missing reads as empty, and
    everything that would leave a trace is refused."""

    def open(self, path: Path) -> int:
        try:
            return self.open_read(path)
        except FileNotFoundError:
            return self.open_read(Path(os.devnull))

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:  # noqa: ARG002
        raise OSError(errno.EROFS, "opened for looking only")

    def truncate(self, fd: int, length: int) -> None:  # noqa: ARG002
        raise OSError(errno.EROFS, "opened for looking only")

    def make_folder(self, folder: Path) -> None:
        raise OSError(errno.EROFS, "opened for looking only", str(folder))

    def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002
        raise OSError(errno.EROFS, "opened for looking only", str(source))

    def unlink(self, path: Path) -> None:
        raise OSError(errno.EROFS, "opened for looking only", str(path))
