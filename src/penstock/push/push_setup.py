"""What the deliveries of all subscriptions of a node share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.flow.slots import Slots
from penstock.model.calls import BrokerPort
from penstock.model.message import Delivery
from penstock.model.ports import Clock, Subscriptions
from penstock.model.topic import Topic
from penstock.push.dead_letters import DeadLetters
from penstock.push.metrics import PushMetrics
from penstock.push.outbound import Outbound
from penstock.wire.aws.sns.notification import Signer
from penstock.wire.facts import deliveries as facts


class Opener(Protocol):
    """Decrypts messages. Implemented by the frontend, because brokers have no keys."""

    def is_on(self, topic: Topic) -> bool: ...

    async def opened(self, topic: Topic, deliveries: Sequence[Delivery]) -> Sequence[Delivery]: ...

    async def opened_fetch(self, topic: Topic, partition: int, fetched: Any) -> Any: ...


@dataclass(frozen=True)
class PushSetup:
    broker: BrokerPort  # of all nodes
    subscriptions: Subscriptions
    clock: Clock
    chance: Callable[[], float]  # returns a random number in [0, 1)
    opener: Opener | None
    outbound: Outbound
    slots: Slots
    signer_of: Callable[[Topic], Awaitable[Signer | None]]
    dead_letters: DeadLetters
    note: Callable[[facts.DeliveryRow], None]
    # Adds to the usage of the topic's owner: protocol, attempts, delivered messages, their bytes.
    count: Callable[[Topic, str, int, int, int], None]
    metrics: PushMetrics = field(default_factory=PushMetrics)
