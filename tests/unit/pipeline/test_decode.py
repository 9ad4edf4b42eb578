"""Record batches to Arrow, held against the codec that reads records one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.decoding import decode_batches

from penstock.model.ports import Marker
from penstock.pipeline.decoding.decoder import TYPES, CorruptBatch, Decoder, OnCorrupt
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    encode_batch,
    parse_header,
    repacked,
)
from penstock.record.compression import Codec
from penstock.record.control import encode_control_batch, encode_marker_batch
from penstock.record.malformed import MalformedBatch
from penstock.record.record import RawRecord, encode_record, iter_records

ALL = tuple(TYPES)
BASE_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Made:
    raw: bytes
    is_aborted: bool = False

    @property
    def rows(self) -> list[RawRecord]:
        if self.is_aborted or parse_header(self.raw).is_control:
            return []
        return list(iter_records(self.raw))


def batch(
    records: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[bytes, bytes | None]]]],
    *,
    base_offset: int = 0,
    attributes: int = 0,
    base_ms: int = BASE_MS,
    deltas_ms: Sequence[int] = (),
    producer_id: int = -1,
    kept: Sequence[int] | None = None,
) -> bytes:
    """``kept``: which records compaction has left."""
    encoded = [
        encode_record(
            offset_delta=index,
            timestamp_delta=deltas_ms[index] if deltas_ms else index,
            key=key,
            value=value,
            headers=headers,
        )
        for index, (key, value, headers) in enumerate(records)
    ]
    raw = encode_batch(
        encoded,
        base_offset=base_offset,
        leader_epoch=3,
        base_timestamp=base_ms,
        max_timestamp=base_ms + 99,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
    )
    if kept is not None:
        raw = repacked(parse_header(raw), [encoded[index] for index in kept])
    return raw


def rows_of(found: pa.RecordBatch) -> list[tuple[object, ...]]:
    """In the terms of RawRecord."""
    assert found.schema.equals(pa.schema([(name, TYPES[name]) for name in ALL]))
    found.validate(full=True)
    times = found.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [
        tuple((pair["key"].encode(), pair["value"]) for pair in each or ())
        for each in found.column("headers").to_pylist()
    ]
    return list(
        zip(
            found.column("offset").to_pylist(),
            [at_us // 1_000 for at_us in times],
            found.column("key").to_pylist(),
            found.column("value").to_pylist(),
            headers,
            strict=True,
        )
    )


def expected(made: Sequence[Made], begin: int = 0, end: int = 2**62) -> list[tuple[object, ...]]:
    return [
        (row.offset, row.timestamp, row.key, row.value, tuple(row.headers))
        for each in made
        for row in each.rows
        if begin <= row.offset < end
    ]


_names = st.text(max_size=70).map(str.encode)
_content = st.none() | st.binary(max_size=200)
_record = st.tuples(
    _content, _content, st.lists(st.tuples(_names, st.none() | st.binary(max_size=90)), max_size=4)
)


@st.composite
def logs(draw: st.DrawFn) -> list[Made]:
    """Batches as they may follow each other in a partition."""
    made: list[Made] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 12))):
        offset += draw(st.integers(0, 3))  # whole batches that compaction has taken
        kind = draw(
            st.sampled_from(["plain"] * 6 + ["compacted", "append time", "ours", "aborted"])
        )
        if kind == "ours":
            raw = encode_control_batch(
                [(64, b"lease")], base_offset=offset, leader_epoch=1, timestamp=BASE_MS
            )
            made.append(Made(raw))
            offset = parse_header(raw).next_offset
            continue
        records = draw(st.lists(_record, min_size=1, max_size=8))
        count = len(records)
        deltas = draw(st.lists(st.integers(-(2**40), 2**40), min_size=count, max_size=count))
        kept = None
        if kind == "compacted":
            kept = sorted(draw(st.sets(st.integers(0, count - 1), max_size=count)))
        codec = 0 if kept is not None else draw(st.integers(0, 4))
        attributes = codec | (ATTR_APPEND_TIME if kind == "append time" else 0)
        is_aborted = kind == "aborted"
        if is_aborted:
            attributes |= ATTR_TRANSACTIONAL
        raw = batch(
            records,
            base_offset=offset,
            attributes=attributes,
            deltas_ms=deltas,
            kept=kept,
            producer_id=7 if is_aborted else -1,
        )
        made.append(Made(raw, is_aborted))
        offset = parse_header(raw).next_offset
        if is_aborted:
            made.append(Made(marker(7, offset, is_commit=False)))
            offset += 1
    return made


def marker(producer_id: int, offset: int, *, is_commit: bool) -> bytes:
    raw = encode_marker_batch(Marker(producer_id, 0, is_commit), timestamp=BASE_MS)
    return offset.to_bytes(8, "big") + raw[8:]


def aborted_of(made: Sequence[Made]) -> list[tuple[int, int]]:
    return [(7, parse_header(each.raw).base_offset) for each in made if each.is_aborted]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_a_chunk_decodes_to_the_records_that_the_record_codec_finds(
    made: list[Made], data: st.DataObject
) -> None:
    first = parse_header(made[0].raw).base_offset
    last = parse_header(made[-1].raw).next_offset
    begin = data.draw(st.integers(first, last))
    end = data.draw(st.integers(begin, last))
    chunk = b"".join(each.raw for each in made)
    cut = data.draw(st.integers(0, 60))  # of a batch that did not fit into the answer

    decoder = Decoder(topic="t", partition=3, columns=ALL, begin=begin, end=end)
    parts = list(decoder.decode([memoryview(chunk + made[0].raw[:cut])], aborted_of(made)))

    rows = [row for part in parts for row in rows_of(part)]
    assert rows == expected(made, begin, end)
    assert decoder.next_offset == (end if begin < end else begin)


@settings(max_examples=60, deadline=None)
@given(logs(), st.data())
def test_damaged_bytes_give_an_error_that_names_them_and_never_a_wrong_crash(
    made: list[Made], data: st.DataObject
) -> None:
    """Checksums are made right again: what a careless producer writes, not what a disk does."""
    chosen = data.draw(st.integers(0, len(made) - 1))
    raw = bytearray(made[chosen].raw)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(61, len(raw) - 1)) if len(raw) > 61 else 60] ^= data.draw(
            st.integers(1, 255)
        )
    made[chosen] = Made(sealed(bytes(raw)), made[chosen].is_aborted)
    chunk = [b"".join(each.raw for each in made)]

    corrupt: CorruptBatch | None = None
    rows = []
    try:
        rows = rows_of(decode_batches(chunk, columns=ALL, aborted=aborted_of(made)))
    except CorruptBatch as error:
        corrupt = error
    if corrupt is not None:
        header = parse_header(made[chosen].raw)
        assert corrupt.offset == header.base_offset
        others = [each for number, each in enumerate(made) if number != chosen]
        left = decode_batches(
            chunk, columns=ALL, aborted=aborted_of(made), on_corrupt=OnCorrupt.SKIP
        )
        if not header.is_control:  # a marker that cannot be read leaves its transaction open
            assert rows_of(left) == expected(others)
        return
    try:
        truth = expected(made)
    except MalformedBatch:
        # Sums within a frame of LZ4 are not looked at again: the batch's own covers its bytes.
        assert parse_header(made[chosen].raw).codec == Codec.LZ4
        return
    names_as_read = [
        (*row[:4], tuple((name.decode("utf-8", "replace").encode(), to) for name, to in row[4]))  # type: ignore[attr-defined]
        for row in truth
    ]
    assert rows == names_as_read


def sealed(raw: bytes) -> bytes:
    """The same with a checksum that fits."""
    from penstock.record.crc32c import crc32c

    return raw[:17] + crc32c(raw[21:]).to_bytes(4, "big") + raw[21:]


@pytest.mark.parametrize(("batches", "records"), [(400, 30), (3, 4_000), (150, 1)])
def test_wide_narrow_and_uneven_chunks_decode_alike(batches: int, records: int) -> None:
    """Wide ones are walked in lock-step, the ends of long chains one by one."""
    chance = random.Random(batches)
    made = []
    offset = 0
    for _ in range(batches):
        count = chance.randint(1, records)
        rows = [
            (chance.randbytes(chance.randint(0, 20)), chance.randbytes(chance.randint(0, 300)), ())
            for _ in range(count)
        ]
        made.append(Made(batch(rows, base_offset=offset)))
        offset += count
    chunk = b"".join(each.raw for each in made)
    assert rows_of(decode_batches([chunk], columns=ALL)) == expected(made)


def test_several_answers_are_one_chunk() -> None:
    first = batch([(b"a", b"1", ())], base_offset=5)
    second = batch([(b"b", b"2", ())], base_offset=6)
    found = decode_batches([first, memoryview(second)], columns=("offset",))
    assert found.column("offset").to_pylist() == [5, 6]


def test_a_transaction_that_began_before_the_answer_is_left_out_up_to_its_end() -> None:
    aborted = batch([(b"a", b"no", ())], base_offset=10, attributes=0x10, producer_id=7)
    end = marker(7, 11, is_commit=False)
    later = batch([(b"a", b"yes", ())], base_offset=12, attributes=0x10, producer_id=7)
    chunk = [aborted + end + later]
    found = decode_batches(chunk, columns=("value",), aborted=[(7, 3)])
    assert found.column("value").to_pylist() == [b"yes"]


def test_only_the_columns_that_were_asked_for_are_made_in_their_order() -> None:
    found = decode_batches(
        [batch([(b"k", b"v", ())])], columns=("offset", "topic", "key"), topic="orders"
    )
    assert found.schema.names == ["offset", "topic", "key"]
    assert found.to_pylist() == [{"offset": 0, "topic": "orders", "key": b"k"}]


def test_names_of_headers_that_are_no_text_get_replacement_characters() -> None:
    found = decode_batches([batch([(None, None, [(b"\xff", b"x")])])], columns=("headers",))
    assert found.column("headers").to_pylist() == [[{"key": "\ufffd", "value": b"x"}]]


@pytest.mark.parametrize("value", [None, b"", b"x" * 200])
def test_the_servers_own_header_is_shown_of_its_own_batches_only(value: bytes | None) -> None:
    given: list[tuple[bytes, bytes | None]] = [(b"penstock", value), (b"a", b"1")]
    record = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"v", headers=given)
    alone = encode_record(
        offset_delta=1, timestamp_delta=0, key=None, value=b"v", headers=given[:1]
    )
    later = encode_record(
        offset_delta=2, timestamp_delta=0, key=None, value=b"v", headers=given[::-1]
    )
    times = {"base_timestamp": BASE_MS, "max_timestamp": BASE_MS}
    place = {"base_offset": 0, "leader_epoch": 0}
    raw = [
        encode_batch([record, alone, later], **times, **place, attributes=ATTR_APPEND_TIME),
        encode_batch(
            [record, alone, later], **times, base_offset=3, leader_epoch=0, attributes=Codec.GZIP
        ),
    ]
    found = decode_batches([b"".join(raw)], columns=ALL)
    rows = [headers for *_, headers in rows_of(found)]
    assert rows[:3] == [tuple(given), tuple(given[:1]), tuple(given[::-1])]
    assert rows[3:] == [tuple(given[1:]), (), tuple(given[::-1])]


def test_a_wrong_checksum_is_an_error_that_says_where_or_is_counted() -> None:
    good = batch([(b"k", b"v", ())], base_offset=8)
    bad = bytearray(batch([(b"k", b"v", ())], base_offset=9))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch) as caught:
        decode_batches([good + bad], topic="orders", partition=2)
    assert "topic orders, partition 2, at offset 9" in str(caught.value)

    decoder = Decoder(topic="orders", partition=2, on_corrupt=OnCorrupt.SKIP)
    rows = [row for part in decoder.decode([good + bad]) for row in part.to_pylist()]
    assert [row["offset"] for row in rows] == [8]
    assert (decoder.corrupt_count, decoder.next_offset) == (1, 10)


def test_a_length_that_is_none_is_an_error_even_when_batches_may_be_skipped() -> None:
    bad = bytearray(batch([(b"k", b"v", ())], base_offset=9))
    bad[8:12] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="an invalid length of 2147483647 bytes"):
        decode_batches([bytes(bad)], on_corrupt=OnCorrupt.SKIP)


def test_a_batch_that_claims_more_records_than_it_has_bytes_for_is_refused() -> None:
    raw = bytearray(batch([(b"k", b"v", ())]))
    raw[23:27] = raw[57:61] = (2**31 - 2).to_bytes(4, "big")
    with pytest.raises(CorruptBatch):
        decode_batches([sealed(bytes(raw))])


def test_no_arrow_batch_has_more_rows_than_spark_likes() -> None:
    small = [(None, b"", ())] * 1_000
    chunk = b"".join(batch(small, base_offset=1_000 * number) for number in range(250))
    sizes = [part.num_rows for part in Decoder(topic="t", partition=0).decode([chunk])]
    assert sizes == [100_000, 100_000, 50_000]
