import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import delivery_policy
from penstock.wire.aws.sns.delivery_policy import (
    DEFAULT_RETRIES,
    QUEUE_RETRIES,
    RetryPolicy,
    delay_s,
    effective,
    effective_topic_text,
    read_subscription_policy,
    read_topic_policy,
    retry_delay_ms,
    subscription_text,
    topic_text,
)
from penstock.wire.aws.sns.faults import ON_CREATE, ON_SET

DEFAULT = {
    "minDelayTarget": 20, "maxDelayTarget": 20, "numRetries": 3, "numMaxDelayRetries": 0,
    "numNoDelayRetries": 0, "numMinDelayRetries": 0, "backoffFunction": "linear",
}  # fmt: skip
PLAIN = {"headerContentType": "text/plain; charset=UTF-8"}


def topic(http: Any) -> Any:
    return read_topic_policy(json.dumps({"http": http}), prefix=ON_SET)


def subscription(policy: Any) -> Any:
    return read_subscription_policy(json.dumps(policy), prefix=ON_SET)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────

MIN = "healthyRetryPolicy.minDelayTarget"
MAX = "healthyRetryPolicy.maxDelayTarget"
TOTAL = "healthyRetryPolicy: Total policy retry time cannot be greater than 3600 seconds"
PHASES = (
    "healthyRetryPolicy.numRetries must be greater than or equal to total of numMinDelayRetries, "
    "numNoDelayRetries and numMaxDelayRetries"
)
BACKOFF = "healthyRetryPolicy.backoffFunction: the value [{}] is not a valid backoff function"


