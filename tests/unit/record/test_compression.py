import resource
import struct
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.record.compression import XERIAL_MAGIC, Codec, compress, decompress
from penstock.record.malformed import MalformedBatch

MIB = 1_048_576
CODECS = list(Codec)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(CODECS), st.binary(max_size=2_000), st.integers(1, 50))
def test_what_is_compressed_comes_back(codec: Codec, data: bytes, repeat: int) -> None:
    data *= repeat
    packed = compress(codec, data)
    assert decompress(codec, packed, bytes_max=len(data)) == data
    if data:
        with pytest.raises(MalformedBatch):
            decompress(codec, packed, bytes_max=len(data) - 1)


def test_java_framed_and_raw_snappy_are_both_read() -> None:
    data = bytes(range(256)) * 400
    raw = bytes(cramjam.snappy.compress_raw(data))
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(XERIAL_MAGIC)
    assert decompress(Codec.SNAPPY, raw, bytes_max=len(data)) == data
    assert decompress(Codec.SNAPPY, framed, bytes_max=len(data)) == data


def test_gzip_of_another_maker_is_read() -> None:
    maker = zlib.compressobj(9, zlib.DEFLATED, 31)
    assert decompress(Codec.GZIP, maker.compress(b"x" * 99) + maker.flush(), bytes_max=99)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_is_refused_without_the_memory_it_asks_for(codec: Codec) -> None:
    bomb = compress(codec, bytes(256 * MIB)) if codec != Codec.SNAPPY else snappy_bomb()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MalformedBatch):
        decompress(codec, bomb, bytes_max=MIB)
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after_kib - before_kib < 64 * 1_024


def snappy_bomb() -> bytes:
    """A raw block that claims four gigabytes, in Java's frame."""
    block = b"\xff\xff\xff\xff\x0f" + b"\x00" * 30
    return XERIAL_MAGIC + struct.pack(">II", 1, 1) + struct.pack(">I", len(block)) + block


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7]), st.binary(max_size=100), st.booleans())
def test_noise_raises_the_one_error_or_decompresses(codec: int, noise: bytes, framed: bool) -> None:
    if framed:
        noise = XERIAL_MAGIC + noise
    try:
        assert len(decompress(codec, noise, bytes_max=10_000)) <= 10_000
    except MalformedBatch:
        pass


def test_an_unknown_codec_is_malformed() -> None:
    with pytest.raises(MalformedBatch, match="codec 6"):
        compress(6, b"")
    with pytest.raises(MalformedBatch, match="codec 6"):
        decompress(6, b"", bytes_max=1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_very_good_ratio_is_no_bomb_while_it_fits(codec: Codec) -> None:
    data = bytes(8 * MIB)
    assert decompress(codec, compress(codec, data), bytes_max=len(data)) == data
