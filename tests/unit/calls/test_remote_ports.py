"""One suite over a broker here, the same broker behind a socket, and behind routing: nobody who
calls can tell which it is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.stage import bodies, claim, message
from tests.unit.calls.routing_kit import Cluster, on_nodes, until

from penstock.model.calls import (
    Ack,
    Acquire,
    Append,
    AppendBatches,
    AppendMarker,
    BrokerPort,
    CancelMove,
    CloseShare,
    DeleteRecords,
    Ends,
    Extend,
    Fetch,
    FindTime,
    Finish,
    IsInTransaction,
    Lease,
    LogBytes,
    MaxTimestamp,
    OpenShare,
    Peek,
    Producers,
    Prolong,
    Purge,
    RestartShare,
    ShareLag,
    ShareStart,
    StartMove,
    Stats,
)
from penstock.model.errors import (
    ExpiredReceipt,
    InFlightLimit,
    InvalidRequest,
    NotLeased,
    OffsetOutOfRange,
    ProducerRefused,
    PurgeInProgress,
    TopicNotFound,
)
from penstock.model.message import Attribute, Claim, Message
from penstock.model.ports import EARLIEST, LATEST, LeaseRequest, Marker, MoveTask
from penstock.model.topic import Kind, QueueSettings, Topic
from penstock.record.batch import encode_batch, split_batches
from penstock.record.record import encode_record

TRANSACTIONAL = 0x10  # of a batch's attributes
TEN = LeaseRequest(count=10, lease_ms=30_000)


class Subject(NamedTuple):
    calls: BrokerPort
    cluster: Cluster
    leader: int  # who leads what is asked about

    async def topic(self, name: str = "q", **more: object) -> Topic:
        return await self.cluster.topic(name, led_by=(self.leader,), **more)  # type: ignore[arg-type]


@pytest.fixture(params=["local", "remote", "routed here", "routed elsewhere"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with on_nodes(tmp_path, 1, 2, in_flight_max=20) as cluster:
        which: str = request.param
        if which == "local":
            yield Subject(cluster.nodes[1].owned, cluster, 1)
        elif which == "remote":
            yield Subject(cluster.remote(1), cluster, 1)
        else:
            leader = 1 if which == "routed here" else 2
            yield Subject(cluster.routed(1), cluster, leader)


# ── Backend ──────────────────────────────────────────────────────────────────────────────────


async def test_a_message_comes_back_as_it_was_sent(subject: Subject) -> None:
    queue = await subject.topic()
    sent = Message(
        b"0123456789abcdef",
        bytes(range(256)) * 4,
        attributes={"a": Attribute("Number.int", b"7"), "b": Attribute("Binary", b"\x00\xff")},
        group="tenant",
        sender="AIDA",
        trace_header="Root=1",
        attempts=2,
        source_arn="arn:aws:sqs:us-east-1:000000000000:other",
        sent_at_ms=subject.cluster.clock.wall - 5,
        is_sealed=True,
    )
    (appended,) = await subject.calls.call(Append(queue, 0, [sent]))
    assert appended.partition == 0
    assert appended.message_id == sent.message_id
    assert not appended.is_duplicate
    (delivery,) = await subject.calls.call(Lease(queue, TEN))
    assert delivery.record.offset == appended.offset
    assert delivery.record.appended_at_ms == subject.cluster.clock.wall
    assert delivery.attempt == 3
    assert msgspec.structs.asdict(delivery.record.message) == {
        **msgspec.structs.asdict(sent),
        "delay_ms": delivery.record.message.delay_ms,
    }


async def test_a_repeated_fifo_message_is_told_to_be_one(subject: Subject) -> None:
    queue = await subject.topic("q.fifo", kind=Kind.FIFO)
    one = message("a", group="g", dedup_id="d")
    (first,) = await subject.calls.call(Append(queue, 0, [one]))
    (second,) = await subject.calls.call(Append(queue, 0, [message("b", group="g", dedup_id="d")]))
    assert second.is_duplicate
    assert (second.offset, second.message_id) == (first.offset, one.message_id)


async def test_an_unknown_topic_is_not_found(subject: Subject) -> None:
    queue = await subject.topic()
    stranger = msgspec.structs.replace(queue, topic_id="f" * 32)
    subject.cluster.truth.move(stranger, 0, subject.leader)
    with pytest.raises(TopicNotFound):
        await subject.calls.call(Append(stranger, 0, [message()]))


async def test_a_long_poll_is_answered_by_the_message_it_waits_for(subject: Subject) -> None:
    queue = await subject.topic()
    waiting = asyncio.create_task(subject.calls.call(Lease(queue, LeaseRequest(wait_ms=10_000))))
    leader = subject.cluster.nodes[subject.leader]
    await until(lambda: leader.waits(queue) == 1)
    await subject.calls.call(Append(queue, 0, [message("late")]))
    async with asyncio.timeout(5):
        assert bodies(await waiting) == ["late"]


async def test_a_long_poll_ends_empty_when_its_time_is_over(subject: Subject) -> None:
    queue = await subject.topic()
    async with asyncio.timeout(5):
        assert list(await subject.calls.call(Lease(queue, LeaseRequest(wait_ms=60)))) == []


async def test_a_full_queue_says_so_to_who_does_not_wait(subject: Subject) -> None:
    queue = await subject.topic()
    await subject.calls.call(Append(queue, 0, [message() for _ in range(21)]))
    assert len(await subject.calls.call(Lease(queue, LeaseRequest(count=10)))) == 10
    assert len(await subject.calls.call(Lease(queue, LeaseRequest(count=10)))) == 10
    with pytest.raises(InFlightLimit):
        await subject.calls.call(Lease(queue, LeaseRequest()))
    assert list(await subject.calls.call(Lease(queue, LeaseRequest(wait_ms=40)))) == []


async def test_each_claim_gets_its_own_result(subject: Subject) -> None:
    queue = await subject.topic("q.fifo", kind=Kind.FIFO)
    await subject.calls.call(Append(queue, 0, [message(group="g", dedup_id="1")]))
    await subject.calls.call(Append(queue, 0, [message(group="h", dedup_id="2")]))
    one, two = await subject.calls.call(Lease(queue, TEN))
    stale = Claim(0, one.record.offset, one.lease_seq + 7)
    results = await subject.calls.call(Ack(queue, 0, [claim(two), stale]))
    assert results[0] is None
    assert isinstance(results[1], ExpiredReceipt)
    assert str(results[1])
    results = await subject.calls.call(
        Extend(queue, 0, [(claim(one), 0), (Claim(0, 999, 1), 5_000), (stale, 43_300_000)])
    )
    assert results[0] is None
    assert isinstance(results[1], NotLeased | InvalidRequest)
    assert isinstance(results[2], InvalidRequest)
    assert bodies(await subject.calls.call(Lease(queue, TEN))) == ["hello"]


async def test_a_purge_leaves_nothing_and_is_done_once_a_minute(subject: Subject) -> None:
    queue = await subject.topic()
    await subject.calls.call(Append(queue, 0, [message() for _ in range(3)]))
    await subject.calls.call(Purge(queue))
    assert (await subject.calls.call(Stats(queue))).visible == 0
    with pytest.raises(PurgeInProgress):
        await subject.calls.call(Purge(queue))


async def test_stats_are_those_of_the_leader(subject: Subject) -> None:
    queue = await subject.topic()
    await subject.calls.call(Append(queue, 0, [message() for _ in range(3)]))
    (taken,) = await subject.calls.call(Lease(queue, LeaseRequest()))
    await subject.calls.call(Ack(queue, 0, [claim(taken)]))
    await subject.calls.call(Lease(queue, LeaseRequest()))
    leader = subject.cluster.nodes[subject.leader]
    stats = await subject.calls.call(Stats(queue))
    assert stats == await leader.broker.call(Stats(queue))
    assert (stats.visible, stats.in_flight, stats.sent, stats.acked) == (1, 1, 3, 1)


async def test_what_keeps_messages_back_is_told_by_the_leader(subject: Subject) -> None:
    queue = await subject.topic("q.fifo", kind=Kind.FIFO)
    for number in range(3):
        await subject.calls.call(Append(queue, 0, [message(group="g", dedup_id=str(number))]))
    (taken,) = await subject.calls.call(Lease(queue, LeaseRequest()))
    leader = subject.cluster.nodes[subject.leader]
    stats = await subject.calls.call(Stats(queue, is_detailed=True))
    assert stats == await leader.broker.call(Stats(queue, is_detailed=True))
    assert stats.obstacles is not None
    assert (stats.obstacles.blocked, stats.obstacles.in_flight_max) == (2, 20)
    (lock,) = stats.obstacles.locks
    assert (lock.group, lock.offset) == ("g", taken.record.offset)
    peeked, _ = await subject.calls.call(Peek(queue, partition=0, start=0, count=10))
    assert [each.blocked_by for each in peeked] == [None, 0, 0]
    assert {each.until_ms for each in peeked} == {lock.until_ms}


async def test_peeking_takes_nothing(subject: Subject) -> None:
    queue = await subject.topic()
    await subject.calls.call(Append(queue, 0, [message("a"), message("b")]))
    await subject.calls.call(Lease(queue, LeaseRequest()))
    leader = subject.cluster.nodes[subject.leader]
    peeked = await subject.calls.call(Peek(queue, partition=0, start=0, count=10))
    expected = await leader.broker.call(Peek(queue, partition=0, start=0, count=10))
    assert list(peeked[0]) == list(expected[0])
    assert peeked[1] == expected[1]
    assert [each.state for each in peeked[0]] == ["in_flight", "visible"]


async def test_a_move_task_runs_at_the_leader_of_its_source(subject: Subject) -> None:
    source, target = await subject.topic("dead"), await subject.topic("alive")
    await subject.calls.call(Append(source, 0, [message("a"), message("b")]))
    await subject.calls.call(
        StartMove(MoveTask("t1", source.arn, target.arn, None, "RUNNING", started_at_ms=1))
    )
    assert subject.cluster.nodes[subject.leader].broker.moves(source.arn)
    await until(lambda: [task.status for task in subject.calls.moves(source.arn)] == ["COMPLETED"])
    assert sorted(bodies(await subject.calls.call(Lease(target, TEN)))) == ["a", "b"]


async def test_a_move_task_is_cancelled_wherever_it_runs(subject: Subject) -> None:
    source, target = await subject.topic("dead"), await subject.topic("alive")
    await subject.calls.call(Append(source, 0, [message() for _ in range(50)]))
    await subject.calls.call(
        StartMove(MoveTask("t1", source.arn, target.arn, 1, "RUNNING", started_at_ms=1))
    )
    cancelled = await subject.calls.call(CancelMove("t1"))
    assert cancelled is not None
    assert cancelled.status == "CANCELLING"
    assert await subject.calls.call(CancelMove("no such task")) is None


# ── Streams ──────────────────────────────────────────────────────────────────────────────────


async def test_batches_come_back_byte_for_byte(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    appended = await subject.calls.call(
        AppendBatches(stream, 0, acks=-1, batches=[batch("a", "b"), memoryview(batch("c"))])
    )
    assert (appended.base_offset, appended.start_offset) == (0, 0)
    leader = subject.cluster.nodes[subject.leader].broker
    for offset, bytes_max in ((0, 1 << 20), (2, 1), (3, 1 << 20)):
        fetched = await subject.calls.call(
            Fetch(stream, 0, offset=offset, bytes_max=bytes_max, is_committed=True)
        )
        expected = await leader.call(
            Fetch(stream, 0, offset=offset, bytes_max=bytes_max, is_committed=True)
        )
        assert b"".join(map(bytes, fetched.buffers)) == b"".join(map(bytes, expected.buffers))  # type: ignore[arg-type]
        assert fetched.ends == expected.ends
        assert (fetched.next_offset, fetched.record_count) == (
            expected.next_offset,
            expected.record_count,
        )
        assert list(fetched.aborted) == list(expected.aborted)
    whole = await subject.calls.call(
        Fetch(stream, 0, offset=0, bytes_max=1 << 20, is_committed=False)
    )
    assert len(list(split_batches(whole.buffers))) == 2


async def test_an_offset_that_is_not_there_says_what_is(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    await subject.calls.call(AppendBatches(stream, 0, acks=1, batches=[batch("a")]))
    with pytest.raises(OffsetOutOfRange) as refused:
        await subject.calls.call(Fetch(stream, 0, offset=9, bytes_max=1, is_committed=False))
    assert (refused.value.offset, refused.value.start_offset, refused.value.end_offset) == (9, 0, 1)
    assert str(refused.value) == "offset 9 is outside of [0, 1]"


async def test_a_refused_producer_hears_the_code(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    await subject.calls.call(
        AppendBatches(stream, 0, acks=-1, batches=[batch("a", producer=(7, 3, 0))])
    )
    with pytest.raises(ProducerRefused) as refused:
        await subject.calls.call(
            AppendBatches(stream, 0, acks=-1, batches=[batch("b", producer=(7, 3, 5))])
        )
    assert refused.value.code > 0
    (seen,) = await subject.calls.call(Producers(stream, 0))
    assert (seen.producer_id, seen.producer_epoch, seen.last_sequence) == (7, 3, 0)


async def test_a_transaction_is_ended_by_its_marker(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    data = encode_batch(
        [encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"a")],
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=1_000,
        max_timestamp=1_000,
        attributes=TRANSACTIONAL,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    await subject.calls.call(AppendBatches(stream, 0, acks=-1, batches=[data]))
    assert await subject.calls.call(IsInTransaction(stream, 0, 7, 0))
    await subject.calls.call(AppendMarker(stream, 0, Marker(7, 0, is_commit=False)))
    await subject.calls.call(AppendMarker(stream, 0, Marker(7, 0, is_commit=False)))
    assert not await subject.calls.call(IsInTransaction(stream, 0, 7, 0))
    fetched = await subject.calls.call(
        Fetch(stream, 0, offset=0, bytes_max=1 << 20, is_committed=True)
    )
    assert [tuple(one) for one in fetched.aborted] == [(7, 0)]


async def test_times_and_sizes_are_those_of_the_leader(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    await subject.calls.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a", "b")]))
    leader = subject.cluster.nodes[subject.leader].broker
    at_ms = (await leader.call(MaxTimestamp(stream, 0)))[1]
    assert await subject.calls.call(MaxTimestamp(stream, 0)) == await leader.call(
        MaxTimestamp(stream, 0)
    )
    assert await subject.calls.call(FindTime(stream, 0, at_ms)) == await leader.call(
        FindTime(stream, 0, at_ms)
    )
    assert await subject.calls.call(FindTime(stream, 0, at_ms + 10**9)) == (-1, -1)
    assert (
        await subject.calls.call(LogBytes(stream, 0)) == await leader.call(LogBytes(stream, 0)) > 0
    )
    assert await subject.calls.call(Ends(stream, 0)) == await leader.call(Ends(stream, 0))


async def test_deleted_records_are_gone(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    await subject.calls.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a"), batch("b")]))
    assert await subject.calls.call(DeleteRecords(stream, 0, 1)) == 1
    assert (await subject.calls.call(Ends(stream, 0))).start_offset == 1
    end = (await subject.calls.call(Ends(stream, 0))).high_watermark
    assert await subject.calls.call(DeleteRecords(stream, 0, -1)) == end


async def test_a_listener_hears_of_every_advance_until_it_is_ended(subject: Subject) -> None:
    stream = await subject.topic("s", kind=Kind.STREAM)
    await subject.calls.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a")]))
    heard = asyncio.Event()
    end = subject.calls.on_advance(stream, 0, heard.set)
    for _ in range(3):
        seen = (await subject.calls.call(Ends(stream, 0))).high_watermark
        heard.clear()
        await subject.calls.call(AppendBatches(stream, 0, acks=-1, batches=[batch("b")]))
        async with asyncio.timeout(5):
            # One may have been for something before; the last is not before what was appended.
            await heard.wait()
        assert (await subject.calls.call(Ends(stream, 0))).high_watermark == seen + 1
    end()
    await asyncio.sleep(0)
    heard.clear()
    await subject.calls.call(AppendBatches(stream, 0, acks=-1, batches=[batch("c")]))
    await subject.calls.call(Ends(stream, 0))
    assert not heard.is_set()


# ── Shares ───────────────────────────────────────────────────────────────────────────────────


async def test_a_share_has_a_cursor_of_its_own(subject: Subject) -> None:
    queue = await subject.topic()
    await subject.calls.call(Append(queue, 0, [message("a"), message("b")]))
    share = await subject.calls.call(
        OpenShare(
            queue,
            0,
            "group",
            start=EARLIEST,
            settings=QueueSettings(lease_ms=7_000),
            tags={"k": "v"},
            attempts_max=4,
        )
    )
    await subject.cluster.known(share)
    assert (share.settings.lease_ms, share.tags, share.source_id) == (
        7_000,
        {"k": "v"},
        queue.topic_id,
    )
    assert await subject.calls.call(OpenShare(queue, 0, "group", start=LATEST)) == share
    assert subject.calls.find_share(queue, "group") == share
    acquired = await subject.calls.call(
        Acquire(share, 0, count=10, bytes_max=1 << 20, lease_ms=30_000)
    )
    assert [pick[0] for pick in acquired.picks] == [0, 1]
    assert len(list(split_batches(acquired.batches))) == 1
    (first, second) = [Claim(0, offset, seq) for offset, seq, _ in acquired.picks]
    assert list(await subject.calls.call(Finish(share, 0, [first]))) == [None]
    (again,) = await subject.calls.call(Finish(share, 0, [first], is_rejected=True))
    assert isinstance(again, NotLeased)
    assert await subject.calls.call(ShareStart(share, 0)) == 1
    assert await subject.calls.call(ShareLag(share, 0)) == 1
    assert list(await subject.calls.call(Prolong(share, 0, [(second, 0)]))) == [None]
    await subject.calls.call(RestartShare(share, 0, EARLIEST))
    assert await subject.calls.call(ShareLag(share, 0)) == 2
    assert bodies(await subject.calls.call(Lease(queue, TEN))) == ["a", "b"]
    assert await subject.calls.call(CloseShare(queue, "group"))
    assert not await subject.calls.call(CloseShare(queue, "group"))


async def test_a_share_of_what_cannot_be_shared_is_refused(subject: Subject) -> None:
    queue = await subject.topic("q.fifo", kind=Kind.FIFO)
    with pytest.raises(InvalidRequest, match="FIFO"):
        await subject.calls.call(OpenShare(queue, 0, "group", start=EARLIEST))


async def test_a_listener_hears_when_a_share_has_something_again(subject: Subject) -> None:
    queue = await subject.topic()
    share = await subject.calls.call(OpenShare(queue, 0, "group", start=EARLIEST))
    await subject.cluster.known(share)
    await subject.calls.call(ShareLag(share, 0))
    heard = asyncio.Event()
    end = subject.calls.on_available(share, 0, heard.set)
    taken: list[int] = []
    async with asyncio.timeout(10):
        for _ in range(3):
            await subject.calls.call(Append(queue, 0, [message()]))
            while True:
                acquired = await subject.calls.call(
                    Acquire(share, 0, count=1, bytes_max=1 << 20, lease_ms=30_000)
                )
                if acquired.picks:
                    taken.append(acquired.picks[0][0])
                    break
                await heard.wait()
                heard.clear()
        assert taken == sorted(set(taken))
        heard.clear()
        released = [(Claim(0, acquired.picks[0][0], acquired.picks[0][1]), 0)]
        await subject.calls.call(Prolong(share, 0, released))
        await heard.wait()
    end()