@pytest.mark.parametrize(
    ("retries", "message"),
    [
        ({"minDelayTarget": 0}, f"{MIN} must be greater than or equal to 1"),
        ({"minDelayTarget": -1}, f"{MIN} must be greater than or equal to 1"),
        ({"maxDelayTarget": 3601}, f"{MAX} must be less than or equal to 3600"),
        ({"maxDelayTarget": 0}, f"{MAX} must be greater than or equal to 1"),
        ({"minDelayTarget": 5, "maxDelayTarget": 3},
         f"{MAX} must be greater than or equal to minDelayTarget"),
        ({"minDelayTarget": 21}, f"{MAX} must be greater than or equal to minDelayTarget"),
        ({"numRetries": 101}, "healthyRetryPolicy.numRetries must be less than or equal to 100"),
        ({"numRetries": -1}, "healthyRetryPolicy.numRetries must be greater than or equal to 0"),
        ({"numNoDelayRetries": -1},
         "healthyRetryPolicy.numNoDelayRetries must be greater than or equal to 0"),
        ({"numMinDelayRetries": -1},
         "healthyRetryPolicy.numMinDelayRetries must be greater than or equal to 0"),
        ({"numMaxDelayRetries": -1},
         "healthyRetryPolicy.numMaxDelayRetries must be greater than or equal to 0"),
        ({"numNoDelayRetries": 4}, PHASES),
        ({"numRetries": 5, "numMinDelayRetries": 2, "numNoDelayRetries": 2,
          "numMaxDelayRetries": 2}, PHASES),
        ({"numRetries": 1, "numMaxDelayRetries": 10**18}, PHASES),
        ({"backoffFunction": "cubic"}, BACKOFF.format("cubic")),
        ({"backoffFunction": ""}, BACKOFF.format("")),
        ({"backoffFunction": "LINEAR"}, BACKOFF.format("LINEAR")),
        ({"backoffFunction": "x" * 2_000}, BACKOFF.format("x" * 1_024 + "…")),
        ({"minDelayTarget": "5"}, f"{MIN} type mismatch, expecting integer, received a string"),
        ({"minDelayTarget": 5.5}, f"{MIN} type mismatch, expecting integer, received a number"),
        ({"minDelayTarget": True}, f"{MIN} type mismatch, expecting integer, received a boolean"),
        ({"minDelayTarget": []}, f"{MIN} type mismatch, expecting integer, received an array"),
        ({"minDelayTarget": {}}, f"{MIN} type mismatch, expecting integer, received an object"),
        ({"backoffFunction": 1},
         ("healthyRetryPolicy.backoffFunction type mismatch, expecting string, received an "
          "integer")),
        ({"retries": 1}, "Unexpected JSON member: retries"),
        ({"numRetries": 100, "minDelayTarget": 37, "maxDelayTarget": 37}, TOTAL),
        ({"numRetries": 2, "minDelayTarget": 1, "maxDelayTarget": 3600}, TOTAL),
        ({"numRetries": 2, "minDelayTarget": 1_801, "maxDelayTarget": 1_801}, TOTAL),
        ({"numRetries": 2, "numMaxDelayRetries": 2, "maxDelayTarget": 1_801}, TOTAL),
    ],
)  # fmt: skip
def test_bad_retry_policies_are_refused(retries: dict[str, Any], message: str) -> None:
    with pytest.raises(Fault) as caught:
        subscription({"healthyRetryPolicy": retries})
    refusal = caught.value
    assert (refusal.code, refusal.status) == ("InvalidParameter", 400)
    assert refusal.message == f"Invalid parameter: DeliveryPolicy: {message}"
    text = json.dumps({"http": {"defaultHealthyRetryPolicy": retries}})
    with pytest.raises(Fault) as caught:
        read_topic_policy(text, prefix=ON_CREATE)
    path = message.replace("healthyRetryPolicy", "http.defaultHealthyRetryPolicy")
    assert caught.value.message == f"Invalid parameter: Attributes Reason: DeliveryPolicy: {path}"
    with pytest.raises(Fault) as caught:
        subscription({"sicklyRetryPolicy": retries})
    assert caught.value.message == (
        f"Invalid parameter: DeliveryPolicy: {message.replace('healthy', 'sickly')}"
    )


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"throttlePolicy": {"maxReceivesPerSecond": 0}},
         "throttlePolicy.maxReceivesPerSecond must be >= 1"),
        ({"throttlePolicy": {"maxReceivesPerSecond": "1"}},
         ("throttlePolicy.maxReceivesPerSecond type mismatch, expecting integer, received a "
          "string")),
        ({"throttlePolicy": 5},
         "throttlePolicy type mismatch, expecting object, received an integer"),
        ({"throttlePolicy": {"rate": 1}}, "Unexpected JSON member: rate"),
        ({"requestPolicy": {"headerContentType": "a"}},
         "requestPolicy.headerContentType: the value [a] is not a valid content type"),
        ({"requestPolicy": {"headerContentType": "a/b\r\nX: y"}},
         "requestPolicy.headerContentType: the value [a/b\r\nX: y] is not a valid content type"),
        ({"requestPolicy": {"headerContentType": "a/b; é"}},
         "requestPolicy.headerContentType: the value [a/b; é] is not a valid content type"),
        ({"requestPolicy": {"headerContentType": "a/b\n"}},
         "requestPolicy.headerContentType: the value [a/b\n] is not a valid content type"),
        ({"requestPolicy": {"headerContentType": 1}},
         ("requestPolicy.headerContentType type mismatch, expecting string, received an integer")),
        ({"guaranteed": "false"}, "guaranteed type mismatch, expecting boolean, received a string"),
        ({"healthyRetryPolicy": []},
         "healthyRetryPolicy type mismatch, expecting object, received an array"),
        ({"http": {}}, "Unexpected JSON member: http"),
        ([], "failed to parse JSON. The policy must be an object"),
        ("x", "failed to parse JSON. The policy must be an object"),
        (None, "failed to parse JSON. The policy must be an object"),
        ({"x": "y" * 20_000}, "must have at most 16384 bytes"),
    ],
)  # fmt: skip
def test_bad_policies_of_subscriptions_are_refused(policy: Any, message: str) -> None:
    with pytest.raises(Fault) as caught:
        subscription(policy)
    assert caught.value.message == f"Invalid parameter: DeliveryPolicy: {message}"


@pytest.mark.parametrize(
    ("http", "message"),
    [
        ({"throttlePolicy": {}}, "Unexpected JSON member: throttlePolicy"),
        ({"guaranteed": True}, "Unexpected JSON member: guaranteed"),
        ({"defaultThrottlePolicy": {"maxReceivesPerSecond": 0}},
         "http.defaultThrottlePolicy.maxReceivesPerSecond must be >= 1"),
        ({"defaultRequestPolicy": {"headerContentType": ""}},
         "http.defaultRequestPolicy.headerContentType: the value [] is not a valid content type"),
        ({"disableSubscriptionOverrides": "true"},
         ("http.disableSubscriptionOverrides type mismatch, expecting boolean, received a "
          "string")),
        ([], "http type mismatch, expecting object, received an array"),
    ],
)  # fmt: skip
def test_bad_policies_of_topics_are_refused(http: Any, message: str) -> None:
    with pytest.raises(Fault) as caught:
        topic(http)
    assert caught.value.message == f"Invalid parameter: DeliveryPolicy: {message}"


