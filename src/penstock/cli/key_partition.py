"""Chooses the partition of a key as Kafka's own producers do, so that a record sent from the
command line goes to the partition of the other records of its key: murmur2 of the key's bytes with
Kafka's seed, its sign bit cleared, modulo the number of partitions."""

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF


def murmur2(data: bytes) -> int:
    size = len(data)
    whole = size & ~3
    state = _SEED ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        state = state * _MIX & _WORD ^ word
    if whole < size:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return state ^ state >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(data=key) & _POSITIVE) % partition_count
