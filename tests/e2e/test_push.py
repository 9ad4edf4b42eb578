"""Messages that are pushed to HTTP endpoints, on one node and on three, and when nodes die."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from tests.harness.cluster import PenstockCluster
from tests.harness.endpoint import Endpoint, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.harness.sns_site import Site

pytestmark = [pytest.mark.slow, pytest.mark.compat]

MESSAGES = 120
FAST = {"min_ms": 100, "max_ms": 500}
# So that messages of a topic with a short retention are soon removed.
CLEANING = {"PENSTOCK_LOG__RETENTION_CHECK_MS": "200", "PENSTOCK_LOG__SEGMENT_BYTES_MAX": "65536"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


class PushSite(Site):
    def __init__(self, servers: list[Server]) -> None:
        super().__init__([each.url for each in servers], servers[0].kafka)
        self.servers = servers

    def topic(self, name: str, partitions: int = 1, **attributes: str) -> str:
        attributes["PenstockPartitions"] = str(partitions)
        return str(self.sns[0].create_topic(Name=name, Attributes=attributes)["TopicArn"])

    def ask(self, method: str, path: str, body: object = None, *, at: int = 0) -> Any:
        request = urllib.request.Request(
            f"{self.servers[at].admin_url}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=90) as reply:
            return json.loads(reply.read())

    def webhook(self, source: str, url: str, *, paused: bool = False, **settings: object) -> str:
        body = {"source": source, "endpoint": url, "paused": paused, "settings": settings}
        return str(self.ask("POST", "/subscriptions", body)["id"])

    def publish(self, arn: str, count: int, *, start: int = 0) -> None:
        for first in range(start, start + count, 10):
            entries = [{"Id": str(n), "Message": str(n)} for n in range(first, first + 10)]
            client = self.sns[first // 10 % len(self.sns)]
            reply = client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
            assert len(reply["Successful"]) == 10


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PushSite]:
    folder = tmp_path_factory.mktemp("push")
    if request.param == "one node":
        with Server(folder, kafka_port=0, env=CLEANING) as server:
            yield PushSite([server])
        return
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(folder, env=CLEANING) as cluster:
        yield PushSite(list(cluster.nodes.values()))


def bodies(endpoint: Endpoint, path: str) -> list[str]:
    return [each.body for each in endpoint.ledger() if each.target == path]


def has_all(endpoint: Endpoint, path: str, count: int) -> bool:
    return {*bodies(endpoint, path)} >= set(map(str, range(count)))


def test_an_endpoint_confirms_and_gets_every_message_once(
    site: PushSite, endpoint: Endpoint
) -> None:
    arn, path = site.topic("confirmed", 3), f"/sns-{len(site.servers)}"
    attributes = {"RawMessageDelivery": "true"}
    site.sns[0].subscribe(
        TopicArn=arn, Protocol="http", Endpoint=endpoint.url(path), Attributes=attributes
    )
    eventually(lambda: bodies(endpoint, path), seconds=60, what="a confirmation")
    document = json.loads(bodies(endpoint, path)[0])
    urllib.request.urlopen(document["SubscribeURL"], timeout=60).read()
    site.publish(arn, MESSAGES)
    eventually(lambda: has_all(endpoint, path, MESSAGES), seconds=60, what="all messages")
    assert Counter(bodies(endpoint, path)[1:]) == Counter(map(str, range(MESSAGES)))


def test_a_webhook_keeps_its_limit_over_all_partitions(site: PushSite, endpoint: Endpoint) -> None:
    arn, path = site.topic("limited", 6), f"/limit-{len(site.servers)}"
    endpoint.plan(path, Step(delay_ms=10))
    site.webhook(arn, endpoint.url(path), concurrency=3, timeout_ms=1_000)
    site.publish(arn, MESSAGES)
    eventually(lambda: has_all(endpoint, path, MESSAGES), seconds=90, what="all messages")
    seen = [each for each in endpoint.ledger() if each.target == path]
    assert max(each.path_at_once for each in seen) == 3


@pytest.mark.parametrize("ordered", ["none", "group"])
def test_a_full_batch_of_all_partitions_is_sent_before_its_wait_ends(
    site: PushSite, endpoint: Endpoint, ordered: str
) -> None:
    partitions = 6 if ordered == "none" else 1
    arn, path = site.topic(f"batches-{ordered}", partitions), f"/{ordered}-{len(site.servers)}"
    site.webhook(arn, endpoint.url(path), batch_max=30, batch_wait_ms=10_000, ordered=ordered)
    began_ns = time.monotonic_ns()
    for number in range(60):
        client = site.sns[number % len(site.sns)]
        client.publish(TopicArn=arn, Message=str(number), MessageGroupId="g")
    eventually(lambda: len(bodies(endpoint, path)) >= 2, seconds=60, what="two batches")
    seen = [each for each in endpoint.ledger() if each.target == path]
    assert [len(each.body.split()) for each in seen] == [30, 30]
    assert sorted(int(n) for each in seen for n in each.body.split()) == list(range(60))
    assert (seen[0].at_ns - began_ns) / 1e9 < 10, "it did not wait"


def test_kafka_clients_read_the_subject_and_all_types_as_headers(site: PushSite) -> None:
    arn = site.topic("typed")
    attributes = {
        "color": {"DataType": "String", "StringValue": "red"},
        "size": {"DataType": "Number", "StringValue": "7"},
    }
    sns, more = site.sns[-1], {"MessageAttributes": attributes}
    sns.publish(TopicArn=arn, Message="1", **more)
    sns.publish(TopicArn=arn, Message="2", Subject="hi", **more)
    sns.publish(TopicArn=arn, Message='{"default":"3"}', MessageStructure="json", **more)
    consumer = KafkaConsumer(
        bootstrap_servers=site.kafka, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    consumer.assign([TopicPartition("sns.typed", 0)])
    plain, titled, structured = (dict(next(consumer).headers) for _ in range(3))
    consumer.close()
    for headers in (plain, titled, structured):
        assert headers.pop("penstock")
    assert plain == {"color": b"red", "size": b"7", "penstock.type.size": b"Number"}
    typed = plain | {"penstock.type.color": b"String"}
    assert titled == typed | {
        "penstock.subject": b"hi",
        "penstock.type.penstock.subject": b"String",
    }
    assert structured == typed | {
        "penstock.structure": b"json",
        "penstock.type.penstock.structure": b"String",
    }


def test_a_test_request_and_a_redelivery_are_sent_at_any_node(
    site: PushSite, endpoint: Endpoint
) -> None:
    arn, path = site.topic("tried"), f"/test-{len(site.servers)}"
    site.publish(arn, 10)
    made = site.webhook(arn, endpoint.url(path))
    site.publish(arn, 10)
    eventually(lambda: has_all(endpoint, path, 10), seconds=60, what="all messages")
    for at in range(len(site.servers)):
        reply = site.ask("POST", f"/subscriptions/{made}/test", {"body": "ping"}, at=at)
        assert reply["status"] == 200
        body = {"partition": 0, "offset": 0}
        assert site.ask("POST", f"/subscriptions/{made}/redeliver", body, at=at)["status"] == 200
    seen = [each for each in endpoint.ledger() if each.target == path]
    tests = [each for each in seen if "x-penstock-test" in each.headers]
    assert [each.body for each in tests] == ["ping"] * len(site.servers)
    assert len(seen) == 10 + 2 * len(site.servers)


def test_a_webhook_on_a_queue_takes_its_messages(site: PushSite, endpoint: Endpoint) -> None:
    url, _ = site.queue("taken")
    path = f"/taken-{len(site.servers)}"
    made = site.webhook("taken", endpoint.url(path), mode="consume", format="sns")
    site.sqs[0].send_message(QueueUrl=url, MessageBody="one")
    eventually(lambda: bodies(endpoint, path), seconds=60, what="a message")
    assert json.loads(bodies(endpoint, path)[0])["Message"] == "one"
    reply = site.ask("POST", f"/subscriptions/{made}/test", {"body": "two"})
    assert reply["status"] == 200
    assert json.loads(bodies(endpoint, path)[1])["Message"] == "two"

    def is_empty() -> bool:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = site.sqs[0].get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return set(found["Attributes"].values()) == {"0"}

    eventually(is_empty, seconds=60, what="an empty queue")


def test_a_paused_webhook_waits_and_a_deleted_one_ends(site: PushSite, endpoint: Endpoint) -> None:
    arn, path = site.topic("paused"), f"/pause-{len(site.servers)}"
    made = site.webhook(arn, endpoint.url(path))
    last = len(site.servers) - 1
    site.ask("POST", f"/subscriptions/{made}/pause", {}, at=last)

    def is_paused() -> bool:
        return all(
            site.ask("GET", f"/subscriptions/{made}", at=at)["paused"] is not None
            for at in range(last + 1)
        )

    eventually(is_paused, seconds=60, what="a pause at all nodes")
    site.publish(arn, 10)
    assert bodies(endpoint, path) == []
    site.ask("POST", f"/subscriptions/{made}/resume", {}, at=last)
    eventually(lambda: has_all(endpoint, path, 10), seconds=60, what="all messages")
    site.ask("DELETE", f"/subscriptions/{made}", at=last)


def test_an_endpoint_is_asked_before_the_first_message(site: PushSite, endpoint: Endpoint) -> None:
    arn, path = site.topic("asked", 3), f"/asked-{len(site.servers)}"
    allowed = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "6000"}
    endpoint.plan(path, Step(status=405), Step(headers=allowed), Step())
    made, last = site.webhook(arn, endpoint.url(path), verify="cloudevents"), len(site.servers) - 1

    def shown() -> Any:
        return site.ask("GET", f"/subscriptions/{made}", at=last)

    eventually(lambda: shown()["refusal"], seconds=60, what="a refusal")
    assert "status 405" in shown()["refusal"]
    site.publish(arn, 30)
    assert shown()["state"] == "pending"
    site.ask("POST", f"/subscriptions/{made}/confirm", {}, at=last)
    eventually(lambda: has_all(endpoint, path, 30), seconds=60, what="all messages")
    seen = [each for each in endpoint.ledger() if each.target == path]
    assert [each.method for each in seen] == ["OPTIONS"] * 2 + ["POST"] * 30
    assert len({each.headers["webhook-request-origin"] for each in seen[1:]}) == 1
    assert (shown()["state"], shown()["allowed_per_minute"]) == ("confirmed", 6_000)


def test_a_replay_sends_everything_again(site: PushSite, endpoint: Endpoint) -> None:
    arn, path = site.topic("replayed", 3), f"/replay-{len(site.servers)}"
    site.publish(arn, 30)
    made = site.webhook(arn, endpoint.url(path))
    site.ask("POST", f"/subscriptions/{made}/replay", {"earliest": True})
    eventually(lambda: has_all(endpoint, path, 30), seconds=60, what="all messages")
    assert Counter(bodies(endpoint, path)) == Counter(map(str, range(30)))


def test_what_retention_removes_before_it_is_delivered_is_counted_once(
    site: PushSite, endpoint: Endpoint
) -> None:
    """For a webhook that is paused, and for one whose endpoint fails."""
    arn, at_once = site.topic("removed", 3, PenstockRetentionMs="1"), 10
    path, text = f"/removed-{len(site.servers)}", "x" * 25_000
    endpoint.plan(f"{path}-fails", Step(status=500))
    never = {"min_ms": 3_600_000, "max_ms": 3_600_000}
    paused = site.webhook(arn, endpoint.url(path), paused=True)
    failing = site.webhook(arn, endpoint.url(f"{path}-fails"), retry=never)
    published = 0

    def publish() -> None:
        nonlocal published
        entries = [{"Id": str(n), "Message": text} for n in range(at_once)]
        client = site.sns[published % len(site.sns)]
        client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
        published += at_once

    def shown(which: str) -> tuple[int, int]:
        found = site.ask("GET", f"/subscriptions/{which}", at=published % len(site.servers))
        return found["lost"], found["lag"]

    def is_each_counted() -> bool:
        return all(sum(shown(each)) == published for each in (paused, failing))

    def is_lost() -> bool:
        publish()  # another segment begins, so that the one before can be removed
        return min(shown(paused)[0], shown(failing)[0]) > 4 * at_once

    publish()
    eventually(lambda: bodies(endpoint, f"{path}-fails"), seconds=60, what="an attempt")
    eventually(is_lost, seconds=60, what="messages that are removed")
    eventually(is_each_counted, seconds=60, what="the sum of lost and waiting messages")
    counted = sum(server.metrics()["penstock_push_lost_total"] for server in site.servers)
    assert counted == shown(paused)[0] + shown(failing)[0]
    log = "".join(server.stderr for server in site.servers)
    assert "retention removed messages before they were pushed" in log
    assert paused in log
    assert failing in log
    site.ask("POST", f"/subscriptions/{paused}/resume", {})

    def is_each_delivered_or_lost() -> bool:
        # A message that is removed during its request is both.
        return len(bodies(endpoint, path)) + shown(paused)[0] >= published

    eventually(is_each_delivered_or_lost, seconds=60, what="the rest is delivered")
    for each in (paused, failing):
        site.ask("DELETE", f"/subscriptions/{each}")


def test_nothing_is_lost_when_a_home_is_killed(tmp_path: Path, endpoint: Endpoint) -> None:
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(tmp_path) as cluster:
        nodes = list(cluster.nodes.values())
        site = PushSite(list(nodes))
        arn = site.topic("killed", 3)
        paths = [f"/kill-{n}" for n in range(6)]  # their homes are on all nodes
        for path in paths:
            site.webhook(arn, endpoint.url(path), retry=FAST, timeout_ms=2_000)
        site.publish(arn, 60)
        nodes[2].kill()
        site.sns = site.sns[:2]
        site.publish(arn, 60, start=60)
        for path in paths:
            eventually(partial(has_all, endpoint, path, 120), seconds=90, what=path)


def test_the_next_home_asks_an_endpoint_if_the_last_one_is_killed(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(tmp_path) as cluster:
        site = PushSite(list(cluster.nodes.values()))
        arn, path, allowed = site.topic("unasked"), "/unasked", {"WebHook-Allowed-Origin": "*"}
        endpoint.plan(path, Step(headers=allowed, hold=True), Step(headers=allowed))
        site.webhook(arn, endpoint.url(path), verify="cloudevents", timeout_ms=60_000)
        eventually(partial(bodies, endpoint, path), seconds=60, what="a question")
        home = cluster.leaders("sns.unasked")[0]
        cluster.nodes[home].kill()
        del site.sns[home - 1]
        endpoint.release(path)
        site.publish(arn, 60)
        eventually(partial(has_all, endpoint, path, 60), seconds=90, what="all messages")
        asked = Counter(each.target for each in endpoint.ledger() if each.method == "OPTIONS")
        assert asked[path] >= 2, "a new home has asked"
