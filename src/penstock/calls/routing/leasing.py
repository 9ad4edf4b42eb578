"""Receives messages from a queue whose partitions have several leaders.

First the nodes are called one after the other, so that no more messages are leased than requested.
This node usually comes first (``NodeOrder``). If no node has a message and the caller waits, the
receive is parked at all nodes. The first reply with messages ends the wait, and the other calls are
cancelled. Messages that another node has leased by then are also returned if the request has room
for them; otherwise they are released in the background.

When leaders change, a parked receive moves to the new leaders. A node that fails is called again
after a pause.

The limit on in-flight messages applies to the sum over all nodes (``broker/partition/queue.py``). A
receive without a wait fails if one node reports this limit and no node has a message."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from penstock.calls.bulkhead import CalleeUnavailable
from penstock.calls.callees import guarded
from penstock.calls.routing.leaders import AttemptFailed, LeaderChanges, Leaders, place_of
from penstock.model import call_times, errors
from penstock.model.calls import BrokerCall, Calls, Lease, R, releases
from penstock.model.message import Delivery
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

EVERY_MIN: Final = 4
EVERY_MAX: Final = 32
SECONDS_MAX: Final = 1.0
# Ages that differ by less than this, or by less than a quarter, count as equal.
LONGER_MS: Final = 100
LONGER_SHARE: Final = 4
QUEUES_MAX: Final = 10_000  # queues in memory; with more, all are forgotten

# After these errors the next node is called.
_NODE_ERRORS = (
    errors.NotLeader,
    Unreachable,
    DeadlineExceeded,
    errors.Draining,
    CalleeUnavailable,
    errors.Throttled,
)

LeaseTask = asyncio.Task[Sequence[Delivery]]


class _Look(NamedTuple):
    deliveries: Sequence[Delivery] = ()
    has_reply: bool = False  # at least one node replied
    error: errors.PenstockError | None = None  # error of the last node that failed


class _Soon:
    def __init__(self, broker: Calls, node: int) -> None:
        self._broker = broker
        self._node = node

    async def call(self, call: BrokerCall[R]) -> R:
        try:
            async with asyncio.timeout(call_times.LOOK_SECONDS_MAX):
                return await self._broker.call(call)
        except TimeoutError:
            raise DeadlineExceeded(
                f"Node {self._node} did not reply within {call_times.LOOK_SECONDS_MAX} s."
            ) from None


class Leasing:
    def __init__(self, leaders: Leaders, changes: LeaderChanges) -> None:
        self.leaders = leaders
        self.changes = changes
        self.routes = leaders.routes
        self._own = leaders.own_node
        self._loop = asyncio.get_running_loop()
        self._order = NodeOrder(leaders.own_node)
        self._parked: set[_Parked] = set()
        self._cancelled: set[LeaseTask] = set()
        self.is_draining = False

    async def lease(self, call: Lease) -> Sequence[Delivery]:
        topic, wait_ms = call.topic, call.wait_ms
        # A receive that is parked at a single partition gets NotLeader when the leader changes.
        if (wait_ms <= 0 or topic.partition_count == 1) and self._nodes(topic) == [self._own]:
            try:
                return await self.leaders.local.call(call)
            except errors.NotLeader as error:
                self.leaders.note(error)
        wait_until = self._loop.time() + wait_ms / 1_000

        async def attempt(call: Lease) -> Sequence[Delivery]:
            return await self._attempt(topic, call.request, wait_until)

        return await self.leaders.retry(call, attempt)

    def _nodes(self, topic: Topic) -> Sequence[int]:
        if topic.partition_count == 1:
            led = self.routes.leader(topic, 0)
            return [] if led is None else [led[0]]
        return sorted(set(self.routes.leaders(topic).values()))

    async def _attempt(
        self, topic: Topic, request: LeaseRequest, wait_until: float
    ) -> Sequence[Delivery]:
        nodes = self._nodes(topic)
        look = await self._look(topic, request, nodes)
        if look.deliveries:
            return look.deliveries
        if self._loop.time() < wait_until and not self.is_draining:
            look = await self._park(topic, request, wait_until, look)
            if look.deliveries:
                return look.deliveries
        elif isinstance(look.error, errors.InFlightLimit) and request.wait_ms <= 0:
            raise look.error
        if look.has_reply or self.is_draining or look.error is None:
            return ()
        if isinstance(look.error, errors.Throttled):
            raise look.error
        is_same = self._nodes(topic) == nodes
        tried = self.leaders.led(topic, range(topic.partition_count)) if is_same else {}
        raise AttemptFailed(look.error, topic, tried)

    # ── Without waiting ──────────────────────────────────────────────────────────────────────

    async def _look(self, topic: Topic, request: LeaseRequest, led_by: Sequence[int]) -> _Look:
        """Lease from one node after the other, without waiting, until there are enough messages."""
        nodes = self._order.order(topic.topic_id, led_by, now_s=self._loop.time())
        if not nodes:
            return _Look(error=errors.NotLeader(place_of(topic, 0)))
        deliveries: list[Delivery] = []
        has_reply = False
        error: errors.PenstockError | None = None
        try:
            for node in nodes:
                wanted = msgspec.structs.replace(
                    request, count=request.count - len(deliveries), wait_ms=0
                )
                try:
                    if node == self._own:
                        found = await self.leaders.local.call(Lease(topic, wanted))
                        self._order.found_here(topic.topic_id, found)
                    else:
                        call = Lease(topic, wanted)
                        found = await self._ask(node, call, is_one_of=len(nodes) > 1)
                        if node == nodes[0]:
                            self._order.found_elsewhere(topic.topic_id, found)
                    has_reply = True
                    deliveries += found
                except errors.InFlightLimit as full:
                    if topic.is_fifo:
                        has_reply = True
                    else:
                        error = full
                except _NODE_ERRORS as failed:
                    if isinstance(failed, errors.NotLeader):
                        self.leaders.note(failed)
                    if not isinstance(error, errors.InFlightLimit):
                        error = failed
                if len(deliveries) >= request.count:
                    break
        except errors.PenstockError:
            if not deliveries:
                raise
        except asyncio.CancelledError:
            self.give_back(topic, deliveries)
            raise
        return _Look(deliveries, has_reply, error)

    async def _ask(self, node: int, call: Lease, *, is_one_of: bool) -> Sequence[Delivery]:
        if not is_one_of:
            return await self.leaders.send(node, call)
        soon = _Soon(self.leaders.broker(node), node)
        return await guarded(self.leaders.bulkhead(node), soon, call)

    # ── Parking ──────────────────────────────────────────────────────────────────────────────

    async def _park(self, topic: Topic, request: LeaseRequest, until: float, look: _Look) -> _Look:
        parked = _Parked(self, topic, request, until)
        self._parked.add(parked)
        try:
            deliveries = await parked.run()
        finally:
            self._parked.discard(parked)
        has_reply = look.has_reply or parked.has_reply
        return _Look(deliveries, has_reply, parked.error or look.error)

    def end_waits(self) -> None:
        self.is_draining = True
        for parked in self._parked:
            parked.wake()

    # ── Releasing ────────────────────────────────────────────────────────────────────────────

    def cancel(self, topic: Topic, task: LeaseTask) -> None:
        self._cancelled.add(task)
        task.add_done_callback(partial(self._ended, topic))
        task.cancel()

    def _ended(self, topic: Topic, task: LeaseTask) -> None:
        self._cancelled.discard(task)
        if not task.cancelled() and task.exception() is None:
            self.give_back(topic, task.result())

    def give_back(self, topic: Topic, deliveries: Sequence[Delivery]) -> None:
        for call in releases(topic, [each.claim for each in deliveries]):
            work = self.leaders.at_leader(call.topic, call.partition, call)
            self.leaders.spawn(work, "give back")

    async def close(self) -> None:
        self.end_waits()
        if self._cancelled:
            await asyncio.wait(tuple(self._cancelled))


class _Parked:
    def __init__(self, leasing: Leasing, topic: Topic, request: LeaseRequest, until: float) -> None:
        self.has_reply = False
        self.error: errors.PenstockError | None = None
        self._leasing = leasing
        self._leaders = leasing.leaders
        self._topic = topic
        self._request = request
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        self._tasks: dict[int, LeaseTask] = {}  # by node
        self._retry_at: dict[int, float] = {}
        self._pauses: dict[int, float] = {}

    def wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def run(self) -> Sequence[Delivery]:
        unwatch = self._leasing.changes.watch(self._topic, self.wake)
        try:
            while True:
                left = self._until - self._loop.time()
                is_late = left * 1_000 <= call_times.LAST_MS
                if not is_late:
                    self._spread(left)
                if self._leasing.is_draining or (is_late and not self._tasks):
                    return ()
                timeout = self._seconds_to_next(left)
                if timeout <= 0:
                    return ()
                waited: list[asyncio.Future[Any]] = [self._woken, *self._tasks.values()]
                await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if self._woken.done():
                    self._woken = self._loop.create_future()
                deliveries = self._collect()
                if deliveries:
                    return deliveries
        finally:
            unwatch()
            for task in self._tasks.values():
                self._leasing.cancel(self._topic, task)

    def _spread(self, left_s: float) -> None:
        """Park the receive at all current leaders, and cancel it at nodes that no longer lead."""
        now = self._loop.time()
        nodes = set(self._leasing.routes.leaders(self._topic).values())
        for node in [node for node in self._tasks if node not in nodes]:
            self._leasing.cancel(self._topic, self._tasks.pop(node))
        for node in nodes:
            if node not in self._tasks and self._retry_at.get(node, 0.0) <= now:
                self._tasks[node] = asyncio.create_task(
                    self._wait_at(node, int(left_s * 1_000)), name=f"lease at node {node}"
                )

    async def _wait_at(self, node: int, wait_ms: int) -> Sequence[Delivery]:
        request = msgspec.structs.replace(self._request, wait_ms=wait_ms)
        return await self._leaders.send(node, Lease(self._topic, request))

    def _seconds_to_next(self, left_s: float) -> float:
        last = left_s + call_times.REPLY_SECONDS
        due = [at for node, at in self._retry_at.items() if node not in self._tasks]
        if not due or left_s <= 0:
            return last
        return min(last, max(0.001, min(due) - self._loop.time()))

    def _collect(self) -> Sequence[Delivery]:
        deliveries: list[Delivery] = []
        raised: BaseException | None = None
        for node, task in [item for item in self._tasks.items() if item[1].done()]:
            del self._tasks[node]
            error: BaseException | None = errors.Draining(f"The call to node {node} was cancelled.")
            if not task.cancelled():
                error = task.exception()
            if error is None:
                self._take(node, task.result(), deliveries)
            elif isinstance(error, errors.TopicNotFound) or not isinstance(
                error, errors.PenstockError
            ):
                raised = error
            else:
                self._note(node, error)
        if raised is not None and not deliveries:
            raise raised
        return deliveries

    def _take(self, node: int, taken: Sequence[Delivery], deliveries: list[Delivery]) -> None:
        self.has_reply = True
        self._pauses.pop(node, None)
        self._retry_at[node] = self._loop.time() + call_times.LEASE_PAUSE_SECONDS_MIN
        if len(deliveries) + len(taken) <= self._request.count:
            deliveries += taken
        else:
            self._leasing.give_back(self._topic, taken)

    def _note(self, node: int, error: errors.PenstockError) -> None:
        self.error = error
        if isinstance(error, errors.NotLeader):
            self._leaders.note(error)
        pause = self._pauses.get(node, call_times.LEASE_PAUSE_SECONDS_MIN)
        self._pauses[node] = min(2 * pause, call_times.LEASE_PAUSE_SECONDS_MAX)
        self._retry_at[node] = self._loop.time() + pause


# ── The order of the nodes ───────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Queue:
    since: float
    begin: int = 0  # index of the first node among the other nodes
    every: int = EVERY_MIN
    stayed: int = 0  # how often this node came first since another node did
    here_ms: int = 0  # age of the messages last found on this node; 0: none were found


class NodeOrder:
    """The order in which the leaders of a queue are asked for messages. This node usually comes
    first, because that needs no network call. Another node comes first every fourth time. If its
    messages have not waited longer than those here, this interval is doubled, up to every
    thirty-second time, but another node comes first at least once a second."""

    def __init__(self, own_node: int) -> None:
        self._own = own_node
        self._queues: dict[str, _Queue] = {}

    def order(self, topic_id: str, nodes: Sequence[int], *, now_s: float) -> Sequence[int]:
        if len(nodes) < 2:
            return nodes
        queue = self._queues.get(topic_id)
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            queue = self._queues[topic_id] = _Queue(now_s)
        others = [node for node in nodes if node != self._own]
        begin = queue.begin % len(others)
        others = others[begin:] + others[:begin]
        if len(others) == len(nodes):
            queue.begin += 1
            return others
        queue.stayed += 1
        if queue.stayed < queue.every and now_s - queue.since < SECONDS_MAX:
            return [self._own, *others]
        queue.stayed, queue.since = 0, now_s
        queue.begin += 1
        return [*others, self._own]

    def found_here(self, topic_id: str, deliveries: Sequence[Delivery]) -> None:
        queue = self._queues.get(topic_id)
        if queue is not None:
            queue.here_ms = _age_ms(deliveries)

    def found_elsewhere(self, topic_id: str, deliveries: Sequence[Delivery]) -> None:
        queue = self._queues.get(topic_id)
        if queue is not None:
            longer_ms = max(LONGER_MS, queue.here_ms // LONGER_SHARE)
            is_older = _age_ms(deliveries) > queue.here_ms + longer_ms
            queue.every = EVERY_MIN if is_older else min(2 * queue.every, EVERY_MAX)


def _age_ms(deliveries: Sequence[Delivery]) -> int:
    if not deliveries:
        return 0
    return deliveries[0].first_leased_at_ms - deliveries[0].record.appended_at_ms
