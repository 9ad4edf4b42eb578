"""The push role of a node: SNS subscriptions, and copies of published messages in queues."""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from penstock.access.service_decisions import ServiceDecisions
from penstock.broker.partition.partition import Partition
from penstock.flow.slots import Slots
from penstock.frontend.facts.deliveries import DeliveryWriter
from penstock.frontend.facts.usage import UsageTable
from penstock.metadata.address_books import StoredAddressBooks
from penstock.metadata.sns_keys import SnsKeys, sign
from penstock.metadata.subscriptions import StoredSubscriptions
from penstock.model.calls import (
    Append,
    BrokerPort,
    LearnSubscription,
    Publish,
    PushOne,
    ReadPushStatus,
)
from penstock.model.errors import PenstockError
from penstock.model.message import Appended
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.net.addresses import machine_addresses, split_address
from penstock.net.http.client import HttpClient
from penstock.net.http.client_tls import TlsContexts
from penstock.node.configuration.config import Mode
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.security import NodeSecurity, check_readable
from penstock.push.address_guard import AddressGuard
from penstock.push.confirming import Confirmations, ConfirmSetup
from penstock.push.copying import FanOutSetup
from penstock.push.couriers import Couriers, Gateway, Outbox
from penstock.push.dead_letters import DeadLetters
from penstock.push.fan_out import FanOuts
from penstock.push.mail import MailCourier
from penstock.push.metrics import PushMetrics
from penstock.push.outbound import Outbound, make_proxy, operator_resolver
from penstock.push.push_setup import PushSetup
from penstock.push.pushers import Pushers
from penstock.push.resolver import Resolver
from penstock.wire.aws.sns.notification import CERTIFICATE_PATH, Signer
from penstock.wire.webhooks.courier_urls import parse_gateways, parse_smtp_url
from penstock.wire.webhooks.endpoint_url import parse_endpoint_url

SWEEP_SECONDS = 60.0
PUSH_SQS = "push:sqs"  # operation in usage rows
# Operations by protocol; others go to a gateway.
_USAGE = {"http": "http", "https": "http", "webhook": "http", "email": "mail", "email-json": "mail"}

log_ = logging.getLogger(__name__)


