"""DeleteRecords and retention of a stream on three nodes: neither moves the end offset, and no
leader that comes later shows a record whose deletion was answered."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.replicas.stage import Cluster, cluster, settles, until
from tests.unit.broker.replicas.test_followers_logs import committed

from penstock.broker.leases.leases import Leases
from penstock.broker.partition.partition import Partition
from penstock.log.log import Log
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.calls import Acquire, AppendBatches, DeleteRecords, Ends, Fetch, OpenShare
from penstock.model.errors import LeaderMoved, OffsetOutOfRange
from penstock.model.levels import LEVEL_FIRST, LOW_WATERMARK_FILES
from penstock.model.ports import EARLIEST
from penstock.model.topic import Kind, Topic
from penstock.record.batch import split_batches
from penstock.record.record import iter_records


def set_level(on: Cluster, level: int = LOW_WATERMARK_FILES) -> None:
    for node in on.nodes.values():
        node.level = level


async def filled(
    on: Cluster, *, count: int = 30, per_batch: int = 1, in_sync_min: int = 2, **configs: str
) -> tuple[Topic, PartitionKey]:
    set_level(on)
    topic, key = await on.topic(
        "t",
        kind=Kind.STREAM,
        in_sync_min=in_sync_min,
        configs={name.replace("_", "."): text for name, text in configs.items()},
    )
    for first in range(0, count, per_batch):
        some = [str(number) for number in range(first, first + per_batch)]
        await settles(
            on.nodes[1].broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch(*some)]))
        )
    return topic, key


def leading(on: Cluster, node: int, key: PartitionKey) -> Partition:
    found = on.nodes[node].replica(key).partition
    assert found is not None
    return found


def stored(on: Cluster, key: PartitionKey) -> dict[int, int]:
    return {number: node.replica(key).log.low_watermark for number, node in on.nodes.items()}


async def check_left(on: Cluster, node: int, topic: Topic, start: int, end: int) -> None:
    """Exactly these offsets can be read at this leader."""
    partition = leading(on, node, PartitionKey(topic.topic_id, 0))
    await until(lambda: partition.ends().is_settled)
    broker, found, offset = on.nodes[node].broker, [], start
    ends = await broker.call(Ends(topic, 0))
    assert (ends.start_offset, ends.high_watermark) == (start, end)
    while offset < end:
        fetched = await broker.call(
            Fetch(topic, 0, offset=offset, bytes_max=500, is_committed=True)
        )
        found += [r.offset for data in split_batches(fetched.buffers) for r in iter_records(data)]
        offset = fetched.next_offset
    assert [one for one in found if one >= start] == list(range(start, end))
    if start:
        with pytest.raises(OffsetOutOfRange):
            await broker.call(Fetch(topic, 0, offset=start - 1, bytes_max=1, is_committed=True))


async def cut_off(on: Cluster, node: int) -> None:
    """Return when what the node asked its leaders before is answered."""
    counts = on.nodes[node].replicators.counts
    before = counts.fetches_unanswered
    on.nodes[node].is_cut = True
    await until(lambda: counts.fetches_unanswered > before)


async def delete(on: Cluster, node: int, topic: Topic, before: int) -> object:
    return await settles(on.nodes[node].broker.call(DeleteRecords(topic, 0, before)))


@pytest.mark.parametrize("per_batch", [1, 30])
async def test_deleting_records_leaves_the_end_where_it_is(tmp_path: Path, per_batch: int) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on, per_batch=per_batch)
        for before, start in ((7, 7), (8, 8), (-1, 30)):
            assert await delete(on, 1, topic, before) == start
            assert stored(on, key) == {1: start, 2: start, 3: start}
            await check_left(on, 1, topic, start, 30)
            for node in (2, 3, 1):
                await on.elect(key, node)
                await check_left(on, node, topic, start, 30)
        await settles(
            on.nodes[1].broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("new")]))
        )
        await check_left(on, 1, topic, 30, 31)


async def test_deleted_records_stay_deleted_when_nodes_are_killed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on)
        assert await delete(on, 1, topic, 7) == 7
        await on.nodes[1].kill()
        await on.elect(key, 2)
        await check_left(on, 2, topic, 7, 30)
        assert await delete(on, 2, topic, 8) == 8
        await on.nodes[1].start()
        set_level(on)
        await until(lambda: on.is_held(on.nodes[1], key))
        await until(lambda: 1 in on.row(key).whole and stored(on, key)[1] == 8)
        await on.nodes[2].kill()
        await on.elect(key, 1)
        await check_left(on, 1, topic, 8, 30)


async def test_a_deletion_waits_for_every_member_of_the_in_sync_set(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on, in_sync_min=3)  # nobody is taken out
        await cut_off(on, 3)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await on.nodes[1].broker.call(DeleteRecords(topic, 0, 7))
        assert stored(on, key) == {1: 7, 2: 7, 3: 0}
        waiting = asyncio.create_task(on.nodes[1].broker.call(DeleteRecords(topic, 0, 8)))
        await until(lambda: stored(on, key) == {1: 8, 2: 8, 3: 0})
        assert not waiting.done()
        on.nodes[3].is_cut = False
        assert await settles(waiting) == 8
        assert stored(on, key) == {1: 8, 2: 8, 3: 8}


@pytest.mark.slow
async def test_a_member_that_leaves_the_set_is_not_waited_for_and_learns_it_later(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on)
        await cut_off(on, 3)
        assert await delete(on, 1, topic, 7) == 7
        assert 3 not in on.row(key).in_sync
        assert stored(on, key)[3] == 0
        on.nodes[3].is_cut = False
        await until(lambda: 3 in on.row(key).whole)
        assert stored(on, key)[3] == 7
        await on.elect(key, 3)
        await check_left(on, 3, topic, 7, 30)


async def test_a_deletion_whose_leader_changes_is_answered_as_unknown(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on, in_sync_min=3)
        await cut_off(on, 3)
        waiting = asyncio.create_task(on.nodes[1].broker.call(DeleteRecords(topic, 0, 7)))
        await until(lambda: stored(on, key)[2] == 7)
        on.nodes[3].is_cut = False
        on.nodes[1].is_cut = True
        await on.elect(key, 3)
        with pytest.raises(LeaderMoved):
            await settles(waiting)
        await check_left(on, 3, topic, 0, 30)  # nobody was told that they are gone
        on.nodes[1].is_cut = False
        assert await delete(on, 3, topic, 5) == 5
        assert stored(on, key) == {1: 7, 2: 7, 3: 5}


async def test_a_replica_that_is_made_anew_has_it_before_it_counts(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on)
        assert await delete(on, 1, topic, 7) == 7
        await on.nodes[3].kill()
        shutil.rmtree(on.nodes[3].folder / "topics")
        await on.nodes[3].start()
        set_level(on)
        await until(lambda: on.is_held(on.nodes[3], key) and 3 in on.row(key).whole)
        assert stored(on, key)[3] == 7
        await on.elect(key, 3)
        await check_left(on, 3, topic, 7, 30)


async def test_a_damaged_file_makes_a_replica_declare_a_loss(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on, in_sync_min=3)  # nobody is taken out
        assert await delete(on, 1, topic, 7) == 7
        await on.nodes[3].kill()
        [file] = on.nodes[3].folder.glob("topics/*/*/low-watermark")
        file.write_bytes(b"\0" * 20)
        on.nodes[3].is_cut = True
        await on.nodes[3].start()
        set_level(on)
        await until(lambda: 3 in on.row(key).lost)
        on.nodes[3].is_cut = False
        await until(lambda: 3 in on.row(key).whole)
        assert stored(on, key)[3] == 7


async def test_retention_leaves_the_end_where_it_is_and_followers_drop_too(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on, count=200, segment_bytes="1000", retention_bytes="5000")
        partition = leading(on, 1, key)
        assert await partition.clean() > 0
        await partition.clean()
        start = partition.start_offset
        assert start > 0
        assert partition.log.end_offset == 200
        await until(lambda: set(stored(on, key).values()) == {start})
        logs = [node.replica(key).log for node in on.nodes.values()]
        await until(lambda: all(log.start_offset > 0 for log in logs))
        await on.elect(key, 2)
        await check_left(on, 2, topic, start, 200)


async def test_below_the_level_an_event_is_written_as_before(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await filled(on)
        set_level(on, LEVEL_FIRST)
        assert await delete(on, 1, topic, 7) == 7
        assert leading(on, 1, key).ends().high_watermark == 31
        for node in on.nodes.values():
            assert not list(node.folder.glob("topics/*/*/low-watermark"))
        set_level(on)
        await on.elect(key, 2)
        await until(lambda: leading(on, 2, key).ends().is_settled)
        ends = leading(on, 2, key).ends()
        assert (ends.start_offset, ends.high_watermark) == (7, 31), "the event is believed"
        assert await delete(on, 2, topic, 8) == 8
        assert leading(on, 2, key).ends().high_watermark == 31
        await on.elect(key, 3)
        await until(lambda: leading(on, 3, key).ends().is_settled)
        ends = leading(on, 3, key).ends()
        assert (ends.start_offset, ends.high_watermark) == (8, 31)


async def test_a_deletion_up_to_where_the_log_begins_is_answered(tmp_path: Path) -> None:
    """Segments were dropped below the level, so no replica has stored anything yet."""
    async with cluster(tmp_path) as on:
        topic, key = await filled(on, count=100, segment_bytes="1000", retention_bytes="5000")
        set_level(on, LEVEL_FIRST)
        partition = leading(on, 1, key)
        assert await partition.clean() > 0
        start = partition.log.start_offset
        assert start > 0
        set_level(on)
        assert await delete(on, 1, topic, partition.start_offset) == start


async def test_a_share_is_the_same_for_the_next_leader(tmp_path: Path) -> None:
    """Its events were decided with a low watermark that no event speaks of."""
    async with cluster(tmp_path) as on:
        topic, key = await filled(on)
        reader = await on.nodes[1].broker.call(OpenShare(topic, 0, "g", start=EARLIEST))

        def leases(node: int) -> Leases:
            return leading(on, node, key).shares[reader.topic_id]

        for count, before in ((3, 5), (2, 12), (4, 14)):
            await on.nodes[1].broker.call(
                Acquire(reader, 0, count=count, bytes_max=1 << 20, lease_ms=60_000)
            )
            await delete(on, 1, topic, before)
        await on.nodes[1].broker.call(
            Acquire(reader, 0, count=1, bytes_max=1 << 20, lease_ms=60_000)
        )
        live = leases(1).cursor
        expected = (live.head, live.low_offset(), live.unseen, live.in_flight_most)
        assert expected == (17, 14, 13, 3)
        await committed(on, key, 2, 3)
        await until(lambda: all(on.nodes[n].catalog.find_id(reader.topic_id) for n in (2, 3)))
        for node in (2, 3):
            await on.elect(key, node)
            found = leases(node).cursor
            assert (found.head, found.low_offset(), found.unseen, found.in_flight_most) == expected


@pytest.mark.slow
async def test_a_follower_stores_it_before_it_appends_what_came_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash in between would leave events of a share without the low watermark that they
    were decided with."""
    order: list[tuple[str, int]] = []
    append, store = Log.append_copied, Log.store_low_watermark

    def appended(log: Log, data: bytes, *, now_ms: int) -> object:
        order.append(("append", log.stored_low_watermark))
        return append(log, data, now_ms=now_ms)

    def is_stored(log: Log, offset: int) -> None:
        store(log, offset)
        order.append(("store", offset))

    async with cluster(tmp_path) as on:
        topic, key = await filled(on)
        await cut_off(on, 3)
        assert await delete(on, 1, topic, 7) == 7
        await settles(
            on.nodes[1].broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("x")]))
        )
        monkeypatch.setattr(Log, "append_copied", appended)
        monkeypatch.setattr(Log, "store_low_watermark", is_stored)
        on.nodes[3].is_cut = False
        await until(lambda: 3 in on.row(key).whole)
        assert order == [("store", 7), ("append", 7)]
