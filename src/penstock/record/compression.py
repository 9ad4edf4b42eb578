"""The five codecs of a record batch. A few hundred bytes can expand to gigabytes, so the output
buffer grows at most to ``bytes_max``. Snappy has two forms: a raw block, and the framed form of
Java producers (a 16-byte header, then blocks with a 4-byte length each)."""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from mmap import mmap

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
XERIAL_BLOCK_BYTES = 32 * 1_024  # the size that Java uses

_XERIAL_BLOCK_BYTES_MIN = 256  # on average; a million tiny blocks would take a second
_LENGTH = struct.Struct(">I")
_GUESS_BYTES = 64 * 1_024
_GUESS_RATIO = 4
_ZEROED_BYTES_MAX = 1_048_576  # larger memory is mapped: zeroing 64 MiB takes 30 ms
_NO_ROOM = "Too much to write"  # text of the library's error; a test fails if it changes

_DecompressInto = Callable[[bytes, cramjam.Buffer], int]
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


class TooLarge(MalformedBatch):
    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the decompressed records exceed {bytes_max} bytes")


def decompress(codec: int, data: bytes, *, bytes_max: int) -> bytes:
    """Return the decompressed data. Raises TooLarge if it has more than ``bytes_max`` bytes."""
    found = decompress_to_view(codec, data, bytes_max=bytes_max)
    return found if isinstance(found, bytes) else bytes(found)


def decompress_to_view(codec: int, data: bytes, *, bytes_max: int) -> bytes | memoryview:
    """Return the decompressed data like ``decompress``, but without copying large data."""
    if codec == Codec.NONE:
        if len(data) > bytes_max:
            raise TooLarge(bytes_max)
        return data
    if codec == Codec.SNAPPY:
        if not data.startswith(XERIAL_MAGIC):
            return _decompress_blocks([memoryview(data)], bytes_max)
        return _decompress_blocks(_xerial_blocks(data, bytes_max), bytes_max)
    stream = _STREAMS.get(codec)
    if stream is None:
        raise MalformedBatch(f"unknown compression codec {codec}")
    return _decompress_stream(stream, data, bytes_max)


def _decompress_stream(stream: _DecompressInto, data: bytes, bytes_max: int) -> memoryview:
    """Decompress data whose decompressed size is unknown: try a likely size, then larger ones."""
    capacity = min(bytes_max, max(_GUESS_BYTES, _GUESS_RATIO * len(data)))
    while True:
        out = _memory(capacity)
        try:
            size = stream(data, cramjam.Buffer(out, copy=False))
        except cramjam.DecompressionError as error:
            # Only the error's text distinguishes a small buffer from invalid data. Retrying both
            # would make a few invalid bytes as expensive as the largest batch.
            if _NO_ROOM not in str(error):
                raise MalformedBatch(f"the records cannot be decompressed: {error}") from None
            if capacity >= bytes_max:
                raise TooLarge(bytes_max) from None
            capacity = min(bytes_max, 8 * capacity)
            continue
        return memoryview(out)[:size]


def _decompress_blocks(blocks: Sequence[memoryview], bytes_max: int) -> memoryview:
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        total = sum(sizes)
        if total > bytes_max:
            raise TooLarge(bytes_max)
        out = memoryview(_memory(total))
        at = 0
        for block, size in zip(blocks, sizes, strict=True):
            target = cramjam.Buffer(out[at : at + size], copy=False)
            if size and cramjam.snappy.decompress_raw_into(block, target) != size:
                raise MalformedBatch(f"a snappy block cannot be decompressed into {size} bytes")
            at += size
    except cramjam.DecompressionError as error:
        raise MalformedBatch(f"the records cannot be decompressed: {error}") from None
    return out


def _memory(size: int) -> bytearray | mmap:
    return bytearray(size) if size <= _ZEROED_BYTES_MAX else mmap(-1, size)


def _xerial_blocks(data: bytes, bytes_max: int) -> list[memoryview]:
    view = memoryview(data)
    blocks: list[memoryview] = []
    position = XERIAL_HEAD.size
    while position < len(data):
        if len(data) - position < _LENGTH.size:
            raise MalformedBatch("the length prefix of a snappy block is incomplete")
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if size == 0 or size > len(data) - position:
            raise MalformedBatch(f"a snappy block of {size} bytes runs past the end of the batch")
        if len(blocks) > bytes_max // _XERIAL_BLOCK_BYTES_MIN:
            raise TooLarge(bytes_max)
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _compress_xerial(data: bytes) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEAD.pack(XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)
