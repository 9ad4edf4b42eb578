"""ShareFetch: records leased to one member of a share group, and acknowledgements on the way.

    session ─► acknowledge ─► lease from its partitions ── anything, or no wait? ──► answer
                                        │ nothing
              be told when there is more ─► look once more ─► wait until told, or time is up

Leases begin when records are taken, so the first that are found are handed over at once: waiting
for ``min_bytes`` of them would be time taken from the member. ``max_records`` is never exceeded, in
either acquire mode. Records travel as the batches they are stored in; which of them are the
member's is said by offset ranges beside them.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.share_leases import (
    acknowledge,
    close_session,
    open_session,
    release,
    share_at,
)
from penstock.frontend.kafka.share_sessions import (
    CLOSING,
    OPENING,
    Picks,
    Place,
    ShareSession,
)
from penstock.frontend.kafka.topics import code_for, find_id
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import MIB
from penstock.model.message import Claim
from penstock.model.topic import Topic
from penstock.wire.kafka.apis import SHARE_FETCH
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.share_fetch import ShareFetchRequest
from penstock.wire.kafka.share_fetch import ShareFetchReply, SharePartitionReply, ShareTopicReply

RESPONSE_BYTES_MAX: Final = 55 * MIB  # whatever a client asks for
WAIT_MS_MAX: Final = 60_000  # an early empty answer is always allowed
COUNT_MAX: Final = 32_767  # of deliveries, as the field has it


async def run(context: KafkaContext, call: KafkaCall, asked: ShareFetchRequest) -> ShareFetchReply:
    session = await _session(context, call, asked)
    if isinstance(session, ErrorCode):
        return ShareFetchReply(error_code=session, error_message=session.message)
    acked = await _acknowledge(context, call, session, asked)
    if asked.share_session_epoch == CLOSING:
        await close_session(context, session)
        return await _reply(context, call, session, acked, None, 0)
    if asked.is_renew_ack:
        return await _reply(context, call, session, acked, None, 0)
    look = _Look(context, call, session, asked)
    await look.find(call)
    await look.at(look.live)
    is_patient = asked.max_wait_ms > 0 and asked.min_bytes > 0
    if not look.is_enough and is_patient and not context.parked.is_draining:
        rights_turn = context.identities.epoch
        await _wait(context, look, min(asked.max_wait_ms, WAIT_MS_MAX))
        if look.pause_ms:
            call.connection.hold_back(look.pause_ms / 1_000)
        if context.identities.epoch != rights_turn:
            await look.give_back_forbidden(call)
    if not session.is_open:
        code = ErrorCode.SHARE_SESSION_NOT_FOUND
        return ShareFetchReply(error_code=code, error_message=code.message)
    look.count()
    return await _reply(context, call, session, acked, look, asked.batch_size)


# ── The session ──────────────────────────────────────────────────────────────────────────────
async def _session(
    context: KafkaContext, call: KafkaCall, asked: ShareFetchRequest
) -> ShareSession | ErrorCode:
    group_id, member_id = asked.group_id, asked.member_id
    if not on_group(context, call, Operation.READ, group_id or ""):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not group_id or not member_id:
        return ErrorCode.INVALID_REQUEST
    places = [
        (each.topic_id, one.partition_index) for each in asked.topics for one in each.partitions
    ]
    if asked.share_session_epoch == OPENING:
        if any(one.acknowledgement_batches for each in asked.topics for one in each.partitions):
            return ErrorCode.INVALID_REQUEST  # who opens a session holds nothing yet
        return await open_session(context, call.connection, group_id, member_id, places)
    session = context.share_sessions.go_on(
        group_id, member_id, asked.share_session_epoch, account=context.account
    )
    if isinstance(session, ErrorCode) or asked.share_session_epoch == CLOSING:
        return session
    gone = (
        (each.topic_id, index) for each in asked.forgotten_topics_data for index in each.partitions
    )
    session.forget(gone)
    return session if session.add(places) else ErrorCode.INVALID_REQUEST


async def _acknowledge(
    context: KafkaContext, call: KafkaCall, session: ShareSession, asked: ShareFetchRequest
) -> dict[Place, ErrorCode]:
    acked: dict[Place, ErrorCode] = {}
    slices = call.slices
    for each in asked.topics:
        may_read = _may_read(context, call, each.topic_id)
        if slices.is_over:
            await slices.next()
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            if one.acknowledgement_batches:
                place = (each.topic_id, one.partition_index)
                if not may_read:
                    acked[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                acked[place] = await acknowledge(
                    context,
                    session,
                    place,
                    one.acknowledgement_batches,
                    is_renewal=asked.is_renew_ack,
                )
    return acked


def _may_read(context: KafkaContext, call: KafkaCall, topic_id: bytes) -> bool:
    """A topic that is not there is answered as what it is."""
    topic = find_id(context, topic_id)
    return topic is None or on_topic(context, call, Operation.READ, topic.name, topic)


# ── Looking ──────────────────────────────────────────────────────────────────────────────────
class _Sought:
    """One partition of the session and what was leased from it."""

    __slots__ = ("batches", "code", "picks", "place", "share")

    def __init__(self, place: Place, share: Topic | ErrorCode) -> None:
        self.place = place
        self.share = share if isinstance(share, Topic) else None
        self.code = share if isinstance(share, ErrorCode) else ErrorCode.NONE
        self.batches: Sequence[bytes] = ()
        self.picks: Picks = ()


class _Look:
    """What one request has leased, and whether there is anything to answer with."""

    __slots__ = (
        "_bytes_max",
        "_context",
        "_records_max",
        "_session",
        "live",
        "pause_ms",
        "size",
        "slices",
        "sought",
        "taken",
    )

    def __init__(
        self,
        context: KafkaContext,
        call: KafkaCall,
        session: ShareSession,
        asked: ShareFetchRequest,
    ) -> None:
        self._context = context
        self._session = session
        self._bytes_max = min(asked.max_bytes, RESPONSE_BYTES_MAX)
        self._records_max = asked.max_records
        self.size = 0
        self.taken = 0  # records
        self.pause_ms = 0  # for its client, who must not wait here and would ask again at once
        self.slices = call.slices
        self.sought: list[_Sought] = []
        self.live: list[_Sought] = []

    async def find(self, call: KafkaCall) -> None:
        """All partitions of the session."""
        context, session = self._context, self._session

        def sought(place: Place) -> _Sought:
            if not _may_read(context, call, place[0]):
                return _Sought(place, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return _Sought(place, share_at(context, session, place))

        self.sought = await self.slices.map(sought, list(session.places()))
        self.live = [one for one in self.sought if one.share is not None]

    @property
    def is_enough(self) -> bool:
        """A lease waits for no company, and neither does an error."""
        if self.taken or not self.live or not self._session.is_open:
            return True
        return any(one.code for one in self.sought)

    async def at(self, some: Iterable[_Sought]) -> None:
        for one in some:
            if self.slices.is_over:
                await self.slices.next()
            is_full = self.taken > 0 and self.size >= self._bytes_max
            if is_full or self.taken >= self._records_max or not self._session.is_open:
                return
            await self._at_one(one, self._records_max - self.taken)

    async def _at_one(self, one: _Sought, count: int) -> None:
        share, session, place = one.share, self._session, one.place
        assert share is not None, "only those that are there are looked at"
        now_ms = self._context.clock.mono_ms()
        count = min(count, session.room(place, now_ms))
        if count <= 0:
            return
        # For each lease anew: a changed duration holds from the next one on.
        lock_ms = self._context.groups.share_settings(session.group_id).lock_ms
        try:
            acquired = await self._context.shares.acquire(
                share,
                place[1],
                count=count,
                bytes_max=max(self._bytes_max - self.size, 0),
                is_strict=self.taken > 0,
                lease_ms=lock_ms,
            )
        except PenstockError as error:
            one.code = code_for(error)
            return
        if not acquired.picks:
            return
        session.hold(place, acquired.picks, now_ms + lock_ms)
        if not session.is_open:  # its member left while we looked
            claims = [Claim(place[1], offset, seq) for offset, seq, _ in acquired.picks]
            await release(self._context, session, place, claims)
            return
        sealing = self._context.sealing
        if sealing is not None:
            acquired = await sealing.opened_share(share, place[1], acquired)
        one.batches, one.picks = acquired.batches, acquired.picks
        self.taken += len(acquired.picks)
        self.size += sum(map(len, acquired.batches))

    async def give_back_forbidden(self, call: KafkaCall) -> None:
        """While it waited the caller may have lost the right to what has come."""
        for one in self.sought:
            if not one.picks or _may_read(self._context, call, one.place[0]):
                continue
            claims = [Claim(one.place[1], offset, seq) for offset, seq, _ in one.picks]
            one.batches, one.picks = (), ()
            one.code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await release(self._context, self._session, one.place, claims)

    def count(self) -> None:
        """Records handed out. Once per answer."""
        if self.taken:
            self._context.meter.received(self.taken, self.size)
            if (usage := self._context.usage) is not None:
                for one in self.live:
                    if one.picks and one.share is not None:
                        usage.fetched(one.share, len(one.picks), sum(map(len, one.batches)))


class _Waker:
    """Remembers where there is more, and wakes the one who waits for any."""

    __slots__ = ("_loop", "_told", "future", "is_time_up")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: set[_Sought] = set()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.is_time_up = False

    def tell(self, one: _Sought) -> None:
        self._told.add(one)
        self._wake()

    def time_up(self) -> None:
        self.is_time_up = True
        self._wake()

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def take(self) -> set[_Sought]:
        told, self._told = self._told, set()
        if not self.is_time_up:
            self.future = self._loop.create_future()
        return told


async def _wait(context: KafkaContext, look: _Look, wait_ms: int) -> None:
    """Not at all if its tenant has as many that wait as it may."""
    quotas = context.quotas
    try:
        is_counted = quotas is not None and quotas.begin_wait(context.account)
    except Throttled as refusal:
        look.pause_ms = refusal.retry_after_ms
        return
    waker = _Waker()
    timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, waker.time_up)
    endings: list[Callable[[], None]] = []
    try:
        for one in look.live:
            assert one.share is not None
            endings.append(
                context.shares.on_available(one.share, one.place[1], partial(waker.tell, one))
            )
        # What came between the first look and now has woken nobody.
        some: Collection[_Sought] = look.live
        while True:
            await look.at(some)
            if look.is_enough or waker.is_time_up or context.parked.is_draining:
                return
            await context.parked.wait(waker.future)
            look.slices.begin()
            some = waker.take()
    finally:
        timer.cancel()
        for end in endings:
            end()
        if quotas is not None and is_counted:
            quotas.end_wait(context.account)


# ── The answer ───────────────────────────────────────────────────────────────────────────────
async def _reply(
    context: KafkaContext,
    call: KafkaCall,
    session: ShareSession,
    acked: dict[Place, ErrorCode],
    look: _Look | None,
    batch_size: int,
) -> ShareFetchReply:
    """Partitions about which there is nothing to say are left out."""
    topics: dict[bytes, list[SharePartitionReply]] = {}
    told = set()
    for one in look.sought if look is not None else ():
        if call.slices.is_over:
            await call.slices.next()
        if one.picks or one.code or one.place in acked:
            told.add(one.place)
            ack_code = acked.get(one.place, ErrorCode.NONE)
            topics.setdefault(one.place[0], []).append(
                SharePartitionReply(
                    one.place[1],
                    one.code,
                    ack_code,
                    one.batches,
                    ranges(one.picks, batch_size),
                    error_message=one.code.message or None,
                    acknowledge_error_message=ack_code.message or None,
                )
            )
    for place, code in acked.items():
        if call.slices.is_over:
            await call.slices.next()
        if place not in told:
            topics.setdefault(place[0], []).append(
                SharePartitionReply(
                    place[1],
                    acknowledge_error_code=code,
                    acknowledge_error_message=code.message or None,
                )
            )
    return ShareFetchReply(
        [ShareTopicReply(topic_id, partitions) for topic_id, partitions in topics.items()],
        lock_ms=context.groups.share_settings(session.group_id).lock_ms,
        throttle_time_ms=0 if look is None else look.pause_ms,
    )


def ranges(picks: Picks, length_max: int) -> list[tuple[int, int, int]]:
    """(first offset, last offset, delivery count) of neighbours that were delivered as often."""
    found: list[tuple[int, int, int]] = []
    if not picks:
        return found
    first, _, count = picks[0]
    last = first
    for offset, _, attempt in picks[1:]:
        if offset != last + 1 or attempt != count or offset - first == length_max:
            found.append((first, last, min(count, COUNT_MAX)))
            first, count = offset, attempt
        last = offset
    found.append((first, last, min(count, COUNT_MAX)))
    return found


ACTION = KafkaAction(SHARE_FETCH, run)
