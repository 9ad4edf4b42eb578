"""CRC-32C (Castagnoli), the checksum of record batches. Hardware does it where there is any."""

from crc32c import crc32c

__all__ = ["crc32c"]