class PushRole:
    def __init__(
        self,
        setup: NodeSetup,
        metadata: MetadataLink,
        security: NodeSecurity,
        *,
        level: Callable[[], int],  # the feature level in force
    ) -> None:
        self.level = level
        self.token_key = security.ring.derive(b"sns confirmations")
        self.base_url = ""  # of the SQS and SNS listener, set when it is bound
        self._setup = setup
        self._topics = metadata.topics
        self._security = security
        self.subscriptions = StoredSubscriptions(
            metadata.store,
            security.identities,
            own_account=setup.config.node.account,
            level=level,
        )
        self.keys = SnsKeys(
            metadata.store, security.ring, clock=setup.clock, entropy=setup.entropy, level=level
        )
        self.books = StoredAddressBooks(
            metadata.store,
            security.ring,
            own_account=setup.config.node.account,
            level=level,
        )
        self.couriers: Couriers | None = None  # None: no gateway, mail server or outbox
        self._gateway_ends: Sequence[Callable[[], None]] = ()
        self.metrics = PushMetrics()
        self.usage: UsageTable | None = None  # set when the node can write usage
        self._fan_outs: FanOuts | None = None
        self._pushers: Pushers | None = None
        self._broker: BrokerPort | None = None  # of this node
        self._is_clustered = False

    async def start(self) -> None:
        await self.subscriptions.start()
        await self.keys.start()
        await self.books.start()
        for one in (self.subscriptions, self.keys, self.books):
            resealed = await one.reseal(self._security.ring.rewrap)
            check_readable(resealed, "secrets of subscriptions in the store", "encrypted")

    async def sweep(self) -> None:
        """Periodically delete subscriptions that were never confirmed, and renew signing keys."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.subscriptions.sweep(
                    now_ms=self._setup.clock.wall_ms(),
                    is_deleted=lambda topic_id: self._topics.tombstone(topic_id) is not None,
                )
                await self.keys.sweep()
                if self._pushers is not None:
                    await self._pushers.sweep()
            except PenstockError as error:
                log_.warning("deleting old subscriptions failed", extra={"reason": str(error)})

    async def _signer(self, topic: Topic) -> Signer:
        key = await self.keys.ready()
        attributes = {} if topic.sns is None else topic.sns.attributes
        version = attributes.get("SignatureVersion", "1")
        config = self._setup.config
        base_url = config.push.cert_url or config.http.external_url or self.base_url
        url = f"{base_url}{CERTIFICATE_PATH}{key.certificate_id}.pem"

        def counted(data: bytes) -> bytes:
            self.metrics.signatures += 1
            return sign(key, version, data)

        return Signer(version, url, counted)

    def serve(
        self,
        role: BrokerRole,
        anywhere: BrokerPort,
        facts: DeliveryWriter,
        *,
        queues: BrokerPort,  # for messages to queues; checks the quotas of their owners
        is_clustered: bool,
    ) -> None:
        """Begin to copy messages of the partitions that this node leads."""
        self.facts, self._broker = facts, role.broker
        setup, config, broker = self._setup, self._setup.config.push, role.broker
        self.couriers = self._make_couriers(anywhere)
        broker.handlers[Publish] = self.publish
        broker.handlers[LearnSubscription] = self.learn
        if not config.enabled:
            return
        self.metrics.register(setup.meter)
        self._fan_outs = FanOuts(
            FanOutSetup(
                broker=broker,
                anywhere=queues,
                catalog=self._topics,
                subscriptions=self.subscriptions,
                clock=setup.clock,
                entropy=setup.entropy,
                sealer=self._security.sealing,
                may_send=self._may_send(),
                signer_of=self._signer,
                metrics=self.metrics,
                count=partial(self._count, PUSH_SQS),
                note=facts.note,
            ),
            publish_wait_ms=config.publish_wait_ms,
        )

        pushers = self._pushers = self._make_pushers(
            anywhere, queues, role.hold.crossing, is_clustered=is_clustered
        )
        self.metrics.measure = pushers.measure
        broker.handlers[ReadPushStatus] = pushers.read_status
        broker.handlers[PushOne] = pushers.push_one
        broker.share_hooks.find_filter = pushers.wants
        broker.share_hooks.lost = pushers.lost
        self._is_clustered = is_clustered
        self._topics.on_change(self._changed)
        if is_clustered:
            broker.partitions.on_led(self._led)
            for queue in broker.partitions.queues():
                for partition in queue.partitions.values():
                    self._led(partition, is_led=True)
        else:
            for topic in self._topics.all_topics():
                self._changed(None, topic)

    async def publish(self, call: Publish) -> Sequence[Appended]:
        """Append messages to a topic, and wait until the queues that keep up have them."""
        assert self._broker is not None
        append = Append(call.topic, call.partition, call.messages)
        found = await self._broker.call(append)
        if self._fan_outs is not None:
            last = max(one.offset for one in found)
            await self._fan_outs.copied(call.topic, call.partition, last)
        return found

    async def learn(self, call: LearnSubscription) -> None:
        await self.subscriptions.change(call.subscription_id, lambda current: current)

    def _make_couriers(self, anywhere: BrokerPort) -> Couriers | None:
        setup, node, config = self._setup, self._setup.config.node, self._setup.config.push
        gateway = outbox = mail = None
        ca_file = Path(config.ca_file) if config.ca_file else None
        if config.gateways:
            client, resolver = HttpClient(), operator_resolver()
            self._gateway_ends = (client.close, resolver.close)
            outbound = Outbound(client, resolver, TlsContexts(ca_file=ca_file))
            urls, seconds = parse_gateways(config.gateways), config.timeout_ms / 1_000
            gateway = Gateway(urls, outbound, seconds_max=seconds)
        if config.has_outbox(is_dev=node.mode is Mode.DEV):
            outbox = Outbox(
                broker=anywhere,
                catalog=self._topics,
                namespace=(node.account, node.region),
                clock=setup.clock,
                entropy=setup.entropy,
            )
        if config.smtp_url:
            tls = ssl.create_default_context()
            if ca_file is not None:
                tls.load_verify_locations(ca_file)
            server = parse_smtp_url(config.smtp_url)
            mail = MailCourier(server, sender=config.mail_from, tls=tls)
        if not (gateway or outbox or mail):
            return None
        return Couriers(
            self.books, own_account=node.account, gateway=gateway, outbox=outbox, mail=mail
        )

    def _make_pushers(
        self,
        anywhere: BrokerPort,
        queues: BrokerPort,
        crossing: Callable[[], Awaitable[None]],
        *,
        is_clustered: bool,
    ) -> Pushers:
        setup, config, sealing = self._setup, self._setup.config.push, self._security.sealing
        proxy = make_proxy(config.proxy_url) if config.proxy_url else None
        self._client = HttpClient(proxy=proxy)
        self._resolver = Resolver(self._guard(()))
        ca_file = Path(config.ca_file) if config.ca_file else None
        may_send = self._may_send()
        self._outbound = Outbound(
            self._client,
            self._resolver,
            TlsContexts(ca_file=ca_file),
            allows_plain=config.plain_http,
        )
        push_setup = PushSetup(
            broker=anywhere,
            subscriptions=self.subscriptions,
            clock=setup.clock,
            chance=random.random,
            opener=sealing,
            outbound=self._outbound,
            slots=Slots(
                requests_max=config.in_flight_max,
                bytes_max=config.bytes_in_flight_max,
                destination_requests_max=config.host_in_flight_max,
            ),
            signer_of=self._signer,
            dead_letters=DeadLetters(
                queues, self._topics, setup.entropy, sealing, may_send, crossing
            ),
            note=self.facts.note,
            count=lambda topic, protocol, *counts: self._count(
                f"push:{_USAGE.get(protocol, 'gateway')}", topic, *counts
            ),
            metrics=self.metrics,
        )
        pushers = Pushers(
            push_setup,
            self._topics,
            secrets_of=self._secrets_of,
            courier=self.couriers,
            # The same on all nodes, if the operator has set it.
            origin=urlsplit(setup.config.http.external_url).hostname or setup.name,
            is_clustered=is_clustered,
        )
        self._confirmations = Confirmations(
            ConfirmSetup(
                broker=queues,
                catalog=self._topics,
                clock=setup.clock,
                entropy=setup.entropy,
                token_key=self.token_key,
                requests=pushers.single_requests,
                signer_of=self._signer,
                secrets_of=self._secrets_of,
                may_send=may_send,
                courier=self.couriers,
            )
        )
        return pushers

    def _guard(self, own: Iterable[str]) -> AddressGuard:
        config = self._setup.config
        return AddressGuard(
            allow=config.push.allow_rules,
            deny=config.push.deny_rules,
            ports=config.push.port_ranges,
            own=[found for text in own if (found := split_address(text)) is not None],
            local=machine_addresses(),
            is_development=config.node.mode is Mode.DEV,
        )

    def protect(self, own: Iterable[str]) -> None:
        """Let no subscription call these addresses, host:port or URLs of this cluster."""
        if self._pushers is not None:
            self._resolver.guard = self._guard(own)

    def is_usable(self, endpoint: str, account: str) -> bool:
        """Return whether a URL of a tenant may become an endpoint."""
        if self._pushers is None:
            return True
        return self._outbound.is_usable(parse_endpoint_url(endpoint), tenant=account)

    def confirm(self, one: Subscription) -> None:
        if self._pushers is not None:
            self._confirmations.confirm(one)

    def unsubscribed(self, one: Subscription) -> None:
        if self._pushers is not None:
            self._confirmations.unsubscribed(one)

    def _secrets_of(self, one: Subscription) -> bytes:
        if not one.secrets:
            return b""
        return self._security.ring.unwrap(one.secrets, context=one.secrets_context)

    def _count(
        self, operation: str, topic: Topic, attempts: int, delivered: int, bytes_out: int
    ) -> None:
        if self.usage is not None:
            key = (topic.account, topic.region, topic.name, operation)
            self.usage.push(key, attempts, delivered, bytes_out)

    def _may_send(self) -> Callable[[Topic, Topic], bool]:
        setup, decisions = self._setup, ServiceDecisions()
        if not setup.config.push.is_policy_required(is_auth_on=setup.is_auth_on):
            return lambda _topic, _queue: True
        clock = setup.clock
        return lambda topic, queue: decisions.may_send(topic, queue, now_ms=clock.wall_ms())

    def _led(self, partition: Partition, is_led: bool) -> None:
        assert self._fan_outs is not None
        assert self._pushers is not None
        self._fan_outs.led(partition.topic, partition.index, is_led)
        self._pushers.led(partition.topic, partition.index, is_led)

    def _changed(self, before: Topic | None, after: Topic | None) -> None:
        topic = after or before
        assert topic is not None
        assert self._fan_outs is not None
        assert self._pushers is not None
        for partition in range(topic.partition_count):
            is_led = after is not None
            if self._is_clustered:
                is_led = is_led and self._pushers.is_led(topic, partition)
            self._fan_outs.led(topic, partition, is_led)
            self._pushers.led(topic, partition, is_led)
        if after is None:
            self._pushers.topic_deleted(topic)
        elif before is not None:
            self._fan_outs.topic_changed(after)
            self._pushers.topic_changed(after)

    async def drain(self) -> None:
        """Send no more requests to endpoints, and wait for those in progress."""
        if self._pushers is not None:
            await self._confirmations.stop()
            await self._pushers.stop()

    async def stop(self) -> None:
        await self.drain()
        if self._pushers is not None:
            self._client.close()
            self._resolver.close()
        if self._fan_outs is not None:
            await self._fan_outs.stop()
        for close in self._gateway_ends:
            close()
        await self.books.stop()
        await self.keys.stop()
        await self.subscriptions.stop()

    @property
    def trouble(self) -> str | None:
        return self.subscriptions.trouble or self.keys.trouble or self.books.trouble
