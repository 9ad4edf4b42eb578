"""Which partition a message group belongs to. A contract with what is on disk: the partition count
of a FIFO queue is fixed when it is created, and another hash would send a group's next message past
those that wait. CRC-32 (the zlib polynomial) of the group's UTF-8 bytes, modulo the count."""

from zlib import crc32


def partition_of_group(group: str, partition_count: int) -> int:
    if partition_count == 1:
        return 0
    return crc32(group.encode()) % partition_count