@pytest.mark.parametrize(
    "text", ["", "{", "{x:1}", "[" * 10_000, "\ud800", '{"http":{}}}', "1e999"]
)
def test_text_that_is_not_json_is_refused(text: str) -> None:
    for read in (read_topic_policy, read_subscription_policy):
        with pytest.raises(Fault) as caught:
            read(text, prefix=ON_SET)
        start = "Invalid parameter: DeliveryPolicy: failed to parse JSON. "
        assert caught.value.message.startswith(start)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["http", "healthyRetryPolicy", "defaultHealthyRetryPolicy",
                             "numRetries", "minDelayTarget", "backoffFunction", "throttlePolicy",
                             "maxReceivesPerSecond"]),
            inner,
            max_size=3,
        ),
        max_leaves=8,
    )
)  # fmt: skip
def test_any_document_is_read_or_refused(document: Any) -> None:
    text = json.dumps(document)
    for read in (read_topic_policy, read_subscription_policy):
        try:
            policy: Any = read(text, prefix=ON_SET)
        except Fault as refusal:
            policy = refusal.message
        assert policy


# ── What is shown ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("http", "own", "whole"),
    [
        (
            {"defaultRequestPolicy": {"headerContentType": "application/json"}},
            {"disableSubscriptionOverrides": False,
             "defaultRequestPolicy": {"headerContentType": "application/json"}},
            {"defaultHealthyRetryPolicy": DEFAULT, "disableSubscriptionOverrides": False,
             "defaultRequestPolicy": {"headerContentType": "application/json"}},
        ),
        (
            {"defaultHealthyRetryPolicy":
                {"numRetries": 1, "maxDelayTarget": 6, "minDelayTarget": 5}},
            {"defaultHealthyRetryPolicy":
                {"minDelayTarget": 5, "maxDelayTarget": 6, "numRetries": 1},
             "disableSubscriptionOverrides": False},
            {"defaultHealthyRetryPolicy":
                DEFAULT | {"minDelayTarget": 5, "maxDelayTarget": 6, "numRetries": 1},
             "disableSubscriptionOverrides": False, "defaultRequestPolicy": PLAIN},
        ),
        (
            {"defaultHealthyRetryPolicy": None},
            {"disableSubscriptionOverrides": False},
            {"defaultHealthyRetryPolicy": DEFAULT, "disableSubscriptionOverrides": False,
             "defaultRequestPolicy": PLAIN},
        ),
        (
            {"defaultThrottlePolicy": {"maxReceivesPerSecond": 7},
             "disableSubscriptionOverrides": True},
            {"disableSubscriptionOverrides": True,
             "defaultThrottlePolicy": {"maxReceivesPerSecond": 7}},
            {"defaultHealthyRetryPolicy": DEFAULT, "disableSubscriptionOverrides": True,
             "defaultThrottlePolicy": {"maxReceivesPerSecond": 7}, "defaultRequestPolicy": PLAIN},
        ),
        (
            {"defaultThrottlePolicy": {}, "defaultRequestPolicy": {"headerContentType": None}},
            {"disableSubscriptionOverrides": False},
            {"defaultHealthyRetryPolicy": DEFAULT, "disableSubscriptionOverrides": False,
             "defaultRequestPolicy": PLAIN},
        ),
    ],
)  # fmt: skip
def test_topics_show_what_is_set_and_what_applies(
    http: Any, own: dict[str, Any], whole: dict[str, Any]
) -> None:
    policy = topic(http)
    assert topic_text(policy) == compact({"http": own})
    assert effective_topic_text(policy) == compact({"http": whole})
    assert read_topic_policy(topic_text(policy), prefix=ON_SET) == policy


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def test_a_topic_without_policy_shows_the_defaults() -> None:
    http = {
        "defaultHealthyRetryPolicy": DEFAULT,
        "disableSubscriptionOverrides": False,
        "defaultRequestPolicy": PLAIN,
    }
    assert effective_topic_text(None) == compact({"http": http})


