"""A disk that dies at any operation and knows what would be left of it.

Files are real. Beside them it is kept what of each has been synced, what has been written since,
and which names have been made, moved and removed since their folder was synced. ``left_behind``
then makes the folder that the next start finds: after a kill all that was done; after a power cut
any of it that was not synced may be missing, in any combination, and a write may be torn."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from penstock.log.storage.files import Disk


class Killed(Exception):
    pass


@dataclass(slots=True)
class _File:
    held: int  # a descriptor of ours: nobody else gets this inode
    versions: list[bytes] = field(default_factory=lambda: [b""])  # the synced one, and every later

    def note(self) -> None:
        self.versions.append(os.pread(self.held, os.fstat(self.held).st_size, 0))

    def left(self, chance: Random) -> bytes:
        at = chance.randrange(len(self.versions))
        if at == 0 or chance.random() < 0.5:
            return self.versions[at]
        old, new = self.versions[at - 1], self.versions[at]
        if len(new) <= len(old):
            return new  # a file is cut or it is not
        tear = chance.randint(len(old), len(new))
        filler = bytes(len(new) - tear) if chance.random() < 0.5 else b""
        return new[:tear] + filler


Change = tuple[Path | None, Path | None, int]  # name before, name after, inode


class PowerDisk(Disk):
    def __init__(self, folder: Path) -> None:
        self.operations = 0
        self.dies_at: int | None = None  # the number of the operation that does not happen
        self._files: dict[int, _File] = {}
        self._names: dict[Path, int] = {}  # as they are on disk
        self._changes: list[Change] = []
        for path in folder.rglob("*"):
            if path.is_file():
                self._names[path] = self._hold(os.open(path, os.O_RDONLY))

    def close_files(self) -> None:
        for file in self._files.values():
            os.close(file.held)
        self._files.clear()

    @property
    def is_dead(self) -> bool:
        return self.dies_at is not None and self.operations > self.dies_at

    def _is_alive(self) -> bool:
        if self.is_dead:
            return False  # what a dead process does in its last clauses has no effect
        self.operations += 1
        if self.is_dead:
            raise Killed
        return True

    def _hold(self, fd: int) -> int:
        inode = os.fstat(fd).st_ino
        file = self._files[inode] = _File(fd)
        file.note()
        del file.versions[0]
        return inode

    def _file(self, fd: int) -> _File:
        return self._files[os.fstat(fd).st_ino]

    # ── What changes something ───────────────────────────────────────────────────────────────

    def open(self, path: Path) -> int:
        if path.exists():
            return super().open(path)
        if not self._is_alive():
            return os.open(os.devnull, os.O_RDWR)
        fd = super().open(path)
        self._changes.append((None, path, self._hold(os.dup(fd))))
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if not self._is_alive():
            return len(data)
        count = super().pwrite(fd, data, position)
        self._file(fd).note()
        return count

    def truncate(self, fd: int, length: int) -> None:
        if self._is_alive():
            super().truncate(fd, length)
            self._file(fd).note()

    def sync_data(self, fd: int) -> None:
        if self._is_alive():
            file = self._file(fd)
            del file.versions[:-1]

    sync = sync_data

    def sync_folder(self, folder: Path) -> None:
        if self._is_alive():
            there = [change for change in self._changes if folder in _folders(change)]
            self._changes = [change for change in self._changes if folder not in _folders(change)]
            for change in there:
                _apply(self._names, change)

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir() or self._is_alive():
            folder.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        if self._is_alive():
            self._changes.append((source, target, source.stat().st_ino))
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if path.exists() and self._is_alive():
            self._changes.append((path, None, path.stat().st_ino))
            super().unlink(path)

    # ── Afterwards ───────────────────────────────────────────────────────────────────────────

    def left_behind(self, folder: Path, target: Path, chance: Random | None) -> None:
        """Make ``target`` what is left of ``folder``. Without chance: nothing but the process
        died."""
        names = dict(self._names)
        for change in self._changes:
            if chance is None or chance.random() < 0.5:
                _apply(names, change)
        for path, inode in names.items():
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[inode]
            copy.write_bytes(file.versions[-1] if chance is None else file.left(chance))
        target.mkdir(exist_ok=True)


def _folders(change: Change) -> set[Path]:
    return {path.parent for path in change[:2] if path is not None}


def _apply(names: dict[Path, int], change: Change) -> None:
    before, after, inode = change
    if before is not None:
        names.pop(before, None)
    if after is not None:
        names[after] = inode
