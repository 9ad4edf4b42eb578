"""Subscribe and the attributes of subscriptions."""

from __future__ import annotations

import json

import pytest
from tests.compat.sns.stage import ACCOUNT, BAD, Given, Row, Stage, compact, expected, identified

ON_SET = "Invalid parameter: "
ON_CREATE = "Invalid parameter: Attributes Reason: "
DIFFERENT = f"{ON_CREATE}Subscription already exists with different attributes"
PROTOCOL = "Invalid parameter: Amazon SNS does not support this protocol string: {}"
SCHEME = "Invalid parameter: Endpoint must match the specified protocol"
QUEUE_ARN = "Invalid parameter: SQS endpoint ARN"
FIFO_QUEUE = (
    "Invalid parameter: Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed"
    " to standard SNS topics"
)
URL = "http://127.0.0.1:1025/hook"  # nothing listens here


def to(protocol: str, endpoint: str, **more: object) -> Given:
    return {"TopicArn": "<topic>", "Protocol": protocol, "Endpoint": endpoint, **more}


ENDPOINTS: list[tuple[Given, str]] = [
    (to("smoke", "x"), PROTOCOL.format("smoke")),
    (to("SQS", "<queue>"), PROTOCOL.format("SQS")),
    (to("sqs ", "<queue>"), PROTOCOL.format("sqs ")),
    (to("sqs", "queue"), QUEUE_ARN),
    (to("sqs", "<topic>"), QUEUE_ARN),
    (to("sqs", "<queue-url>"), QUEUE_ARN),
    (to("sqs", f"arn:aws:sqs:us-east-1:{ACCOUNT}:"), QUEUE_ARN),
    (to("sqs", f"arn:aws:sqs:us-east-1:{ACCOUNT}:a b"), QUEUE_ARN),
    (to("sqs", "arn:aws:sqs:us-east-1:1:q"), QUEUE_ARN),
    (to("sqs", f"arn:aws:sqs:us-east-1:{ACCOUNT}:topic:group"), QUEUE_ARN),
    (to("sqs", "<fifo-queue>"), FIFO_QUEUE),
    (to("http", "https://example.com/"), SCHEME),
    (to("https", "http://example.com/"), SCHEME),
    (to("http", "example.com"), SCHEME),
    (to("https", "ftp://example.com/"), SCHEME),
    (to("http", "<queue>"), SCHEME),
    (to("http", "http:/example.com"), SCHEME),
    (
        to("http", "http://example.com/#x"),
        "Invalid parameter: Endpoint Reason: The URL must not have a fragment (#) or a backslash.",
    ),
    (
        to("http", "http://0x7f.1/"),
        (
            "Invalid parameter: Endpoint Reason: An IPv4 address in the URL must be four decimal"
            " numbers without leading zeros."
        ),
    ),
    (
        to("http", "http://"),
        (
            "Invalid parameter: Endpoint Reason: The host of the URL is neither a DNS name nor an"
            " address."
        ),
    ),
    (
        to("http", "http://h:99999/"),
        "Invalid parameter: Endpoint Reason: The port of the URL must be a number from 1 to 65535.",
    ),
    (
        to("https", "https://example.com/" + "x" * 2_048),
        "Invalid parameter: Endpoint Reason: The URL has more than 2,048 characters.",
    ),
]
ROWS: list[Row] = [("Subscribe", given, BAD, text) for given, text in ENDPOINTS]