def whole_policy(**members: Any) -> dict[str, Any]:
    nothing = {"healthyRetryPolicy": None, "sicklyRetryPolicy": None, "throttlePolicy": None}
    return nothing | {"requestPolicy": None, "guaranteed": False} | members


GIVEN = {"minDelayTarget": 5, "maxDelayTarget": 20, "numRetries": 5}
UNSET = {
    "numMaxDelayRetries": None,
    "numNoDelayRetries": None,
    "numMinDelayRetries": None,
    "backoffFunction": None,
}


@pytest.mark.parametrize(
    ("policy", "own", "whole"),
    [
        (
            {"requestPolicy": {"headerContentType": "text/csv"}},
            whole_policy(requestPolicy={"headerContentType": "text/csv"}),
            whole_policy(healthyRetryPolicy=DEFAULT,
                         requestPolicy={"headerContentType": "text/csv"}),
        ),
        (
            {"throttlePolicy": {"maxReceivesPerSecond": 1000}, "sicklyRetryPolicy": None,
             "guaranteed": False},
            whole_policy(throttlePolicy={"maxReceivesPerSecond": 1000}),
            whole_policy(healthyRetryPolicy=DEFAULT, requestPolicy=PLAIN,
                         throttlePolicy={"maxReceivesPerSecond": 1000}),
        ),
        (
            {"healthyRetryPolicy": {"numRetries": 5, "minDelayTarget": 5, "maxDelayTarget": 20}},
            whole_policy(healthyRetryPolicy=GIVEN | UNSET),
            whole_policy(healthyRetryPolicy=DEFAULT | GIVEN, requestPolicy=PLAIN),
        ),
        ({}, whole_policy(), whole_policy(healthyRetryPolicy=DEFAULT, requestPolicy=PLAIN)),
        (
            {"sicklyRetryPolicy": GIVEN, "guaranteed": True},
            whole_policy(sicklyRetryPolicy=GIVEN | UNSET, guaranteed=True),
            whole_policy(healthyRetryPolicy=DEFAULT, sicklyRetryPolicy=GIVEN | UNSET,
                         requestPolicy=PLAIN, guaranteed=True),
        ),
    ],
)  # fmt: skip
def test_subscriptions_show_what_is_set_and_what_applies(
    policy: dict[str, Any], own: dict[str, Any], whole: dict[str, Any]
) -> None:
    read = subscription(policy)
    assert subscription_text(read) == compact(own)
    assert subscription_text(effective(None, read)) == compact(whole)
    assert read_subscription_policy(subscription_text(read), prefix=ON_SET) == read


def test_a_subscription_overrides_its_topic_part_by_part() -> None:
    above = topic(
        {
            "defaultHealthyRetryPolicy": {"numRetries": 9},
            "defaultThrottlePolicy": {"maxReceivesPerSecond": 7},
            "defaultRequestPolicy": {"headerContentType": "application/json"},
        }
    )
    applies = effective(above, subscription({"throttlePolicy": {"maxReceivesPerSecond": 2}}))
    assert applies.retries.num_retries == 9
    assert (applies.throttle_per_s, applies.content_type) == (2, "application/json")
    own = {"healthyRetryPolicy": {"numRetries": 0}, "requestPolicy": {"headerContentType": "a/b"}}
    applies = effective(above, subscription(own))
    assert applies.retries.num_retries == 0
    assert (applies.throttle_per_s, applies.content_type) == (7, "a/b")
    applies = effective(above)
    assert (applies.retries.num_retries, applies.throttle_per_s) == (9, 7)


def test_a_topic_can_forbid_overrides() -> None:
    above = topic({"disableSubscriptionOverrides": True})
    own = subscription({"healthyRetryPolicy": {"numRetries": 0}, "guaranteed": True})
    assert effective(above, own) == effective()
    assert effective(above, own).retries == DEFAULT_RETRIES


# ── Delays ───────────────────────────────────────────────────────────────────────────────────


def delays(policy: RetryPolicy) -> list[float]:
    found: list[float] = []
    while (delay := delay_s(policy, len(found) + 1)) is not None:
        found.append(round(delay, 6))
    return found


