"""The files of fixed-size entries beside a segment (``docs/formats/log.md``). Big-endian:

    .check   crc32c of the header's bytes 0…60 u32 · crc u32                one entry per batch
    .index   relative offset u32 · position u32 · batch ordinal u32 · crc u32    ┐ one entry per
    .time    highest timestamp so far i64 · relative offset u32 · crc u32        ┘ some kibibytes

Entries are collected in memory and written together. All can be rebuilt from the segment, so they
are not synced before an acknowledgement, and on a full disk they stay in memory. The ``crc`` of an
entry shows a flipped bit, a gap left by a crash or a file of zeros.

A batch's own CRC does not cover base offset, length and leader epoch, which a broker sets; a
flipped bit there would move records or invent an epoch. ``.check`` covers them. If header and entry
differ, the entry's ``crc`` shows which of them is wrong.

Entry n of ``.index`` and of ``.time`` describes the same batch; its ordinal is the number of its
entry in ``.check``. The first batch of a segment always has an entry, and the last batch gets one
when the segment is closed. Look-ups bisect in the file, so no index has to be in memory.
"""

import struct
from array import array
from sys import byteorder
from typing import NamedTuple

from penstock.log.storage.files import Disk, is_full
from penstock.record.batch import HEADER_BYTES
from penstock.record.crc32c import crc32c

PENDING_BYTES_MAX = 4_096
_CRC = struct.Struct(">I")