RAW = "RawMessageDelivery: Invalid value [{}]. Must be true or false."
SCOPE = "FilterPolicyScope: Invalid value [{}]. Please use either MessageBody or MessageAttributes"
DEAD = "RedrivePolicy: deadLetterTargetArn is an invalid arn"
REPLAY = "ReplayPolicy: "
POINT = {"PointType": "Timestamp", "StartingPoint": "2026-01-31T12:00:00.000Z"}
TIME = " must be a time such as 2026-01-31T12:00:00.000Z"
BAD_VALUES: list[tuple[str, str, str]] = [
    ("RawMessageDelivery", "perhaps", RAW.format("perhaps")),
    ("RawMessageDelivery", "1", RAW.format("1")),
    ("FilterPolicyScope", "body", SCOPE.format("body")),
    ("FilterPolicyScope", "messagebody", SCOPE.format("messagebody")),
    ("RedrivePolicy", "{", "RedrivePolicy: failed to parse JSON. It must be an object"),
    ("RedrivePolicy", "[]", "RedrivePolicy: failed to parse JSON. It must be an object"),
    ("RedrivePolicy", "{}", DEAD),
    ("RedrivePolicy", '{"deadLetterTargetArn":"x"}', DEAD),
    ("RedrivePolicy", '{"deadLetterTargetArn":5}', DEAD),
    ("RedrivePolicy", '{"deadLetterTargetArn":"<topic>"}', DEAD),
    ("DeliveryPolicy", "[]", "DeliveryPolicy: failed to parse JSON. The policy must be an object"),
    ("DeliveryPolicy", '{"http":{}}', "DeliveryPolicy: Unexpected JSON member: http"),
    (
        "DeliveryPolicy",
        '{"throttlePolicy":{"maxReceivesPerSecond":0}}',
        "DeliveryPolicy: throttlePolicy.maxReceivesPerSecond must be >= 1",
    ),
    (
        "DeliveryPolicy",
        '{"healthyRetryPolicy":{"numRetries":2,"minDelayTarget":1801,"maxDelayTarget":1801}}',
        (
            "DeliveryPolicy: healthyRetryPolicy: Total policy retry time cannot be greater than"
            " 3600 seconds"
        ),
    ),
    ("ReplayPolicy", "x", f"{REPLAY}failed to parse JSON. The policy must be an object"),
    ("ReplayPolicy", '{"Point":1}', f"{REPLAY}Unexpected JSON member: Point"),
    ("ReplayPolicy", '{"PointType":"Offset"}', f"{REPLAY}PointType must be Timestamp"),
    ("ReplayPolicy", '{"PointType":"Timestamp"}', f"{REPLAY}StartingPoint{TIME}"),
    ("ReplayPolicy", compact(POINT | {"StartingPoint": 5}), f"{REPLAY}StartingPoint{TIME}"),
    ("ReplayPolicy", compact(POINT | {"EndingPoint": "soon"}), f"{REPLAY}EndingPoint{TIME}"),
    (
        "ReplayPolicy",
        compact(POINT | {"StartingPoint": "2200-01-01T00:00:00Z"}),
        f"{REPLAY}StartingPoint must be in the past",
    ),
    (
        "ReplayPolicy",
        compact(POINT | {"EndingPoint": "2025-01-01T00:00:00Z"}),
        f"{REPLAY}EndingPoint must not be before StartingPoint",
    ),
]
ROWS += [
    ("Subscribe", to("sqs", "<other-queue>", Attributes={name: value}), BAD, ON_CREATE + text)
    for name, value, text in BAD_VALUES
]
ROWS += [
    (
        "SetSubscriptionAttributes",
        {"SubscriptionArn": "<subscription>", "AttributeName": name, "AttributeValue": value},
        BAD,
        ON_SET + text,
    )
    for name, value, text in BAD_VALUES
]
UNKNOWN = ["Nope", "rawmessagedelivery", "Endpoint", "PendingConfirmation", "ReplayStatus"]
ROWS += [
    (
        "SetSubscriptionAttributes",
        {"SubscriptionArn": "<subscription>", "AttributeName": name, "AttributeValue": "x"},
        BAD,
        f"{ON_SET}AttributeName",
    )
    for name in UNKNOWN
]
ROWS += [
    (
        "Subscribe",
        to("sqs", "<other-queue>", Attributes={name: "x"}),
        BAD,
        f"{ON_CREATE}AttributeName",
    )
    for name in UNKNOWN
]
MUST_BE_FIFO = (
    "RedrivePolicy: must use a FIFO queue as DLQ for a FIFO Subscription to a FIFO Topic."
)
ROWS += [
    (
        "Subscribe",
        {
            "TopicArn": "<fifo>",
            "Protocol": "sqs",
            "Endpoint": "<fifo-queue>",
            "Attributes": {"RedrivePolicy": '{"deadLetterTargetArn":"<queue>"}'},
        },
        BAD,
        ON_CREATE + MUST_BE_FIFO,
    ),
    # The order of the checks: topic, endpoint, protocol, form, FIFO queue, attributes.
    ("Subscribe", {"TopicArn": "<absent>"}, "NotFound", "Topic does not exist"),
    (
        "Subscribe",
        {"TopicArn": "<topic>", "Protocol": "smoke"},
        BAD,
        "Invalid parameter: Endpoint Reason: no value for required parameter",
    ),
    ("Subscribe", to("smoke", "x", Attributes={"Nope": "x"}), BAD, PROTOCOL.format("smoke")),
    ("Subscribe", to("sqs", "x.fifo", Attributes={"Nope": "x"}), BAD, QUEUE_ARN),
    ("Subscribe", to("sqs", "<fifo-queue>", Attributes={"Nope": "x"}), BAD, FIFO_QUEUE),
]


