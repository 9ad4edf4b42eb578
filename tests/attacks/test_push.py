"""Attacks on SNS subscriptions and webhooks: forged tokens, links that do more than they should,
endpoints that are this server or lead into its network, messages that add headers, and secrets of
endpoints in what the server shows, logs and stores."""

from __future__ import annotations

import json
import os
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
from tests.attacks.test_canaries import leaks
from tests.compat.kafka.confluent import read_all
from tests.harness.endpoint import Endpoint, Seen, Step
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.flow.verdicts import Failure
from penstock.record.batch import encode_batch
from penstock.record.record import Header, encode_record
from penstock.wire.kafka.produce import ProducePartition, ProduceTopic
from penstock.wire.webhooks.standard import secret_text

OWN = "000000000000"
NO_TOKEN = (400, "Invalid parameter: Token")
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

    def __init__(self, server: Server, source: str) -> None:
        self._host, self.source = urlsplit(server.admin_url).netloc, source

    def ask(self, method: str, path: str, body: object = None) -> Any:
        text = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        path = f"/api/v1/subscriptions{path}"
        status, reply, _ = send(self._host, method, path, text, headers, seconds=60)
        assert status < 300, f"{method} {path}: {status} {reply!r}"
        return json.loads(reply)

    def make(self, url: str, **settings: object) -> str:
        body = {"source": self.source, "endpoint": url, "settings": settings}
        return str(self.ask("POST", "", body)["id"])

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
    assert webhooks.test(endpoint.url("/control"))["is_delivered"]
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


# ── What requests have ───────────────────────────────────────────────────────────────────────

LINE = "a\r\nX-Injected: 1\r\nContent-Length: 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
FORMATS = ("raw", "sns", "standard", "cloudevents-binary", "cloudevents-structured")


def produce_hostile(server: Server, topic: str) -> int:
    """Write records whose keys, header names and header values have lines. Returns their number."""
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
    produce_hostile(open_server, f"sns.{topic}")
    client.publish(TopicArn=arn, Message="last")
    client.close()

    def requests() -> list[Seen]:
        return endpoint.ledger(started)

    def is_last_seen() -> bool:
        return any("last" in each.body or "bGFzdA" in each.body for each in requests())

    eventually(is_last_seen, seconds=60, what="the last message")
    for request in requests():
        assert request.target == f"/{topic}", request
        assert request.method == "POST"
        assert not any("injected" in each for each in request.headers), request.headers
        assert request.headers["host"] == urlsplit(endpoint.url()).netloc
        assert request.headers["content-length"] == str(request.body_bytes)


# ── Secrets ──────────────────────────────────────────────────────────────────────────────────


