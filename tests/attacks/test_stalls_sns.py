"""SNS requests that are meant to keep the event loop busy: filter policies, messages that hundreds
of policies are compared with, and forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from tests.attacks.kit import REGION, send, sns_form
from tests.attacks.stalls import LoopServer
from tests.harness.patience import eventually

from penstock.wire.aws.sns.filter_policy import POLICY_BYTES_MAX, SYMBOLS_MAX

BODY = "MessageBody"
MESSAGE_CHARS = 250_000
COPIES = 20  # subscriptions with each of the policies
QUEUE_ARN = f"arn:aws:sqs:{REGION}:000000000000:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("sns")) as running:
        yield running


class Topic:
    """A topic, and a queue that gets every message."""

    def __init__(self, server: LoopServer, name: str) -> None:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": REGION}
        self.server = server
        self._sqs = boto3.client("sqs", endpoint_url=server.url, **keys)
        self.arn = f"arn:aws:sns:{REGION}:000000000000:{name}"
        self._url = self._sqs.create_queue(QueueName=name)["QueueUrl"]
        assert self.ask("CreateTopic", Name=name)[0] == 200
        self.subscribe(name, RawMessageDelivery="true")

    def ask(self, action: str, **fields: Any) -> tuple[int, bytes]:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        host, form = urlsplit(self.server.url).netloc, sns_form(action, fields)
        return send(host, "POST", "/", form, headers, seconds=60)[:2]

    def subscribe(self, queue: str, **attributes: str) -> tuple[int, bytes]:
        return self.ask(
            "Subscribe",
            TopicArn=self.arn,
            Protocol="sqs",
            Endpoint=f"{QUEUE_ARN}{queue}",
            Attributes=attributes,
        )

    def publish(self, message: str, **fields: Any) -> None:
        """Publish a message, and wait until it was compared with all policies."""
        status, reply = self.ask("Publish", TopicArn=self.arn, Message=message, **fields)
        assert status == 200, reply

        def is_copied() -> bool:
            reply = self._sqs.receive_message(QueueUrl=self._url, WaitTimeSeconds=1)
            for one in reply.get("Messages", ()):
                receipt = one["ReceiptHandle"]
                self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=receipt)
            return bool(reply.get("Messages"))

        eventually(is_copied, seconds=60, what="the message in the queue")

    def close(self) -> None:
        self._sqs.close()


# ── Policies ─────────────────────────────────────────────────────────────────────────────────


def text(policy: object) -> str:
    return json.dumps(policy, separators=(",", ":"))


POLICIES = {
    "many symbols": text({"a": [[]] * (SYMBOLS_MAX - 10)}),
    "more symbols than allowed": text({"a": [[]] * 87_000}),
    "many values": text({"a": [*range(SYMBOLS_MAX - 10)]}),
    "deep": '{"a":' * 40_000,
    "deep and closed": '{"a":' * 20_000 + "[1]" + "}" * 20_000,
    "wildcards": text({"a": [{"wildcard": "*a" * 50_000}]}),
    "alternatives": text({"$or": [{f"k{n}": [{"prefix": "x" * 900}]} for n in range(140)]}),
    "nested alternatives": text({"$or": [{"$or": [{"a": [1]}, {"b": [2]}]}] * 900}),
    "a long number": '{"a":[' + "9" * 200_000 + "]}",
    "ranges": text({"a": [{"numeric": [">", 1, "<", 2]}] * 2_000}),
    "networks": text({"a": [{"cidr": "10.0.0.0/8"}] * 2_000}),
    "longer than allowed": text({"a": ["x" * POLICY_BYTES_MAX]}),
    "much longer than allowed": '{"$or":[' + "{}," * 290_000 + "{}]}",
}


@pytest.mark.parametrize("which", POLICIES)
def test_a_hostile_filter_policy_causes_no_stall(server: LoopServer, which: str) -> None:
    topic = Topic(server, f"policy-{which.replace(' ', '-')}")
    with server.watch() as turns:
        status, reply = topic.subscribe(
            "other", FilterPolicy=POLICIES[which], FilterPolicyScope=BODY
        )
    topic.close()
    print(f"{which}: {turns.longest_ms:.1f} ms a turn, {status}")
    assert status in (200, 400, 413), reply[:300]
    turns.check()


# ── Messages ─────────────────────────────────────────────────────────────────────────────────

KEPT = (
    {"a": [{"wildcard": "*a*a*a*b"}]},
    {"a": [{"anything-but": [str(number) for number in range(100)]}]},
    {"a": {"b": {"c": [{"numeric": [">", 5, "<", 6]}, {"exists": False}]}}},
    {"a.b.c": [{"prefix": "x"}, {"suffix": "y"}, {"cidr": "10.0.0.0/8"}]},
    {"$or": [{"a": [{"equals-ignore-case": "x"}]}, {"b": [{"exists": False}]}]},
)
PAIRS = MESSAGE_CHARS // 12
MESSAGES = {
    "a long text": text({"a": "a" * MESSAGE_CHARS}),
    "many values": text({"a": [*range(MESSAGE_CHARS // 7)]}),
    "many texts": text({"a": ["a" * 9] * (MESSAGE_CHARS // 12)}),
    "many objects": text({"a": [{"b": [{"c": 5.5}] * 10}] * (MESSAGE_CHARS // 120)}),
    "many keys": text({f"k{number:06}": 1 for number in range(PAIRS)}),
    "dotted keys": text({"a": {f"b.{number:05}": {"c": 1} for number in range(PAIRS // 2)}}),
    "deep": '{"a":' * 40_000 + "1" + "}" * 40_000,
    "deep arrays": '{"a":' + "[" * 120_000 + "]" * 120_000 + "}",
    "a long number": '{"a":' + "9" * (MESSAGE_CHARS - 10) + "}",
    "a large exponent": '{"a":[' + ",".join(["1e999999999"] * (MESSAGE_CHARS // 12)) + "]}",
    "the same key": "{" + ",".join(['"a":"b"'] * (MESSAGE_CHARS // 8)) + "}",
    "escapes": '{"a":"' + "\\u0061" * (MESSAGE_CHARS // 6) + '"}',
    "not JSON": "[" * MESSAGE_CHARS,
}


@pytest.fixture(scope="module")
def watched(server: LoopServer) -> Iterator[Topic]:
    topic = Topic(server, "watched")
    for number in range(COPIES):
        for which, policy in enumerate(KEPT):
            status, reply = topic.subscribe(
                f"absent-{which}-{number}", FilterPolicy=text(policy), FilterPolicyScope=BODY
            )
            assert status == 200, reply
    yield topic
    topic.close()


@pytest.mark.parametrize("which", MESSAGES)
def test_a_hostile_message_causes_no_stall(watched: Topic, which: str) -> None:
    assert len(MESSAGES[which]) <= 262_144
    with watched.server.watch() as turns:
        watched.publish(MESSAGES[which])
    print(f"{which}: {turns.longest_ms:.1f} ms a turn, {turns.total_ms:.0f} ms in all")
    turns.check()


def test_an_attribute_with_many_values_causes_no_stall(server: LoopServer) -> None:
    topic = Topic(server, "attributes")
    for number in range(COPIES):
        topic.subscribe(f"absent-{number}", FilterPolicy=text({"a": [{"wildcard": "*a*a*b"}]}))
    values = text(["a" * 9] * (MESSAGE_CHARS // 12))
    attribute = {"a": {"DataType": "String.Array", "StringValue": values}}
    with server.watch() as turns:
        topic.publish("x", MessageAttributes=attribute)
    topic.close()
    turns.check()


# ── Forms ────────────────────────────────────────────────────────────────────────────────────

FIELDS = {
    "many fields": {f"Attributes.entry.{n}.key": "a" for n in range(990)},
    "deep names": {f"Attributes{'.entry' * 200}.{n}": "a" for n in range(900)},
    "large indexes": {f"Tags.member.{10**8 + n}.Key": "a" for n in range(900)},
    "long names": {f"{'x' * 1_000}{n}": "a" for n in range(900)},
    "escapes": {"Name": "%" * 900_000},
}


@pytest.mark.parametrize("action", ["CreateTopic", "PublishBatch", "Subscribe", "TagResource"])
@pytest.mark.parametrize("which", FIELDS)
def test_a_hostile_form_causes_no_stall(server: LoopServer, which: str, action: str) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    form = urlencode({"Action": action, "Version": "2010-03-31", **FIELDS[which]})
    with server.watch() as turns:
        status, reply, _ = send(urlsplit(server.url).netloc, "POST", "/", form, headers, seconds=60)
    print(f"{which}: {turns.longest_ms:.1f} ms a turn, {status}")
    assert 400 <= status < 500, reply[:300]
    turns.check()
