"""Reads vectors of zig-zag varints: the same field of many records at once.

``record/record.py`` reads a single varint. Positions are not trusted: reads are clipped to the
buffer, so a wrong position gives a wrong number and no crash. The caller checks that fields end
where their record ends; see ``records``.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_BITS: Final = 7
_BYTES_MAX: Final = 10  # 64 bits in groups of seven
_LAST_BYTE_MAX: Final = 1  # the tenth byte has one bit


class Unreadable(ValueError):
    """At least one varint of the vector is invalid. The caller must find out which."""


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Return the values at these positions, and the positions after them."""
    byte = data.take(at, mode="clip")
    if not at.size or byte.max() < 0x80:
        low = byte.astype(np.int64)
        return (low >> 1) ^ -(low & 1), at + 1
    # Reads two bytes for all, without a branch: many deltas and sizes are just above or below 64.
    goes_on = byte >> _BITS
    second = data.take(at + 1, mode="clip")
    raw = (second & 0x7F).astype(np.int64)
    raw *= goes_on
    raw <<= _BITS
    raw |= byte & 0x7F
    after = at + 1
    after += goes_on
    value = (raw >> 1) ^ -(raw & 1)
    more = np.flatnonzero(second & (goes_on << _BITS))
    if more.size:
        value[more], after[more] = _long(data, raw[more], after[more])
    return value, after


def _long(data: Bytes, low: Longs, at: Longs) -> tuple[Longs, Longs]:
    """Read the rest of varints of three and more bytes, whose first two have been read."""
    raw = low.astype(np.uint64)
    at = at.copy()
    live = np.arange(at.size)
    for index in range(2, _BYTES_MAX):
        byte = data.take(at[live], mode="clip")
        if index == _BYTES_MAX - 1 and (byte > _LAST_BYTE_MAX).any():
            raise Unreadable("a varint has more than 64 bits")
        raw[live] |= (byte & 0x7F).astype(np.uint64) << np.uint64(_BITS * index)
        at[live] += 1
        live = live[byte >= 0x80]
        if not live.size:
            break
    sign = (raw & np.uint64(1)).astype(np.int64)
    return (raw >> np.uint64(1)).astype(np.int64) ^ -sign, at
