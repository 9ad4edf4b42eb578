"""SNS topics whose messages go to queues, on one node and on three: a client that publishes and
then receives finds the message, at every node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.server import Server
from tests.harness.sns_site import Site

pytestmark = [pytest.mark.slow, pytest.mark.compat]

MESSAGES = 120
SUBSCRIPTIONS = 12
PUBLISH_WAIT_SECONDS = 0.25  # a Publish that took longer did not wait for its copies


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sns")
    if request.param == "one node":
        with Server(folder, kafka_port=0) as server:
            yield Site([server.url], server.kafka)
        return
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(folder) as cluster:
        nodes = list(cluster.nodes.values())
        yield Site([node.url for node in nodes], nodes[0].kafka)


def test_a_published_message_is_in_the_queues_when_the_reply_comes(site: Site) -> None:
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


def test_a_new_subscription_gets_the_next_message_at_once(site: Site) -> None:
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


def test_what_kafka_producers_write_is_pushed(site: Site) -> None:
    sns = site.sns[0]
    arn = sns.create_topic(Name="events")["TopicArn"]
    url, queue_arn = site.queue("of-events")
    raw_delivery = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn, Attributes=raw_delivery)
    producer = Producer({"bootstrap.servers": site.kafka})
    producer.produce("sns.events", b"from kafka", headers=[("color", b"blue")])
    assert producer.flush(30) == 0
    [one] = site.received(url, wait_s=20)
    assert one["Body"] == "from kafka"
    assert one["MessageAttributes"]["color"]["StringValue"] == "blue"


def test_a_deleted_subscription_gets_nothing(site: Site) -> None:
    sns = site.sns[0]
    arn = sns.create_topic(Name="ended")["TopicArn"]
    url, queue_arn = site.queue("of-ended")
    made = sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)["SubscriptionArn"]
    sns.publish(TopicArn=arn, Message="before")
    assert site.received(url, wait_s=5)
    sns.unsubscribe(SubscriptionArn=made)
    sns.publish(TopicArn=arn, Message="after")
    assert not site.received(url, wait_s=1)
