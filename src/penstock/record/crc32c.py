"""CRC-32C (Castagnoli), the checksum of record batches, computed by the CPU if possible."""

from crc32c import crc32c

__all__ = ["crc32c"]
