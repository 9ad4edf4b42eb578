"""What becomes of a message after each kind of reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.verdicts import Action, Failure, Health, Kind, Verdict, judge

DELAY_MS = 1_234
DELIVERED, RETRY, PERMANENT, PAUSE = Action.DELIVERED, Action.RETRY, Action.PERMANENT, Action.PAUSE
GOOD, FAILING, OVERLOADED, UNREACHABLE, UNKNOWN = Health
REPLIES: list[tuple[int | Failure, Action, Action, Health]] = [  # for SNS, for webhooks
    (200, DELIVERED, DELIVERED, GOOD),
    (204, DELIVERED, DELIVERED, GOOD),
    (299, DELIVERED, DELIVERED, GOOD),
    (301, RETRY, RETRY, FAILING),
    (304, RETRY, RETRY, FAILING),
    (400, PERMANENT, PERMANENT, GOOD),
    (401, PERMANENT, RETRY, FAILING),
    (403, PERMANENT, RETRY, FAILING),
    (404, PERMANENT, RETRY, FAILING),
    (405, PERMANENT, PERMANENT, GOOD),
    (408, RETRY, RETRY, FAILING),
    (410, PERMANENT, PAUSE, GOOD),
    (413, PERMANENT, PERMANENT, GOOD),
    (414, PERMANENT, PERMANENT, GOOD),
    (415, PERMANENT, PERMANENT, GOOD),
    (422, PERMANENT, PERMANENT, GOOD),
    (425, RETRY, RETRY, FAILING),
    (429, RETRY, RETRY, OVERLOADED),
    (431, PERMANENT, PERMANENT, GOOD),
    (499, PERMANENT, RETRY, FAILING),
    (500, RETRY, RETRY, OVERLOADED),
    (503, RETRY, RETRY, OVERLOADED),
    (599, RETRY, RETRY, OVERLOADED),
    (100, RETRY, RETRY, FAILING),
    (999, RETRY, RETRY, FAILING),
    (Failure.NOT_RESOLVED, RETRY, RETRY, UNREACHABLE),
    (Failure.UNUSABLE, RETRY, RETRY, UNREACHABLE),
    (Failure.NOT_CONNECTED, RETRY, RETRY, UNREACHABLE),
    (Failure.TLS, RETRY, RETRY, OVERLOADED),
    (Failure.TIMEOUT, RETRY, RETRY, OVERLOADED),
    (Failure.CONNECTION_LOST, RETRY, RETRY, OVERLOADED),
    (Failure.BAD_REPLY, RETRY, RETRY, FAILING),
    (Failure.ITEM_FAILED, RETRY, RETRY, GOOD),
    (Failure.BREAKER_OPEN, RETRY, RETRY, UNKNOWN),
    (Failure.QUEUE_NOT_FOUND, PERMANENT, PERMANENT, GOOD),
    (Failure.QUEUE_DENIED, PERMANENT, PERMANENT, GOOD),
    (Failure.QUEUE_MESSAGE_TOO_LARGE, PERMANENT, PERMANENT, GOOD),
    (Failure.QUEUE_FAILED, RETRY, RETRY, OVERLOADED),
    (Failure.NO_COURIER, RETRY, RETRY, FAILING),
    (Failure.ENDPOINT_DISABLED, PERMANENT, PERMANENT, GOOD),
    (Failure.ADDRESS_INVALID, PERMANENT, PERMANENT, GOOD),
    (Failure.MAIL_REJECTED, PERMANENT, PERMANENT, GOOD),
    (Failure.MAIL_FAILED, RETRY, RETRY, OVERLOADED),
    (Failure.OUTBOX_FAILED, RETRY, RETRY, OVERLOADED),
]


def schedule(attempt: int, age_ms: int) -> int | None:
    return None if attempt >= 3 or age_ms >= 60_000 else DELAY_MS


@pytest.mark.parametrize(("reply", "for_sns", "for_webhook", "health"), REPLIES)
def test_every_reply_has_a_verdict(
    reply: int | Failure, for_sns: Action, for_webhook: Action, health: Health
) -> None:
    for kind, action in ((Kind.SNS, for_sns), (Kind.WEBHOOK, for_webhook)):
        first = judge(kind, reply, attempt=1, age_ms=0, schedule=schedule)
        last = judge(kind, reply, attempt=3, age_ms=0, schedule=schedule)
        old = judge(kind, reply, attempt=1, age_ms=60_000, schedule=schedule)
        if action is RETRY:
            assert first == Verdict(RETRY, health, DELAY_MS)
            assert last == old == Verdict(PERMANENT, health, is_exhausted=True)
        else:
            assert first == last == old == Verdict(action, GOOD)


def test_the_table_has_every_failure() -> None:
    assert {reply for reply, *_ in REPLIES if isinstance(reply, Failure)} == set(Failure)


@pytest.mark.parametrize("kind", Kind)
def test_retry_after_delays_a_retry_and_never_hastens_it(kind: Kind) -> None:
    def delay_ms(status: int, retry_after_ms: int) -> int:
        given = {"attempt": 1, "age_ms": 0, "retry_after_ms": retry_after_ms}
        return judge(kind, status, schedule=schedule, **given).delay_ms

    assert delay_ms(429, 5_000) == delay_ms(503, 5_000) == 5_000
    assert delay_ms(429, 1) == delay_ms(503, 1) == DELAY_MS
    assert delay_ms(500, 5_000) == DELAY_MS, "the header counts with 429 and 503 only"


@given(
    kind=st.sampled_from(Kind),
    status=st.integers(0, 10_000),
    attempt=st.integers(1, 10),
    age_ms=st.integers(0, 120_000),
    retry_after_ms=st.none() | st.integers(0, 3_600_000),
)
def test_only_2xx_delivers_and_only_the_schedule_allows_a_retry(
    kind: Kind, status: int, attempt: int, age_ms: int, retry_after_ms: int | None
) -> None:
    verdict = judge(
        kind,
        status,
        attempt=attempt,
        age_ms=age_ms,
        schedule=schedule,
        retry_after_ms=retry_after_ms,
    )
    assert (verdict.action is DELIVERED) == (200 <= status < 300)
    if verdict.action is RETRY:
        assert schedule(attempt, age_ms) is not None
        assert verdict.delay_ms >= DELAY_MS
