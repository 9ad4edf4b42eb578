"""Serves the broker calls of other nodes (``wire/internal/broker_calls.py``).

If the caller knows a topic that this node does not know yet, the service waits a short time. The
service rejects a call whose leader epoch differs from the current one and names the leader, because
one of the two nodes does not know of an election yet. The service also remembers the leases of each
ticket for a while, so that they can be released if the reply was lost.

A listener cannot be sent to another node. Instead the other node repeats a call that contains the
state it knows, and the call waits here until the state is different. For new end offsets, this
state is the offsets, and nothing is kept here between two calls. If records become available again
in a share (a lease cursor over a topic), no state shows this. So these events are counted here,
from the first call until a while after the last. A new counter, also after an election, begins with
a number that was never sent, so the other node checks once more than needed, which is safe."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from penstock.model import calls
from penstock.model.errors import InvalidRequest, NotLeader, TopicNotFound
from penstock.model.message import Claim, Delivery
from penstock.model.ports import Catalog, StreamEnds
from penstock.model.topic import Topic
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import CallerInfo, CallHandlers, Nothing

CATCH_UP_SECONDS: Final = 1.0  # for a topic that the caller already knows
REMEMBERED_MAX: Final = 20_000  # lease replies; a lease that is forgotten expires by itself

COUNTERS_MAX: Final = 10_000  # partitions of shares; the least recently used is dropped first
IDLE_SECONDS_MAX: Final = 60.0  # three times the longest pause of a node between two calls
WAIT_MS_MAX: Final = 30_000

Led = Callable[[Topic, int], tuple[int, int] | None]


class BrokerService:
    def __init__(
        self,
        broker: calls.BrokerPort,
        catalog: Catalog,
        *,
        node: int,
        led: Led = lambda _topic, _partition: None,
        catch_up_seconds: float = CATCH_UP_SECONDS,
    ) -> None:
        self._broker = broker
        self._catalog = catalog
        self._node = node
        self._led = led
        self._catch_up_seconds = catch_up_seconds
        self._loop = asyncio.get_running_loop()
        self._listeners = RemoteListeners(broker, led)
        self._expected: dict[str, list[asyncio.Future[None]]] = {}  # by topic id
        # By session and ticket: lease calls in progress, and the leases of the last calls.
        self._leasing: dict[tuple[int, int], asyncio.Task[object] | None] = {}
        self._leased: OrderedDict[tuple[int, int], Sequence[Claim]] = OrderedDict()
        catalog.on_change(self._catalog_changed)

    def register(self, handlers: CallHandlers) -> None:
        for kind in wire.RULES:
            form = wire.wire_of(kind)
            handlers.add(form, partial(self._serve, form))
        handlers.add(wire.GIVE_BACK, self._give_back)
        handlers.add(wire.ADVANCED, partial(self._watch, self._listeners.advanced))
        handlers.add(wire.AVAILABLE, partial(self._watch, self._listeners.available))

    def close(self) -> None:
        self._listeners.close()

    # ── Topic and epoch ──────────────────────────────────────────────────────────────────────

    def _known(self, request: wire.OfTopic) -> Topic | None:
        topic = self._catalog.find_id(request.topic_id)
        return None if topic is None or topic.modified_at_ms < request.modified_at_ms else topic

    async def _catch_up(self, request: wire.OfTopic) -> Topic:
        """Wait until this node's version of the topic is as new as the caller's, and return it.
        After a timeout, return the older version."""
        topic_id = request.topic_id
        until = self._loop.time() + self._catch_up_seconds
        while (left := until - self._loop.time()) > 0:
            heard: asyncio.Future[None] = self._loop.create_future()
            self._expected.setdefault(topic_id, []).append(heard)
            try:
                await asyncio.wait((heard,), timeout=left)
            finally:
                waiting = self._expected.get(topic_id, [])
                if heard in waiting:
                    waiting.remove(heard)
                if not waiting:
                    self._expected.pop(topic_id, None)
            topic = self._known(request)
            if topic is not None:
                return topic
        topic = self._catalog.find_id(topic_id)
        if topic is None:
            raise TopicNotFound(topic_id)
        return topic

    def _catalog_changed(self, _before: Topic | None, after: Topic | None) -> None:
        if after is not None and self._expected:
            for heard in self._expected.pop(after.topic_id, ()):
                if not heard.done():
                    heard.set_result(None)

    def _check(self, topic: Topic, partition: int, epoch: int = wire.ANY_EPOCH) -> None:
        if not 0 <= partition < topic.partition_count and not self._is_added(topic, partition):
            raise TopicNotFound(topic.name)
        led = None if epoch == wire.ANY_EPOCH else self._led(topic, partition)
        if led is not None and led != (self._node, epoch):
            # A hint of an earlier epoch than the caller's would send it back to an old leader.
            leader = led[0] if led[1] > epoch else -1
            place = f"{topic.source_id or topic.topic_id}/{partition}"
            raise NotLeader(place, leader=leader, epoch=led[1])

    def _is_added(self, topic: Topic, partition: int) -> bool:
        source = None if topic.source_id is None else self._catalog.find_id(topic.source_id)
        return source is not None and 0 <= partition < source.partition_count

    # ── Broker calls ─────────────────────────────────────────────────────────────────────────

    async def _serve(self, form: wire.BrokerWire, request: Any, _caller: CallerInfo) -> object:
        topic = None
        if form.has_topic:
            topic = self._known(request) or await self._catch_up(request)
        call = form.unpack(request, topic)
        if form.has_partition:
            self._check(call.topic, call.partition, request.epoch)
        elif isinstance(call, calls.LeadersCall):
            for partition, epoch in call.counted_on:
                self._check(call.topic, partition, epoch)
        limit = _LIMITS.get(type(call))
        if limit is not None:
            call = limit(call)
        ticket = form.ticket_of(request)
        if ticket is None:
            return form.reply_of(await self._broker.call(call))
        self._leasing[ticket] = asyncio.current_task()
        try:
            reply = await self._broker.call(call)
        finally:
            del self._leasing[ticket]
        self._remember(ticket, _claims_of(call, reply))
        return form.reply_of(reply)

    def _remember(self, ticket: wire.Ticket, claims: Sequence[Claim]) -> None:
        if claims:
            self._leased[ticket] = claims
            if len(self._leased) > REMEMBERED_MAX:
                self._leased.popitem(last=False)

    async def _give_back(self, request: wire.GiveBack, _caller: CallerInfo) -> Nothing:
        key = (request.session, request.ticket)
        in_progress = self._leasing.get(key)
        if in_progress is not None:
            in_progress.cancel()  # its connection was lost, and this node has not noticed
        claims = self._leased.pop(key, ())
        if claims:
            topic = self._known(request) or await self._catch_up(request)
            for release in calls.releases(topic, claims):
                await self._broker.call(release)
        return Nothing()

    # ── Listeners of other nodes ─────────────────────────────────────────────────────────────

    async def _watch(
        self, wait: Callable[..., Any], request: wire.Advanced | wire.Available, _caller: CallerInfo
    ) -> Any:
        topic = self._known(request) or await self._catch_up(request)
        if not 0 < len(request.known) <= wire.WATCHED_MAX:
            raise InvalidRequest(
                f"One call can watch 1 to {wire.WATCHED_MAX} partitions, not {len(request.known)}."
            )
        for partition, _ in request.known:
            self._check(topic, partition)
        return await wait(topic, request.known, wait_ms=request.wait_ms)


# Limits of one reply.
_LIMITS: Final[dict[type[calls.BrokerCall[Any]], Callable[[Any], calls.BrokerCall[Any]]]] = {
    calls.Peek: lambda call: replace(call, count=min(call.count, wire.PEEKED_MAX)),
    calls.Fetch: lambda call: replace(call, bytes_max=min(call.bytes_max, wire.FETCH_BYTES_MAX)),
    calls.Acquire: lambda call: replace(call, bytes_max=min(call.bytes_max, wire.FETCH_BYTES_MAX)),
}


def _claims_of(call: calls.BrokerCall[Any], reply: Any) -> Sequence[Claim]:
    if isinstance(call, calls.Acquire):
        return [Claim(call.partition, offset, lease_seq) for offset, lease_seq, _ in reply.picks]
    deliveries: Sequence[Delivery] = reply
    return [each.claim for each in deliveries]


# ── Listeners of other nodes ─────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class _Counter:
    number: int
    led: tuple[int, int] | None
    used_at: float = 0.0
    remove: Callable[[], None] = lambda: None
    wakers: set[Callable[[], None]] = field(default_factory=set)


class RemoteListeners:
    def __init__(self, broker: calls.BrokerPort, led: Led) -> None:
        self._broker = broker
        self._led = led
        self._loop = asyncio.get_running_loop()
        self._serial = secrets.randbits(48)  # differs from the numbers of an earlier process
        self._counters: OrderedDict[tuple[str, int], _Counter] = OrderedDict()

    def close(self) -> None:
        for counter in self._counters.values():
            counter.remove()
        self._counters.clear()

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────

    async def advanced(
        self, topic: Topic, known: Sequence[tuple[int, StreamEnds | None]], *, wait_ms: int
    ) -> wire.AdvancedReply:
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1_000
        reply = await self._changed_ends(topic, known)
        if reply is not None:
            return reply
        woken = asyncio.Event()
        removes: list[Callable[[], None]] = []
        try:
            for partition, _ in known:
                removes.append(self._broker.on_advance(topic, partition, woken.set))
            while True:
                # Compare first: a change before the listener was added has not set the event.
                woken.clear()
                reply = await self._changed_ends(topic, known)
                if reply is not None:
                    return reply
                if not await _is_set(woken, until - self._loop.time()):
                    return wire.AdvancedReply()
        finally:
            for remove in removes:
                remove()

    async def _changed_ends(
        self, topic: Topic, known: Sequence[tuple[int, StreamEnds | None]]
    ) -> wire.AdvancedReply | None:
        moved, gone = [], []
        for partition, before in known:
            try:
                ends = await self._broker.call(calls.Ends(topic, partition))
            except NotLeader:
                gone.append(partition)
                continue
            if ends != before:
                moved.append((partition, ends))
        return wire.AdvancedReply(moved, gone) if moved or gone else None

    # ── Availability ─────────────────────────────────────────────────────────────────────────

    async def available(
        self, share: Topic, known: Sequence[tuple[int, int]], *, wait_ms: int
    ) -> wire.AvailableReply:
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1_000
        gone = []
        for partition, _ in known:
            try:
                # This opens the share if needed.
                await self._broker.call(calls.ShareStart(share, partition))
            except NotLeader:
                gone.append(partition)
        if gone:
            return wire.AvailableReply((), gone)
        counters = [(each, number, self._counter(share, each)) for each, number in known]
        woken = asyncio.Event()
        for _, _, counter in counters:
            counter.wakers.add(woken.set)
        try:
            while True:
                woken.clear()
                news = [
                    (partition, counter.number)
                    for partition, number, counter in counters
                    if counter.number != number
                ]
                if news or not await _is_set(woken, until - self._loop.time()):
                    return wire.AvailableReply(news)
        finally:
            for _, _, counter in counters:
                counter.wakers.discard(woken.set)

    def _counter(self, share: Topic, partition: int) -> _Counter:
        now = self._loop.time()
        key = (share.topic_id, partition)
        led = self._led(share, partition)
        counter = self._counters.get(key)
        if counter is not None and counter.led != led:
            counter.remove()
            counter = None
        if counter is None:
            counter = self._counters[key] = self._new_counter(share, partition, led)
        self._counters.move_to_end(key)
        counter.used_at = now
        self._drop_idle(now)
        return counter

    def _new_counter(self, share: Topic, partition: int, led: tuple[int, int] | None) -> _Counter:
        counter = _Counter(self._next(), led)

        def count() -> None:
            counter.number = self._next()
            for wake in tuple(counter.wakers):
                wake()

        counter.remove = self._broker.on_available(share, partition, count)
        return counter

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _drop_idle(self, now: float) -> None:
        counters = self._counters
        while counters:
            key, oldest = next(iter(counters.items()))
            is_idle = now - oldest.used_at > IDLE_SECONDS_MAX and not oldest.wakers
            if not is_idle and len(counters) <= COUNTERS_MAX:
                return
            oldest.remove()
            del counters[key]


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    if not event.is_set() and seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
    return event.is_set()
