"""Histograms, and records of telemetry as rows by minute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.facts.telemetry_sums import OUT, _rows_of_lists, by_minute, fold
from penstock.pipeline.sketch import count_of, merge, percentile
from penstock.wire.facts import telemetry as facts
from penstock.wire.facts.telemetry import (
    TelemetryColumns,
    TelemetryFacts,
    bucket_of,
    encode,
    packed,
)

NOW_MS = 1_700_000_400_000 // 300_000 * 300_000

PER_BUCKET = 2 ** (1 / facts.PER_DOUBLING)


def hist_of(seconds: list[float]) -> list[int]:
    counts: dict[int, int] = {}
    for value in seconds:
        counts[bucket_of(value)] = counts.get(bucket_of(value), 0) + 1
    return packed(counts)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.00001, 60), max_size=50), min_size=1, max_size=6).filter(
        lambda parts: any(parts)
    ),
    st.sampled_from([0.5, 0.9, 0.99, 0.999]),
)
def test_a_percentile_of_merged_parts_is_exact_to_one_bucket(
    parts: list[list[float]], q: float
) -> None:
    merged = merge(map(hist_of, parts))
    every = sorted(value for part in parts for value in part)
    exact = every[max(0, math.ceil(q * len(every)) - 1)]
    found = percentile(merged, q)
    assert found is not None
    assert exact <= found * (1 + 1e-12)
    assert found <= exact * PER_BUCKET * (1 + 1e-9)
    assert count_of(merged) == len(every)


def test_no_observation_has_no_percentile() -> None:
    assert percentile(merge([[], []]), 0.99) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.floats(0, 100), max_size=8)),
        min_size=1,
        max_size=30,
    )
)
def test_folding_rows_adds_numbers_and_merges_histograms(
    rows: list[tuple[int, list[float]]],
) -> None:
    table = pa.Table.from_pylist(
        [row(name=f"q{key}", requests=len(took), hist=hist_of(took)) for key, took in rows], OUT
    )
    # Folding parts and folding their results is the same as folding all at once.
    half = len(rows) // 2
    parts = pa.concat_tables([fold(table.slice(0, half)), fold(table.slice(half))])
    for result in (fold(table), fold(parts)):
        found = {each["resource"]: each for each in result.to_pylist()}
        assert result.num_rows == len({key for key, _ in rows})
        for key in {key for key, _ in rows}:
            of_key = [took for other, took in rows if other == key]
            assert found[f"q{key}"]["requests"] == sum(map(len, of_key))
            assert found[f"q{key}"]["hist"] == merge(map(hist_of, of_key))


def row(*, name: str, requests: int, hist: list[int]) -> dict[str, Any]:
    numbers = {field.name: 0 for field in OUT if field.type == pa.int64()}
    texts = {field.name: "" for field in OUT if field.type == pa.string()}
    return {
        **numbers,
        **texts,
        "at": NOW_MS * 1_000,
        "partition": -1,
        "resource": name,
        "requests": requests,
        "hist": hist,
    }


def record(
    fill: Callable[[TelemetryColumns], None], *, at_ms: int, node: str = "n1", flush: int = 1
) -> bytes:
    columns = TelemetryColumns()
    fill(columns)
    return encode(TelemetryFacts(1, node, "i", flush, at_ms, at_ms + 10_000, columns))


def input_batch(values: list[bytes]) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


def test_what_cannot_be_read_is_told_and_the_rest_is_counted() -> None:
    good = record(lambda to: to.add(facts.NODE, cpu_ms=7), at_ms=NOW_MS)
    bad = record(lambda to: to.add(facts.NODE, cpu_ms=-7), at_ms=NOW_MS)
    [batch] = by_minute([input_batch([good, b"\xc1", bad, good])])
    rows = batch.to_pylist()
    assert [each["cpu_ms"] for each in rows if each["kind"] == "node"] == [14]
    assert [each["log_end_max"] for each in rows if each["kind"] == "source"] == [4]
    why = sorted(each["op"] for each in rows if each["kind"] == "reject")
    assert [text.partition(":")[0] for text in why] == [
        "column cpu_ms has a number out of range",
        "the value is not a telemetry record",
    ]


texts = st.text(max_size=40)

counts = st.integers(0, 200) | st.integers(0, 2**54)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(texts, st.integers(-1, 40_000), counts, counts, st.lists(counts, max_size=9)),
            max_size=12,
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["", "partition", "hist", "group", "depth"]),
)
def test_rows_that_are_read_together_are_those_of_each_record(
    records: list[list[tuple[str, int, int, int, list[int]]]], missing: str
) -> None:
    values = []
    for number, table in enumerate(records):
        columns = TelemetryColumns()
        for name, partition, requests, depth, hist in table:
            columns.add(
                facts.CALLS,
                resource=name,
                partition=partition,
                requests=requests,
                depth=depth,
                hist=[*hist[:1], *hist] if hist else [],
            )
        made = TelemetryFacts(1, f"n{number}", "i", 1, NOW_MS, NOW_MS + 10_000, columns)
        plain = msgspec.to_builtins(made)
        plain["columns"].pop(missing, None)
        values.append(msgspec.msgpack.encode(plain))
    [together] = by_minute([input_batch(values)])
    want: list[dict[str, Any]] = []
    rejected = 0
    for value in values:
        try:
            want += _rows_of_lists(facts.decode(value)).to_pylist()
        except facts.TelemetryUnreadable:
            rejected += 1
    folded = fold(pa.Table.from_pylist(want, OUT)).to_pylist()
    found = together.to_pylist()
    calls = [each for each in found if each["kind"] == facts.CALLS]
    assert sorted(calls, key=str) == sorted(folded, key=str)
    assert sum(each["samples"] for each in found if each["kind"] == "reject") == rejected
