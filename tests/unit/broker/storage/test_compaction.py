"""Compaction of a topic on a real broker: what readers by offset get, before, during and after."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.stage import HandClock, Stage, message, on_stage
from tests.unit.record.checks import check

from penstock.broker.context.disk import DiskBudget
from penstock.broker.partition.partition import Partition
from penstock.log.compaction import Unreadable
from penstock.log.log import LogConfig
from penstock.log.storage.files import segment_path
from penstock.model.calls import Append, AppendBatches, AppendMarker, Ends, Fetch
from penstock.model.ports import Marker
from penstock.model.topic import Fsync, Kind, Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch, parse_header, split_batches
from penstock.record.record import encode_record, iter_records

SMALL = LogConfig(segment_bytes_max=1_000, index_interval_bytes=200, tail_bytes_max=0)
DAY_MS = 86_400_000


def batch(
    *pairs: tuple[str, str | None],
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
    at_ms: int = 1_700_000_000_000,
) -> bytes:
    records = [
        encode_record(
            offset_delta=at,
            timestamp_delta=0,
            key=key.encode(),
            value=None if value is None else value.encode(),
        )
        for at, (key, value) in enumerate(pairs)
    ]
    return encode_batch(
        records,
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=at_ms,
        max_timestamp=at_ms,
        attributes=attributes,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


async def compacted_topic(stage: Stage, policy: str = "compact", **configs: str) -> Topic:
    topic = await stage.topic("t", fsync=Fsync.ALWAYS)
    found = {"cleanup.policy": policy, **{k.replace("_", "."): v for k, v in configs.items()}}
    return await stage.catalog.change(
        topic.account,
        topic.region,
        topic.name,
        lambda t: msgspec.structs.replace(t, kind=Kind.STREAM, configs=found),
    )


async def put(stage: Stage, topic: Topic, *pairs: tuple[str, str | None]) -> None:
    await stage.broker.call(
        AppendBatches(topic, 0, acks=-1, batches=[batch(*pairs, at_ms=stage.clock.wall)])
    )


def partition_of(stage: Stage, topic: Topic) -> Partition:
    queue = stage.broker.partitions.find(topic)
    assert queue is not None
    return queue.partitions[0]


async def read(
    stage: Stage, topic: Topic, *, is_committed: bool = False
) -> list[tuple[int, str, str | None]]:
    """Every record by offset, as a client would ask for them."""
    found: list[tuple[int, str, str | None]] = []
    offset = (await stage.broker.call(Ends(topic, 0))).start_offset
    while True:
        fetched = await stage.broker.call(
            Fetch(topic, 0, offset=offset, bytes_max=500, is_committed=is_committed)
        )
        if not fetched.buffers:
            return found
        for data in split_batches(fetched.buffers):
            header = check(data)
            if not header.is_control:
                found += [
                    (
                        r.offset,
                        (r.key or b"").decode(),
                        None if r.value is None else r.value.decode(),
                    )
                    for r in iter_records(data)
                ]
            offset = header.next_offset


async def fill(stage: Stage, topic: Topic, *, count: int = 60, keys: int = 5) -> None:
    for at in range(count):
        await put(stage, topic, (f"k{at % keys}", f"v{at}"))


@pytest.mark.parametrize("is_crash", [False, True])
async def test_readers_get_the_last_value_of_each_key_also_after_a_restart(
    tmp_path: Path, is_crash: bool
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, log=SMALL, is_crash=is_crash) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic)
        before = await read(stage, topic)
        partition = partition_of(stage, topic)
        active = partition.log.segments()[-1].base_offset
        freed_bytes = await partition.compact()
        assert freed_bytes > 0
        after = await read(stage, topic)
        newest = {key: offset for offset, key, _ in before if offset < active}
        expected = [row for row in before if row[0] >= active or row[0] in newest.values()]
        assert after == expected
        assert await partition.compact() == 0, "too little is dirty"
        ends = await stage.broker.call(Ends(topic, 0))
        assert (ends.start_offset, ends.high_watermark) == (0, 60)
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        assert await read(stage, topic) == expected
        await put(stage, topic, ("k0", "again"))
        assert (await read(stage, topic))[-1] == (60, "k0", "again")


async def test_the_broker_compacts_by_itself(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL, compact_interval_ms=10) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic, count=100)
        async with asyncio.timeout(20):
            while len(await read(stage, topic)) > 30:
                await asyncio.sleep(0.01)


async def test_producers_go_on_during_a_round(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic, count=200)
        partition = partition_of(stage, topic)
        size_bytes = partition.log.size_bytes
        compacting = asyncio.create_task(partition.compact())
        await fill(stage, topic, count=30)
        assert await compacting > 0
        assert partition.log.size_bytes < size_bytes
        values = {key: value for _, key, value in await read(stage, topic)}
        assert values == {f"k{at % 5}": f"v{at}" for at in range(25, 30)}


async def test_no_fetch_is_answered_without_a_record_while_there_are_some(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        for at in range(100):
            own = batch(("k", f"v{at}"), producer=(at, 0, 0))
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[own]))
        partition = partition_of(stage, topic)
        await partition.compact()
        start = parse_header(partition.log.read(0, bytes_max=1)[0])
        assert (start.count, start.producer_id) == (0, 0)
        for offset in (0, 1, 40):
            fetched = await stage.broker.call(
                Fetch(topic, 0, offset=offset, bytes_max=500, is_committed=True)
            )
            headers = [parse_header(data) for data in split_batches(fetched.buffers)]
            assert headers
            assert all(header.count for header in headers)
            assert headers[0].base_offset >= 40


async def test_a_reader_gets_past_a_long_stretch_without_records(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        own = [batch(("k", f"v{at}"), producer=(at, 0, 0)) for at in range(300)]
        for data in own:
            await stage.broker.call(AppendBatches(topic, 0, acks=0, batches=[data]))
        await put(stage, topic, ("k", "last"))
        partition = partition_of(stage, topic)
        await partition.compact()
        fetched = await stage.broker.call(
            Fetch(topic, 0, offset=0, bytes_max=500, is_committed=True)
        )
        (header,) = (parse_header(data) for data in split_batches(fetched.buffers))
        assert header.count == 0
        assert header.next_offset > 50
        assert (await read(stage, topic))[-1] == (300, "k", "last")


@pytest.mark.parametrize("policy", ["delete", ""])
async def test_other_topics_are_not_compacted(tmp_path: Path, policy: str) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage, policy)
        await fill(stage, topic)
        assert await partition_of(stage, topic).compact() == 0
        assert len(await read(stage, topic)) == 60


async def test_a_queue_is_never_compacted(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await stage.topic("q")
        topic = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda t: msgspec.structs.replace(t, configs={"cleanup.policy": "compact"}),
        )
        for at in range(40):
            await stage.broker.call(Append(topic, 0, [message(f"m{at}", group="g")]))
        assert await partition_of(stage, topic).compact() == 0


async def test_what_is_too_young_waits(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage, min_compaction_lag_ms="60000")
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        assert await partition.compact() == 0
        stage.clock.advance(60_000)
        assert await partition.compact() > 0


async def test_nothing_behind_an_open_transaction_is_compacted(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        await put(stage, topic, ("a", "committed"))
        mine = (7, 0, 0)
        opened = batch(("a", "aborted"), producer=mine, attributes=ATTR_TRANSACTIONAL)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[opened]))
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        assert await partition.compact() == 0
        await stage.broker.call(
            AppendMarker(
                topic,
                0,
                Marker(producer_id=7, producer_epoch=0, is_commit=False, coordinator_epoch=0),
            )
        )
        assert await partition.compact() > 0
        rows = await read(stage, topic)
        assert rows[0] == (0, "a", "committed")
        assert "aborted" not in [row[2] for row in rows]


async def test_topics_are_not_compacted_while_the_disk_is_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction writes before it removes, and clients may not append then anyway."""
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic)
        with monkeypatch.context() as low:
            low.setattr(DiskBudget, "is_low", True)
            assert await partition_of(stage, topic).compact() == 0
        assert await partition_of(stage, topic).compact() > 0


