"""Hashes the keys of many rows as Kafka's producers do, so that records from Spark go to the same
partitions as other records with their keys.

The partition is the Murmur2 hash of the key with Kafka's seed, without its sign bit, modulo the
number of partitions. All keys of one length are hashed at once."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED: Final = 0x9747B28C
_MIX: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = 0x7FFF_FFFF

Words = npt.NDArray[np.uint32]


def hashes(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Return the hashes of binary keys. The hash of a null is not defined."""
    count = len(keys)
    edges = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + count + 1]
    raw = keys.buffers()[2]
    data = np.frombuffer(raw, np.uint8) if raw is not None else np.empty(0, np.uint8)
    begins = edges[:-1].astype(np.int64)
    sizes = np.diff(edges)
    found = np.zeros(count, np.int64)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        octets = data[begins[rows, None] + np.arange(size)]
        found[rows] = _murmur2(octets, size) & _POSITIVE
    return found


def _murmur2(octets: npt.NDArray[np.uint8], size: int) -> Words:
    whole = size & ~3
    words = np.ascontiguousarray(octets[:, :whole]).view("<u4") if whole else None
    state = np.full(len(octets), _SEED ^ size, np.uint32)
    for column in range(whole // 4):
        assert words is not None
        word = words[:, column] * _MIX
        word = (word ^ (word >> np.uint32(24))) * _MIX
        state = (state * _MIX) ^ word
    if whole < size:
        tail = np.zeros(len(octets), np.uint32)
        for at in range(whole, size):
            tail |= octets[:, at].astype(np.uint32) << np.uint32(8 * (at - whole))
        state = (state ^ tail) * _MIX
    state = (state ^ (state >> np.uint32(13))) * _MIX
    return state ^ (state >> np.uint32(15))
