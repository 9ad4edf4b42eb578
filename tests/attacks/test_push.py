"""Attacks by endpoints and messages: endpoints that are this server or lead into its network,
messages that add headers or requests, and endpoints that hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.credentials import Credentials
from tests.attacks.frames import Wire
from tests.attacks.kit import send
from tests.attacks.push_stage import OWN, seen, sns_as
from tests.harness.endpoint import Endpoint, Seen, Step
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.flow.verdicts import Failure
from penstock.record.batch import encode_batch
from penstock.record.record import Header, encode_record
from penstock.wire.kafka.produce import ProducePartition, ProduceTopic

HANGING = 200
HANGING_AT_ONCE = 50  # the server waits for so many at least
FLOODING = 100
FORMATS = ("raw", "sns", "standard", "cloudevents-binary", "cloudevents-structured")


# ── Where requests go ────────────────────────────────────────────────────────────────────────


class Webhooks:
    """Webhooks on a queue of a server that trusts everybody."""

    def __init__(self, server: Server, source: str, *, account: str = OWN) -> None:
        self._host, self.source = urlsplit(server.admin_url).netloc, source
        self._account = account

    def ask(self, method: str, path: str, body: object = None) -> Any:
        text = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        path = f"/api/v1/subscriptions{path}"
        status, reply, _ = send(self._host, method, path, text, headers, seconds=60)
        assert status < 300, f"{method} {path}: {status} {reply!r}"
        return json.loads(reply)

    def make(self, url: str, **settings: object) -> str:
        body = {"source": self.source, "endpoint": url, "settings": settings}
        return str(self.ask("POST", f"?account={self._account}", body)["id"])

    def test(self, url: str, **settings: object) -> Any:
        """Send one test request."""
        made = self.make(url, **settings)
        path = f"/{made}/test"
        found: list[Any] = []

        def is_sent() -> bool:
            body, headers = json.dumps({"body": "{}"}), {"content-type": "application/json"}
            target = f"/api/v1/subscriptions{path}"
            status, reply, _ = send(self._host, "POST", target, body, headers, seconds=60)
            assert status in (200, 404), reply
            found[:] = [json.loads(reply)] if status == 200 else []
            return status == 200

        eventually(is_sent, seconds=60, what="the webhook runs")
        self.ask("DELETE", f"/{made}")
        return found[0]


@pytest.fixture
def webhooks(open_server: Server, name: Callable[..., str]) -> Webhooks:
    queue = name()
    send_sqs(open_server, "CreateQueue", QueueName=queue)
    return Webhooks(open_server, queue)


def send_sqs(server: Server, action: str, **fields: object) -> None:
    headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
    host = urlsplit(server.url).netloc
    status, reply, _ = send(host, "POST", "/", json.dumps(fields), headers)
    assert status == 200, reply


def test_the_ports_of_the_server_are_no_endpoint_even_in_development(
    open_server: Server, endpoint: Endpoint, webhooks: Webhooks
) -> None:
    for form in FORMATS:  # another port of the same machine gets requests in each of them
        assert webhooks.test(endpoint.url("/control"), format=form)["is_delivered"], form
    admin = urlsplit(open_server.admin_url).port
    for port in (open_server.port, open_server.kafka_port, admin):
        sent = webhooks.test(f"http://localhost:{port}/api/v1/tenants")
        assert not sent["is_delivered"], f"{port}: {sent}"
        assert sent["status"] in (0, None), sent
        assert sent["reason"] == Failure.UNUSABLE.value, sent
        for host in ("127.0.0.1", "127.0.0.2", "[::ffff:127.0.0.1]", "0.0.0.0"):
            with pytest.raises(AssertionError, match=Failure.UNUSABLE.value):
                webhooks.make(f"http://{host}:{port}/api/v1/tenants")


def test_a_redirect_is_not_followed(endpoint: Endpoint, webhooks: Webhooks) -> None:
    for status in (301, 302, 303, 307, 308):
        inside = {"Location": endpoint.url("/inside")}
        endpoint.plan(f"/moved-{status}", Step(status=status, headers=inside))
        sent = webhooks.test(endpoint.url(f"/moved-{status}"))
        assert (sent["status"], sent["is_delivered"]) == (status, False)
    assert not seen(endpoint, "/inside")
    assert len(endpoint.ledger()) >= 5


def test_endpoints_that_hang_delay_no_other_tenant(
    open_server: Server, name: Callable[..., str]
) -> None:
    """More of them than the server sends requests at once."""
    topic = name()
    theirs = sns_as(open_server, Credentials("222222222222", "y"))
    client = sns_as(open_server, Credentials("x", "y"))
    with Endpoint() as hanging, Endpoint() as other:
        arn = str(theirs.create_topic(Name=topic)["TopicArn"])
        hanging.plan("/hang", Step(hold=True))
        webhooks = Webhooks(open_server, arn, account="222222222222")
        for number in range(HANGING):
            webhooks.make(hanging.url(f"/hang?{number}"), timeout_ms=60_000)
        theirs.publish(TopicArn=arn, Message="held")
        hanging.wait_for(HANGING_AT_ONCE)
        own = str(client.create_topic(Name=topic)["TopicArn"])
        Webhooks(open_server, own).make(other.url("/hook"))
        client.publish(TopicArn=own, Message="in time")
        eventually(lambda: seen(other, "/hook"), seconds=40, what="a message in the meantime")
        theirs.delete_topic(TopicArn=arn)
    for each in (theirs, client):
        each.close()


def test_a_flood_of_one_tenant_delays_no_other(
    tmp_path: Path, endpoint: Endpoint, name: Callable[..., str]
) -> None:
    """One tenant has many webhooks and messages for a node with few slots."""
    topic, flooder = name(), "222222222222"
    env = {"PENSTOCK_PUSH__IN_FLIGHT_MAX": "8"}
    with Server(tmp_path / "data", fsync="never", env=env) as server:
        theirs, client = (sns_as(server, Credentials(key, "y")) for key in (flooder, "x"))
        flooded = str(theirs.create_topic(Name=topic)["TopicArn"])
        own = str(client.create_topic(Name=topic)["TopicArn"])
        endpoint.plan(f"/{topic}", Step(delay_ms=200))
        for number in range(FLOODING):
            url = endpoint.url(f"/{topic}?{number}")
            Webhooks(server, flooded, account=flooder).make(url)
        Webhooks(server, own).make(endpoint.url("/own-hook"))
        start = len(endpoint.ledger())
        entries = [{"Id": str(number), "Message": "flood"} for number in range(10)]
        theirs.publish_batch(TopicArn=flooded, PublishBatchRequestEntries=entries)
        endpoint.wait_for(start + 16)
        client.publish(TopicArn=own, Message="in time")
        before = len(endpoint.ledger())
        eventually(lambda: seen(endpoint, "/own-hook"), seconds=60, what="a message in between")
        targets = [each.target for each in endpoint.ledger()]
        assert targets.index("/own-hook") - before < FLOODING / 2, "it waited for its turn"
        assert server.stop() == 0
    for each in (theirs, client):
        each.close()


# ── What requests have ───────────────────────────────────────────────────────────────────────

LINE = "a\r\nX-Injected: 1\r\nContent-Length: 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


def produce_hostile(server: Server, topic: str) -> int:
    """Write records whose keys, header names and header values have lines. Return their number."""
    line = LINE.encode()
    names = ["ce_id", "ce_type", "ce_source", "ce_subject", "ce_time", "ce_x", "ce_datacontenttype"]
    names += ["content-type", "penstock.type.a", "a", "ce_x\r\nX-Injected", line.decode()]
    records: list[list[Header]] = [[(each.encode(), line)] for each in names]
    records += [[(b"penstock", line)], [(line, None)], [(b"ce_specversion", line)]]
    data = [
        encode_record(offset_delta=number, timestamp_delta=0, key=line, value=line, headers=headers)
        for number, headers in enumerate(records)
    ]
    batch = encode_batch(
        data, base_offset=0, leader_epoch=-1, base_timestamp=1, max_timestamp=1, attributes=0
    )
    with Wire(server) as wire:
        topics = [ProduceTopic(topic, bytes(16), [ProducePartition(0, batch)])]
        reply = wire.ask(
            "Produce", 9, transactional_id=None, acks=-1, timeout_ms=9_000, topics=topics
        )
    assert reply.topics[0].partitions[0].error_code == 0, reply
    return len(records)


@pytest.mark.parametrize(
    ("form", "batch_max"),
    [(form, count) for form in FORMATS for count in ((1,) if "binary" in form else (1, 5))],
)
def test_no_record_adds_a_header_or_a_request(
    open_server: Server, endpoint: Endpoint, name: Callable[..., str], form: str, batch_max: int
) -> None:
    """Not by its key, nor by names and values of its attributes, subject, ids or group."""
    topic = name()
    client = sns_as(open_server, Credentials("x", "y"))
    arn = str(client.create_topic(Name=topic)["TopicArn"])
    started = len(endpoint.ledger())
    Webhooks(open_server, arn).make(
        endpoint.url(f"/{topic}"), format=form, batch_max=batch_max, retry={"attempts_max": 1}
    )
    for subject in ("a\r\nX-Injected: 1", "a\nb", "\x00"):
        with pytest.raises(client.exceptions.InvalidParameterException):
            client.publish(TopicArn=arn, Message="m", Subject=subject)
    attribute = {"DataType": "String", "StringValue": LINE}
    client.publish(
        TopicArn=arn,
        Message=LINE,
        Subject="\u4e00: 1",
        MessageGroupId="group:1",
        MessageAttributes=dict.fromkeys(("ce_type", "ce_subject", "content-type"), attribute),
    )
    sent_count = produce_hostile(open_server, f"sns.{topic}") + 2
    client.publish(TopicArn=arn, Message="last")
    client.close()

    def requests() -> list[Seen]:
        return endpoint.ledger(started)

    def is_last_seen() -> bool:
        return any("last" in each.body or "bGFzdA" in each.body for each in requests())

    eventually(is_last_seen, seconds=60, what="the last message")
    assert sum("smuggled" in each.body for each in requests()) >= 2, "as a body it is sent"
    if batch_max == 1:  # no message is left out because of what it has
        eventually(lambda: len(requests()) == sent_count, seconds=60, what="all messages")
    for request in requests():
        assert request.target == f"/{topic}", request
        assert request.method == "POST"
        assert not any("injected" in each for each in request.headers), request.headers
        assert request.headers["host"] == urlsplit(endpoint.url()).netloc
        assert request.headers["content-length"] == str(request.body_bytes)
