"""Plans, hot spots and lags: pure functions, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.facts import rebalance
from penstock.pipeline.facts import telemetry_sums as health
from penstock.pipeline.facts.rebalance import Action, Load, PartitionId, Placed, Plan, plan
from penstock.pipeline.facts.telemetry_sums import Point, State, lag_of

NODES = [f"n{number}" for number in range(4)]
NOW_MS = 1_700_000_000_000


def replay(window: Sequence[Placed], made: Plan) -> list[Placed]:
    """Return the window as if the plan had been applied: moved partitions are on their targets, and
    the load of a split partition is divided equally between its source and its target."""
    by_id = {step.id: step for step in made.steps}
    after: list[Placed] = []
    for placed in window:
        step = by_id.get(placed.id)
        if step is None:
            after.append(placed)
        elif step.action is Action.MOVE:
            after.append(Placed(placed.id, step.target, placed.load, placed.size_bytes))
        else:
            load = placed.load
            half = Load(load.bytes_in / 2, load.bytes_out / 2, load.requests / 2)
            after.append(Placed(placed.id, placed.node, half, placed.size_bytes))
            after.append(Placed(placed.id, step.target, half, 0))
    return after


def skew(window: Sequence[Placed], nodes: Iterable[str]) -> float:
    """Return the busiest node's load divided by the mean; 1 is even."""
    loads = rebalance._by_node(window, rebalance._scores(window), sorted(set(nodes)))
    return rebalance._skew(loads)


def placed(number: int, node: str, weight: float, size_bytes: int = 1_000) -> Placed:
    load = Load(bytes_in=weight * 100, bytes_out=weight * 300, requests=weight)
    return Placed(PartitionId("a", "r", f"topic-{number // 8}", number % 8), node, load, size_bytes)


def skewed(seed: int, count: int = 64) -> list[Placed]:
    """Most of the load on one node of four, spread over its partitions unevenly."""
    chance = Random(seed)
    return [
        placed(
            n, "n0" if n % 2 else NODES[1 + n % 3], chance.paretovariate(2.5) * (4 if n % 2 else 1)
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_skewed_load_is_even_after_its_plan(seed: int) -> None:
    window = skewed(seed)
    assert skew(window, NODES) > 2
    made = plan([window] * 3, NODES, now_ms=NOW_MS, moves_max=100)
    assert made is not None
    assert skew(replay(window, made), NODES) < 1.25
    assert made.skew_after == pytest.approx(skew(replay(window, made), NODES), abs=1e-3)


def test_an_even_load_moves_nothing() -> None:
    window = [placed(n, NODES[n % 4], 10.0) for n in range(64)]
    assert plan([window] * 3, NODES, now_ms=NOW_MS) is None


def test_no_load_moves_nothing() -> None:
    window = [placed(n, "n0", 0.0) for n in range(8)]
    assert plan([window] * 3, NODES, now_ms=NOW_MS) is None


def test_one_hot_partition_is_split() -> None:
    window = [placed(0, "n0", 1_000.0)] + [placed(n, NODES[n % 4], 10.0) for n in range(1, 32)]
    made = plan([window] * 3, NODES, now_ms=NOW_MS)
    assert made is not None
    splits = [step for step in made.steps if step.action is Action.SPLIT]
    assert [step.id for step in splits] == [PartitionId("a", "r", "topic-0", 0)]
    assert skew(replay(window, made), NODES) < skew(window, NODES)


def test_one_hot_window_moves_nothing() -> None:
    even = [placed(n, NODES[n % 4], 10.0) for n in range(64)]
    assert plan([even, even, skewed(1)], NODES, now_ms=NOW_MS) is None


def test_load_that_wanders_makes_at_most_one_plan() -> None:
    """Every window has another hot node; whatever is decided, the pause holds."""
    plans: list[rebalance.Plan] = []
    history: list[Sequence[Placed]] = []
    for turn in range(60):
        hot_node = NODES[turn // 3 % 4]
        history.append(
            [placed(n, NODES[n % 4], 50.0 if NODES[n % 4] == hot_node else 5.0) for n in range(64)]
        )
        last = plans[-1].created_at_ms if plans else None
        made = plan(history[-3:], NODES, now_ms=NOW_MS + turn * 20_000, last_plan_at_ms=last)
        if made is not None:
            plans.append(made)
    assert len(plans) <= 1


def test_a_pause_follows_a_plan() -> None:
    window = skewed(3)
    at_ms = NOW_MS + rebalance.PAUSE_MS
    assert plan([window] * 3, NODES, now_ms=at_ms - 1, last_plan_at_ms=NOW_MS) is None
    assert plan([window] * 3, NODES, now_ms=at_ms, last_plan_at_ms=NOW_MS) is not None


def test_moves_and_bytes_have_their_bounds() -> None:
    window = skewed(5)
    few = plan([window] * 3, NODES, now_ms=NOW_MS, moves_max=3)
    assert few is not None
    assert len(few.steps) == 3
    light = plan([window] * 3, NODES, now_ms=NOW_MS, bytes_max=4_500)
    assert light is not None
    assert sum(step.cost_bytes for step in light.steps) <= 4_500


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(NODES), st.floats(0, 1_000), st.integers(0, 10**12)),
        min_size=1,
        max_size=60,
    )
)
def test_a_plan_never_makes_it_worse_and_is_always_the_same(
    rows: list[tuple[str, float, int]],
) -> None:
    window = [placed(n, node, weight, size) for n, (node, weight, size) in enumerate(rows)]
    made = plan([window] * 3, NODES, now_ms=NOW_MS)
    assert made == plan([list(window)] * 3, reversed(NODES), now_ms=NOW_MS)
    if made is None:
        return
    assert skew(replay(window, made), NODES) <= skew(window, NODES) + 1e-9
    assert len({step.id for step in made.steps}) == len(made.steps)
    homes = {each.id: each.node for each in window}
    assert all(homes[step.id] == step.source != step.target for step in made.steps)
    assert sum(step.cost_bytes for step in made.steps) <= rebalance.MOVE_BYTES_MAX


