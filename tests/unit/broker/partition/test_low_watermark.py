"""DeleteRecords and retention of a stream on one node: the start moves, the end does not."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.broker.partition.test_stream import batch, read_all, stream
from tests.unit.broker.queues.test_shares import acquire, claims, share, values
from tests.unit.broker.stage import HandClock, Stage, bodies, on_stage

from penstock.broker.partition.partition import Partition
from penstock.broker.partition.replay import Replay
from penstock.cursor.leases.lease import LeaseCursor
from penstock.log.log import Log, LogConfig
from penstock.model.calls import (
    AppendBatches,
    AppendMarker,
    DeleteRecords,
    Ends,
    Fetch,
    FindTime,
    Finish,
    Lease,
    MaxTimestamp,
    Stats,
)
from penstock.model.errors import OffsetOutOfRange
from penstock.model.limits import KIB
from penstock.model.ports import LeaseRequest, Marker
from penstock.model.topic import Kind, Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch
from penstock.record.record import encode_record

SMALL = LogConfig(segment_bytes_max=4 * KIB)


def partition_of(stage: Stage, topic: Topic) -> Partition:
    queue = stage.broker.partitions.find(topic)
    assert queue is not None
    return queue.partitions[0]


async def ends(stage: Stage, topic: Topic) -> tuple[int, int]:
    found = await stage.broker.call(Ends(topic, 0))
    return found.start_offset, found.high_watermark


async def fill(stage: Stage, topic: Topic, count: int = 30, *, per_batch: int = 1) -> None:
    for first in range(0, count, per_batch):
        some = [str(number) for number in range(first, first + per_batch)]
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch(*some)]))


async def check_left(stage: Stage, topic: Topic, start: int, end: int) -> None:
    """Exactly these offsets can be read."""
    assert await ends(stage, topic) == (start, end)
    found = [offset for offset, _ in await read_all(stage, topic, start)]
    assert [offset for offset in found if offset >= start] == list(range(start, end))
    if start:
        with pytest.raises(OffsetOutOfRange):
            await stage.broker.call(
                Fetch(topic, 0, offset=start - 1, bytes_max=1, is_committed=False)
            )


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize("per_batch", [1, 10, 30])
async def test_deleting_records_leaves_the_end_where_it_is(
    tmp_path: Path, per_batch: int, is_crash: bool
) -> None:
    for before, start in ((7, 7), (8, 8), (-1, 30)):
        async with on_stage(tmp_path / str(before), is_crash=is_crash) as stage:
            topic = await stream(stage)
            await fill(stage, topic, per_batch=per_batch)
            for first in sorted({7, start}):
                assert await stage.broker.call(DeleteRecords(topic, 0, first)) == first
            assert await stage.broker.call(DeleteRecords(topic, 0, before)) == start
            await check_left(stage, topic, start, 30)
        async with on_stage(tmp_path / str(before)) as stage:
            await check_left(stage, topic, start, 30)
            appended = await stage.broker.call(
                AppendBatches(topic, 0, acks=-1, batches=[batch("new")])
            )
            assert (appended.base_offset, appended.start_offset) == (30, start)
            assert await stage.broker.call(DeleteRecords(topic, 0, start)) == start, "again"
            with pytest.raises(OffsetOutOfRange):
                await stage.broker.call(DeleteRecords(topic, 0, start - 1))


async def test_retention_leaves_the_end_where_it_is(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        topic = await stream(stage, retention_bytes="10000")
        for number in range(200):
            data = batch(f"{number}" + "x" * 100, at_ms=clock.wall)
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[data]))
        partition = partition_of(stage, topic)
        assert await partition.clean() > 0
        await partition.clean()
        start, end = await ends(stage, topic)
        assert (start > 0, end) == (True, 200)
        assert partition.log.end_offset == 200
        clock.advance(8 * 24 * 3_600_000)
        assert await partition.clean() > 0
        assert (await ends(stage, topic))[1] == partition.log.end_offset == 200
        start, _ = await ends(stage, topic)
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        assert await ends(stage, topic) == (start, 200)


async def test_a_crash_before_segments_are_unlinked_does_not_bring_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(tmp_path, log=SMALL, is_crash=True) as stage:
        topic = await stream(stage)
        await fill(stage, topic, 300)
        monkeypatch.setattr("penstock.log.log.Detached.remove", lambda _self: 0)
        assert await stage.broker.call(DeleteRecords(topic, 0, 250)) == 250
    monkeypatch.undo()
    async with on_stage(tmp_path, log=SMALL) as stage:
        await stage.broker.call(Ends(topic, 0))
        assert partition_of(stage, topic).log.start_offset == 0, "the segments are there"
        await check_left(stage, topic, 250, 300)
        await partition_of(stage, topic).clean()
        assert partition_of(stage, topic).log.start_offset > 0


@pytest.mark.parametrize(("stored", "start"), [(0, 7), (5, 7), (9, 9)])
async def test_of_an_old_event_and_the_file_the_larger_counts(
    tmp_path: Path, stored: int, start: int
) -> None:
    """A folder as earlier versions leave it: a Trim event, and no file."""
    async with on_stage(tmp_path, is_crash=True) as stage:
        topic = await stream(stage)
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        leases = partition.leases
        await leases.settled(leases.clip(7, passed=7, is_expiry=False))
        assert await ends(stage, topic) == (7, 31), "the event is in the log"
        assert not (partition.log.folder / "low-watermark").exists()
        if stored:
            partition.log.store_low_watermark(stored)
    async with on_stage(tmp_path) as stage:
        assert await ends(stage, topic) == (start, 31)
        assert await stage.broker.call(DeleteRecords(topic, 0, 12)) == 12
    async with on_stage(tmp_path) as stage:
        assert await ends(stage, topic) == (12, 31)


async def test_a_deleted_record_is_not_found_by_its_time(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await fill(stage, topic, per_batch=30)  # at 1000, 1001, …
        assert await stage.broker.call(FindTime(topic, 0, 1_003)) == (3, 1_003)
        await stage.broker.call(DeleteRecords(topic, 0, 7))
        assert await stage.broker.call(FindTime(topic, 0, 1_003)) == (7, 1_007)
        assert await stage.broker.call(FindTime(topic, 0, 1_020)) == (20, 1_020)
        assert await stage.broker.call(MaxTimestamp(topic, 0)) == (29, 1_029)


async def test_the_file_is_written_by_a_thread_and_for_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    may_go_on = threading.Event()
    stored: list[int] = []
    store = Log.store_low_watermark

    def slow(log: Log, offset: int) -> None:
        assert threading.get_ident() != loop_thread
        assert may_go_on.wait(10)
        stored.append(offset)
        store(log, offset)

    monkeypatch.setattr(Log, "store_low_watermark", slow)
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await fill(stage, topic)
        given_up = asyncio.create_task(stage.broker.call(DeleteRecords(topic, 0, 3)))
        waiting = [
            asyncio.create_task(stage.broker.call(DeleteRecords(topic, 0, n))) for n in (4, 6, 5)
        ]
        await asyncio.sleep(0.05)
        assert await ends(stage, topic) == (0, 30), "nothing before it is on disk"
        given_up.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.gather(*waiting)
        assert await ends(stage, topic) == (6, 30)
        assert stored == [3, 6], "one write at a time, and one for several"
        with pytest.raises(asyncio.CancelledError):
            await given_up


# ── Shares ───────────────────────────────────────────────────────────────────────────────────


async def test_a_share_forgets_deleted_records_without_an_event(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        start = (await ends(stage, topic))[1]
        await fill(stage, topic)
        held = await acquire(stage, reader, count=5)
        log = partition_of(stage, topic).log
        end = log.end_offset
        await stage.broker.call(DeleteRecords(topic, 0, start + 3))
        assert log.end_offset == end
        stats = await stage.broker.call(Stats(reader))
        assert (stats.in_flight, stats.visible) == (2, 25)
        await stage.broker.call(DeleteRecords(topic, 0, start + 20))
        assert (await stage.broker.call(Stats(reader))).visible == 10
        assert values(await acquire(stage, reader, count=1)) == ["20"]
        results = await stage.broker.call(Finish(reader, 0, claims(held)))
        assert all(result is not None for result in results), "they are gone"
    async with on_stage(tmp_path, clock) as stage:
        stats = await stage.broker.call(Stats(reader))
        assert (stats.in_flight, stats.visible) == (1, 9)
        assert values(await acquire(stage, reader, count=30)) == [str(n) for n in range(21, 30)]


async def test_a_stream_that_becomes_a_queue_gives_out_what_was_left(tmp_path: Path) -> None:
    async with on_stage(tmp_path, is_crash=True) as stage:
        topic = await stream(stage)
        data = batch(*"0123456789", at_ms=stage.clock.wall)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[data]))
        await stage.broker.call(DeleteRecords(topic, 0, 7))
    async with on_stage(tmp_path) as stage:
        queue = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda t: msgspec.structs.replace(t, kind=Kind.STANDARD),
        )
        assert (await stage.broker.call(Stats(queue))).visible == 3
        assert bodies(await stage.broker.call(Lease(queue, LeaseRequest(10)))) == ["7", "8", "9"]
        assert (await ends(stage, queue))[0] == 7


def seen(cursor: LeaseCursor, *, now_ms: int) -> tuple[object, ...]:
    stats = cursor.stats(now_ms=now_ms)
    held = sorted(offset for offset in cursor._table)
    return cursor.head, cursor.low_offset(), held, stats, cursor.unseen


def marked(*values_: str, sequence: int) -> bytes:
    """A batch of a transaction: its marker is a control record between messages."""
    records = [
        encode_record(offset_delta=n, timestamp_delta=0, key=None, value=value.encode())
        for n, value in enumerate(values_)
    ]
    return encode_batch(
        records,
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=1_000,
        max_timestamp=1_000,
        attributes=ATTR_TRANSACTIONAL,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("transaction"), st.integers(1, 5)),
        st.tuples(st.just("acquire"), st.integers(1, 9)),
        st.tuples(st.just("finish"), st.integers(1, 9)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("start"), st.integers(0, 100)),
        st.tuples(st.just("checkpoint"), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_a_share_restored_from_the_log_is_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int]]
) -> None:
    """Whatever was deleted in between, although no event says so."""
    asyncio.run(_live_through(tmp_path_factory.mktemp("share"), [("append", 12), *steps]))


@pytest.mark.parametrize(
    "steps",
    [
        "append 12, acquire 5, delete 25",
        "append 12, acquire 5, delete 25, acquire 2",
        "append 12, checkpoint 0, acquire 5, delete 25",
        "append 12, checkpoint 0, delete 50, acquire 3, acquire 1",
        "append 12, acquire 3, checkpoint 0, delete 60, acquire 2, delete 80, acquire 1",
        "append 12, start 10, delete 50, acquire 2, append 5, acquire 9",
        "append 12, checkpoint 0, start 10, acquire 2, delete 50, acquire 2",
        "append 12, transaction 5, append 12, checkpoint 0, acquire 9, delete 55, acquire 9",
        "append 12, checkpoint 0, append 12, append 12, append 12, append 12, delete 70, acquire 9",
    ],
)
async def test_a_share_is_restored_as_it_was_after(tmp_path: Path, steps: str) -> None:
    pairs = [step.split() for step in steps.split(", ")]
    await _live_through(tmp_path, [(step, int(number)) for step, number in pairs])


async def _live_through(folder: Path, steps: Sequence[tuple[str, int]]) -> None:
    async with on_stage(folder, log=SMALL) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        partition = partition_of(stage, topic)
        leases = partition.shares[reader.topic_id]
        held, sequence = [], 0
        for step, number in steps:
            start, end = await ends(stage, topic)
            at = start + (end - start) * number // 100
            if step == "append":
                data = batch(*["x" * 150] * number)
                await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[data]))
            elif step == "transaction":
                data = marked(*["y"] * number, sequence=sequence)
                sequence += number
                await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[data]))
                await stage.broker.call(AppendMarker(topic, 0, Marker(7, 0, is_commit=True)))
            elif step == "acquire":
                held += claims(await acquire(stage, reader, count=number))
            elif step == "finish":
                await stage.broker.call(Finish(reader, 0, held[:number]))
                held = held[number:]
            elif step == "delete":
                log_end = partition.log.end_offset
                await stage.broker.call(DeleteRecords(topic, 0, at))
                assert partition.log.end_offset == log_end
            elif step == "start":
                await partition.restart_share(leases, at)
                held = []
            else:
                await partition.checkpoint()
            again = Replay(
                partition.log, topic, 0, shares=[reader], context=partition._context
            ).finish()
            now_ms = stage.clock.mono_ms()
            [(_, cursor)] = again.shares
            assert seen(cursor, now_ms=now_ms) == seen(leases.cursor, now_ms=now_ms)
