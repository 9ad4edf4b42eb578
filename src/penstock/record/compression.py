"""The five codecs of a record batch, with a bound on what comes out.

A few hundred bytes can claim to be gigabytes, so nothing is decompressed into memory that the
caller has not agreed to: output goes into a buffer of our own size, grown at most to
``bytes_max``. Snappy comes in two dresses: the raw block, and the framed form that Java producers
send (a 16-byte head, then blocks with a 4-byte length each).
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from penstock.record.malformed import MalformedBatch


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Java's snappy framing:  82 'S' 'N' 'A' 'P' 'P' 'Y' 00 | version u32 | compatible u32 | blocks…
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEAD = struct.Struct(">8sII")
assert XERIAL_HEAD.size == 16
XERIAL_BLOCK_BYTES = 32 * 1_024  # what Java writes

_LENGTH = struct.Struct(">I")
_GUESS_BYTES = 64 * 1_024
_GUESS_RATIO = 4
_NO_ROOM = "write whole buffer"  # a test with a high ratio fails if the library changes it

_DecompressInto = Callable[[bytes, bytearray], int]
_STREAMS: dict[int, _DecompressInto] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def compress(codec: int, data: bytes) -> bytes:
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6))
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.LZ4:
        # The level is explicit: the library's default is the slow high-compression mode.
        return bytes(cramjam.lz4.compress(data, level=0))
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    raise MalformedBatch(f"unknown compression codec {codec}")


def decompress(codec: int, data: bytes, *, bytes_max: int) -> bytes:
    """Raises MalformedBatch when the data is not of that codec or is larger than ``bytes_max``."""
    if codec == Codec.NONE:
        if len(data) > bytes_max:
            raise MalformedBatch(f"{len(data)} bytes of records, {bytes_max} are allowed")
        return data
    if codec == Codec.SNAPPY:
        if data.startswith(XERIAL_MAGIC):
            return _decompress_xerial(data, bytes_max)
        return _decompress_block(data, bytes_max)
    stream = _STREAMS.get(codec)
    if stream is None:
        raise MalformedBatch(f"unknown compression codec {codec}")
    return _decompress_stream(stream, data, bytes_max)


def _decompress_stream(stream: _DecompressInto, data: bytes, bytes_max: int) -> bytes:
    """These formats need not say how large they are: try a likely size, then larger ones."""
    capacity = min(bytes_max, max(_GUESS_BYTES, _GUESS_RATIO * len(data)))
    while True:
        out = bytearray(capacity)
        try:
            size = stream(data, out)
        except cramjam.DecompressionError as error:
            # Only the text of the error tells "too small" from "not this format". Trying both
            # again would make a few bytes of noise cost as much as the largest batch.
            if capacity >= bytes_max or _NO_ROOM not in str(error):
                raise MalformedBatch(
                    f"records do not decompress into {bytes_max} bytes: {error}"
                ) from None
            capacity = min(bytes_max, 8 * capacity)
            continue
        del out[size:]
        return bytes(out)


def _decompress_block(data: bytes | memoryview, bytes_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > bytes_max:
            raise MalformedBatch(f"records do not decompress into {bytes_max} bytes")
        raw: Any = cramjam.snappy.decompress_raw(data)
    except cramjam.DecompressionError as error:
        raise MalformedBatch(f"records do not decompress: {error}") from None
    return bytes(raw)


def _decompress_xerial(data: bytes, bytes_max: int) -> bytes:
    view = memoryview(data)
    blocks = []
    position = XERIAL_HEAD.size
    while position < len(data):
        if len(data) - position < _LENGTH.size:
            raise MalformedBatch("a snappy block has no length")
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if size == 0 or size > len(data) - position:
            raise MalformedBatch(f"a snappy block of {size} bytes runs past the end of the batch")
        block = _decompress_block(view[position : position + size], bytes_max)
        bytes_max -= len(block)
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _compress_xerial(data: bytes) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEAD.pack(XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)
