"""Fetch: return batches of many partitions as they are in the log, and wait for them on request.

    read partitions that are due ── enough, an error, or no wait? ──► reply
              │ no
    watch partitions without records ─► wait until one advances, or for the timeout
              ▲                                 │
              └── read those that advanced, after what was found

A reply has whole batches: at most ``bytes_max`` in all and the limit of each partition, but always
at least one batch, or a batch above the limit would stop its reader for ever.

``sessions/fetch_sets.py`` has the partitions of a request. In a session (``fetch_sessions.py``) the
set outlives the request, with its watches: a partition without changes is neither read nor watched
again."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.frontend.kafka.checks import epoch_error, has_partition, locate_id, locate_name
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.offsets_view import as_offsets, bytes_to_read, log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.sessions.fetch_sessions import FINAL_EPOCH, FetchSession
from penstock.frontend.kafka.sessions.fetch_sets import (
    ADDED_AT_ONCE_MAX,
    FetchSet,
    Find,
    PartitionFetch,
    TopicKey,
    in_parts,
    is_large,
)
from penstock.frontend.kafka.sessions.waiting_fetches import Waker
from penstock.model.calls import Ends, Fetch
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import MIB
from penstock.model.topic import Topic
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    READ_COMMITTED,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
)
from penstock.wire.kafka.primitives import ZERO_UUID

_BY_ID_FROM = 13
RESPONSE_BYTES_MAX: Final = 55 * MIB  # whatever the request allows
WAIT_MS_MAX: Final = 60_000  # an early empty reply is always allowed
PARTITIONS_MAX: Final = 20_000  # of one session
FOUND_AT_ONCE_MAX: Final = 64  # topics; finding one takes up to 50 µs
STEP: Final = 64  # partitions between two checks of the time slice


async def run(call: KafkaCall, request: FetchRequest) -> FetchResponse:
    sessions = call.context.fetch_sessions
    if request.session_epoch != FINAL_EPOCH:
        sessions.attend(call.context.catalog)
    rights_turn = call.context.identities.epoch
    owner = (call.caller.account, call.caller.user)
    is_by_id = call.version >= _BY_ID_FROM
    find: Find = partial(_find, call)
    first, rest = request, list[list[FetchTopic]]()
    if is_large(request.topics):
        call.slices.begin()
        topics, *rest = in_parts(request.topics)
        first = msgspec.structs.replace(request, topics=topics, forgotten_topics=())
    stale = sessions.stale_topics(request.session_id, owner, rights_turn)
    if len(request.topics) + len(stale) > FOUND_AT_ONCE_MAX:
        named = [each.topic_id if is_by_id else each.name for each in request.topics]
        find = await _found_before(call, [*named, *stale])
    session = sessions.open(
        first,
        find,
        is_by_id=is_by_id,
        now_ms=call.context.clock.mono_ms(),
        owner=owner,
        rights_turn=rights_turn,
    )
    if isinstance(session, ErrorCode):
        return FetchResponse((), error_code=session)
    fetch = _Fetch(call, request, session)
    try:
        if rest and not await fetch.want(rest, find, request.forgotten_topics):
            return FetchResponse((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.size > PARTITIONS_MAX:
            if session.is_kept:
                sessions.drop(session)
            raise _too_many()
        if session.wanted.count > ADDED_AT_ONCE_MAX:
            await fetch.read_as()
        await fetch.look()
        if request.wait_ms_max > 0 and not fetch.is_enough:
            await fetch.wait(min(request.wait_ms_max, WAIT_MS_MAX))
            if fetch.pause_ms:
                call.connection.hold_back(fetch.pause_ms / 1_000)
            if call.context.identities.epoch != rights_turn:
                # The caller may have lost its rights during the wait.
                find = await _found_before(call, [*session.wanted.topics])
                fetch.check_turn()
                session.wanted.find_again(find)
                session.wanted.refuse_forbidden()
        return await fetch.reply()
    except _Overtaken:
        return FetchResponse((), error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    finally:
        if fetch.is_large:
            await fetch.end_in_slices()
        else:
            fetch.end()
        if sessions.dropped:
            await fetch.release_sets(sessions.dropped)


def _too_many() -> HangUp:
    return HangUp(f"a fetch of more than {PARTITIONS_MAX} partitions")


def _find(call: KafkaCall, key: TopicKey) -> Topic | ErrorCode:
    if isinstance(key, bytes):
        return locate_id(call, Operation.READ, key)
    return locate_name(call, Operation.READ, key)


async def _found_before(call: KafkaCall, keys: Iterable[TopicKey]) -> Find:
    """Find many topics in slices, before the session is changed at once."""
    found = {key: _find(call, key) async for key in call.slices.each(dict.fromkeys(keys))}
    return lambda key: found[key] if key in found else _find(call, key)


class _Overtaken(Exception):
    """The next request of the session came before the reply to this one."""


class _Fetch:
    """One request: what it has found, and whether that is enough for a reply."""

    __slots__ = (
        "_answered",
        "_broker",
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
        "_takes_slices",
        "_wanted",
        "_watches",
        "pause_ms",
    )

    def __init__(self, call: KafkaCall, request: FetchRequest, session: FetchSession) -> None:
        self._context = call.context
        self._broker = call.context.broker
        self._session = session
        self._epoch = session.epoch
        self._is_full = not session.is_kept  # the reply contains every partition
        # For later requests of the session; without a session only a wait needs watches.
        self._watches = session.is_kept or session.wants_id
        self._wanted = session.wanted
        self._wanted.is_busy = True
        self._bytes_max = min(request.bytes_max, RESPONSE_BYTES_MAX)
        self._bytes_min = min(request.bytes_min, self._bytes_max)
        self._is_committed = request.isolation_level == READ_COMMITTED
        if self._wanted.count <= ADDED_AT_ONCE_MAX:
            self._wanted.read_as(is_committed=self._is_committed)
        self._takes_slices = call.connection.takes_slices
        self._slices = call.slices
        self._size = 0
        self._answered = 0
        self._is_failed = False
        # For a client that may not wait here: without a pause it would retry at once.
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
        """The session was dropped for another: its client should learn that soon."""
        return not self._is_full and not self._session.is_kept

    # ── The partitions of a large request ────────────────────────────────────────────────────

    async def want(
        self, parts: Sequence[Sequence[FetchTopic]], find: Find, forgotten: Sequence[ForgottenTopic]
    ) -> bool:
        """Add the parts after the first, each in a slice of its own. Return False if there is no
        room for all and the session has ended."""
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

    async def look(self) -> list[PartitionFetch]:
        """Read partitions that are due. Return those that have more records than before."""
        wanted = self._wanted
        grown = []
        for number, one in enumerate(tuple(wanted.due)):
            if number % STEP == STEP - 1 and self._slices.is_over:
                await self._slices.next()
                self.check_turn()
                if one not in wanted.due:
                    continue
            if self._size >= self._bytes_max and self._size > 0 and not self._is_full:
                break  # the others stay due and come first next time
            del wanted.due[one]
            wanted.looked[one] = None
            before = one.size
            await self._look_at(one)
            if one.size > before:
                grown.append(one)
        return grown

    async def _look_at(self, one: PartitionFetch) -> None:
        topic = one.of.found
        if isinstance(topic, ErrorCode):
            one.code = topic
        elif not has_partition(topic, one.requested.index):
            one.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            try:
                await self._read(one, topic)
            except PenstockError as error:
                self.check_turn()
                one.code = partition_code(error)
        if one.code:
            self._is_failed = True

    async def _read(self, one: PartitionFetch, topic: Topic) -> None:
        """Read a partition and watch it if needed. Records that arrive between a read and its watch
        would wake no fetch, so a read without records counts only if it came after the watch."""
        log = log_of(self._context, topic)
        watches = self._watches and one.unwatch is None
        if watches and one.is_open and one.requested.offset >= one.sent_watermark:
            self._watch(one, log)
            watches = False
        requested, size = one.requested, self._size
        room = min(requested.bytes_max - one.size, self._bytes_max - size)
        if room <= 0 and size > 0:
            ends = await self._broker.call(Ends(log, requested.index))
            self.check_turn()
            one.ends = ends
            one.is_left = True
            return
        sealing = self._context.sealing
        is_view = log is not topic
        is_sealed = not is_view and sealing is not None and sealing.may_hold(topic)
        while True:
            fetched = await self._broker.call(
                Fetch(
                    log,
                    requested.index,
                    offset=one.next_offset,
                    bytes_max=bytes_to_read(room) if is_view else max(room, 0),
                    is_committed=self._is_committed,
                    as_slices=self._takes_slices and not (is_sealed or is_view),
                )
            )
            self.check_turn()
            if sealing is not None and is_sealed:
                fetched = await sealing.opened_fetch(topic, requested.index, fetched)
                self.check_turn()
            elif is_view:
                fetched = await as_offsets(self._context, fetched, self._slices)
                self.check_turn()
            one.code = epoch_error(requested.current_leader_epoch, fetched.ends.leader_epoch)
            if one.code:
                return
            one.is_open = True
            # A read returns at most ``bytes_max``, or else a single batch. That batch may exceed
            # the limit of its partition, but not that of a reply that has records already: so no
            # order of partitions starves one of them.
            taken = one.take(fetched, self._bytes_max - size + one.size if size > 0 else None)
            if fetched.record_count or not is_view:
                self._size += taken  # else no visible record was found
            if not watches or one.size or one.is_left:
                return
            self._watch(one, log)
            watches = False

    def _watch(self, one: PartitionFetch, topic: Topic) -> None:
        one.unwatch = self._broker.on_advance(topic, one.requested.index, one.advanced)

    def check_turn(self) -> None:
        """Call after every await. Raises _Overtaken if a later request uses the session."""
        if self._session.epoch != self._epoch:
            raise _Overtaken

    # ── Waiting ──────────────────────────────────────────────────────────────────────────────

    async def wait(self, wait_ms: int) -> None:
        """Wait for records, unless the tenant has its maximum number of waits."""
        quotas, account = self._context.quotas, self._context.account
        try:
            is_counted = quotas is not None and quotas.begin_wait(account)
        except Throttled as throttled:
            self.pause_ms = throttled.retry_after_ms
            return
        wanted, parked = self._wanted, self._context.parked
        waker = Waker()
        wanted.wake = waker.wake
        timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, waker.time_up)
        self._watches = True
        # Partitions with records are read until they have no more: a read may end at the end of a
        # segment. There is not more room than before, so partitions without room are skipped.
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

    async def reply(self) -> FetchResponse:
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
            await self._topic(each.key, each.partitions.values())
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
        keys: dict[TopicKey, list[PartitionFetch]] = {}
        for number, one in enumerate(self._wanted.looked):
            if number % STEP == STEP - 1 and self._slices.is_over:
                await self._slices.next()
                self.check_turn()
            if one.is_news:
                keys.setdefault(one.of.key, []).append(one)
        return [await self._topic(key, some) for key, some in keys.items()]

    async def _topic(self, key: TopicKey, some: Collection[PartitionFetch]) -> FetchTopicResponse:
        partitions = []
        for one in some:
            self._answered += 1
            if self._answered % STEP == 0 and self._slices.is_over:
                await self._slices.next()
                self.check_turn()
            partitions.append(one.reply(is_committed=self._is_committed))
        if isinstance(key, bytes):
            return FetchTopicResponse("", key, partitions)
        return FetchTopicResponse(key, ZERO_UUID, partitions)

    def _count(self) -> None:
        """Count records in the reply, without control batches."""
        if self._size:
            count = sum(one.record_count for one in self._wanted.looked)
            self._context.meter.received(count, self._size)
            if (usage := self._context.usage) is not None:
                for one in self._wanted.looked:
                    if one.size and isinstance(one.of.found, Topic):
                        usage.fetched(one.of.found, one.record_count, one.size)

    def end(self) -> None:
        """End the fetch, with or without a reply."""
        if self._session.epoch != self._epoch:
            return  # a later request uses the session
        if self._session.is_kept:
            self._wanted.settle()
        else:
            self._wanted.release()

    @property
    def is_large(self) -> bool:
        """Return whether ending the fetch takes more than a few milliseconds."""
        wanted = self._wanted
        return (len(wanted.looked) if self._session.is_kept else wanted.count) > ADDED_AT_ONCE_MAX

    async def end_in_slices(self) -> None:
        """As ``end``, in slices."""
        wanted, epoch = self._wanted, self._epoch
        steps = wanted.settling() if self._session.is_kept else wanted.releasing()
        try:
            while self._session.epoch == epoch and next(steps, self) is None:
                if self._slices.is_over:
                    await self._slices.next()
        finally:
            self.end()

    async def release_sets(self, dropped: list[FetchSet]) -> None:
        """Release the sets of ended sessions."""
        while dropped:
            for _ in dropped.pop().releasing():
                if self._slices.is_over:
                    await self._slices.next()
