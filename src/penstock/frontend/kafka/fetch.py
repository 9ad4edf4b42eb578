"""Fetch: batches from many partitions, as they are in the log, waiting for them if asked to.

    look at what is due ── enough, an error, or no wait? ──► answer
              │ no
    watch all that has nothing ─► wait until one advances, or until the time is up
              ▲                                 │
              └── look at those that advanced, go on behind what is held

How much is returned: ``bytes_max`` in all and each partition's own bound, in whole batches, and in
any case one batch, or a batch larger than the bound would stop its reader for good.

Which partitions a request is about is kept by ``fetch_sessions.py`` for clients that want it so;
others name all of theirs every time, and are answered about all of them. Either way the same set
(``sought.py``) says where to look. In a session it outlives the request, and with it the watches:
a partition in which nothing happens is neither looked at nor watched anew."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.fetch_sessions import FINAL_EPOCH, FetchSession
from penstock.frontend.kafka.offsets_view import as_offsets, bytes_to_read, log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.sought import (
    WANTED_AT_ONCE_MAX,
    Find,
    Place,
    Sought,
    SoughtSet,
    in_parts,
    is_large,
)
from penstock.frontend.kafka.topics import (
    code_for,
    epoch_refusal,
    has_partition,
    locate_id,
    locate_name,
)
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import MIB
from penstock.model.topic import Topic
from penstock.net.kafka import HangUp
from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchRequest, FetchResponse, FetchTopicResponse
from penstock.wire.kafka.fetch_request import READ_COMMITTED, FetchTopic, ForgottenTopic
from penstock.wire.kafka.primitives import ZERO_UUID

_BY_ID_FROM = 13
RESPONSE_BYTES_MAX: Final = 55 * MIB  # whatever a client asks for
WAIT_MS_MAX: Final = 60_000  # an early empty answer is always allowed
PARTITIONS_MAX: Final = 20_000  # of one session
FOUND_AT_ONCE_MAX: Final = 64  # places; each takes up to 50 µs to look up and to authorize
STEP: Final = 64  # partitions between two looks at the clock


async def run(context: KafkaContext, call: KafkaCall, asked: FetchRequest) -> FetchResponse:
    sessions = context.fetch_sessions
    if asked.session_epoch != FINAL_EPOCH:
        sessions.attend(context.catalog)
    rights_turn = context.identities.epoch
    owner = (call.caller.account, call.caller.user)
    is_by_id = call.version >= _BY_ID_FROM
    find: Find = partial(_find, context, call)
    first, rest = asked, list[list[FetchTopic]]()
    if is_large(asked.topics):
        call.slices.begin()
        topics, *rest = in_parts(asked.topics)
        first = msgspec.structs.replace(asked, topics=topics, forgotten_topics=())
    stale = sessions.stale_places(asked.session_id, owner, rights_turn)
    if len(asked.topics) + len(stale) > FOUND_AT_ONCE_MAX:
        named = [each.topic_id if is_by_id else each.name for each in asked.topics]
        find = await _found_before(context, call, [*named, *stale])
    session = sessions.open(
        first,
        find,
        is_by_id=is_by_id,
        now_ms=context.clock.mono_ms(),
        owner=owner,
        rights_turn=rights_turn,
    )
    if isinstance(session, ErrorCode):
        return FetchResponse((), error_code=session)
    fetch = _Fetch(context, call, asked, session)
    try:
        if rest and not await fetch.want(rest, find, asked.forgotten_topics):
            return FetchResponse((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.size > PARTITIONS_MAX:
            if session.is_kept:
                sessions.drop(session)
            raise _too_many()
        if session.wanted.count > WANTED_AT_ONCE_MAX:
            await fetch.read_as()
        await fetch.look()
        if asked.wait_ms_max > 0 and not fetch.is_enough:
            await fetch.wait(min(asked.wait_ms_max, WAIT_MS_MAX))
            if fetch.pause_ms:
                call.connection.hold_back(fetch.pause_ms / 1_000)
            if context.identities.epoch != rights_turn:
                # While it waited the caller may have lost the right to what has come.
                find = await _found_before(context, call, [*session.wanted.topics])
                fetch.check_turn()
                session.wanted.find_again(find)
                session.wanted.refuse_forbidden()
        return await fetch.answer()
    except _Overtaken:
        return FetchResponse((), error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    finally:
        if fetch.is_large:
            await fetch.end_in_slices()
        else:
            fetch.end()
        if sessions.dropped:
            await fetch.let_go_of(sessions.dropped)


def _too_many() -> HangUp:
    return HangUp(f"a fetch of more than {PARTITIONS_MAX} partitions")


def _find(context: KafkaContext, call: KafkaCall, place: Place) -> Topic | ErrorCode:
    if isinstance(place, bytes):
        return locate_id(context, call, Operation.READ, place)
    return locate_name(context, call, Operation.READ, place)


async def _found_before(context: KafkaContext, call: KafkaCall, places: Iterable[Place]) -> Find:
    """Look many places up in slices, before the session is changed in one go."""
    found = {
        place: _find(context, call, place)
        async for place in call.slices.each(dict.fromkeys(places))
    }
    return lambda place: found[place] if place in found else _find(context, call, place)


class _Overtaken(Exception):
    """The session's next request came before this one was answered."""


