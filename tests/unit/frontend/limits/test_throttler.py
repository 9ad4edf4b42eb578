"""Leaky buckets, and who passes them."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.frontend.limits.throttler import (
    HELD_MS,
    HELD_MS_MAX,
    REFUSED_AT_ONCE_MAX,
    Throttler,
)
from penstock.model.errors import Throttled
from penstock.model.identity import Caller, Limits, Rate, Tenant

CALLER = Caller("111111111111", "ann")
ARN = "arn:aws:sqs:us-east-1:111111111111:q"


def tenant(**limits: object) -> Tenant:
    return Tenant("111111111111", "one", 0, limits=Limits(**limits))  # type: ignore[arg-type]


def admitted(
    throttler: Throttler, of: Tenant, *, count: int, now_ms: float, arn: str | None = ARN
) -> int:
    passed = 0
    for _ in range(count):
        try:
            throttler.check(of, CALLER, "sqs:SendMessage", arn, now_ms=now_ms)
        except Throttled:
            break
        passed += 1
    return passed


def test_a_burst_passes_at_once_and_the_rate_after_it() -> None:
    throttler, of = Throttler(), tenant(tenant_requests=Rate(10, 50))
    assert admitted(throttler, of, count=100, now_ms=1_000) == 50
    assert admitted(throttler, of, count=100, now_ms=2_000) == 10
    with pytest.raises(Throttled) as refused:
        throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=2_000)
    assert 0 < refused.value.retry_after_ms <= 101


def test_a_refusal_by_one_bucket_costs_the_others_nothing() -> None:
    throttler = Throttler()
    of = tenant(tenant_requests=Rate(1, 10), queue_requests=Rate(1, 2))
    assert admitted(throttler, of, count=5, now_ms=0) == 2
    assert admitted(throttler, of, count=20, now_ms=0, arn=ARN + "2") == 2
    assert admitted(throttler, of, count=20, now_ms=0, arn=None) == 6


def test_operations_have_limits_of_their_own() -> None:
    throttler = Throttler()
    of = tenant(operations={"sqs:CreateQueue": Rate(1, 1)})
    throttler.check(of, CALLER, "sqs:CreateQueue", ARN, now_ms=0)
    with pytest.raises(Throttled):
        throttler.check(of, CALLER, "sqs:CreateQueue", ARN, now_ms=0)
    assert admitted(throttler, of, count=100, now_ms=0) == 100


def test_bytes_are_paid_for_afterwards() -> None:
    throttler, of = Throttler(), tenant(tenant_bytes=Rate(1_000, 1_000))
    bucket = throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=0)
    assert bucket is not None
    bucket.add(5_000, now_ms=0)
    with pytest.raises(Throttled) as refused:
        throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=0)
    assert refused.value.retry_after_ms == 4_001
    throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=4_001)


def test_tenants_with_different_limits_share_a_queue_and_no_bucket() -> None:
    throttler = Throttler()
    own = tenant(queue_requests=Rate(1, 3))
    other = Tenant("222222222222", "two", 0, limits=Limits(queue_requests=Rate(1, 5)))
    visitor = Caller("222222222222", "bob")
    passed = {"own": 0, "other": 0}
    for _ in range(20):
        for name, of, caller in (("own", own, CALLER), ("other", other, visitor)):
            try:
                throttler.check(of, caller, "sqs:SendMessage", ARN, now_ms=0)
            except Throttled:
                continue
            passed[name] += 1
    assert passed == {"own": 3, "other": 5}
    assert throttler.rejected == {("111111111111", "queue"): 17, ("222222222222", "queue"): 15}


def test_whether_a_tenant_has_limits_is_known_at_once_when_they_change() -> None:
    throttler = Throttler()
    free = tenant(tenant_requests=Rate())
    assert throttler.is_unlimited(free)
    limited = tenant(tenant_requests=Rate(), operations={"sqs:SendMessage": Rate(1, 1)})
    assert not throttler.is_unlimited(limited)
    assert not throttler.is_unlimited(limited)
    assert throttler.is_unlimited(free)


def test_every_tenant_but_the_nodes_own_has_a_limit_by_default() -> None:
    other = tenant()
    throttler = Throttler(own_account="000000000000")
    assert not throttler.is_unlimited(other)
    assert admitted(throttler, other, count=10_000, now_ms=0) == 4_000
    assert Throttler(own_account=other.account).is_unlimited(other)


def test_many_sorts_of_requests_are_forgotten_without_losing_their_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.frontend.limits.throttler.CACHED_MAX", 10)
    throttler, of = Throttler(), tenant(tenant_requests=Rate(1, 50))
    passed = sum(
        admitted(throttler, of, count=1, now_ms=0, arn=f"{ARN}{number}") for number in range(100)
    )
    assert passed == 50
    assert len(throttler._cached) <= 10


def test_several_frontends_divide_a_limit_among_them() -> None:
    of = tenant(tenant_requests=Rate(100, 200), tenant_bytes=Rate(1_000, 1_000))
    throttlers = [Throttler() for _ in range(4)]
    for throttler in throttlers:
        throttler.share_among(4)
    for second in range(3):
        passed = [admitted(one, of, count=999, now_ms=second * 1_000) for one in throttlers]
        assert passed == [50 if second == 0 else 25] * 4
    throttlers[0].share_among(1)
    assert admitted(throttlers[0], of, count=999, now_ms=3_000) == 100, "the others have ended"
    for throttler in throttlers[:2]:
        bucket = throttler.limits_of(of, CALLER, "sqs:SendMessage", ARN, now_ms=3_000).bytes_bucket
        assert bucket is not None
        bucket.add(1_500, now_ms=3_000)
    assert admitted(throttlers[0], of, count=1, now_ms=4_000) == 1, "half a second of its bytes"
    assert admitted(throttlers[1], of, count=1, now_ms=4_000) == 0, "five seconds of a quarter"


@given(
    counts=st.lists(st.integers(1, 8), min_size=1, max_size=20),
    per_s=st.floats(1, 1_000),
    burst=st.floats(0, 1_000),
)
def test_frontends_that_come_and_go_let_nothing_through_that_the_limit_would_not(
    counts: list[int], per_s: float, burst: float
) -> None:
    """Whoever makes frontends come and go gets no burst for it."""
    throttler, of = Throttler(), tenant(tenant_requests=Rate(per_s, burst))
    passed = 0
    for number, count in enumerate(counts):
        throttler.share_among(count)
        passed += admitted(throttler, of, count=10_000, now_ms=number * 100)
    # One more for each: a part of a bucket holds one request at least.
    assert passed <= max(burst, per_s) + per_s * len(counts) / 10 + len(counts)


def test_a_changed_limit_holds_at_once() -> None:
    throttler = Throttler()
    assert admitted(throttler, tenant(tenant_requests=Rate(1, 1)), count=10, now_ms=0) == 1
    assert admitted(throttler, tenant(tenant_requests=Rate(1, 5)), count=10, now_ms=0) == 5
    assert admitted(throttler, tenant(), count=10, now_ms=0) == 10


def test_refusals_without_end_are_told_late_and_only_those() -> None:
    throttler, of = Throttler(), tenant(tenant_requests=Rate(1, 1))
    throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=0)

    def held(now_ms: float) -> int:
        with pytest.raises(Throttled) as refused:
            throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=now_ms)
        return refused.value.held_ms

    assert [held(500) for _ in range(REFUSED_AT_ONCE_MAX)] == [0] * REFUSED_AT_ONCE_MAX
    late = [held(500) for _ in range(100)]
    assert min(late) == HELD_MS
    assert max(late) < HELD_MS_MAX
    assert len(set(late)) > 90, "they do not come back together"
    assert sum(each < 1_000 for each in late) <= REFUSED_AT_ONCE_MAX
    throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=2_000)
    assert held(2_000) == 0, "it has waited for them all"


@pytest.mark.parametrize("clients", [1, 32, 500])
def test_who_asks_again_when_told_is_told_so_often_and_not_more(clients: int) -> None:
    throttler, of = Throttler(), tenant(tenant_requests=Rate(1, 1))
    asks = [(0.0, client) for client in range(clients)]
    refused = []
    while (now_ms := asks[0][0]) < 10_000:
        try:
            throttler.check(of, CALLER, "sqs:SendMessage", ARN, now_ms=now_ms)
            held_ms = 0
        except Throttled as error:
            refused.append(now_ms)
            held_ms = error.held_ms
        heapq.heapreplace(asks, (now_ms + max(1, held_ms), asks[0][1]))
    # Those that do not fit into what is held for at most a second come back when it is over.
    a_second = max(REFUSED_AT_ONCE_MAX, clients)
    assert len(refused) <= a_second * 11 + clients
