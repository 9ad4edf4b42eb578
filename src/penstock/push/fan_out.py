"""Copies the messages of one partition of an SNS topic to the subscribed queues.

All queues that keep up share one bookmark in the log of the partition. A round reads some messages
after the bookmark, appends the copies to all queues, waits for all of them and then moves the
bookmark. So a message to a thousand queues costs a thousand appends and one event, and each queue
gets the messages in the order of the partition. If the leader dies within a round, the next leader
repeats the round: a queue can get its messages twice, but none is lost.

A queue that can never take a copy (it does not exist, its policy denies the topic, the message is
too large) does not stop the round: the message goes to the dead-letter queue of the subscription,
in the form in which it would have been delivered, or it is dropped.

A publisher waits until its message is below the bookmark, at most ``publish_wait_ms``."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from penstock.model.calls import Append, BrokerPort, Ends, Fetch, MoveBookmark, ReadBookmark
from penstock.model.errors import InvalidRequest, PenstockError, TopicNotFound
from penstock.model.limits import MIB
from penstock.model.message import Message, Record
from penstock.model.ports import Catalog, Clock, Subscriptions
from penstock.model.subscription import Subscription, SubscriptionState
from penstock.model.topic import Topic, partition_of_group
from penstock.net.slices import Slices, Turns, in_slices
from penstock.push.metrics import Outcome, PushMetrics
from penstock.push.queue_copies import Copy, Plan, Refusal, Source, Target, dead_letter_arn
from penstock.record.batch import parse_header, split_batches
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_batch
from penstock.wire.aws.attributes import message_bytes
from penstock.wire.aws.sns.filter_match import PolicyIndex
from penstock.wire.aws.sns.filter_policy import Scope, compile_policy
from penstock.wire.aws.sns.notification import Signer, unsubscribe_url

READER: Final = "sns"  # name of the bookmark
ROUND_BYTES: Final = 1 * MIB
ROUND_MESSAGES: Final = 64
APPENDS_MAX: Final = 256  # in progress at the same time
RETRY_SECONDS: Final = 0.5  # after a round that failed
LOG_INTERVAL_MS: Final = 60_000  # between log lines about messages that cannot be delivered
SQS: Final = "sqs"

log_ = logging.getLogger(__name__)


class Sealer(Protocol):
    """Encrypts and decrypts messages. Implemented by the frontend, because brokers have no keys."""

    def is_on(self, topic: Topic) -> bool: ...

    def sealed(self, topic: Topic, message: Message) -> Message | None: ...

    async def seal(self, topic: Topic, message: Message) -> Message: ...

    async def opened_fetch(self, topic: Topic, partition: int, fetched: Any) -> Any: ...


@dataclass(frozen=True)
class FanOutSetup:
    broker: BrokerPort  # of this node, for the topic's log
    anywhere: BrokerPort  # of all nodes, for the queues
    catalog: Catalog
    subscriptions: Subscriptions
    clock: Clock
    entropy: Callable[[int], bytes]
    sealer: Sealer | None
    may_send: Callable[[Topic, Topic], bool]  # whether the topic may send to the queue
    signer_of: Callable[[Topic], Awaitable[Signer | None]]
    # Adds to the usage of the topic's owner: attempts, delivered messages, and their bytes.
    count: Callable[[Topic, int, int, int], None]
    metrics: PushMetrics = field(default_factory=PushMetrics)
    turns: Turns = field(default_factory=Turns)


class FanOut:
    def __init__(self, topic: Topic, partition: int, setup: FanOutSetup) -> None:
        self.topic = topic
        self.partition = partition
        self._setup = setup
        self.position = 0  # everything below has been copied
        self._targets: dict[str, Target] = {}  # by subscription id
        self._policies: PolicyIndex[str] = PolicyIndex()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # heap, by offset
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._next_copy = 0  # partition of a standard queue to which the next round goes
        self._refusals: Counter[Refusal] = Counter()  # since the last log line about them
        self._logged_at_ms: int | None = None
        for one in setup.subscriptions.of_topic(topic.topic_id):
            self.subscription_changed(None, one)

    # ── Subscriptions ────────────────────────────────────────────────────────────────────────

    def subscription_changed(self, before: Subscription | None, after: Subscription | None) -> None:
        if before is not None and self._targets.pop(before.id, None) is not None:
            self._policies.remove(before.id)
        if after is None or after.protocol != "sqs" or after.paused is not None:
            return
        if after.state is not SubscriptionState.CONFIRMED:
            return
        starts, attributes = after.start_offsets, after.attributes
        self._targets[after.id] = Target(
            after,
            attributes.get("RawMessageDelivery") == "true",
            starts[self.partition] if self.partition < len(starts) else 0,
            unsubscribe_url(after.base_url, after.arn),
            dead_letter_arn(after),
        )
        text = attributes.get("FilterPolicy")
        scope = Scope(attributes.get("FilterPolicyScope", Scope.ATTRIBUTES.value))
        self._policies.add(after.id, compile_policy(text, scope=scope) if text else None)
        self._wake.set()

    # ── Publishers ───────────────────────────────────────────────────────────────────────────

    async def copied(self, offset: int, *, seconds_max: float) -> None:
        """Wait until the message at ``offset`` is in all queues, or until the time is over."""
        if offset < self.position or not self._targets:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (offset, id(done), done))
        await asyncio.wait((done,), timeout=seconds_max)
        done.cancel()

    def _advance(self, position: int) -> None:
        self.position = position
        waiting = self._waiting
        while waiting and waiting[0][0] < position:
            _, _, done = heappop(waiting)
            if not done.done():
                done.set_result(None)

    # ── Rounds ───────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Copy messages until the task is cancelled."""
        setup, topic, partition = self._setup, self.topic, self.partition
        self.position = await setup.broker.call(ReadBookmark(topic, partition, READER))
        remove = setup.broker.on_advance(topic, partition, self._wake.set)
        try:
            while True:
                self._wake.clear()
                try:
                    is_done = await self._round()
                except Exception as error:
                    about = {"topic": topic.name, "partition": partition, "reason": str(error)}
                    is_known = isinstance(error, PenstockError)
                    log_.log(
                        logging.WARNING if is_known else logging.ERROR,
                        "copying messages to queues failed",
                        exc_info=None if is_known else error,
                        extra=about,
                    )
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if is_done:
                    await self._wake.wait()
        finally:
            remove()

    async def _round(self) -> bool:
        """Copy the next messages. Return whether none are left."""
        setup, topic, partition = self._setup, self.topic, self.partition
        ends = await setup.broker.call(Ends(topic, partition))
        end = ends.last_stable_offset
        begin = max(self.position, ends.start_offset)
        targets = tuple(self._targets.values())
        first = min((one.start for one in targets), default=end)
        lost = ends.start_offset - max(self.position, first)
        if lost > 0 and targets:
            setup.metrics.lost += lost
            about = {"topic": topic.name, "partition": partition, "count": lost}
            log_.error("retention removed messages before they were copied", extra=about)
            self._advance(ends.start_offset)
        if begin < first:
            begin = min(first, end)  # no subscription wants the messages before
        if begin >= end or not targets:
            self._advance(max(begin, self.position))
            return True
        fetched = await setup.broker.call(
            Fetch(topic, partition, begin, ROUND_BYTES, is_committed=True)
        )
        if setup.sealer is not None:
            fetched = await setup.sealer.opened_fetch(topic, partition, fetched)
        records, position = self._records(fetched.buffers, begin, min(end, fetched.next_offset))
        if records:
            began_s = self._loop.time()
            await self._copy(records)
            setup.metrics.fan_outs.observe(self._loop.time() - began_s)
        self._advance(position)
        if records:  # the bookmark is an event in this log too: it must not cause the next one
            await setup.broker.call(MoveBookmark(topic, partition, READER, position))
        return position >= end

    def _records(self, buffers: Sequence[Any], begin: int, end: int) -> tuple[list[Record], int]:
        """Return the next records of a round, and the position after them."""
        records: list[Record] = []
        origin = f"{self.topic.topic_id}-{self.partition}".encode("ascii")
        for batch in split_batches(buffers):
            header = parse_header(batch)
            if header.is_control:
                continue
            try:
                found = decode_batch(batch, origin=origin, from_offset=begin)
            except MalformedBatch as error:
                about = {"topic": self.topic.name, "offset": header.base_offset}
                log_.error("skipping records", extra={**about, "reason": str(error)})
                continue
            room = ROUND_MESSAGES - len(records)
            records += (one for one in found[:room] if one.offset < end)
            if len(found) >= room:
                return records, records[-1].offset + 1
        return records, end

    async def _copy(self, records: Sequence[Record]) -> None:
        plan, slices = Plan(), Slices(self._setup.turns)
        signer = None
        if not self.topic.is_fifo and not all(one.is_raw for one in self._targets.values()):
            signer = await self._setup.signer_of(self.topic)
        for record in records:
            source = Source(record, self.topic, self.partition, signer)
            for key in await in_slices(self._policies.match_in_steps(source.prepared)):
                target = self._targets.get(key)  # the subscription may have ended meanwhile
                if target is None or record.offset < target.start:
                    continue
                refusal = self._plan_copy(plan, target.subscription.endpoint, source, target)
                if refusal is not None:
                    self._give_up(plan, source, target, refusal)
                if plan.is_full:
                    await self._append_all(plan)
                    plan = Plan()
                if slices.is_over:
                    await slices.next()
        await self._append_all(plan)
        self._log_refusals()

    def _plan_copy(
        self, plan: Plan, arn: str, source: Source, target: Target, *, is_dead: bool = False
    ) -> Refusal | None:
        setup = self._setup
        queue = setup.catalog.find_arn(arn)
        if queue is None or not queue.is_queue or queue.is_share:
            return Refusal.MISSING
        if not setup.may_send(self.topic, queue):
            return Refusal.DENIED
        made = source.copy(target, queue, message_id=setup.entropy(16), is_dead=is_dead)
        if isinstance(made, Refusal):
            return made
        plan.add(queue, self._partition_of(queue, made), Copy(made, source, target, is_dead))
        return None

    def _give_up(self, plan: Plan, source: Source, target: Target, refusal: Refusal) -> None:
        """Plan a copy for the dead-letter queue, or drop the message if no such queue takes it."""
        arn = target.dead_letter_arn
        self._setup.metrics.refused[refusal] += 1
        self._refusals[refusal] += 1
        if arn is None or self._plan_copy(plan, arn, source, target, is_dead=True) is not None:
            self._count(Outcome.DROPPED)

    def _count(self, outcome: Outcome, count: int = 1, bytes_out: int = 0) -> None:
        if count:
            self._setup.metrics.attempt(SQS, outcome, count)
            delivered = count if outcome is Outcome.DELIVERED else 0
            self._setup.count(self.topic, count, delivered, bytes_out)

    def _log_refusals(self) -> None:
        now_ms = self._setup.clock.mono_ms()
        is_due = self._logged_at_ms is None or now_ms - self._logged_at_ms >= LOG_INTERVAL_MS
        if self._refusals and is_due:
            reasons = ", ".join(f"{name}: {count}" for name, count in self._refusals.items())
            about = {"topic": self.topic.name, "account": self.topic.account, "reason": reasons}
            log_.warning("messages not delivered to queues", extra=about)
            self._refusals.clear()
            self._logged_at_ms = now_ms

    async def _append_all(self, plan: Plan) -> None:
        slots = asyncio.Semaphore(APPENDS_MAX)
        copies, queues = plan.copies, plan.queues
        while copies:
            places, delivered, dead, bytes_out = list(copies), 0, 0, 0
            results = await asyncio.gather(
                *(self._append(queues[at[0]], at[1], copies[at], slots) for at in places),
                return_exceptions=True,
            )
            refused: list[tuple[Copy, Refusal]] = []
            for at, error in zip(places, results, strict=True):
                if error is None:
                    for copy in copies.pop(at):
                        if copy.is_dead:
                            dead += 1
                        else:
                            delivered += 1
                            bytes_out += message_bytes(copy.message.body, copy.message.attributes)
                elif isinstance(error, TopicNotFound | InvalidRequest):
                    is_missing = isinstance(error, TopicNotFound)
                    reason = Refusal.MISSING if is_missing else Refusal.INVALID
                    refused += ((copy, reason) for copy in copies.pop(at))
                elif not isinstance(error, PenstockError):
                    raise error
                else:
                    self._count(Outcome.RETRY, len(copies[at]))
                    about = {"topic": self.topic.name, "queue": queues[at[0]].name}
                    log_.warning("copy rejected by a queue", extra={**about, "reason": str(error)})
            self._count(Outcome.DELIVERED, delivered, bytes_out)
            self._count(Outcome.DEAD, dead)
            is_retry = bool(copies)
            for copy, reason in refused:
                if copy.is_dead:
                    self._count(Outcome.DROPPED)
                else:
                    self._give_up(plan, copy.source, copy.target, reason)
            if is_retry:
                await asyncio.sleep(RETRY_SECONDS)

    def _partition_of(self, queue: Topic, message: Message) -> int:
        if queue.is_fifo and message.group is not None:
            return partition_of_group(message.group, queue.partition_count)
        self._next_copy += 1
        return self._next_copy % queue.partition_count

    async def _append(
        self, queue: Topic, partition: int, copies: list[Copy], slots: asyncio.Semaphore
    ) -> None:
        sealer = self._setup.sealer
        messages = [copy.message for copy in copies]
        if sealer is not None and sealer.is_on(queue):
            messages = [sealer.sealed(queue, m) or await sealer.seal(queue, m) for m in messages]
        async with slots:
            await self._setup.anywhere.call(Append(queue, partition, tuple(messages)))


