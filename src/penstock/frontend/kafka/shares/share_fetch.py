"""ShareFetch leases records to a member of a share group and processes its acknowledgements.
ShareAcknowledge only processes acknowledgements.

    session ─► acknowledge ─► lease from its partitions ── records, or no wait? ──► reply
                                        │ none
              watch the partitions ─► lease once more ─► wait for records, or the timeout

Leases begin when records are taken, so the first records are returned at once: a wait for
``min_bytes`` would shorten the leases. ``max_records`` is never exceeded, in either acquire mode.
Replies have whole batches as they are stored, and the offset ranges of the leased records."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from msgspec import field

from penstock.frontend.kafka.checks import find_id
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.sessions.by_identity import ByIdentity
from penstock.frontend.kafka.sessions.share_sessions import (
    CLOSING,
    OPENING,
    Picks,
    Place,
    ShareSession,
)
from penstock.frontend.kafka.sessions.waiting_fetches import Waker
from penstock.frontend.kafka.shares.share_groups import (
    acknowledge,
    close_session,
    open_session,
    release,
    share_at,
)
from penstock.model.calls import Acquire
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import MIB
from penstock.model.message import Claim
from penstock.model.topic import Topic
from penstock.net.slices import Slices
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    AcquiredRange,
    ShareFetchReply,
    SharePartitionReply,
    ShareTopicReply,
)
from penstock.wire.kafka.generated import share_acknowledge as ack_wire
from penstock.wire.kafka.generated import share_fetch as fetch_wire

RESPONSE_BYTES_MAX: Final = 55 * MIB  # whatever the request allows
WAIT_MS_MAX: Final = 60_000  # clients accept an empty reply before their timeout
COUNT_MAX: Final = 32_767  # of deliveries: the field is an int16
_LOCK_FROM = 2
_NO_LEADER = ack_wire.LeaderIdAndEpoch(-1, -1)  # the leader has not changed


async def share_fetch(call: KafkaCall, request: fetch_wire.Request) -> ShareFetchReply:
    session = await _fetch_session(call, request)
    if isinstance(session, ErrorCode):
        return ShareFetchReply(error_code=session, error_message=session.message)
    acked = await _acknowledge_all(call, session, request)
    if request.share_session_epoch == CLOSING:
        await close_session(call.context, session)
        return await _reply(call, session, acked, None, 0)
    if request.is_renew_ack:
        return await _reply(call, session, acked, None, 0)
    bytes_max = min(request.max_bytes, RESPONSE_BYTES_MAX)
    leases = _Leases(call.context, session, call.slices, bytes_max, request.max_records)
    await leases.find(call)
    await leases.take_from(leases.live)
    is_patient = request.max_wait_ms > 0 and request.min_bytes > 0
    if not leases.is_enough and is_patient and not call.context.parked.is_draining:
        rights_turn = call.context.identities.epoch
        await _wait(call.context, leases, min(request.max_wait_ms, WAIT_MS_MAX))
        if leases.pause_ms:
            call.connection.hold_back(leases.pause_ms / 1_000)
        if call.context.identities.epoch != rights_turn:
            await leases.release_denied(call)
    if not session.is_open:
        code = ErrorCode.SHARE_SESSION_NOT_FOUND
        return ShareFetchReply(error_code=code, error_message=code.message)
    leases.count()
    return await _reply(call, session, acked, leases, request.batch_size)


async def _fetch_session(call: KafkaCall, request: fetch_wire.Request) -> ShareSession | ErrorCode:
    context, epoch = call.context, request.share_session_epoch
    places = [
        (each.topic_id, one.partition_index) for each in request.topics for one in each.partitions
    ]
    if epoch != OPENING:
        session = _session(call, request)
        if isinstance(session, ErrorCode) or epoch == CLOSING:
            return session
        session.forget(
            (each.topic_id, index)
            for each in request.forgotten_topics_data
            for index in each.partitions
        )
        return session if session.add(places) else ErrorCode.INVALID_REQUEST
    code = _check_member(call, request)
    if code:
        return code
    if any(one.acknowledgement_batches for each in request.topics for one in each.partitions):
        return ErrorCode.INVALID_REQUEST  # a new session holds no records
    group_id, member_id = request.group_id or "", request.member_id or ""
    return await open_session(context, call.connection, group_id, member_id, places)


def _check_member(call: KafkaCall, request: fetch_wire.Request | ack_wire.Request) -> ErrorCode:
    if not on_group(call, Operation.READ, request.group_id or ""):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    has_ids = request.group_id and request.member_id
    return ErrorCode.NONE if has_ids else ErrorCode.INVALID_REQUEST


def _session(
    call: KafkaCall, request: fetch_wire.Request | ack_wire.Request
) -> ShareSession | ErrorCode:
    return _check_member(call, request) or call.context.share_sessions.go_on(
        request.group_id or "",
        request.member_id or "",
        request.share_session_epoch,
        account=call.context.account,
    )


async def _acknowledge_all(
    call: KafkaCall, session: ShareSession, request: fetch_wire.Request
) -> dict[Place, ErrorCode]:
    acked: dict[Place, ErrorCode] = {}
    context, slices, is_renewal = call.context, call.slices, request.is_renew_ack
    for each in request.topics:
        may_read = _may_read(call, each.topic_id)
        if slices.is_over:
            await slices.next()
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            batches, place = one.acknowledgement_batches, (each.topic_id, one.partition_index)
            if batches and may_read:
                code = await acknowledge(context, session, place, batches, is_renewal=is_renewal)
                acked[place] = code
            elif batches:
                acked[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return acked


def _may_read(call: KafkaCall, topic_id: bytes) -> bool:
    """Return whether the caller may read the topic, or True if the topic does not exist."""
    topic = find_id(call.context, topic_id)
    return topic is None or on_topic(call, Operation.READ, topic.name, topic)


class _LeasedPartition(ByIdentity):
    place: Place
    share: Topic | None
    code: ErrorCode = ErrorCode.NONE
    batches: Sequence[bytes] = ()
    picks: Picks = ()


class _Leases(ByIdentity):
    context: KafkaContext
    session: ShareSession
    slices: Slices
    bytes_max: int
    records_max: int
    size: int = 0
    taken: int = 0  # records
    pause_ms: int = 0  # of a client whose wait is rejected, because it would retry at once
    partitions: list[_LeasedPartition] = field(default_factory=list)
    live: list[_LeasedPartition] = field(default_factory=list)

    async def find(self, call: KafkaCall) -> None:
        context, session = self.context, self.session

        def leased(place: Place) -> _LeasedPartition:
            share: Topic | ErrorCode = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if _may_read(call, place[0]):
                share = share_at(context, session, place)
            if isinstance(share, ErrorCode):
                return _LeasedPartition(place, None, share)
            return _LeasedPartition(place, share)

        self.partitions = await self.slices.map(leased, list(session.places()))
        self.live = [one for one in self.partitions if one.share is not None]

    @property
    def is_enough(self) -> bool:
        """Return whether the reply can be sent now: a record was leased, or there is an error."""
        if self.taken or not self.live or not self.session.is_open:
            return True
        return any(one.code for one in self.partitions)

    async def take_from(self, some: Iterable[_LeasedPartition]) -> None:
        for one in some:
            if self.slices.is_over:
                await self.slices.next()
            is_full = self.taken > 0 and self.size >= self.bytes_max
            if is_full or self.taken >= self.records_max or not self.session.is_open:
                return
            await self._take_from_one(one, self.records_max - self.taken)

    async def _take_from_one(self, one: _LeasedPartition, count: int) -> None:
        share, session, place = one.share, self.session, one.place
        assert share is not None, "the partition has a share"
        now_ms = self.context.clock.mono_ms()
        count = min(count, session.room(place, now_ms))
        if count <= 0:
            return
        # Read for each lease, so that a changed duration applies to the next lease.
        lock_ms = self.context.groups.share_settings(session.group_id).lock_ms
        try:
            acquired = await self.context.anywhere.call(
                Acquire(
                    share,
                    place[1],
                    count=count,
                    bytes_max=max(self.bytes_max - self.size, 0),
                    is_strict=self.taken > 0,
                    lease_ms=lock_ms,
                )
            )
        except PenstockError as error:
            one.code = partition_code(error)
            return
        if not acquired.picks:
            return
        session.hold(place, acquired.picks, now_ms + lock_ms)
        if not session.is_open:  # the member left meanwhile
            claims = [Claim(place[1], offset, seq) for offset, seq, _ in acquired.picks]
            await release(self.context, session, place, claims)
            return
        sealing = self.context.sealing
        if sealing is not None:
            acquired = await sealing.opened_share(share, place[1], acquired)
        one.batches, one.picks = acquired.batches, acquired.picks
        self.taken += len(acquired.picks)
        self.size += sum(map(len, acquired.batches))

    async def release_denied(self, call: KafkaCall) -> None:
        """After a wait, release records of topics that the caller may no longer read."""
        for one in self.partitions:
            if not one.picks or _may_read(call, one.place[0]):
                continue
            claims = [Claim(one.place[1], offset, seq) for offset, seq, _ in one.picks]
            one.batches, one.picks = (), ()
            one.code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await release(self.context, self.session, one.place, claims)

    def count(self) -> None:
        if self.taken:
            self.context.meter.received(self.taken, self.size)
            if (usage := self.context.usage) is not None:
                for one in self.live:
                    if one.picks and one.share is not None:
                        usage.fetched(one.share, len(one.picks), sum(map(len, one.batches)))


async def _wait(context: KafkaContext, leases: _Leases, wait_ms: int) -> None:
    """Wait for records, unless too many requests of the tenant are already waiting."""
    try:
        waker = Waker(context.quotas, context.account, wait_ms)
    except Throttled as throttled:
        leases.pause_ms = throttled.retry_after_ms
        return
    advanced: set[_LeasedPartition] = set()

    def wake(one: _LeasedPartition) -> None:
        advanced.add(one)
        waker.wake()

    endings: list[Callable[[], None]] = []
    try:
        for one in leases.live:
            assert one.share is not None
            endings.append(
                context.anywhere.on_available(one.share, one.place[1], partial(wake, one))
            )
        # Records may have come before the partitions were watched, so lease once more.
        some: Collection[_LeasedPartition] = leases.live
        while True:
            await leases.take_from(some)
            if leases.is_enough or waker.is_time_up or context.parked.is_draining:
                return
            await context.parked.wait(waker.future)
            leases.slices.begin()
            some = list(advanced)
            advanced.clear()
            waker.renew()
    finally:
        waker.end()
        for end in endings:
            end()


async def _reply(
    call: KafkaCall,
    session: ShareSession,
    acked: dict[Place, ErrorCode],
    leases: _Leases | None,
    batch_size: int,
) -> ShareFetchReply:
    """Return the reply, without partitions that have no records, error or acknowledgement."""
    topics: dict[bytes, list[SharePartitionReply]] = {}
    partitions = [] if leases is None else leases.partitions
    if acked:
        leased = {one.place for one in partitions}
        others = [_LeasedPartition(place, None) for place in acked if place not in leased]
        partitions = partitions + others
    for one in partitions:
        if call.slices.is_over:
            await call.slices.next()
        if one.picks or one.code or one.place in acked:
            ack_code = acked.get(one.place, ErrorCode.NONE)
            topics.setdefault(one.place[0], []).append(
                SharePartitionReply(
                    one.place[1],
                    one.code,
                    ack_code,
                    one.batches,
                    [AcquiredRange(*each) for each in ranges(one.picks, batch_size)],
                    error_message=one.code.message or None,
                    acknowledge_error_message=ack_code.message or None,
                )
            )
    return ShareFetchReply(
        [ShareTopicReply(topic_id, partitions) for topic_id, partitions in topics.items()],
        lock_ms=call.context.groups.share_settings(session.group_id).lock_ms,
        throttle_time_ms=0 if leases is None else leases.pause_ms,
    )


def ranges(picks: Picks, length_max: int) -> list[tuple[int, int, int]]:
    """Return ranges of offsets with the same delivery count, as (first, last, delivery count)."""
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


async def share_acknowledge(call: KafkaCall, request: ack_wire.Request) -> ack_wire.Response:
    """Process acknowledgements. The last request of a member has the closing epoch, after which all
    records that it has not acknowledged are released."""
    if request.share_session_epoch == OPENING:  # only a fetch opens a session
        session: ShareSession | ErrorCode = (
            _check_member(call, request) or ErrorCode.INVALID_SHARE_SESSION_EPOCH
        )
    else:
        session = _session(call, request)
    if isinstance(session, ErrorCode):
        return ack_wire.Response(error_code=session, error_message=session.message)
    slices, context = call.slices, call.context
    topics = []
    for each in request.topics:
        if slices.is_over:
            await slices.next()
        partitions = []
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            index, code = one.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if _may_read(call, each.topic_id):
                batches, is_renewal = one.acknowledgement_batches, request.is_renew_ack
                place = (each.topic_id, index)
                code = await acknowledge(context, session, place, batches, is_renewal=is_renewal)
            message = code.message or None
            partitions.append(ack_wire.PartitionData(index, code, message, _NO_LEADER))
        topics.append(ack_wire.ShareAcknowledgeTopicResponse(each.topic_id, partitions))
    if request.share_session_epoch == CLOSING:
        await close_session(context, session)
    lock_ms = context.groups.share_settings(session.group_id).lock_ms
    return ack_wire.Response(
        acquisition_lock_timeout_ms=lock_ms if call.version >= _LOCK_FROM else 0, responses=topics
    )
