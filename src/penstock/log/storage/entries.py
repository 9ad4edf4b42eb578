"""A file of fixed-size entries beside a segment: the base of index, time index and check.

Entries are collected in memory and written together, not with one system call per append. Each
entry has a checksum, so a flipped bit, a gap left by a crash or a file of zeros is noticed when
the entry is read. All entries can be rebuilt from the segment, so they are not synced before an
acknowledgement, and a full disk is not an error: entries stay in memory until the next attempt.
"""

import struct
from pathlib import Path

from penstock.log.storage.files import Disk, is_full
from penstock.record.crc32c import crc32c

PENDING_BYTES_MAX = 4_096
_CRC = struct.Struct(">I")


class EntryFile:
    """Entries of ``fields``, each with a CRC-32C over (ordinal, fields). The ordinal is not stored,
    so an entry at the wrong position fails its CRC."""

    __slots__ = ("_disk", "_entry", "_fd", "_flushed", "_pending", "count", "entry_bytes", "path")

    def __init__(self, path: Path, fd: int, fields: str, *, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._fd = fd
        self._entry = struct.Struct(">I" + fields)  # the ordinal comes first, for the CRC only
        self.entry_bytes = self._entry.size  # in the file the CRC replaces the ordinal
        self._flushed = disk.size(fd) // self.entry_bytes
        self._pending = bytearray()
        self.count = self._flushed

    @property
    def fd(self) -> int:
        return self._fd

    def append(self, *fields: int) -> None:
        raw = self._entry.pack(self.count, *fields)
        self._pending += raw[_CRC.size :] + _CRC.pack(crc32c(raw))
        self.count += 1
        if len(self._pending) >= PENDING_BYTES_MAX:
            self.flush()

    def read(self, ordinal: int) -> tuple[int, ...] | None:
        """Return the fields, or None if the entry is missing or damaged."""
        found = self.read_range(ordinal, 1)
        return found[0] if found else None

    def read_range(self, first: int, count: int) -> list[tuple[int, ...] | None]:
        """Return up to ``count`` entries from ``first`` on, with None for each damaged one."""
        size = self.entry_bytes
        raw = self.read_raw(first, count)
        return [
            self._parse(raw[at : at + size], first + at // size) for at in range(0, len(raw), size)
        ]

    def read_raw(self, first: int, count: int) -> bytes:
        """Return the bytes of up to ``count`` entries, unchecked."""
        count = min(count, self.count - first)
        if first < 0 or count <= 0:
            return b""
        size = self.entry_bytes
        on_disk = max(0, min(count, self._flushed - first))
        raw = self._disk.pread(self._fd, on_disk * size, first * size) if on_disk else b""
        if len(raw) < on_disk * size:
            raw += bytes(on_disk * size - len(raw))  # the file was truncated: zeros fail the CRC
        if on_disk < count:
            start = (first + on_disk - self._flushed) * size
            raw += self._pending[start : start + (count - on_disk) * size]
        return raw

    def is_intact(self, first: int, count: int) -> bool:
        """Return whether all these entries exist and pass their CRC."""
        raw, size, pack = self.read_raw(first, count), self.entry_bytes, _CRC.pack
        middle = size - _CRC.size
        for at in range(0, len(raw), size):
            numbered = pack(first + at // size) + raw[at : at + middle]
            if pack(crc32c(numbered)) != raw[at + middle : at + size]:
                return False
        return len(raw) == count * size

    def _parse(self, raw: bytes, ordinal: int) -> tuple[int, ...] | None:
        numbered = _CRC.pack(ordinal) + raw[: -_CRC.size]
        if crc32c(numbered) != _CRC.unpack_from(raw, len(raw) - _CRC.size)[0]:
            return None
        return self._entry.unpack(numbered)[1:]

    def flush(self) -> None:
        """Write pending entries into the page cache. On a full disk they stay in memory, at most
        those of one segment, until the next attempt."""
        if not self._pending:
            return
        try:
            written = self._disk.pwrite(self._fd, self._pending, self._flushed * self.entry_bytes)
        except OSError as error:
            if not is_full(error):
                raise
            return
        whole = written // self.entry_bytes
        self._flushed += whole
        del self._pending[: whole * self.entry_bytes]

    def cut(self, count: int) -> None:
        """Remove the entries from ``count`` on."""
        if count >= self.count:
            return
        if count < self._flushed:
            self._disk.truncate(self._fd, count * self.entry_bytes)
            self._flushed = count
            self._pending.clear()
        else:
            del self._pending[(count - self._flushed) * self.entry_bytes :]
        self.count = count

    def last_at_most(self, key: int, *, column: int = 0) -> int | None:
        """Return the number of the last entry whose column is at most ``key``, by bisection on the
        file; −1 if there is none, None if a damaged entry was met."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self.read(middle)
            if entry is None:
                return None
            if entry[column] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1
