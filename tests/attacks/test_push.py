"""Attacks on SNS subscriptions and webhooks: forged tokens, links that do more than they should,
endpoints that are this server or lead into its network, messages that add headers or requests, and
endpoints that hang."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.credentials import Credentials
from tests.attacks.frames import Wire
from tests.attacks.kit import EVERYTHING, REGION, ROOT, Operator, policy, send, sns_form
from tests.harness.endpoint import Endpoint, Seen, Step
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.flow.verdicts import Failure
from penstock.record.batch import encode_batch
from penstock.record.record import Header, encode_record
from penstock.wire.kafka.produce import ProducePartition, ProduceTopic

OWN = "000000000000"
HANGING = 200
HANGING_AT_ONCE = 50  # the server waits for so many at least
NO_TOKEN = (400, "Invalid parameter: Token")
FORMATS = ("raw", "sns", "standard", "cloudevents-binary", "cloudevents-structured")
CONFIRMATION = "SubscriptionConfirmation"
CODE = re.compile("<Code>([^<]*)</Code>")
MESSAGE = re.compile("<Message>([^<]*)</Message>")


def sns_as(server: Server, credentials: Credentials) -> Any:
    return boto3.client(
        "sns",
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(retries={"max_attempts": 0, "mode": "standard"}),
    )


def link(server: Server, action: str, body: bytes | None = None, **fields: str) -> tuple[int, str]:
    """Follow a link without a signature. With a body, as a form."""
    path = f"/?{sns_form(action, fields).decode()}"
    headers = {} if body is None else {"content-type": "application/x-www-form-urlencoded"}
    method = "GET" if body is None else "POST"
    status, reply, _ = send(urlsplit(server.url).netloc, method, path, body, headers)
    return status, reply.decode()


def refusal(reply: tuple[int, str]) -> tuple[int, str]:
    found = MESSAGE.search(reply[1])
    return reply[0], "" if found is None else found[1]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture(scope="module")
def sns(locked: Server) -> Iterator[Any]:
    client = sns_as(locked, ROOT)
    yield client
    client.close()


def seen(endpoint: Endpoint, path: str) -> list[Seen]:
    return [each for each in endpoint.ledger() if each.target == path]


def first_seen(endpoint: Endpoint, path: str) -> Seen:
    eventually(lambda: seen(endpoint, path), seconds=60, what=f"a request to {path}")
    return seen(endpoint, path)[0]


class Subscribed:
    """A topic with a subscription of an endpoint, which is not confirmed."""

    def __init__(self, sns: Any, endpoint: Endpoint, name: str) -> None:
        self._sns = sns
        self.topic = str(sns.create_topic(Name=name)["TopicArn"])
        self.arn = str(
            sns.subscribe(
                TopicArn=self.topic,
                Protocol="http",
                Endpoint=endpoint.url(f"/{name}"),
                ReturnSubscriptionArn=True,
            )["SubscriptionArn"]
        )
        request = first_seen(endpoint, f"/{name}")
        assert request.headers["x-amz-sns-message-type"] == CONFIRMATION
        self.token = str(json.loads(request.body)["Token"])

    def is_pending(self) -> bool:
        shown = self._sns.get_subscription_attributes(SubscriptionArn=self.arn)["Attributes"]
        return str(shown["PendingConfirmation"]) == "true"


@pytest.fixture
def subscribed(sns: Any, endpoint: Endpoint, name: Callable[..., str]) -> Subscribed:
    return Subscribed(sns, endpoint, name())


# ── Tokens and links ─────────────────────────────────────────────────────────────────────────


def test_a_forged_token_confirms_nothing(
    locked: Server, sns: Any, endpoint: Endpoint, subscribed: Subscribed, name: Callable[..., str]
) -> None:
    token, other = subscribed.token, Subscribed(sns, endpoint, name()).token
    forged = [
        token[:at] + f"{int(token[at], 16) ^ 1:x}" + token[at + 1 :]
        for at in range(0, len(token), 7)
    ]
    # The head of one token and the MAC of another; all in upper case; too short; too long.
    forged += [other[:160] + token[160:], token[:18] + other[18:50] + token[50:]]
    forged += [token.upper(), token[:-2], token + "00", "", "0" * len(token), "\u0660" * 288]
    for text in forged:
        reply = link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=text)
        assert refusal(reply) == NO_TOKEN, text
    assert subscribed.is_pending()
    # The true token is accepted, so the others were refused for what they are.
    assert link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=token)[0] == 200


def test_a_token_of_another_server_confirms_nothing(
    locked: Server, open_server: Server, endpoint: Endpoint, subscribed: Subscribed
) -> None:
    client = sns_as(open_server, Credentials("x", "y"))
    foreign = Subscribed(client, endpoint, f"{subscribed.topic.rpartition(':')[2]}-foreign")
    client.close()
    reply = link(locked, "ConfirmSubscription", TopicArn=subscribed.topic, Token=foreign.token)
    assert refusal(reply) == NO_TOKEN
    assert subscribed.is_pending()


def test_a_token_confirms_its_own_subscription_only(
    locked: Server, sns: Any, endpoint: Endpoint, subscribed: Subscribed, name: Callable[..., str]
) -> None:
    """Whatever topic the link names."""
    other = Subscribed(sns, endpoint, name())
    status, reply = link(
        locked, "ConfirmSubscription", TopicArn=other.topic, Token=subscribed.token
    )
    assert (status, subscribed.arn in reply) == (200, True), reply
    assert other.is_pending()
    assert not subscribed.is_pending()


def test_a_link_to_unsubscribe_needs_the_whole_arn(
    locked: Server, sns: Any, endpoint: Endpoint, subscribed: Subscribed, name: Callable[..., str]
) -> None:
    other = Subscribed(sns, endpoint, name())
    identifier = subscribed.arn.rpartition(":")[2]
    for arn in (
        f"{other.topic}:{identifier}",
        subscribed.arn.replace(f":{OWN}:", "::"),
        subscribed.arn.replace(f":{OWN}:", ":111111111111:"),
        subscribed.arn.replace(REGION, "eu-west-1"),
        subscribed.arn.upper(),
        f"{subscribed.topic}:*",
        f"{subscribed.topic}:{identifier}:",
    ):
        link(locked, "Unsubscribe", SubscriptionArn=arn)
        assert subscribed.is_pending(), arn
    assert link(locked, "Unsubscribe", SubscriptionArn=subscribed.arn)[0] == 200
    with pytest.raises(sns.exceptions.NotFoundException):
        subscribed.is_pending()


def test_a_link_does_not_delete_a_webhook_of_a_queue(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    queue = name()
    root.create_queue(QueueName=queue)
    made = operator.ask(
        "POST", "subscriptions", {"source": queue, "endpoint": "https://example.com/"}
    )
    for arn in (made["arn"], made["arn"].replace(":sqs:", ":sns:")):
        link(locked, "Unsubscribe", SubscriptionArn=arn)
    assert operator.ask("GET", f"subscriptions/{made['id']}")["id"] == made["id"]


@pytest.mark.parametrize("action", ["ConfirmSubscription", "Unsubscribe"])
def test_the_body_of_a_link_cannot_name_another_action(
    locked: Server, sns: Any, root: Any, action: str, subscribed: Subscribed
) -> None:
    name = subscribed.topic.rpartition(":")[2]
    url = root.create_queue(QueueName=name)["QueueUrl"]
    before = sns.get_topic_attributes(TopicArn=subscribed.topic)["Attributes"]
    publish = sns_form("Publish", {"TopicArn": subscribed.topic, "Message": "planted"})
    bodies = [
        publish,
        sns_form("DeleteTopic", {"TopicArn": subscribed.topic}),
        sns_form("SetTopicAttributes", {"TopicArn": subscribed.topic, "AttributeName": "Policy"}),
        sns_form("ListTopics", {}),
        sns_form("CreateTopic", {"Name": f"{name}-planted"}),
    ]
    others = [
        b"Action=DeleteQueue&Version=2012-11-05&QueueUrl=" + url.encode(),
        b"Action=GetCallerIdentity&Version=2011-06-15",
    ]
    for body in (*bodies, *others):
        status, reply = link(locked, action, body, Token="0", SubscriptionArn=subscribed.arn)
        code = CODE.search(reply)
        assert code is not None, reply
        expected = (403, "MissingAuthenticationToken")
        assert (status, code[1]) == (expected if body in bodies else (400, "InvalidAction")), reply
    host = urlsplit(locked.url).netloc
    for path in (f"/?Action={action}&{body.decode()}" for body in (*bodies, *others)):
        assert send(host, "GET", path, None, {})[0] in (400, 403), path
    target = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}
    assert send(host, "POST", f"/?Action={action}", "{}", target)[0] == 403
    assert sns.get_topic_attributes(TopicArn=subscribed.topic)["Attributes"] == before
    assert f"{name}-planted" not in str(sns.list_topics()["Topics"])
    assert root.get_queue_url(QueueName=name)["QueueUrl"] == url


def test_a_tenant_whose_right_was_withdrawn_reads_nothing_by_its_subscription(
    locked: Server, operator: Operator, sns: Any, endpoint: Endpoint, name: Callable[..., str]
) -> None:
    """A subscription to a topic of another tenant stays, but gives no right to older messages."""
    topic = str(sns.create_topic(Name=name())["TopicArn"])
    tenant = operator.tenant()
    _, credentials = operator.user(EVERYTHING, tenant=tenant)
    allowed = {
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{tenant}:root"},
        "Action": ["SNS:Subscribe"],
        "Resource": topic,
    }
    sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy(allowed))
    sns.publish(TopicArn=topic, Message="before")
    theirs, admin = sns_as(locked, credentials), Operator(locked, credentials)
    path = f"/{topic.rpartition(':')[2]}"
    theirs.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url(path))
    theirs.close()
    first_seen(endpoint, path)
    (listed,) = admin.ask("GET", "subscriptions")["subscriptions"]
    admin.ask("POST", f"subscriptions/{listed['id']}/confirm", {})
    replay = ("POST", f"subscriptions/{listed['id']}/replay", {"earliest": True})
    eventually(lambda: admin.try_(*replay)[0] == 200, seconds=60, what="an allowed replay")
    sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue="")
    for route, body in (
        ("replay", {"earliest": True}),
        ("redeliver", {"partition": 0, "offset": 0}),
        ("test", {}),
    ):
        status, reply = admin.try_("POST", f"subscriptions/{listed['id']}/{route}", body)
        assert status == 403, f"{route}: {status} {reply!r}"


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
        for host in ("127.0.0.1", "localhost", "127.0.0.2", "[::ffff:127.0.0.1]", "0.0.0.0"):
            sent = webhooks.test(f"http://{host}:{port}/api/v1/tenants")
            assert not sent["is_delivered"], f"{host}:{port}: {sent}"
            assert sent["status"] in (0, None), sent
            assert sent["reason"] == Failure.NOT_ALLOWED.value, sent


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


# ── What requests have ───────────────────────────────────────────────────────────────────────

LINE = "a\r\nX-Injected: 1\r\nContent-Length: 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


def produce_hostile(server: Server, topic: str) -> None:
    """Write records whose keys, header names and header values have lines."""
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
    produce_hostile(open_server, f"sns.{topic}")
    client.publish(TopicArn=arn, Message="last")
    client.close()

    def requests() -> list[Seen]:
        return endpoint.ledger(started)

    def is_last_seen() -> bool:
        return any("last" in each.body or "bGFzdA" in each.body for each in requests())

    eventually(is_last_seen, seconds=60, what="the last message")
    assert sum("smuggled" in each.body for each in requests()) >= 2, "as a body it is sent"
    for request in requests():
        assert request.target == f"/{topic}", request
        assert request.method == "POST"
        assert not any("injected" in each for each in request.headers), request.headers
        assert request.headers["host"] == urlsplit(endpoint.url()).netloc
        assert request.headers["content-length"] == str(request.body_bytes)
