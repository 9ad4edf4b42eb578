"""Copies messages that cannot be delivered to dead-letter queues."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.model.calls import Append, BrokerPort
from penstock.model.errors import TopicNotFound
from penstock.model.message import Attribute, Message
from penstock.model.names import uuid_text
from penstock.model.ports import Catalog
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic, partition_of_group


class Sealer(Protocol):
    def is_on(self, topic: Topic) -> bool: ...

    async def seal(self, topic: Topic, message: Message) -> Message: ...


@dataclass(frozen=True)
class DeadLetters:
    broker: BrokerPort
    catalog: Catalog
    entropy: Callable[[int], bytes]
    sealer: Sealer | None
    may_send: Callable[[Topic, Topic], bool]  # whether the topic may send to the queue
    # Waits while a backup begins, so that it contains the original or its copy.
    crossing: Callable[[], Awaitable[None]]

    async def append(
        self,
        one: Subscription,
        topic: Topic,
        name: str,
        stored: Message,
        body: bytes,
        attributes: dict[str, Attribute],
    ) -> None:
        """Append a message to the queue ``name``, a name or an ARN; then the caller acks the
        original. ``stored`` is the message in the topic. Raises TopicNotFound if the queue is
        missing or does not accept the message."""
        queue = self.catalog.find_arn(name)
        if queue is None:
            queue = self.catalog.find(one.account, one.region, name)
        if queue is None or not queue.is_queue or queue.is_share:
            raise TopicNotFound(name)
        # Who set the queue of a webhook needed the right to send to it.
        is_own = bool(one.webhook) and queue.account == one.account
        if not is_own and not self.may_send(topic, queue):
            raise TopicNotFound(name)
        message_id = self.entropy(16)
        partition = int.from_bytes(message_id[:4]) % queue.partition_count
        group = dedup_id = None
        if queue.is_fifo:
            group = stored.group or uuid_text(stored.message_id)
            dedup_id = stored.dedup_id or uuid_text(stored.message_id)
            partition = partition_of_group(group, queue.partition_count)
        dead = Message(
            message_id,
            body,
            attributes or None,
            group,
            dedup_id,
            sender=one.account,
            trace_header=stored.trace_header,
        )
        if self.sealer is not None and self.sealer.is_on(queue):
            dead = await self.sealer.seal(queue, dead)
        await self.broker.call(Append(queue, partition, (dead,)))
        await self.crossing()


def error_attributes(
    *, reason: str, status: int, attempts: int, one: Subscription
) -> dict[str, Attribute]:
    """Return the attributes that tell in a dead letter why it was not delivered."""
    texts = {
        "penstock.error": reason,
        "penstock.status": str(status),
        "penstock.attempts": str(attempts),
        "penstock.subscription": one.id,
    }
    return {name: Attribute("String", text.encode()) for name, text in texts.items() if text}
