"""Verifiers that others wrote accept what is pushed, on one node and on three: Standard Webhooks,
CloudEvents and the signatures of SNS, also after a restart and with new secrets and keys."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from cloudevents.core.bindings import http as events
from cloudevents.core.formats.json import JSONFormat
from cloudevents.v1.http import from_http, from_json
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from requests.adapters import HTTPAdapter
from sns_message_validator import SignatureVerificationFailureException, SNSMessageValidator
from standardwebhooks import Webhook, WebhookVerificationError
from tests.e2e.test_push import PushSite
from tests.harness.cluster import PenstockCluster
from tests.harness.endpoint import Endpoint, Seen
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.metadata.etcd.links import EtcdConfig
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.sns_keys import DAY_MS, KNOWN_MS, RENEW_MS, SnsKeyEntry, SnsKeys, sns_key_key
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.node.keys.keyring import MasterKeyRing

pytestmark = [pytest.mark.slow, pytest.mark.compat]

SECONDS_MAX = 60.0
MASTER = os.urandom(32)
VERSIONS = ("1", "2")  # of SNS signatures
TEXT = 'é ☃\n"quoted" \\ </script>\u2028'  # what encoders escape differently
Document = dict[str, Any]  # a message of SNS


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


class Stage(PushSite):
    """A server or cluster whose messages are verified."""

    def __init__(self, servers: list[Server], store: Callable[[], Any], endpoint: Endpoint) -> None:
        super().__init__(servers)
        self.open_store = store
        self.endpoint = endpoint
        self._numbers = itertools.count()

    def path(self) -> str:
        """Return a path of the endpoint that nothing else uses."""
        return f"/{len(self.servers)}-{next(self._numbers)}"

    def seen(self, path: str, count: int = 1) -> list[Seen]:
        """Wait for requests to a path, and return all of them."""

        def found() -> list[Seen]:
            all_ = [each for each in self.endpoint.ledger() if each.target == path]
            return all_ if len(all_) >= count else []

        return eventually(found, seconds=SECONDS_MAX, what=f"{count} requests to {path}")

    def hook(self, source: str, **settings: object) -> tuple[str, str, str]:
        """Create a webhook. Returns its id, its path and its secret."""
        path = self.path()
        body = {"source": source, "endpoint": self.endpoint.url(path), "settings": settings}
        made = self.ask("POST", "/subscriptions", body)
        return made["id"], path, made["secret"]


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("verifiers")
    env = {"PENSTOCK_MASTER_KEY": base64.b64encode(MASTER).decode()}
    if request.param == "one node":
        with Server(folder, kafka_port=0, env=env) as server:
            yield Stage([server], lambda: SqliteStore.open(folder / "metadata.sqlite3"), endpoint)
        return
    if LACKING is not None:
        pytest.skip(LACKING)
    with PenstockCluster(folder, env=env) as cluster:
        etcd = EtcdConfig(endpoints=cluster.etcd.endpoints, namespace="/penstock/penstock")
        yield Stage(list(cluster.nodes.values()), lambda: EtcdStore.open(etcd), endpoint)


def body_of(seen: Seen) -> bytes:
    return seen.body.encode("latin-1")


# ── Standard Webhooks ────────────────────────────────────────────────────────────────────────


def accepted(secret: str, seen: Seen) -> Any:
    return Webhook(secret).verify(body_of(seen), seen.headers)


def test_standard_webhooks_are_accepted(stage: Stage) -> None:
    arn = stage.topic("webhooks")
    _, single, secret = stage.hook(arn, format="standard")
    _, raw, raw_secret = stage.hook(arn, format="raw")
    _, batch, batch_secret = stage.hook(arn, format="standard", batch_max=3)
    texts, data = [TEXT, '{"n": 1}', "-"], [TEXT, {"n": 1}, "-"]
    entries = [{"Id": str(at), "Message": text} for at, text in enumerate(texts)]
    reply = stage.sns[-1].publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
    ids = {each["MessageId"] for each in reply["Successful"]}

    found = {each.headers["webhook-id"]: accepted(secret, each) for each in stage.seen(single, 3)}
    assert found.keys() == ids
    for one in found.values():
        assert one.keys() == {"type", "timestamp", "data"}
        assert abs(datetime.fromisoformat(one["timestamp"]).timestamp() - time.time()) < 300
        assert one["data"] in data

    [request] = stage.seen(batch)
    documents = accepted(batch_secret, request)
    assert {one["id"] for one in documents} == ids
    assert [one["data"] for one in documents] == data

    for each in stage.seen(raw, 3):
        Webhook(raw_secret).verify(body_of(each), each.headers, json_parse=False)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body_of(each), each.headers)


class Rotated:
    """A webhook on a queue whose secret was rotated."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._queue, _ = stage.queue("rotated")
        hook, self._path, self.old = stage.hook("rotated", format="standard")
        self._numbers = itertools.count()
        self.send()
        self.new = str(stage.ask("POST", f"/subscriptions/{hook}/rotate", {}, at=-1)["secret"])

    def send(self) -> Seen:
        """Send a message and return its request, which the old secret verifies."""
        number = next(self._numbers)
        self.stage.sqs[0].send_message(QueueUrl=self._queue, MessageBody=str(number))

        def sent() -> Seen | None:
            found = self.stage.seen(self._path)
            return next((one for one in found if accepted(self.old, one)["data"] == number), None)

        found = eventually(sent, seconds=SECONDS_MAX, what="a request")
        assert found is not None
        return found

    def is_new_accepted(self) -> bool:
        try:
            accepted(self.new, self.send())
        except WebhookVerificationError:
            return False
        return True


