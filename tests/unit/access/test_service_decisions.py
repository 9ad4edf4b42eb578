"""Which SNS topics may send to a queue, by the policy of the queue."""

import json
from typing import Any

import pytest

from penstock.access import evaluation
from penstock.access.conditions import Facts
from penstock.access.evaluation import Kind
from penstock.access.service_decisions import TIMED_MS, ServiceDecisions
from penstock.model.identity import Caller, Circumstances
from penstock.model.topic import Kind as TopicKind
from penstock.model.topic import QueueSettings, SnsTopic, Topic

OWN, OTHER = "111111111111", "222222222222"
NOON_MS = 1_772_366_400_000  # 2026-03-01 12:00
SNS = {"Service": "sns.amazonaws.com"}
TOPIC_ARN = f"arn:aws:sns:eu-west-1:{OWN}:orders"
QUEUE_ARN = f"arn:aws:sqs:eu-west-1:{OWN}:jobs"


def make(name: str, account: str = OWN, **changes: Any) -> Topic:
    return Topic(
        topic_id=f"{account}-{name}",
        account=account,
        region="eu-west-1",
        name=name,
        kind=changes.pop("kind", TopicKind.STANDARD),
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"",
        **changes,
    )


def sns_topic(name: str = "orders", account: str = OWN) -> Topic:
    return make(f"sns.{name}", account, kind=TopicKind.STREAM, sns=SnsTopic(name, 0))


def queue(*statements: dict[str, Any], account: str = OWN, text: str | None = None) -> Topic:
    if statements:
        text = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    return make("jobs", account, settings=QueueSettings(policy=text))


def allow(principal: object = SNS, effect: str = "Allow", **changes: Any) -> dict[str, Any]:
    block = {"Effect": effect, "Principal": principal, "Action": "sqs:SendMessage"}
    return block | {"Resource": QUEUE_ARN} | changes


def under(operator: str, **keys: object) -> dict[str, Any]:
    return {"Condition": {operator: {f"aws:{name}": value for name, value in keys.items()}}}


def may_send(to: Topic, topic: Topic | None = None, *, now_ms: int = NOON_MS) -> bool:
    return ServiceDecisions().may_send(topic or sns_topic(), to, now_ms=now_ms)


@pytest.mark.parametrize(
    ("statements", "is_allowed"),
    [
        ((), False),
        ([allow()], True),
        ([allow("*")], True),
        ([allow({"AWS": "*"})], True),
        ([allow({"Service": "*"})], True),
        ([allow({"Service": ["events.amazonaws.com", "sns.amazonaws.com"]})], True),
        ([allow({"Service": "events.amazonaws.com"})], False),
        ([allow({"AWS": OWN})], False),  # the account of the topic is not the service
        ([allow({"AWS": f"arn:aws:iam::{OWN}:root"})], False),
        ([allow(Action="sqs:*")], True),
        ([allow(Action="sqs:ReceiveMessage")], False),
        ([allow(Resource="*")], True),
        ([allow(Resource=QUEUE_ARN + "x")], False),
        ([allow(**under("ArnEquals", SourceArn=TOPIC_ARN))], True),
        ([allow(**under("ArnLike", SourceArn=f"arn:aws:sns:*:{OWN}:ord*"))], True),
        ([allow(**under("StringEquals", SourceArn=TOPIC_ARN))], True),
        ([allow(**under("ArnEquals", SourceArn=TOPIC_ARN + "2"))], False),
        ([allow(**under("StringEquals", SourceAccount=OWN))], True),
        ([allow(**under("StringEquals", SourceAccount=OTHER))], False),
        ([allow("*", **under("StringEquals", SourceOwner=OWN))], True),
        ([allow(**under("Null", SourceArn=True))], False),
        ([allow(**under("Bool", PrincipalIsAWSService=True))], True),
        ([allow(**under("StringEquals", PrincipalServiceName="sns.amazonaws.com"))], True),
        # A service has no user and no address, and no network that could be read.
        ([allow("*", **under("StringEquals", PrincipalAccount=OWN))], False),
        ([allow("*", **under("StringEquals", username=""))], False),
        ([allow("*", **under("IpAddress", SourceIp="0.0.0.0/0"))], False),
        ([allow(), allow("*", "Deny", **under("Bool", SecureTransport=False))], True),
        ([allow(), allow("*", "Deny")], False),
        ([allow(), allow(effect="Deny", **under("ArnLike", SourceArn=TOPIC_ARN))], False),
        ([allow(), allow({"AWS": OWN}, "Deny")], True),
    ],
)
def test_the_policy_of_the_queue_decides(
    statements: list[dict[str, Any]], is_allowed: bool
) -> None:
    assert may_send(queue(*statements)) is is_allowed


