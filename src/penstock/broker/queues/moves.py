"""Move tasks: move the messages of a dead-letter queue back to their source, or to another queue.

A task leases, sends a new message, and acks, a few at a time and at most at the requested rate. Its
state is in the metadata store: it continues after a restart, and messages that were leased but not
moved are available again when their leases end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from penstock.broker.context.backup_hold import BackupHold
from penstock.metadata.topics.catalog import UNFINISHED, MoveTasks
from penstock.model.calls import Ack, Append, BrokerPort, Extend, Lease
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.message import Delivery, Message
from penstock.model.names import uuid_text
from penstock.model.ports import Catalog, LeaseRequest, MoveTask
from penstock.model.topic import Topic, partition_of_group

log_ = logging.getLogger(__name__)

STEP_RECORDS = 10
LEASE_MS = 60_000  # long enough to move one step, short enough not to hide a failed one
SAVE_EVERY_RECORDS = 500
STOP_SECONDS_MAX = 5.0

STOPPED = "STOPPED"  # by the node, not by a user: it stays RUNNING in the store

QUEUE_GONE = "AWS.SimpleQueueService.NonExistentQueue"
SOURCE_UNKNOWN = "CouldNotDetermineMessageSource"


class Mover:
    def __init__(
        self,
        broker: BrokerPort,
        catalog: Catalog,
        tasks: MoveTasks,
        *,
        entropy: Callable[[int], bytes],
        hold: BackupHold,
    ) -> None:
        self.broker = broker
        self._hold = hold
        self._catalog = catalog
        self._tasks = tasks
        self._entropy = entropy
        self._running: dict[str, asyncio.Task[None]] = {}
        self._states: dict[str, MoveTask] = {}  # ahead of the store by a few hundred messages
        self._cancelled: set[str] = set()
        self._left: set[str] = set()  # sources of tasks here that another node leads now
        self._stopping = asyncio.Event()

    def resume(self) -> None:
        """Continue tasks that an earlier process left unfinished."""
        for task in self._tasks.unfinished():
            self._run(task)

    def resume_of(self, source_arn: str) -> None:
        """Continue tasks of a source that this node leads now."""
        self._left.discard(source_arn)
        for task in self._tasks.list(source_arn):
            if task.status in UNFINISHED and task.task_id not in self._running:
                self._run(task)

    def leave(self, source_arn: str) -> None:
        """Stop tasks of a source: another node continues them."""
        if any(task.source_arn == source_arn for task in self._states.values()):
            self._left.add(source_arn)

    async def start(self, task: MoveTask) -> None:
        await self._tasks.put(task)
        self._run(task)

    async def cancel(self, task_id: str) -> MoveTask | None:
        task = self._states.get(task_id)
        if task is None:
            return None
        self._cancelled.add(task_id)
        self._states[task_id] = msgspec.structs.replace(task, status="CANCELLING")
        return self._states[task_id]

    def of_source(self, source_arn: str) -> Sequence[MoveTask]:
        return [self._states.get(task.task_id, task) for task in self._tasks.list(source_arn)]

    async def stop(self) -> None:
        """Let running tasks finish their present message; the next start resumes them."""
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
            await self._tasks.put(state)
            if state.source_arn in self._left:
                self._states.pop(task_id, None)
                if not any(one.source_arn == state.source_arn for one in self._states.values()):
                    self._left.discard(state.source_arn)
            return
        ended = msgspec.structs.replace(state, status=status, failure_reason=reason)
        await self._tasks.put(ended)
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
            source = self._catalog.find_arn(task.source_arn)
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
            moved = task.moved + 1
            self._states[task_id] = task = msgspec.structs.replace(
                self._states[task_id], moved=moved
            )
            if moved % SAVE_EVERY_RECORDS == 0:
                await self._tasks.put(task)
        return None

    def _target(self, task: MoveTask, source: Topic, message: Message) -> tuple[Topic | None, str]:
        """Return the queue to move a message to; or None and the reason. Only queues that the
        task's creator was authorized for count, whatever source the message names."""
        arn = task.destination_arn or message.source_arn
        if arn is None:
            return None, SOURCE_UNKNOWN
        target = self._catalog.find_arn(arn)
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
            message_id=self._entropy(16),
            body=message.body,
            attributes=message.attributes,
            group=message.group,
            # Deduplicated, so that a repeated move stores it once.
            dedup_id=uuid_text(message.message_id) if target.is_fifo else None,
            sender=message.sender,
            trace_header=message.trace_header,
            is_sealed=message.is_sealed,
        )
        key = message.group or uuid_text(message.message_id)
        partition = partition_of_group(key, target.partition_count)
        try:
            await self.broker.call(Append(target, partition, [moved]))
        except TopicNotFound:
            return QUEUE_GONE
        await self._hold.crossing()
        await self.broker.call(Ack(source, delivery.partition, [delivery.claim]))
        return ""

    async def _release(self, source: Topic, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            await self.broker.call(Extend(source, delivery.partition, [(delivery.claim, 0)]))

    async def _pace(self, task_id: str, elapsed_s: float, moved_before: int) -> None:
        """Wait until the rate allows the next step."""
        task = self._states[task_id]
        if task.rate_per_s is None:
            return
        due_s = (task.moved - moved_before) / task.rate_per_s
        if due_s > elapsed_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), due_s - elapsed_s)