@pytest.mark.parametrize("row", ROWS, ids=identified)
def test_refused(stage: Stage, row: Row) -> None:
    assert stage.refusal(row[0], row[1]) == expected(row, stage)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("RawMessageDelivery", "true", "true"),
        ("RawMessageDelivery", "TRUE", "true"),
        ("RawMessageDelivery", "False", "false"),
        ("FilterPolicy", '{ "color" : ["red"] }', '{ "color" : ["red"] }'),
        ("RedrivePolicy", '{"deadLetterTargetArn":"<queue>"}', '{"deadLetterTargetArn":"<queue>"}'),
        ("SubscriptionRoleArn", "arn:aws:iam::1:role/r", "arn:aws:iam::1:role/r"),
        ("ReplayPolicy", compact(POINT), compact(POINT)),
    ],
)
def test_an_attribute_is_shown_as_it_was_set_and_as_it_was_given(
    stage: Stage, name: str, value: str, shown: str
) -> None:
    topic, value, shown = stage.topic(), stage.fill(value), stage.fill(shown)
    arn = stage.subscribe(topic, stage.names["<queue>"])
    assert (name in stage.attributes(arn)) == (name == "RawMessageDelivery")
    stage.set(arn, name, value)
    assert stage.attributes(arn)[name] == shown
    other = stage.subscribe(topic, stage.names["<other-queue>"], **{name: value})
    assert stage.attributes(other)[name] == shown
    assert stage.subscribe(topic, stage.names["<other-queue>"], **{name: value}) == other
    if name != "RawMessageDelivery":
        stage.set(arn, name, "")
        assert name not in stage.attributes(arn)


def test_the_endpoint_again_is_the_same_subscription_if_no_attribute_differs(stage: Stage) -> None:
    topic, queue = stage.topic(), stage.names["<queue>"]
    policy = '{"a":["x"]}'
    arn = stage.subscribe(topic, queue, FilterPolicy=policy, RawMessageDelivery="true")
    assert stage.subscribe(topic, queue) == arn
    assert stage.subscribe(topic, queue, RawMessageDelivery="TRUE") == arn
    assert stage.subscribe(topic, queue, FilterPolicy='{"a": ["x"]}') == arn
    assert stage.subscribe(topic, queue, FilterPolicyScope="MessageAttributes") == arn
    for others in (
        {"RawMessageDelivery": "false"},
        {"FilterPolicy": '{"a":["y"]}'},
        {"FilterPolicyScope": "MessageBody"},
        {"RedrivePolicy": '{"deadLetterTargetArn":"<queue>"}'},
    ):
        given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": queue, "Attributes": others}
        assert stage.refusal("Subscribe", given) == (400, BAD, DIFFERENT)


def test_a_subscription_of_a_queue_shows_these_attributes(stage: Stage) -> None:
    topic, queue = stage.topic(), stage.names["<queue>"]
    arn = stage.subscribe(topic, queue)
    assert stage.attributes(arn) == {
        "SubscriptionArn": arn,
        "TopicArn": topic,
        "Protocol": "sqs",
        "Endpoint": queue,
        "Owner": ACCOUNT,
        "SubscriptionPrincipal": f"arn:aws:iam::{ACCOUNT}:root",
        "PendingConfirmation": "false",
        "ConfirmationWasAuthenticated": "true",
        "RawMessageDelivery": "false",
    }
    stage.set(arn, "FilterPolicyScope", "MessageBody")
    assert "FilterPolicyScope" not in stage.attributes(arn), "shown only with a policy"
    stage.set(arn, "FilterPolicy", '{"a":{"b":["x"]}}')
    assert stage.attributes(arn)["FilterPolicyScope"] == "MessageBody"
    stage.set(arn, "FilterPolicy", "")
    assert not {"FilterPolicy", "FilterPolicyScope"} & stage.attributes(arn).keys()
    stage.set(arn, "FilterPolicy", '{"a":["x"]}')
    assert stage.attributes(arn)["FilterPolicyScope"] == "MessageAttributes"


