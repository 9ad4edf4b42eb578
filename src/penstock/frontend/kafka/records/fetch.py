"""Handles Fetch: returns batches of many partitions as they are stored, and waits for new ones.

    read partitions that are due ── enough, an error, or no wait? ──► reply
              │ no
    watch partitions without records ─► wait until one advances, or for the timeout
              ▲                                 │
              └── read partitions that advanced, from the next offset on

A reply has whole batches, within ``bytes_max`` and the limit of each partition. The first batch may
exceed these limits: otherwise a large batch would stop its reader forever.

A ``FetchSet`` has the partitions of a request. In a fetch session, this set and its watches are
kept for the next request, so that a partition without changes is not read again."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.frontend.kafka.checks import epoch_error, has_partition, locate_id, locate_name
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.offsets_view import as_offsets, bytes_to_read, log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.sessions.by_identity import ByIdentity
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
from penstock.net.slices import Slices
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
WAIT_MS_MAX: Final = 60_000  # clients accept an empty reply before their timeout
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
    bytes_max = min(request.bytes_max, RESPONSE_BYTES_MAX)
    fetch = _Fetch(
        call.context,
        call.slices,
        session,
        session.wanted,
        session.epoch,
        not session.is_kept,
        session.is_kept or session.wants_id,
        bytes_max,
        min(request.bytes_min, bytes_max),
        request.isolation_level == READ_COMMITTED,
        call.connection.takes_slices,
    )
    try:
        if rest and not await fetch.want(rest, find, request.forgotten_topics):
            return FetchResponse((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.size > PARTITIONS_MAX:
            if session.is_kept:
                sessions.drop(session)
            raise HangUp(f"a fetch has more than {PARTITIONS_MAX} partitions")
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


def _find(call: KafkaCall, key: TopicKey) -> Topic | ErrorCode:
    if isinstance(key, bytes):
        return locate_id(call, Operation.READ, key)
    return locate_name(call, Operation.READ, key)


async def _found_before(call: KafkaCall, keys: Iterable[TopicKey]) -> Find:
    """Look up many topics in time slices. Return a function that gives the topic for a key."""
    found = {key: _find(call, key) async for key in call.slices.each(dict.fromkeys(keys))}
    return lambda key: found[key] if key in found else _find(call, key)


class _Overtaken(Exception):
    """Raised if the next request of the session arrives before the reply to this request."""


class _Fetch(ByIdentity):
    """A fetch request that is being handled, with the records found so far."""

    context: KafkaContext
    slices: Slices
    session: FetchSession
    wanted: FetchSet
    epoch: int
    is_full: bool  # the reply contains every partition
    # Whether partitions are watched: always in a session, otherwise only while the request waits.
    watches: bool
    bytes_max: int
    bytes_min: int
    is_committed: bool
    takes_slices: bool
    size: int = 0
    answered: int = 0
    is_failed: bool = False
    pause_ms: int = 0  # of a client whose wait is rejected, because it would retry at once

    def __post_init__(self) -> None:
        self.wanted.is_busy = True
        if self.wanted.count <= ADDED_AT_ONCE_MAX:
            self.wanted.read_as(is_committed=self.is_committed)

    @property
    def is_enough(self) -> bool:
        return (
            self.size >= self.bytes_min
            or self.is_failed
            or not self.wanted.count
            or self.context.parked.is_draining
            # The session was dropped to make room, which its client should know soon.
            or not (self.is_full or self.session.is_kept)
        )

    async def want(
        self, parts: Sequence[Sequence[FetchTopic]], find: Find, forgotten: Sequence[ForgottenTopic]
    ) -> bool:
        """Add the second and later parts of a large request. Return False if there is no room."""
        sessions = self.context.fetch_sessions
        for part in parts:
            await self.slices.next()
            self.check_turn()
            gone = forgotten if part is parts[-1] else ()
            if not sessions.grow(self.session, part, gone, find):
                return False
        return True

    async def read_as(self) -> None:
        for _ in self.wanted.reading_as(is_committed=self.is_committed):
            if self.slices.is_over:
                await self.slices.next()
                self.check_turn()

    async def look(self) -> list[PartitionFetch]:
        """Read partitions that are due. Return those in which records were found."""
        wanted = self.wanted
        grown = []
        for number, one in enumerate(tuple(wanted.due)):
            if number % STEP == STEP - 1 and self.slices.is_over:
                await self.slices.next()
                self.check_turn()
                if one not in wanted.due:
                    continue
            if self.size >= self.bytes_max and self.size > 0 and not self.is_full:
                break  # the others stay due and come first next time
            del wanted.due[one]
            wanted.looked[one] = None
            before, topic = one.size, one.of.found
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
                self.is_failed = True
            if one.size > before:
                grown.append(one)
        return grown

    async def _read(self, one: PartitionFetch, topic: Topic) -> None:
        """Read a partition, and watch it for new records if needed. An empty read is repeated once
        the watch has begun, because records may have arrived in between."""
        log = log_of(self.context, topic)
        watches = self.watches and one.unwatch is None
        if watches and one.is_open and one.requested.offset >= one.sent_watermark:
            self._watch(one, log)
            watches = False
        requested, size = one.requested, self.size
        room = min(requested.bytes_max - one.size, self.bytes_max - size)
        if room <= 0 and size > 0:
            ends = await self.context.broker.call(Ends(log, requested.index))
            self.check_turn()
            one.ends = ends
            one.is_left = True
            return
        sealing = self.context.sealing
        is_view = log is not topic
        is_sealed = not is_view and sealing is not None and sealing.may_hold(topic)
        while True:
            fetched = await self.context.broker.call(
                Fetch(
                    log,
                    requested.index,
                    offset=one.next_offset,
                    bytes_max=bytes_to_read(room) if is_view else max(room, 0),
                    is_committed=self.is_committed,
                    as_slices=self.takes_slices and not (is_sealed or is_view),
                )
            )
            self.check_turn()
            if sealing is not None and is_sealed:
                fetched = await sealing.opened_fetch(topic, requested.index, fetched)
                self.check_turn()
            elif is_view:
                fetched = await as_offsets(self.context, fetched, self.slices)
                self.check_turn()
            one.code = epoch_error(requested.current_leader_epoch, fetched.ends.leader_epoch)
            if one.code:
                return
            one.is_open = True
            # A read returns at most ``bytes_max``, or else a single batch. This batch may exceed
            # the limit of its partition, but not the limit of a reply that has records already.
            # So every partition is read at some time, whatever their order.
            taken = one.take(fetched, self.bytes_max - size + one.size if size > 0 else None)
            if fetched.record_count or not is_view:
                self.size += taken  # otherwise no visible record was found
            if not watches or one.size or one.is_left:
                return
            self._watch(one, log)
            watches = False

    def _watch(self, one: PartitionFetch, topic: Topic) -> None:
        one.unwatch = self.context.broker.on_advance(topic, one.requested.index, one.advanced)

    def check_turn(self) -> None:
        """Raise _Overtaken if a later request uses the session. Called after every await."""
        if self.session.epoch != self.epoch:
            raise _Overtaken

    async def wait(self, wait_ms: int) -> None:
        """Wait for records, unless too many requests of the tenant are already waiting."""
        wanted, context = self.wanted, self.context
        try:
            waker = Waker(context.quotas, context.account, wait_ms)
        except Throttled as throttled:
            self.pause_ms = throttled.retry_after_ms
            return
        wanted.wake = waker.wake
        self.watches = True
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
                    await context.parked.wait(waker.future)
                    self.slices.begin()
                    self.check_turn()
                    waker.renew()
        finally:
            waker.end()

    async def reply(self) -> FetchResponse:
        self._count()
        session = self.session
        if self.slices.is_over:
            await self.slices.next()
            self.check_turn()
        if not self.is_full:
            return FetchResponse(
                await self._news(), session_id=session.session_id, throttle_time_ms=self.pause_ms
            )
        topics = [
            await self._topic(each.key, each.partitions.values())
            for each in self.wanted.topics.values()
        ]
        if session.wants_id:
            context = self.context
            context.fetch_sessions.keep(
                session,
                now_ms=context.clock.mono_ms(),
                chance=lambda: int.from_bytes(context.entropy(4), "big"),
            )
            self.epoch = session.epoch
        return FetchResponse(topics, session_id=session.session_id, throttle_time_ms=self.pause_ms)

    async def _news(self) -> Sequence[FetchTopicResponse]:
        keys: dict[TopicKey, list[PartitionFetch]] = {}
        for number, one in enumerate(self.wanted.looked):
            if number % STEP == STEP - 1 and self.slices.is_over:
                await self.slices.next()
                self.check_turn()
            if one.is_news:
                keys.setdefault(one.of.key, []).append(one)
        return [await self._topic(key, some) for key, some in keys.items()]

    async def _topic(self, key: TopicKey, some: Collection[PartitionFetch]) -> FetchTopicResponse:
        partitions = []
        for one in some:
            self.answered += 1
            if self.answered % STEP == 0 and self.slices.is_over:
                await self.slices.next()
                self.check_turn()
            partitions.append(one.reply(is_committed=self.is_committed))
        if isinstance(key, bytes):
            return FetchTopicResponse("", key, partitions)
        return FetchTopicResponse(key, ZERO_UUID, partitions)

    def _count(self) -> None:
        """Count the records in the reply, except control batches, in metrics and usage."""
        if self.size:
            count = sum(one.record_count for one in self.wanted.looked)
            self.context.meter.received(count, self.size)
            if (usage := self.context.usage) is not None:
                for one in self.wanted.looked:
                    if one.size and isinstance(one.of.found, Topic):
                        usage.fetched(one.of.found, one.record_count, one.size)

    def end(self) -> None:
        if self.session.epoch != self.epoch:
            return  # a later request uses the session
        if self.session.is_kept:
            self.wanted.settle()
        else:
            self.wanted.release()

    @property
    def is_large(self) -> bool:
        """Return whether ending the fetch takes more than a few milliseconds."""
        wanted = self.wanted
        return (len(wanted.looked) if self.session.is_kept else wanted.count) > ADDED_AT_ONCE_MAX

    async def end_in_slices(self) -> None:
        """Do the same as ``end``, in time slices."""
        wanted, epoch = self.wanted, self.epoch
        steps = wanted.settling() if self.session.is_kept else wanted.releasing()
        try:
            while self.session.epoch == epoch and next(steps, self) is None:
                if self.slices.is_over:
                    await self.slices.next()
        finally:
            self.end()

    async def release_sets(self, dropped: list[FetchSet]) -> None:
        while dropped:
            for _ in dropped.pop().releasing():
                if self.slices.is_over:
                    await self.slices.next()
