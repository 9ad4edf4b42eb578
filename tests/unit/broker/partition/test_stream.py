"""A partition as producers of batches and readers by offset see it, beside the queue view."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.stage import HandClock, Stage, bodies, claim, message, on_stage
from tests.unit.record.checks import check

from penstock.log.log import LogConfig
from penstock.model.calls import (
    Ack,
    Append,
    AppendBatches,
    AppendMarker,
    DeleteRecords,
    Ends,
    Fetch,
    FindTime,
    IsInTransaction,
    Lease,
    MaxTimestamp,
)
from penstock.model.errors import OffsetOutOfRange, ProducerRefused
from penstock.model.limits import KIB
from penstock.model.ports import LeaseRequest, Marker
from penstock.model.topic import Fsync, Kind, Topic
from penstock.net.kafka.listener import EagerCoroutine
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch, parse_header, split_batches
from penstock.record.record import encode_record, iter_records

TEN = LeaseRequest(count=10)


def batch(*values: str, producer: tuple[int, int, int] = (-1, -1, -1), at_ms: int = 1_000) -> bytes:
    records = [
        encode_record(offset_delta=n, timestamp_delta=n, key=b"k", value=value.encode())
        for n, value in enumerate(values)
    ]
    return encode_batch(
        records,
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=at_ms,
        max_timestamp=at_ms + len(values) - 1,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


async def stream(
    stage: Stage, name: str = "t", *, fsync: Fsync | None = None, **configs: str
) -> Topic:
    topic = await stage.topic(name, fsync=fsync)
    return await stage.catalog.change(
        topic.account,
        topic.region,
        topic.name,
        lambda t: msgspec.structs.replace(
            t, kind=Kind.STREAM, configs={k.replace("_", "."): v for k, v in configs.items()}
        ),
    )


async def read_all(stage: Stage, topic: Topic, start: int = 0) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while True:
        fetched = await stage.broker.call(
            Fetch(topic, 0, offset=start, bytes_max=1_000, is_committed=False)
        )
        if not fetched.buffers:
            return found
        for data in split_batches(fetched.buffers):
            check(data)
            header = parse_header(data)
            if not header.is_control:
                found += [(r.offset, (r.value or b"").decode()) for r in iter_records(data)]
            start = header.next_offset


async def test_batches_are_stored_as_they_came_and_read_back_by_offset(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        first = await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b")]))
        second = await stage.broker.call(AppendBatches(topic, 0, acks=1, batches=[batch("c")]))
        assert (first.base_offset, second.base_offset) == (0, 2)
        assert await read_all(stage, topic) == [(0, "a"), (1, "b"), (2, "c")]
        assert await read_all(stage, topic, 2) == [(2, "c")]
        ends = await stage.broker.call(Ends(topic, 0))
        assert (ends.start_offset, ends.high_watermark, ends.last_stable_offset) == (0, 3, 3)
        with pytest.raises(OffsetOutOfRange):
            await stage.broker.call(Fetch(topic, 0, offset=4, bytes_max=1, is_committed=False))


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.INTERVAL])
async def test_where_no_sync_is_waited_for_a_batch_is_committed_on_the_spot(
    tmp_path: Path, fsync: Fsync
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage, fsync=fsync)
        await stage.broker.call(Ends(topic, 0))
        woken: list[int] = []
        stage.broker.on_advance(topic, 0, lambda: woken.append(len(woken)))
        written_before = stage.meter.log_written_bytes
        begun = EagerCoroutine(
            stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a"), batch("b")]))
        )
        assert begun.is_done
        assert begun.result.base_offset == 0
        assert woken == [0]
        assert (await stage.broker.call(Ends(topic, 0))).high_watermark == 2
        assert stage.meter.log_written_bytes - written_before == 2 * len(batch("a"))


async def test_batches_of_one_turn_share_a_sync_and_keep_their_order(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage, fsync=Fsync.ALWAYS)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("x")]))
        syncs_before = sum(stage.meter.fsyncs.counts)
        begun = [
            EagerCoroutine(
                stage.broker.call(
                    AppendBatches(topic, 0, acks=-1, batches=[batch(str(n), producer=(7, 0, n))])
                )
            )
            for n in range(5)
        ]
        assert not any(one.is_done for one in begun)
        assert (await stage.broker.call(Ends(topic, 0))).high_watermark == 1
        assert [(await one).base_offset for one in begun] == [1, 2, 3, 4, 5]
        assert sum(stage.meter.fsyncs.counts) == syncs_before + 1
        assert (await stage.broker.call(Ends(topic, 0))).high_watermark == 6


async def test_a_journal_that_does_not_wait_for_syncs_can_be_settled_during_one(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage, fsync=Fsync.NEVER)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        (queue,) = [one for one in stage.broker.partitions.queues() if one.topic == topic]
        journal = queue.partitions[0].journal
        journal.sync_soon()
        assert journal.log.durable_offset == 0
        await asyncio.wait_for(journal.settle(), 5)
        assert journal.log.durable_offset == 1


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_repeated_batch_is_stored_once_also_after_a_restart(
    tmp_path: Path, is_crash: bool
) -> None:
    clock = HandClock()
    one, two = batch("a", "b", producer=(7, 0, 0)), batch("c", producer=(7, 0, 2))
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stream(stage)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[one]))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[two]))
        again = await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[one]))
        assert (again.base_offset, again.is_duplicate) == (0, True)
    async with on_stage(tmp_path, clock) as stage:
        again = await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[two]))
        assert (again.base_offset, again.is_duplicate) == (2, True)
        with pytest.raises(ProducerRefused) as refused:
            await stage.broker.call(
                AppendBatches(topic, 0, acks=-1, batches=[batch("z", producer=(7, 0, 9))])
            )
        assert refused.value.code == 45
        assert await read_all(stage, topic) == [(0, "a"), (1, "b"), (2, "c")]


async def test_append_time_is_stamped_with_a_checksum_that_holds(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage, message_timestamp_type="LogAppendTime")
        done = await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b")]))
        assert done.appended_at_ms == stage.clock.wall
        fetched = await stage.broker.call(Fetch(topic, 0, offset=0, bytes_max=1, is_committed=True))
        (data,) = split_batches(fetched.buffers)
        check(data)
        times = {record.timestamp for record in iter_records(data)}
        assert times == {stage.clock.wall}


async def test_records_are_found_by_time(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        for at_ms in (1_000, 2_000, 3_000):
            await stage.broker.call(
                AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b", at_ms=at_ms)])
            )
        assert await stage.broker.call(FindTime(topic, 0, 0)) == (0, 1_000)
        assert await stage.broker.call(FindTime(topic, 0, 2_001)) == (3, 2_001)
        assert await stage.broker.call(FindTime(topic, 0, 2_002)) == (4, 3_000)
        assert await stage.broker.call(FindTime(topic, 0, 9_000)) == (-1, -1)
        assert await stage.broker.call(MaxTimestamp(topic, 0)) == (5, 3_001)


async def test_readers_are_told_when_more_can_be_read(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await stage.broker.call(Ends(topic, 0))
        told = asyncio.Event()
        stop = stage.broker.on_advance(topic, 0, told.set)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        await asyncio.wait_for(told.wait(), 5)
        stop()
        told.clear()
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("b")]))
        assert not told.is_set()


async def test_deleted_records_are_hidden_at_once_and_stay_so(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        topic = await stream(stage)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b", "c")]))
        assert await stage.broker.call(DeleteRecords(topic, 0, 2)) == 2
        with pytest.raises(OffsetOutOfRange):
            await stage.broker.call(Fetch(topic, 0, offset=1, bytes_max=1, is_committed=False))
        assert (2, "c") in await read_all(stage, topic, 2)
    async with on_stage(tmp_path, clock) as stage:
        assert (await stage.broker.call(Ends(topic, 0))).start_offset == 2
        with pytest.raises(OffsetOutOfRange):
            await stage.broker.call(DeleteRecords(topic, 0, 99))


async def test_a_stream_keeps_what_was_read_until_its_retention_ends(tmp_path: Path) -> None:
    small = LogConfig(segment_bytes_max=4 * KIB)
    clock = HandClock()
    async with on_stage(tmp_path, clock, log=small) as stage:
        topic = await stream(stage, retention_ms="60000")
        for _ in range(40):
            data = batch("x" * 500, at_ms=clock.wall)
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[data]))
        partition = stage.broker.partitions.queues()[0].partitions[0]
        assert await partition.clean() == 0
        clock.advance(61_000)
        assert await partition.clean() > 0
        assert (await stage.broker.call(Ends(topic, 0))).start_offset > 0


async def test_one_message_is_seen_both_ways(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        queue = await stage.topic("orders")
        await stage.broker.call(Append(queue, 0, [message("from a queue client")]))
        data = batch("from a stream client", at_ms=stage.clock.wall)
        await stage.broker.call(AppendBatches(queue, 0, acks=-1, batches=[data]))
        got = await stage.broker.call(Lease(queue, TEN))
        assert bodies(got) == ["from a queue client", "from a stream client"]
        assert got[1].record.message.group == "k"
        await stage.broker.call(Ack(queue, 0, [claim(d) for d in got]))
        # Leases and acks stand in the same log and are nobody's business here.
        assert [value for _, value in await read_all(stage, queue)] == [
            "from a queue client",
            "from a stream client",
        ]


async def test_a_stream_opened_as_a_queue_gives_out_what_it_has(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b")]))
        queue = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda t: msgspec.structs.replace(t, kind=Kind.STANDARD),
        )
        # A topic's records are as old as their producers say; this one keeps them for ever.
        queue = await stage.catalog.change(
            queue.account,
            queue.region,
            queue.name,
            lambda t: t.with_settings(now_ms=0, retention_ms=1 << 60),
        )
        assert bodies(await stage.broker.call(Lease(queue, TEN))) == ["a", "b"]


async def test_new_partitions_open_while_the_topic_is_in_use(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        topic = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda t: msgspec.structs.replace(t, partition_count=3),
        )
        done = await stage.broker.call(AppendBatches(topic, 2, acks=-1, batches=[batch("b")]))
        assert done.base_offset == 0


async def test_an_open_transaction_holds_committed_readers_back_until_its_marker(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stream(stage)
        for number, is_commit in ((1, True), (2, False)):
            data = bytearray(batch(f"in {number}", producer=(number, 0, 0)))
            opened = transactional(bytes(data))
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[opened]))
            assert await stage.broker.call(IsInTransaction(topic, 0, number, 0))
            ends = await stage.broker.call(Ends(topic, 0))
            assert ends.last_stable_offset == ends.high_watermark - 1
            await stage.broker.call(AppendMarker(topic, 0, Marker(number, 0, is_commit)))
            assert not await stage.broker.call(IsInTransaction(topic, 0, number, 0))
    async with on_stage(tmp_path, clock) as stage:
        ends = await stage.broker.call(Ends(topic, 0))
        assert ends.last_stable_offset == ends.high_watermark == 4
        fetched = await stage.broker.call(
            Fetch(topic, 0, offset=0, bytes_max=9_999, is_committed=True)
        )
        assert list(fetched.aborted) == [(2, 2)]
        assert [value for _, value in await read_all(stage, topic)] == ["in 1", "in 2"]


def transactional(data: bytes) -> bytes:
    header = parse_header(data)
    records = [data[61:]]
    made = encode_batch(
        records,
        base_offset=0,
        leader_epoch=0,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        attributes=ATTR_TRANSACTIONAL,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    check(made)
    return made
