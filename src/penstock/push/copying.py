"""Copies messages of a partition of an SNS topic to queues, from the position of a bookmark on."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from penstock.model.calls import Append, BrokerPort, Ends, Fetch, MoveBookmark
from penstock.model.errors import InvalidRequest, PenstockError, QuotaExceeded, TopicNotFound
from penstock.model.limits import MIB
from penstock.model.message import Message, Record
from penstock.model.names import uuid_text
from penstock.model.ports import Catalog, Clock, Fetched, Subscriptions
from penstock.model.topic import Topic, partition_of_group
from penstock.net.slices import Slices, Turns, in_slices
from penstock.push.metrics import Outcome, PushMetrics
from penstock.push.published import Published, records_of
from penstock.push.queue_copies import Copy, Place, Plan, Refusal, Target, copy_of
from penstock.wire.aws.attributes import message_bytes
from penstock.wire.aws.sns.filter_match import PolicyIndex
from penstock.wire.aws.sns.filter_policy import Scope, compile_policy
from penstock.wire.aws.sns.notification import Signer
from penstock.wire.facts.deliveries import DeliveryRow

ROUND_BYTES: Final = 1 * MIB
ROUND_MESSAGES: Final = 64
APPENDS_MAX: Final = 256  # in progress at the same time
LOG_INTERVAL_MS: Final = 60_000  # between log lines about messages that cannot be delivered
SQS: Final = "sqs"

# Subscriptions whose queues have not taken all copies, each with the offsets that they have taken.
Slow = dict[str, set[int]]
_NONE_SLOW: Final[Slow] = {}

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
    anywhere: BrokerPort  # of all nodes, for the queues; checks the quotas of their owners
    catalog: Catalog
    subscriptions: Subscriptions
    clock: Clock
    entropy: Callable[[int], bytes]
    sealer: Sealer | None
    may_send: Callable[[Topic, Topic], bool]  # whether the topic may send to the queue
    signer_of: Callable[[Topic], Awaitable[Signer | None]]
    # Adds to the usage of the topic's owner: attempts, delivered messages, and their bytes.
    count: Callable[[Topic, int, int, int], None]
    note: Callable[[DeliveryRow], None]  # adds a row to ``__deliveries``
    metrics: PushMetrics = field(default_factory=PushMetrics)
    turns: Turns = field(default_factory=Turns)


class Round(NamedTuple):
    begin: int  # offset of the first message
    end: int  # the position after the round
    has_messages: bool = False
    slow: Slow = _NONE_SLOW
    is_last: bool = True  # no messages are left


class Copier:
    def __init__(
        self,
        topic: Topic,
        partition: int,
        setup: FanOutSetup,
        *,
        reader: str,  # name of the bookmark
        # A queue is late if no queue takes a copy for this time. None: as long as a call may take.
        append_seconds_max: float | None = None,
    ) -> None:
        self.topic, self.partition, self.reader = topic, partition, reader
        self._setup = setup
        self._append_seconds_max = append_seconds_max
        self.position = 0  # everything below has been copied
        self.reading_to = 0  # the position after the round in progress, as far as it is known
        # Offsets from the position on that the queue has, if it has only one target: a part of its
        # partitions has taken them. They are not copied again.
        self.copied: set[int] = set()
        self.targets: dict[str, Target] = {}  # by subscription id
        self._policies: PolicyIndex[str] = PolicyIndex()
        self._next_copy = 0  # partition of a standard queue to which the next round goes
        self._refusals: Counter[Refusal] = Counter()  # since the last log line about them
        self._logged_at_ms: int | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, target: Target) -> None:
        one = target.subscription
        self.remove(one.id)
        self.targets[one.id] = target
        text = one.attributes.get("FilterPolicy")
        scope = Scope(one.attributes.get("FilterPolicyScope", Scope.ATTRIBUTES.value))
        self._policies.add(one.id, compile_policy(text, scope=scope) if text else None)

    def remove(self, subscription_id: str) -> Target | None:
        target = self.targets.pop(subscription_id, None)
        if target is not None:
            self._policies.remove(subscription_id)
        return target

    # ── Rounds ───────────────────────────────────────────────────────────────────────────────

    async def copy_next(self) -> Round:
        """Copy the next messages. The caller calls ``advance`` and ``store`` before the next."""
        setup, topic, partition = self._setup, self.topic, self.partition
        ends = await setup.broker.call(Ends(topic, partition))
        end = ends.last_stable_offset
        begin = max(self.position, ends.start_offset)
        targets = tuple(self.targets.values())
        first = min((one.start for one in targets), default=end)
        lost = ends.start_offset - max(self.position, first)
        if lost > 0 and targets:
            setup.metrics.lost += lost
            about = {"topic": topic.name, "partition": partition, "count": lost}
            log_.error("retention removed messages before they were copied", extra=about)
            self.position = self.reading_to = ends.start_offset
            # In the log, so that the next leader does not count them again.
            move = MoveBookmark(topic, partition, self.reader, ends.start_offset)
            await setup.broker.call(move)
        if begin < first:
            begin = min(first, end)  # no subscription wants the messages before
        self.reading_to = max(begin, self.position)
        if begin >= end or not targets:
            return Round(begin, self.reading_to)
        fetched = await setup.broker.call(
            Fetch(topic, partition, begin, ROUND_BYTES, is_committed=True)
        )
        if setup.sealer is not None:
            fetched = await setup.sealer.opened_fetch(topic, partition, fetched)
        records, position = self._records(fetched, begin, min(end, fetched.next_offset))
        self.reading_to = position
        slow: Slow = {}
        if records:
            began_s = self._loop.time()
            slow = await self._copy(records)
            setup.metrics.fan_outs.observe(self._loop.time() - began_s)
        return Round(begin, position, bool(records), slow, position >= end)

    def advance(self, done: Round) -> None:
        self.position = self.reading_to = done.end
        self.copied.clear()

    async def store(self, done: Round) -> None:
        """Move the bookmark to the end of a round."""
        if done.has_messages:  # a bookmark is an event in this log too: it must not cause another
            await self._setup.broker.call(
                MoveBookmark(self.topic, self.partition, self.reader, done.end)
            )

    def _records(self, fetched: Fetched, begin: int, end: int) -> tuple[list[Record], int]:
        """Return the next records of a round, and the position after them."""
        records: list[Record] = []
        for record in records_of(fetched, self.topic, self.partition, begin=begin):
            if record.offset >= end:
                break
            records.append(record)
            if len(records) == ROUND_MESSAGES:
                return records, record.offset + 1
        return records, end

    async def _copy(self, records: Sequence[Record]) -> Slow:
        plan, slices = Plan(), Slices(self._setup.turns)
        slow: Slow = {}
        signer = None
        if not self.topic.is_fifo and not all(one.is_raw for one in self.targets.values()):
            signer = await self._setup.signer_of(self.topic)
        for record in records:
            if record.offset in self.copied:
                continue
            source = Published(record, self.topic, self.partition, signer)
            for key in await in_slices(self._policies.match_in_steps(source.prepared)):
                target = self.targets.get(key)  # the subscription may have ended meanwhile
                if target is None or record.offset < target.start or key in slow:
                    continue
                refusal = self._plan_copy(plan, target.subscription.endpoint, source, target)
                if refusal is not None:
                    self._give_up(plan, source, target, refusal)
                if plan.is_full:
                    await self._append_all(plan, slow)
                    plan = Plan()
                if slices.is_over:
                    await slices.next()
        await self._append_all(plan, slow)
        self._log_refusals()
        return slow

    def _plan_copy(
        self,
        plan: Plan,
        arn: str,
        source: Published,
        target: Target,
        refusal: Refusal | None = None,  # why the copy goes to the dead-letter queue
    ) -> Refusal | None:
        setup = self._setup
        queue = setup.catalog.find_arn(arn)
        if queue is None or not queue.is_queue or queue.is_share:
            return Refusal.MISSING
        if not setup.may_send(self.topic, queue):
            return Refusal.DENIED
        made = copy_of(
            source, target, queue, message_id=setup.entropy(16), is_dead=refusal is not None
        )
        if isinstance(made, Refusal):
            return made
        plan.add(queue, self._partition_of(queue, made), Copy(made, source, target, refusal))
        return None

    def _give_up(self, plan: Plan, source: Published, target: Target, refusal: Refusal) -> None:
        """Plan a copy for the dead-letter queue, or drop the message if no such queue takes it."""
        arn = target.dead_letter_arn
        self._setup.metrics.refused[refusal] += 1
        self._refusals[refusal] += 1
        if arn is None or self._plan_copy(plan, arn, source, target, refusal) is not None:
            self._lose(source, target, refusal)

    def _lose(self, source: Published, target: Target, refusal: Refusal) -> None:
        self._note(Outcome.DROPPED, source, target, refusal)
        self._count(Outcome.DROPPED)

    def _note(self, outcome: Outcome, source: Published, target: Target, reason: Refusal) -> None:
        """Add the row of a message that cannot be delivered. Other copies have no rows."""
        one, record = target.subscription, source.record
        self._setup.note(
            DeliveryRow(
                at_ms=self._setup.clock.wall_ms(),
                tenant=one.account,
                region=one.region,
                subscription=one.id,
                topic=self.topic.name,
                partition=self.partition,
                offset=record.offset,
                message_id=uuid_text(record.message.message_id),
                attempt=1,
                outcome=outcome,
                reason=reason,
            )
        )

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

    async def _append_all(self, plan: Plan, slow: Slow) -> None:
        """Append copies, and add the subscriptions whose queues have not taken them to ``slow``."""
        copies, queues = plan.copies, plan.queues
        appended: list[list[Copy]] = []
        while copies:  # once, and again for dead letters and after late queues
            delivered = dead = bytes_out = 0
            refused: list[tuple[Copy, Refusal]] = []
            for at, error in (await self._append_places(plan)).items():
                done = copies.pop(at)
                if error is None:
                    appended.append(done)
                    for copy in done:
                        if copy.refusal is not None:
                            dead += 1
                            self._note(Outcome.DEAD, copy.source, copy.target, copy.refusal)
                        else:
                            delivered += 1
                            bytes_out += message_bytes(copy.message.body, copy.message.attributes)
                elif _is_final(error):
                    is_missing = isinstance(error, TopicNotFound)
                    reason = Refusal.MISSING if is_missing else Refusal.INVALID
                    refused += ((copy, reason) for copy in done)
                else:
                    self._count(Outcome.RETRY, len(done))
                    slow.update((copy.target.subscription.id, set()) for copy in done)
                    about = {"topic": self.topic.name, "queue": queues[at[0]].name}
                    why = str(error) or f"no reply within {self._append_seconds_max} s"
                    log_.warning("copy rejected by a queue", extra={**about, "reason": why})
            self._count(Outcome.DELIVERED, delivered, bytes_out)
            self._count(Outcome.DEAD, dead)
            for copy, reason in refused:
                if copy.refusal is not None:
                    self._lose(copy.source, copy.target, copy.refusal)
                else:
                    self._give_up(plan, copy.source, copy.target, reason)
        for copy in (copy for done in appended for copy in done) if slow else ():
            if copy.target.subscription.id in slow:
                slow[copy.target.subscription.id].add(copy.source.record.offset)

    def _partition_of(self, queue: Topic, message: Message) -> int:
        if queue.is_fifo and message.group is not None:
            return partition_of_group(message.group, queue.partition_count)
        self._next_copy += 1
        return self._next_copy % queue.partition_count

    async def _append_places(self, plan: Plan) -> dict[Place, Exception | None]:
        """Append copies, and return the errors by place. Places without a result were not tried,
        because those before them were late."""
        results: dict[Place, Exception | None] = {}
        waiting, late, taken = iter(plan.copies.items()), TimeoutError(), 0

        async def append_next() -> None:
            nonlocal taken
            for at, copies in waiting:
                results[at] = late  # if the task is cancelled
                try:
                    await self._append(plan.queues[at[0]], at[1], copies)
                    results[at] = None
                except PenstockError as error:
                    results[at] = error
                taken += 1

        # Each of these tasks takes the next place. A semaphore would be slow: it looks at all
        # tasks that wait for it each time. So would a timeout for each append, and on a busy node
        # it would find all queues late. Late are queues that wait while none takes anything.
        async with asyncio.TaskGroup() as group:
            count = min(APPENDS_MAX, len(plan.copies))
            tasks = {group.create_task(append_next()) for _ in range(count)}
            while tasks:
                before = taken
                _, tasks = await asyncio.wait(tasks, timeout=self._append_seconds_max)
                if taken == before:
                    for task in tasks:
                        task.cancel()
        return results

    async def _append(self, queue: Topic, partition: int, copies: Sequence[Copy]) -> None:
        sealer = self._setup.sealer
        messages = [copy.message for copy in copies]
        if sealer is not None and sealer.is_on(queue):
            messages = [sealer.sealed(queue, m) or await sealer.seal(queue, m) for m in messages]
        await self._setup.anywhere.call(Append(queue, partition, tuple(messages)))


def _is_final(error: Exception) -> bool:
    """Return whether a queue will never take a copy. A quota is no such reason: the owner of the
    queue deletes messages, or gets a larger quota."""
    if isinstance(error, QuotaExceeded):
        return False
    return isinstance(error, TopicNotFound | InvalidRequest)
