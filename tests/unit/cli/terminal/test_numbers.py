"""Durations, sizes and percentiles."""

import math

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.operate.bench import Histogram
from penstock.cli.terminal import options


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90", 90), ("90s", 90), ("1.5m", 90), ("12H", 43_200)]
)
def test_a_duration_is_a_number_with_or_without_a_unit(text: str, seconds: int) -> None:
    assert options.seconds(0, 43_200).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1 2", "13h", "1e3"])
def test_what_is_no_duration_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        options.seconds(0, 43_200).convert(text, None, None)


def test_sizes_know_both_kinds_of_thousand() -> None:
    kind = options.bytes_of(1, 10_000_000)
    assert [kind.convert(text, None, None) for text in ("1KiB", "1kb", "2M")] == [
        1_024,
        1_000,
        2_097_152,
    ]


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=300), st.floats(0.0, 100.0))
def test_a_percentile_is_exact_to_one_percent(values: list[float], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert exact * 0.999_999 <= histogram.percentile(percent) <= exact * 1.010_001


def test_the_longest_times_keep_their_maximum() -> None:
    histogram = Histogram()
    histogram.add(5_000.0)
    assert histogram.max_s == 5_000.0
    assert histogram.percentile(50) > 100


def test_nothing_measured_is_zero() -> None:
    assert set(Histogram().summary_ms().values()) == {0.0}
