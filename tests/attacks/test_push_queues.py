"""Copies of messages in queues of other tenants: only those that the queue's policy allows, and as
many as the storage quota of its owner allows, on one node and on three."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.attacks.kit import ROOT, Operator, policy
from tests.attacks.push_stage import sns_as
from tests.attacks.test_quotas import Tenant
from tests.harness.cluster import PenstockCluster
from tests.harness.endpoint import Endpoint, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server

SMALL, LARGE = 1_500_000, 1_000_000_000
TEXT = "x" * 100_000
COUNT = "ApproximateNumberOfMessages"


@pytest.fixture(params=["one node", "three nodes"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[Server]]:
    if request.param == "one node":
        yield [request.getfixturevalue("locked")]
        return
    if LACKING is not None:
        pytest.skip(LACKING)
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "root").write_text(str(ROOT.secret_key))
    (folder / "root").chmod(0o600)
    env = {
        "PENSTOCK_AUTH__MODE": "on",
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(folder / "root"),
    }
    with PenstockCluster(folder, fsync="never", env=env) as cluster:
        yield list(cluster.nodes.values())
        for node in cluster.nodes.values():
            node.assert_no_traceback()


class Subscriber(Tenant):
    """A tenant with a queue that takes what anybody publishes."""

    def __init__(self, server: Server, root: Operator, name: str) -> None:
        super().__init__(server, root)
        self.url = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        self.arn = f"arn:aws:sqs:us-east-1:{self.account}:{name}"
        statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
        text = policy({**statement, "Resource": self.arn})
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes={"Policy": text})

    def count(self) -> int:
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=[COUNT])
        return int(found["Attributes"][COUNT])

    def limited(self, servers: Sequence[Server], stored_bytes_max: int) -> None:
        """Set the quota, and wait until all nodes know it."""
        self.limit(stored_bytes_max=stored_bytes_max)
        roots = [Operator(each) for each in servers]

        def are_told() -> bool:
            found = [each.ask("GET", f"quotas/{self.account}")["quotas"] for each in roots]
            return all(each["stored_bytes_max"] == stored_bytes_max for each in found)

        eventually(are_told, seconds=60, what="the quota on all nodes")


def logged(servers: Sequence[Server], *texts: str) -> bool:
    lines = [line for each in servers for line in each.stderr.splitlines()]
    return any(all(text in line for text in texts) for line in lines)


def test_copies_stop_at_the_quota_and_go_on_when_there_is_room(
    servers: Sequence[Server], name: Any
) -> None:
    root, topic_name = Operator(servers[0]), name()
    greedy, fair = (Subscriber(servers[0], root, topic_name) for _ in range(2))
    sns = sns_as(servers[0], ROOT)
    topic = sns.create_topic(Name=topic_name)["TopicArn"]
    raw = {"RawMessageDelivery": "true"}
    for each in (greedy, fair):
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=each.arn, Attributes=raw)
    greedy.limited(servers, SMALL)
    published = 0

    def is_refused() -> bool:
        nonlocal published
        sns.publish(TopicArn=topic, Message=TEXT)
        published += 1
        return logged(servers, "copy rejected by a queue", topic_name, "Storage quota exceeded")

    eventually(is_refused, seconds=60, what="a refused copy")
    had = greedy.count()
    for _ in range(5):
        sns.publish(TopicArn=topic, Message=TEXT)
    published += 5
    eventually(lambda: fair.count() == published, seconds=60, what="all copies of the other")
    assert greedy.count() == had < published
    greedy.limited(servers, LARGE)
    eventually(lambda: greedy.count() == published, seconds=60, what="all copies")
    for each in (greedy.sqs, fair.sqs, sns):
        each.close()


def test_a_queue_gets_nothing_that_its_policy_does_not_allow(locked: Server, name: Any) -> None:
    """Neither copies nor dead letters of topics."""
    root, names = Operator(locked), [name() for _ in range(4)]
    sns = sns_as(locked, ROOT)
    topic, other = (str(sns.create_topic(Name=each)["TopicArn"]) for each in names[:2])
    every = [Subscriber(locked, root, each) for each in names]
    allowed, silent, denied, foreign = every
    allow = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
    condition = {"ArnEquals": {"aws:SourceArn": other}}
    for each, statements in (
        (denied, [allow, {**allow, "Effect": "Deny"}]),
        (foreign, [{**allow, "Condition": condition}]),
    ):
        text = policy(*({**statement, "Resource": each.arn} for statement in statements))
        each.sqs.set_queue_attributes(QueueUrl=each.url, Attributes={"Policy": text})
    silent.sqs.set_queue_attributes(QueueUrl=silent.url, Attributes={"Policy": ""})
    for each in (silent, denied, foreign, allowed):
        redrive = json.dumps({"deadLetterTargetArn": each.arn})
        for endpoint, attributes in ((each.arn, {}), (f"{each.arn}-x", {"RedrivePolicy": redrive})):
            sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint, Attributes=attributes)
    sns.publish(TopicArn=topic, Message="planted")
    eventually(lambda: allowed.count() == 2, seconds=60, what="a copy and a dead letter")
    assert [each.count() for each in (silent, denied, foreign)] == [0, 0, 0]
    for client in (sns, *(each.sqs for each in every)):
        client.close()


def test_dead_letters_stop_at_the_quota(locked: Server, endpoint: Endpoint, name: Any) -> None:
    queue = name()
    greedy = Subscriber(locked, Operator(locked), queue)
    sns = sns_as(locked, greedy.credentials)
    topic = sns.create_topic(Name=queue)["TopicArn"]
    endpoint.plan(f"/{queue}", Step(status=400))
    body = {
        "source": topic,
        "endpoint": endpoint.url(f"/{queue}"),
        "settings": {"dead_letter": queue},
    }
    admin = Operator(locked, greedy.credentials)
    made = admin.ask("POST", "subscriptions", body)
    sns.publish(TopicArn=topic, Message="first")
    eventually(lambda: greedy.count() == 1, seconds=60, what="a dead letter")
    greedy.limited([locked], 1)

    event = "the dead-letter queue rejected a message"

    def is_refused() -> bool:
        status, _ = admin.try_("POST", f"subscriptions/{made['id']}/replay", {"earliest": True})
        assert status in (200, 409)  # 409: ten of them wait
        return logged([locked], event, made["id"], "Storage quota exceeded")

    eventually(is_refused, seconds=60, what="a refused dead letter")
    sns.close()
    greedy.sqs.close()