async def test_compact_and_delete_does_both(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage, "compact,delete", retention_ms="60000")
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        assert await partition.compact() > 0
        assert await partition.clean() == 0
        stage.clock.advance(60_001)
        await fill(stage, topic, count=1)
        assert await partition.clean() > 0
        assert (await stage.broker.call(Ends(topic, 0))).start_offset > 0


async def test_retention_may_overtake_a_round(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage, "compact,delete")
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        compacting = asyncio.create_task(partition.compact())
        await asyncio.sleep(0)
        await partition.delete_records(58)
        await compacting
        assert [row[0] for row in await read(stage, topic)][-2:] == [58, 59]
        assert list(partition.log.folder.glob("*.swap")) == []


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_repeated_batch_is_known_after_compaction_has_emptied_it(
    tmp_path: Path, is_crash: bool
) -> None:
    clock = HandClock()
    last = batch(("k0", "mine"), producer=(7, 0, 5))
    async with on_stage(tmp_path, clock, log=SMALL, is_crash=is_crash) as stage:
        topic = await compacted_topic(stage)
        for sequence in range(5):
            own = batch(("k0", f"{sequence}"), producer=(7, 0, sequence))
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[own]))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[last]))
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        await partition.checkpoint()
        await fill(stage, topic)
        await partition.compact()
        folder = partition.log.folder
    for path in folder.glob("producers.*"):
        path.unlink()  # the log alone must tell
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        again = await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[last]))
        assert (again.base_offset, again.is_duplicate) == (5, True)


async def test_a_checkpoint_from_before_is_good_after(tmp_path: Path) -> None:
    """Compaction joins empty batches, so a checkpoint's offset may lie within one."""
    clock = HandClock()
    async with on_stage(tmp_path, clock, log=SMALL, is_crash=True) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic, count=15, keys=1)
        partition = partition_of(stage, topic)
        await partition.checkpoint()
        await fill(stage, topic, count=60, keys=1)
        await partition.compact()
        await put(stage, topic, ("k1", "x"))
        header = parse_header(partition.log.read(15, bytes_max=1)[0])
        assert header.base_offset < 15
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        assert (await read(stage, topic))[-1] == (75, "k1", "x")


async def test_a_topic_may_be_deleted_or_the_node_stopped_during_a_round(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic, count=100)
        partition = partition_of(stage, topic)
        compacting = asyncio.create_task(partition.compact())
        await asyncio.sleep(0.001)
    await compacting
    async with on_stage(tmp_path, clock, log=SMALL) as stage:
        assert len({key for _, key, _ in await read(stage, topic)}) == 5
        partition = partition_of(stage, topic)
        compacting = asyncio.create_task(partition.compact())
        await asyncio.sleep(0.001)
        await partition.abandon()
        await compacting


async def test_damage_met_by_compaction_is_reported_and_kept(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL) as stage:
        topic = await compacted_topic(stage)
        await fill(stage, topic)
        partition = partition_of(stage, topic)
        path = segment_path(partition.log.folder, partition.log.segments()[1].base_offset)
        raw = bytearray(path.read_bytes())
        raw[70] ^= 0xFF
        path.write_bytes(raw)
        with pytest.raises(Unreadable):
            await partition.compact()
        assert partition.damage is not None
        assert path.read_bytes() == raw
        assert await partition.compact() == 0