class EntryFile:
    """A file of fixed-size entries. Each has a CRC that detects changed and misplaced entries."""

    def __init__(self, fd: int, fields: str, *, disk: Disk) -> None:
        self._disk = disk
        self.fd = fd
        self._entry = struct.Struct(">I" + fields)  # the ordinal comes first, for the CRC only
        self.entry_bytes = self._entry.size  # in the file the CRC replaces the ordinal
        self._flushed = disk.size(fd) // self.entry_bytes
        self._pending = bytearray()
        self.count = self._flushed

    def append(self, *fields: int) -> None:
        raw = self._entry.pack(self.count, *fields)
        self._pending += raw[_CRC.size :] + _CRC.pack(crc32c(raw))
        self.count += 1
        if len(self._pending) >= PENDING_BYTES_MAX:
            self.flush()

    def read(self, ordinal: int) -> tuple[int, ...] | None:
        found = self.read_range(ordinal, 1)
        return found[0] if found else None

    def read_range(self, first: int, count: int) -> list[tuple[int, ...] | None]:
        raw, size = self.read_raw(first, count), self.entry_bytes
        return [self._parse(raw[i : i + size], first + i // size) for i in range(0, len(raw), size)]

    def read_raw(self, first: int, count: int) -> bytes:
        count = min(count, self.count - first)
        if first < 0 or count <= 0:
            return b""
        size = self.entry_bytes
        on_disk = max(0, min(count, self._flushed - first))
        raw = self._disk.pread(self.fd, on_disk * size, first * size) if on_disk else b""
        if len(raw) < on_disk * size:
            raw += bytes(on_disk * size - len(raw))  # the file was truncated: zeros fail the CRC
        if on_disk < count:
            start = (first + on_disk - self._flushed) * size
            raw += self._pending[start : start + (count - on_disk) * size]
        return raw

    def is_intact(self, first: int, count: int) -> bool:
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
        """Write pending entries into the page cache. On a full disk they stay in memory."""
        if not self._pending:
            return
        try:
            written = self._disk.pwrite(self.fd, self._pending, self._flushed * self.entry_bytes)
        except OSError as error:
            if not is_full(error):
                raise
            return
        whole = written // self.entry_bytes
        self._flushed += whole
        del self._pending[: whole * self.entry_bytes]

    def cut(self, count: int) -> None:
        if count >= self.count:
            return
        if count < self._flushed:
            self._disk.truncate(self.fd, count * self.entry_bytes)
            self._flushed = count
            self._pending.clear()
        else:
            del self._pending[(count - self._flushed) * self.entry_bytes :]
        self.count = count

    def last_at_most(self, key: int, *, column: int = 0) -> int | None:
        """Return the number of the last entry whose ``column`` is at most ``key``. Returns -1 if
        there is none, and None if an entry is damaged."""
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


CHECK_FIELDS = "I"
assert struct.calcsize(">I" + CHECK_FIELDS) == 8
assert array("I").itemsize == 4
HOLE = 0  # the check of a byte range that recovery could not read: no header matches it


def header_check(header: bytes | memoryview) -> int:
    """Return the checksum of a batch header. It is never 0, which marks unreadable bytes (HOLE)."""
    assert len(header) == HEADER_BYTES
    return crc32c(header) or 1


def read_checks(checks: EntryFile, first: int, count: int) -> "array[int]":
    values = array("I", checks.read_raw(first, count))
    if byteorder == "little":
        values.byteswap()
    return values[::2]


class CheckWindow:
    __slots__ = ("_ahead", "_checks", "_first", "_values")

    def __init__(self, checks: EntryFile, ahead: int) -> None:
        self._checks = checks
        self._ahead = ahead
        self._first = 0
        self._values = array("I")

    def at(self, ordinal: int) -> int | None:
        if not 0 <= ordinal - self._first < len(self._values):
            self._values = read_checks(self._checks, ordinal, self._ahead)
            self._first = ordinal
        return self._values[ordinal - self._first] if self._values else None

    def is_refuted(self, header: bytes, ordinal: int) -> bool:
        """Return whether the stored checksum is intact but does not match the header."""
        return header_check(header) != self.at(ordinal) and is_entry_intact(self._checks, ordinal)


def is_entry_intact(checks: EntryFile, ordinal: int) -> bool:
    return checks.read(ordinal) is not None


def is_same_checks(checks: EntryFile, first: int, values: "array[int]") -> bool:
    return (
        checks.count == first + len(values)
        and read_checks(checks, first, len(values)) == values
        and checks.is_intact(first, len(values))
    )


OFFSET_FIELDS = "III"
TIME_FIELDS = "qI"
assert struct.calcsize(">I" + OFFSET_FIELDS) == struct.calcsize(">I" + TIME_FIELDS) == 16

RELATIVE_MAX = 2**32 - 1  # the maximum of a relative offset or a position


class BatchStart(NamedTuple):
    relative: int  # base offset of the batch minus base offset of the segment
    position: int
    ordinal: int


START = BatchStart(0, 0, 0)


class SegmentIndex:
    def __init__(self, offsets_fd: int, times_fd: int, *, interval_bytes: int, disk: Disk) -> None:
        self.offsets = EntryFile(offsets_fd, OFFSET_FIELDS, disk=disk)
        self.times = EntryFile(times_fd, TIME_FIELDS, disk=disk)
        self._interval_bytes = interval_bytes
        last = self.offsets.read(self.offsets.count - 1)
        self._last_position = -interval_bytes if last is None else last[1]

    @property
    def count(self) -> int:
        return self.offsets.count

    def note(self, place: BatchStart, *, timestamp_max: int) -> None:
        if place.position - self._last_position >= self._interval_bytes:
            self.add(place, timestamp_max=timestamp_max)

    def add(self, place: BatchStart, *, timestamp_max: int) -> None:
        self.offsets.append(*place)
        self.times.append(timestamp_max, place.relative)
        self._last_position = place.position

    def seal(self, place: BatchStart, *, timestamp_max: int) -> None:
        if place.position != self._last_position:
            self.add(place, timestamp_max=timestamp_max)

    def find(self, relative: int) -> BatchStart | None:
        """Return the last indexed batch at or before an offset, or None if the index is damaged."""
        at = self.offsets.last_at_most(relative)
        if at is None:
            return None
        return START if at < 0 else self.place(at)

    def place(self, number: int) -> BatchStart | None:
        entry = self.offsets.read(number)
        return None if entry is None else BatchStart(*entry)

    def find_after(self, position: int) -> BatchStart | None:
        at = self.offsets.last_at_most(position, column=1)
        return None if at is None else self.place(at + 1)

    def find_time(self, timestamp_ms: int) -> int | None:
        """Return an offset before which all batches are older than a time, or None on damage."""
        at = self.times.last_at_most(timestamp_ms - 1)
        if at is None:
            return None
        entry = (0, 0) if at < 0 else self.times.read(at)
        return None if entry is None else entry[1]

    def cut(self, count: int) -> None:
        self.offsets.cut(count)
        self.times.cut(count)
        last = self.offsets.read(count - 1)
        self._last_position = -self._interval_bytes if last is None else last[1]

    def flush(self) -> None:
        self.offsets.flush()
        self.times.flush()
