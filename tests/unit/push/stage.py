"""Subscriptions of a real broker that push to a real endpoint."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.harness.endpoint import Endpoint, Seen
from tests.unit.broker.stage import HandClock, Stage, message, on_stage

from penstock.flow.slots import Slots
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.subscriptions import StoredSubscriptions
from penstock.model.calls import Append, Ends, Lease, ShareLag
from penstock.model.message import Delivery, Message
from penstock.model.ports import LeaseRequest
from penstock.model.subscription import (
    Subscription,
    SubscriptionState,
    new_id,
    share_group,
)
from penstock.model.topic import Kind, SnsTopic, Topic
from penstock.net.http.client import HttpClient
from penstock.net.http.client_tls import TlsContexts
from penstock.node.keys.keyring import MasterKeyRing
from penstock.push.address_guard import AddressGuard
from penstock.push.dead_letters import DeadLetters
from penstock.push.delivery_plan import WEBHOOK
from penstock.push.outbound import Outbound
from penstock.push.push_setup import PushSetup
from penstock.push.pushers import Pushers
from penstock.push.resolver import Resolver
from penstock.telemetry.clock import SystemClock
from penstock.wire.aws.sns.notification import Signer
from penstock.wire.facts.deliveries import DeliveryRow
from penstock.wire.webhooks import settings

ACCOUNT, REGION = "000000000000", "us-east-1"
SECONDS_MAX = 60.0  # only a hang takes so long


class RealClock(HandClock, SystemClock):
    """The time as it is, for a stage that expects a clock of its own."""

    wall_ms = SystemClock.wall_ms
    mono_ms = SystemClock.mono_ms

    def __init__(self) -> None:
        SystemClock.__init__(self)
        self.wall = self.wall_ms()


async def until(is_true: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < ends_at, what
        await asyncio.sleep(0.005)


@dataclass
class PushStage:
    stage: Stage
    endpoint: Endpoint
    subscriptions: StoredSubscriptions
    outbound: Outbound
    rows: list[DeliveryRow] = field(default_factory=list)
    seen_before: int = 0
    secrets: dict[str, bytes] = field(default_factory=dict)
    _pushers: list[Pushers] = field(default_factory=list)

    @property
    def pushers(self) -> Pushers:
        return self._pushers[-1]

    def start(self, *, is_clustered: bool = False) -> None:
        """Become the home of all subscriptions, as a node does that starts."""

        async def signer_of(_: Topic) -> Signer:
            return Signer("1", "https://sns.example/cert.pem", lambda text: text[:8])

        stage = self.stage
        pushers = Pushers(
            PushSetup(
                broker=stage.broker,
                subscriptions=self.subscriptions,
                clock=stage.clock,
                chance=random.random,
                opener=None,
                outbound=self.outbound,
                slots=Slots(),
                signer_of=signer_of,
                dead_letters=DeadLetters(
                    stage.broker,
                    stage.catalog,
                    os.urandom,
                    None,
                    lambda _topic, _queue: True,
                    stage.broker._context.hold.crossing,
                ),
                note=self.rows.append,
                count=lambda *_: None,
            ),
            stage.catalog,
            secrets_of=lambda one: self.secrets.get(one.id, b""),
            courier=None,
            origin="penstock.example",
            is_clustered=is_clustered,
        )
        self._pushers.append(pushers)
        stage.broker.share_hooks.find_filter = pushers.wants
        for topic in stage.catalog.all_topics():
            for partition in range(topic.partition_count):
                pushers.led(topic, partition, is_led=True)

    async def sns_topic(self, name: str = "orders", *, partitions: int = 1) -> Topic:
        topic = await self.stage.topic(f"sns.{name}", kind=Kind.STREAM, partitions=partitions)
        topic = await self.stage.catalog.change(
            ACCOUNT, REGION, topic.name, lambda t: msgspec.structs.replace(t, sns=SnsTopic(name, 1))
        )
        for partition in range(partitions):
            self.pushers.led(topic, partition, is_led=True)
        return topic

    async def queue(self, name: str, *, fifo: bool = False) -> Topic:
        queue = await self.stage.topic(name, fifo=fifo)
        self.pushers.led(queue, 0, is_led=True)
        return queue

    async def subscribe(
        self, topic: Topic, path: str, *, webhook: dict[str, Any] | None = None, **attributes: str
    ) -> Subscription:
        url = self.endpoint.url(path)
        protocol = "http" if webhook is None else WEBHOOK
        offsets = []
        for partition in range(topic.partition_count):
            ends = await self.stage.broker.call(Ends(topic, partition))
            offsets.append(ends.high_watermark)
        is_asked = (webhook or {}).get("verify") == "cloudevents"
        one = Subscription(
            id=new_id(topic.topic_id, protocol, url, random=os.urandom(8)),
            topic_id=topic.topic_id,
            source_arn=topic.sns_arn or topic.arn,
            account=ACCOUNT,
            region=REGION,
            protocol=protocol,
            endpoint=url,
            created_at_ms=self.stage.clock.wall_ms(),
            state=SubscriptionState.PENDING if is_asked else SubscriptionState.CONFIRMED,
            attributes=attributes,
            base_url="http://penstock.example",
            start_offsets=tuple(offsets),
        )
        if webhook is not None:
            made, kept = settings.create(msgspec.json.encode(webhook), random=os.urandom(32))
            self.secrets[one.id] = kept.pack()
            one = msgspec.structs.replace(one, webhook=msgspec.json.encode(made).decode())
        return await self.subscriptions.create(one)

    async def change(self, one: Subscription, **fields: Any) -> None:
        await self.subscriptions.change(one.id, lambda now: msgspec.structs.replace(now, **fields))

    def stored(self, one: Subscription) -> Subscription:
        found = self.subscriptions.find(one.id)
        assert found is not None
        return found

    async def publish(self, topic: Topic, *bodies: str, partition: int = 0, **rest: Any) -> None:
        messages = tuple(message(body, **rest) for body in bodies)
        await self.stage.broker.call(Append(topic, partition, messages))

    async def publish_message(self, topic: Topic, one: Message) -> None:
        await self.stage.broker.call(Append(topic, 0, (one,)))

    async def seen(self, count: int) -> list[Seen]:
        """Wait for the next ``count`` requests since the start of this stage, and return all."""
        wanted = self.seen_before + count
        await asyncio.to_thread(self.endpoint.wait_for, wanted)
        return self.ledger()

    def ledger(self) -> list[Seen]:
        return self.endpoint.ledger(self.seen_before)

    async def outcomes(self, count: int) -> list[str]:
        await until(lambda: len(self.rows) >= count, f"{len(self.rows)} of {count} rows")
        return [row.outcome for row in self.rows]

    async def received(self, queue: Topic, count: int = 1) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < count:
            request = LeaseRequest(10, 60_000, 20_000)
            more = await self.stage.broker.call(Lease(queue, request))
            assert more, f"{queue.name} got {len(found)} of {count} messages"
            found += more
        return found

    async def finished(self, topic: Topic, one: Subscription, replay: int = 0) -> None:
        """Wait until all messages of a subscription are acked."""
        find, group = self.stage.broker.find_share, share_group(one, replay)
        await until(lambda: find(topic, group) is not None, "there is no share")
        share = find(topic, group)
        assert share is not None
        for partition in range(topic.partition_count):
            while await self.stage.broker.call(ShareLag(share, partition)):
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self._pushers.pop().stop()


@asynccontextmanager
async def on_push(folder: Path, endpoint: Endpoint) -> AsyncIterator[PushStage]:
    async with on_stage(folder, RealClock()) as stage:
        store = await SqliteStore.open(folder / "subscriptions.sqlite3")
        identities = StoredIdentities(store, MasterKeyRing(b"m" * 32), entropy=os.urandom)
        subscriptions = StoredSubscriptions(store, identities, own_account=ACCOUNT)
        await identities.start()
        await subscriptions.start()
        client = HttpClient()
        resolver = Resolver(AddressGuard(is_development=True))
        outbound = Outbound(client, resolver, TlsContexts())
        made = PushStage(stage, endpoint, subscriptions, outbound)
        made.seen_before = len(endpoint.ledger())
        made.start()
        try:
            yield made
        finally:
            while made._pushers:
                await made.stop()
            client.close()
            resolver.close()
            await subscriptions.stop()
            await identities.stop()
            await store.close()