class Secrets:
    """A server at its loudest log level, and subscriptions whose endpoints need secrets. Some of
    the endpoints fail. ``shown`` has all that the server told anybody, by where it was told."""

    def __init__(self, server: Server, endpoint: Endpoint) -> None:
        self.server, self.endpoint = server, endpoint
        self.operator, self.sns = Operator(server), sns_as(server, ROOT)
        self.planted = {
            name: f"canary-{os.urandom(12).hex()}"
            for name in ("password", "new password", "token", "header", "basic", "credential")
        }
        self.planted["signing secret"] = secret_text(os.urandom(32))
        self.shown: dict[str, bytes] = {}
        self.topic = str(self.sns.create_topic(Name="secrets")["TopicArn"])
        endpoint.plan("/fails", Step(status=500, body="failed"))
        self._subscribe()
        self._make_webhooks()
        self._use()
        self._fail()
        self._look()

    def _subscribe(self) -> None:
        for which, path in (
            ("password", "/basic"),
            ("new password", "/basic"),
            ("basic", "/fails"),
        ):
            login = f"http://user:{self.planted[which]}@"
            url = self.endpoint.url(path).replace("http://", login)
            reply = self.sns.subscribe(
                TopicArn=self.topic, Protocol="http", Endpoint=url, ReturnSubscriptionArn=True
            )
            self._keep(f"Subscribe {which}", reply)
            first_seen(self.endpoint, path)
        for each in self.endpoint.ledger():
            if each.headers.get("x-amz-sns-message-type") == CONFIRMATION:
                document = json.loads(each.body)
                token = {"Token": document["Token"], "TopicArn": document["TopicArn"]}
                self._keep("confirmed", self.sns.confirm_subscription(**token))
        credential = {"PlatformCredential": self.planted["credential"]}
        self.sns.create_platform_application(Name="app", Platform="GCM", Attributes=credential)
        self._keep("applications", self.sns.list_platform_applications())

    def _make_webhooks(self) -> None:
        auths: list[dict[str, str]] = [
            {"type": "bearer", "token": self.planted["token"]},
            {"type": "header", "name": "x-key", "value": self.planted["header"]},
            {"type": "basic", "user": "u", "password": self.planted["basic"]},
        ]
        self.webhooks: list[str] = []
        for number, auth in enumerate(auths):
            for path in (f"/webhook-{number}", "/fails"):
                retry = {"min_ms": 100, "attempts_max": 2}
                settings = {"auth": auth, "secret": self.planted["signing secret"], "retry": retry}
                url = f"{self.endpoint.url(path)}?{number}"
                body = {"source": self.topic, "endpoint": url, "settings": settings}
                made = self._admin("POST", "subscriptions", body)
                self.webhooks.append(str(made["id"]))

    def _use(self) -> None:
        self.sns.publish(TopicArn=self.topic, Message="hello")
        wanted = {"/basic", "/fails", *(f"/webhook-{number}?{number}" for number in range(3))}

        def are_all_sent() -> bool:
            sent = [each for each in self.endpoint.ledger() if "hello" in each.body]
            return {each.target for each in sent} >= wanted

        eventually(are_all_sent, seconds=60, what="a message to each endpoint")
        for identifier in self.webhooks:
            self._admin("PATCH", f"subscriptions/{identifier}", {"timeout_ms": 5_000})
            self._admin("POST", f"subscriptions/{identifier}/test", {"body": "x"})
            # The only reply with a secret is the one that makes it.
            made = self.operator.ask("POST", f"subscriptions/{identifier}/rotate", {})
            self.planted[f"new secret of {identifier}"] = made["secret"]

    def _fail(self) -> None:
        secret, place = self.planted["token"], f"subscriptions/{self.webhooks[0]}"
        for settings in (
            {"auth": {"type": "bearer", "token": f"{secret}\n"}},
            {"auth": {"type": "bearer", "token": [secret]}},
            {"auth": {"type": "unknown", "token": secret}},
            {"auth": {"type": "basic", "user": "a:b", "password": secret}},
            {"auth": secret},
            {"secret": f"whsec_{secret}!"},
            {"headers": {"authorization": secret}},
            {"headers": {"x-a": f"{secret}\n"}},
            {"ca": secret},
        ):
            status, reply = self.operator.try_("PATCH", place, settings)
            assert status == 400, settings
            self.shown[f"error {settings.keys()} {len(self.shown)}"] = reply
        login = f"user:{secret}@h"
        for url in (
            f"http://{login}:1/",
            f"http://{login}\n/",
            f"x://{login}",
            f"x:/{login}",
            login,
        ):
            body = {"source": self.topic, "endpoint": url}
            self.shown[f"error {url[:5]} {len(self.shown)}"] = self.operator.try_(
                "POST", "subscriptions", body
            )[1]
            with pytest.raises(self.sns.exceptions.InvalidParameterException) as refused:
                self.sns.subscribe(TopicArn=self.topic, Protocol="https", Endpoint=url)
            self.shown[f"error of SNS {len(self.shown)}"] = str(refused.value).encode()

    def _look(self) -> None:
        paths = ["subscriptions", "subscriptions?status=true", "config", "callees"]
        for listed in self._admin("GET", "subscriptions")["subscriptions"]:
            place = f"subscriptions/{listed['id']}"
            paths += [place, f"{place}/deliveries"]
        for path in paths:
            self._admin("GET", path)
        for path in ("/metrics", "/metrics/objects"):
            headers = {"authorization": f"Bearer {self.operator.token}"}
            self.shown[path] = send(self.operator.host, "GET", path, None, headers)[1]
        found = self.sns.list_subscriptions()["Subscriptions"]
        self._keep("ListSubscriptions", found)
        self._keep("of the topic", self.sns.list_subscriptions_by_topic(TopicArn=self.topic))
        for one in found:
            arn = one["SubscriptionArn"]
            self._keep(arn, self.sns.get_subscription_attributes(SubscriptionArn=arn))
        self._keep("application", self.sns.list_platform_applications())

        def is_told() -> bool:
            for topic in ("__audit", "__usage", "__deliveries"):
                self.shown[topic] = self._records(topic)
            is_audited = b"CreateSubscription" in self.shown["__audit"]
            return is_audited and b"delivered" in self.shown["__deliveries"]

        eventually(is_told, seconds=60, what="deliveries are written")

    def _records(self, topic: str) -> bytes:
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": ROOT.access_key,
            "sasl_password": ROOT.secret_key,
        }
        records = read_all(self.server.kafka, topic, **login)
        return b"\n".join((each.key() or b"") + b" " + (each.value() or b"") for each in records)

    def _admin(self, method: str, path: str, body: object = None) -> Any:
        status, reply = self.operator.try_(method, path, body)
        assert status < 300, f"{method} {path}: {status} {reply!r}"
        self.shown[f"{method} {path} {len(self.shown)}"] = reply
        return json.loads(reply)

    def _keep(self, what: str, reply: object) -> None:
        self.shown[what] = repr(reply).encode()


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secrets]:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "root").write_text(str(ROOT.secret_key))
    (folder / "root").chmod(0o600)
    server = Server(
        folder / "data",
        fsync="never",
        kafka_port=0,
        arguments=["--auth", "on", "--log-level", "debug", "--log-format", "json"],
        env={
            "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
            "PENSTOCK_ROOT_SECRET_FILE": str(folder / "root"),
        },
    )
    with Endpoint() as endpoint, server as running:
        made = Secrets(running, endpoint)
        yield made
        made.sns.close()


def test_endpoints_get_their_secrets(secrets: Secrets) -> None:
    """So that the tests below search for what was in use."""
    given = "\n".join(each.headers.get("authorization", "") for each in secrets.endpoint.ledger())
    given += "\n".join(each.headers.get("x-key", "") for each in secrets.endpoint.ledger())
    found = leaks(secrets.planted, given.encode())
    assert {"password", "new password", "token", "header", "basic"} <= {*found}


def test_nothing_that_is_shown_has_a_secret_of_an_endpoint(secrets: Secrets) -> None:
    assert len(secrets.shown) > 40
    assert b"user:****@" in secrets.shown["ListSubscriptions"]
    for place, text in secrets.shown.items():
        assert not leaks(secrets.planted, text), place


def test_no_log_and_no_file_has_a_secret_of_an_endpoint(secrets: Secrets) -> None:
    assert secrets.server.stop() == 0
    assert not leaks(secrets.planted, secrets.server.stderr.encode())
    files = [path for path in secrets.server.data.rglob("*") if path.is_file()]
    everything = {path: path.read_bytes() for path in files}
    assert any(b"/webhook-0" in data for data in everything.values()), "the search works"
    for path, data in everything.items():
        assert not leaks(secrets.planted, data), path
