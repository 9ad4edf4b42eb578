"""Client and server of the call ``replica fetch``, with which followers copy from leaders. The
client sends the fetches of many partitions to a leader in one call. The server replies as soon as
any partition has new records; the client then repeats the other fetches in one call. So a busy
partition soon has calls of its own, and a thousand idle partitions share one waiting call."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import astuple

from penstock.broker.context.timers import cancel_all
from penstock.broker.replicas.leadership import ReplicationCounts
from penstock.broker.replicas.replicator import Replicator
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import PenstockError
from penstock.model.levels import LEADERS_SEND_ENDS
from penstock.model.limits import MIB
from penstock.replication.messages import Behind, Data, Diverge, Fenced, Fetch, NotYet, Reply
from penstock.replication.replica import Role
from penstock.wire.internal.calls import Caller, CallerInfo, CallHandlers
from penstock.wire.internal.node_calls import (
    DROP,
    NOT_HERE,
    REPLICA_FETCH,
    STANDINGS,
    DropReply,
    DropRequest,
    PartitionFetch,
    PartitionReply,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaFetchedEnds,
    ReplyKind,
    StandingsReply,
    StandingsRequest,
)

WAIT_MS = 500  # for new records; a follower counts as lagging much later
CALL_MS = WAIT_MS + 3_500
PAUSE_MS = 100  # after a failed call
FETCHES_MAX = 1_000  # in one call
REPLY_BYTES_MAX = 16 * MIB  # in one reply; at least one batch, however large


@dataclass(eq=False)
class ReplicaFetcher:
    node: int
    incarnation: Callable[[], int]
    peer: Callable[[int], Caller]  # raises PenstockError for a node that is not registered
    counts: ReplicationCounts
    _ready: dict[Replicator, None] = field(default_factory=dict)  # in order of arrival
    _is_due: bool = False
    _calls: set[asyncio.Task[None]] = field(default_factory=set)
    _is_stopped: bool = False

    def fetch_soon(self, replicator: Replicator, after_ms: int) -> None:
        if after_ms:
            asyncio.get_running_loop().call_later(after_ms / 1_000, self._add, replicator)
        else:
            self._add(replicator)

    def _add(self, replicator: Replicator) -> None:
        self._ready[replicator] = None
        if not self._is_due and not self._is_stopped:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._fetch_all)

    def _fetch_all(self) -> None:
        self._is_due = False
        ready, self._ready = self._ready, {}
        by_leader: dict[int, list[tuple[Replicator, Fetch]]] = {}
        for replicator in ready:
            leader = replicator.leader
            fetch = replicator.follower_log.next_fetch() if leader >= 0 else None
            if fetch is not None:
                by_leader.setdefault(leader, []).append((replicator, fetch))
        for leader, fetches in by_leader.items():
            for start in range(0, len(fetches), FETCHES_MAX):
                call = asyncio.create_task(
                    self._fetch(leader, fetches[start : start + FETCHES_MAX]),
                    name=f"fetch from node {leader}",
                )
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _fetch(self, leader: int, fetches: Sequence[tuple[Replicator, Fetch]]) -> None:
        partitions = [_encode_fetch(replicator, fetch) for replicator, fetch in fetches]
        request = ReplicaFetch(self.node, self.incarnation(), WAIT_MS, REPLY_BYTES_MAX, partitions)
        counts = self.counts
        counts.fetches_asked += 1
        try:
            reply = await self.peer(leader).call(REPLICA_FETCH, request, timeout_ms=CALL_MS)
        except PenstockError:
            # Not logged: the watch of nodes reports nodes that are gone.
            counts.fetches_unanswered += 1
            for replicator, fetch in fetches:
                replicator.follower_log.fetch_failed(fetch, after_ms=PAUSE_MS)
            return
        counts.received(reply.replies)
        if isinstance(reply, ReplicaFetchedEnds):
            for each, end in zip(reply.replies, reply.ends, strict=False):
                if each.position < len(fetches):
                    replicator, fetch = fetches[each.position]
                    replicator.leader_end = (fetch.epoch, end)
        replies = {each.position: each for each in reply.replies}
        for position, (replicator, fetch) in enumerate(fetches):
            news = replies.get(position)
            if news is None:
                replicator.follower_log.fetch_failed(fetch, after_ms=0)
            else:
                replicator.follower_log.apply_reply(_decode_reply(fetch, news), news)

    async def stop(self) -> None:
        self._is_stopped = True
        await cancel_all(self._calls)


def _encode_fetch(replicator: Replicator, fetch: Fetch) -> PartitionFetch:
    key, watermark = replicator.key, replicator.replica.high_watermark
    known = (watermark, replicator.follower_log.leader_start, fetch.low_watermark)
    return PartitionFetch(key.topic_id, key.index, *fetch[2:7], *known)


def _decode_reply(fetch: Fetch, reply: PartitionReply) -> Reply[bytes]:
    if reply.kind is ReplyKind.DATA:
        return Data(fetch, (reply.data,) if reply.data else (), reply.high_watermark)
    if reply.kind is ReplyKind.DIVERGE:
        return Diverge(fetch, reply.epoch, reply.offset)
    if reply.kind is ReplyKind.BEHIND:
        return Behind(fetch, reply.offset)
    if reply.kind is ReplyKind.FENCED:
        return Fenced(fetch, reply.epoch)
    return NotYet(fetch)


# Position in the call, the leader's replica, the fetch, and the fetch as received.
_Waiting = tuple[int, Replicator, Fetch, PartitionFetch]


@dataclass
class ReplicaServer:
    find: Callable[[PartitionKey], Replicator | None]
    incarnation: Callable[[], int]
    level: Callable[[], int]  # the cluster's current feature level
    counts: ReplicationCounts

    def register(self, handlers: CallHandlers) -> None:
        handlers.add(REPLICA_FETCH, self.fetch)
        handlers.add(STANDINGS, self._standings)
        handlers.add(DROP, self._drop)

    def _standings(self, request: StandingsRequest, _caller: CallerInfo) -> StandingsReply:
        standings = []
        for topic_id, index in request.places:
            found = self.find(PartitionKey(topic_id, index))
            if found is None or found.replica.role is Role.HALTED:
                standings.append(NOT_HERE)
            else:
                standings.append((found.replica.history.last, found.replica.end_offset))
        return StandingsReply(self.incarnation(), standings)

    def _drop(self, request: DropRequest, _caller: CallerInfo) -> DropReply:
        found = self.find(PartitionKey(request.topic_id, request.index))
        leader = None if found is None else found.replica.leader
        return DropReply(
            leader is not None
            and leader.epoch == request.epoch
            and request.node not in leader.row.replicas
        )

    async def fetch(self, request: ReplicaFetch, _caller: CallerInfo) -> ReplicaFetched:
        replies: list[PartitionReply] = []
        waiting: list[_Waiting] = []
        left_bytes = min(request.bytes_max, REPLY_BYTES_MAX)
        for position, received in enumerate(request.partitions):
            replicator = self.find(PartitionKey(received.topic_id, received.index))
            if replicator is None:
                replies.append(PartitionReply(position, ReplyKind.NOT_YET))
                continue
            fields = (*astuple(received)[2:7], received.low_watermark)
            fetch = Fetch._make((request.node, request.incarnation, *fields))
            reply = _reply_to(position, replicator, fetch, left_bytes)
            if reply is None:
                waiting.append((position, replicator, fetch, received))
            else:
                replies.append(reply)
                left_bytes -= len(reply.data)
        if not replies and waiting and request.wait_ms > 0:
            replies = await self._wait(waiting, request.wait_ms, left_bytes)
        self.counts.served(replies)
        if self.level() < LEADERS_SEND_ENDS:
            return ReplicaFetched(replies)
        ends = []
        for reply in replies:
            received = request.partitions[reply.position]
            found = self.find(PartitionKey(received.topic_id, received.index))
            ends.append(-1 if found is None else found.replica.end_offset)
        return ReplicaFetchedEnds(replies, ends)

    async def _wait(
        self, fetches: Sequence[_Waiting], wait_ms: int, left_bytes: int
    ) -> list[PartitionReply]:
        news: dict[int, None] = {}  # indexes in ``fetches``
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(at: int) -> None:
            news[at] = None
            if not woken.done():
                # The call resumes after the current callbacks, so the reply includes their appends.
                woken.set_result(None)

        wakers = [(each[1], partial(wake, at)) for at, each in enumerate(fetches)]
        for replicator, waker in wakers:
            replicator.park(waker)
        try:
            await asyncio.wait((woken,), timeout=wait_ms / 1_000)
        finally:
            for replicator, waker in wakers:
                replicator.unpark(waker)
        replies: list[PartitionReply] = []
        for at in news:
            position, replicator, fetch, _ = fetches[at]
            reply = _reply_to(position, replicator, fetch, left_bytes)
            if reply is not None:
                replies.append(reply)
                left_bytes -= len(reply.data)
        if replies:
            return replies
        # No new records: reply with a changed high watermark, start offset or low watermark.
        return [
            _encode_reply(position, Data(fetch, (), replicator.replica.high_watermark), replicator)
            for position, replicator, fetch, received in fetches
            if replicator.replica.leader is not None
            and replicator.replica.epoch == fetch.epoch
            and (
                received.high_watermark < replicator.replica.high_watermark
                or received.start_offset < replicator.log.start_offset
                or received.low_watermark < replicator.log.stored_low_watermark
            )
        ]


def _reply_to(
    position: int, replicator: Replicator, fetch: Fetch, left_bytes: int
) -> PartitionReply | None:
    reply = replicator.serve(fetch, bytes_max=left_bytes) if left_bytes > 0 else None
    return None if reply is None else _encode_reply(position, reply, replicator)


def _encode_reply(position: int, reply: Reply[bytes], replicator: Replicator) -> PartitionReply:
    if isinstance(reply, Data):
        return PartitionReply(
            position,
            ReplyKind.DATA,
            high_watermark=reply.high_watermark,
            start_offset=replicator.log.start_offset,
            data=b"".join(reply.batches),
            held_offset=replicator.replica.held_offset,
            low_watermark=replicator.log.stored_low_watermark,
        )
    if isinstance(reply, Diverge):
        return PartitionReply(position, ReplyKind.DIVERGE, reply.epoch, reply.end_offset)
    if isinstance(reply, Behind):
        return PartitionReply(position, ReplyKind.BEHIND, offset=reply.start_offset)
    if isinstance(reply, Fenced):
        return PartitionReply(position, ReplyKind.FENCED, reply.epoch)
    return PartitionReply(position, ReplyKind.NOT_YET)
