"""Whom to ask about a partition, and when to ask again.

A call that was not carried out is made again for as long as the request may take, at another node
or at the same: it was refused by one that does not lead (which usually knows who does), the way to
it was closed, or nobody leads at the moment. When nobody knows whether it was carried out, it is
made again only if doing it twice is as good as once; otherwise whoever asked hears that it is not
known, for only they can say whether to repeat it.

Every other node is behind a bulkhead of its own: one that hangs fills that and nothing else, and
one that fails is not asked at all for a while, which counts as a way that is closed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from penstock.frontend.bulkhead import ALL_PARTITIONS, Bulkhead, CalleeUnavailable
from penstock.model.errors import Draining, NotLeader, PenstockError
from penstock.model.ports import Backend, Shares, Streams
from penstock.model.topic import Topic
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown, Unreachable

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS_MIN: Final = 0.01
PAUSE_SECONDS_MAX: Final = 0.25  # also how late a change is heard of that nobody has told
HINTS_MAX: Final = 3  # followed at once; two nodes may each believe in the other
CLOSE_SECONDS_MAX: Final = 5.0


class Routes(Protocol):
    """Who leads what, as this node has heard. The partitions of a share are those of its source:
    asked about a topic with a ``source_id``, they answer about that one."""

    def leader(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """Node and epoch; None when nobody leads it, or when it is not known who does."""
        ...

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        """The node of each partition that has a leader."""
        ...

    def nodes(self) -> Sequence[int]:
        """All that are alive, this one included."""
        ...

    async def wait_changed(self, timeout_s: float) -> None:
        """Returns after the next change of any of this, or when the time is over. A change that
        happens after this was called is not missed."""
        ...

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        """Another node says so of a place (``topic id/partition``). To be believed when it is of a
        later epoch than what is known."""
        ...


class BrokerCalls(Backend, Streams, Shares, Protocol):
    """A broker, here or elsewhere."""


Work = Callable[[BrokerCalls], Awaitable[T]]


class NotDone(Exception):
    """Not carried out, or harmless to carry out again: what was raised says why."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(str(error))
        self.error = error


