"""Work that a log hands to a thread: syncing dirty files and unlinking removed segments. Neither
touches anything that the log's thread may change meanwhile."""

from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from penstock.log.storage.checkpoint import RecoveryPoint, write_point
from penstock.log.storage.files import Disk, is_full

if TYPE_CHECKING:
    from penstock.log.log import Log


class SyncJob:
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
        self.is_point_owed = False  # the disk was full: the next sync writes the point

    def run(self) -> None:
        """Sync everything. After an error the log refuses appends, because the kernel may mark lost
        pages as clean, so that a second sync would falsely succeed."""
        try:
            for fd in self._fds:
                self._disk.sync_data(fd)
            if self._folder is not None:
                self._disk.sync_folder(self._folder)
        except OSError as error:
            self._log.refuse_appends(f"sync failed: {error}")
            raise
        finally:
            while self._fds:
                self._disk.close(self._fds.pop())
        if self._point is not None:
            try:
                write_point(self._log.folder, self._point, self._disk)
            except OSError as error:
                if not is_full(error):
                    self._log.refuse_appends(f"writing the recovery point failed: {error}")
                    raise
                self.is_point_owed = True


class Detached:
    """Segments removed from a log, oldest first. After a crash the log may have them again."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = Lock()
        self.paths: list[Path] = []
        self.freed_bytes = 0
        self.is_removed = False

    def remove(self) -> int:
        """Unlink the files and return the bytes freed. Thread-safe."""
        with self._lock:
            if not self.is_removed:
                for path in self.paths:
                    self._disk.unlink(path)
                self.is_removed = True
        return self.freed_bytes
