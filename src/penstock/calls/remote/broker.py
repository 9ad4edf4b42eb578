"""The broker of another node: a ``BrokerPort`` over calls between nodes.

A call raises what the other node raises, Unreachable (it was not made), OutcomeUnknown or
DeadlineExceeded (it may have been carried out), and NotLeader with the node that leads.

If the reply of a lease is lost, late or no longer wanted, GIVE_BACK releases the leases. It is sent
on the same connection, so it cannot overtake the lease, and names a ticket that is used only once.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from penstock.calls.remote.watch_client import Known, News, Watches
from penstock.model.call_times import GIVE_BACK_MS, WAIT_MARGIN_MS
from penstock.model.calls import BrokerCall, R
from penstock.model.errors import PenstockError
from penstock.model.ports import MoveTask, StreamEnds
from penstock.model.topic import Topic
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import (
    DeadlineExceeded,
    MalformedFrame,
    OutcomeUnknown,
    Unreachable,
)

CLOSE_SECONDS_MAX: Final = 2.0
DONE, REFUSED, UNREACHABLE, UNKNOWN = "done", "refused", "unreachable", "unknown"

_UNREAD = (OutcomeUnknown, DeadlineExceeded, MalformedFrame)

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
        """``caller``: returns the connection to the node; raises Unreachable. ``parked``: returns
        the connection for calls that wait, because thousands of long polls would fill the one of
        short calls. ``epoch_of``: the known epoch of a leader there. ``outcomes`` counts calls."""
        self._caller = caller
        self._parked = parked or caller
        self._epoch_of = epoch_of
        self._outcomes = no_outcomes() if outcomes is None else outcomes
        self.moves = moves
        self.find_share = find_share
        self._session = chance(63)
        self._ticket = 0
        self._ends = Watches[StreamEnds | None](self._wait_advanced, None)
        self._availability = Watches[int](self._wait_available, 0)
        self.on_advance = self._ends.add
        self.on_available = self._availability.add
        self._giving_back: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Remove the listeners, and wait a moment for GIVE_BACK calls."""
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
                await find().call(wire.GIVE_BACK, request, timeout_ms=GIVE_BACK_MS)
            except PenstockError:
                pass  # unreachable: the leases expire by themselves

        task = asyncio.create_task(send(), name="give back elsewhere")
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _wait_advanced(
        self, topic: Topic, known: Known[StreamEnds | None], wait_ms: int
    ) -> News[StreamEnds | None]:
        request = wire.Advanced(topic.topic_id, topic.modified_at_ms, wait_ms, known)
        timeout_ms = wait_ms + WAIT_MARGIN_MS
        reply = await self._parked().call(wire.ADVANCED, request, timeout_ms=timeout_ms)
        return reply.moved, reply.gone

    async def _wait_available(self, share: Topic, known: Known[int], wait_ms: int) -> News[int]:
        request = wire.Available(share.topic_id, share.modified_at_ms, wait_ms, known)
        timeout_ms = wait_ms + WAIT_MARGIN_MS
        reply = await self._parked().call(wire.AVAILABLE, request, timeout_ms=timeout_ms)
        return reply.numbers, reply.gone


def no_outcomes() -> dict[str, int]:
    return dict.fromkeys((DONE, REFUSED, UNREACHABLE, UNKNOWN), 0)


def _outcome(error: PenstockError) -> str:
    if isinstance(error, _UNREAD):
        return UNKNOWN
    return UNREACHABLE if isinstance(error, Unreachable) else REFUSED
