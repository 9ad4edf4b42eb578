"""The buckets of the load generator's latencies."""

from benchmarks.histogram import BUCKET_COUNT, Histogram, bucket_of, upper_edge_of
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.integers(0, 2**31)


@given(VALUES)
def test_a_value_lies_within_its_bucket_and_the_bucket_is_narrow(value_us: int) -> None:
    bucket = bucket_of(value_us)
    assert 0 <= bucket < BUCKET_COUNT
    assert value_us <= upper_edge_of(bucket) <= value_us + value_us // 64
    if bucket:
        assert upper_edge_of(bucket - 1) < value_us


def test_values_beyond_the_last_bucket_count_in_it() -> None:
    histogram = Histogram()
    histogram.record(2**60)
    assert histogram.count == 1
    assert bucket_of(2**60) == BUCKET_COUNT - 1


@given(st.lists(VALUES, min_size=1, max_size=200), st.sampled_from([50.0, 90.0, 99.0, 99.9]))
def test_a_percentile_is_at_most_one_bucket_above_the_exact_one(
    values: list[int], percent: float
) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = next(n for n in range(1, len(values) + 1) if n >= len(values) * percent / 100)
    exact = sorted(values)[rank - 1]
    assert exact <= histogram.percentile(percent) <= exact + exact // 64
    assert histogram.max_us == max(values)
    assert histogram.mean_us == sum(values) / len(values)


def test_an_empty_histogram_answers_zero() -> None:
    assert Histogram().percentile(99) == 0
    assert Histogram().mean_us == 0.0
