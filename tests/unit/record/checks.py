"""The check of a whole batch that tests use: headers and CRC, as every read of the log does."""

from penstock.record.batch import CRC_FROM, BatchHeader, check_header, parse_header
from penstock.record.crc32c import crc32c
from penstock.record.malformed import MalformedBatch


def check(buffer: bytes | bytearray | memoryview) -> BatchHeader:
    """Return the header. Raises MalformedBatch unless the buffer begins with an intact batch."""
    header = parse_header(buffer)
    check_header(header)
    if header.total_bytes > len(buffer):
        raise MalformedBatch(f"truncated by {header.total_bytes - len(buffer)} bytes")
    if crc32c(memoryview(buffer)[CRC_FROM : header.total_bytes]) != header.crc:
        raise MalformedBatch("the CRC does not match")
    return header
