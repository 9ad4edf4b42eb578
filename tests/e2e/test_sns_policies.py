"""SNS topics that send to queues, on a node with authentication: the policy of each queue decides
which topics may, and a client cannot pretend to be a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from tests.e2e.test_access_cli import ROOT_KEY_ID, ROOT_SECRET, Person
from tests.harness.patience import eventually
from tests.harness.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.compat]

ACME, GLOBEX = "111111111111", "222222222222"
RAW = {"RawMessageDelivery": "true"}
SECONDS_MAX = 60.0  # far more than a copy takes


class Owner:
    """The administrator of a tenant."""

    def __init__(self, server: Server, root: Person, name: str, account: str) -> None:
        assert root("tenant", "create", name, account).code == 0
        assert root("user", "create", "ann", "--tenant", name, "--administrator").code == 0
        key = root("key", "create", "ann", "--tenant", name, "-o", "json").json
        self.account = account
        self.sqs, self.sns = (
            boto3.client(
                service,
                endpoint_url=server.url,
                region_name="us-east-1",
                aws_access_key_id=key["key_id"],
                aws_secret_access_key=key["secret"],
                config=Config(retries={"max_attempts": 5, "mode": "standard"}),
            )
            for service in ("sqs", "sns")
        )
        self.person = Person(server, key["key_id"], key["secret"])

    def queue(self, name: str, policy: object = None) -> Queue:
        url = self.sqs.create_queue(QueueName=name)["QueueUrl"]
        made = Queue(self, url, f"arn:aws:sqs:us-east-1:{self.account}:{name}")
        if policy is not None:
            made.set_policy(policy)
        return made

    def topic(self, name: str) -> str:
        arn: str = self.sns.create_topic(Name=name)["TopicArn"]
        return arn

    def subscribe(self, topic: str, queue: str, **attributes: str) -> str:
        reply = self.sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue,
            Attributes={**RAW, **attributes},
            ReturnSubscriptionArn=True,
        )
        arn: str = reply["SubscriptionArn"]
        return arn


class Queue:
    def __init__(self, owner: Owner, url: str, arn: str) -> None:
        self._owner, self.url, self.arn = owner, url, arn

    def set_policy(self, *statements: object) -> None:
        document = {"Version": "2012-10-17", "Statement": list(statements)}
        self._owner.sqs.set_queue_attributes(
            QueueUrl=self.url, Attributes={"Policy": json.dumps(document)}
        )

    def bodies(self) -> list[str]:
        """Receive and delete what is in the queue now."""
        found: list[str] = []
        while batch := self._owner.sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10
        ).get("Messages", []):
            for one in batch:
                found.append(one["Body"])
                receipt = one["ReceiptHandle"]
                self._owner.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=receipt)
        return found


def allow(queue: Queue, principal: object, **condition: Any) -> dict[str, Any]:
    return {
        "Effect": "Allow",
        "Principal": principal,
        "Action": "sqs:SendMessage",
        "Resource": queue.arn,
        "Condition": condition,
    }


SNS = {"Service": "sns.amazonaws.com"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("data")
    secret = folder / "root-secret"
    secret.write_text(ROOT_SECRET)
    env = {"PENSTOCK_ROOT_KEY_ID": ROOT_KEY_ID, "PENSTOCK_ROOT_SECRET_FILE": str(secret)}
    with Server(folder / "node", fsync="never", arguments=("--auth", "on"), env=env) as running:
        yield running
        assert running.stop() == 0
        running.assert_no_traceback()


@pytest.fixture(scope="module")
def root(server: Server) -> Person:
    return Person(server, ROOT_KEY_ID, ROOT_SECRET)


@pytest.fixture(scope="module")
def acme(server: Server, root: Person) -> Owner:
    return Owner(server, root, "acme", ACME)


@pytest.fixture(scope="module")
def globex(server: Server, root: Person) -> Owner:
    return Owner(server, root, "globex", GLOBEX)


def published(owner: Owner, topic: str, probe: Queue, message: str) -> None:
    """Publish, and wait until the message has been copied to a queue that takes all."""
    owner.sns.publish(TopicArn=topic, Message=message)
    what = f"{message} is in the queue that takes all"
    eventually(lambda: message in probe.bodies(), seconds=SECONDS_MAX, what=what)


def make_probe(owner: Owner, topic: str, name: str) -> Queue:
    probe = owner.queue(name)
    probe.set_policy(allow(probe, "*"))
    owner.subscribe(topic, probe.arn)
    return probe


def test_the_policy_of_each_queue_decides_also_in_the_same_account(acme: Owner) -> None:
    topic, other = acme.topic("orders"), acme.topic("other")
    probe = make_probe(acme, topic, "probe")
    silent = acme.queue("silent")
    by_arn = acme.queue("by-arn")
    by_arn.set_policy(allow(by_arn, SNS, ArnEquals={"aws:SourceArn": topic}))
    by_account = acme.queue("by-account")
    by_account.set_policy(allow(by_account, "*", StringEquals={"aws:SourceAccount": ACME}))
    wrong = acme.queue("wrong")
    wrong.set_policy(allow(wrong, SNS, ArnEquals={"aws:SourceArn": other}))
    users = acme.queue("users")
    users.set_policy(allow(users, {"AWS": ACME}))
    for queue in (silent, by_arn, by_account, wrong, users):
        acme.subscribe(topic, queue.arn)
    published(acme, topic, probe, "first")
    assert (by_arn.bodies(), by_account.bodies()) == (["first"], ["first"])
    assert (silent.bodies(), wrong.bodies(), users.bodies()) == ([], [], [])
    # A changed policy counts for the next message. What was refused before does not come back.
    silent.set_policy(allow(silent, SNS, StringEquals={"aws:SourceAccount": ACME}))
    by_arn.set_policy({**allow(by_arn, SNS), "Effect": "Deny"})
    published(acme, topic, probe, "second")
    assert (silent.bodies(), by_arn.bodies()) == (["second"], [])


def test_a_refused_message_goes_to_the_dead_letter_queue_if_that_queue_allows_it(
    acme: Owner,
) -> None:
    topic = acme.topic("refused")
    probe = make_probe(acme, topic, "probe-of-refused")
    open_dead, closed_dead = acme.queue("dead"), acme.queue("closed-dead")
    open_dead.set_policy(allow(open_dead, SNS, ArnLike={"aws:SourceArn": topic}))
    for name, dead in (("denied", open_dead), ("denied-twice", closed_dead)):
        redrive = json.dumps({"deadLetterTargetArn": dead.arn})
        acme.subscribe(topic, acme.queue(name).arn, RedrivePolicy=redrive)
    published(acme, topic, probe, "letter")
    assert (open_dead.bodies(), closed_dead.bodies()) == (["letter"], [])


def test_a_queue_of_another_tenant_gets_what_its_policy_allows(acme: Owner, globex: Owner) -> None:
    topic = acme.topic("shared")
    probe = make_probe(acme, topic, "probe-of-shared")
    theirs = globex.queue("inbox")
    acme.subscribe(topic, theirs.arn)  # in development a subscription needs no confirmation
    published(acme, topic, probe, "before")
    assert theirs.bodies() == []
    theirs.set_policy(allow(theirs, SNS, StringEquals={"aws:SourceAccount": GLOBEX}))
    published(acme, topic, probe, "wrong account")
    assert theirs.bodies() == []
    theirs.set_policy(allow(theirs, SNS, StringEquals={"aws:SourceAccount": ACME}))
    published(acme, topic, probe, "after")
    assert theirs.bodies() == ["after"]


def test_a_client_cannot_pretend_to_be_a_topic(acme: Owner, globex: Owner) -> None:
    topic = acme.topic("pretended")
    queue = acme.queue("guarded")
    queue.set_policy(
        allow(queue, SNS),
        allow(queue, "*", ArnLike={"aws:SourceArn": topic}),
        allow(queue, "*", StringLike={"aws:SourceAccount": "*"}),
    )

    def pretend(request: Any, **_: object) -> None:
        for name in ("aws-source-arn", "x-amz-source-arn"):
            request.headers.add_header(name, topic)
        request.headers.add_header("x-amz-source-account", ACME)

    globex.sqs.meta.events.register("before-sign.sqs.SendMessage", pretend)
    try:
        with pytest.raises(ClientError) as denied:
            globex.sqs.send_message(QueueUrl=queue.url, MessageBody="forged")
    finally:
        globex.sqs.meta.events.unregister("before-sign.sqs.SendMessage", pretend)
    assert denied.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)
    assert queue.bodies() == []


def test_settings_of_push(tmp_path: Path) -> None:
    """Messages published while push is off are pushed later, with the settings of that time."""

    def client(server: Server, service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client(service, endpoint_url=server.url, region_name="us-east-1", **keys)

    with Server(tmp_path / "node", env={"PENSTOCK_PUSH__ENABLED": "false"}) as server:
        sqs, sns = client(server, "sqs"), client(server, "sns")
        topic = sns.create_topic(Name="orders")["TopicArn"]
        for name in ("open", "closed"):
            sqs.create_queue(QueueName=name)
            arn = f"arn:aws:sqs:us-east-1:000000000000:{name}"
            sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        statement = {"Effect": "Allow", "Principal": SNS, "Action": "sqs:SendMessage"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        url = sqs.get_queue_url(QueueName="open")["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        sns.publish(TopicArn=topic, Message="early")
        assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
        assert server.stop() == 0
    env = {
        "PENSTOCK_PUSH__CERT_URL": "https://sns.us-east-1.amazonaws.com",
        "PENSTOCK_PUSH__QUEUE_POLICY": "require",
    }
    with Server(tmp_path / "node", env=env) as server:
        sqs = client(server, "sqs")
        url = sqs.get_queue_url(QueueName="open")["QueueUrl"]
        [one] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        notification = json.loads(one["Body"])
        assert notification["Message"] == "early"
        prefix = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-"
        assert notification["SigningCertURL"].startswith(prefix)
        url = sqs.get_queue_url(QueueName="closed")["QueueUrl"]
        assert "Messages" not in sqs.receive_message(QueueUrl=url)
        with urlopen(f"{server.admin_url}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        assert 'penstock_push_refused_total{reason="denied"} 1' in lines
        assert 'penstock_push_attempts_total{protocol="sqs",outcome="delivered"} 1' in lines
        assert "penstock_push_signatures_total 1" in lines
