"""When a failed attempt is repeated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.backoff import (
    QUEUE_RETRIES_MAX,
    RETRY_AFTER_MS_MAX,
    WebhookRetry,
    queue_delay_ms,
    retry_after_ms,
)

NOW_MS = 784_111_777_000  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("attempt", "longest_ms"),
    [(1, 5_000), (2, 15_000), (3, 45_000), (6, 1_215_000), (7, 3_600_000), (19, 3_600_000)],
)
def test_the_delay_of_a_webhook_is_in_the_upper_half(attempt: int, longest_ms: int) -> None:
    retry = WebhookRetry()
    assert retry.delay_ms(attempt, 0, 0.0) == longest_ms // 2
    almost = retry.delay_ms(attempt, 0, 0.9999)
    assert almost is not None
    assert 0.999 * longest_ms < almost <= longest_ms


def test_a_webhook_has_twenty_attempts_within_three_days() -> None:
    retry = WebhookRetry()
    assert retry.delay_ms(19, 0, 0.5) is not None
    assert retry.delay_ms(20, 0, 0.5) is None
    assert retry.delay_ms(1, 3 * 86_400_000 - 5_000, 0.99) is not None
    assert retry.delay_ms(1, 3 * 86_400_000 - 2_000, 0.99) is None


@given(
    retry=st.builds(
        WebhookRetry,
        min_ms=st.integers(1, 86_400_000),
        max_ms=st.integers(1, 86_400_000),
        factor=st.floats(1, 10),
        attempts_max=st.integers(1, 1_000_000),
    ),
    attempt=st.integers(1, 1_000_000),
    age_ms=st.integers(0, 10 * 86_400_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_within_the_policy(
    retry: WebhookRetry, attempt: int, age_ms: int, chance: float
) -> None:
    delay_ms = retry.delay_ms(attempt, age_ms, chance)
    if delay_ms is not None:
        assert attempt < retry.attempts_max
        assert min(retry.min_ms, retry.max_ms) // 2 <= delay_ms <= retry.max_ms
        assert age_ms + delay_ms <= retry.age_ms_max


def test_a_queue_is_tried_as_sns_does() -> None:
    delays = [queue_delay_ms(attempt) for attempt in range(1, 20)]
    assert delays[:5] == [0, 0, 0, 1_000, 1_000]
    assert delays[5:15] == [
        1_000,
        3_111,
        5_222,
        7_333,
        9_444,
        11_555,
        13_666,
        15_777,
        17_888,
        20_000,
    ]
    assert delays[15:] == [20_000] * 4
    assert queue_delay_ms(QUEUE_RETRIES_MAX) == 20_000
    assert queue_delay_ms(QUEUE_RETRIES_MAX + 1) is None


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        (None, None),
        ("", None),
        ("0", 0),
        ("120", 120_000),
        (" 7 ", 7_000),
        ("3601", RETRY_AFTER_MS_MAX),
        ("9" * 64, RETRY_AFTER_MS_MAX),
        ("9" * 65, None),
        ("-1", None),
        ("1.5", None),
        ("1e3", None),
        ("\u0661", None),  # a digit, but not in ASCII
        ("\u00b2", None),
        ("soon", None),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30_000),
        ("Sunday, 06-Nov-94 08:50:07 GMT", 30_000),
        ("Sun Nov  6 08:50:07 1994", 30_000),
        ("Sun, 06 Nov 1994 10:50:07 +0200", 30_000),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0),
        ("Sun, 06 Nov 2094 08:49:07 GMT", RETRY_AFTER_MS_MAX),
        ("Sun, 06 Nov 99999999 08:49:07 GMT", None),
        ("Sun, 06 Nov 1994 08:49:07 +99999999999999", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, delay_ms: int | None) -> None:
    assert retry_after_ms(value, now_ms=NOW_MS) == delay_ms


WORDS = st.sampled_from(
    [
        "Sun,",
        "06",
        "Nov",
        "1994",
        "08:49:37",
        "GMT",
        "::",
        "-",
        "+",
        ",",
        ".",
        "0",
        "9" * 9,
        "+9999",
    ]
)


@given(value=st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=8).map(" ".join)))
def test_no_retry_after_is_an_error(value: str) -> None:
    delay_ms = retry_after_ms(value, now_ms=NOW_MS)
    assert delay_ms is None or 0 <= delay_ms <= RETRY_AFTER_MS_MAX