def retries(function: str, count: int, low: int = 1, high: int = 16, **phases: int) -> RetryPolicy:
    return RetryPolicy(
        min_delay_target=low,
        max_delay_target=high,
        num_retries=count,
        backoff_function=function,
        **phases,
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (DEFAULT_RETRIES, [20, 20, 20]),
        (retries("linear", 0), []),
        (retries("linear", 1), [1]),
        (retries("linear", 2), [1, 16]),
        (retries("linear", 4), [1, 6, 11, 16]),
        (retries("arithmetic", 4), [1, 3.5, 8.5, 16]),
        (retries("geometric", 5), [1, 2, 4, 8, 16]),
        (retries("exponential", 5), [1, 2, 4, 8, 16]),
        (retries("exponential", 3, 10, 40), [10, 20, 40]),
        (retries("geometric", 1, 5, 9), [5]),
        (retries("linear", 3, num_no_delay_retries=3), [0, 0, 0]),
        (retries("linear", 3, num_min_delay_retries=3), [1, 1, 1]),
        (retries("linear", 3, num_max_delay_retries=3), [16, 16, 16]),
        (
            retries("linear", 9, num_no_delay_retries=2, num_min_delay_retries=2,
                    num_max_delay_retries=2),
            [0, 0, 1, 1, 1, 8.5, 16, 16, 16],
        ),
        (
            retries("exponential", 5, 5, 1796, num_no_delay_retries=2, num_max_delay_retries=2),
            [0, 0, 5, 1796, 1796],
        ),
    ],
)  # fmt: skip
def test_retries_have_phases(policy: RetryPolicy, expected: list[float]) -> None:
    assert delays(policy) == expected


def test_copies_to_queues_are_retried_for_23_days() -> None:
    found = delays(QUEUE_RETRIES)
    assert len(found) == 100_015
    assert found[:6] == [0, 0, 0, 1, 1, 1]
    assert found[5:15] == sorted(found[5:15])
    assert set(found[14:]) == {20}
    assert 23 < sum(found) / 86_400 < 24


@pytest.mark.parametrize(
    ("attempts", "chance", "delay_ms"),
    [
        (1, 0.0, 16_000), (1, 0.5, 20_000), (1, 1.0, 24_000), (3, 0.5, 20_000), (4, 0.5, None),
        (0, 0.5, None), (-1, 0.5, None), (10**9, 0.5, None),
    ],
)  # fmt: skip
def test_delays_vary_by_a_fifth(attempts: int, chance: float, delay_ms: int | None) -> None:
    assert retry_delay_ms(DEFAULT_RETRIES, attempts, chance=chance) == delay_ms


def test_a_retry_without_delay_stays_without() -> None:
    policy = retries("linear", 1, num_no_delay_retries=1)
    assert retry_delay_ms(policy, 1, chance=0.99) == 0


@given(data=st.data())
def test_delays_grow_from_the_minimum_to_the_maximum(data: st.DataObject) -> None:
    phases = st.integers(0, 20)
    no, low_count, high_count, backoff = (data.draw(phases) for _ in range(4))
    low = data.draw(st.integers(1, 3_600))
    high = data.draw(st.integers(low, 3_600))
    policy = RetryPolicy(
        min_delay_target=low,
        max_delay_target=high,
        num_retries=no + low_count + backoff + high_count,
        num_no_delay_retries=no,
        num_min_delay_retries=low_count,
        num_max_delay_retries=high_count,
        backoff_function=data.draw(st.sampled_from(sorted(delivery_policy._BACKOFF))),
    )
    found = delays(policy)
    assert found == sorted(found)
    assert found[:no] == [0] * no
    assert found[no : no + low_count] == [low] * low_count
    assert found[len(found) - high_count :] == [high] * high_count
    middle = found[no + low_count : len(found) - high_count]
    assert len(middle) == backoff
    assert all(low <= delay <= high for delay in middle)
    if backoff > 1:
        assert (middle[0], middle[-1]) == (low, high)
    chance = data.draw(st.floats(0, 1))
    for retry, delay in enumerate(found, 1):
        delay_ms = retry_delay_ms(policy, retry, chance=chance)
        assert delay_ms is not None
        assert abs(delay_ms - delay * 1_000) <= delay * 200 + 1
