"""Serves the broker calls of other nodes (``wire/internal/broker_calls.py``).

The service adds three things. It waits a little for a topic that the caller knows before this node.
It rejects a call for another epoch than the current one, with a hint, because one of the two nodes
does not know of an election yet. And it remembers the leases of each ticket for a while, so that
they can be released when the reply was lost.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from penstock.calls.remote.watch_server import RemoteListeners
from penstock.model.calls import (
    Acquire,
    BrokerCall,
    BrokerPort,
    Extend,
    Fetch,
    LeadersCall,
    Peek,
)
from penstock.model.errors import InvalidRequest, NotLeader, TopicNotFound
from penstock.model.message import Claim, Delivery
from penstock.model.ports import Catalog
from penstock.model.topic import Topic
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import CallerInfo, CallHandlers, Nothing

CATCH_UP_SECONDS: Final = 1.0  # for a topic that the caller already knows
REMEMBERED_MAX: Final = 20_000  # last leases of all callers; a forgotten lease expires by itself

Led = Callable[[Topic, int], tuple[int, int] | None]


class BrokerService:
    def __init__(
        self,
        broker: BrokerPort,
        catalog: Catalog,
        *,
        node: int,
        led: Led = lambda _topic, _partition: None,
        catch_up_seconds: float = CATCH_UP_SECONDS,
    ) -> None:
        """``led``: returns node and epoch of a leader, as far as this node knows. Used for epochs
        only: the broker itself knows whether this node leads."""
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
        handlers.add(wire.ADVANCED, self._advanced)
        handlers.add(wire.AVAILABLE, self._available)

    def close(self) -> None:
        self._listeners.close()

    # ── Topic and epoch ──────────────────────────────────────────────────────────────────────

    def _known(self, request: wire.OfTopic) -> Topic | None:
        topic = self._catalog.find_id(request.topic_id)
        return None if topic is None or topic.modified_at_ms < request.modified_at_ms else topic

    async def _catch_up(self, request: wire.OfTopic) -> Topic:
        """Wait until the catalog has the caller's version of the topic. After the time is over an
        older version is used."""
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
        """Check that the partition exists and that ``epoch`` is its current one."""
        if not 0 <= partition < topic.partition_count and not self._is_added(topic, partition):
            raise TopicNotFound(topic.name)
        led = None if epoch == wire.ANY_EPOCH else self._led(topic, partition)
        if led is not None and led != (self._node, epoch):
            # A hint of an earlier epoch than the caller's would send it back to an old leader.
            leader = led[0] if led[1] > epoch else -1
            place = f"{topic.source_id or topic.topic_id}/{partition}"
            raise NotLeader(place, leader=leader, epoch=led[1])

    def _is_added(self, topic: Topic, partition: int) -> bool:
        """Return whether the source of a share has got this partition since."""
        source = None if topic.source_id is None else self._catalog.find_id(topic.source_id)
        return source is not None and 0 <= partition < source.partition_count

    # ── The calls of the table ───────────────────────────────────────────────────────────────

    async def _serve(self, form: wire.BrokerWire, request: Any, _caller: CallerInfo) -> object:
        topic = None
        if form.has_topic:
            topic = self._known(request) or await self._catch_up(request)
        call = form.unpack(request, topic)
        if form.has_partition:
            self._check(call.topic, call.partition, request.epoch)
        elif isinstance(call, LeadersCall):
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
        """Release the leases of a call whose reply was lost."""
        key = (request.session, request.ticket)
        in_progress = self._leasing.get(key)
        if in_progress is not None:
            in_progress.cancel()  # its connection was lost, and this node has not noticed
        claims = self._leased.pop(key, ())
        if claims:
            topic = self._known(request) or await self._catch_up(request)
            by_partition: dict[int, list[tuple[Claim, int]]] = {}
            for claim in claims:
                by_partition.setdefault(claim.partition, []).append((claim, 0))
            for partition, some in by_partition.items():
                # Strict: another consumer may have leased the message since.
                await self._broker.call(Extend(topic, partition, some, is_strict=True))
        return Nothing()

    # ── Listeners of other nodes ─────────────────────────────────────────────────────────────

    async def _advanced(self, request: wire.Advanced, _caller: CallerInfo) -> wire.AdvancedReply:
        topic = self._known(request) or await self._catch_up(request)
        self._check_watched(topic, [partition for partition, _ in request.known])
        return await self._listeners.advanced(topic, request.known, wait_ms=request.wait_ms)

    async def _available(self, request: wire.Available, _caller: CallerInfo) -> wire.AvailableReply:
        share = self._known(request) or await self._catch_up(request)
        self._check_watched(share, [partition for partition, _ in request.known])
        return await self._listeners.available(share, request.known, wait_ms=request.wait_ms)

    def _check_watched(self, topic: Topic, partitions: Sequence[int]) -> None:
        if not 0 < len(partitions) <= wire.WATCHED_MAX:
            raise InvalidRequest(
                f"One call watches 1 to {wire.WATCHED_MAX} partitions, not {len(partitions)}."
            )
        for partition in partitions:
            self._check(topic, partition)


# Limits of one reply.
_LIMITS: Final[dict[type[BrokerCall[Any]], Callable[[Any], BrokerCall[Any]]]] = {
    Peek: lambda call: replace(call, count=min(call.count, wire.PEEKED_MAX)),
    Fetch: lambda call: replace(call, bytes_max=min(call.bytes_max, wire.FETCH_BYTES_MAX)),
    Acquire: lambda call: replace(call, bytes_max=min(call.bytes_max, wire.FETCH_BYTES_MAX)),
}


def _claims_of(call: BrokerCall[Any], reply: Any) -> Sequence[Claim]:
    """Return what a Lease or an Acquire has leased."""
    if isinstance(call, Acquire):
        return [Claim(call.partition, offset, lease_seq) for offset, lease_seq, _ in reply.picks]
    deliveries: Sequence[Delivery] = reply
    return [Claim(each.partition, each.record.offset, each.lease_seq) for each in deliveries]
