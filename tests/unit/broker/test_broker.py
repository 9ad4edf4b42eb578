"""The broker as its callers see it, on a real folder: what is promised holds over stops, crashes
and full disks."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.broker.stage import HandClock, Stage, bodies, claim, message, on_stage

from penstock.log.log import LogConfig
from penstock.model.calls import (
    Ack,
    Append,
    CancelMove,
    Ends,
    Extend,
    Lease,
    Peek,
    Purge,
    StartMove,
    Stats,
)
from penstock.model.errors import (
    DiskFull,
    ExpiredReceipt,
    InFlightLimit,
    InvalidRequest,
    NotLeased,
    PurgeInProgress,
    TopicNotFound,
)
from penstock.model.limits import KIB
from penstock.model.message import Delivery
from penstock.model.names import INTERNAL_NAMES
from penstock.model.ports import LeaseRequest, MoveTask
from penstock.model.topic import Fsync, Kind, PeekState, QueueSettings, Redrive

TEN = LeaseRequest(count=10)


@pytest.mark.parametrize("fsync", list(Fsync))
async def test_a_message_is_sent_leased_and_acked(tmp_path: Path, fsync: Fsync) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(fsync=fsync)
        (appended,) = await stage.broker.call(Append(topic, 0, [message("one")]))
        assert (appended.offset, appended.is_duplicate) == (0, False)
        (delivery,) = await stage.broker.call(Lease(topic, TEN))
        assert bodies([delivery]) == ["one"]
        assert delivery.attempt == 1
        assert await stage.broker.call(Ack(topic, 0, [claim(delivery)])) == (None,)
        assert not await stage.broker.call(Lease(topic, TEN))
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 0)


async def test_sends_of_one_turn_share_one_batch_and_keep_their_order(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        results = await asyncio.gather(
            *(stage.broker.call(Append(topic, 0, [message(str(n))])) for n in range(50))
        )
        assert [r[0].offset for r in results] == list(range(50))
        log = stage.broker.partitions.queues()[0].partitions[0].log
        assert len(log.read(0, bytes_max=1_000_000)) == 1
        got: list[Delivery] = []
        while len(got) < 50:
            got += await stage.broker.call(Lease(topic, TEN))
        assert bodies(got) == [str(n) for n in range(50)]


@pytest.mark.parametrize("count", [100, 140, 160])
@pytest.mark.parametrize("body_bytes", [200, 256, 300])
async def test_no_receive_is_empty_while_messages_wait_in_large_batches(
    tmp_path: Path, count: int, body_bytes: int
) -> None:
    """The end of a large batch, which is decoded in pieces, is not the end of the log."""
    batches = 16
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        for _ in range(batches):
            await stage.broker.call(
                Append(topic, 0, [message("x" * body_bytes) for _ in range(count)])
            )
        for number in range(batches * count):
            assert await stage.broker.call(Lease(topic, LeaseRequest(count=1))), number


async def test_a_parked_receive_wakes_when_a_message_is_committed(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(fsync=Fsync.ALWAYS)
        parked = asyncio.create_task(stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        while not (await stage.broker.call(Stats(topic))).waits:
            await asyncio.sleep(0)
        await stage.broker.call(Append(topic, 0, [message("now")]))
        assert bodies(await asyncio.wait_for(parked, 5)) == ["now"]


async def test_waits_are_served_in_the_order_they_came(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        order: list[int] = []

        async def wait(number: int) -> None:
            await stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000)))
            order.append(number)

        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(wait(number)))
            await asyncio.sleep(0)
        while (await stage.broker.call(Stats(topic))).waits < 5:
            await asyncio.sleep(0)
        await stage.broker.call(Append(topic, 0, [message() for _ in range(5)]))
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert order == [0, 1, 2, 3, 4]


async def test_a_cancelled_receive_takes_nothing(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        parked = asyncio.create_task(stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        while not (await stage.broker.call(Stats(topic))).waits:
            await asyncio.sleep(0)
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
        await stage.broker.call(Append(topic, 0, [message()]))
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.in_flight, stats.waits) == (1, 0, 0)


async def test_a_receive_cancelled_in_the_turn_it_is_served_gives_the_message_back(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(fsync=Fsync.NEVER)
        parked = asyncio.create_task(stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        while not (await stage.broker.call(Stats(topic))).waits:
            await asyncio.sleep(0)
        partition = stage.broker.partitions.queues()[0].partitions[0]
        partition.journal.add_message(message("served"))
        partition.journal.flush()  # serves the wait, whose task has not run yet
        assert (await stage.broker.call(Stats(topic))).in_flight == 1
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
        again = await stage.broker.call(Lease(topic, LeaseRequest(wait_ms=5_000)))
        assert bodies(again) == ["served"]


async def test_a_wait_wakes_when_a_lease_ends(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message()]))
        (first,) = await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=50)))
        parked = asyncio.create_task(stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        while not (await stage.broker.call(Stats(topic))).waits:
            await asyncio.sleep(0)
        stage.clock.advance(50)
        (second,) = await asyncio.wait_for(parked, 5)
        assert second.record.offset == first.record.offset
        assert (second.attempt, second.lease_seq) == (2, first.lease_seq + 1)


async def test_deleting_the_topic_ends_its_waits_and_removes_its_folder(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        parked = asyncio.create_task(stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        while not (await stage.broker.call(Stats(topic))).waits:
            await asyncio.sleep(0)
        await stage.catalog.delete(
            topic.account, topic.region, topic.name, now_ms=stage.clock.wall_ms()
        )
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(parked, 5)
        folder = tmp_path / "topics" / topic.topic_id
        while folder.exists():
            await asyncio.sleep(0.001)
        with pytest.raises(TopicNotFound):
            await stage.broker.call(Append(topic, 0, [message()]))
    assert not folder.exists()


async def test_a_topic_deleted_while_a_cancelled_call_opens_it_leaves_no_unread_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        is_deleted = asyncio.Event()
        open_partitions = stage.broker.partitions._open_partitions

        async def open_slowly(*given: Any) -> Any:
            await is_deleted.wait()
            return await open_partitions(*given)

        monkeypatch.setattr(stage.broker.partitions, "_open_partitions", open_slowly)
        caller = asyncio.create_task(stage.broker.call(Append(topic, 0, [message()])))
        await asyncio.sleep(0)  # the topic is being opened
        opening = next(each for each in asyncio.all_tasks() if each.get_name().startswith("open "))
        caller.cancel()
        await stage.catalog.delete(
            topic.account, topic.region, topic.name, now_ms=stage.clock.wall_ms()
        )
        is_deleted.set()
        await asyncio.wait([opening, caller])
        assert caller.cancelled()
        assert not opening._log_traceback, "asyncio would log the error as unread"


async def test_a_folder_whose_topic_was_deleted_before_a_crash_goes_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path, is_crash=True) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message()]))
        await stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=0)
    folder = tmp_path / "topics" / topic.topic_id
    folder.mkdir(parents=True, exist_ok=True)  # as if the crash had come before the removal
    stranger = tmp_path / "topics" / ("f" * 32)
    stranger.mkdir()
    async with on_stage(tmp_path):
        assert not folder.exists()
        assert stranger.exists(), "what nobody knows is left alone"


@pytest.mark.parametrize("is_crash", [False, True])
async def test_everything_answered_is_there_after_a_restart(tmp_path: Path, is_crash: bool) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message(str(n)) for n in range(5)]))
        leased = await stage.broker.call(Lease(topic, LeaseRequest(count=3, lease_ms=30_000)))
        await stage.broker.call(Ack(topic, 0, [claim(leased[0])]))
        await stage.broker.call(Extend(topic, 0, [(claim(leased[1]), 0)]))
    clock.advance(1_000)
    async with on_stage(tmp_path, clock) as stage:
        assert stage.broker.partitions.progress() == (1, 1)
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.in_flight) == (3, 1)
        again = await stage.broker.call(Lease(topic, TEN))
        assert bodies(again) == ["1", "3", "4"]
        assert [d.attempt for d in again] == [2, 1, 1]
        # The receipt of before the restart still works.
        assert await stage.broker.call(Ack(topic, 0, [claim(leased[2])])) == (None,)
        clock.advance(40_000)
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["1", "3", "4"]


@pytest.mark.parametrize(
    ("clock_set_at_ms", "visible_after_ms"),
    [(None, 20_000), (4_000, 24_000), (10_000, 30_000)],  # by a node that started then
)
async def test_a_lease_goes_on_over_a_restart_and_is_never_shortened(
    tmp_path: Path, clock_set_at_ms: int | None, visible_after_ms: int
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message()]))
        await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=30_000)))
    since_ms = 0 if clock_set_at_ms is None else clock.wall_ms() + clock_set_at_ms
    clock.advance(10_000)
    async with on_stage(tmp_path, clock, elapsed_since_ms=since_ms) as stage:
        clock.advance(visible_after_ms - 1)
        assert not await stage.broker.call(Lease(topic, TEN))
        clock.advance(1)
        assert len(await stage.broker.call(Lease(topic, TEN))) == 1


async def test_fifo_order_locks_and_deduplication_survive_a_crash(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stage.topic("q.fifo", fifo=True)
        for n in range(3):
            await stage.broker.call(
                Append(topic, 0, [message(f"a{n}", group="a", dedup_id=f"a{n}")])
            )
        await stage.broker.call(Append(topic, 0, [message("b0", group="b", dedup_id="b0")]))
        (first,) = await stage.broker.call(Lease(topic, LeaseRequest(count=1)))
        assert bodies([first]) == ["a0"]
    async with on_stage(tmp_path, clock) as stage:
        (again,) = await stage.broker.call(
            Append(topic, 0, [message("a0", group="a", dedup_id="a0")])
        )
        assert again.is_duplicate
        assert again.message_id == first.record.message.message_id
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["b0"]
        assert await stage.broker.call(Ack(topic, 0, [claim(first)])) == (None,)
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["a1", "a2"]


async def test_a_fifo_receipt_ends_with_its_lease(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("q.fifo", fifo=True)
        await stage.broker.call(Append(topic, 0, [message(group="a", dedup_id="1")]))
        (delivery,) = await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=1_000)))
        stage.clock.advance(1_000)
        (error,) = await stage.broker.call(Ack(topic, 0, [claim(delivery)]))
        assert isinstance(error, ExpiredReceipt)


async def test_two_sends_of_one_id_in_one_turn_are_one_message(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("q.fifo", fifo=True)
        first, second = await asyncio.gather(
            stage.broker.call(Append(topic, 0, [message("x", group="a", dedup_id="same")])),
            stage.broker.call(Append(topic, 0, [message("y", group="a", dedup_id="same")])),
        )
        assert [first[0].is_duplicate, second[0].is_duplicate] == [False, True]
        assert first[0].message_id == second[0].message_id
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["x"]


async def test_a_standard_queue_spreads_over_its_partitions_and_a_wait_sees_them_all(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(partitions=3)
        for partition in range(3):
            await stage.broker.call(Append(topic, partition, [message(str(partition))]))
        got = await stage.broker.call(Lease(topic, TEN))
        assert sorted(bodies(got)) == ["0", "1", "2"]
        assert {d.partition for d in got} == {0, 1, 2}
        parked = asyncio.create_task(stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        while not (await stage.broker.call(Stats(topic))).waits:
            await asyncio.sleep(0)
        await stage.broker.call(Append(topic, 2, [message("late")]))
        assert bodies(await asyncio.wait_for(parked, 5)) == ["late"]


async def test_the_in_flight_limit_is_the_queues_not_each_partitions(tmp_path: Path) -> None:
    async with on_stage(tmp_path, in_flight_max=5) as stage:
        topic = await stage.topic(partitions=2)
        for partition in range(2):
            await stage.broker.call(Append(topic, partition, [message() for _ in range(6)]))
        assert len(await stage.broker.call(Lease(topic, TEN))) == 5
        with pytest.raises(InFlightLimit):
            await stage.broker.call(Lease(topic, TEN))
        parked = await stage.broker.call(Lease(topic, LeaseRequest(count=10, wait_ms=10)))
        assert not parked, "a long poll waits instead of failing"


async def test_a_record_leased_too_often_is_in_the_dead_letter_queue_when_the_receive_returns(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead")
        topic = await stage.topic(settings=QueueSettings(redrive=Redrive(dead.arn, 2)))
        await stage.broker.call(Append(topic, 0, [message("poison")]))
        for _ in range(2):
            assert len(await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=0)))) == 1
        assert not await stage.broker.call(Lease(topic, TEN))
        (letter,) = await stage.broker.call(Lease(dead, TEN))
        assert bodies([letter]) == ["poison"]
        assert letter.attempt == 3
        assert letter.record.message.source_arn == topic.arn
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.in_flight, stats.dead_lettered) == (0, 0, 1)


async def test_without_its_target_a_rule_does_not_hold(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead")
        topic = await stage.topic(settings=QueueSettings(redrive=Redrive(dead.arn, 1)))
        await stage.catalog.delete(dead.account, dead.region, dead.name, now_ms=0)
        await stage.broker.call(Append(topic, 0, [message()]))
        for _ in range(3):
            assert len(await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=0)))) == 1


async def test_extending_what_is_gone_is_refused(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message()]))
        (delivery,) = await stage.broker.call(Lease(topic, TEN))
        await stage.broker.call(Ack(topic, 0, [claim(delivery)]))
        (error,) = await stage.broker.call(Extend(topic, 0, [(claim(delivery), 1_000)]))
        assert isinstance(error, NotLeased)
        assert await stage.broker.call(Ack(topic, 0, [claim(delivery)])) == (None,)


async def test_a_purge_takes_everything_before_it_and_nothing_after(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message("old") for _ in range(3)]))
        await stage.broker.call(Lease(topic, LeaseRequest()))
        await stage.broker.call(Append(topic, 0, [message("late", delay_ms=60_000)]))
        await stage.broker.call(Purge(topic))
        await stage.broker.call(Append(topic, 0, [message("new")]))
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.in_flight, stats.delayed) == (1, 0, 0)
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["new"]
        with pytest.raises(PurgeInProgress):
            await stage.broker.call(Purge(topic))
        stage.clock.advance(60_000)
        await stage.broker.call(Purge(topic))


async def test_finished_segments_are_dropped_and_unfinished_ones_kept(tmp_path: Path) -> None:
    small = LogConfig(segment_bytes_max=16 * KIB)
    async with on_stage(tmp_path, log=small) as stage:
        topic = await stage.topic()
        for _ in range(40):
            await stage.broker.call(Append(topic, 0, [message("x" * 2_000)]))
        partition = stage.broker.partitions.queues()[0].partitions[0]
        before = len(partition.log.segments())
        assert before > 3
        assert await partition.clean() == 0, "nobody has read it yet"
        got: list[Delivery] = []
        while len(got) < 40:
            got += await stage.broker.call(Lease(topic, TEN))
        await stage.broker.call(Ack(topic, 0, [claim(d) for d in got[1:]]))
        assert await partition.clean() == 0, "the first record pins its segment"
        await stage.broker.call(Ack(topic, 0, [claim(got[0])]))
        assert await partition.clean() > 0
        assert len(partition.log.segments()) <= 2
    async with on_stage(tmp_path, log=small) as stage:
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.in_flight) == (0, 0)
        await stage.broker.call(Append(topic, 0, [message("after")]))
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["after"]


async def test_a_log_without_its_beginning_is_read_also_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    """What is left speaks of records that are gone: leases of them, and how many a head passed."""
    small = LogConfig(segment_bytes_max=16 * KIB)
    clock = HandClock()
    async with on_stage(tmp_path, clock, log=small, is_crash=True) as stage:
        topic = await stage.topic()
        for _ in range(40):
            await stage.broker.call(Append(topic, 0, [message("x" * 2_000)]))
        got: list[Delivery] = []
        while len(got) < 30:
            got += await stage.broker.call(Lease(topic, TEN))
        await stage.broker.call(Ack(topic, 0, [claim(d) for d in got[:25]]))
        await stage.broker.call(Extend(topic, 0, [(claim(d), 40_000) for d in got[20:]]))
        partition = stage.broker.partitions.queues()[0].partitions[0]
        assert await partition.clean() > 0
        before = await stage.broker.call(Stats(topic))
        assert (before.visible, before.in_flight) == (10, 5)
    for _ in range(2):  # the second time with the checkpoint of the first
        async with on_stage(tmp_path, clock, log=small) as stage:
            after = await stage.broker.call(Stats(topic))
            assert (after.visible, after.in_flight) == (10, 5)
    async with on_stage(tmp_path, clock, log=small) as stage:
        rest: list[Delivery] = []
        while len(rest) < 10:
            rest += await stage.broker.call(Lease(topic, TEN))
        assert [d.record.offset for d in rest] == sorted(d.record.offset for d in rest)
        clock.advance(41_000)
        again = await stage.broker.call(Lease(topic, TEN))
        expected = [d.record.offset for d in got[25:]]
        assert [d.record.offset for d in again][:5] == expected


async def test_what_is_past_its_retention_is_forgotten_counted_and_dropped(tmp_path: Path) -> None:
    small = LogConfig(segment_bytes_max=16 * KIB)
    async with on_stage(tmp_path, log=small) as stage:
        topic = await stage.topic(settings=QueueSettings(retention_ms=60_000))
        for _ in range(40):
            await stage.broker.call(Append(topic, 0, [message("x" * 2_000)]))
        stage.clock.advance(61_000)
        await stage.broker.call(Append(topic, 0, [message("young")]))
        partition = stage.broker.partitions.queues()[0].partitions[0]
        assert await partition.clean() > 0
        stats = await stage.broker.call(Stats(topic))
        assert (stats.visible, stats.expired) == (1, 40)
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["young"]


async def test_peek_shows_states_and_takes_nothing(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        await stage.broker.call(
            Append(topic, 0, [message("leased"), message("acked"), message("seen")])
        )
        got = await stage.broker.call(Lease(topic, LeaseRequest(count=2)))
        await stage.broker.call(Ack(topic, 0, [claim(got[1])]))
        await stage.broker.call(Append(topic, 0, [message("later", delay_ms=60_000)]))
        peeked, end = await stage.broker.call(Peek(topic, partition=0, start=0, count=10))
        assert [(p.record.message.body.decode(), p.state) for p in peeked] == [
            ("leased", PeekState.IN_FLIGHT),
            ("seen", PeekState.VISIBLE),
            ("later", PeekState.DELAYED),
        ]
        nothing, at = await stage.broker.call(Peek(topic, partition=0, start=-1, count=10))
        assert (list(nothing), at) == ([], end)
        one, behind = await stage.broker.call(Peek(topic, partition=0, start=0, count=1))
        rest, _ = await stage.broker.call(Peek(topic, partition=0, start=behind, count=10))
        assert len(one) == 1
        assert len(rest) == 2
        assert (await stage.broker.call(Stats(topic))).in_flight == 1


async def test_peek_says_until_when_and_counts_attempts_of_earlier_queues(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead.fifo", fifo=True)
        rule = Redrive(target_arn=dead.arn, attempts_max=2)
        jobs = await stage.topic("jobs.fifo", fifo=True, settings=QueueSettings(redrive=rule))
        await stage.broker.call(Append(jobs, 0, [message("a", group="g", dedup_id="1")]))
        for _ in range(2):
            (delivery,) = await stage.broker.call(Lease(jobs, LeaseRequest(lease_ms=1_000)))
            stage.clock.advance(1_000)
        assert not await stage.broker.call(Lease(jobs, TEN))
        await stage.broker.call(Append(dead, 0, [message("b", group="g", dedup_id="2")]))
        ((first, second), _) = await stage.broker.call(Peek(dead, partition=0, start=0, count=9))
        assert (first.attempts, first.record.message.source_arn) == (2, jobs.arn)
        (delivery,) = await stage.broker.call(Lease(dead, LeaseRequest(lease_ms=5_000)))
        found, _ = await stage.broker.call(Peek(dead, partition=0, start=0, count=9))
        first, second = found
        assert first.attempts == delivery.attempt == 3
        assert first.state is PeekState.IN_FLIGHT
        assert first.until_ms == second.until_ms == stage.clock.wall + 5_000
        assert (first.blocked_by, second.blocked_by) == (None, 0)


async def test_the_broker_knows_what_keeps_messages_back(tmp_path: Path) -> None:
    async with on_stage(tmp_path, in_flight_max=7) as stage:
        dead = await stage.topic("dead")
        rule = Redrive(target_arn=dead.arn, attempts_max=1)
        jobs = await stage.topic("jobs", settings=QueueSettings(redrive=rule))
        await stage.broker.call(
            Append(jobs, 0, [message("exhausted"), message("held"), message("free")])
        )
        await stage.broker.call(Append(jobs, 0, [message("late", delay_ms=60_000)]))
        (first, _) = await stage.broker.call(Lease(jobs, LeaseRequest(count=2, lease_ms=9_000)))
        await stage.broker.call(Extend(jobs, 0, [(claim(first), 0)]))
        stats = await stage.broker.call(Stats(jobs, is_detailed=True))
        found = stats.obstacles
        assert found is not None
        assert (found.exhausted, found.available, found.blocked) == (1, 1, 0)
        assert found.in_flight_max == 7
        assert found.lease_ends_ms == stage.clock.wall + 9_000
        assert found.delay_ends_ms == stage.clock.wall + 60_000
        assert (await stage.broker.call(Stats(jobs))).obstacles is None, "only who asks pays for it"


async def test_messages_that_no_receive_has_looked_at_are_judged_too(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        topic = await stage.topic("q.fifo", fifo=True)
        for number in range(20):
            sent = message(group="g", dedup_id=str(number))
            await stage.broker.call(Append(topic, 0, [sent]))
        found = (await stage.broker.call(Stats(topic, is_detailed=True))).obstacles
        assert found is not None
        assert found.available == 20
        assert await stage.broker.call(Lease(topic, LeaseRequest()))
    async with on_stage(tmp_path, clock) as stage:  # nothing is read ahead after a start
        found = (await stage.broker.call(Stats(topic, is_detailed=True))).obstacles
        assert found is not None
        assert (found.available, found.blocked) == (0, 19)


async def test_messages_are_refused_on_a_full_disk_and_acks_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message()]))
        disk = stage.broker.partitions._context.disk
        monkeypatch.setattr(disk, "_configured_bytes", 1 << 60)
        stage.clock.advance(10_000)
        with pytest.raises(DiskFull, match=r"The disk is full: .* free, .* reserved .* rejected"):
            await stage.broker.call(Append(topic, 0, [message()]))
        (delivery,) = await stage.broker.call(Lease(topic, TEN))
        assert await stage.broker.call(Ack(topic, 0, [claim(delivery)])) == (None,)
        monkeypatch.undo()
        stage.clock.advance(10_000)
        await stage.broker.call(Append(topic, 0, [message()]))


async def _move(stage: Stage, task: MoveTask) -> MoveTask:
    await stage.broker.call(StartMove(task))
    while (ended := stage.broker.moves(task.source_arn)[0]).status in ("RUNNING", "CANCELLING"):
        await asyncio.sleep(0.001)
    return ended


async def test_a_move_task_sends_dead_letters_back_as_new_messages(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead")
        topic = await stage.topic(settings=QueueSettings(redrive=Redrive(dead.arn, 1)))
        await stage.broker.call(Append(topic, 0, [message(str(n)) for n in range(25)]))
        while await stage.broker.call(Lease(topic, LeaseRequest(count=10, lease_ms=0))):
            pass
        assert (await stage.broker.call(Stats(dead))).visible == 25
        task = MoveTask("t1", dead.arn, None, None, "RUNNING", stage.clock.wall, to_move=25)
        ended = await _move(stage, task)
        assert (ended.status, ended.moved) == ("COMPLETED", 25)
        assert (await stage.broker.call(Stats(dead))).visible == 0
        got: list[Delivery] = []
        while len(got) < 25:
            got += await stage.broker.call(Lease(topic, TEN))
        assert sorted(bodies(got), key=int) == [str(n) for n in range(25)]
        assert {d.attempt for d in got} == {1}


async def test_a_move_without_a_known_source_fails_and_keeps_the_message(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead")
        await stage.broker.call(Append(dead, 0, [message()]))
        task = MoveTask("t2", dead.arn, None, None, "RUNNING", stage.clock.wall)
        ended = await _move(stage, task)
        assert (ended.status, ended.failure_reason) == ("FAILED", "CouldNotDetermineMessageSource")
        assert (await stage.broker.call(Stats(dead))).visible == 1


async def test_a_move_goes_only_to_queues_that_its_creator_was_authorized_for(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead")
        names_it = QueueSettings(redrive=Redrive(dead.arn, 1))
        allowed = await stage.topic("allowed", settings=names_it)
        later = await stage.topic("later", settings=names_it)
        other = await stage.topic("other")
        stream = await stage.topic("stream", kind=Kind.STREAM)
        fifo = await stage.topic("kind.fifo", fifo=True)
        abroad = await stage.topic("abroad", account="111111111111")
        refused = (later, other, stream, fifo, abroad)
        for number, target in enumerate((*refused, stream, fifo, abroad)):
            # For the last three the caller would have been authorized.
            origins = (allowed.arn,) if number < len(refused) else (target.arn,)
            letter = msgspec.structs.replace(message(), source_arn=target.arn)
            await stage.broker.call(Append(dead, 0, [letter]))
            task = MoveTask(
                f"t{number}", dead.arn, None, None, "RUNNING", number, origin_arns=origins
            )
            ended = await _move(stage, task)
            assert (ended.status, ended.failure_reason) == (
                "FAILED",
                "CouldNotDetermineMessageSource",
            ), target.name
            assert (await stage.broker.call(Stats(dead))).visible == 1, target.name
            [taken] = await stage.broker.call(Lease(dead, TEN))
            await stage.broker.call(Ack(dead, 0, [claim(taken)]))
        for queue in (allowed, later, other, fifo, abroad):
            assert (await stage.broker.call(Stats(queue))).visible == 0
        assert (await stage.broker.call(Ends(stream, 0))).high_watermark == 0


@pytest.mark.parametrize("name", [*sorted(INTERNAL_NAMES), "stream"])
async def test_messages_are_appended_to_queues_only(tmp_path: Path, name: str) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(name, kind=Kind.STREAM)
        with pytest.raises(InvalidRequest, match="not a queue"):
            await stage.broker.call(Append(topic, 0, [message()]))
        assert (await stage.broker.call(Ends(topic, 0))).high_watermark == 0


async def test_an_unfinished_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        dead, target = await stage.topic("dead"), await stage.topic("target")
        await stage.broker.call(Append(dead, 0, [message(str(n)) for n in range(30)]))
        task = MoveTask("t3", dead.arn, target.arn, 1, "RUNNING", clock.wall)
        await stage.broker.call(StartMove(task))
        while not (await stage.broker.call(Stats(target))).visible:
            await asyncio.sleep(0.001)
    async with on_stage(tmp_path, clock) as stage:
        assert stage.broker.moves(dead.arn)[0].status == "RUNNING"
        cancelled = await stage.broker.call(CancelMove("t3"))
        assert cancelled is not None
        assert cancelled.status == "CANCELLING"
        while stage.broker.moves(dead.arn)[0].status != "CANCELLED":
            await asyncio.sleep(0.001)
        moved = (await stage.broker.call(Stats(target))).visible
        kept = await stage.broker.call(Stats(dead))
        assert moved + kept.visible + kept.in_flight == 30


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_purge_takes_deduplication_with_it(tmp_path: Path, is_crash: bool) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stage.topic("q.fifo", fifo=True)
        await stage.broker.call(Append(topic, 0, [message("old", group="a", dedup_id="d")]))
        await stage.broker.call(Purge(topic))
    async with on_stage(tmp_path, clock) as stage:
        (again,) = await stage.broker.call(
            Append(topic, 0, [message("new", group="a", dedup_id="d")])
        )
        assert not again.is_duplicate
        assert bodies(await stage.broker.call(Lease(topic, TEN))) == ["new"]


async def test_a_letter_that_dies_twice_on_its_way_round_is_not_taken_for_its_own_copy(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        one = await stage.topic("one.fifo", fifo=True)
        other = await stage.topic(
            "other.fifo", fifo=True, settings=QueueSettings(redrive=Redrive(one.arn, 1))
        )
        one = await stage.catalog.change(
            one.account,
            one.region,
            one.name,
            lambda t: t.with_settings(now_ms=0, redrive=Redrive(other.arn, 1)),
        )
        await stage.broker.call(Append(one, 0, [message("round", group="g", dedup_id="d")]))
        for topic in (one, other, one, other, one):
            (got,) = await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=0)))
            assert bodies([got]) == ["round"]
            assert not await stage.broker.call(Lease(topic, TEN))


async def test_a_receive_sees_what_came_while_it_moved_dead_letters(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(fsync=Fsync.ALWAYS)
        topic = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda t: t.with_settings(now_ms=0, redrive=Redrive(t.arn, 1)),
        )
        await stage.broker.call(Append(topic, 0, [message("again")]))
        await stage.broker.call(Lease(topic, LeaseRequest(lease_ms=0)))
        receive = stage.broker.call(Lease(topic, LeaseRequest(wait_ms=20_000)))
        assert bodies(await asyncio.wait_for(receive, 5)) == ["again"]
