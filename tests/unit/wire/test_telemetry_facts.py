"""The buckets and the form of ``__telemetry``."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.facts import telemetry
from penstock.wire.facts.telemetry import (
    BUCKET_LAST,
    BUCKET_SECONDS_MIN,
    TelemetryColumns,
    TelemetryFacts,
    TelemetryUnreadable,
    bound,
    bucket_of,
    decode,
    encode,
    packed,
    unpacked,
)


def facts(columns: TelemetryColumns, version: int = telemetry.VERSION) -> TelemetryFacts:
    return TelemetryFacts(version, "n1", "ab", 3, 1_000, 11_000, columns, left_out=2)


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False))
def test_a_value_is_above_the_bound_below_its_bucket_and_not_above_its_own(seconds: float) -> None:
    bucket = bucket_of(seconds)
    if bucket == 0:
        assert seconds <= BUCKET_SECONDS_MIN
    elif bucket == BUCKET_LAST:
        assert seconds > bound(BUCKET_LAST)
    else:
        assert bound(bucket - 1) < seconds <= bound(bucket)


def test_a_bound_is_in_the_bucket_that_ends_with_it() -> None:
    assert [bucket_of(bound(bucket)) for bucket in range(BUCKET_LAST)] == list(range(BUCKET_LAST))


@given(st.dictionaries(st.integers(0, BUCKET_LAST), st.integers(1, 2**40), max_size=20))
def test_packed_counts_are_the_same_when_unpacked(counts: dict[int, int]) -> None:
    assert unpacked(packed(counts)) == counts


def test_rows_come_back_as_they_were_added() -> None:
    columns = TelemetryColumns()
    columns.add(telemetry.CALLS, resource="jobs", op="sqs:SendMessage", requests=3, hist=[4, 1, 2])
    columns.add(telemetry.LAG, resource="jobs", partition=2, group="g", depth=7)
    read = decode(encode(facts(columns)))
    assert read.left_out == 2
    assert read.columns.kind == ["calls", "lag"]
    assert read.columns.partition == [-1, 2]
    assert read.columns.hist == [[4, 1, 2], []]
    assert read.columns.depth == [0, 7]


def test_a_column_that_is_missing_is_nothing_and_an_unknown_one_is_passed_over() -> None:
    columns = TelemetryColumns()
    columns.add(telemetry.NODE, cpu_ms=5)
    plain = msgspec.to_builtins(facts(columns))
    del plain["columns"]["rss_bytes"]
    plain["columns"]["later"] = [1]
    read = decode(msgspec.msgpack.encode(plain))
    assert read.columns.rss_bytes == [0]
    assert read.columns.cpu_ms == [5]


@pytest.mark.parametrize("hist", [[-1, 1], [BUCKET_LAST, 1, 1], [BUCKET_LAST + 1, 1]])
def test_buckets_that_do_not_exist_are_refused(hist: list[int]) -> None:
    columns = TelemetryColumns()
    columns.add(telemetry.CALLS, hist=hist)
    with pytest.raises(TelemetryUnreadable, match="bucket"):
        decode(encode(facts(columns)))


def test_what_is_no_record_of_this_version_is_refused() -> None:
    with pytest.raises(TelemetryUnreadable, match="version 9"):
        decode(encode(facts(TelemetryColumns(), version=9)))
    with pytest.raises(TelemetryUnreadable, match="not a telemetry record"):
        decode(b"\xc1")
    columns = TelemetryColumns()
    columns.add(telemetry.NODE)
    columns.op.append("one too many")
    with pytest.raises(TelemetryUnreadable, match="column op has 2 rows"):
        decode(encode(facts(columns)))
