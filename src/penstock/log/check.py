"""A checksum of every batch's header, kept beside the segment.

    .check   ┌──────────────────────────────┬───────┐
             │ crc32c of the header's bytes │ crc   │     big-endian, 8 bytes, one per batch
             │ 0…60, u32                    │ u32   │
             └──────────────────────────────┴───────┘

A batch's own CRC leaves out its base offset, its length and its leader epoch, so that a broker
can set them. A flipped bit in one of those would move records to other offsets, or make a
replica believe in an epoch that never was. Here they are covered.

The second checksum is the entry's own: when header and entry disagree it tells which of the two
to believe, so that damage in this file never costs a batch.
"""

import struct
from array import array
from sys import byteorder

from penstock.log.entries import EntryFile
from penstock.record.batch import HEADER_BYTES
from penstock.record.crc32c import crc32c

CHECK_FIELDS = "I"
ENTRY_BYTES = 8
assert struct.calcsize(">I" + CHECK_FIELDS) == ENTRY_BYTES

assert array("I").itemsize == 4

# Stands for a range of bytes that recovery could not read: no header is held to match it.
HOLE = 0


def header_check(header: bytes | memoryview) -> int:
    """Of the 61 bytes of a header. Zero is kept free for holes."""
    assert len(header) == HEADER_BYTES
    return crc32c(header) or 1


def read_checks(checks: EntryFile, first: int, count: int) -> "array[int]":
    """Checks of consecutive batches as they stand in the file, for comparing. Whether an entry
    that differs is itself to be believed, ``is_entry_intact`` says."""
    values = array("I", checks.read_raw(first, count))
    if byteorder == "little":
        values.byteswap()
    return values[::2]


def is_entry_intact(checks: EntryFile, ordinal: int) -> bool:
    return checks.read(ordinal) is not None


def is_same_checks(checks: EntryFile, first: int, values: "array[int]") -> bool:
    """Whether the file holds exactly these, intact, from ``first`` to its end."""
    if checks.count != first + len(values) or read_checks(checks, first, len(values)) != values:
        return False
    return checks.is_intact(first, len(values))