@pytest.mark.parametrize(
    "queue",
    [
        f"arn:aws:sqs:us-east-1:{ACCOUNT}:not-there-yet",
        f"arn:aws:sqs:eu-west-1:{ACCOUNT}:elsewhere",
        "arn:aws:sqs:us-east-1:123456789012:of-another-account",
    ],
)
def test_a_queue_need_not_exist_and_may_be_anywhere(stage: Stage, queue: str) -> None:
    arn = stage.subscribe(stage.topic(), queue)
    assert stage.attributes(arn)["PendingConfirmation"] == "false", "in development"


@pytest.mark.parametrize("protocol", ["http", "https"])
def test_an_http_endpoint_must_confirm(stage: Stage, protocol: str) -> None:
    topic, url = stage.topic(), URL.replace("http", protocol, 1)
    given = {"TopicArn": topic, "Protocol": protocol, "Endpoint": url}
    assert stage.ask("Subscribe", **given)["SubscriptionArn"] == "pending confirmation"
    assert stage.ask("Subscribe", **given)["SubscriptionArn"] == "pending confirmation"
    arn = stage.ask("Subscribe", **given, ReturnSubscriptionArn=True)["SubscriptionArn"]
    assert arn.startswith(f"{topic}:")
    shown = stage.attributes(arn)
    assert (shown["PendingConfirmation"], shown["ConfirmationWasAuthenticated"]) == (
        "true",
        "false",
    )
    assert shown["Endpoint"] == url
    assert "DeliveryPolicy" not in shown
    assert json.loads(shown["EffectiveDeliveryPolicy"])["healthyRetryPolicy"]["numRetries"] == 3
    [listed] = stage.ask("ListSubscriptionsByTopic", TopicArn=topic)["Subscriptions"]
    assert listed == {
        "SubscriptionArn": "PendingConfirmation",
        "Owner": ACCOUNT,
        "Protocol": protocol,
        "Endpoint": url,
        "TopicArn": topic,
    }
    counts = stage.attributes(topic)
    assert (counts["SubscriptionsPending"], counts["SubscriptionsConfirmed"]) == ("1", "0")
    stage.ask("Unsubscribe", SubscriptionArn=arn)
    assert stage.attributes(topic)["SubscriptionsPending"] == "0"


def test_a_delivery_policy_of_a_subscription_is_shown_with_nulls(stage: Stage) -> None:
    topic = stage.topic()
    rate = {"http": {"defaultThrottlePolicy": {"maxReceivesPerSecond": 7}}}
    stage.set(topic, "DeliveryPolicy", compact(rate))
    given = {"TopicArn": topic, "Protocol": "http", "Endpoint": URL}
    policy = {"DeliveryPolicy": compact({"requestPolicy": {"headerContentType": "text/csv"}})}
    more = {"Attributes": policy, "ReturnSubscriptionArn": True}
    arn = stage.ask("Subscribe", **given, **more)["SubscriptionArn"]
    assert stage.ask("Subscribe", **given, **more)["SubscriptionArn"] == arn
    shown = stage.attributes(arn)
    assert json.loads(shown["DeliveryPolicy"]) == {
        "healthyRetryPolicy": None,
        "sicklyRetryPolicy": None,
        "throttlePolicy": None,
        "requestPolicy": {"headerContentType": "text/csv"},
        "guaranteed": False,
    }
    effective = json.loads(shown["EffectiveDeliveryPolicy"])
    assert effective["throttlePolicy"] == {"maxReceivesPerSecond": 7}
    assert effective["requestPolicy"] == {"headerContentType": "text/csv"}
    assert effective["healthyRetryPolicy"]["minDelayTarget"] == 20
    again = {"DeliveryPolicy": shown["DeliveryPolicy"]}
    reply = stage.ask("Subscribe", **given, Attributes=again, ReturnSubscriptionArn=True)
    assert reply["SubscriptionArn"] == arn


