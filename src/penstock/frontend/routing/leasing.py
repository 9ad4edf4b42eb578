"""Receiving from a queue whose partitions are led by several nodes.

First the nodes are asked in turn, one after the other, for what they have: so that nobody takes
more than was wanted. This node comes first as a rule (``turns.py``). Only when nobody has anything,
and the caller waits, it is parked at all of them at once. Whoever answers first serves it; the
others are called off. What one of them had taken by then is handed out too if there is room for it,
and else given back, by a task that nobody waits for.

A parked lease follows the leaders: it is parked at a node that has become one, and no longer at one
that has ceased to be. Nodes that fail or send it away are tried again after a pause, for as long as
the caller waits.

The limit on leased records is kept by the nodes, who ask each other about a queue that comes close
to it (``broker/queue.py``). A queue is full when one of them says so and none has anything.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.frontend.bulkhead import CalleeUnavailable
from penstock.frontend.routing.changes import Changes
from penstock.frontend.routing.leaders import HINTS_MAX, BrokerCalls, Leaders, place_of
from penstock.frontend.routing.turns import Turns
from penstock.model.errors import (
    Draining,
    InFlightLimit,
    NotLeader,
    PenstockError,
    Throttled,
    TopicNotFound,
)
from penstock.model.message import Claim, Delivery
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

LOOK_SECONDS_MAX: Final = 1.0  # for one of several nodes to say what it has; then on to the next
LAST_MS: Final = 20  # with so little time left it is not worth parking again
ANSWER_SECONDS: Final = 0.5  # for nodes to say that the time is over, before they are called off
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0

# Of one node, and no reason not to ask the others.
_AWAY = (NotLeader, Unreachable, DeadlineExceeded, Draining, CalleeUnavailable, Throttled)

LeaseTask = asyncio.Task[Sequence[Delivery]]


class _Look(NamedTuple):
    deliveries: Sequence[Delivery] = ()
    is_answered: bool = False  # by one of the nodes at least
    error: PenstockError | None = None  # of the last that was not asked in vain


class Leasing:
    def __init__(self, leaders: Leaders, changes: Changes) -> None:
        self.leaders = leaders
        self.changes = changes
        self.routes = leaders.routes
        self._own = leaders.own_node
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(leaders.own_node)
        self._parked: set[_Parked] = set()
        self._let_go: set[LeaseTask] = set()
        self._is_draining = False

    async def lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        nodes = self._nodes(topic)
        # One that is parked here on a single partition is sent away when that moves.
        if (request.wait_ms <= 0 or topic.partition_count == 1) and nodes == [self._own]:
            try:
                return await self.leaders.local.lease(topic, request)
            except NotLeader as error:
                self.leaders.note(error)
                nodes = self._nodes(topic)
        return await self._lease_anywhere(topic, request, nodes)

    def _nodes(self, topic: Topic) -> Sequence[int]:
        """Those that lead a part of it, in the order of their numbers."""
        if topic.partition_count == 1:
            led = self.routes.leader(topic, 0)
            return [] if led is None else [led[0]]
        return sorted(set(self.routes.leaders(topic).values()))

    async def _lease_anywhere(
        self, topic: Topic, request: LeaseRequest, nodes: Sequence[int]
    ) -> Sequence[Delivery]:
        now = self._loop.time()
        wait_until = now + request.wait_ms / 1_000
        retry_until = now + self.leaders.retry_seconds_max
        tries = 0
        while True:
            look = await self._look(topic, request, nodes)
            if look.deliveries:
                return look.deliveries
            if self._loop.time() < wait_until and not self._is_draining:
                look = await self._park(topic, request, wait_until, look)
                if look.deliveries:
                    return look.deliveries
            elif isinstance(look.error, InFlightLimit) and request.wait_ms <= 0:
                raise look.error
            if look.is_answered or self._is_draining or look.error is None:
                return ()
            if isinstance(look.error, Throttled) or self._loop.time() >= retry_until:
                raise look.error
            tries += 1
            asked, nodes = nodes, self._nodes(topic)
            if nodes == asked or tries > HINTS_MAX:
                partitions = range(topic.partition_count)
                led = [self.routes.leader(topic, partition) for partition in partitions]
                await self.leaders.pause(topic, partitions, led, tries, retry_until)
                nodes = self._nodes(topic)

    # ── Asking in turn ───────────────────────────────────────────────────────────────────────

    async def _look(self, topic: Topic, request: LeaseRequest, led_by: Sequence[int]) -> _Look:
        """What the nodes have, without waiting, until it is enough."""
        nodes = self._turns.order(topic.topic_id, led_by, now_s=self._loop.time())
        if not nodes:
            return _Look(error=NotLeader(place_of(topic, 0)))
        deliveries: list[Delivery] = []
        is_answered = False
        error: PenstockError | None = None
        try:
            for node in nodes:
                wanted = LeaseRequest(
                    request.count - len(deliveries), request.lease_ms, 0, request.attempt_id
                )
                try:
                    if node == self._own:
                        found = await self.leaders.local.lease(topic, wanted)
                        self._turns.found_here(topic.topic_id, found)
                    else:
                        found = await self._ask(node, topic, wanted, is_one_of=len(nodes) > 1)
                        if node == nodes[0]:
                            self._turns.found_elsewhere(topic.topic_id, found)
                    is_answered = True
                    deliveries += found
                except InFlightLimit as full:
                    if topic.is_fifo:
                        is_answered = True
                    else:
                        error = full
                except _AWAY as away:
                    if isinstance(away, NotLeader):
                        self.leaders.note(away)
                    if not isinstance(error, InFlightLimit):
                        error = away
                if len(deliveries) >= request.count:
                    break
        except PenstockError:
            if not deliveries:
                raise
        except asyncio.CancelledError:
            self.give_back(topic, deliveries)
            raise
        return _Look(deliveries, is_answered, error)

    async def _ask(
        self, node: int, topic: Topic, wanted: LeaseRequest, *, is_one_of: bool
    ) -> Sequence[Delivery]:
        if not is_one_of:
            return await self.leaders.at(node, lambda at: at.lease(topic, wanted), topic)

        async def look(at: BrokerCalls) -> Sequence[Delivery]:
            # Late is a failure, as the bulkhead of that node counts them.
            try:
                async with asyncio.timeout(LOOK_SECONDS_MAX):
                    return await at.lease(topic, wanted)
            except TimeoutError:
                raise DeadlineExceeded(f"Node {node} takes long to say what it has.") from None

        return await self.leaders.at(node, look, topic)

    # ── Parking ──────────────────────────────────────────────────────────────────────────────

    async def _park(self, topic: Topic, request: LeaseRequest, until: float, look: _Look) -> _Look:
        parked = _Parked(self, topic, request, until)
        self._parked.add(parked)
        try:
            deliveries = await parked.run()
        finally:
            self._parked.discard(parked)
        is_answered = look.is_answered or parked.is_answered
        return _Look(deliveries, is_answered, parked.error or look.error)

    def end_waits(self) -> None:
        """Answer everything that is parked elsewhere with nothing: this node is draining."""
        self._is_draining = True
        for parked in self._parked:
            parked.wake()

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    # ── Giving back ──────────────────────────────────────────────────────────────────────────

    def let_go(self, topic: Topic, task: LeaseTask) -> None:
        """Nobody waits for it any more. What it has taken all the same is given back."""
        self._let_go.add(task)
        task.add_done_callback(partial(self._gone, topic))
        task.cancel()

    def _gone(self, topic: Topic, task: LeaseTask) -> None:
        self._let_go.discard(task)
        if not task.cancelled() and task.exception() is None:
            self.give_back(topic, task.result())

    def give_back(self, topic: Topic, deliveries: Sequence[Delivery]) -> None:
        by_partition: dict[int, list[tuple[Claim, int]]] = {}
        for each in deliveries:
            claim = Claim(each.partition, each.record.offset, each.lease_seq)
            by_partition.setdefault(each.partition, []).append((claim, 0))
        for partition, claims in by_partition.items():
            self.leaders.spawn(self._release(topic, partition, claims), "give back")

    async def _release(
        self, topic: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> None:
        # Strictly: a lease may have run out before its answer came, and be another's by now.
        await self.leaders.ask(
            topic,
            partition,
            lambda at: at.extend(topic, partition, claims, is_strict=True),
            is_harmless=True,
        )

    async def close(self) -> None:
        self.end_waits()
        if self._let_go:
            await asyncio.wait(tuple(self._let_go))


class _Parked:
    """One lease that waits at all nodes of its queue."""

    def __init__(self, leasing: Leasing, topic: Topic, request: LeaseRequest, until: float) -> None:
        self.is_answered = False
        self.error: PenstockError | None = None
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
                is_late = left * 1_000 <= LAST_MS
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
                self._leasing.let_go(self._topic, task)

    def _spread(self, left_s: float) -> None:
        """Wait at the nodes that lead now, and at no others."""
        now = self._loop.time()
        nodes = set(self._leasing.routes.leaders(self._topic).values())
        for node in [node for node in self._tasks if node not in nodes]:
            self._leasing.let_go(self._topic, self._tasks.pop(node))
        for node in nodes:
            if node not in self._tasks and self._retry_at.get(node, 0.0) <= now:
                self._tasks[node] = asyncio.create_task(
                    self._wait_at(node, int(left_s * 1_000)), name=f"lease at node {node}"
                )

    async def _wait_at(self, node: int, wait_ms: int) -> Sequence[Delivery]:
        if self._leaders.is_suspect(node, self._topic):
            wait_ms = 0
        wanted = LeaseRequest(
            self._request.count, self._request.lease_ms, wait_ms, self._request.attempt_id
        )
        return await self._leaders.at(
            node, lambda at: at.lease(self._topic, wanted), self._topic, wait_ms=wait_ms
        )

    def _seconds_to_next(self, left_s: float) -> float:
        last = left_s + ANSWER_SECONDS
        due = [at for node, at in self._retry_at.items() if node not in self._tasks]
        if not due or left_s <= 0:
            return last
        return min(last, max(0.001, min(due) - self._loop.time()))

    def _collect(self) -> Sequence[Delivery]:
        """What has been answered. Raises what ends the wait."""
        deliveries: list[Delivery] = []
        raised: BaseException | None = None
        for node, task in [item for item in self._tasks.items() if item[1].done()]:
            del self._tasks[node]
            error = Draining(f"Node {node} broke off.") if task.cancelled() else task.exception()
            if error is None:
                self._take(node, task.result(), deliveries)
            elif isinstance(error, TopicNotFound) or not isinstance(error, PenstockError):
                raised = error
            else:
                self._note(node, error)
        if raised is not None and not deliveries:
            raise raised
        return deliveries

    def _take(self, node: int, taken: Sequence[Delivery], deliveries: list[Delivery]) -> None:
        self.is_answered = True
        self._pauses.pop(node, None)
        self._retry_at[node] = self._loop.time() + PAUSE_SECONDS_MIN
        if len(deliveries) + len(taken) <= self._request.count:
            deliveries += taken
        else:
            self._leasing.give_back(self._topic, taken)

    def _note(self, node: int, error: PenstockError) -> None:
        self.error = error
        if isinstance(error, NotLeader):
            self._leaders.note(error)
        pause = self._pauses.get(node, PAUSE_SECONDS_MIN)
        self._pauses[node] = min(2 * pause, PAUSE_SECONDS_MAX)
        self._retry_at[node] = self._loop.time() + pause
