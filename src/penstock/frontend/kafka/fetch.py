"""Fetch: batches from many partitions, as they are in the log, waiting for them if asked to.

    look at all partitions ── enough, an error, or no wait? ──► answer
              │ no
    be told of every advance ─► look once more ─► wait until told, or until the time is up
                                      ▲                 │
                                      └── look where it advanced, go on behind what is held

How much is returned: ``bytes_max`` in all and each partition's own bound, in whole batches, and in
any case one batch, or a batch larger than the bound would stop its reader for good.

Fetch sessions are not kept: every answer has session id 0, upon which clients name all their
partitions in every request. A session would save those bytes, and only for readers of very many
partitions are they worth a memory per reader."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.topics import code_for, epoch_refusal, has_partition, locate
from penstock.model.errors import PenstockError
from penstock.model.limits import MIB
from penstock.model.ports import Fetched, StreamEnds
from penstock.model.topic import Topic
from penstock.net.kafka import HangUp
from penstock.record.batch import ATTR_CONTROL, parse_header
from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from penstock.wire.kafka.fetch_request import READ_COMMITTED

_BY_ID_FROM = 13
RESPONSE_BYTES_MAX: Final = 55 * MIB  # whatever a client asks for
WAIT_MS_MAX: Final = 60_000  # an early empty answer is always allowed
PARTITIONS_MAX: Final = 20_000  # of one request

_ATTRIBUTES_LOW_AT = 22  # the low byte of a batch's attributes
_COUNT_AT = slice(57, 61)


async def run(context: KafkaContext, call: KafkaCall, asked: FetchRequest) -> FetchResponse:
    if asked.session_id != 0:
        return FetchResponse((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if sum(len(each.partitions) for each in asked.topics) > PARTITIONS_MAX:
        raise HangUp(f"a fetch of more than {PARTITIONS_MAX} partitions")
    is_id = call.version >= _BY_ID_FROM
    sought = [
        [
            _Sought(locate(context, each.name, each.topic_id, is_id=is_id), one)
            for one in each.partitions
        ]
        for each in asked.topics
    ]
    look = _Look(context, asked, [one for group in sought for one in group])
    await look.at(look.live)
    if not look.is_enough and asked.wait_ms_max > 0 and not context.parked.is_draining:
        await _wait(context, look, min(asked.wait_ms_max, WAIT_MS_MAX))
    look.count()
    return FetchResponse(
        [
            FetchTopicResponse(
                each.name, each.topic_id, [one.answer(look.is_committed) for one in group]
            )
            for each, group in zip(asked.topics, sought, strict=True)
        ]
    )


class _Sought:
    """One partition of the request and what has been found of it so far."""

    __slots__ = ("aborted", "asked", "batches", "code", "ends", "size", "topic")

    def __init__(self, topic: Topic | ErrorCode, asked: FetchPartition) -> None:
        self.asked = asked
        self.topic: Topic | None = None
        self.code = ErrorCode.NONE
        if isinstance(topic, ErrorCode):
            self.code = topic
        elif not has_partition(topic, asked.index):
            self.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            self.topic = topic
        self.ends: StreamEnds | None = None
        self.batches: list[bytes] = []
        self.size = 0
        self.aborted: dict[tuple[int, int], None] = {}

    def next_offset(self) -> int:
        """Where to go on: what is held is not read again."""
        return parse_header(self.batches[-1]).next_offset if self.batches else self.asked.offset

    def take(self, fetched: Fetched, room: int | None) -> None:
        """As many whole batches as fit into ``room``; None: at least one, whatever its size."""
        self.ends = fetched.ends
        self.code = epoch_refusal(self.asked.current_leader_epoch, fetched.ends.leader_epoch)
        if self.code:
            return
        for batch in fetched.batches:
            if room is not None and self.size + len(batch) > room:
                break
            self.batches.append(batch)
            self.size += len(batch)
        self.aborted.update(dict.fromkeys(fetched.aborted))

    def answer(self, is_committed: bool) -> FetchPartitionResponse:
        if self.code or self.ends is None:
            return FetchPartitionResponse(self.asked.index, self.code)
        return FetchPartitionResponse(
            self.asked.index,
            high_watermark=self.ends.high_watermark,
            last_stable_offset=self.ends.last_stable_offset,
            log_start_offset=self.ends.start_offset,
            records=self.batches,
            aborted=[AbortedTransaction(*each) for each in self.aborted] if is_committed else None,
        )


class _Look:
    """What one request has found, and whether that is enough to answer it."""

    __slots__ = ("_bytes_max", "_bytes_min", "_meter", "_streams", "is_committed", "live", "sought")

    def __init__(
        self, context: KafkaContext, asked: FetchRequest, sought: Sequence[_Sought]
    ) -> None:
        self._streams = context.streams
        self._meter = context.meter
        self._bytes_max = min(asked.bytes_max, RESPONSE_BYTES_MAX)
        self._bytes_min = min(asked.bytes_min, self._bytes_max)
        self.is_committed = asked.isolation_level == READ_COMMITTED
        self.sought = sought
        self.live = [one for one in sought if one.topic is not None]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.live)

    @property
    def is_enough(self) -> bool:
        return not self.live or self.size >= self._bytes_min or any(one.code for one in self.sought)

    async def at(self, some: Collection[_Sought]) -> set[_Sought]:
        """Returns those of which there is more now than before."""
        size = self.size
        grown = set()
        for one in some:
            before = one.size
            await self._at_one(one, size)
            if one.size > before:
                size += one.size - before
                grown.add(one)
        return grown

    async def _at_one(self, one: _Sought, size: int) -> None:
        topic, asked = one.topic, one.asked
        assert topic is not None, "only those that are there are looked at"
        room = min(asked.bytes_max - one.size, self._bytes_max - size)
        try:
            if room <= 0 and size > 0:
                one.ends = await self._streams.ends(topic, asked.index)
                return
            fetched = await self._streams.fetch(
                topic,
                asked.index,
                offset=one.next_offset(),
                bytes_max=max(room, 0),
                is_committed=self.is_committed,
            )
        except PenstockError as error:
            one.code = code_for(error)
            return
        # The bound of the whole holds once there is anything; a partition's own gives way to its
        # first batch, so that no order of partitions starves one of them.
        one.take(fetched, self._bytes_max - size + one.size if size > 0 else None)

    def count(self) -> None:
        """Records handed out, control batches apart. Once per answer."""
        count = size = 0
        for one in self.live:
            size += one.size
            for batch in one.batches:
                if not batch[_ATTRIBUTES_LOW_AT] & ATTR_CONTROL:
                    count += int.from_bytes(batch[_COUNT_AT], "big")
        if size:
            self._meter.received(count, size)


class _Waker:
    """Remembers which partitions have advanced, and wakes the one who waits for any."""

    __slots__ = ("_advanced", "_loop", "future", "is_time_up")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._advanced: set[_Sought] = set()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.is_time_up = False

    def advance(self, one: _Sought) -> None:
        self._advanced.add(one)
        self._wake()

    def time_up(self) -> None:
        self.is_time_up = True
        self._wake()

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def take(self) -> set[_Sought]:
        advanced, self._advanced = self._advanced, set()
        if not self.is_time_up:
            self.future = self._loop.create_future()
        return advanced


async def _wait(context: KafkaContext, look: _Look, wait_ms: int) -> None:
    waker = _Waker()
    timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, waker.time_up)
    endings: list[Callable[[], None]] = []
    try:
        for one in look.live:
            assert one.topic is not None
            endings.append(
                context.streams.on_advance(one.topic, one.asked.index, partial(waker.advance, one))
            )
        # What came between the first look and now has woken nobody.
        some: Collection[_Sought] = look.live
        while True:
            grown = await look.at(some)
            if look.is_enough or waker.is_time_up or context.parked.is_draining:
                return
            if not grown:
                await context.parked.wait(waker.future)
            # A read may end early, with its segment: where there was something, there may be more.
            some = waker.take() | grown
    finally:
        timer.cancel()
        for end in endings:
            end()


ACTION = KafkaAction(FETCH, run)
