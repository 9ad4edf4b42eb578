"""Answers the broker's calls of other nodes (``wire/internal/broker_calls.py``) from the broker of
this one, which it knows by the ports alone.

Three things are added to what the broker does by itself. A topic that another node has heard of
before this one is waited for, a little. A caller with another epoch in mind than the one in force
is refused with a hint: one of the two has not heard of an election yet, and nothing is done until
both have. And what was leased for a caller is remembered for a while by its ticket, so that it can
be given back when the answer reached nobody; the broker itself gives back what a call had taken
that was cancelled before it was answered.

``led``: who leads a partition and in which epoch, as far as this node has heard. It is asked only
about epochs: whether this node really leads is the broker's to say (NotLeader).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.broker.watching import Watching
from penstock.model.errors import InvalidRequest, NotLeader, TopicNotFound
from penstock.model.file_slice import in_memory
from penstock.model.message import Claim, Delivery
from penstock.model.ports import Backend, Catalog, LeaseRequest, Shares, Streams
from penstock.model.topic import Topic
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import Answers, Asked, Nothing

CATCH_UP_SECONDS: Final = 1.0  # for the watch to bring a topic that another node knows already
# Leases that were answered lately, of all callers. One that is forgotten sooner than its caller
# misses the answer runs out by itself.
ANSWERED_MAX: Final = 20_000

Led = Callable[[Topic, int], tuple[int, int] | None]


class BackendAndStreams(Backend, Streams, Protocol):
    pass


class BrokerService:
    def __init__(
        self,
        broker: BackendAndStreams,
        shares: Shares,
        catalog: Catalog,
        *,
        node: int,
        led: Led = lambda _topic, _partition: None,
        catch_up_seconds: float = CATCH_UP_SECONDS,
    ) -> None:
        self._broker = broker
        self._shares = shares
        self._catalog = catalog
        self._node = node
        self._led = led
        self._catch_up_seconds = catch_up_seconds
        self._loop = asyncio.get_running_loop()
        self._watching = Watching(broker, shares, led)
        self._expected: dict[str, list[asyncio.Future[None]]] = {}  # topics, by their id
        # Leases by session and ticket: those under way, and what was handed out by the last ones.
        self._leasing: dict[tuple[int, int], asyncio.Task[object] | None] = {}
        self._answered: OrderedDict[tuple[int, int], Sequence[Claim]] = OrderedDict()
        catalog.on_change(self._catalog_changed)

    def register(self, answers: Answers) -> None:
        answers.add(wire.APPEND, self._append)
        answers.add(wire.LEASE, self._lease)
        answers.add(wire.GIVE_BACK, self._give_back)
        answers.add(wire.ACK, self._ack)
        answers.add(wire.EXTEND, self._extend)
        answers.add(wire.PURGE, self._purge)
        answers.add(wire.STATS, self._stats)
        answers.add(wire.PEEK, self._peek)
        answers.add(wire.START_MOVE, self._start_move)
        answers.add(wire.CANCEL_MOVE, self._cancel_move)
        answers.add(wire.MOVES, self._moves)
        answers.add(wire.APPEND_BATCHES, self._append_batches)
        answers.add(wire.APPEND_MARKER, self._append_marker)
        answers.add(wire.IS_IN_TRANSACTION, self._is_in_transaction)
        answers.add(wire.PRODUCERS, self._producers)
        answers.add(wire.ENDS, self._ends)
        answers.add(wire.FETCH, self._fetch)
        answers.add(wire.FIND_TIME, self._find_time)
        answers.add(wire.MAX_TIMESTAMP, self._max_timestamp)
        answers.add(wire.DELETE_RECORDS, self._delete_records)
        answers.add(wire.LOG_BYTES, self._log_bytes)
        answers.add(wire.ADVANCED, self._advanced)
        answers.add(wire.OPEN_SHARE, self._open_share)
        answers.add(wire.CLOSE_SHARE, self._close_share)
        answers.add(wire.ACQUIRE, self._acquire)
        answers.add(wire.FINISH, self._finish)
        answers.add(wire.PROLONG, self._prolong)
        answers.add(wire.SHARE_START, self._share_start)
        answers.add(wire.SHARE_LAG, self._share_lag)
        answers.add(wire.RESTART_SHARE, self._restart_share)
        answers.add(wire.AVAILABLE, self._available)

    def close(self) -> None:
        self._watching.close()

    # ── Which topic, and whether it is led here ──────────────────────────────────────────────

    def _known(self, request: wire.OfTopic) -> Topic | None:
        topic = self._catalog.find_id(request.topic_id)
        return None if topic is None or topic.modified_at_ms < request.modified_at_ms else topic

    async def _topic(self, request: wire.OfTopic) -> Topic:
        return self._known(request) or await self._catch_up(request)

    async def _place(self, request: wire.AtPlace) -> Topic:
        topic = self._known(request) or await self._catch_up(request)
        self._check(topic, request.partition, request.epoch)
        return topic

    async def _catch_up(self, request: wire.OfTopic) -> Topic:
        """Wait for the watch. An entry that stays older than the caller's will do: there is one,
        and whoever changed it cannot expect more of this moment."""
        topic_id = request.topic_id
        until = self._loop.time() + self._catch_up_seconds
        while (left := until - self._loop.time()) > 0:
            heard: asyncio.Future[None] = self._loop.create_future()
            self._expected.setdefault(topic_id, []).append(heard)
            try:
                await asyncio.wait((heard,), timeout=left)
            finally:
                self._expect_no_more(topic_id, heard)
            topic = self._known(request)
            if topic is not None:
                return topic
        topic = self._catalog.find_id(topic_id)
        if topic is None:
            raise TopicNotFound(topic_id)
        return topic

    def _expect_no_more(self, topic_id: str, heard: "asyncio.Future[None]") -> None:
        waiting = self._expected.get(topic_id)
        if waiting is not None and heard in waiting:
            waiting.remove(heard)
            if not waiting:
                del self._expected[topic_id]

    def _catalog_changed(self, _before: Topic | None, after: Topic | None) -> None:
        if after is not None and self._expected:
            for heard in self._expected.pop(after.topic_id, ()):
                if not heard.done():
                    heard.set_result(None)

    def _check(self, topic: Topic, partition: int, believed: int) -> None:
        if not 0 <= partition < topic.partition_count and not self._is_grown(topic, partition):
            raise TopicNotFound(topic.name)
        if believed == wire.ANY_EPOCH:
            return
        led = self._led(topic, partition)
        if led is None:
            return
        node, epoch = led
        if node == self._node and epoch == believed:
            return
        # Whoever knows the later election of the two is right. A hint from before the caller's
        # would only send it back to where it comes from.
        leader = node if epoch > believed else -1
        raise NotLeader(
            f"{topic.source_id or topic.topic_id}/{partition}", leader=leader, epoch=epoch
        )

    def _is_grown(self, topic: Topic, partition: int) -> bool:
        """A share has the partitions of its source, which may have been given more since."""
        if topic.source_id is None or partition < 0:
            return False
        source = self._catalog.find_id(topic.source_id)
        return source is not None and partition < source.partition_count

    # ── Backend ──────────────────────────────────────────────────────────────────────────────

    async def _append(self, request: wire.Append, _asked: Asked) -> wire.AppendTold:
        topic = self._known(request) or await self._catch_up(request)
        self._check(topic, request.partition, request.epoch)
        return wire.AppendTold(
            await self._broker.append(topic, request.partition, request.messages)
        )

    async def _lease(self, request: wire.Lease, _asked: Asked) -> wire.LeaseTold:
        topic = self._known(request) or await self._catch_up(request)
        wanted = LeaseRequest(request.count, request.lease_ms, request.wait_ms, request.attempt_id)
        key = (request.session, request.ticket)
        self._leasing[key] = asyncio.current_task()
        try:
            deliveries = await self._broker.lease(topic, wanted)
        finally:
            del self._leasing[key]
        if deliveries:
            self._remember(key, [_claim_of(each) for each in deliveries])
        return wire.LeaseTold(deliveries)

    def _remember(self, key: tuple[int, int], claims: Sequence[Claim]) -> None:
        self._answered[key] = claims
        if len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)

    async def _give_back(self, request: wire.GiveBack, _asked: Asked) -> Nothing:
        key = (request.session, request.ticket)
        under_way = self._leasing.get(key)
        if under_way is not None:
            # Its connection is as good as dead, and this node has not noticed.
            under_way.cancel()
        claims = self._answered.pop(key, ())
        if claims:
            topic = await self._topic(request)
            by_partition: dict[int, list[tuple[Claim, int]]] = {}
            for claim in claims:
                by_partition.setdefault(claim.partition, []).append((claim, 0))
            for partition, some in by_partition.items():
                # Strictly: a ticket may be older than the lease that somebody else has by now.
                await self._broker.extend(topic, partition, some, is_strict=True)
        return Nothing()

    async def _ack(self, request: wire.Ack, _asked: Asked) -> wire.Results:
        topic = self._known(request) or await self._catch_up(request)
        self._check(topic, request.partition, request.epoch)
        return wire.results_of(await self._broker.ack(topic, request.partition, request.claims))

    async def _extend(self, request: wire.Extend, _asked: Asked) -> wire.Results:
        topic = await self._place(request)
        return wire.results_of(
            await self._broker.extend(
                topic, request.partition, request.claims, is_strict=request.is_strict
            )
        )

    async def _purge(self, request: wire.OfLed, _asked: Asked) -> Nothing:
        topic = await self._topic(request)
        await self._check_led(topic, request)
        await self._broker.purge(topic)
        await self._check_led(topic, request)  # else what has left meanwhile was not purged
        return Nothing()

    async def _stats(self, request: wire.Stats, _asked: Asked) -> wire.StatsTold:
        topic = await self._topic(request)
        await self._check_led(topic, request)
        return wire.StatsTold(await self._broker.stats(topic, is_detailed=request.is_detailed))

    async def _check_led(self, topic: Topic, request: wire.OfLed) -> None:
        """The broker answers for what it leads, be that nothing. Raises NotLeader for less than
        the caller counts on."""
        for partition, epoch in request.counted_on:
            self._check(topic, partition, epoch)
            await self._broker.log_bytes(topic, partition)

    async def _peek(self, request: wire.Peek, _asked: Asked) -> wire.PeekTold:
        topic = await self._place(request)
        records, next_offset = await self._broker.peek(
            topic,
            partition=request.partition,
            start=request.start,
            count=min(request.count, wire.PEEKED_MAX),
        )
        return wire.PeekTold(records, next_offset)

    async def _start_move(self, request: wire.StartMove, _asked: Asked) -> Nothing:
        await self._broker.start_move(request.task)
        return Nothing()

    async def _cancel_move(self, request: wire.CancelMove, _asked: Asked) -> wire.MoveTold:
        return wire.MoveTold(await self._broker.cancel_move(request.task_id))

    def _moves(self, request: wire.ListMoves, _asked: Asked) -> wire.MovesTold:
        return wire.MovesTold(self._broker.moves(request.source_arn))

    # ── Streams ──────────────────────────────────────────────────────────────────────────────

    async def _append_batches(self, request: wire.AppendBatches, _asked: Asked) -> wire.BatchTold:
        topic = self._known(request) or await self._catch_up(request)
        self._check(topic, request.partition, request.epoch)
        return wire.BatchTold(
            await self._broker.append_batches(
                topic, request.partition, request.batches, acks=request.acks
            )
        )

    async def _append_marker(self, request: wire.AppendMarker, _asked: Asked) -> Nothing:
        topic = await self._place(request)
        await self._broker.append_marker(topic, request.partition, request.marker)
        return Nothing()

    async def _is_in_transaction(self, request: wire.OfProducer, _asked: Asked) -> wire.Truth:
        topic = await self._place(request)
        return wire.Truth(
            await self._broker.is_in_transaction(
                topic, request.partition, request.producer_id, request.producer_epoch
            )
        )

    async def _producers(self, request: wire.AtPlace, _asked: Asked) -> wire.ProducersTold:
        topic = await self._place(request)
        return wire.ProducersTold(await self._broker.producers(topic, request.partition))

    async def _ends(self, request: wire.AtPlace, _asked: Asked) -> wire.EndsTold:
        topic = await self._place(request)
        return wire.EndsTold(await self._broker.ends(topic, request.partition))

    async def _fetch(self, request: wire.Fetch, _asked: Asked) -> wire.FetchTold:
        topic = await self._place(request)
        fetched = await self._broker.fetch(
            topic,
            request.partition,
            offset=request.offset,
            bytes_max=min(request.bytes_max, wire.FETCH_BYTES_MAX),
            is_committed=request.is_committed,
        )
        # A view is written into the frame as it is; bytes are made of it at the other end.
        buffers: Sequence[bytes] = in_memory(fetched.buffers)  # type: ignore[assignment]
        return wire.FetchTold(
            fetched.ends, buffers, fetched.next_offset, fetched.record_count, fetched.aborted
        )

    async def _find_time(self, request: wire.FindTime, _asked: Asked) -> wire.TimeTold:
        topic = await self._place(request)
        return wire.TimeTold(
            *await self._broker.find_time(topic, request.partition, request.timestamp_ms)
        )

    async def _max_timestamp(self, request: wire.AtPlace, _asked: Asked) -> wire.TimeTold:
        topic = await self._place(request)
        return wire.TimeTold(*await self._broker.max_timestamp(topic, request.partition))

    async def _delete_records(self, request: wire.DeleteRecords, _asked: Asked) -> wire.Number:
        topic = await self._place(request)
        return wire.Number(
            await self._broker.delete_records(topic, request.partition, request.before)
        )

    async def _log_bytes(self, request: wire.AtPlace, _asked: Asked) -> wire.Number:
        topic = await self._place(request)
        return wire.Number(await self._broker.log_bytes(topic, request.partition))

    async def _advanced(self, request: wire.Advanced, _asked: Asked) -> wire.AdvanceTold:
        topic = await self._topic(request)
        self._check_watched(topic, [partition for partition, _ in request.known])
        return await self._watching.advanced(topic, request.known, wait_ms=request.wait_ms)

    # ── Shares ───────────────────────────────────────────────────────────────────────────────

    async def _open_share(self, request: wire.OpenShare, _asked: Asked) -> wire.ShareTold:
        source = await self._place(request)
        return wire.ShareTold(
            await self._shares.open_share(
                source,
                request.group,
                start=request.start,
                settings=request.settings,
                tags=request.tags,
                attempts_max=request.attempts_max,
            )
        )

    async def _close_share(self, request: wire.CloseShare, _asked: Asked) -> wire.Truth:
        source = await self._topic(request)
        return wire.Truth(await self._shares.close_share(source, request.group))

    async def _acquire(self, request: wire.Acquire, _asked: Asked) -> wire.AcquireTold:
        share = await self._place(request)
        key = (request.session, request.ticket)
        if request.ticket:
            self._leasing[key] = asyncio.current_task()
        try:
            acquired = await self._shares.acquire(
                share,
                request.partition,
                count=request.count,
                bytes_max=min(request.bytes_max, wire.FETCH_BYTES_MAX),
                lease_ms=request.lease_ms,
                is_strict=request.is_strict,
            )
        finally:
            self._leasing.pop(key, None)
        if request.ticket and acquired.picks:
            partition = request.partition
            self._remember(key, [Claim(partition, pick[0], pick[1]) for pick in acquired.picks])
        return wire.AcquireTold(acquired)

    async def _finish(self, request: wire.Finish, _asked: Asked) -> wire.Results:
        share = await self._place(request)
        return wire.results_of(
            await self._shares.finish(
                share, request.partition, request.claims, is_rejected=request.is_rejected
            )
        )

    async def _prolong(self, request: wire.Extend, _asked: Asked) -> wire.Results:
        share = await self._place(request)
        return wire.results_of(await self._shares.prolong(share, request.partition, request.claims))

    async def _share_start(self, request: wire.AtPlace, _asked: Asked) -> wire.Number:
        share = await self._place(request)
        return wire.Number(await self._shares.share_start(share, request.partition))

    async def _share_lag(self, request: wire.AtPlace, _asked: Asked) -> wire.Number:
        share = await self._place(request)
        return wire.Number(await self._shares.share_lag(share, request.partition))

    async def _restart_share(self, request: wire.RestartShare, _asked: Asked) -> Nothing:
        share = await self._place(request)
        await self._shares.restart_share(share, request.partition, request.offset)
        return Nothing()

    async def _available(self, request: wire.Available, _asked: Asked) -> wire.AvailableTold:
        share = await self._topic(request)
        self._check_watched(share, [partition for partition, _ in request.known])
        return await self._watching.available(share, request.known, wait_ms=request.wait_ms)

    def _check_watched(self, topic: Topic, partitions: Sequence[int]) -> None:
        if not 0 < len(partitions) <= wire.WATCHED_MAX:
            raise InvalidRequest(
                f"One call watches 1 to {wire.WATCHED_MAX} partitions, not {len(partitions)}."
            )
        for partition in partitions:
            if not 0 <= partition < topic.partition_count and not self._is_grown(topic, partition):
                raise TopicNotFound(topic.name)


def _claim_of(delivery: Delivery) -> Claim:
    return Claim(delivery.partition, delivery.record.offset, delivery.lease_seq)
