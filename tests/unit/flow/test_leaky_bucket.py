"""What a leaky bucket lets through."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.leaky_bucket import WAIT_MS_MAX, LeakyBucket
from penstock.model.identity import Rate


@given(
    per_s=st.floats(0.1, 10_000),
    burst=st.floats(0, 1_000),
    steps=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 5)), max_size=60),
)
def test_no_window_gets_more_than_its_rate_and_the_burst(
    per_s: float, burst: float, steps: list[tuple[int, int]]
) -> None:
    bucket = LeakyBucket(Rate(per_s, burst))
    now_ms = 0
    taken: list[tuple[int, int]] = []
    for pause_ms, cost in steps:
        now_ms += pause_ms
        if bucket.wait_ms(cost, now_ms=now_ms) == 0:
            bucket.add(cost, now_ms=now_ms)
            taken.append((now_ms, cost))
    room = max(burst, per_s, 1.0) + 5  # five: one that is larger than the bucket fits when empty
    for begin in range(len(taken)):
        total = 0.0
        for at_ms, cost in taken[begin:]:
            total += cost
            assert total <= room + per_s * (at_ms - taken[begin][0]) / 1_000 + 1e-6


@given(per_s=st.floats(0.1, 10_000), burst=st.floats(0, 1_000), cost=st.integers(1, 100))
def test_who_waits_as_long_as_told_is_let_through(per_s: float, burst: float, cost: int) -> None:
    bucket = LeakyBucket(Rate(per_s, burst))
    now_ms = 0
    for _ in range(50):
        wait_ms = bucket.wait_ms(cost, now_ms=now_ms)
        while wait_ms == WAIT_MS_MAX:  # told less than it takes, so as to ask again
            now_ms += wait_ms
            wait_ms = bucket.wait_ms(cost, now_ms=now_ms)
        now_ms += wait_ms
        assert bucket.wait_ms(cost, now_ms=now_ms) == 0
        bucket.add(cost, now_ms=now_ms)
