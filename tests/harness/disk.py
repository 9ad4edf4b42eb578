"""A disk that a test may break: an ext4 file system in an image file, mounted over a loop device.

``cut()`` is a power cut: the file system is shut down without flushing its journal, so what was
synced is there after the next mount and what was not is gone. Needs root; ``unavailable()`` gives
the reason where it cannot be had. Every mount is undone on exit, whatever happened before."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType

# _IOR('X', 125, __u32) of ext4; XFS and f2fs know the same number.
EXT4_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
NO_LOG_FLUSH = 2
PROGRAM_SECONDS_MAX = 60


def unavailable() -> str | None:
    """Why no disk can be made here; None when one can."""
    if os.geteuid() != 0:
        return "needs root to mount a loop device"
    for program in ("mkfs.ext4", "mount", "umount", "losetup"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not Path("/dev/loop-control").exists():
        return "no loop devices on this machine"
    probe = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"no free loop device: {probe.stderr.strip()}"


class LoopDisk:
    """``with LoopDisk(folder, mib=64) as disk: ... disk.path`` is an empty ext4 file system."""

    def __init__(self, folder: Path, *, mib: int) -> None:
        self.image = folder / "disk.img"
        self.path = folder / "disk"
        self.mib = mib
        self.is_mounted = False

    def __enter__(self) -> LoopDisk:
        self.path.mkdir()
        with self.image.open("wb") as image:
            image.truncate(self.mib * 1_048_576)
        # No blocks kept back for root: the server under test runs as root, and would get them.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.mount()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_mounted:
            try:
                self.unmount()
            except subprocess.CalledProcessError:
                _run("umount", "--lazy", str(self.path))
        self.image.unlink()

    def mount(self) -> None:
        # The long commit interval keeps the kernel from syncing by itself what a test did not.
        _run("mount", "-o", "loop,commit=300", str(self.image), str(self.path))
        self.is_mounted = True

    def unmount(self) -> None:
        _run("umount", str(self.path))
        self.is_mounted = False

    def cut(self) -> None:
        """The power is gone: from here on every sync of the disk fails."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def come_back(self) -> None:
        """The power is back: only what had been synced is on the disk. No file may be open."""
        self.unmount()
        self.mount()

    def sync(self) -> None:
        _run("sync", "--file-system", str(self.path))

    @property
    def free_bytes(self) -> int:
        stats = os.statvfs(self.path)
        return stats.f_bavail * stats.f_frsize


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS_MAX
    )
    if done.returncode != 0:
        raise subprocess.CalledProcessError(
            done.returncode, command, done.stdout, f"{' '.join(command)}: {done.stderr}"
        )