def test_everybody_except_the_service_can_be_denied() -> None:
    others = {"NotPrincipal": SNS}
    deny = {key: value for key, value in allow(effect="Deny").items() if key != "Principal"}
    assert may_send(queue(allow(), deny | others))
    assert not may_send(queue(allow(), deny | {"NotPrincipal": {"AWS": OWN}}))


def test_a_topic_of_another_account_is_allowed_by_the_same_rules() -> None:
    foreign = sns_topic(account=OTHER)
    assert not may_send(queue(), foreign)
    assert may_send(queue(allow()), foreign)
    assert not may_send(queue(allow(**under("StringEquals", SourceAccount=OWN))), foreign)
    assert may_send(queue(allow(**under("StringEquals", SourceAccount=OTHER))), foreign)
    arn = f"arn:aws:sns:eu-west-1:{OTHER}:orders"
    assert may_send(queue(allow(**under("ArnEquals", SourceArn=arn))), foreign)


def test_an_invalid_stored_policy_denies() -> None:
    assert not may_send(queue(text="not JSON"))


@pytest.mark.parametrize("key", ["aws:SourceArn", "AWS:SourceAccount", "aws:PrincipalServiceName"])
def test_a_user_never_has_the_keys_of_services(key: str) -> None:
    for user in (Caller(OWN, "alice"), Caller(OWN, "sns.amazonaws.com")):
        for value in (TOPIC_ARN, OWN, "sns.amazonaws.com", "*", ""):
            block = allow("*", Condition={"StringLike": {key: value}})
            assert not _user_may(user, block)
        assert _user_may(user, allow("*", Condition={"Null": {key: True}}))
        assert not _user_may(user, allow(SNS))
        assert not _user_may(user, allow({"Service": "*"}))


def _user_may(user: Caller, block: dict[str, Any]) -> bool:
    text = json.dumps({"Version": "2012-10-17", "Statement": block})
    policy = evaluation.compile_policy(text, Kind.RESOURCE)
    facts = Facts(user, Circumstances(now_ms=NOON_MS), OWN)
    return evaluation.decide((), policy, facts, "sqs:SendMessage", QUEUE_ARN).is_allowed


def test_a_changed_policy_counts_at_once() -> None:
    decisions, topic = ServiceDecisions(), sns_topic()
    assert decisions.may_send(topic, queue(allow()), now_ms=NOON_MS)
    assert not decisions.may_send(topic, queue(), now_ms=NOON_MS)
    assert decisions.may_send(topic, queue(allow()), now_ms=NOON_MS)
    assert not decisions.may_send(sns_topic("other"), queue(), now_ms=NOON_MS)


def test_a_policy_that_names_a_time_ends_within_a_second() -> None:
    decisions, topic = ServiceDecisions(), sns_topic()
    until_noon = queue(allow(**under("DateLessThan", CurrentTime="2026-03-01T12:00:00Z")))
    assert decisions.may_send(topic, until_noon, now_ms=NOON_MS - 1)
    assert not decisions.may_send(topic, until_noon, now_ms=NOON_MS - 1 + TIMED_MS)
    forever = queue(allow())
    assert decisions.may_send(topic, forever, now_ms=NOON_MS)
    assert decisions.may_send(topic, forever, now_ms=NOON_MS + 1_000 * TIMED_MS)