@pytest.fixture(scope="module")
def rotated(stage: Stage) -> Rotated:
    return Rotated(stage)


def test_the_old_and_the_new_secret_are_accepted_after_a_rotation(rotated: Rotated) -> None:
    # The home of the subscription learns the new secret by its watch.
    eventually(rotated.is_new_accepted, seconds=SECONDS_MAX, what="the new secret signs")
    assert rotated.is_new_accepted()


# ── CloudEvents ──────────────────────────────────────────────────────────────────────────────


def event_of(seen: Seen) -> Any:
    """Read an event with both interfaces of the package, which must agree."""
    event = events.from_http_event(events.HTTPMessage(seen.headers, body_of(seen)))
    older = from_http(seen.headers, body_of(seen))
    for name in ("id", "source", "type", "specversion", "datacontenttype"):
        assert older[name] == event.get_attributes()[name]
    return event


def event_in_batch(part: object) -> Any:
    text = json.dumps(part)
    assert from_json(text)["id"]
    return JSONFormat().read(None, text)


def check_event(event: Any, arn: str, message_id: str, **wanted: object) -> None:
    attributes = event.get_attributes()
    assert (attributes["specversion"], attributes["source"]) == ("1.0", arn)
    assert attributes["id"] == message_id
    assert abs(attributes["time"].timestamp() - time.time()) < 300
    shown = {name: attributes.get(name) for name in wanted if name != "data"}
    assert {**shown, "data": event.get_data()} == wanted


def test_cloudevents_of_an_sns_topic_are_accepted(stage: Stage) -> None:
    arn = stage.topic("events")
    _, binary, _ = stage.hook(arn, format="cloudevents-binary")
    _, structured, _ = stage.hook(arn, format="cloudevents-structured")
    _, batch, batch_secret = stage.hook(arn, format="cloudevents-structured", batch_max=3)
    kind = {"ce_type": {"DataType": "String", "StringValue": "shop.order"}}
    entries = [
        {"Id": "0", "Message": TEXT, "Subject": "Größe 100%"},
        {"Id": "1", "Message": '{"n": [1, "é"]}', "MessageAttributes": kind},
        {"Id": "2", "Message": "plain", "MessageGroupId": "ann"},
    ]
    reply = stage.sns[-1].publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries)
    ids = [each["MessageId"] for each in sorted(reply["Successful"], key=lambda one: one["Id"])]
    text = "text/plain; charset=UTF-8"
    wanted: list[dict[str, object]] = [
        {"type": "penstock.message", "subject": "Größe 100%", "datacontenttype": text,
         "data": TEXT},
        {"type": "shop.order", "subject": None, "datacontenttype": "application/json",
         "data": {"n": [1, "é"]}},
        {"type": "penstock.message", "subject": "ann", "partitionkey": "ann",
         "datacontenttype": text, "data": "plain"},
    ]  # fmt: skip
    for path in (binary, structured):
        found = {one.get_id(): one for one in map(event_of, stage.seen(path, 3))}
        assert found.keys() == set(ids)
        for message_id, each in zip(ids, wanted, strict=True):
            check_event(found[message_id], arn, message_id, **each)
    [request] = stage.seen(batch)
    parts = accepted(batch_secret, request)
    assert request.headers["content-type"].startswith("application/cloudevents-batch+json")
    for part, message_id, each in zip(parts, ids, wanted, strict=True):
        check_event(event_in_batch(part), arn, message_id, **each)


