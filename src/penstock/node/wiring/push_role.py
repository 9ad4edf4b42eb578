"""The push role of a node: SNS subscriptions, and copies of published messages in queues."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from penstock.broker.partition.partition import Partition
from penstock.metadata.address_books import StoredAddressBooks
from penstock.metadata.sns_keys import SnsKeys, sign
from penstock.metadata.subscriptions import StoredSubscriptions
from penstock.model.calls import Append, BrokerPort, Publish
from penstock.model.errors import PenstockError
from penstock.model.message import Appended
from penstock.model.topic import Topic
from penstock.node.configuration.config import Mode
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.security import NodeSecurity, check_readable
from penstock.push.couriers import Couriers, Outbox
from penstock.push.fan_out import FanOuts, FanOutSetup
from penstock.wire.aws.sns.notification import CERTIFICATE_PATH, Signer

PUBLISH_WAIT_MS = 250
SWEEP_SECONDS = 60.0

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
        self._fan_outs: FanOuts | None = None

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
            except PenstockError as error:
                log_.warning("deleting old subscriptions failed", extra={"reason": str(error)})

    async def _signer(self, topic: Topic) -> Signer:
        key = await self.keys.ready()
        assert topic.sns is not None
        version = topic.sns.attributes.get("SignatureVersion", "1")
        base_url = self._setup.config.http.external_url or self.base_url
        url = f"{base_url}{CERTIFICATE_PATH}{key.certificate_id}.pem"
        return Signer(version, url, partial(sign, key, version))

    def serve(self, role: BrokerRole, anywhere: BrokerPort, *, is_clustered: bool) -> None:
        """Begin to copy messages of the partitions that this node leads."""
        setup, broker = self._setup, role.broker
        self.couriers = self._make_couriers(anywhere)
        fan_outs = self._fan_outs = FanOuts(
            FanOutSetup(
                broker=broker,
                anywhere=anywhere,
                catalog=self._topics,
                subscriptions=self.subscriptions,
                clock=setup.clock,
                entropy=setup.entropy,
                sealer=self._security.sealing,
                may_send=lambda _topic, _queue: True,
                signer_of=self._signer,
            ),
            publish_wait_ms=PUBLISH_WAIT_MS,
        )

        async def publish(call: Publish) -> Sequence[Appended]:
            found = await broker.call(Append(call.topic, call.partition, call.messages))
            last = max(one.offset for one in found)
            await fan_outs.copied(call.topic, call.partition, last)
            return found

        broker.handlers[Publish] = publish
        if is_clustered:
            broker.partitions.on_led(self._led)
            for queue in broker.partitions.queues():
                for partition in queue.partitions.values():
                    self._led(partition, is_led=True)
        else:
            self._topics.on_change(self._changed)
            for topic in self._topics.all_topics():
                self._changed(None, topic)

    def _make_couriers(self, anywhere: BrokerPort) -> Couriers | None:
        setup, node = self._setup, self._setup.config.node
        if node.mode is not Mode.DEV:
            return None
        outbox = Outbox(
            broker=anywhere,
            catalog=self._topics,
            namespace=(node.account, node.region),
            clock=setup.clock,
            entropy=setup.entropy,
        )
        return Couriers(self.books, own_account=node.account, outbox=outbox)

    def _led(self, partition: Partition, is_led: bool) -> None:
        assert self._fan_outs is not None
        self._fan_outs.led(partition.topic, partition.index, is_led)

    def _changed(self, before: Topic | None, after: Topic | None) -> None:
        assert self._fan_outs is not None
        topic = after or before
        assert topic is not None
        for partition in range(topic.partition_count):
            self._fan_outs.led(topic, partition, after is not None)

    async def stop(self) -> None:
        if self._fan_outs is not None:
            await self._fan_outs.stop()
        await self.books.stop()
        await self.keys.stop()
        await self.subscriptions.stop()

    @property
    def trouble(self) -> str | None:
        return self.subscriptions.trouble or self.keys.trouble or self.books.trouble
