"""A client for the broker of another node: a ``BrokerPort`` that sends each call to that node.

A call raises the error that the other node raised. It raises Unreachable if the call was not made,
and OutcomeUnknown or DeadlineExceeded if the call may have been carried out.

If the reply to a lease call is lost, late or no longer wanted, the call GIVE_BACK releases the
messages. GIVE_BACK is sent on the same connection, so it cannot overtake the lease call. It names
the lease call by a ticket number that is used only once.

All listeners on partitions of one topic share one call that waits at the other node. This call
contains the known state of each partition, and is made again after each reply. The reply comes when
a state has changed or the wait is over. If the node does not reply or no longer leads a partition,
the listeners are called as well, and the next call is made after a pause."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.model import call_times
from penstock.model.calls import BrokerCall, R
from penstock.model.errors import PenstockError
from penstock.model.ports import MoveTask, StreamEnds
from penstock.model.topic import Topic
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal import faults
from penstock.wire.internal.calls import Call, Caller

CLOSE_SECONDS_MAX: Final = 2.0
DONE, REFUSED, UNREACHABLE, UNKNOWN = "done", "refused", "unreachable", "unknown"

_UNREAD = (faults.OutcomeUnknown, faults.DeadlineExceeded, faults.MalformedFrame)

K = TypeVar("K")

Known = Sequence[tuple[int, K]]
# The new states by partition, and the partitions that the node does not lead.
News = tuple[Known[K], Sequence[int]]
Wait = Callable[[Topic, Known[K], int], Awaitable[News[K]]]

EpochOf = Callable[[Topic, int], int]
FindCaller = Callable[[], Caller]


class RemoteBroker:
    def __init__(
        self,
        caller: FindCaller,
        *,
        moves: Callable[[str], Sequence[MoveTask]],
        find_share: Callable[[Topic, str], Topic | None],
        epoch_of: EpochOf = lambda _topic, _partition: wire.ANY_EPOCH,
        parked: FindCaller | None = None,
        outcomes: dict[str, int] | None = None,
        chance: Callable[[int], int] = random.getrandbits,
    ) -> None:
        """Create a client. ``caller`` returns the connection to the node or raises Unreachable,
        ``parked`` returns a second connection for long polls, and ``epoch_of`` returns the known
        leader epoch of a partition. ``outcomes`` counts the calls by outcome."""
        self._caller = caller
        self._parked = parked or caller
        self._epoch_of = epoch_of
        self._outcomes = no_outcomes() if outcomes is None else outcomes
        self.moves = moves
        self.find_share = find_share
        self._session = chance(63)
        self._ticket = 0
        self._ends = Watches[StreamEnds | None](
            partial(self._wait, wire.ADVANCED, wire.Advanced), None
        )
        self._availability = Watches[int](partial(self._wait, wire.AVAILABLE, wire.Available), 0)
        self.on_advance = self._ends.add
        self.on_available = self._availability.add
        self._giving_back: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await self._ends.close()
        await self._availability.close()
        if self._giving_back:
            _, late = await asyncio.wait(self._giving_back, timeout=CLOSE_SECONDS_MAX)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def call(self, call: BrokerCall[R]) -> R:
        form = wire.wire_of(type(call))
        epoch, ticket = wire.ANY_EPOCH, 0
        if form.has_partition:
            assert call.topic is not None, "a call of a partition has a topic"
            epoch = self._epoch_of(call.topic, call.partition)
        if form.has_ticket:
            self._ticket = ticket = self._ticket + 1
        find = self._caller if call.wait_ms <= 0 else self._parked
        outcomes = self._outcomes
        try:
            request = form.pack(call, epoch, (self._session, ticket))
            reply: R = await find().call(form, request, timeout_ms=wire.timeout_ms(call))
        except PenstockError as error:
            outcomes[_outcome(error)] += 1
            if ticket and isinstance(error, _UNREAD):
                self._give_back(find, call, ticket)
            raise
        except asyncio.CancelledError:
            if ticket:
                self._give_back(find, call, ticket)
            raise
        outcomes[DONE] += 1
        return reply

    def _give_back(self, find: FindCaller, call: BrokerCall[R], ticket: int) -> None:
        topic = call.topic
        assert topic is not None, "a lease has a topic"
        request = wire.GiveBack(topic.topic_id, topic.modified_at_ms, self._session, ticket)

        async def send() -> None:
            try:
                await find().call(wire.GIVE_BACK, request, timeout_ms=call_times.GIVE_BACK_MS)
            except PenstockError:
                pass  # unreachable: the leases expire by themselves

        task = asyncio.create_task(send(), name="give back elsewhere")
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _wait(
        self, call: Call[Any, Any], make: Any, topic: Topic, known: Known[K], wait_ms: int
    ) -> News[K]:
        request = make(topic.topic_id, topic.modified_at_ms, wait_ms, known)
        timeout_ms = wait_ms + call_times.WAIT_MARGIN_MS
        reply = await self._parked().call(call, request, timeout_ms=timeout_ms)
        news, gone = msgspec.structs.astuple(reply)
        return news, gone


def no_outcomes() -> dict[str, int]:
    return dict.fromkeys((DONE, REFUSED, UNREACHABLE, UNKNOWN), 0)


def _outcome(error: PenstockError) -> str:
    if isinstance(error, _UNREAD):
        return UNKNOWN
    return UNREACHABLE if isinstance(error, faults.Unreachable) else REFUSED


class Watches(Generic[K]):
    def __init__(self, wait: Wait[K], unknown: K) -> None:
        self._wait = wait
        self._unknown = unknown
        self._topics: dict[str, _Watched[K]] = {}

    def add(self, topic: Topic, partition: int, listener: Callable[[], None]) -> Callable[[], None]:
        watched = self._topics.get(topic.topic_id)
        if watched is None:
            watched = self._topics[topic.topic_id] = _Watched(topic, self._wait, self._unknown)
            watched.task.add_done_callback(lambda _: self._ended(topic.topic_id, watched))
        token = object()
        watched.add(partition, token, listener)
        return lambda: watched.remove(partition, token)

    def _ended(self, topic_id: str, watched: "_Watched[K]") -> None:
        if self._topics.get(topic_id) is watched:
            del self._topics[topic_id]

    async def close(self) -> None:
        tasks = [watched.task for watched in self._topics.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Watched(Generic[K]):
    def __init__(self, topic: Topic, wait: Wait[K], unknown: K) -> None:
        self._topic = topic
        self._wait = wait
        self._unknown = unknown
        self._listeners: dict[int, dict[object, Callable[[], None]]] = {}
        self._known: dict[int, K] = {}
        self._gone_until: dict[int, float] = {}
        self._pause = call_times.WATCH_PAUSE_SECONDS_MIN
        self._changed = asyncio.Event()  # set when the partitions with listeners change
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(self._run(), name=f"watch {topic.topic_id} elsewhere")

    def add(self, partition: int, token: object, listener: Callable[[], None]) -> None:
        listeners = self._listeners.get(partition)
        if listeners is None:
            listeners = self._listeners[partition] = {}
            self._changed.set()
        else:
            # The call in progress gets no reply for a state that is new to this listener only.
            self._loop.call_soon(self._call_one, partition, token)
        listeners[token] = listener

    def remove(self, partition: int, token: object) -> None:
        listeners = self._listeners.get(partition)
        if listeners is not None and listeners.pop(token, None) is not None and not listeners:
            del self._listeners[partition]
            self._known.pop(partition, None)
            self._gone_until.pop(partition, None)
            if not self._listeners:
                self._changed.set()

    async def _run(self) -> None:
        while self._listeners:
            self._changed.clear()
            now = self._loop.time()
            again_at = min((at for at in self._gone_until.values() if at > now), default=None)
            wait_s = call_times.WATCH_MS / 1_000 if again_at is None else again_at - now
            known = [
                (partition, self._known.get(partition, self._unknown))
                for partition in self._listeners
                if self._gone_until.get(partition, 0.0) <= now
            ]
            if known:
                await self._wait_once(known, wait_s)
            else:
                await self._until_changed(wait_s)

    async def _wait_once(self, known: Known[K], wait_s: float) -> None:
        call = asyncio.ensure_future(self._wait(self._topic, known, int(wait_s * 1_000)))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((call, changed), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return  # the call is made again, for other partitions
            news, gone = call.result()
        except PenstockError:
            self._call_listeners([partition for partition, _ in known])
            await self._until_changed(self._pause)
            self._pause = min(2 * self._pause, call_times.WATCH_PAUSE_SECONDS_MAX)
            return
        finally:
            call.cancel()
            changed.cancel()
        self._pause = call_times.WATCH_PAUSE_SECONDS_MIN
        again_at = self._loop.time() + call_times.WATCH_PAUSE_SECONDS_MAX
        for partition in gone:
            self._gone_until[partition] = again_at
            self._known.pop(partition, None)
        for partition, value in news:
            if partition in self._listeners:
                self._known[partition] = value
        self._call_listeners([*gone, *(partition for partition, _ in news)])

    def _call_listeners(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            for listener in tuple(self._listeners.get(partition, {}).values()):
                listener()

    def _call_one(self, partition: int, token: object) -> None:
        listener = self._listeners.get(partition, {}).get(token)
        if listener is not None:
            listener()

    async def _until_changed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