# ── Signatures of SNS ────────────────────────────────────────────────────────────────────────

OURS = r"^http://127\.0\.0\.1:\d+/SimpleNotificationService-[0-9a-f]{32}\.pem$"


def verify(document: Document) -> None:
    """Verify a message as Amazon's documentation describes it, and with a package."""
    with urllib.request.urlopen(document["SigningCertURL"], timeout=SECONDS_MAX) as reply:
        certificate = x509.load_pem_x509_certificate(reply.read())
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc
    names = ["Message", "MessageId", "Timestamp", "TopicArn", "Type"]
    if document["Type"] == "Notification":
        names += ["Subject"] if "Subject" in document else []
    else:
        names += ["SubscribeURL", "Token"]
    text = "".join(f"{name}\n{document[name]}\n" for name in sorted(names))
    hash_ = {"1": hashes.SHA1(), "2": hashes.SHA256()}[document["SignatureVersion"]]
    public = certificate.public_key()
    assert isinstance(public, RSAPublicKey)
    signature = base64.b64decode(document["Signature"], validate=True)
    public.verify(signature, text.encode(), padding.PKCS1v15(), hash_)
    if document["SignatureVersion"] == "1":  # the package knows no other
        SNSMessageValidator(cert_url_regex=OURS).validate_message(document)


def certificates(documents: list[Document]) -> set[str]:
    return {each["SigningCertURL"].rpartition("/")[2] for each in documents}


