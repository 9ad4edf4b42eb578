"""Secrets of endpoints, which the server sends to them: none is found in replies and errors of any
API, in metrics, in the node's own topics, in the log at its loudest level, or in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.attacks.kit import ROOT, Operator, send
from tests.attacks.push_stage import CONFIRMATION, first_seen, sns_as
from tests.attacks.test_canaries import leaks
from tests.compat.kafka.confluent import read_all
from tests.harness.endpoint import Endpoint, Step
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.wire.webhooks.standard import secret_text


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
