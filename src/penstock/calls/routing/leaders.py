"""Sends a call to a node, and retries it.

A call that was not carried out is retried until the time is over: the node does not lead (and
usually knows which node does), the connection is closed, or the partition has no leader. A call
with an unknown outcome is retried only if it is idempotent; otherwise OutcomeUnknown is raised.

A call to another node uses the bulkhead of that node. An open circuit breaker counts as a closed
connection. The local broker has its own guard (``calls/guarded.py``).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from penstock.calls.bulkhead import Bulkhead, CalleeRefused, CalleeUnavailable
from penstock.calls.guarded import guarded
from penstock.model.call_times import (
    CLOSE_SECONDS_MAX,
    HINTS_MAX,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    RETRY_SECONDS_MAX,
)
from penstock.model.calls import BrokerCall, BrokerPort, R
from penstock.model.errors import Draining, NotLeader, PenstockError
from penstock.model.topic import Topic
from penstock.wire.internal.broker_calls import is_idempotent
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown, Unreachable

log = logging.getLogger(__name__)

C = TypeVar("C", bound=BrokerCall[Any])


class Routes(Protocol):
    """The leaders as far as this node knows. A share has the leaders of its source topic."""

    def leader(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """Return the node and the epoch; None if there is no leader, or it is not known."""
        ...

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        """Return the node of each partition that has a leader."""
        ...

    def nodes(self) -> Sequence[int]:
        """Return all nodes that are alive, this one included."""
        ...

    async def wait_changed(self, timeout_s: float) -> None:
        """Wait for the next change, or until the time is over. A change after the call of this
        method is not missed."""
        ...

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        """Note what another node reports of ``topic id/partition``, if its epoch is later."""
        ...


# The node and the epoch that lead each partition.
Led = Mapping[int, tuple[int, int] | None]


class AttemptFailed(Exception):
    """An attempt failed, and the call may be retried: not carried out, or idempotent."""

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
        retry_seconds_max: float = RETRY_SECONDS_MAX,
    ) -> None:
        self.local = local
        self.own_node = own_node
        self.routes = routes
        self.bulkhead = cache(bulkhead)  # each node has one, the same each time
        self._retry_seconds_max = retry_seconds_max
        self._remote = remote
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def broker(self, node: int) -> BrokerPort:
        """Return the broker of a node. Raises Unreachable."""
        return self.local if node == self.own_node else self._remote(node)

    def send(self, node: int, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        if node == self.own_node:
            return self.local.call(call)
        return guarded(self.bulkhead(node), self._remote(node), call)

    # ── Retries ──────────────────────────────────────────────────────────────────────────────

    async def retry(self, call: C, attempt: Callable[[C], Coroutine[Any, Any, R]]) -> R:
        """Return the reply of the first attempt that does not raise AttemptFailed. Raises the error
        of the last attempt when the time is over."""
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
        """Return the reply of the leader of a partition, as ``retry`` does. On the path of every
        message, so in one coroutine."""
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
        """Wait until a leader changes, or for a while that grows. Raises the last error when the
        time is over."""
        topic, tried, now = last.topic, last.tried, self._loop.time()
        if now >= until:
            raise last.error
        pause_s = min(PAUSE_SECONDS_MIN * 2.0 ** min(tries, 10), PAUSE_SECONDS_MAX)
        end = min(now + pause_s, until)
        if tries > HINTS_MAX:
            await asyncio.sleep(min(PAUSE_SECONDS_MIN, max(0.0, end - now)))
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
        """Return the exception for a call that may be retried; raise the error otherwise. To be
        called in the handler of the error."""
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

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
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
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS_MAX)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def place_of(topic: Topic, partition: int) -> str:
    return f"{topic.source_id or topic.topic_id}/{partition}"
