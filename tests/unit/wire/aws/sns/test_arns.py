from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns
from penstock.wire.aws.sns.arns import SubscriptionArn, TopicArn

ME, HERE = "111111111111", "us-east-1"
ORDERS = TopicArn(HERE, ME, "orders")
ID = "8a21d249-4329-4871-acc6-7be709c6ea7f"


def refusal_of(parse: Callable[[], object]) -> Fault:
    with pytest.raises(Fault) as caught:
        parse()
    return caught.value


@pytest.mark.parametrize(
    ("name", "is_fifo"),
    [
        ("a", False),
        ("a" * 256, False),
        ("A_b-9", False),
        ("a.fifo", True),
        ("a" * 251 + ".fifo", True),
    ],
)
def test_topic_names_are_accepted(name: str, is_fifo: bool) -> None:
    assert arns.check_topic_name(name, is_fifo=is_fifo) == name


@pytest.mark.parametrize(
    ("name", "is_fifo"),
    [
        (None, False), ("", False), ("a" * 257, False), ("a" * 252 + ".fifo", True),
        ("a.b", False), ("a b", False), ("a@", False), ("é", False), ("a\n", False),
        ("a.fifo", False), ("a", True), (".fifo", True), ("a.fifo.fifo", True), ("a.FIFO", True),
        ("arn:aws:sns:us-east-1:1:x", False), ("a/b", False), ("a.fifox", False),
    ],
)  # fmt: skip
def test_other_topic_names_are_refused(name: str | None, is_fifo: bool) -> None:
    refusal = refusal_of(lambda: arns.check_topic_name(name, is_fifo=is_fifo))
    assert (refusal.code, refusal.message) == ("InvalidParameter", "Invalid parameter: Topic Name")


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        (ORDERS, f"arn:aws:sns:us-east-1:{ME}:orders"),
        (TopicArn("cn-north-1", ME, "a.fifo"), f"arn:aws-cn:sns:cn-north-1:{ME}:a.fifo"),
        (TopicArn("us-gov-west-1", ME, "a"), f"arn:aws-us-gov:sns:us-gov-west-1:{ME}:a"),
    ],
)
def test_topic_arns_are_written_and_read(topic: TopicArn, text: str) -> None:
    assert str(topic) == text
    assert arns.parse_topic(text, caller="2" * 12, region=topic.region) == topic
    subscription = SubscriptionArn(topic, ID)
    assert str(subscription) == f"{text}:{ID}"
    assert arns.parse_subscription(str(subscription), caller="2" * 12) == subscription


def test_an_empty_account_is_the_callers() -> None:
    assert arns.parse_topic("arn:aws:sns:us-east-1::orders", caller=ME, region=HERE) == ORDERS
    parsed = arns.parse_subscription(f"arn:aws:sns:us-east-1::orders:{ID}", caller=ME)
    assert parsed == SubscriptionArn(ORDERS, ID)


FEW = "Invalid parameter: {} Reason: An ARN must have at least 6 elements, not {}"


@pytest.mark.parametrize(
    ("arn", "message"),
    [
        (None, FEW.format("TopicArn", 1)),
        ("", FEW.format("TopicArn", 1)),
        ("randomstring", FEW.format("TopicArn", 1)),
        ("a:b", FEW.format("TopicArn", 2)),
        ("arn:aws:sns:us-east-1:random", FEW.format("TopicArn", 5)),
        (f"arn:aws:sns:eu-west-1:{ME}:orders", "Invalid parameter: TopicArn"),
        (f"arn:aws:sqs:us-east-1:{ME}:orders", "Invalid parameter: TopicArn"),
        (f"urn:aws:sns:us-east-1:{ME}:orders", "Invalid parameter: TopicArn"),
        (f"arn:gcp:sns:us-east-1:{ME}:orders", "Invalid parameter: TopicArn"),
        ("a:b:c:d:e:f", "Invalid parameter: TopicArn"),
        (":::::", "Invalid parameter: TopicArn"),
        (f"arn:aws:sns:us-east-1:{ME}:" + "x" * 2_000, "Invalid parameter: TopicArn"),
    ],
)
def test_malformed_topic_arns_are_refused(arn: str | None, message: str) -> None:
    refusal = refusal_of(lambda: arns.parse_topic(arn, caller=ME, region=HERE))
    assert (refusal.code, refusal.status, refusal.message) == ("InvalidParameter", 400, message)
    if arn is None or ":eu-west-1:" not in arn:  # a token may be from any region
        confirmed = refusal_of(lambda: arns.parse_confirmed_topic(arn, caller=ME))
        text = "Invalid parameter: Topic"
        assert (confirmed.code, confirmed.message) == ("InvalidParameter", text)
    tagged = refusal_of(lambda: arns.parse_tagged(arn, caller=ME, region=HERE))
    assert (tagged.code, tagged.status) == ("ResourceNotFound", 404)
    assert tagged.message == "Resource does not exist"


def test_well_formed_topic_arns_are_read_for_confirmations_and_tags() -> None:
    assert arns.parse_confirmed_topic(str(ORDERS), caller=ME) == ORDERS
    assert arns.parse_tagged(str(ORDERS), caller=ME, region=HERE) == ORDERS


@pytest.mark.parametrize(
    ("arn", "message"),
    [
        (None, "Invalid parameter: SubscriptionArn Reason: no value for required parameter"),
        ("", FEW.format("SubscriptionArn", 1)),
        ("randomstring", FEW.format("SubscriptionArn", 1)),
        ("PendingConfirmation", FEW.format("SubscriptionArn", 1)),
        ("arn:aws:sns:us-east-1:random", FEW.format("SubscriptionArn", 5)),
        (f"arn:aws:sns:us-east-1:{ME}:random", "Invalid parameter: SubscriptionId"),
        (f"arn:aws:sqs:us-east-1:{ME}:random:{ID}", "Invalid parameter: SubscriptionArn"),
        ("a:b:c:d:e:f:g", "Invalid parameter: SubscriptionArn"),
    ],
)
def test_malformed_subscription_arns_are_refused(arn: str | None, message: str) -> None:
    refusal = refusal_of(lambda: arns.parse_subscription(arn, caller=ME))
    assert (refusal.code, refusal.status, refusal.message) == ("InvalidParameter", 400, message)


def test_the_arn_of_a_subscription_names_no_topic() -> None:
    parsed = arns.parse_topic(f"{ORDERS}:{ID}", caller=ME, region=HERE)
    assert not arns.is_topic_name(parsed.name)


@given(text=st.text("arn:wsqx1-\x00é", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (
        lambda: arns.parse_topic(text, caller=ME, region="a"),
        lambda: arns.parse_subscription(text, caller=ME),
    ):
        assert status_of(parse) in (200, 400)


def status_of(parse: Callable[[], object]) -> int:
    try:
        parse()
    except Fault as refusal:
        return refusal.status
    return 200