class FanOuts:
    """The fan-outs of a node: one task for each partition of an SNS topic that the node leads."""

    def __init__(self, setup: FanOutSetup, *, publish_wait_ms: int) -> None:
        self._setup = setup
        self._wait_s = publish_wait_ms / 1_000
        self._running: dict[tuple[str, int], tuple[FanOut, asyncio.Task[None]]] = {}
        setup.subscriptions.on_change(self._subscription_changed)

    def led(self, topic: Topic, partition: int, is_led: bool) -> None:
        """Start or stop copying, because this node now leads the partition or no longer does."""
        if topic.sns is None:
            return
        key = (topic.topic_id, partition)
        if not is_led:
            found = self._running.pop(key, None)
            if found is not None:
                found[1].cancel()
        elif key not in self._running:
            fan_out = FanOut(topic, partition, self._setup)
            task = asyncio.create_task(fan_out.run(), name=f"copy {topic.name}-{partition}")
            self._running[key] = (fan_out, task)

    def _subscription_changed(
        self, before: Subscription | None, after: Subscription | None
    ) -> None:
        one = after or before
        assert one is not None
        for (topic_id, _), (fan_out, _) in self._running.items():
            if topic_id == one.topic_id:
                fan_out.subscription_changed(before, after)

    async def copied(self, topic: Topic, partition: int, offset: int) -> None:
        self.led(topic, partition, is_led=True)
        fan_out, _ = self._running[topic.topic_id, partition]
        await fan_out.copied(offset, seconds_max=self._wait_s)

    async def stop(self) -> None:
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
