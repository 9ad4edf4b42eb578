"""Whether another clock is ahead, found out from timestamps that have just arrived."""

import pytest

from penstock.model.troubles import CLOCK_SKEW_MS_MAX
from penstock.node.cluster.cluster_troubles import ClockSkew

START, WRITE_MS = 1_800_000_000_000, 10_000


def looks(*stamps: tuple[int, int | None]) -> list[int]:
    """What a look says at each second, with the newest timestamp less START."""
    clocks = ClockSkew(write_ms=WRITE_MS)
    return [
        clocks.look(
            None if newest is None else START + newest,
            wall_ms=START + at_s * 1_000,
            mono_ms=at_s * 1_000,
        )
        for at_s, newest in stamps
    ]


def test_two_timestamps_from_the_future_are_a_skew() -> None:
    assert looks((0, 0), (1, 5_000), (2, 5_000), (11, 16_000)) == [0, 0, 0, 5_000]


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, CLOCK_SKEW_MS_MAX])
def test_timestamps_that_are_old_or_hardly_ahead_are_none(ahead_ms: int) -> None:
    assert not any(looks(*((at_s, at_s * 1_000 + ahead_ms) for at_s in range(40))))


def test_one_timestamp_is_none_however_often_it_is_looked_at() -> None:
    assert not any(looks((0, 0), *((at_s, 3_600_000) for at_s in range(1, 100))))


def test_what_was_there_at_the_start_is_not_new() -> None:
    assert not any(looks((0, 9_000), (1, 9_000), (2, 9_500)))


def test_a_clock_that_is_set_right_is_forgotten_after_three_writes() -> None:
    wrong = [(0, 0), (1, 6_000), (11, 16_000)]
    told = looks(*wrong, *((at_s, 16_000) for at_s in range(12, 50)))
    assert told[2:] == [5_000] * 21 + [0] * 18


def test_a_node_without_a_replica_says_nothing() -> None:
    assert not any(looks((0, None), (1, 9_000), (2, None), (3, 99_000), (4, None)))
