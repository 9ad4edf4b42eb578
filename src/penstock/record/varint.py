"""Zig-zag varints, as used in records: small magnitudes take one byte, whatever their sign.

    value  0  1 -1  2 -2 …   is stored as   0  2  1  4  3 …   in groups of seven bits, lowest first

The record codecs inline the one-byte case; this module has the general case and the tables.
"""

from penstock.record.malformed import MalformedBatch

VARINT_BYTES_MAX = 10  # 64 bits in groups of seven


def encode_varint(value: int) -> bytes:
    if 0 <= value < _TABLE_SIZE:
        return SMALL[value]
    return _encode(value)


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the value at ``position`` and the position after it."""
    try:
        byte = buffer[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        raw = byte & 0x7F
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            position += 1
            byte = buffer[position]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1), position + 1
    except IndexError:
        raise MalformedBatch("a varint runs past the end of the batch") from None
    raise MalformedBatch(f"a varint is longer than {VARINT_BYTES_MAX} bytes")


# Lengths and deltas are nearly always small: a table look-up is four times as fast as the loop.
_TABLE_SIZE = 4_096
SMALL: tuple[bytes, ...] = tuple(_encode(value) for value in range(_TABLE_SIZE))
