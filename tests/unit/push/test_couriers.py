"""Couriers with a real endpoint as gateway, and books over a real store."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.harness.endpoint import Endpoint, Step
from tests.unit.frontend.memory import MemoryCatalog, MemoryClock
from tests.unit.metadata.conftest import MASTER, store  # noqa: F401

from penstock.flow.verdicts import Failure
from penstock.metadata.address_books import StoredAddressBooks
from penstock.metadata.sqlite import SqliteStore
from penstock.model.address_book import PlatformApplication, PlatformEndpoint
from penstock.model.calls import AppendBatches
from penstock.model.errors import Overloaded, Throttled
from penstock.model.message import Attribute
from penstock.model.sent_message import SentMessage
from penstock.model.subscription import Subscription, new_id
from penstock.net.http.client import HttpClient
from penstock.net.http.client_tls import TlsContexts
from penstock.node.keys.keyring import MasterKeyRing
from penstock.push import couriers as couriers_
from penstock.push.couriers import (
    Courier,
    Couriers,
    Event,
    Gateway,
    Outbox,
    event_document,
)
from penstock.push.outbound import Outbound, operator_resolver
from penstock.record.record import iter_records
from penstock.wire.webhooks.courier_urls import PROTOCOLS, parse_gateways

ACCOUNT, REGION = "111111111111", "us-east-1"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:orders"
ID = "12345678-1234-4234-8234-123456789abc"
DEVICE = PlatformEndpoint(ID, ACCOUNT, REGION, "GCM", "shop", "device token", 0, "data")
SHOP = PlatformApplication(ACCOUNT, REGION, "GCM", "shop", 0)


def message(endpoint: str = "+15550100999", **changes: Any) -> SentMessage:
    sent = SentMessage(ID, endpoint, b"hello", 1_700_000_000_000, "Order 7", TOPIC)
    return msgspec.structs.replace(sent, **changes)


def subscription(protocol: str, endpoint: str = "+15550100999") -> Subscription:
    return Subscription(
        id=new_id("topic", protocol, endpoint, random=b"\1" * 8),
        topic_id="topic",
        source_arn=TOPIC,
        account=ACCOUNT,
        region=REGION,
        protocol=protocol,
        endpoint=endpoint,
        created_at_ms=0,
    )


class Kept:
    """Takes events as a gateway does, and keeps them."""

    def __init__(self, *protocols: str) -> None:
        self.protocols = frozenset(protocols)
        self.events: list[Event] = []
        self.result: int | Failure = 200
        self.held: asyncio.Event | None = None

    async def carry(self, event: Event) -> int | Failure:
        self.events.append(event)
        if self.held is not None:
            await self.held.wait()
        return self.result

    def data(self) -> Any:
        return json.loads(self.events[-1].document)["data"]


@pytest.fixture
async def books(store: SqliteStore) -> AsyncIterator[StoredAddressBooks]:  # noqa: F811
    found = StoredAddressBooks(store, MasterKeyRing(MASTER), own_account="000000000000")
    await found.start()
    yield found
    await found.stop()


# ── The gateway ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def gateway(endpoint: Endpoint) -> AsyncIterator[Gateway]:
    endpoint.plan("/sms")
    client, resolver = HttpClient(), operator_resolver()
    outbound = Outbound(client, resolver, TlsContexts())
    text = f"sms={endpoint.url('/sms')},lambda=http://user:pass@127.0.0.1:1/"
    yield Gateway(parse_gateways(text), outbound, seconds_max=60)
    client.close()
    resolver.close()


async def test_a_gateway_on_a_private_address_gets_a_cloud_event(
    gateway: Gateway, endpoint: Endpoint, books: StoredAddressBooks
) -> None:
    seen_before = len(endpoint.ledger())
    courier: Courier = Couriers(books, own_account="000000000000", gateway=gateway)
    assert await courier.send(subscription("sms"), message()) == 200
    [seen] = endpoint.ledger(seen_before)
    assert seen.method == "POST"
    assert seen.headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
    assert json.loads(seen.body) == {
        "specversion": "1.0",
        "id": ID,
        "source": TOPIC,
        "type": "penstock.sms",
        "time": "2023-11-14T22:13:20.000Z",
        "subject": "+15550100999",
        "datacontenttype": "application/json",
        "data": {
            "account": ACCOUNT,
            "protocol": "sms",
            "endpoint": "+15550100999",
            "message": "hello",
            "subject": "Order 7",
            "topic": TOPIC,
        },
    }


async def test_statuses_and_failures_of_a_gateway(
    gateway: Gateway, endpoint: Endpoint, books: StoredAddressBooks
) -> None:
    courier = Couriers(books, own_account="000000000000", gateway=gateway)
    assert courier.relayed == {"sms": False, "lambda": False}
    for status in (204, 404, 429, 500):
        endpoint.plan("/sms", Step(status=status))
        assert await courier.send(subscription("sms"), message()) == status
    assert await courier.send(subscription("lambda"), message()) is Failure.NOT_CONNECTED
    assert await courier.send(subscription("firehose"), message()) is Failure.NO_COURIER
    assert await courier.send(subscription("email"), message()) is Failure.NO_COURIER


# ── The outbox ───────────────────────────────────────────────────────────────────────────────


class Log:
    """A broker that keeps appended batches."""

    def __init__(self) -> None:
        self.calls: list[AppendBatches] = []
        self.error: Exception | None = None

    async def call(self, call: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.calls.append(call)


async def test_the_outbox_is_an_internal_topic_with_the_endpoint_as_key(
    books: StoredAddressBooks,
) -> None:
    log, catalog = Log(), MemoryCatalog()
    outbox = Outbox(
        broker=log,  # type: ignore[arg-type]
        catalog=catalog,
        namespace=("000000000000", REGION),
        clock=MemoryClock(),
        entropy=lambda count: b"\1" * count,
    )
    courier = Couriers(books, own_account="000000000000", outbox=outbox)
    assert courier.relayed == dict.fromkeys(PROTOCOLS, False)
    for body in (b"one", b"two"):
        assert await courier.send(subscription("sms"), message(body=body)) == 200
    records = [
        r for call in log.calls for batch in call.batches for r in iter_records(bytes(batch))
    ]
    assert [record.key for record in records] == [b"+15550100999"] * 2
    texts = [json.loads(record.value or b"")["data"]["message"] for record in records]
    assert texts == ["one", "two"]
    assert [topic.name for topic in catalog.all_topics()] == ["__outbox"]
    log.error = Overloaded("busy")
    assert await courier.send(subscription("sms"), message()) is Failure.OUTBOX_FAILED


# ── The document, and the choice of the courier ──────────────────────────────────────────────


def test_a_document_keeps_any_body_and_attribute() -> None:
    attributes = {"a": Attribute("String", b"\xff"), "b": Attribute("Binary", b"\0\1")}
    sent = message(body=b"\xff\xfe", subject="\r\n", attributes=attributes, topic_arn="")
    found = json.loads(event_document("sms", ACCOUNT, sent))
    assert found["source"] == "penstock"
    assert found["data"]["message_base64"] == "//4="
    assert found["data"]["subject"] == "\r\n"
    assert found["data"]["attributes"] == {
        "a": {"Type": "String", "Value": "\ufffd"},
        "b": {"Type": "Binary", "Value": "AAE="},
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_functions_and_streams_get_the_notification(protocol: str) -> None:
    sent = message(notification=b'{"Type": "Notification"}')
    data = json.loads(event_document(protocol, ACCOUNT, sent))["data"]
    is_notified = protocol in ("lambda", "firehose", "email-json")
    assert data.get("notification") == ({"Type": "Notification"} if is_notified else None)


async def test_a_device_gets_messages_while_it_and_its_app_are_enabled(
    books: StoredAddressBooks,
) -> None:
    kept = Kept("application")
    courier = Couriers(books, own_account="000000000000", gateway=kept)
    one, sent = subscription("application", DEVICE.arn), message(DEVICE.arn)
    assert await courier.send(one, sent) is Failure.ENDPOINT_DISABLED, "no such device"
    assert not courier.has_endpoint(DEVICE.arn)
    await books.create_application(SHOP)
    await books.create_endpoint(DEVICE)
    assert await courier.send(one, sent) == 200
    assert courier.has_endpoint(DEVICE.arn)
    device = {"platform": "GCM", "token": "device token", "user_data": "data"}
    assert device.items() <= kept.data().items()
    # Neither the device of another tenant, nor a wrong ARN.
    other = msgspec.structs.replace(one, account="222222222222")
    assert await courier.send(other, sent) is Failure.ENDPOINT_DISABLED
    for wrong in ("x", DEVICE.arn.replace("shop", "shed"), DEVICE.arn.replace("GCM", "ADM")):
        assert await courier.send(one, message(wrong)) is Failure.ENDPOINT_DISABLED
        assert not courier.has_endpoint(wrong)
    disable = lambda one: msgspec.structs.replace(one, attributes={"Enabled": "false"})  # noqa: E731
    await books.change_application((ACCOUNT, REGION, "GCM", "shop"), disable)
    assert await courier.send(one, sent) is Failure.ENDPOINT_DISABLED
    assert len(kept.events) == 1


async def test_text_messages_get_the_tenants_sender(books: StoredAddressBooks) -> None:
    put = lambda book: msgspec.structs.replace(book, attributes={"DefaultSenderID": "me"})  # noqa: E731
    await books.change_sms(ACCOUNT, REGION, put)
    kept = Kept("sms")
    courier = Couriers(books, own_account="000000000000", outbox=kept)
    await courier.send(subscription("sms"), message())
    assert kept.data()["attributes"] == {"AWS.SNS.SMS.SenderID": {"Type": "String", "Value": "me"}}


async def test_mail_goes_to_the_mail_server_and_a_gateway_comes_before_the_outbox(
    books: StoredAddressBooks,
) -> None:
    class Mail:
        async def send(self, one: Subscription, message: SentMessage) -> int | Failure:
            return 299

    gateway, outbox = Kept("sms"), Kept(*PROTOCOLS)
    courier = Couriers(
        books, own_account="000000000000", gateway=gateway, outbox=outbox, mail=Mail()
    )
    confirming = {name for name, must_confirm in courier.relayed.items() if must_confirm}
    assert confirming == {"email", "email-json"}
    assert await courier.send(subscription("email", "a@b"), message("a@b")) == 299
    assert await courier.send(subscription("sms"), message()) == 200
    assert await courier.send(subscription("lambda"), message()) == 200
    assert [event.protocol for event in gateway.events + outbox.events] == ["sms", "lambda"]


async def test_a_tenant_has_a_part_of_the_messages_that_wait_for_a_gateway(
    books: StoredAddressBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(couriers_, "DIRECT_MAX", 8)
    kept = Kept("sms")
    kept.held = asyncio.Event()
    courier = Couriers(books, own_account="000000000000", gateway=kept)
    accounts = [ACCOUNT] * 2 + ["222222222222"] * 2 + ["000000000000"] * 4
    tasks = [asyncio.create_task(courier.deliver("sms", each, message())) for each in accounts[:2]]
    await asyncio.sleep(0)
    with pytest.raises(Throttled, match="This tenant has 2 of 2"):
        await courier.deliver("sms", ACCOUNT, message())
    tasks += [asyncio.create_task(courier.deliver("sms", each, message())) for each in accounts[2:]]
    await asyncio.sleep(0)
    with pytest.raises(Throttled, match="8 messages"):
        await courier.deliver("sms", "000000000000", message())
    kept.held.set()
    assert await asyncio.gather(*tasks) == [200] * 8
    assert await courier.deliver("sms", ACCOUNT, message()) == 200
