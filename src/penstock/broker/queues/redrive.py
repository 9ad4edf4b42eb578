"""Dead-letter queues, and move tasks (StartMessageMoveTask), which move messages from a dead-letter
queue back to their source queues or to another queue.

A dead letter is appended to the dead-letter queue, then acked in its source. After a crash in
between, it is moved again when its short internal lease has ended. The copy's deduplication id
names the original record, so any queue stores the copy only once within five minutes.

A move task leases a few messages, sends copies and acks the originals. Its state is in the metadata
store, so it continues after a restart, once the leases of unmoved messages have ended."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.broker.context.context import BackupHold
from penstock.broker.leases.leases import Leases
from penstock.cursor.leases.events import Pick
from penstock.cursor.leases.parts import dead_letter
from penstock.metadata.topics.catalog import UNFINISHED, MoveTasks
from penstock.model.calls import Ack, Append, BrokerPort, Extend, Lease
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.message import AckReason, Claim, Delivery, Message
from penstock.model.names import uuid_text
from penstock.model.ports import Catalog, LeaseRequest, MoveTask
from penstock.model.topic import Topic, partition_of_group

log_ = logging.getLogger(__name__)

# The number of deliveries after which a share without a dead-letter queue drops a record.
ATTEMPTS_CONFIG = "share.delivery.count.limit"


@dataclass
class Redriver:
    broker: BrokerPort
    catalog: Catalog
    hold: BackupHold

    def attempts_max(self, topic: Topic) -> int | None:
        """Return the number of attempts after which a message is dead-lettered. A redrive policy
        whose dead-letter queue does not exist is ignored, so that messages are not lost."""
        redrive = topic.settings.redrive
        if redrive is not None and self._target(topic) is not None:
            return redrive.attempts_max
        limit = topic.configs.get(ATTEMPTS_CONFIG)
        return None if limit is None else int(limit)

    def _target(self, topic: Topic) -> Topic | None:
        redrive = topic.settings.redrive
        target = None if redrive is None else self.catalog.find_arn(redrive.target_arn)
        return None if target is None or not topic.may_pass_messages_to(target) else target

    async def move(self, leases: Leases, picks: Sequence[Pick]) -> None:
        """Move records with no attempts left, and rejected records, to the dead-letter queue."""
        topic = leases.topic
        redrive = topic.settings.redrive
        target = self._target(topic)
        if target is not None:
            moved = await self._copy(leases, picks, target)
        elif redrive is None and topic.is_share:
            moved = list(picks)  # dropped without a dead-letter queue
        else:
            return  # delivered again when the short lease ends
        if moved:
            claims = [Claim(leases.index, pick.offset, pick.lease_seq) for pick in moved]
            await self.hold.crossing()
            await leases.ack(claims, reason=AckReason.DEAD)
            leases.count_dead(len(claims))

    async def _copy(self, leases: Leases, picks: Sequence[Pick], target: Topic) -> list[Pick]:
        topic = leases.topic
        moved: list[Pick] = []
        for pick in picks:
            record = pick.record or await leases.reader.read_late(pick.offset)
            if record is None:
                continue
            letter = dead_letter(
                record,
                attempts=pick.attempt,
                source_arn=topic.arn,
                origin=f"{topic.topic_id}:{leases.index}:{pick.offset}",
                is_fifo=target.is_fifo,
            )
            try:
                await self.broker.call(Append(target, _partition_for(letter, target), [letter]))
            except PenstockError as error:
                fields = {"topic": topic.name, "reason": str(error)}
                log_.warning("message not moved to its dead-letter queue", extra=fields)
                continue
            moved.append(pick)
        return moved


def _partition_for(message: Message, target: Topic) -> int:
    key = message.group or uuid_text(message.message_id)
    return partition_of_group(key, target.partition_count)


STEP_RECORDS = 10
LEASE_MS = 60_000  # enough for one step, but soon over after a failure
SAVE_EVERY_RECORDS = 500
STOP_SECONDS_MAX = 5.0

STOPPED = "STOPPED"  # by the node, not by a user: the task stays RUNNING in the store

QUEUE_GONE = "AWS.SimpleQueueService.NonExistentQueue"
SOURCE_UNKNOWN = "CouldNotDetermineMessageSource"


@dataclass(eq=False)
class Mover:
    broker: BrokerPort
    catalog: Catalog
    tasks: MoveTasks
    entropy: Callable[[int], bytes]
    hold: BackupHold
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    # Up to a few hundred messages ahead of the state in the store.
    _states: dict[str, MoveTask] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    _left: set[str] = field(default_factory=set)  # sources that another node leads now
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def resume(self) -> None:
        for task in self.tasks.unfinished():
            self._run(task)

    def resume_of(self, source_arn: str) -> None:
        self._left.discard(source_arn)
        for task in self.tasks.list(source_arn):
            if task.status in UNFINISHED and task.task_id not in self._running:
                self._run(task)

    def leave(self, source_arn: str) -> None:
        if any(task.source_arn == source_arn for task in self._states.values()):
            self._left.add(source_arn)

    async def start(self, task: MoveTask) -> None:
        await self.tasks.put(task)
        self._run(task)

    async def cancel(self, task_id: str) -> MoveTask | None:
        task = self._states.get(task_id)
        if task is not None:
            self._cancelled.add(task_id)
            task = self._states[task_id] = msgspec.structs.replace(task, status="CANCELLING")
        return task

    def of_source(self, source_arn: str) -> Sequence[MoveTask]:
        return [self._states.get(task.task_id, task) for task in self.tasks.list(source_arn)]

    async def stop(self) -> None:
        """Let running move tasks finish their current message. The next start resumes them."""
        self._stopping.set()
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=STOP_SECONDS_MAX)

    def _run(self, task: MoveTask) -> None:
        self._states[task.task_id] = task
        self._running[task.task_id] = asyncio.create_task(
            self._drive(task.task_id), name=f"move {task.task_id}"
        )

    async def _drive(self, task_id: str) -> None:
        try:
            status, reason = await self._move_all(task_id)
        except PenstockError as error:
            status, reason = "FAILED", str(error)
        finally:
            state = self._states[task_id]
            self._running.pop(task_id, None)
        if status == STOPPED:
            await self.tasks.put(state)
            if state.source_arn in self._left:
                self._states.pop(task_id, None)
                if not any(one.source_arn == state.source_arn for one in self._states.values()):
                    self._left.discard(state.source_arn)
            return
        ended = msgspec.structs.replace(state, status=status, failure_reason=reason)
        await self.tasks.put(ended)
        self._states.pop(task_id, None)
        self._cancelled.discard(task_id)

    async def _move_all(self, task_id: str) -> tuple[str, str | None]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        moved_before = self._states[task_id].moved
        while True:
            task = self._states[task_id]
            if task_id in self._cancelled:
                return "CANCELLED", None
            if self._stopping.is_set() or task.source_arn in self._left:
                return STOPPED, None
            source = self.catalog.find_arn(task.source_arn)
            if source is None:
                return "FAILED", QUEUE_GONE
            count = min(STEP_RECORDS, task.rate_per_s or STEP_RECORDS)
            deliveries = await self.broker.call(Lease(source, LeaseRequest(count, LEASE_MS)))
            if not deliveries:
                return "COMPLETED", None
            reason = await self._move_step(task_id, source, deliveries)
            if reason is not None:
                return "FAILED", reason
            await self._pace(task_id, loop.time() - started, moved_before)

    async def _move_step(
        self, task_id: str, source: Topic, deliveries: Sequence[Delivery]
    ) -> str | None:
        for position, delivery in enumerate(deliveries):
            if self._stopping.is_set():
                await self._release(source, deliveries[position:])
                return None
            task = self._states[task_id]
            target, reason = self._target(task, source, delivery.record.message)
            if target is not None:
                reason = await self._move_one(source, delivery, target)
            if reason:
                await self._release(source, deliveries[position:])
                return reason
            task = msgspec.structs.replace(self._states[task_id], moved=task.moved + 1)
            self._states[task_id] = task
            if task.moved % SAVE_EVERY_RECORDS == 0:
                await self.tasks.put(task)
        return None

    def _target(self, task: MoveTask, source: Topic, message: Message) -> tuple[Topic | None, str]:
        """Return the target queue of a message, or None and the reason why there is none."""
        arn = task.destination_arn or message.source_arn
        if arn is None:
            return None, SOURCE_UNKNOWN
        target = self.catalog.find_arn(arn)
        if task.destination_arn is None:
            redrive = None if target is None else target.settings.redrive
            if task.origin_arns is not None:
                is_origin = arn in task.origin_arns
            else:
                is_origin = redrive is not None and redrive.target_arn == source.arn
            if not is_origin:
                return None, SOURCE_UNKNOWN
        if target is None:
            return None, QUEUE_GONE
        if not source.may_pass_messages_to(target):
            return None, SOURCE_UNKNOWN
        return target, ""

    async def _move_one(self, source: Topic, delivery: Delivery, target: Topic) -> str:
        message = delivery.record.message
        moved = Message(
            message_id=self.entropy(16),
            body=message.body,
            attributes=message.attributes,
            group=message.group,
            # A repeated move stores it once.
            dedup_id=uuid_text(message.message_id) if target.is_fifo else None,
            sender=message.sender,
            trace_header=message.trace_header,
            is_sealed=message.is_sealed,
        )
        try:
            await self.broker.call(Append(target, _partition_for(message, target), [moved]))
        except TopicNotFound:
            return QUEUE_GONE
        await self.hold.crossing()
        await self.broker.call(Ack(source, delivery.partition, [delivery.claim]))
        return ""

    async def _release(self, source: Topic, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            await self.broker.call(Extend(source, delivery.partition, [(delivery.claim, 0)]))

    async def _pace(self, task_id: str, elapsed_s: float, moved_before: int) -> None:
        task = self._states[task_id]
        if task.rate_per_s is None:
            return
        due_s = (task.moved - moved_before) / task.rate_per_s
        if due_s > elapsed_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), due_s - elapsed_s)
