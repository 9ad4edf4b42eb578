"""An adaptive limit finds what an endpoint can take, and stays within its bounds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.flow.server import Latency, Server

from penstock.flow.adaptive_limit import LIMIT_FIRST, LIMIT_MAX, ROUND_MIN, AdaptiveLimit

LATENCIES: dict[str, Latency] = {
    "5 ms": lambda _: 5.0,
    "40 to 60 ms": lambda chance: chance.uniform(40, 60),
    "150 to 200 ms": lambda chance: chance.uniform(150, 200),
    "5 to 200 ms": lambda chance: chance.uniform(5, 200),
    "55 ms, exponential": lambda chance: 5 + chance.expovariate(1 / 50),
    "40 ms, long tail": lambda chance: min(2_000.0, 20 * chance.lognormvariate(0, 1.2)),
}


class Run:
    """Keeps as many requests in progress as the limit allows."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.limit = AdaptiveLimit()
        self.now_ms = 0.0
        self.in_progress = 0
        self.begun = 0
        self.ends: list[tuple[float, int, bool]] = []  # at, in progress before it, is a success

    def until(self, end_ms: float) -> None:
        while self.now_ms < end_ms:
            self._step()

    def rounds(self, count: int) -> None:
        """Run until as many requests ended as the rounds have, and those that began before."""
        for _ in range(count):
            for _ in range(self.limit.limit + max(ROUND_MIN, self.limit.limit)):
                self._step()

    def _step(self) -> None:
        while self.in_progress < self.limit.limit:
            self.begun += 1
            self.in_progress += 1
            self.server.begin(self.begun, self.now_ms)
        self.now_ms, _, began_ms, is_served = self.server.end()
        took_ms = self.now_ms - began_ms
        self.ends.append((self.now_ms, self.in_progress, is_served))
        if is_served:
            is_full = self.in_progress >= self.limit.limit
            self.limit.succeeded(took_ms=took_ms, is_full=is_full, now_ms=self.now_ms)
        else:
            self.limit.overloaded(took_ms=took_ms, now_ms=self.now_ms)
        self.in_progress -= 1
        assert 1 <= self.limit.limit <= LIMIT_MAX


@settings(max_examples=100)
@given(
    capacity=st.integers(1, 100),
    latency=st.sampled_from(sorted(LATENCIES)),
    seed=st.integers(0, 1_000),
)
def test_ten_rounds_find_the_capacity_of_a_server_that_refuses(
    capacity: int, latency: str, seed: int
) -> None:
    run = Run(Server(LATENCIES[latency], capacity=capacity, is_queue=False, seed=seed))
    run.rounds(10)
    assert min(capacity, LIMIT_MAX) * 0.5 <= run.limit.limit <= 2 * capacity + 4


@settings(max_examples=100)
@given(capacity=st.integers(4, 100), base_ms=st.floats(4, 8), seed=st.integers(0, 1_000))
def test_ten_rounds_find_the_capacity_of_a_server_that_queues(
    capacity: int, base_ms: float, seed: int
) -> None:
    """The time for one request grows with the capacity: 10 ms more than the best round must not
    stand for many requests in the queue."""

    def latency(chance: random.Random) -> float:
        return max(20.0, base_ms * capacity) * chance.uniform(0.9, 1.1)

    run = Run(Server(latency, capacity=capacity, is_queue=True, seed=seed))
    run.rounds(10)
    assert min(capacity, LIMIT_MAX) * 0.5 <= run.limit.limit <= 2 * capacity + 4


@pytest.mark.parametrize("latency", LATENCIES)
def test_a_server_with_room_for_eight_refuses_few(latency: str) -> None:
    run = Run(Server(LATENCIES[latency], capacity=8, is_queue=False, seed=1))
    run.until(15_000)
    late = [(count, is_served) for at_ms, count, is_served in run.ends if at_ms > 5_000]
    assert 4 <= min(late)[0] <= max(late)[0] <= 10
    assert sum(not is_served for _, is_served in late) < 0.05 * len(late)


