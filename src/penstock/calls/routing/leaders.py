"""Sends calls to the leaders of partitions, and retries them.

A call that was certainly not carried out (the node did not lead the partition, the connection was
closed, or the partition had no leader) is retried until a time limit. A call with an unknown
outcome is retried only if it is idempotent; otherwise it raises OutcomeUnknown.

A call to another node uses the bulkhead of that node. An open circuit breaker counts as a closed
connection. The local broker has its own bulkhead (``calls/callees.py``).

``LeaderChanges`` calls listeners when the leaders of a topic change, ``FollowingListener`` moves a
listener to each new leader of a partition. One task waits for changes for all listeners. It checks
a topic at most a hundred times a second: when a node dies, thousands of leaders change."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from penstock.calls.bulkhead import Bulkhead, CalleeRefused, CalleeUnavailable
from penstock.calls.callees import guarded
from penstock.model import call_times
from penstock.model.calls import BrokerCall, BrokerPort, R
from penstock.model.errors import Draining, NotLeader, PenstockError
from penstock.model.topic import Topic
from penstock.wire.internal.broker_calls import is_idempotent
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown, Unreachable

log = logging.getLogger(__name__)

LOOK_SECONDS_MIN: Final = 0.01
WAIT_SECONDS: Final = 60.0  # then the task checks again, in case it missed a change

Listener = Callable[[], None]
Remove = Callable[[], None]
_Seen = Sequence[tuple[int, int] | None]

C = TypeVar("C", bound=BrokerCall[Any])


class Routes(Protocol):
    """The leaders that this node knows. A share has the leaders of the topic that it reads."""

    def leader(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """Return the node id and the epoch of the leader, or None if no leader is known."""

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        """Return the node id of the leader for each partition that has a leader."""

    def nodes(self) -> Sequence[int]: ...

    async def wait_changed(self, timeout_s: float) -> None:
        """Wait until any leader changes after this call, or until the timeout."""

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        """Remember the leader of ``place`` (topic id/partition) unless a later epoch is known."""


# The leader's node and epoch, by partition.
Led = Mapping[int, tuple[int, int] | None]


class AttemptFailed(Exception):
    """A call failed and may be retried, because it was not carried out or is idempotent."""

    def __init__(self, error: PenstockError, topic: Topic, tried: Led) -> None:
        super().__init__(str(error))
        self.error = error
        self.topic = topic
        self.tried = tried  # the known leaders before the attempt; empty: retry at once


class Leaders:
    def __init__(
        self,
        local: BrokerPort,
        *,
        own_node: int,
        routes: Routes,
        remote: Callable[[int], BrokerPort],
        bulkhead: Callable[[int], Bulkhead],
        retry_seconds_max: float = call_times.RETRY_SECONDS_MAX,
    ) -> None:
        self.local = local
        self.own_node = own_node
        self.routes = routes
        self.bulkhead = cache(bulkhead)
        self._retry_seconds_max = retry_seconds_max
        self._remote = remote
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def broker(self, node: int) -> BrokerPort:
        return self.local if node == self.own_node else self._remote(node)

    def send(self, node: int, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        if node == self.own_node:
            return self.local.call(call)
        return guarded(self.bulkhead(node), self._remote(node), call)

    # ── Retries ──────────────────────────────────────────────────────────────────────────────

    async def retry(self, call: C, attempt: Callable[[C], Coroutine[Any, Any, R]]) -> R:
        until = self._loop.time() + self._retry_seconds_max
        tries = 0
        while True:
            try:
                return await attempt(call)
            except AttemptFailed as failed:
                last = failed
            tries += 1
            await self._pause(last, tries, until)

    async def at_leader(self, topic: Topic, partition: int, call: BrokerCall[R]) -> R:
        """Send a call to the leader of a partition, and retry it until a time limit."""
        until = self._loop.time() + self._retry_seconds_max
        tries = 0
        while True:
            led = self.routes.leader(topic, partition)
            try:
                if led is None:
                    raise NotLeader(place_of(topic, partition))
                if led[0] == self.own_node:
                    return await self.local.call(call)
                return await guarded(self.bulkhead(led[0]), self._remote(led[0]), call)
            except PenstockError as error:
                node = -1 if led is None else led[0]
                last = self.failed(error, node, call, topic, {partition: led})
            tries += 1
            await self._pause(last, tries, until)

    async def _pause(self, last: AttemptFailed, tries: int, until: float) -> None:
        topic, tried, now = last.topic, last.tried, self._loop.time()
        if now >= until:
            raise last.error
        pause_s = min(
            call_times.PAUSE_SECONDS_MIN * 2.0 ** min(tries, 10), call_times.PAUSE_SECONDS_MAX
        )
        end = min(now + pause_s, until)
        if tries > call_times.HINTS_MAX:
            await asyncio.sleep(min(call_times.PAUSE_SECONDS_MIN, max(0.0, end - now)))
        while tried and (left := end - self._loop.time()) > 0:
            if self.led(topic, tried) != tried:
                return
            await self.routes.wait_changed(left)

    def led(self, topic: Topic, partitions: Iterable[int]) -> Led:
        leader = self.routes.leader
        return {partition: leader(topic, partition) for partition in partitions}

    def failed(
        self, error: PenstockError, node: int, call: BrokerCall[R], topic: Topic, tried: Led
    ) -> AttemptFailed:
        """Return an AttemptFailed if the call may be retried. Otherwise raise the error."""
        if isinstance(error, NotLeader):
            self.note(error)
        elif isinstance(error, CalleeRefused) and node != self.own_node:
            error = Unreachable(str(error))
        elif isinstance(error, OutcomeUnknown | DeadlineExceeded | CalleeUnavailable):
            if isinstance(error, CalleeUnavailable) and node == self.own_node:
                raise error
            if not is_idempotent(call):
                raise OutcomeUnknown(
                    f"Outcome unknown: retry only if the request is idempotent. {error}"
                ) from error
        elif not isinstance(error, Unreachable | Draining):
            raise error
        return AttemptFailed(error, topic, tried)

    def note(self, error: NotLeader) -> None:
        if error.leader >= 0:
            self.routes.note_leader(error.place, error.leader, error.epoch)

    # ── In the background ────────────────────────────────────────────────────────────────────

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> None:
        async def run() -> None:
            try:
                await work
            except PenstockError as error:
                log.info("background call failed", extra={"work": name, "reason": str(error)})

        task = asyncio.create_task(run(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=call_times.CLOSE_SECONDS_MAX)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def place_of(topic: Topic, partition: int) -> str:
    return f"{topic.source_id or topic.topic_id}/{partition}"


# ── Listeners ────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Watched:
    topic: Topic
    seen: _Seen
    listeners: dict[object, Listener] = field(default_factory=dict)


class LeaderChanges:
    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._topics: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, topic: Topic, listener: Listener) -> Remove:
        """Call ``listener`` when a leader changes. Return a function that removes the listener."""
        watched = self._topics.get(topic.topic_id)
        if watched is None:
            watched = self._topics[topic.topic_id] = _Watched(topic, self._look(topic))
        elif topic.modified_at_ms > watched.topic.modified_at_ms:
            watched.topic = topic  # it may have more partitions
        token = object()
        watched.listeners[token] = listener
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="changes of leaders")
        return lambda: self._remove(topic.topic_id, token)

    def _remove(self, topic_id: str, token: object) -> None:
        watched = self._topics.get(topic_id)
        if watched is not None:
            watched.listeners.pop(token, None)
            if not watched.listeners:
                del self._topics[topic_id]

    def _look(self, topic: Topic) -> _Seen:
        leader = self._routes.leader
        return [leader(topic, partition) for partition in range(topic.partition_count)]

    async def _run(self) -> None:
        while True:
            for watched in tuple(self._topics.values()):
                seen = self._look(watched.topic)
                if seen != watched.seen:
                    watched.seen = seen
                    for listener in tuple(watched.listeners.values()):
                        listener()
            # There is no await between ``_look`` and this wait, so no change is missed.
            await self._routes.wait_changed(WAIT_SECONDS)
            await asyncio.sleep(LOOK_SECONDS_MIN)  # several changes often come together

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


class FollowingListener:
    """A listener that is always registered at the current leader of a partition. It is also called
    when the leader changes, because a caller that waits must find the new leader. If the new leader
    has not opened the partition yet, registering is retried after a short pause."""

    def __init__(
        self,
        leaders: Leaders,
        changes: LeaderChanges,
        topic: Topic,
        partition: int,
        listener: Listener,
        add: Callable[[BrokerPort], Callable[[Topic, int, Listener], Remove]],
    ) -> None:
        self._leaders = leaders
        self._topic = topic
        self._partition = partition
        self._listener = listener
        self._add = add
        self._led: tuple[int, int] | None = None
        self._end: Remove | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._attach()
        self._unwatch = changes.watch(topic, self._check)

    def _attach(self) -> None:
        self._led = led = self._leaders.routes.leader(self._topic, self._partition)
        if led is not None:
            add = self._add(self._leaders.broker(led[0]))
            self._end = add(self._topic, self._partition, self._listener)

    def _check(self) -> None:
        if self._leaders.routes.leader(self._topic, self._partition) != self._led:
            self._move()

    def _move(self) -> None:
        self._detach()
        try:
            self._attach()
        except PenstockError:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(call_times.FOLLOW_PAUSE_SECONDS, self._move)
        self._listener()

    def _detach(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def end(self) -> None:
        self._unwatch()
        self._detach()