class Signed:
    """For each version of the signature, a topic with a queue and an HTTP endpoint."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.confirmations: list[Document] = []
        self._places: list[tuple[str, str, str]] = []  # topic, URL of the queue, path
        self._numbers = itertools.count()
        for version in VERSIONS:
            sns, name = stage.sns[0], f"signed-{version}"
            attributes = {"SignatureVersion": version}
            arn = sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
            queue, queue_arn = stage.queue(name)
            sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)
            path = stage.path()
            sns.subscribe(TopicArn=arn, Protocol="http", Endpoint=stage.endpoint.url(path))
            [request] = stage.seen(path)
            assert request.headers["x-amz-sns-message-type"] == "SubscriptionConfirmation"
            confirmation = json.loads(body_of(request))
            urllib.request.urlopen(confirmation["SubscribeURL"], timeout=SECONDS_MAX).read()
            self.confirmations.append(confirmation)
            self._places.append((arn, queue, path))

    def publish(self) -> list[Document]:
        """Publish to each topic, with and without a subject. Returns what arrives."""
        found: list[Document] = []
        for arn, queue, path in self._places:
            for subject in ({}, {"Subject": "Größe"}):
                text = f"{TEXT} {next(self._numbers)}"
                self.stage.sns[-1].publish(TopicArn=arn, Message=text, **subject)
                copies = self._received(queue, text), self._pushed(path, text)
                assert all(each.get("Subject") == subject.get("Subject") for each in copies)
                found += copies
        assert [each["SignatureVersion"] for each in found] == ["1"] * 4 + ["2"] * 4
        return found

    def _received(self, queue: str, text: str) -> Document:
        def received() -> Document | None:
            messages = self.stage.received(queue, wait_s=1)
            documents = [json.loads(each["Body"]) for each in messages]
            return next((each for each in documents if each["Message"] == text), None)

        found = eventually(received, seconds=SECONDS_MAX, what="a copy in the queue")
        assert found is not None
        return found

    def _pushed(self, path: str, text: str) -> Document:
        def sent() -> Document | None:
            documents = [json.loads(body_of(each)) for each in self.stage.seen(path)]
            return next((each for each in documents if each["Message"] == text), None)

        found = eventually(sent, seconds=SECONDS_MAX, what="a notification")
        assert found is not None
        return found


@pytest.fixture(scope="module")
def signed(stage: Stage) -> Signed:
    return Signed(stage)


def test_signatures_of_confirmations_and_notifications_are_accepted(
    stage: Stage, signed: Signed
) -> None:
    assert [each["SignatureVersion"] for each in signed.confirmations] == ["1", "2"]
    found = [*signed.confirmations, *signed.publish()]
    for document in found:
        verify(document)
        for forged in ({**document, "Message": "x"}, {**document, "TopicArn": "x"}):
            with pytest.raises(InvalidSignature):
                verify(forged)
    [name] = certificates(found)
    for server in stage.servers:  # every node has the certificate
        requests.get(f"{server.url}/{name}", timeout=SECONDS_MAX).raise_for_status()


def test_an_unsubscribe_confirmation_is_accepted(stage: Stage) -> None:
    arn, path = stage.topic("left"), stage.path()
    stage.sns[0].subscribe(TopicArn=arn, Protocol="http", Endpoint=stage.endpoint.url(path))
    url = json.loads(body_of(stage.seen(path)[0]))["SubscribeURL"]
    urllib.request.urlopen(url, timeout=SECONDS_MAX).read()
    [one] = stage.sns[0].list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
    stage.sns[0].unsubscribe(SubscriptionArn=one["SubscriptionArn"])
    document = json.loads(body_of(stage.seen(path, 2)[1]))
    assert document["Type"] == "UnsubscribeConfirmation"
    verify(document)


def test_everything_is_accepted_after_a_restart(
    stage: Stage, signed: Signed, rotated: Rotated
) -> None:
    before = signed.publish()
    for server in stage.servers:
        server.kill()
    for server in stage.servers:
        server.start()
    after = signed.publish()
    assert certificates(after) == certificates(before)
    for document in (*before, *after):
        verify(document)
    assert rotated.is_new_accepted()


def test_messages_are_accepted_whose_key_was_renewed_since(stage: Stage, signed: Signed) -> None:
    before = signed.publish()
    if len(stage.servers) == 1:  # its database is its own
        stage.servers[0].stop()
        asyncio.run(renew(stage.open_store))
        stage.servers[0].start()
    else:
        asyncio.run(renew(stage.open_store))

    def renewed() -> list[Document]:
        found = signed.publish()
        return [] if certificates(found) & certificates(before) else found

    after = eventually(renewed, seconds=SECONDS_MAX, what="all nodes use the new key")
    for document in (*before, *after):
        verify(document)


class EarlierClock:
    """The time at which a key must be created, so that nodes use it now."""

    def wall_ms(self) -> int:
        return int(time.time() * 1_000) - KNOWN_MS

    mono_ms = wall_ms


async def renew(open_store: Callable[[], Any]) -> None:
    """Make the signing key a year older, and renew it as each node does once a minute."""
    store: Store = await open_store()
    try:
        entry = await store.get(sns_key_key(1))
        assert entry is not None
        key = msgspec.json.decode(entry.value, type=SnsKeyEntry)
        older = msgspec.structs.replace(key, created_at_ms=key.created_at_ms - RENEW_MS - DAY_MS)
        await store.put(entry.key, msgspec.json.encode(older))
        ring = MasterKeyRing(MASTER)
        keys = SnsKeys(store, ring, clock=EarlierClock(), entropy=os.urandom)
        await keys.start()
        try:
            await keys.sweep()
        finally:
            await keys.stop()
        assert await store.get(sns_key_key(2)) is not None
    finally:
        await store.close()


# ── Certificates at a host of Amazon ─────────────────────────────────────────────────────────

AMAZON = "https://sns.us-east-1.amazonaws.com"


class NamedServer(HTTPAdapter):
    """Sends requests for one host to a server, as a DNS of the receiver's own would."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> Any:
        assert request.url is not None
        request.url = request.url.replace(AMAZON, self._url)
        return super().send(request, *args, **more)


def test_a_validator_with_default_settings_accepts_the_host_of_cert_url(
    tmp_path: Path,
) -> None:
    with Server(tmp_path, env={"PENSTOCK_PUSH__CERT_URL": AMAZON}) as server:
        site = PushSite([server])
        arn = site.topic("named")
        queue, queue_arn = site.queue("named")
        site.sns[0].subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue_arn)
        site.sns[0].publish(TopicArn=arn, Message=TEXT)
        [message] = site.received(queue, wait_s=20)
        document = json.loads(message["Body"])
        validator = SNSMessageValidator()
        validator._cert_session.mount(AMAZON, NamedServer(server.url))
        validator.validate_message(document)
        with pytest.raises(SignatureVerificationFailureException):
            validator.validate_message({**document, "Message": "x"})
