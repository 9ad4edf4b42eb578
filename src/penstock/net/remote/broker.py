"""``model.ports`` Backend, Streams and Shares over the calls of one other node.

What the other side raises is raised here. Beside that a call may raise Unreachable (it was not
made), OutcomeUnknown or DeadlineExceeded (nobody knows), and NotLeader with a hint.

A lease whose answer nobody will read is followed by a word to give back what it may have taken:
when the caller has gone, when the time was over, when the connection was lost. That word goes the
way of the lease, so it cannot overtake it. The same happens to nobody twice: a ticket is used once.

What every node has in memory is not asked for over the wire: which shares there are (the catalog),
and which move tasks (the store). Both are given from outside.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.model.errors import PenstockError
from penstock.model.message import Appended, Claim, Delivery, Message
from penstock.model.ports import (
    NO_TAGS,
    SETTINGS_DEFAULT,
    Acquired,
    BatchAppended,
    Fetched,
    LeaseRequest,
    Marker,
    MoveTask,
    Peeked,
    ProducerSeen,
    StreamEnds,
)
from penstock.model.topic import QueueSettings, QueueStats, Topic
from penstock.net.remote.watches import Known, Told, Watches
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import DeadlineExceeded, MalformedFrame, OutcomeUnknown

CALL_MS: Final = 12_000  # longer than a commit takes that waits for a follower to be given up
WAIT_MARGIN_MS: Final = 5_000  # what a lease that waits may take beyond its wait
GIVE_BACK_MS: Final = 5_000
CLOSE_SECONDS_MAX: Final = 2.0

_UNREAD = (OutcomeUnknown, DeadlineExceeded, MalformedFrame)

EpochOf = Callable[[Topic, int], int]
LedThere = Callable[[Topic], Sequence[tuple[int, int]]]


class RemoteBroker:
    def __init__(
        self,
        caller: Caller,
        *,
        moves: Callable[[str], Sequence[MoveTask]],
        find_share: Callable[[Topic, str], Topic | None],
        epoch_of: EpochOf = lambda _topic, _partition: wire.ANY_EPOCH,
        led_there: LedThere = lambda _topic: (),
        parked: Caller | None = None,
        call_ms: int = CALL_MS,
        chance: Callable[[int], int] = random.getrandbits,
    ) -> None:
        """``epoch_of``: in which epoch a partition is believed to be led there; ``led_there``:
        which partitions of a topic are, each with its epoch. ``parked``: the way for calls that
        wait; one of their own keeps thousands of long polls from being in the way of what is short,
        for a connection takes only so many calls at once. ``moves`` and ``find_share``: from
        memory."""
        self._caller = caller
        self._parked = parked or caller
        self._epoch_of = epoch_of
        self._led_there = led_there
        self._call_ms = call_ms
        self.moves = moves
        self.find_share = find_share
        self._session = chance(63)
        self._ticket = 0
        self._ends = Watches[StreamEnds | None](self._ask_advanced, None)
        self._availability = Watches[int](self._ask_available, 0)
        self._giving_back: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends the listeners; what is being given back gets a moment to arrive."""
        await self._ends.close()
        await self._availability.close()
        if self._giving_back:
            _, late = await asyncio.wait(self._giving_back, timeout=CLOSE_SECONDS_MAX)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _of(self, topic: Topic) -> wire.OfLed:
        return wire.OfLed(topic.topic_id, topic.modified_at_ms, self._led_there(topic))

    def _at(self, topic: Topic, partition: int) -> wire.AtPlace:
        return wire.AtPlace(*self._head(topic, partition))

    def _head(self, topic: Topic, partition: int) -> tuple[str, int, int, int]:
        epoch = self._epoch_of(topic, partition)
        return topic.topic_id, topic.modified_at_ms, partition, epoch

    # ── model.ports.Backend ──────────────────────────────────────────────────────────────────

    async def append(
        self, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        epoch = self._epoch_of(topic, partition)
        request = wire.Append(topic.topic_id, topic.modified_at_ms, partition, epoch, messages)
        told = await self._caller.call(wire.APPEND, request, timeout_ms=self._call_ms)
        return told.appended

    async def lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        self._ticket = ticket = self._ticket + 1
        asked = wire.Lease(
            topic.topic_id,
            topic.modified_at_ms,
            self._session,
            ticket,
            request.count,
            request.lease_ms,
            request.wait_ms,
            request.attempt_id,
        )
        if request.wait_ms > 0:
            caller, timeout_ms = self._parked, request.wait_ms + WAIT_MARGIN_MS
        else:
            caller, timeout_ms = self._caller, self._call_ms
        try:
            return (await caller.call(wire.LEASE, asked, timeout_ms=timeout_ms)).deliveries
        except (asyncio.CancelledError, *_UNREAD):
            self._give_back(caller, topic, ticket)
            raise

    def _give_back(self, caller: Caller, topic: Topic, ticket: int) -> None:
        request = wire.GiveBack(topic.topic_id, topic.modified_at_ms, self._session, ticket)

        async def tell() -> None:
            try:
                await caller.call(wire.GIVE_BACK, request, timeout_ms=GIVE_BACK_MS)
            except PenstockError:
                pass  # out of reach: what was leased comes back when the lease runs out

        task = asyncio.create_task(tell(), name="give back elsewhere")
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def ack(
        self, topic: Topic, partition: int, claims: Sequence[Claim]
    ) -> Sequence[Exception | None]:
        epoch = self._epoch_of(topic, partition)
        request = wire.Ack(topic.topic_id, topic.modified_at_ms, partition, epoch, claims)
        told = await self._caller.call(wire.ACK, request, timeout_ms=self._call_ms)
        return wire.results_from(told)

    async def extend(
        self,
        topic: Topic,
        partition: int,
        claims: Sequence[tuple[Claim, int]],
        *,
        is_strict: bool = False,
    ) -> Sequence[Exception | None]:
        request = wire.Extend(*self._head(topic, partition), claims, is_strict)
        told = await self._caller.call(wire.EXTEND, request, timeout_ms=self._call_ms)
        return wire.results_from(told)

    async def purge(self, topic: Topic) -> None:
        """Of the partitions that are led there."""
        await self._caller.call(wire.PURGE, self._of(topic), timeout_ms=self._call_ms)

    async def stats(self, topic: Topic, *, is_detailed: bool = False) -> QueueStats:
        """Of the partitions that are led there."""
        led = self._led_there(topic)
        request = wire.Stats(topic.topic_id, topic.modified_at_ms, led, is_detailed)
        told = await self._caller.call(wire.STATS, request, timeout_ms=self._call_ms)
        return told.stats

    async def peek(
        self, topic: Topic, *, partition: int, start: int, count: int
    ) -> tuple[Sequence[Peeked], int]:
        request = wire.Peek(*self._head(topic, partition), start, count)
        told = await self._caller.call(wire.PEEK, request, timeout_ms=self._call_ms)
        return told.records, told.next_offset

    async def start_move(self, task: MoveTask) -> None:
        await self._caller.call(wire.START_MOVE, wire.StartMove(task), timeout_ms=self._call_ms)

    async def cancel_move(self, task_id: str) -> MoveTask | None:
        told = await self._caller.call(
            wire.CANCEL_MOVE, wire.CancelMove(task_id), timeout_ms=self._call_ms
        )
        return told.task

    async def moves_there(self, source_arn: str) -> Sequence[MoveTask]:
        """As that node has them: those that run there to the last record."""
        told = await self._caller.call(
            wire.MOVES, wire.ListMoves(source_arn), timeout_ms=self._call_ms
        )
        return told.tasks

    # ── model.ports.Streams ──────────────────────────────────────────────────────────────────

    async def append_batches(
        self, topic: Topic, partition: int, batches: Sequence[bytes | memoryview], *, acks: int
    ) -> BatchAppended:
        # A view is written into the frame as it is.
        whole: Sequence[bytes] = batches  # type: ignore[assignment]
        request = wire.AppendBatches(*self._head(topic, partition), acks, whole)
        told = await self._caller.call(wire.APPEND_BATCHES, request, timeout_ms=self._call_ms)
        return told.appended

    async def append_marker(self, topic: Topic, partition: int, marker: Marker) -> None:
        request = wire.AppendMarker(*self._head(topic, partition), marker)
        await self._caller.call(wire.APPEND_MARKER, request, timeout_ms=self._call_ms)

    async def is_in_transaction(
        self, topic: Topic, partition: int, producer_id: int, producer_epoch: int
    ) -> bool:
        request = wire.OfProducer(*self._head(topic, partition), producer_id, producer_epoch)
        told = await self._caller.call(wire.IS_IN_TRANSACTION, request, timeout_ms=self._call_ms)
        return told.is_so

    async def producers(self, topic: Topic, partition: int) -> Sequence[ProducerSeen]:
        request = self._at(topic, partition)
        told = await self._caller.call(wire.PRODUCERS, request, timeout_ms=self._call_ms)
        return told.producers

    async def ends(self, topic: Topic, partition: int) -> StreamEnds:
        request = self._at(topic, partition)
        return (await self._caller.call(wire.ENDS, request, timeout_ms=self._call_ms)).ends

    async def fetch(
        self,
        topic: Topic,
        partition: int,
        *,
        offset: int,
        bytes_max: int,
        is_committed: bool,
        as_slices: bool = False,  # noqa: ARG002 - the port's
    ) -> Fetched:
        """``as_slices`` is a permission that is of no use from afar."""
        request = wire.Fetch(*self._head(topic, partition), offset, bytes_max, is_committed)
        return wire.fetched_from(
            await self._caller.call(wire.FETCH, request, timeout_ms=self._call_ms)
        )

    async def find_time(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int]:
        request = wire.FindTime(*self._head(topic, partition), timestamp_ms)
        told = await self._caller.call(wire.FIND_TIME, request, timeout_ms=self._call_ms)
        return told.offset, told.timestamp_ms

    async def max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int]:
        request = self._at(topic, partition)
        told = await self._caller.call(wire.MAX_TIMESTAMP, request, timeout_ms=self._call_ms)
        return told.offset, told.timestamp_ms

    async def delete_records(self, topic: Topic, partition: int, before: int) -> int:
        request = wire.DeleteRecords(*self._head(topic, partition), before)
        told = await self._caller.call(wire.DELETE_RECORDS, request, timeout_ms=self._call_ms)
        return told.value

    async def log_bytes(self, topic: Topic, partition: int) -> int:
        request = self._at(topic, partition)
        return (await self._caller.call(wire.LOG_BYTES, request, timeout_ms=self._call_ms)).value

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return self._ends.add(topic, partition, listener)

    async def _ask_advanced(
        self, topic: Topic, known: Known[StreamEnds | None], wait_ms: int
    ) -> Told[StreamEnds | None]:
        request = wire.Advanced(topic.topic_id, topic.modified_at_ms, wait_ms, known)
        told = await self._parked.call(wire.ADVANCED, request, timeout_ms=wait_ms + WAIT_MARGIN_MS)
        return told.moved, told.gone

    # ── model.ports.Shares ───────────────────────────────────────────────────────────────────

    async def open_share(
        self,
        source: Topic,
        group: str,
        *,
        start: int,
        settings: QueueSettings = SETTINGS_DEFAULT,
        tags: Mapping[str, str] = NO_TAGS,
        attempts_max: int | None = None,
    ) -> Topic:
        request = wire.OpenShare(
            *self._head(source, 0), group, start, settings, dict(tags), attempts_max
        )
        return (await self._caller.call(wire.OPEN_SHARE, request, timeout_ms=self._call_ms)).share

    async def close_share(self, source: Topic, group: str) -> bool:
        request = wire.CloseShare(source.topic_id, source.modified_at_ms, group)
        told = await self._caller.call(wire.CLOSE_SHARE, request, timeout_ms=self._call_ms)
        return told.is_so

    async def acquire(
        self,
        share: Topic,
        partition: int,
        *,
        count: int,
        bytes_max: int,
        lease_ms: int,
        is_strict: bool = False,
    ) -> Acquired:
        self._ticket = ticket = self._ticket + 1
        request = wire.Acquire(
            *self._head(share, partition),
            count,
            bytes_max,
            lease_ms,
            self._session,
            ticket,
            is_strict,
        )
        try:
            told = await self._caller.call(wire.ACQUIRE, request, timeout_ms=self._call_ms)
        except (asyncio.CancelledError, *_UNREAD):
            self._give_back(self._caller, share, ticket)
            raise
        return told.acquired

    async def finish(
        self, share: Topic, partition: int, claims: Sequence[Claim], *, is_rejected: bool = False
    ) -> Sequence[Exception | None]:
        request = wire.Finish(*self._head(share, partition), claims, is_rejected)
        told = await self._caller.call(wire.FINISH, request, timeout_ms=self._call_ms)
        return wire.results_from(told)

    async def prolong(
        self, share: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        request = wire.Extend(*self._head(share, partition), claims)
        told = await self._caller.call(wire.PROLONG, request, timeout_ms=self._call_ms)
        return wire.results_from(told)

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return self._availability.add(share, partition, listener)

    async def _ask_available(self, share: Topic, known: Known[int], wait_ms: int) -> Told[int]:
        request = wire.Available(share.topic_id, share.modified_at_ms, wait_ms, known)
        told = await self._parked.call(wire.AVAILABLE, request, timeout_ms=wait_ms + WAIT_MARGIN_MS)
        return told.numbers, told.gone

    async def share_start(self, share: Topic, partition: int) -> int:
        request = self._at(share, partition)
        return (await self._caller.call(wire.SHARE_START, request, timeout_ms=self._call_ms)).value

    async def share_lag(self, share: Topic, partition: int) -> int:
        request = self._at(share, partition)
        return (await self._caller.call(wire.SHARE_LAG, request, timeout_ms=self._call_ms)).value

    async def restart_share(self, share: Topic, partition: int, offset: int) -> None:
        request = wire.RestartShare(*self._head(share, partition), offset)
        await self._caller.call(wire.RESTART_SHARE, request, timeout_ms=self._call_ms)
