"""Shares: several groups read one log, each through a lease cursor of its own."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cursor_state import state_hash
from tests.unit.broker.partition.test_stream import batch, stream
from tests.unit.broker.stage import HandClock, Stage, bodies, claim, message, on_stage

from penstock.log.log import LogConfig
from penstock.model.calls import (
    Ack,
    Acquire,
    Append,
    AppendBatches,
    CloseShare,
    Finish,
    Lease,
    OpenShare,
    Prolong,
    RestartShare,
    ShareStart,
    Stats,
)
from penstock.model.errors import InvalidRequest, NotLeased, TopicNotFound
from penstock.model.limits import KIB
from penstock.model.message import Claim, Delivery
from penstock.model.ports import EARLIEST, LATEST, Acquired, LeaseRequest
from penstock.model.topic import Kind, QueueSettings, Redrive, Topic
from penstock.record.record import iter_records

TEN = LeaseRequest(count=10, lease_ms=30_000)


async def share(stage: Stage, source: Topic, group: str, start: int = EARLIEST) -> Topic:
    return await stage.broker.call(OpenShare(source, 0, group, start=start))


async def acquire(
    stage: Stage, topic: Topic, count: int = 10, bytes_max: int = 1 << 20
) -> Acquired:
    return await stage.broker.call(
        Acquire(topic, 0, count=count, bytes_max=bytes_max, lease_ms=30_000)
    )


def claims(acquired: Acquired) -> list[Claim]:
    return [Claim(0, offset, seq) for offset, seq, _ in acquired.picks]


def values(acquired: Acquired) -> list[str]:
    offsets = {offset for offset, _, _ in acquired.picks}
    return [
        (record.value or b"").decode()
        for data in acquired.batches
        for record in iter_records(data)
        if record.offset in offsets
    ]


async def receive_all(stage: Stage, topic: Topic) -> list[str]:
    found: list[Delivery] = []
    while got := await stage.broker.call(Lease(topic, TEN)):
        found += got
    return bodies(found)


async def test_each_group_gets_every_message_and_the_queue_keeps_its_own(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        queue = await stage.topic()
        await stage.broker.call(Append(queue, 0, [message("a"), message("b")]))
        one = await share(stage, queue, "one")
        two = await share(stage, queue, "two", LATEST)
        await stage.broker.call(Append(queue, 0, [message("c")]))
        got = await stage.broker.call(Lease(one, TEN))
        assert bodies(got) == ["a", "b", "c"]
        assert bodies(await stage.broker.call(Lease(two, TEN))) == ["c"]
        await stage.broker.call(Ack(one, 0, [claim(d) for d in got]))
        assert bodies(await stage.broker.call(Lease(queue, TEN))) == ["a", "b", "c"]
        assert (await stage.broker.call(Stats(one))).in_flight == 0
        assert (await stage.broker.call(Stats(two))).in_flight == 1


async def test_a_message_sent_while_a_share_begins_is_counted_after_a_crash(tmp_path: Path) -> None:
    readers = []
    async with on_stage(tmp_path, is_crash=True) as stage:
        queue = await stage.topic()
        for turns in range(12):  # of the event loop; in one of them the share begins
            opening = asyncio.create_task(share(stage, queue, f"g{turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await stage.broker.call(Append(queue, 0, [message(str(turns))]))
            readers.append(await opening)
    async with on_stage(tmp_path) as stage:
        for reader in readers:
            assert (await stage.broker.call(Stats(reader))).visible == 12
            assert len(await receive_all(stage, reader)) == 12


async def test_batches_of_a_producer_are_leased_whole_and_counted_by_record(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b", "c")]))
        first = await acquire(stage, reader, count=2)
        assert values(first) == ["a", "b"]
        assert [attempt for _, _, attempt in first.picks] == [1, 1]
        second = await acquire(stage, reader)
        assert values(second) == ["c"]
        assert len(second.batches) == 1
        assert await stage.broker.call(Finish(reader, 0, claims(first))) == (None, None)
        assert await stage.broker.call(ShareStart(reader, 0)) == second.picks[0][0]


async def test_an_acquisition_stays_within_its_bytes_but_takes_a_batch(tmp_path: Path) -> None:
    """A batch travels whole, so all of its records are leased with the first."""
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        for _ in range(20):
            await stage.broker.call(
                AppendBatches(topic, 0, acks=-1, batches=[batch(*["x" * 100] * 10)])
            )
        first = await acquire(stage, reader, 50, bytes_max=1)
        assert (len(first.batches), len(first.picks)) == (1, 10)
        some = await acquire(stage, reader, 50, bytes_max=4 * len(first.batches[0]) - 1)
        assert (len(some.batches), len(some.picks)) == (3, 30)
        strict = await stage.broker.call(
            Acquire(reader, 0, count=1, bytes_max=1, lease_ms=30_000, is_strict=True)
        )
        assert (strict.batches, strict.picks) == ([], [])


async def test_only_the_lease_that_still_runs_can_finish_or_prolong(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        late = claims(await acquire(stage, reader))
        stage.clock.advance(30_000)
        again = await acquire(stage, reader)
        assert [attempt for _, _, attempt in again.picks] == [2]
        [refused] = await stage.broker.call(Finish(reader, 0, late))
        assert isinstance(refused, NotLeased)
        [refused] = await stage.broker.call(Prolong(reader, 0, [(late[0], 1_000)]))
        assert isinstance(refused, NotLeased)
        held = claims(again)
        assert await stage.broker.call(Prolong(reader, 0, [(held[0], 60_000)])) == (None,)
        stage.clock.advance(59_000)
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(Finish(reader, 0, held)) == (None,)
        [refused] = await stage.broker.call(Finish(reader, 0, held))
        assert isinstance(refused, NotLeased), "finished with already"


async def test_a_release_and_a_lease_that_runs_out_call_the_listener(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        held = claims(await acquire(stage, reader))
        calls: list[int] = []
        end = stage.broker.shares.on_available(reader, 0, lambda: calls.append(1))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("b")]))
        assert calls, "a new record"
        calls.clear()
        await stage.broker.call(Prolong(reader, 0, [(held[0], 0)]))
        assert calls, "a release"
        calls.clear()
        end()
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("c")]))
        assert not calls


async def test_events_of_another_share_do_not_call_the_listener(tmp_path: Path) -> None:
    """A topic can have a thousand shares: each ack would make all others look for records."""
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        one, other = await share(stage, topic, "one"), await share(stage, topic, "other")
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        held = claims(await acquire(stage, one))
        calls: list[int] = []
        stage.broker.shares.on_available(one, 0, lambda: calls.append(1))
        held_by_other = claims(await acquire(stage, other))
        await stage.broker.call(Finish(other, 0, held_by_other))
        assert not calls
        await stage.broker.call(Finish(one, 0, held))
        assert not calls
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("b")]))
        assert calls


async def test_out_of_attempts_is_finished_with_or_dead_lettered(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        letters = await stage.topic("letters")
        plain = await stage.broker.call(
            OpenShare(topic, 0, "plain", start=EARLIEST, attempts_max=2)
        )
        ruled = await stage.broker.call(
            OpenShare(
                topic,
                0,
                "ruled",
                start=EARLIEST,
                settings=QueueSettings(redrive=Redrive(letters.arn, 1)),
            )
        )
        young = batch("a", at_ms=stage.clock.wall)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[young]))
        for _ in range(2):
            assert len((await acquire(stage, plain)).picks) == 1
            stage.clock.advance(30_000)
        assert (await acquire(stage, plain)).picks == []
        assert (await stage.broker.call(Stats(plain))).dead_lettered == 1
        assert len((await acquire(stage, ruled)).picks) == 1
        stage.clock.advance(30_000)
        assert (await acquire(stage, ruled)).picks == []
        assert bodies(await stage.broker.call(Lease(letters, TEN))) == ["a"]


async def test_a_rejected_record_goes_to_the_dead_letter_queue_at_once(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        letters = await stage.topic("letters")
        ruled = await stage.broker.call(
            OpenShare(
                topic,
                0,
                "ruled",
                start=EARLIEST,
                settings=QueueSettings(redrive=Redrive(letters.arn, 5)),
            )
        )
        young = batch("a", at_ms=stage.clock.wall)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[young]))
        held = claims(await acquire(stage, ruled))
        assert await stage.broker.call(Finish(ruled, 0, held, is_rejected=True)) == (None,)
        assert bodies(await stage.broker.call(Lease(letters, TEN))) == ["a"]
        assert (await stage.broker.call(Stats(ruled))).in_flight == 0


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_restart_forgets_nothing_of_a_share(tmp_path: Path, *, is_crash: bool) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stream(stage)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("old")]))
        late = await share(stage, topic, "late", LATEST)
        early = await share(stage, topic, "early", EARLIEST)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b", "c")]))
        await acquire(stage, late, 1)
        second = await acquire(stage, late, 1)
        await stage.broker.call(Finish(late, 0, claims(second)))
    async with on_stage(tmp_path, clock) as stage:
        assert stage.broker.shares.find_share(topic, "late") == late
        stats = await stage.broker.call(Stats(late))
        assert (stats.visible, stats.in_flight) == (1, 1)
        assert values(await acquire(stage, late)) == ["c"]
        clock.advance(30_000)
        again = await acquire(stage, late)
        assert values(again) == ["a", "c"]
        assert [attempt for _, _, attempt in again.picks] == [2, 2]
        assert values(await acquire(stage, early)) == ["old", "a", "b", "c"]


async def test_a_share_begins_again_where_it_is_told(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g")
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a", "b", "c")]))
        held = await acquire(stage, reader)
        await stage.broker.call(Finish(reader, 0, claims(held)[:2]))
        await stage.broker.call(RestartShare(reader, 0, held.picks[1][0]))
        assert (await stage.broker.call(Stats(reader))).visible == 2
        again = await acquire(stage, reader)
        assert values(again) == ["b", "c"]
        assert [attempt for _, _, attempt in again.picks] == [1, 1]
        [refused, _] = await stage.broker.call(Finish(reader, 0, claims(held)[1:]))
        assert isinstance(refused, NotLeased), "a receipt from before"
        await stage.broker.call(RestartShare(reader, 0, LATEST))
        assert (await acquire(stage, reader)).picks == []
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("d")]))
        await stage.broker.call(RestartShare(reader, 0, EARLIEST))
    async with on_stage(tmp_path, clock) as stage:
        assert (await stage.broker.call(Stats(reader))).visible == 4
        assert values(await acquire(stage, reader)) == ["a", "b", "c", "d"]


async def test_a_queue_keeps_its_segments_for_its_shares(tmp_path: Path) -> None:
    small = LogConfig(segment_bytes_max=16 * KIB)
    async with on_stage(tmp_path, log=small) as stage:
        queue = await stage.topic()
        reader = await share(stage, queue, "g")
        for _ in range(40):
            await stage.broker.call(Append(queue, 0, [message("x" * 2_000)]))
        got: list[Delivery] = []
        while len(got) < 40:
            got += await stage.broker.call(Lease(queue, TEN))
        await stage.broker.call(Ack(queue, 0, [claim(d) for d in got]))
        partition = stage.broker.partitions.queues()[0].partitions[0]
        assert await partition.clean() == 0, "the share has not read it yet"
        seen: list[Delivery] = []
        while len(seen) < 40:
            seen += await stage.broker.call(Lease(reader, TEN))
        await stage.broker.call(Ack(reader, 0, [claim(d) for d in seen]))
        assert await partition.clean() > 0


async def test_a_share_follows_when_retention_drops_what_it_has_not_read(tmp_path: Path) -> None:
    clock = HandClock()
    small = LogConfig(segment_bytes_max=16 * KIB)
    async with on_stage(tmp_path, clock, log=small, is_crash=True) as stage:
        topic = await stream(stage, retention_ms="60000")
        reader = await share(stage, topic, "g")
        for _ in range(40):
            await stage.broker.call(
                AppendBatches(topic, 0, acks=-1, batches=[batch("x" * 2_000, at_ms=clock.wall)])
            )
        clock.advance(61_000)
        await stage.broker.call(
            AppendBatches(topic, 0, acks=-1, batches=[batch("young", at_ms=clock.wall)])
        )
        partition = stage.broker.partitions.queues()[0].partitions[0]
        assert await partition.clean() > 0
        left = (await stage.broker.call(Stats(reader))).visible
        assert 1 <= left < 40
    async with on_stage(tmp_path, clock, log=small) as stage:
        assert (await stage.broker.call(Stats(reader))).visible == left
        assert "young" in await receive_all(stage, reader)


async def test_new_partitions_are_shared_from_their_first_record(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        topic = await stream(stage)
        reader = await share(stage, topic, "g", LATEST)
        topic = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda t: msgspec.structs.replace(t, partition_count=2),
        )
        await stage.broker.call(AppendBatches(topic, 1, acks=-1, batches=[batch("second")]))
        assert bodies(await stage.broker.call(Lease(reader, TEN))) == ["second"]
    async with on_stage(tmp_path, clock) as stage:
        assert (await stage.broker.call(Stats(reader))).in_flight == 1


async def test_a_share_goes_with_its_topic_and_alone(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        one = await share(stage, topic, "one")
        two = await share(stage, topic, "two")
        assert await stage.broker.call(CloseShare(topic, "one"))
        assert not await stage.broker.call(CloseShare(topic, "one"))
        with pytest.raises(TopicNotFound):
            await stage.broker.call(Lease(one, TEN))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("a")]))
        assert bodies(await stage.broker.call(Lease(two, TEN))) == ["a"]
        gone = asyncio.Event()
        stage.catalog.on_change(lambda before, _: gone.set() if before == two else None)
        await stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=0)
        await asyncio.wait_for(gone.wait(), 10)
        assert stage.broker.shares.find_share(topic, "two") is None


async def test_what_cannot_be_shared_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        fifo = await stage.topic("q.fifo", fifo=True)
        compacted = await stream(stage, "c", cleanup_policy="compact")
        plain = await stream(stage, "p")
        reader = await share(stage, plain, "g")
        internal = await stream(stage, "__usage")
        with pytest.raises(InvalidRequest, match="internal topic"):
            await share(stage, internal, "g")
        for source, reason in ((fifo, "FIFO"), (compacted, "compacted"), (reader, "is a share")):
            with pytest.raises(InvalidRequest, match=reason):
                await share(stage, source, "g")
        with pytest.raises(InvalidRequest, match="share"):
            await stage.broker.call(Append(reader, 0, [message("a")]))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.sampled_from(
            ["send", "batch", "take", "ack", "release", "wait", "crash", "restart", "queue take"]
        ),
        max_size=25,
    )
)
async def test_live_and_replayed_shares_agree_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """One share and the queue itself at work on one log, with crashes in between: after each of
    them the share is what it was."""
    folder, clock = tmp_path_factory.mktemp("share"), HandClock()
    queue: Topic | None = None
    held: list[Claim] = []
    rounds: list[list[str]] = [[]]
    for step in steps:
        if step == "crash":
            rounds.append([])
        else:
            rounds[-1].append(step)
    before: bytes | None = None
    for number, todo in enumerate(rounds):
        is_crash = number < len(rounds) - 1
        async with on_stage(folder, clock, is_crash=is_crash) as stage:
            if queue is None:
                queue = await stage.topic()
            reader = await share(stage, queue, "g")
            leases = (await stage.broker.partitions.open(reader)).leases[0]
            if before is not None:
                assert state_hash(leases.cursor) == before
            for step in todo:
                if step == "send":
                    await stage.broker.call(Append(queue, 0, [message("m")]))
                elif step == "batch":
                    await stage.broker.call(
                        AppendBatches(queue, 0, acks=-1, batches=[batch("a", "b")])
                    )
                elif step == "take":
                    held += claims(await acquire(stage, reader, 2))
                elif step == "queue take":
                    await stage.broker.call(Lease(queue, LeaseRequest(count=2, lease_ms=10_000)))
                elif step == "ack" and held:
                    await stage.broker.call(Finish(reader, 0, [held.pop()]))
                elif step == "release" and held:
                    await stage.broker.call(Prolong(reader, 0, [(held.pop(), 0)]))
                elif step == "wait":
                    clock.advance(20_000)
                elif step == "restart":
                    await stage.broker.call(RestartShare(reader, 0, 1))
            partition = stage.broker.partitions.queues()[0].partitions[0]
            await partition.journal.settle()
            before = state_hash(leases.cursor)
    assert queue is not None
    assert queue.kind is Kind.STANDARD
