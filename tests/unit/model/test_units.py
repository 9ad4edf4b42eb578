"""Durations and sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.units import DURATION, SIZE, Kind, misfit, parsed, written


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("90", DURATION, 90),
        ("90s", DURATION, 90_000),
        ("1.5h", DURATION, 5_400_000),
        ("4D", DURATION, 345_600_000),
        ("64MB", SIZE, 64_000_000),
        ("256 KiB", SIZE, 262_144),
        ("1g", SIZE, 1 << 30),
        ("", SIZE, None),
        ("-1s", DURATION, None),
        ("3 apples", SIZE, None),
        ("٣s", DURATION, None),
    ],
)
def test_what_is_read(text: str, kind: Kind, value: float | None) -> None:
    assert parsed(text, kind) == value


def test_a_number_without_a_unit_counts_the_base() -> None:
    assert parsed("90", DURATION, base=1_000) == 90_000


@given(value=st.integers(0, 10**15), kind=st.sampled_from([DURATION, SIZE]))
def test_what_is_written_is_read_as_the_same(value: int, kind: Kind) -> None:
    assert parsed(written(value, kind), kind) == value


def test_a_value_out_of_bounds_is_named_in_its_own_words() -> None:
    hours = 3_600_000
    assert misfit("13h", 13 * hours, DURATION, 0, 12 * hours) == "13h is too long: at most 12h"
    assert misfit("1kB", 1_000, SIZE, 1_024, None) == "1kB is too small: at least 1KiB"
    assert misfit("12h", 12 * hours, DURATION, 0, 12 * hours) is None
