"""Endpoints inside the network of a server in production: by address, by every spelling of one, and
by name. A tenant gets one and the same error for all of them, and for names that do not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.attacks.kit import EVERYTHING, REGION, ROOT, Operator, sqs_as
from tests.attacks.push_stage import sns_as
from tests.harness.endpoint import Endpoint
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.unit.push.test_address_guard import embeddings

TEXT = "The endpoint cannot be used."
INSIDE = ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254")
OTHERS = ("0.0.0.0", "224.0.0.1", "192.0.2.1", "198.18.0.1", "168.63.129.16", "255.255.255.255")
OTHERS_V6 = ("::1", "::", "fe80::1", "fd00::1", "ff02::1", "2001:db8::1", "100::1")
# Spellings of 127.0.0.1 that some libraries accept.
ODD = ("127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.0.0.1", "127.0.0.01", "127.0.0.1.")
ODD_HOSTS = (*ODD, "127。0。0。1", "①②⑦.0.0.1", "[::1%25lo]", "[::ffff:7f00:1]")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("strict")
    (folder / "root").write_text(str(ROOT.secret_key))
    (folder / "root").chmod(0o600)
    env = {
        "PENSTOCK_NODE__MODE": "prod",
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(folder / "root"),
    }
    arguments = ["--auth", "on", "--log-format", "json"]
    with Server(folder / "data", fsync="never", arguments=arguments, env=env) as running:
        yield running
        assert running.stop() == 0
        running.assert_no_traceback()


class Tenant:
    """A tenant, who may do everything there, with a topic."""

    def __init__(self, server: Server, name: str) -> None:
        root = Operator(server)
        self.account = root.tenant()
        _, credentials = root.user(EVERYTHING, tenant=self.account)
        self.admin = Operator(server, credentials)
        self.sns, self.sqs = sns_as(server, credentials), sqs_as(server, credentials)
        self.topic = str(self.sns.create_topic(Name=name)["TopicArn"])

    def subscribe(self, url: str) -> str:
        """Return the error of Subscribe."""
        protocol = url.partition(":")[0]
        try:
            self.sns.subscribe(TopicArn=self.topic, Protocol=protocol, Endpoint=url)
        except ClientError as error:
            return str(error.response["Error"]["Message"])
        return ""

    def webhook(self, url: str, **settings: object) -> tuple[int, Any]:
        body = {"source": self.topic, "endpoint": url, "settings": settings}
        status, reply = self.admin.try_("POST", "subscriptions", body)
        return status, json.loads(reply)

    def close(self) -> None:
        self.sns.close()
        self.sqs.close()


@pytest.fixture
def tenant(strict: Server, name: Callable[..., str]) -> Iterator[Tenant]:
    made = Tenant(strict, name())
    yield made
    made.close()


def test_no_address_inside_the_network_becomes_an_endpoint(
    strict: Server, tenant: Tenant, endpoint: Endpoint
) -> None:
    port, before = endpoint.ports["http"], endpoint.connection_count()
    hosts = [*INSIDE, *OTHERS, *(f"[{each}]" for each in OTHERS_V6)]
    hosts += [f"[{each}]" for inside in INSIDE for each in embeddings(inside).values()]
    for host in hosts:
        url = f"http://{host}:{port}/hook"
        assert tenant.subscribe(url) == f"Invalid parameter: Endpoint Reason: {TEXT}", url
        status, reply = tenant.webhook(url)
        assert (status, reply["error"]["message"]) == (400, TEXT), url
    for host in ODD_HOSTS:
        url = f"http://{host}:{port}/hook"
        assert tenant.subscribe(url).startswith("Invalid parameter: Endpoint Reason: "), url
        assert tenant.webhook(url)[0] == 400, url
    for port in (22, 25, 1023):  # services that are not meant to get HTTP requests
        assert TEXT in tenant.subscribe(f"http://example.com:{port}/")
    # Public ones are accepted, without a request in this test: the webhook is paused.
    body = {"source": tenant.topic, "endpoint": "https://192.31.196.1/", "paused": True}
    assert tenant.admin.ask("POST", "subscriptions", body)["paused"]
    assert endpoint.connection_count() == before
    reasons = [json.loads(line) for line in strict.stderr.splitlines() if line.startswith("{")]
    told = [each["reason"] for each in reasons if each.get("event") == "endpoint refused"]
    assert {"127.0.0.1 is a loopback address", "port 22 is not in push.ports"} <= {*told}


def facts_of(tenant: Tenant, host: str, port: int) -> dict[str, Any]:
    """Return all that a tenant is told about a webhook to a host after one failed message."""
    arn = f"arn:aws:sqs:{REGION}:{tenant.account}:dead"
    dead = tenant.sqs.create_queue(QueueName="dead")["QueueUrl"]
    queue_policy = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
    text = json.dumps({"Version": "2012-10-17", "Statement": [{**queue_policy, "Resource": arn}]})
    tenant.sqs.set_queue_attributes(QueueUrl=dead, Attributes={"Policy": text})
    url = f"http://{host}:{port}/hook"
    retry = {"attempts_max": 2, "min_ms": 100, "max_ms": 100}
    status, made = tenant.webhook(url, retry=retry, dead_letter="dead")
    assert status == 201, made
    place = f"subscriptions/{made['id']}"
    test = ("POST", f"{place}/test", {"body": "a test"})
    eventually(lambda: tenant.admin.try_(*test)[0] == 200, seconds=60, what="the webhook runs")
    told: dict[str, Any] = {"test": tenant.admin.ask(*test)}
    tenant.sns.publish(TopicArn=tenant.topic, Message="a message")
    letter: list[Any] = []

    def is_dead() -> bool:
        asked = {"QueueUrl": dead, "MessageAttributeNames": ["All"], "WaitTimeSeconds": 1}
        letter[:] = tenant.sqs.receive_message(**asked).get("Messages", [])
        return bool(letter)

    eventually(is_dead, seconds=60, what="a dead letter")
    told["dead letter"] = [letter[0]["Body"], letter[0]["MessageAttributes"]]

    def rows() -> Any:
        return tenant.admin.ask("GET", f"{place}/deliveries")["deliveries"]

    eventually(lambda: len(rows()) >= 4, seconds=60, what="the attempts are written")
    told["deliveries"], told["shown"] = rows(), tenant.admin.ask("GET", place)
    tenant.sqs.delete_message(QueueUrl=dead, ReceiptHandle=letter[0]["ReceiptHandle"])
    tenant.admin.ask("DELETE", place)
    return told


VARYING = re.compile(
    r"_ms|^ms$|^id$|^arn$|^account$|^tenant$|principal|offset|message_id|subscription$|^share$"
)


def alike(value: Any, host: str) -> Any:
    """Return what does not differ from one subscription to the next."""
    if isinstance(value, dict):
        return {name: alike(each, host) for name, each in value.items() if not VARYING.search(name)}
    if isinstance(value, list):
        return [alike(each, host) for each in value]
    return value.replace(host, "HOST") if isinstance(value, str) else value


def test_a_tenant_cannot_tell_a_name_inside_from_one_that_does_not_exist(
    strict: Server, tenant: Tenant, endpoint: Endpoint
) -> None:
    port, before = endpoint.ports["http"], endpoint.connection_count()
    hosts = ("localhost", "no-such-host.invalid")
    inside, nowhere = (alike(facts_of(tenant, host, port), host) for host in hosts)
    print("\n".join(map(str, [*inside["deliveries"], "", *nowhere["deliveries"]])))
    assert inside == nowhere
    assert inside["test"]["reason"] == inside["shown"]["status"]["reason"] == TEXT
    assert {each["reason"] for each in inside["deliveries"]} == {TEXT}
    assert "127.0.0.1" not in json.dumps(inside)
    assert endpoint.connection_count() == before
    # The operator can tell them apart.
    assert "127.0.0.1 is a loopback address" in strict.stderr or "::1 is a" in strict.stderr
    assert "no-such-host.invalid: " in strict.stderr
