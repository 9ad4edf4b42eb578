"""Couriers carry messages to endpoints that are neither queues nor webhooks: phones, mobile apps,
functions, streams and mailboxes.

Penstock speaks none of their protocols except that of mail (``push/mail.py``). Messages of other
protocols go, as structured CloudEvents, to an HTTP gateway of the operator:

    id, time, source   of the message and its topic     type   ``penstock.`` and the protocol
    subject            the endpoint
    data               account, protocol, endpoint, message, subject, topic, attributes; for mobile
                       apps the platform, token and user data; for functions and streams the
                       notification of SNS

Without a gateway, the same document goes to the outbox: the internal topic ``__outbox``, with the
endpoint as key. It is for development, where tests read what would have been sent."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from penstock.flow.verdicts import Failure
from penstock.metadata.topics.catalog import make_internal_topic
from penstock.model.address_book import PlatformEndpoint
from penstock.model.calls import AppendBatches, BrokerPort
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import TENANT_DIRECT_PERCENT
from penstock.model.names import OUTBOX_TOPIC
from penstock.model.ports import AddressBooks, Catalog, Clock
from penstock.model.quotas import SharedLimit
from penstock.model.sent_message import SentMessage
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.net.http.client_messages import RequestFailed
from penstock.push.outbound import FAILURES, Outbound
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns
from penstock.wire.aws.sns.book_rules import with_sms_defaults
from penstock.wire.aws.sns.notification import shown_attributes
from penstock.wire.webhooks.cloudevents import STRUCTURED_TYPE, structured
from penstock.wire.webhooks.content import text_of, timestamp
from penstock.wire.webhooks.courier_urls import MAIL_PROTOCOLS, PROTOCOLS
from penstock.wire.webhooks.endpoint_url import EndpointUrl

__all__ = ["Courier", "Couriers", "Gateway", "Outbox", "SentMessage"]

GATEWAY_SECONDS_MAX: Final = 15.0  # for a request, as for webhooks
DIRECT_MAX: Final = 256  # messages without a topic that wait for a gateway, on this node
OUTBOX_RETENTION_MS: Final = 7 * 24 * 3_600_000
DELIVERED: Final = 200  # the result of a courier that does not speak HTTP

_NOTIFIED: Final = ("firehose", "lambda", "email-json")  # AWS sends them the notification
_PARTITION: Final = 0
_ACKS_ALL: Final = -1


class Courier(Protocol):
    async def send(self, one: Subscription, message: SentMessage) -> int | Failure:
        """Deliver a message to the endpoint of a subscription. Returns an HTTP status, or the
        reason why there is none, for ``flow.verdicts.judge``."""


class Event(msgspec.Struct, frozen=True):
    account: str
    protocol: str
    endpoint: str
    document: bytes  # a CloudEvent as JSON


class Carrier(Protocol):
    """Takes events: a gateway or the outbox."""

    @property
    def protocols(self) -> frozenset[str]: ...

    async def carry(self, event: Event) -> int | Failure: ...


# ── Where events go ──────────────────────────────────────────────────────────────────────────


class Gateway:
    """``outbound`` must have the resolver of ``operator_resolver``: a gateway may be anywhere."""

    def __init__(
        self,
        urls: Mapping[str, EndpointUrl],
        outbound: Outbound,
        *,
        seconds_max: float = GATEWAY_SECONDS_MAX,
    ) -> None:
        self.protocols = frozenset(urls)
        self._urls = urls
        self._outbound = outbound
        self._seconds_max = seconds_max

    async def carry(self, event: Event) -> int | Failure:
        try:
            reply = await self._outbound.send(
                self._urls[event.protocol],
                tenant=event.account,
                timeout_s=self._seconds_max,
                headers=(("Content-Type", STRUCTURED_TYPE),),
                body=event.document,
            )
        except RequestFailed as failed:
            return FAILURES[failed.reason]
        return reply.status


class Outbox:
    protocols = frozenset(PROTOCOLS)

    def __init__(
        self,
        *,
        broker: BrokerPort,  # of all nodes
        catalog: Catalog,
        namespace: tuple[str, str],  # account and region
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._broker = broker
        self._catalog = catalog
        self._namespace = namespace
        self._clock = clock
        self._entropy = entropy

    async def carry(self, event: Event) -> int | Failure:
        now_ms = self._clock.wall_ms()
        key, value = event.endpoint.encode(errors="replace"), event.document
        record = encode_record(offset_delta=0, timestamp_delta=0, key=key, value=value)
        batch = encode_batch(
            [record],
            base_offset=0,  # assigned by the log
            leader_epoch=0,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
        )
        try:
            topic = await self._topic()
            call = AppendBatches(topic, _PARTITION, acks=_ACKS_ALL, batches=(batch,))
            await self._broker.call(call)
        except PenstockError:
            return Failure.OUTBOX_FAILED
        return DELIVERED

    async def _topic(self) -> Topic:
        found = self._catalog.find(*self._namespace, OUTBOX_TOPIC)
        if found is not None:
            return found
        return await make_internal_topic(
            self._catalog,
            self._namespace,
            OUTBOX_TOPIC,
            partition_count=_PARTITION + 1,
            configs={"retention.ms": str(OUTBOX_RETENTION_MS)},
            clock=self._clock,
            entropy=self._entropy,
        )


# ── The choice of the courier ────────────────────────────────────────────────────────────────


class Couriers:
    """Sends each message by mail, to the gateway of its protocol, or to the outbox."""

    def __init__(
        self,
        books: AddressBooks,
        *,
        own_account: str,
        gateway: Carrier | None = None,
        outbox: Carrier | None = None,
        mail: Courier | None = None,
    ) -> None:
        self._books = books
        self._mail = mail
        self._carriers = [one for one in (gateway, outbox) if one is not None]
        # Only a mailbox can confirm, and only if mails are really sent.
        self.relayed = {name: False for one in self._carriers for name in one.protocols}
        if mail is not None:
            self.relayed |= dict.fromkeys(MAIL_PROTOCOLS, True)
        self._direct = SharedLimit(DIRECT_MAX, TENANT_DIRECT_PERCENT, own_account=own_account)

    async def send(self, one: Subscription, message: SentMessage) -> int | Failure:
        if self._mail is not None and one.protocol in MAIL_PROTOCOLS:
            return await self._mail.send(one, message)
        if one.protocol == "sms":
            book = self._books.sms(one.account, one.region)
            attributes = with_sms_defaults(book, message.attributes)
            message = msgspec.structs.replace(message, attributes=attributes)
        return await self._carry(one.protocol, one.account, message)

    async def deliver(self, protocol: str, account: str, message: SentMessage) -> int | Failure:
        """Send a message without a topic. Raises Throttled."""
        if self._direct.is_full():
            raise Throttled(f"{DIRECT_MAX} messages to single endpoints are under way; retry.")
        with self._direct.holding(account, "messages to single endpoints under way"):
            return await self._carry(protocol, account, message)

    async def _carry(self, protocol: str, account: str, message: SentMessage) -> int | Failure:
        carrier = next((one for one in self._carriers if protocol in one.protocols), None)
        if carrier is None:
            return Failure.NO_COURIER
        device: dict[str, str] = {}
        if protocol == "application":
            found = self._device(account, message.endpoint)
            if found is None:
                return Failure.ENDPOINT_DISABLED
            device = found
        document = event_document(protocol, account, message, device)
        return await carrier.carry(Event(account, protocol, message.endpoint, document))

    def has_endpoint(self, arn: str) -> bool:
        return self._endpoint(arn) is not None

    def _endpoint(self, arn: str) -> PlatformEndpoint | None:
        try:
            address = arns.parse_endpoint(arn, caller="")
        except Fault:
            return None
        where = address.application
        found = self._books.endpoint(where.account, where.region, address.id)
        return found if found is not None and found.arn == arn else None

    def _device(self, account: str, arn: str) -> dict[str, str] | None:
        """Return by what the platform knows a device, or None if nothing may be sent to it."""
        found = self._endpoint(arn)
        if found is None or not found.is_enabled or found.account != account:
            return None
        application = self._books.application(
            (found.account, found.region, found.platform, found.application)
        )
        if application is None or not application.is_enabled:
            return None
        device = {"platform": found.platform, "token": found.token}
        return device | ({"user_data": found.user_data} if found.user_data else {})


def event_document(
    protocol: str, account: str, message: SentMessage, device: Mapping[str, str] = {}
) -> bytes:
    """Return the CloudEvent of a message, as JSON."""
    data: dict[str, Any] = {
        "account": account,
        "protocol": protocol,
        "endpoint": message.endpoint,
        **device,
    }
    text = text_of(message.body)
    if text is None:
        data["message_base64"] = message.body  # msgspec writes bytes as base64
    else:
        data["message"] = text
    if message.subject is not None:
        data["subject"] = message.subject
    if message.topic_arn:
        data["topic"] = message.topic_arn
    if message.attributes:
        data["attributes"] = shown_attributes(message.attributes)
    if message.notification and protocol in _NOTIFIED:
        data["notification"] = msgspec.Raw(message.notification)
    attributes = {
        "id": message.message_id,
        "source": message.topic_arn or "penstock",
        "type": f"penstock.{protocol}",
        "time": timestamp(message.sent_at_ms),
        "subject": message.endpoint,
    }
    return structured(attributes, msgspec.json.encode(data))