class Leaders:
    def __init__(
        self,
        local: BrokerCalls,
        *,
        own_node: int,
        routes: Routes,
        remote: Callable[[int], BrokerCalls],
        bulkhead: Callable[[int], Bulkhead],
        retry_seconds_max: float = RETRY_SECONDS_MAX,
    ) -> None:
        self.local = local
        self.own_node = own_node
        self.routes = routes
        self.retry_seconds_max = retry_seconds_max
        self._remote = remote
        self._bulkhead = bulkhead
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    # ── One node ─────────────────────────────────────────────────────────────────────────────

    async def at(
        self,
        node: int,
        work: Work[T],
        topic: Topic | None = None,
        partition: int = ALL_PARTITIONS,
        *,
        wait_ms: int = 0,
    ) -> T:
        """Raises what the node raises; Unreachable when it is not asked. ``topic``: what the call
        is about, if it is about one. ``wait_ms``: for how long the call waits there for something
        to happen."""
        if node == self.own_node:
            return await work(self.local)
        bulkhead = self._bulkhead(node)
        try:
            if wait_ms > 0:
                place = bulkhead.park(wait_ms, topic, partition)
            else:
                place = bulkhead.enter(topic, partition)
        except CalleeUnavailable as refused:
            raise Unreachable(str(refused)) from refused
        try:
            answer = await work(self._remote(node))
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return answer

    def broker(self, node: int) -> BrokerCalls:
        """For what waits for nothing."""
        return self.local if node == self.own_node else self._remote(node)

    def is_suspect(self, node: int, topic: Topic) -> bool:
        """Whoever would wait at that node had better ask without waiting."""
        return node != self.own_node and self._bulkhead(node).is_suspect(topic)

    async def attempt(
        self,
        node: int,
        work: Work[T],
        topic: Topic,
        partition: int = ALL_PARTITIONS,
        *,
        is_harmless: bool,
    ) -> T:
        """``at``, with NotDone for what may be tried again. ``is_harmless``: twice is as good as
        once."""
        try:
            return await self.at(node, work, topic, partition)
        except NotLeader as error:
            self.note(error)
            raise NotDone(error) from error
        except (OutcomeUnknown, DeadlineExceeded, CalleeUnavailable) as error:
            if not is_harmless:
                raise OutcomeUnknown(
                    f"Whether it was done is not known; repeat it if that does no harm. {error}"
                ) from error
            raise NotDone(error) from error
        except (Unreachable, Draining) as error:
            raise NotDone(error) from error

    def note(self, error: NotLeader) -> None:
        if error.leader >= 0:
            self.routes.note_leader(error.place, error.leader, error.epoch)

    # ── The leader of a partition ────────────────────────────────────────────────────────────

    async def ask(
        self, topic: Topic, partition: int, work: Work[T], *, is_harmless: bool = False
    ) -> T:
        until = self._loop.time() + self.retry_seconds_max
        tries = 0
        while True:
            led = self.routes.leader(topic, partition)
            if led is None:
                error: PenstockError = NotLeader(place_of(topic, partition))
            else:
                try:
                    return await self.attempt(
                        led[0], work, topic, partition, is_harmless=is_harmless
                    )
                except NotDone as not_done:
                    error = not_done.error
            tries += 1
            if self._loop.time() >= until:
                raise error
            await self.pause(topic, (partition,), [led], tries, until)

    async def pause(
        self,
        topic: Topic,
        partitions: Sequence[int],
        tried: Sequence[tuple[int, int] | None],
        tries: int,
        until: float,
    ) -> None:
        """Until one of them is led by another than was tried, or for a while: longer each time."""
        now = self._loop.time()
        pause_s = min(PAUSE_SECONDS_MIN * 2.0 ** min(tries, 10), PAUSE_SECONDS_MAX)
        end = min(now + pause_s, until)
        leader = self.routes.leader
        if tries > HINTS_MAX:
            await asyncio.sleep(min(PAUSE_SECONDS_MIN, max(0.0, end - now)))
        while (left := end - self._loop.time()) > 0:
            if [leader(topic, partition) for partition in partitions] != tried:
                return
            await self.routes.wait_changed(left)

    # ── All nodes of a topic ─────────────────────────────────────────────────────────────────

    async def ask_all(
        self, topic: Topic, work: Work[T], *, is_harmless: bool
    ) -> Sequence[T | PenstockError]:
        """From each node that leads one of its partitions, at the same time: what it says, or what
        it raises. Those that were not reached are asked again, and so is a node that leads more by
        now than when it answered; raises when the time is over and not all have answered, or a
        partition has nobody to answer for it."""
        until = self._loop.time() + self.retry_seconds_max
        answers: dict[int, T | PenstockError] = {}
        answered_for: dict[int, set[int]] = {}  # by node: the partitions it led when it was asked
        tries = 0
        while True:
            partitions = range(topic.partition_count)
            led = [self.routes.leader(topic, partition) for partition in partitions]
            nodes: dict[int, set[int]] = {}
            for partition, one in enumerate(led):
                if one is not None:
                    nodes.setdefault(one[0], set()).add(partition)
            missing = [
                node
                for node, leads in nodes.items()
                if node not in answers or not leads <= answered_for[node]
            ]
            error: PenstockError | None = None
            if None in led:
                error = NotLeader(place_of(topic, led.index(None)))
            asked = await asyncio.gather(
                *(self._answer(node, work, topic, is_harmless=is_harmless) for node in missing)
            )
            for node, answer in zip(missing, asked, strict=True):
                if isinstance(answer, NotDone):
                    error = answer.error
                else:
                    answers[node] = answer
                    answered_for[node] = nodes[node]
            if error is None:
                return [answers[node] for node in nodes]
            tries += 1
            if self._loop.time() >= until:
                raise error
            await self.pause(topic, partitions, led, tries, until)

    async def _answer(
        self, node: int, work: Work[T], topic: Topic, *, is_harmless: bool
    ) -> T | PenstockError | NotDone:
        try:
            return await self.attempt(node, work, topic, is_harmless=is_harmless)
        except NotDone as not_done:
            return not_done
        except PenstockError as error:
            return error

    # ── What nobody waits for ────────────────────────────────────────────────────────────────

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def run() -> None:
            try:
                await work
            except PenstockError as error:
                log.info("left to itself", extra={"work": name, "reason": str(error)})

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
