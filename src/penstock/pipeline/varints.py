"""Zig-zag varints by the thousand: the same field of many records is read in one go.

``record/varint.py`` reads one; this reads a vector of them, which is what makes decoding in numpy
worth while. Positions are never trusted: reads are clipped to the buffer, so a wrong one gives a
wrong number and no crash. Whoever decodes checks that the fields add up; see ``records``.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_BITS: Final = 7
_BYTES_MAX: Final = 10  # 64 bits in groups of seven
_LAST_BYTE_MAX: Final = 1  # the tenth byte has room for one bit


class Unreadable(ValueError):
    """Some varint of the vector is none. Which one, the slow way finds out."""


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """The values that stand at these positions, and the positions behind them."""
    byte = data.take(at, mode="clip")
    if not at.size or byte.max() < 0x80:
        low = byte.astype(np.int64)
        return (low >> 1) ^ -(low & 1), at + 1
    # Two bytes for all without a branch: deltas and sizes of one topic straddle 64 all the time.
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
    """Those of three bytes and more; the first two have been read."""
    raw = low.astype(np.uint64)
    at = at.copy()
    live = np.arange(at.size)
    for index in range(2, _BYTES_MAX):
        byte = data.take(at[live], mode="clip")
        if index == _BYTES_MAX - 1 and (byte > _LAST_BYTE_MAX).any():
            raise Unreadable("a varint of more than 64 bits")
        raw[live] |= (byte & 0x7F).astype(np.uint64) << np.uint64(_BITS * index)
        at[live] += 1
        live = live[byte >= 0x80]
        if not live.size:
            break
    sign = (raw & np.uint64(1)).astype(np.int64)
    return (raw >> np.uint64(1)).astype(np.int64) ^ -sign, at
