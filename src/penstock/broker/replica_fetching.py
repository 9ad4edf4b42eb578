"""Both ends of ``replica fetch``: a node's followers ask its leaders, and its leaders answer.

The asking end gathers what its followers want to know in one turn of the loop and puts it to each
leader in one call. The answering end answers when there is news of any of them, and leaves the
others out: those are asked for again, together. So a busy partition soon has calls of its own, and
a thousand quiet ones share one that waits.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.broker.replication_counts import ReplicationCounts
from penstock.broker.replicator import Replicator
from penstock.model.errors import PenstockError
from penstock.model.levels import LEADERS_TELL_ENDS, LEVEL_FIRST
from penstock.model.limits import MIB
from penstock.replication.messages import Answer, Behind, Data, Diverge, Fenced, Fetch, NotYet
from penstock.wire.internal.calls import Asked, Caller
from penstock.wire.internal.replica_calls import (
    REPLICA_FETCH,
    AnswerKind,
    Ask,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaFetchedEnds,
    Told,
)

log_ = logging.getLogger(__name__)

WAIT_MS = 500  # for news; well below the time after which a silent follower counts as lagging
CALL_MS = WAIT_MS + 3_500
PAUSE_MS = 100  # after a call that was not answered
ASKS_MAX = 1_000  # in one call
ANSWER_BYTES_MAX = 16 * MIB  # in one answer; at least one batch, however large


class ReplicaAsking:
    def __init__(
        self,
        node: int,
        *,
        incarnation: Callable[[], int],
        peer: Callable[[int], Caller],
        counts: ReplicationCounts | None = None,
    ) -> None:
        """``peer`` may raise PenstockError for a node that is not there."""
        self._node = node
        self._incarnation = incarnation
        self._peer = peer
        self._counts = counts or ReplicationCounts()
        self._loop = asyncio.get_running_loop()
        self._ready: dict[Replicator, None] = {}  # in the order in which they came
        self._is_due = False
        self._calls: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def ask_soon(self, replicator: Replicator, *, after_ms: int = 0) -> None:
        if after_ms:
            self._loop.call_later(after_ms / 1_000, self._add, replicator)
        else:
            self._add(replicator)

    def _add(self, replicator: Replicator) -> None:
        self._ready[replicator] = None
        if not self._is_due and not self._is_stopped:
            self._is_due = True
            self._loop.call_soon(self._ask_all)

    def _ask_all(self) -> None:
        self._is_due = False
        ready, self._ready = self._ready, {}
        by_leader: dict[int, list[tuple[Replicator, Fetch]]] = {}
        for replicator in ready:
            leader = replicator.leader
            fetch = replicator.followed.ask() if leader >= 0 else None
            if fetch is not None:
                by_leader.setdefault(leader, []).append((replicator, fetch))
        for leader, asked in by_leader.items():
            for start in range(0, len(asked), ASKS_MAX):
                call = self._loop.create_task(
                    self._ask(leader, asked[start : start + ASKS_MAX]),
                    name=f"ask node {leader}",
                )
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _ask(self, leader: int, asked: Sequence[tuple[Replicator, Fetch]]) -> None:
        request = ReplicaFetch(
            self._node,
            self._incarnation(),
            WAIT_MS,
            ANSWER_BYTES_MAX,
            [_ask_of(replicator, fetch) for replicator, fetch in asked],
        )
        counts = self._counts
        counts.fetches_asked += 1
        try:
            answered = await self._peer(leader).call(REPLICA_FETCH, request, timeout_ms=CALL_MS)
        except PenstockError:
            counts.fetches_unanswered += 1
            # Told by whoever watches nodes; here it only means: not now.
            for replicator, fetch in asked:
                replicator.followed.unanswered(fetch, after_ms=PAUSE_MS)
            return
        told = {one.position: one for one in answered.told}
        counts.answered(answered.told)
        if isinstance(answered, ReplicaFetchedEnds):
            for one, end in zip(answered.told, answered.ends, strict=False):
                if one.position < len(asked):
                    replicator, fetch = asked[one.position]
                    replicator.leader_end = (fetch.epoch, end)
        for position, (replicator, fetch) in enumerate(asked):
            news = told.get(position)
            if news is None:
                replicator.followed.unanswered(fetch, after_ms=0)
            else:
                replicator.followed.take(
                    _answer_of(fetch, news),
                    leader_start=news.start_offset,
                    held_offset=news.held_offset,
                    low_watermark=news.low_watermark,
                )

    async def stop(self) -> None:
        self._is_stopped = True
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)


def _ask_of(replicator: Replicator, fetch: Fetch) -> Ask:
    return Ask(
        replicator.key.topic_id,
        replicator.key.index,
        fetch.epoch,
        fetch.offset,
        fetch.durable_offset,
        fetch.last_epoch,
        fetch.number,
        replicator.replica.high_watermark,
        replicator.followed.leader_start,
        fetch.low_watermark,
    )


def _answer_of(fetch: Fetch, told: Told) -> Answer[bytes]:
    if told.kind is AnswerKind.DATA:
        return Data(fetch, (told.data,) if told.data else (), told.high_watermark)
    if told.kind is AnswerKind.DIVERGE:
        return Diverge(fetch, told.epoch, told.offset)
    if told.kind is AnswerKind.BEHIND:
        return Behind(fetch, told.offset)
    if told.kind is AnswerKind.FENCED:
        return Fenced(fetch, told.epoch)
    return NotYet(fetch)


# The question's position in the call, whom it is for, and as what it came.
_Waiting = tuple[int, Replicator, Fetch, Ask]


class _Parked:
    """One call that waits for news of any of its partitions."""

    def __init__(self, asked: Sequence[_Waiting]) -> None:
        self.asked = asked
        self.news: dict[int, None] = {}  # places in ``asked``
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers = [
            (replicator, self._waker(place)) for place, (_, replicator, _, _) in enumerate(asked)
        ]
        for replicator, wake in self._wakers:
            replicator.park(wake)

    def _waker(self, place: int) -> Callable[[], None]:
        def wake() -> None:
            self.news[place] = None
            if not self.woken.done():
                # At the end of the turn: what else happens in it goes with the same answer.
                self.woken.set_result(None)

        return wake

    def leave(self) -> None:
        for replicator, wake in self._wakers:
            replicator.unpark(wake)


class ReplicaAnswering:
    """Answers followers for the partitions that this node leads."""

    def __init__(
        self,
        find: Callable[[str, int], Replicator | None],
        *,
        level: Callable[[], int] = lambda: LEVEL_FIRST,
        counts: ReplicationCounts | None = None,
    ) -> None:
        """``level``: the feature level in force."""
        self._find = find
        self._level = level
        self._counts = counts or ReplicationCounts()

    async def fetch(self, request: ReplicaFetch, _asked: Asked) -> ReplicaFetched:
        told: list[Told] = []
        parked: list[_Waiting] = []
        left = min(request.bytes_max, ANSWER_BYTES_MAX)
        for position, ask in enumerate(request.asks):
            replicator = self._find(ask.topic_id, ask.index)
            if replicator is None:
                told.append(Told(position, AnswerKind.NOT_YET))
                continue
            fetch = Fetch(
                request.node,
                request.incarnation,
                ask.epoch,
                ask.offset,
                ask.durable_offset,
                ask.last_epoch,
                ask.number,
                ask.low_watermark,
            )
            answer = replicator.serve(fetch, bytes_max=left) if left > 0 else None
            if answer is None:
                parked.append((position, replicator, fetch, ask))
            else:
                told.append(_told(position, answer, replicator))
                left -= len(told[-1].data)
        if not told and parked and request.wait_ms > 0:
            told = await self._wait(parked, request.wait_ms, left)
        return self._answer(request, told)

    def _answer(self, request: ReplicaFetch, told: Sequence[Told]) -> ReplicaFetched:
        self._counts.served(told)
        if self._level() < LEADERS_TELL_ENDS:
            return ReplicaFetched(told)
        found = (self._find(ask.topic_id, ask.index) for ask in _asks_of(request, told))
        return ReplicaFetchedEnds(
            told, [-1 if one is None else one.replica.end_offset for one in found]
        )

    async def _wait(self, asked: Sequence[_Waiting], wait_ms: int, left: int) -> list[Told]:
        parked = _Parked(asked)
        try:
            await asyncio.wait((parked.woken,), timeout=wait_ms / 1_000)
        finally:
            parked.leave()
        told = []
        for place in parked.news:
            position, replicator, fetch, _ = asked[place]
            answer = replicator.serve(fetch, bytes_max=left) if left > 0 else None
            if answer is not None:
                told.append(_told(position, answer, replicator))
                left -= len(told[-1].data)
        if told:
            return told
        # No news: followers learn at least what is committed, and where the log begins by now.
        return [
            _told(position, Data(fetch, (), replicator.replica.high_watermark), replicator)
            for position, replicator, fetch, ask in asked
            if replicator.replica.leader is not None
            and replicator.replica.epoch == fetch.epoch
            and (
                ask.high_watermark < replicator.replica.high_watermark
                or ask.start_offset < replicator.log.start_offset
                or ask.low_watermark < replicator.log.stored_low_watermark
            )
        ]


def _asks_of(request: ReplicaFetch, told: Sequence[Told]) -> Sequence[Ask]:
    return [request.asks[one.position] for one in told]


def _told(position: int, answer: Answer[bytes], replicator: Replicator) -> Told:
    if isinstance(answer, Data):
        return Told(
            position,
            AnswerKind.DATA,
            high_watermark=answer.high_watermark,
            start_offset=replicator.log.start_offset,
            data=b"".join(answer.batches),
            held_offset=replicator.replica.held_offset,
            low_watermark=replicator.log.stored_low_watermark,
        )
    if isinstance(answer, Diverge):
        return Told(position, AnswerKind.DIVERGE, answer.epoch, answer.end_offset)
    if isinstance(answer, Behind):
        return Told(position, AnswerKind.BEHIND, offset=answer.start_offset)
    if isinstance(answer, Fenced):
        return Told(position, AnswerKind.FENCED, answer.epoch)
    return Told(position, AnswerKind.NOT_YET)
