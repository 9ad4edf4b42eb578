"""The push role of a node: SNS subscriptions, and copies of published messages in queues."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from penstock.access.service_decisions import ServiceDecisions
from penstock.broker.partition.partition import Partition
from penstock.frontend.facts.usage import UsageTable
from penstock.metadata.sns_keys import SnsKeys, sign
from penstock.metadata.subscriptions import StoredSubscriptions
from penstock.model.calls import Append, BrokerPort, Publish
from penstock.model.errors import PenstockError
from penstock.model.message import Appended
from penstock.model.topic import Topic
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.security import NodeSecurity, check_readable
from penstock.push.fan_out import FanOuts, FanOutSetup
from penstock.push.metrics import PushMetrics
from penstock.wire.aws.sns.notification import CERTIFICATE_PATH, Signer

SWEEP_SECONDS = 60.0
PUSH_SQS = "push:sqs"  # operation in usage rows

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
        self.metrics = PushMetrics()
        self.usage: UsageTable | None = None  # set when the node can write usage
        self._fan_outs: FanOuts | None = None

    async def start(self) -> None:
        await self.subscriptions.start()
        await self.keys.start()
        for one in (self.subscriptions, self.keys):
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
        config = self._setup.config
        base_url = config.push.cert_url or config.http.external_url or self.base_url
        url = f"{base_url}{CERTIFICATE_PATH}{key.certificate_id}.pem"

        def counted(data: bytes) -> bytes:
            self.metrics.signatures += 1
            return sign(key, version, data)

        return Signer(version, url, counted)

    def serve(self, role: BrokerRole, anywhere: BrokerPort, *, is_clustered: bool) -> None:
        """Begin to copy messages of the partitions that this node leads."""
        setup, config, broker = self._setup, self._setup.config.push, role.broker
        if not config.enabled:
            broker.handlers[Publish] = partial(_append, broker)
            return
        self.metrics.register(setup.meter)
        fan_outs = self._fan_outs = FanOuts(
            FanOutSetup(
                broker=broker,
                anywhere=anywhere,
                catalog=self._topics,
                subscriptions=self.subscriptions,
                clock=setup.clock,
                entropy=setup.entropy,
                sealer=self._security.sealing,
                may_send=self._may_send(),
                signer_of=self._signer,
                metrics=self.metrics,
                count=self._count,
            ),
            publish_wait_ms=config.publish_wait_ms,
        )

        async def publish(call: Publish) -> Sequence[Appended]:
            found = await _append(broker, call)
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

    def _count(self, topic: Topic, attempts: int, delivered: int, bytes_out: int) -> None:
        if self.usage is not None:
            key = (topic.account, topic.region, topic.name, PUSH_SQS)
            self.usage.push(key, attempts, delivered, bytes_out)

    def _may_send(self) -> Callable[[Topic, Topic], bool]:
        setup, decisions = self._setup, ServiceDecisions()
        if not setup.config.push.is_policy_required(is_auth_on=setup.is_auth_on):
            return lambda _topic, _queue: True
        clock = setup.clock
        return lambda topic, queue: decisions.may_send(topic, queue, now_ms=clock.wall_ms())

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
        await self.keys.stop()
        await self.subscriptions.stop()

    @property
    def trouble(self) -> str | None:
        return self.subscriptions.trouble or self.keys.trouble


async def _append(broker: BrokerPort, call: Publish) -> Sequence[Appended]:
    return await broker.call(Append(call.topic, call.partition, call.messages))