class _Fetch:
    """One request: what it has found, and whether that is enough to answer it."""

    __slots__ = (
        "_answered",
        "_bytes_max",
        "_bytes_min",
        "_context",
        "_epoch",
        "_is_committed",
        "_is_failed",
        "_is_full",
        "_session",
        "_size",
        "_slices",
        "_streams",
        "_takes_slices",
        "_wanted",
        "_watches",
        "pause_ms",
    )

    def __init__(
        self,
        context: KafkaContext,
        call: KafkaCall,
        asked: FetchRequest,
        session: FetchSession,
    ) -> None:
        self._context = context
        self._streams = context.streams
        self._session = session
        self._epoch = session.epoch
        self._is_full = not session.is_kept  # and so is the answer: it names every partition
        # For the requests to come; a fetch alone watches when it has to wait.
        self._watches = session.is_kept or session.wants_id
        self._wanted = session.wanted
        self._wanted.is_busy = True
        self._bytes_max = min(asked.bytes_max, RESPONSE_BYTES_MAX)
        self._bytes_min = min(asked.bytes_min, self._bytes_max)
        self._is_committed = asked.isolation_level == READ_COMMITTED
        if self._wanted.count <= WANTED_AT_ONCE_MAX:
            self._wanted.read_as(is_committed=self._is_committed)
        self._takes_slices = call.connection.takes_slices
        self._slices = call.slices
        self._size = 0
        self._answered = 0
        self._is_failed = False
        # For its client, who must not wait here: without a pause it would ask again at once.
        self.pause_ms = 0

    @property
    def is_enough(self) -> bool:
        return (
            self._size >= self._bytes_min
            or self._is_failed
            or not self._wanted.count
            or self._context.parked.is_draining
            or self._is_dropped
        )

    @property
    def _is_dropped(self) -> bool:
        """The session had to make room for another: its client should know soon."""
        return not self._is_full and not self._session.is_kept

    # ── The partitions of a large request ────────────────────────────────────────────────────

    async def want(
        self,
        parts: Sequence[Sequence[FetchTopic]],
        find: Find,
        forgotten: Sequence[ForgottenTopic],
    ) -> bool:
        """Take up the parts after the first, each in a turn of its own. False if the session is
        over because there is no room for all of them."""
        sessions = self._context.fetch_sessions
        for part in parts:
            await self._slices.next()
            self.check_turn()
            gone = forgotten if part is parts[-1] else ()
            if not sessions.grow(self._session, part, gone, find):
                return False
        return True

    async def read_as(self) -> None:
        for _ in self._wanted.reading_as(is_committed=self._is_committed):
            if self._slices.is_over:
                await self._slices.next()
                self.check_turn()

    # ── Looking ──────────────────────────────────────────────────────────────────────────────

    async def look(self) -> list[Sought]:
        """At all that is due; returns those of which there is more now than before."""
        wanted = self._wanted
        grown = []
        for number, one in enumerate(tuple(wanted.due)):
            if number % STEP == STEP - 1 and self._slices.is_over:
                await self._slices.next()
                self.check_turn()
                if one not in wanted.due:
                    continue
            if self._size >= self._bytes_max and self._size > 0 and not self._is_full:
                break  # the others stay due, and come first the next time
            del wanted.due[one]
            wanted.looked[one] = None
            before = one.size
            await self._look_at(one)
            if one.size > before:
                grown.append(one)
        return grown

    async def _look_at(self, one: Sought) -> None:
        topic = one.of.found
        if isinstance(topic, ErrorCode):
            one.code = topic
        elif not has_partition(topic, one.asked.index):
            one.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            try:
                await self._read(one, topic)
            except PenstockError as error:
                self.check_turn()
                one.code = code_for(error)
        if one.code:
            self._is_failed = True

    async def _read(self, one: Sought, topic: Topic) -> None:
        """And watch it, where that is called for. What comes between a read and a watch wakes
        nobody, so a read that finds nothing counts only if it is behind the watch."""
        log = log_of(self._context, topic)
        watches = self._watches and one.unwatch is None
        if watches and one.is_open and one.asked.offset >= one.told_watermark:
            self._watch(one, log)
            watches = False
        asked, size = one.asked, self._size
        room = min(asked.bytes_max - one.size, self._bytes_max - size)
        if room <= 0 and size > 0:
            ends = await self._streams.ends(log, asked.index)
            self.check_turn()
            one.ends = ends
            one.is_left = True
            return
        sealing = self._context.sealing
        is_view = log is not topic
        is_sealed = not is_view and sealing is not None and sealing.may_hold(topic)
        while True:
            fetched = await self._streams.fetch(
                log,
                asked.index,
                offset=one.next_offset,
                bytes_max=bytes_to_read(room) if is_view else max(room, 0),
                is_committed=self._is_committed,
                as_slices=self._takes_slices and not (is_sealed or is_view),
            )
            self.check_turn()
            if sealing is not None and is_sealed:
                fetched = await sealing.opened_fetch(topic, asked.index, fetched)
                self.check_turn()
            elif is_view:
                fetched = await as_offsets(self._context, fetched, self._slices)
                self.check_turn()
            one.code = epoch_refusal(asked.current_leader_epoch, fetched.ends.leader_epoch)
            if one.code:
                return
            one.is_open = True
            # A read brings no more than was asked for, or else a single batch. For that one the
            # bound of the whole holds once there is anything; a partition's own gives way, so
            # that no order of partitions starves one of them.
            taken = one.take(fetched, self._bytes_max - size + one.size if size > 0 else None)
            if fetched.record_count or not is_view:
                self._size += taken  # else it has nothing that a reader waits for
            if not watches or one.size or one.is_left:
                return
            self._watch(one, log)
            watches = False

    def _watch(self, one: Sought, topic: Topic) -> None:
        one.unwatch = self._streams.on_advance(topic, one.asked.index, one.advanced)

    def check_turn(self) -> None:
        """After every await: a later request may have taken the session over."""
        if self._session.epoch != self._epoch:
            raise _Overtaken

    # ── Waiting ──────────────────────────────────────────────────────────────────────────────

    async def wait(self, wait_ms: int) -> None:
        """Not at all if its tenant has as many that wait as it may."""
        quotas, account = self._context.quotas, self._context.account
        try:
            is_counted = quotas is not None and quotas.begin_wait(account)
        except Throttled as refusal:
            self.pause_ms = refusal.retry_after_ms
            return
        wanted, parked = self._wanted, self._context.parked
        waker = _Waker()
        wanted.wake = waker.wake
        timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, waker.time_up)
        self._watches = True
        # What holds something is looked at until it has nothing more: a read may end early, with
        # its segment. Nobody has more room than before, so what was left is left alone.
        again = [one for one in wanted.looked if one.unwatch is None and not one.is_left]
        try:
            while True:
                wanted.due.update(dict.fromkeys(again))
                again = await self.look()
                if self.is_enough or waker.is_time_up:
                    return
                if not again and not wanted.due:
                    await parked.wait(waker.future)
                    self._slices.begin()
                    self.check_turn()
                    waker.renew()
        finally:
            timer.cancel()
            if quotas is not None and is_counted:
                quotas.end_wait(account)

    # ── Answering ────────────────────────────────────────────────────────────────────────────

    async def answer(self) -> FetchResponse:
        self._count()
        session = self._session
        if self._slices.is_over:
            await self._slices.next()
            self.check_turn()
        if not self._is_full:
            return FetchResponse(
                await self._news(), session_id=session.session_id, throttle_time_ms=self.pause_ms
            )
        topics = [
            await self._topic(each.place, each.partitions.values())
            for each in self._wanted.topics.values()
        ]
        if session.wants_id:
            context = self._context
            context.fetch_sessions.keep(
                session,
                now_ms=context.clock.mono_ms(),
                chance=lambda: int.from_bytes(context.entropy(4), "big"),
            )
            self._epoch = session.epoch
        return FetchResponse(topics, session_id=session.session_id, throttle_time_ms=self.pause_ms)

    async def _news(self) -> Sequence[FetchTopicResponse]:
        places: dict[Place, list[Sought]] = {}
        for number, one in enumerate(self._wanted.looked):
            if number % STEP == STEP - 1 and self._slices.is_over:
                await self._slices.next()
                self.check_turn()
            if one.is_news:
                places.setdefault(one.of.place, []).append(one)
        return [await self._topic(place, some) for place, some in places.items()]

    async def _topic(self, place: Place, some: Collection[Sought]) -> FetchTopicResponse:
        partitions = []
        for one in some:
            self._answered += 1
            if self._answered % STEP == 0 and self._slices.is_over:
                await self._slices.next()
                self.check_turn()
            partitions.append(one.answer(is_committed=self._is_committed))
        if isinstance(place, bytes):
            return FetchTopicResponse("", place, partitions)
        return FetchTopicResponse(place, ZERO_UUID, partitions)

    def _count(self) -> None:
        """Records handed out, control batches apart. Once per answer."""
        if self._size:
            count = sum(one.record_count for one in self._wanted.looked)
            self._context.meter.received(count, self._size)
            if (usage := self._context.usage) is not None:
                for one in self._wanted.looked:
                    if one.size and isinstance(one.of.found, Topic):
                        usage.fetched(one.of.found, one.record_count, one.size)

    def end(self) -> None:
        """Answered or not."""
        if self._session.epoch != self._epoch:
            return  # the later request has it now
        if self._session.is_kept:
            self._wanted.settle()
        else:
            self._wanted.let_go()

    @property
    def is_large(self) -> bool:
        """Whether its end takes more than a few milliseconds."""
        wanted = self._wanted
        return (len(wanted.looked) if self._session.is_kept else wanted.count) > WANTED_AT_ONCE_MAX

    async def end_in_slices(self) -> None:
        """As ``end``, with other work of the loop done in between."""
        wanted, epoch = self._wanted, self._epoch
        steps = wanted.settling() if self._session.is_kept else wanted.letting_go()
        try:
            while self._session.epoch == epoch and next(steps, self) is None:
                if self._slices.is_over:
                    await self._slices.next()
        finally:
            self.end()

    async def let_go_of(self, dropped: list[SoughtSet]) -> None:
        """Of sessions that are over."""
        while dropped:
            for _ in dropped.pop().letting_go():
                if self._slices.is_over:
                    await self._slices.next()


class _Waker:
    """Wakes the one who waits: something advanced, or the time is up."""

    __slots__ = ("_loop", "future", "is_time_up")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.is_time_up = False

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def time_up(self) -> None:
        self.is_time_up = True
        self.wake()

    def renew(self) -> None:
        """For what comes from now on; what came before can be seen."""
        if not self.is_time_up:
            self.future = self._loop.create_future()


ACTION = KafkaAction(FETCH, run)
