"""Long batches cut into chains, compressed ones unpacked side by side, headers read as columns: the
short cuts of the decoder, each held against the codec that reads records one by one."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.decoding import decode_batches
from tests.unit.pipeline.test_decode import BASE_MS, Made, batch, expected, logs, rows_of

from penstock.pipeline.decoding.batches import (
    FULL_BYTES,
    Unpacker,
    complete_batches,
    read_batch_headers,
)
from penstock.pipeline.decoding.decoder import TYPES, Decoder
from penstock.pipeline.decoding.records import Chains, cut
from penstock.record.batch import HEADER_BYTES, encode_batch, parse_header
from penstock.record.compression import Codec
from penstock.record.malformed import MalformedBatch
from penstock.record.record import encode_record, encode_varint, iter_records

ALL = tuple(TYPES)
MIB = 1_048_576


def long_batch(values: Sequence[bytes], *, codec: int = 0, base_offset: int = 0) -> bytes:
    return batch(
        [(b"k" if number % 3 else None, value, ()) for number, value in enumerate(values)],
        base_offset=base_offset,
        attributes=codec,
        deltas_ms=[number * number % 300_000 for number in range(len(values))],
    )


def cut_up(raw: bytes) -> Chains:
    whole = [np.array([at], np.int64) for at in (HEADER_BYTES, len(raw), parse_header(raw).count)]
    return cut(np.frombuffer(raw, np.uint8), Chains(*whole), np.array([True]))


def starts_of(raw: bytes) -> list[int]:
    """Of its records, found one after another."""
    starts, at = [], HEADER_BYTES
    while at < len(raw):
        starts.append(at)
        size = shift = 0
        while True:
            byte = raw[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        at += size >> 1
    return starts


# ── Chains ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("count", "spread"), [(5_000, 0), (5_000, 300), (20_000, 40)])
def test_a_long_batch_is_cut_at_records_and_decodes_like_a_short_one(
    count: int, spread: int
) -> None:
    chance = random.Random(count + spread)
    raw = long_batch([chance.randbytes(80 + chance.randint(0, spread)) for _ in range(count)])
    chains = cut_up(raw)
    assert len(chains.starts) > 50
    assert set(chains.starts.tolist()) <= set(starts_of(raw))
    assert int(chains.counts.sum()) == count
    assert rows_of(decode_batches([raw], columns=ALL)) == expected([Made(raw)])


def test_values_that_look_like_the_record_that_is_searched_for_mislead_nobody() -> None:
    """Each value holds whole records, with the delta of the one that it is in and of the next."""

    def disguised(number: int) -> bytes:
        inner = b"".join(
            encode_record(offset_delta=delta, timestamp_delta=0, key=None, value=b"false")
            for delta in (number + 1, number + 2, number)
        )
        return encode_varint(number) + inner * 2

    raw = long_batch([disguised(number) for number in range(4_000)])
    chains = cut_up(raw)
    assert len(chains.starts) > 1
    assert not set(chains.starts.tolist()) <= set(starts_of(raw))  # they do look like it
    assert rows_of(decode_batches([raw], columns=ALL)) == expected([Made(raw)])


def test_records_with_long_lengths_decode_beside_short_ones() -> None:
    sizes = [10, 9_000, 20, 3 * MIB, 0, 8_191, 8_192, 63, 64] + [100] * 500
    raw = long_batch([bytes(size) for size in sizes])
    small = b"".join(
        long_batch([b"x"] * 3, base_offset=len(sizes) + 3 * number) for number in range(300)
    )
    made = [Made(raw), *(Made(small[at:]) for at in complete_batches(small))]
    found = rows_of(decode_batches([raw + small], columns=ALL))
    assert [row[0] for row in found] == list(range(len(sizes) + 900))
    assert found[: len(sizes)] == expected(made[:1])


def test_compacted_batches_are_not_cut() -> None:
    rows = [(None, b"v" * 50, ())] * 3_000
    raw = batch(rows, kept=range(0, 3_000, 2))
    assert rows_of(decode_batches([raw], columns=ALL)) == expected([Made(raw)])


# ── Headers only ─────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60, deadline=None)
@given(logs(), st.data())
def test_columns_that_stand_in_headers_are_the_same_as_those_of_a_whole_read(
    made: list[Made], data: st.DataObject
) -> None:
    first = parse_header(made[0].raw).base_offset
    last = parse_header(made[-1].raw).next_offset
    begin = data.draw(st.integers(first, last))
    end = data.draw(st.integers(begin, last))
    chunk = b"".join(each.raw for each in made)
    names = ("timestampType", "offset", "partition", "topic")
    some, whole = (
        decode_batches([chunk], columns=columns, topic="t", partition=3, begin=begin, end=end)
        for columns in (names, ALL)
    )
    assert some.equals(whole.select(names))


def test_records_are_not_looked_at_for_a_count_but_their_checksum_is() -> None:
    records = [b"\x0e" + bytes(7)] * 5  # none of them has a record's fields
    raw = encode_batch(
        records, base_offset=7, leader_epoch=0, base_timestamp=BASE_MS, max_timestamp=BASE_MS
    )
    assert decode_batches([raw], columns=("offset",)).column(0).to_pylist() == [7, 8, 9, 10, 11]
    with pytest.raises(Exception, match="corrupt batch"):
        decode_batches([raw[:-1] + b"\x01"], columns=("offset",))


# ── Unpacking ────────────────────────────────────────────────────────────────────────────────────


def lz4_frame(
    blocks: Sequence[bytes], *, flags: int, stored: Sequence[int] = (), block_code: int = 4
) -> bytes:
    """As other producers than ours write it; checksums are zero, nobody looks at them."""
    out = [b"\x04\x22\x4d\x18", bytes([0x40 | flags, block_code << 4])]
    out.append(struct.pack("<Q", sum(map(len, blocks))) if flags & 0x08 else b"")
    out.append(b"\0")
    for number, block in enumerate(blocks):
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        size = len(packed)
        if number in stored:
            packed, size = block, len(block) | 0x8000_0000
        out += [struct.pack("<I", size), packed, bytes(4 if flags & 0x10 else 0)]
    return b"".join([*out, bytes(4), bytes(4 if flags & 0x04 else 0)])


def repacked_with(raw: bytes, records: bytes, codec: int) -> bytes:
    from penstock.record.crc32c import crc32c

    head = bytearray(raw[:HEADER_BYTES])
    head[8:12] = (HEADER_BYTES - 12 + len(records)).to_bytes(4, "big")
    head[21:23] = codec.to_bytes(2, "big")
    head[17:21] = crc32c(bytes(head[21:]) + records).to_bytes(4, "big")
    return bytes(head) + records


@pytest.mark.parametrize("flags", [0x20, 0x30, 0x28, 0x24, 0x3C, 0x00])
@pytest.mark.parametrize("block_bytes", [1_000, 65_536])
def test_frames_of_lz4_as_others_write_them_are_unpacked(flags: int, block_bytes: int) -> None:
    plain = long_batch([random.Random(number).randbytes(30) * 4 for number in range(900)])
    body = plain[HEADER_BYTES:]
    if not flags & 0x20:
        block_bytes = 65_536 * 4  # blocks that stand for themselves: a single one
    blocks = [body[at : at + block_bytes] for at in range(0, len(body), block_bytes)]
    frame = lz4_frame(blocks, flags=flags, stored=[1], block_code=4 if block_bytes <= 65_536 else 5)
    raw = repacked_with(plain, frame, Codec.LZ4)
    assert rows_of(decode_batches([raw], columns=ALL)) == expected([Made(plain)])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_large_batches_of_every_codec_are_unpacked_beside_plain_ones(codec: Codec) -> None:
    """Larger than a block of any of them, so that blocks lean on the ones before."""
    values = [random.Random(number % 9).randbytes(900) for number in range(600)]
    made = [
        Made(long_batch(values, codec=codec if number % 2 else 0, base_offset=600 * number))
        for number in range(4)
    ]
    chunk = b"".join(each.raw for each in made)
    assert rows_of(decode_batches([chunk], columns=ALL)) == expected(made)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_frames_of_lz4_are_malformed_and_nothing_worse(data: st.DataObject) -> None:
    plain = long_batch([bytes([number % 7]) * 40 for number in range(60)])
    body = plain[HEADER_BYTES:]
    frame = bytearray(lz4_frame([body[:1_000], body[1_000:]], flags=data.draw(st.integers(0, 63))))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    raw = repacked_with(plain, bytes(frame[: data.draw(st.integers(0, len(frame)))]), Codec.LZ4)
    heads, is_sound = read_batch_headers(raw, [0])
    assert is_sound.all()
    try:
        found = Unpacker().unpack(raw, heads)
    except MalformedBatch:
        return
    assert len(found.octets) == found.stops[0]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_what_expands_to_much_is_unpacked_some_at_a_time(codec: Codec) -> None:
    made = [
        long_batch([bytes(MIB)] * 6, codec=codec, base_offset=6 * number) for number in range(9)
    ]
    chunk = b"".join(made)
    assert len(chunk) < MIB
    heads, _ = read_batch_headers(chunk, complete_batches(chunk))
    found = Unpacker().unpack(chunk, heads)
    assert len(found.starts) == 6
    assert FULL_BYTES <= len(found.octets) < FULL_BYTES + 7 * MIB

    decoder = Decoder(topic="t", partition=0, columns=("offset", "value"))
    parts = list(decoder.decode([chunk]))
    assert [part.num_rows for part in parts] == [36, 18]
    offsets = [at for part in parts for at in part.column("offset").to_pylist()]
    assert offsets == list(range(54))
    assert len(list(iter_records(made[0]))) == 6