def test_the_password_of_an_endpoint_is_not_shown(stage: Stage) -> None:
    topic = stage.topic()
    given = {"TopicArn": topic, "Protocol": "http", "ReturnSubscriptionArn": True}
    url, hidden = "http://user:{}@127.0.0.1:1025/", "http://user:****@127.0.0.1:1025/"
    arn = stage.ask("Subscribe", Endpoint=url.format("pa%20ss"), **given)["SubscriptionArn"]
    assert stage.attributes(arn)["Endpoint"] == hidden
    [listed] = stage.ask("ListSubscriptionsByTopic", TopicArn=topic)["Subscriptions"]
    assert listed["Endpoint"] == hidden
    for password in ("other", "****"):
        again = stage.ask("Subscribe", Endpoint=url.format(password), **given)
        assert again["SubscriptionArn"] == arn


def test_every_protocol_may_subscribe_to_a_fifo_topic(stage: Stage) -> None:
    topic = stage.topic(".fifo", FifoTopic="true")
    for protocol, endpoint in (("sqs", "<queue>"), ("sqs", "<fifo-queue>"), ("http", URL)):
        stage.ask("Subscribe", TopicArn=topic, Protocol=protocol, Endpoint=endpoint)
    assert len(stage.ask("ListSubscriptionsByTopic", TopicArn=topic)["Subscriptions"]) == 3


def test_subscriptions_are_listed_by_hundreds(stage: Stage) -> None:
    topic = stage.topic()
    queues = [f"arn:aws:sqs:us-east-1:{ACCOUNT}:q{number}" for number in range(101)]
    made = {stage.subscribe(topic, queue) for queue in queues}
    for action, given in (
        ("ListSubscriptionsByTopic", {"TopicArn": topic}),
        ("ListSubscriptions", {}),
    ):
        found: list[str] = []
        reply = stage.ask(action, **given)
        while True:
            found += [one["SubscriptionArn"] for one in reply["Subscriptions"]]
            if "NextToken" not in reply:
                break
            assert len(reply["Subscriptions"]) == 100
            reply = stage.ask(action, **given, NextToken=reply["NextToken"])
        assert made <= set(found)
        assert len(found) == len(set(found)) or action == "ListSubscriptions"
    assert stage.attributes(topic)["SubscriptionsConfirmed"] == "101"
    stage.ask("DeleteTopic", TopicArn=topic)
    assert stage.refusal("GetSubscriptionAttributes", {"SubscriptionArn": made.pop()})[0] == 404


def test_a_replay_is_recorded(stage: Stage) -> None:
    topic = stage.topic()
    stage.ask("Publish", TopicArn=topic, Message="old")
    arn = stage.subscribe(topic, stage.names["<queue>"])
    assert "ReplayStatus" not in stage.attributes(arn)
    stage.set(arn, "ReplayPolicy", compact(POINT))
    statuses = ("Pending", "In progress", "Completed", "Failed")
    assert stage.attributes(arn)["ReplayStatus"] in statuses
    stage.set(arn, "ReplayPolicy", "")
    assert not {"ReplayPolicy", "ReplayStatus"} & stage.attributes(arn).keys()


@pytest.mark.parametrize(
    ("arn", "token", "text"),
    [
        ("<topic>", "0" * 288, "Invalid parameter: Token"),
        ("<topic>", "x", "Invalid parameter: Token"),
        ("<topic>", "", "Invalid parameter: Token"),
        ("<absent>", "0" * 288, "Invalid parameter: Token"),
        ("", "x", "Invalid parameter: Topic"),
        ("random", "x", "Invalid parameter: Topic"),
        ("<queue>", "x", "Invalid parameter: Topic"),
    ],
)
def test_other_confirmations_are_refused(stage: Stage, arn: str, token: str, text: str) -> None:
    refusal = stage.refusal("ConfirmSubscription", {"TopicArn": arn, "Token": token})
    assert refusal == (400, BAD, text)
