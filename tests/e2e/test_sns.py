"""SNS topics whose messages go to queues, on one node and on three: a client that publishes and
then receives finds the message, at every node. Kafka clients read and write the same topics."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cloudevents.core.bindings import http as events
from sns_message_validator import SNSMessageValidator
from tests.compat.kafka.test_kafka_python import producer
from tests.compat.kafka.test_kcat import KCAT
from tests.e2e.test_push import PushSite
from tests.harness.cluster import PenstockCluster
from tests.harness.endpoint import Endpoint
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.compat]

MESSAGES = 120
SUBSCRIPTIONS = 12
PUBLISH_WAIT_SECONDS = 0.25  # a Publish that took longer did not wait for its copies


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PushSite]:
    folder = tmp_path_factory.mktemp("sns")
    if request.param == "one node":
        with Server(folder, kafka_port=0) as server:
            yield PushSite([server])
        return
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(folder) as cluster:
        yield PushSite(list(cluster.nodes.values()))


def test_a_published_message_is_in_the_queues_when_the_reply_comes(site: PushSite) -> None:
    sns, count = site.sns[0], len(site.sns)
    arn = sns.create_topic(Name="orders", Attributes={"PenstockPartitions": "3"})["TopicArn"]
    raw, raw_arn = site.queue("raw")
    enveloped, enveloped_arn = site.queue("enveloped")
    reds, reds_arn = site.queue("reds")
    raw_delivery = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=raw_arn, Attributes=raw_delivery)
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=enveloped_arn)
    policy = {"FilterPolicy": json.dumps({"color": ["red"]})}
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=reds_arn, Attributes=policy)
    received, missed = list[str](), list[str]()
    for number in map(str, range(MESSAGES)):
        at, began = int(number) % count, time.monotonic()
        site.sns[at].publish(TopicArn=arn, Message=number, Subject="number")
        took = time.monotonic() - began
        found = [one["Body"] for one in site.received(raw, at=(at + 1) % count)]
        received += found
        if number not in found and took < PUBLISH_WAIT_SECONDS:
            missed.append(number)
    while late := site.received(raw, wait_s=1):
        received += [one["Body"] for one in late]
    assert missed == []
    assert {*received} == {*map(str, range(MESSAGES))}

    color = {"color": {"DataType": "String", "StringValue": "red"}}
    sns.publish(TopicArn=arn, Message="hot", Subject="greeting", MessageAttributes=color)
    [one] = site.received(reds, wait_s=5)
    notification = json.loads(one["Body"])
    assert notification["Type"] == "Notification"
    assert notification["TopicArn"] == arn
    assert (notification["Message"], notification["Subject"]) == ("hot", "greeting")
    assert notification["MessageAttributes"] == {"color": {"Type": "String", "Value": "red"}}
    bodies = [json.loads(each["Body"])["Message"] for each in site.received(enveloped, wait_s=1)]
    assert bodies


def test_a_new_subscription_gets_the_next_message_at_once(site: PushSite) -> None:
    count, account = len(site.sns), "arn:aws:sqs:us-east-1:000000000000"
    arn = site.sns[0].create_topic(Name="fresh", Attributes={"PenstockPartitions": "3"})["TopicArn"]
    urls = [site.queue(f"fresh-{number}")[0] for number in range(SUBSCRIPTIONS)]
    raw_delivery = {"RawMessageDelivery": "true"}
    for number, url in enumerate(urls):
        queue, at = f"{account}:fresh-{number}", number % count
        made = site.sns[at].subscribe(
            TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes=raw_delivery
        )
        site.sns[(at + number // count) % count].publish(TopicArn=arn, Message=str(number))
        found = site.received(url, at=(at + 1) % count, wait_s=5)
        assert str(number) in [one["Body"] for one in found]
        site.sns[at].unsubscribe(SubscriptionArn=made["SubscriptionArn"])


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
def test_kcat_reads_what_is_published(site: PushSite) -> None:
    arn = site.topic("read", 3)
    attributes = {
        "color": {"DataType": "String", "StringValue": "red"},
        "size": {"DataType": "Number", "StringValue": "7"},
    }
    for at, sns in enumerate(site.sns):
        sns.publish(
            TopicArn=arn,
            Message=f"to node {at} é",
            Subject="greeting",
            MessageGroupId=f"group-{at}",
            MessageAttributes=attributes,
        )
    kcat = [
        str(KCAT),
        "-b",
        site.kafka,
        "-C",
        "-t",
        "sns.read",
        "-o",
        "beginning",
        "-e",
        "-q",
        "-J",
    ]
    done = subprocess.run(kcat, capture_output=True, timeout=60, check=True)
    # kcat prints the header of the server, which is MessagePack, as it is.
    records = [json.loads(line.decode(errors="replace")) for line in done.stdout.splitlines()]
    found = {each["key"]: each for each in records}
    assert found.keys() == {f"group-{at}" for at in range(len(site.sns))}
    for at in range(len(site.sns)):
        record = found[f"group-{at}"]
        assert record["payload"] == f"to node {at} é"
        headers = dict(zip(record["headers"][::2], record["headers"][1::2], strict=True))
        assert headers.pop("penstock")
        types = {key: headers.pop(key) for key in tuple(headers) if ".type." in key}
        assert headers == {"color": "red", "size": "7", "penstock.subject": "greeting"}
        assert types["penstock.type.size"] == "Number"


def by_group(site: PushSite, url: str, count: int) -> dict[str, dict[str, Any]]:
    """Receive messages until there are ``count`` groups. Returns the last message of each."""
    found: dict[str, dict[str, Any]] = {}

    def are_all_there() -> bool:
        for each in site.received(url, wait_s=1):
            found[each["Attributes"]["MessageGroupId"]] = each
        return len(found) >= count

    eventually(are_all_there, seconds=60, what=f"{count} groups")
    return found


def test_what_kafka_python_produces_reaches_queues_and_webhooks(
    site: PushSite, endpoint: Endpoint
) -> None:
    sns, arn, path = site.sns[0], site.topic("written", 3), f"/written-{len(site.servers)}"
    raw, raw_arn = site.queue("written-raw")
    enveloped, enveloped_arn = site.queue("written")
    raw_delivery = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=raw_arn, Attributes=raw_delivery)
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=enveloped_arn)
    site.webhook(arn, endpoint.url(path), format="cloudevents-binary")
    headers = [("color", b"blue"), ("raw", b"\xff\x00"), ("ce_type", b"shop.order")]
    with producer(site.kafka) as made:
        subject = [("penstock.subject", b"hello")]
        made.send("sns.written", b'{"n": 1}', key=b"ann", headers=headers + subject)
        made.send("sns.written", b"\xff\x00", key=b"bob", headers=[("penstock.subject", b"")])
        made.flush(timeout=30)

    message = by_group(site, raw, 2)["ann"]
    assert message["Body"] == '{"n": 1}'
    assert message["MessageAttributes"] == {
        "color": {"DataType": "String", "StringValue": "blue"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
        "ce_type": {"DataType": "String", "StringValue": "shop.order"},
    }

    copies = {key: json.loads(one["Body"]) for key, one in by_group(site, enveloped, 2).items()}
    assert (copies["ann"]["Message"], copies["ann"]["Subject"]) == ('{"n": 1}', "hello")
    assert copies["ann"]["MessageAttributes"]["raw"] == {"Type": "Binary", "Value": "/wA="}
    for notification in copies.values():
        SNSMessageValidator(cert_url_regex="^http://").validate_message(notification)

    def pushed() -> dict[str, Any]:
        seen = [each for each in endpoint.ledger() if each.target == path]
        requests = [events.HTTPMessage(one.headers, one.body.encode("latin-1")) for one in seen]
        found = map(events.from_http_event, requests)
        return {each.get_extension("partitionkey"): each for each in found}

    eventually(lambda: len(pushed()) == 2, seconds=60, what="two requests")
    ann, bob = pushed()["ann"], pushed()["bob"]
    assert (ann.get_id(), ann.get_source()) == (copies["ann"]["MessageId"], arn)
    assert (ann.get_type(), ann.get_subject()) == ("shop.order", "hello")
    assert (ann.get_datacontenttype(), ann.get_data()) == ("application/json", {"n": 1})
    assert (bob.get_type(), bob.get_subject()) == ("penstock.message", "bob")
    assert (bob.get_datacontenttype(), bob.get_data()) == ("application/octet-stream", b"\xff\x00")


def test_a_deleted_subscription_gets_nothing(site: PushSite) -> None:
    sns = site.sns[0]
    arn = sns.create_topic(Name="ended")["TopicArn"]
    url, queue_arn = site.queue("of-ended")
    made = sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)["SubscriptionArn"]
    sns.publish(TopicArn=arn, Message="before")
    assert site.received(url, wait_s=5)
    sns.unsubscribe(SubscriptionArn=made)
    sns.publish(TopicArn=arn, Message="after")
    assert not site.received(url, wait_s=1)
