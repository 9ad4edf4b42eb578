"""The ``.check`` file of a segment: a checksum of every batch's header.

    .check   ┌──────────────────────────────┬───────┐
             │ crc32c of the header's bytes │ crc   │     big-endian, 8 bytes, one per batch
             │ 0…60, u32                    │ u32   │
             └──────────────────────────────┴───────┘

A batch's own CRC does not cover its base offset, length and leader epoch, so that a broker can set
them. A flipped bit in one of these would move records to other offsets, or make a replica accept an
epoch that never existed. The first checksum of an entry covers them.

The second checksum covers the entry. If header and entry differ, it shows which of the two is
wrong, so damage in this file never makes a batch unreadable.
"""

import struct
from array import array
from sys import byteorder

from penstock.log.storage.entries import EntryFile
from penstock.record.batch import HEADER_BYTES
from penstock.record.crc32c import crc32c

CHECK_FIELDS = "I"
ENTRY_BYTES = 8
assert struct.calcsize(">I" + CHECK_FIELDS) == ENTRY_BYTES

assert array("I").itemsize == 4

# The check of a byte range that recovery could not read: no header matches it.
HOLE = 0


def header_check(header: bytes | memoryview) -> int:
    """Return the checksum of a header's 61 bytes. Never returns 0, which is reserved for holes."""
    assert len(header) == HEADER_BYTES
    return crc32c(header) or 1


def read_checks(checks: EntryFile, first: int, count: int) -> "array[int]":
    """Return the stored checks of consecutive batches, to compare them with headers. If a check
    differs, ``is_entry_intact`` shows whether the check itself is damaged."""
    values = array("I", checks.read_raw(first, count))
    if byteorder == "little":
        values.byteswap()
    return values[::2]


class CheckWindow:
    """The stored checks of a segment, read some at a time."""

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
        """Return whether the check shows that a header has changed. If both differ, the CRC of the
        check's entry shows which of the two is wrong; a missing check refutes nothing."""
        return header_check(header) != self.at(ordinal) and is_entry_intact(self._checks, ordinal)


def is_entry_intact(checks: EntryFile, ordinal: int) -> bool:
    return checks.read(ordinal) is not None


def is_same_checks(checks: EntryFile, first: int, values: "array[int]") -> bool:
    """Return whether the file holds exactly these checks, intact, from ``first`` to its end."""
    if checks.count != first + len(values) or read_checks(checks, first, len(values)) != values:
        return False
    return checks.is_intact(first, len(values))
