"""Blocks of facts read in bulk, against what ``wire/facts`` reads of them one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.pipeline.facts import make_facts, totals_of, totals_of_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.kafka_client.client import Place
from penstock.pipeline.client.options import parse_read_options
from penstock.pipeline.decoding import packed_columns
from penstock.pipeline.decoding.packed_columns import Columns, UnusualRecords, read_columns
from penstock.pipeline.facts import usage_sums
from penstock.pipeline.facts.usage_sums import (
    HOUR_MS,
    PARTIAL_BY,
    PARTIAL_SCHEMA,
    Flushes,
    PartialFile,
    Share,
    first_hour,
    partials,
    seal_share,
    shares_of,
)
from penstock.pipeline.parts import write_parts
from penstock.pipeline.reading.expand import _usage_at_once, _usage_one_by_one, expand_usage
from penstock.pipeline.reading.fetching import RangePartition
from penstock.pipeline.reading.offsets import StreamOffset
from penstock.pipeline.reading.stream_source import RangeReader
from penstock.wire.facts.usage import (
    FORM,
    NUMBERS,
    TEXTS,
    UsageColumns,
    UsageFacts,
    encode,
)

Raws = Mapping[str, msgspec.Raw]


def block(**columns: Any) -> Raws:
    return {name: msgspec.Raw(msgspec.msgpack.encode(each)) for name, each in columns.items()}


def read(blocks: Sequence[Raws]) -> Columns:
    return read_columns(blocks, texts=("t",), numbers=("n", "s"), signed=("s",))


# ── Columns ──────────────────────────────────────────────────────────────────────────────────

names = st.text(max_size=40) | st.text(alphabet="ab", min_size=30, max_size=260)
numbers = st.integers(0, 127) | st.integers(0, 2**63 - 1) | st.integers(-40, 2**64 - 1)
rows = st.lists(st.tuples(names, numbers, st.integers(-32, 70_000)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(rows, st.booleans()), max_size=12))
def test_what_is_read_in_bulk_is_what_was_written_and_the_rest_is_named(
    tables: list[tuple[list[tuple[str, int, int]], bool]],
) -> None:
    blocks: list[Raws] = []
    for table, has_numbers in tables:
        columns: dict[str, Any] = {"t": [row[0] for row in table], "s": [row[2] for row in table]}
        if has_numbers:
            columns["n"] = [row[1] for row in table]
        blocks.append(block(**columns))
    odd: set[int] = set()
    left = list(range(len(blocks)))
    while True:
        try:
            found = read([blocks[number] for number in left])
            break
        except UnusualRecords as error:
            named = {left[number] for number in error.numbers}
        assert named  # or this would go on for ever
        odd |= named
        left = [number for number in left if number not in odd]
    known = [
        all(len(t.encode()) < 256 and (not has or 0 <= n < 2**63) for t, n, _ in table)
        for table, has in tables
    ]
    assert left == [number for number, is_known in enumerate(known) if is_known]
    assert found.counts.tolist() == [len(tables[number][0]) for number in left]
    chosen = [(row, has) for number in left for table, has in [tables[number]] for row in table]
    assert found.texts["t"].to_pylist() == [row[0] for row, _ in chosen]
    assert found.numbers["n"].tolist() == [row[1] if has else 0 for row, has in chosen]
    assert found.numbers["s"].tolist() == [row[2] for row, _ in chosen]


def test_many_chains_of_unequal_length_are_followed_side_by_side_and_then_singly() -> None:
    chance = random.Random(5)
    tables = [
        [
            (f"{'x' * chance.randrange(50)}", chance.choice([1, 300, 70_000, 2**40]))
            for _ in range(n)
        ]
        for n in [*(chance.randrange(30) for _ in range(200)), 1_000, 0, 700]
    ]
    blocks = [block(t=[row[0] for row in t], n=[row[1] for row in t]) for t in tables]
    found = read(blocks)
    assert found.texts["t"].to_pylist() == [row[0] for table in tables for row in table]
    assert found.numbers["n"].tolist() == [row[1] for table in tables for row in table]
    assert found.numbers["s"].tolist() == [0] * sum(map(len, tables))


@pytest.mark.parametrize(
    "odd",
    [
        block(t=["a", "b"], n=[1]),
        block(t=["a"], n=[1, 2]),
        block(t=["a"], n=7),
        block(t="a", n=[1]),
        block(n=[1]),
        block(t=["a"], n=["1"]),
        block(t=["a"], n=[1.0]),
        block(t=["a"], n=[None]),
        block(t=["a"], n=[True]),
        block(t=["a"], n=[[1]]),
        block(t=["a"], n=[-1]),
        block(t=["a"], n=[-1_000]),
        block(t=["a"], n=[2**63]),
        block(t=["a"], s=[2**64 - 5]),
        block(t=["a"], s=[-33]),
        block(t=[5], n=[1]),
        block(t=[None], n=[1]),
        {"t": msgspec.Raw(b"\x91\xa1\xff"), "n": msgspec.Raw(b"\x91\x01")},
    ],
)
def test_a_column_that_no_writer_writes_is_named_and_spoils_no_other(odd: Raws) -> None:
    good = block(t=["x", "y"], n=[1, 2], s=[-1, 3])
    with pytest.raises(UnusualRecords) as error:
        read([good, odd, good])
    assert list(error.value.numbers) == [1]


def test_nothing_is_read_from_nothing() -> None:
    found = read([])
    assert (len(found.counts), len(found.texts["t"]), len(found.numbers["n"])) == (0, 0, 0)


# ── Usage ────────────────────────────────────────────────────────────────────────────────────


def input_batch(values: Sequence[bytes]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


@pytest.mark.parametrize(("read_bytes", "fold_rows"), [(1, 1), (20_000, 700), (10**8, 10**8)])
def test_sums_are_the_same_however_much_is_read_together(
    read_bytes: int, fold_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_columns, "READ_BYTES", read_bytes)
    monkeypatch.setattr(usage_sums, "FOLD_ROWS", fold_rows)
    made = make_facts(60, rows=37)
    out = partials([input_batch([value for _, value in made])], Flushes())
    found = out.sums.to_pylist()
    assert totals_of_rows(found) == totals_of(facts for facts, _ in made)
    assert sum(row["facts"] for row in found) == 60 * 37
    assert {(each.node, each.first_flush, each.last_flush) for each in out.flushes} == {
        (f"node-{n}", 1, 20) for n in range(3)
    }


def test_unusual_records_count_and_impossible_ones_are_kept_apart() -> None:
    """What bulk reading does not know goes the slow way, each for itself."""
    made = [facts for facts, _ in make_facts(6, rows=3, nodes=1)]
    made[1].columns.resource = ["q" * 300] * 3  # longer than any name, yet a text
    unusual = msgspec.to_builtins(made[2])
    del unusual["columns"]["throttled"]  # from before there was such a column
    unusual["columns"]["later"] = [1, 2, 3]
    made[3].columns.requests = [1, -1, 1]
    made[4].columns.kind = ["calls", "x", "calls"]
    values = [encode(each) for each in made]
    values[2] = msgspec.msgpack.encode(unusual)
    values[5] = values[5].replace(b"\xa8requests", b"\xa8rEquests")  # gone, and another unknown
    out = partials([input_batch([*values, b"\x80"])], Flushes())
    made[5].columns.requests = [0, 0, 0]
    totals = totals_of([made[0], made[1], made[2], made[5]])
    assert totals_of_rows(out.sums.to_pylist()) == totals
    reasons = {each.offset: each.reason for each in out.rejected}
    assert reasons[3] == "column requests has a number below zero"
    assert reasons[4] == "a row has an unknown kind"
    assert reasons[6].startswith("the value is not a usage record")
    assert sorted(reasons) == [3, 4, 6]


def test_records_become_the_same_rows_at_once_and_one_by_one() -> None:
    made = [facts for facts, _ in make_facts(9, rows=4)]
    for number in (0, 3, 4, 8):
        made[number].columns = UsageColumns()
    batch = input_batch([encode(each) for each in made])
    assert _usage_at_once(batch).equals(_usage_one_by_one(batch))
    spoiled = input_batch([encode(made[1]), b"x", encode(made[2])])
    kinds = expand_usage(spoiled).column("error").is_null().to_pylist()
    assert kinds == [True] * 4 + [False] + [True] * 4
    beyond = UsageFacts(1, "n", "i", 2**63, 0, 0, UsageColumns())
    (error,) = expand_usage(input_batch([encode(beyond)])).column("error").to_pylist()
    assert error == "flush has a number that does not fit in 64 bits"


def test_a_block_and_facts_agree_on_what_is_no_record() -> None:
    good = make_facts(1, rows=2)[0][0]
    for value in (b"", b"\xc1", b"\x80", encode(msgspec.structs.replace(good, v=9))):
        reasons = []
        for way in (FORM.block, FORM.decode):
            with pytest.raises(Exception, match="usage record") as error:
                way(value)
            reasons.append(str(error.value))
        assert reasons[0] == reasons[1]
    assert set(FORM.block(encode(good)).columns) == {*TEXTS, *NUMBERS}


# ── Ranges ───────────────────────────────────────────────────────────────────────────────────


def reader(**options: str) -> RangeReader:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **options}
    return RangeReader(parse_read_options(given, is_streaming=True))


@pytest.mark.parametrize(("count", "tasks"), [(40, 1), (4_000, 4)])
def test_a_large_range_is_shared_out_among_the_cores_and_a_small_one_is_not(
    count: int, tasks: int
) -> None:
    ranges = reader(minPartitions="4")
    start, end = ({Place("t", 0): at} for at in (100, 100 + count))
    cut = ranges.partitions(StreamOffset(start).to_json(), StreamOffset(end).to_json())
    assert len(cut) == tasks
    told: list[str] = []
    counted = 0
    for each in cut:
        assert isinstance(each, RangePartition)
        for batch in ranges.read(each):
            column = batch.column("range")
            counted += len(column)
            told += column.drop_null().to_pylist()
    assert counted == count  # the progress of a query counts records
    edges = [msgspec.json.decode(text)[2:] for text in told]
    assert edges[0][0] == 100
    assert edges[-1][1] == 100 + count
    assert all(before[1] == after[0] for before, after in pairwise(edges))


# ── Sealing ──────────────────────────────────────────────────────────────────────────────────


def test_hours_are_shared_out_by_day_with_the_files_that_may_hold_them() -> None:
    day = 20_454 * 24
    files = [
        PartialFile("a", "calls", day, day + 3),
        PartialFile("b", "storage", day + 3, day + 30),
    ]
    shares = shares_of(dict.fromkeys(range(day, day + 26), 7), files)
    assert [sorted(share.through) for share in shares] == [
        list(range(day, day + 6)),
        list(range(day + 6, day + 12)),
        list(range(day + 12, day + 18)),
        list(range(day + 18, day + 24)),
        [day + 24, day + 25],
    ]
    assert shares[0].files == {"calls": ["a"], "storage": ["b"]}
    assert shares[1].files == {"calls": [], "storage": ["b"]}
    assert not shares_of({day - 1: 7}, files)
    heartbeat = PartialFile("c", "flush", day - 1, day - 1)
    assert not shares_of({day - 1: 7}, [*files, heartbeat])
    assert first_hour([*files, heartbeat]) == day - 1
    unknown = PartialFile("d", "calls", None, None)
    assert shares_of({day - 1: 7}, [unknown])[0].files["calls"] == ["d"]


def test_an_hour_has_the_partials_up_to_its_turn_and_no_others(tmp_path: Path) -> None:
    hour = 491_000

    def row(number: int, turn: int, requests: int, op: str = "o") -> dict[str, Any]:
        nothing = dict.fromkeys((field.name for field in PARTIAL_SCHEMA), 0)
        texts = {f.name: "x" for f in PARTIAL_SCHEMA if f.type == pa.string()}
        at_us = number * HOUR_MS * 1_000
        mine = {"hour": at_us, "kind": "calls", "op": op, "turn": turn, "requests": requests}
        return {**nothing, **texts, **mine, "date": at_us // 86_400_000_000}

    rows = [
        row(hour, 1, 1), row(hour, 2, 10), row(hour, 3, 100),
        row(hour + 1, 3, 1_000), row(hour + 1, 1, 5, "p"), row(hour + 2, 1, 10_000),
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, PARTIAL_SCHEMA)
    parts = write_parts(table.to_batches(), tmp_path / "in", PARTIAL_BY, is_tracked=False)
    paths = [str(tmp_path / "in" / part.path) for part in parts]
    share = Share({hour: 2, hour + 1: 3}, {"calls": paths, "storage": []})
    found = []
    for part in seal_share(share, tmp_path):
        path = tmp_path / "usage_hourly" / part.path
        found += pq.ParquetFile(path).read().to_pylist()
    got = sorted((each["through"], each["op"], each["requests"]) for each in found)
    assert got == [(2, "o", 11), (3, "o", 1_000), (3, "p", 5)]