@pytest.mark.parametrize("latency", LATENCIES)
def test_a_server_with_room_for_all_gets_many_within_three_seconds(latency: str) -> None:
    for seed in range(4):
        run = Run(Server(LATENCIES[latency], capacity=1_000, is_queue=False, seed=seed))
        run.until(3_000)
        assert run.ends[-1][1] >= 48


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.floats(0, 20_000), st.booleans(), st.floats(0, 40_000)),
        max_size=300,
    ),
    limit_max=st.integers(1, LIMIT_MAX),
)
def test_the_limit_stays_within_its_bounds(
    steps: list[tuple[bool, float, bool, float]], limit_max: int
) -> None:
    limit = AdaptiveLimit(limit_max=limit_max)
    now_ms = 0.0
    for is_success, took_ms, is_full, pause_ms in steps:
        now_ms += pause_ms
        if is_success:
            limit.succeeded(took_ms=took_ms, is_full=is_full, now_ms=now_ms)
        else:
            limit.overloaded(took_ms=took_ms, now_ms=now_ms)
        assert 1 <= limit.limit <= limit_max


def succeed(limit: AdaptiveLimit, *, took_ms: float, now_ms: float, is_full: bool = True) -> None:
    """Let one round of requests begin at ``now_ms`` and succeed."""
    for _ in range(max(limit.limit, ROUND_MIN)):
        limit.succeeded(took_ms=took_ms, is_full=is_full, now_ms=now_ms + took_ms)


def test_failures_of_requests_in_progress_together_lower_the_limit_once() -> None:
    limit = AdaptiveLimit()
    for number in range(4):
        succeed(limit, took_ms=10, now_ms=number * 10)
    assert limit.limit == LIMIT_MAX
    for number in range(64):
        limit.overloaded(took_ms=10, now_ms=100 + number % 10)
    assert limit.limit == int(0.7 * LIMIT_MAX)
    limit.overloaded(took_ms=10, now_ms=150)  # this one began with the lower limit
    assert limit.limit == int(0.7 * int(0.7 * LIMIT_MAX))
    succeed(limit, took_ms=10, now_ms=200)
    assert limit.limit == int(0.7 * int(0.7 * LIMIT_MAX)) + 1, "slow start is over"


def test_an_endpoint_that_hangs_gets_one_request_at_a_time() -> None:
    limit = AdaptiveLimit()
    for number in range(1, 4):
        limit.overloaded(took_ms=15_000, now_ms=20_000 * number)
    assert limit.limit == 1


def test_rounds_above_a_second_lower_the_limit_by_one() -> None:
    limit = AdaptiveLimit()
    succeed(limit, took_ms=1_001, now_ms=0)
    assert limit.limit == LIMIT_FIRST - 1
    for number in range(1, 10):
        succeed(limit, took_ms=1_001, now_ms=number * 2_000)
    assert limit.limit == 1


def test_a_round_that_does_not_use_the_limit_does_not_raise_it() -> None:
    limit = AdaptiveLimit()
    for number in range(10):
        succeed(limit, took_ms=10, now_ms=number * 10, is_full=False)
    assert limit.limit == LIMIT_FIRST


def test_the_best_round_is_forgotten_after_a_minute() -> None:
    limit = AdaptiveLimit()
    succeed(limit, took_ms=20, now_ms=0)
    limit.overloaded(took_ms=1, now_ms=100)
    before = limit.limit
    succeed(limit, took_ms=60, now_ms=1_000)
    assert limit.limit == before, "three times the best round"
    succeed(limit, took_ms=50, now_ms=2_000)
    assert limit.limit == before + 1, "not more than twice the best round and 10 ms"
    succeed(limit, took_ms=900, now_ms=61_000)
    assert limit.limit == before + 2, "the best round was more than a minute ago"
