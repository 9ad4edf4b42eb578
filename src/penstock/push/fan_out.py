"""Copies the messages of one partition of an SNS topic to the subscribed queues.

All queues that keep up share one bookmark in the log of the partition. A round reads some messages
after the bookmark, appends the copies to all queues, waits for all of them and then moves the
bookmark. So a message to a thousand queues costs a thousand appends and one event, and each queue
gets the messages in the order of the partition. If the leader dies within a round, the next leader
repeats the round: a queue can get its messages twice, but none is lost.

A new subscription joins the next round. Subscribe calls the leaders (``LearnSubscription``) before
it replies, so no round misses a message that is published after the reply.

A queue that does not take its copies in time continues apart, with a bookmark of its own, until it
has caught up. A paused subscription stays apart until it is resumed.

A publisher waits until its message is below the common bookmark, at most ``publish_wait_ms``."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from heapq import heappop, heappush
from typing import Any, Final

from penstock.flow.backoff import queue_delay_ms
from penstock.model.calls import Ends, ListBookmarks, MoveBookmark
from penstock.model.errors import PenstockError
from penstock.model.subscription import Subscription, SubscriptionState
from penstock.model.topic import Topic
from penstock.push.copying import SQS, Copier, FanOutSetup, Round
from penstock.push.queue_copies import Target, dead_letter_arn
from penstock.wire.aws.sns.notification import unsubscribe_url

READER: Final = "sns"  # name of the common bookmark; those of queues apart add the subscription
APPEND_SECONDS_MAX: Final = 1.0  # then a queue continues apart
RETRY_SECONDS: Final = 0.5  # after a round that failed
REMOVED: Final = -1
ATTEMPTS_COUNTED: Final = 1_000  # more have the same delay

log_ = logging.getLogger(__name__)


class _Apart:
    """A subscription that does not take part in the common rounds."""

    def __init__(self, copier: Copier, wake: asyncio.Event) -> None:
        self.copier = copier
        self.wake = wake
        self.is_paused = False
        self.is_stored = False  # its bookmark is in the log
        self.task: asyncio.Task[None] | None = None


class FanOut:
    def __init__(self, topic: Topic, partition: int, setup: FanOutSetup) -> None:
        self.topic, self.partition = topic, partition
        self._setup = setup
        self._common = Copier(
            topic, partition, setup, reader=READER, append_seconds_max=APPEND_SECONDS_MAX
        )
        self._apart: dict[str, _Apart] = {}  # by subscription id
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # heap, by offset
        self._copied: Round | None = None  # a round that is not finished: bookmarks failed
        self._wake = asyncio.Event()
        self._is_started = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ── Subscriptions ────────────────────────────────────────────────────────────────────────

    def topic_changed(self, topic: Topic) -> None:
        self.topic = self._common.topic = topic
        for apart in self._apart.values():
            apart.copier.topic = topic

    def subscription_changed(self, before: Subscription | None, after: Subscription | None) -> None:
        if not self._is_started:
            return  # ``run`` reads all subscriptions when it knows the bookmarks
        if before is not None and (after is None or before.id != after.id or not _is_copied(after)):
            self._common.remove(before.id)
            self._end_apart(before.id)
        if after is None or not _is_copied(after):
            return
        is_new = before is None or before.id != after.id or not _is_copied(before)
        if is_new and self._target(after).start < self._common.reading_to:
            # It was confirmed before messages that were copied before this node learned of it.
            self._set_apart(self._target(after), self._target(after).start)
        else:
            self._put(after)
        self._wake.set()

    def _put(self, one: Subscription) -> None:
        target, apart = self._target(one), self._apart.get(one.id)
        if apart is not None:
            apart.copier.put(target)
            apart.is_paused = one.paused is not None
            apart.wake.set()
        elif one.paused is not None:
            self._common.remove(one.id)
            self._set_apart(target, max(self._common.position, target.start))
        else:
            self._common.put(target)

    def _target(self, one: Subscription) -> Target:
        starts = one.start_offsets
        return Target(
            one,
            one.attributes.get("RawMessageDelivery") == "true",
            starts[self.partition] if self.partition < len(starts) else 0,
            unsubscribe_url(one.base_url, one.arn),
            dead_letter_arn(one),
        )

    @property
    def position(self) -> int:
        """Return the offset up to which all queues that keep up have their copies."""
        return self._common.position

    # ── Publishers ───────────────────────────────────────────────────────────────────────────

    async def copied(self, offset: int, *, seconds_max: float) -> None:
        """Wait until the message at ``offset`` is in all queues, or until the time is over."""
        if offset < self._common.position or (self._is_started and not self._common.targets):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (offset, id(done), done))
        await asyncio.wait((done,), timeout=seconds_max)
        done.cancel()
        self._tell_waiting(self._common.position)

    def _tell_waiting(self, position: int) -> None:
        waiting = self._waiting
        while waiting and (waiting[0][0] < position or waiting[0][2].done()):
            _, _, done = heappop(waiting)
            if not done.done():
                done.set_result(None)

    # ── Common rounds ────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Copy messages until the task is cancelled."""
        remove: Callable[[], None] | None = None
        try:
            while True:
                self._wake.clear()
                try:
                    if remove is None:
                        remove = await self._start()
                    is_last = await self._round()
                except Exception as error:
                    self._log(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if is_last:
                    await self._wake.wait()
        finally:
            self._setup.metrics.out_of_step -= len(self._apart)
            self._apart.clear()
            for task in tuple(self._tasks):
                task.cancel()
            if remove is not None:
                remove()

    async def _start(self) -> Callable[[], None]:
        setup, topic, partition = self._setup, self.topic, self.partition
        known = dict(await setup.broker.call(ListBookmarks(topic, partition)))
        position = known.get(READER)
        if position is None:
            # There was none, or retention has deleted it together with the messages before it.
            position = (await setup.broker.call(Ends(topic, partition))).start_offset
        self._common.position = self._common.reading_to = position
        remove = setup.broker.on_advance(topic, partition, self._advanced)
        self._is_started = True
        for one in setup.subscriptions.of_topic(topic.topic_id):
            own = known.pop(_reader(one.id), None)
            if own is not None and _is_copied(one):
                self._set_apart(self._target(one), own).is_stored = True
            elif _is_copied(one):
                self._put(one)
        # Of subscriptions that were deleted. In a task, so that a failure does not repeat the rest.
        gone = [reader for reader in known if reader.startswith(_reader(""))]
        self._spawn(self._forget(*gone), "forget deleted subscriptions")
        return remove

    def _advanced(self) -> None:
        self._wake.set()
        for apart in self._apart.values():
            apart.wake.set()

    async def _round(self) -> bool:
        done = self._copied
        if done is None:
            done = self._copied = await self._common.copy_next()
            for subscription_id, copied in done.slow.items():
                target = self._common.remove(subscription_id)
                if target is not None:
                    self._set_apart(target, done.begin).copier.copied = copied
        for apart in tuple(self._apart.values()):
            await self._store(apart)  # before the common bookmark passes its messages
        self._common.advance(done)
        self._copied = None
        self._tell_waiting(done.end)
        await self._common.store(done)
        return done.is_last

    # ── Apart ────────────────────────────────────────────────────────────────────────────────

    def _set_apart(self, target: Target, position: int) -> _Apart:
        one = target.subscription
        copier = Copier(self.topic, self.partition, self._setup, reader=_reader(one.id))
        copier.position = copier.reading_to = position
        copier.put(target)
        apart = self._apart[one.id] = _Apart(copier, asyncio.Event())
        apart.is_paused = one.paused is not None
        self._setup.metrics.out_of_step += 1
        apart.task = self._spawn(self._catch_up(one.id, apart), f"copy apart {one.id}")
        return apart

    def _end_apart(self, subscription_id: str) -> None:
        apart = self._apart.pop(subscription_id, None)
        if apart is not None:
            self._setup.metrics.out_of_step -= 1
            if apart.task is not None:
                apart.task.cancel()
            self._spawn(self._forget(apart.copier.reader), f"forget {subscription_id}")

    async def _store(self, apart: _Apart) -> None:
        if not apart.is_stored:
            position, reader = apart.copier.position, apart.copier.reader
            call = MoveBookmark(self.topic, self.partition, reader, position, may_move_back=True)
            await self._setup.broker.call(call)
            apart.is_stored = True

    async def _forget(self, *readers: str) -> None:
        try:
            for reader in readers:
                call = MoveBookmark(self.topic, self.partition, reader, REMOVED)
                await self._setup.broker.call(call)
        except PenstockError as error:  # the next leader removes it
            self._log(error)

    async def _catch_up(self, subscription_id: str, apart: _Apart) -> None:
        """Copy messages to one queue until it has caught up with the common rounds."""
        attempt = 0
        while True:
            apart.wake.clear()
            if apart.is_paused:
                await apart.wake.wait()
                continue
            try:
                await self._store(apart)
                done: Round | None = await apart.copier.copy_next()
                assert done is not None
                if done.slow:
                    apart.copier.copied |= done.slow[subscription_id]
                    done = None
                else:
                    attempt = 0
                    apart.copier.advance(done)
                    await apart.copier.store(done)
            except Exception as error:
                self._log(error)
                done = None
            if done is None:
                attempt += 1
                delay_ms = queue_delay_ms(min(attempt, ATTEMPTS_COUNTED))
                await asyncio.sleep(max(RETRY_SECONDS, (delay_ms or 0) / 1_000))
            elif not apart.is_paused and apart.copier.position >= self._common.reading_to:
                self._join(subscription_id, apart)
                return
            elif done.is_last:
                await apart.wake.wait()

    def _join(self, subscription_id: str, apart: _Apart) -> None:
        """Let a queue take part in the common rounds, from the position that it has reached."""
        target = apart.copier.targets.get(subscription_id)
        apart.task = None  # it ends by itself
        self._end_apart(subscription_id)
        if target is not None:
            start = max(target.start, apart.copier.position)
            self._common.put(target.from_offset(start))
            self._wake.set()

    # ── Tasks ────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _log(self, error: Exception) -> None:
        is_known = isinstance(error, PenstockError)
        log_.log(
            logging.WARNING if is_known else logging.ERROR,
            "copying messages to queues failed",
            exc_info=None if is_known else error,
            extra={
                "topic": self.topic.name,
                "partition": self.partition,
                "reason": str(error),
            },
        )


def _is_copied(one: Subscription) -> bool:
    return one.protocol == SQS and one.state is SubscriptionState.CONFIRMED


def _reader(subscription_id: str) -> str:
    """Return the name of the bookmark of a queue apart."""
    return f"{READER}:{subscription_id}"


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

    def topic_changed(self, topic: Topic) -> None:
        for fan_out in self._of_topic(topic.topic_id):
            fan_out.topic_changed(topic)

    def _of_topic(self, topic_id: str) -> Iterator[FanOut]:
        topic = self._setup.catalog.find_id(topic_id)
        for partition in range(0 if topic is None else topic.partition_count):
            found = self._running.get((topic_id, partition))
            if found is not None:
                yield found[0]

    def _subscription_changed(
        self, before: Subscription | None, after: Subscription | None
    ) -> None:
        one = after or before
        assert one is not None
        for fan_out in self._of_topic(one.topic_id):
            fan_out.subscription_changed(before, after)

    async def copied(self, topic: Topic, partition: int, offset: int) -> None:
        found = self._running.get((topic.topic_id, partition))
        if found is not None:  # None: the leader has changed, or the topic was deleted
            await found[0].copied(offset, seconds_max=self._wait_s)

    async def stop(self) -> None:
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