# ── Hot spots ────────────────────────────────────────────────────────────────────────────────


def test_what_gets_far_more_than_its_like_is_hot() -> None:
    rates = {f"q{n}": 10.0 + n % 3 for n in range(30)} | {"busy": 400.0}
    [found] = health.hot(rates)
    assert found.name == "busy"
    assert found.share == pytest.approx(400 / sum(rates.values()))
    assert found.reason == "36 times the median"


def test_nothing_is_hot_among_equals_or_alone() -> None:
    assert health.hot({f"q{n}": 10.0 + n % 5 for n in range(30)}) == []
    assert health.hot({"only": 500.0}) == []
    assert health.hot({}) == []
    assert health.hot({"a": 0.0, "b": 0.0}) == []


def test_what_is_hot_but_tiny_has_no_row_and_rows_have_a_bound() -> None:
    assert health.hot({"a": 0.5, "b": 0.01, "c": 0.01, "d": 0.01}) == []
    many = {f"q{n}": 0.0 for n in range(300)} | {f"h{n}": 100.0 + n for n in range(99)}
    found = health.hot(many, hot_max=10)
    assert [each.name for each in found] == [f"h{98 - n}" for n in range(10)]


# ── Lag ──────────────────────────────────────────────────────────────────────────────────────


def points(*rows: tuple[int, int, int]) -> list[Point]:
    return [Point(NOW_MS + seconds * 1_000, committed, end) for seconds, committed, end in rows]


def test_a_group_that_keeps_up_is_ok() -> None:
    found = lag_of(points((0, 900, 900), (60, 1_500, 1_500)))
    assert (found.records, found.seconds, found.state) == (0, 0.0, State.OK)


def test_a_group_that_catches_up_says_when() -> None:
    found = lag_of(points((0, 0, 10_000), (100, 9_000, 11_000)))
    assert found.records == 2_000
    assert found.trend_per_s == -80
    assert found.eta_s == 25
    assert found.state is State.OK


def test_a_group_that_falls_behind_is_slow() -> None:
    found = lag_of(points((0, 0, 100), (60, 1_000, 7_000)))
    assert (found.state, found.eta_s) == (State.SLOW, None)


def test_a_group_that_does_not_move_is_stalled_but_not_at_once() -> None:
    assert lag_of(points((0, 5, 100), (health.STALLED_MS // 1_000, 5, 100))).state is State.STALLED
    assert lag_of(points((0, 5, 100), (20, 5, 100))).state is State.OK


def test_seconds_are_since_the_log_ended_where_the_group_is() -> None:
    found = lag_of(points((0, 0, 0), (60, 300, 600), (120, 900, 1_200)))
    assert found.seconds == 30
    behind = lag_of(points((0, 0, 6_000), (60, 3_000, 12_000)))
    assert behind.seconds == 60 + 3_000 / 100
    assert lag_of(points((0, 0, 50), (60, 10, 50))).seconds is None
