"""When a circuit breaker admits a call."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.breaker import OPEN_MS_MAX, Breaker, BreakerState


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=80))
def test_a_breaker_always_tries_again_and_never_more_than_one_at_a_time(
    steps: list[tuple[bool, int]],
) -> None:
    breaker = Breaker()
    now_ms = 0
    for is_success, pause_ms in steps:
        now_ms += pause_ms
        if breaker.admits(now_ms=now_ms):
            if breaker.state(now_ms=now_ms) is BreakerState.HALF_OPEN:
                assert not breaker.admits(now_ms=now_ms), "one probe at a time"
            if is_success:
                breaker.succeeded()
                assert breaker.state(now_ms=now_ms) is BreakerState.CLOSED
            else:
                breaker.failed(now_ms=now_ms)
    assert breaker.admits(now_ms=now_ms + OPEN_MS_MAX)
