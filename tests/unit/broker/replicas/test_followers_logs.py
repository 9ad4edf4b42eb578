"""What followers let go of by themselves, and what they do when their leader lets go of something:
compaction, retention, what a queue is finished with."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.replicas.stage import Cluster, cluster, settles, until
from tests.unit.broker.storage.test_compaction import batch
from tests.unit.record.checks import check

from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.calls import Ack, AppendBatches, AppendMarker, Ends, Fetch, Lease
from penstock.model.message import Claim
from penstock.model.ports import LeaseRequest, Marker
from penstock.model.topic import Fsync, Kind, Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, split_batches
from penstock.record.record import iter_records
from penstock.replication.replica import Role

pytestmark = pytest.mark.slow
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1000",
    "min.cleanable.dirty.ratio": "0.01",
}
Row = tuple[int, str, str | None]


async def compacted(on: Cluster, **more: str) -> tuple[Topic, PartitionKey]:
    configs = COMPACTED | {name.replace("_", "."): text for name, text in more.items()}
    return await on.topic("t", kind=Kind.STREAM, configs=configs)


async def put(on: Cluster, node: int, topic: Topic, *pairs: tuple[str, str | None]) -> None:
    for pair in pairs:
        await settles(
            on.nodes[node].broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch(pair)]))
        )


async def fill(on: Cluster, node: int, topic: Topic, *, count: int = 60, first: int = 0) -> None:
    await put(on, node, topic, *((f"k{at % 5}", f"v{at}") for at in range(first, first + count)))


def rows(on: Cluster, node: int, key: PartitionKey) -> list[Row]:
    """The records of one node's log."""
    found: list[Row] = []
    log = on.nodes[node].replica(key).log
    offset = log.start_offset
    while offset < log.end_offset:
        for data in log.read(offset, bytes_max=1 << 20):
            header = check(data)
            offset = header.next_offset
            if not header.is_control:
                found += [(r.offset, _text(r.key), _text(r.value)) for r in iter_records(data)]
    return found


def _text(data: bytes | memoryview | None) -> str:
    return "-" if data is None else bytes(data).decode()


async def read(on: Cluster, node: int, topic: Topic) -> list[Row]:
    """What a consumer of committed records gets from the node that leads."""
    broker = on.nodes[node].broker
    found: list[Row] = []
    leading = on.nodes[node].replica(PartitionKey(topic.topic_id, 0)).partition
    assert leading is not None
    await until(lambda: leading.ends().is_settled)
    offset = leading.ends().start_offset
    while True:
        fetched = await broker.call(
            Fetch(topic, 0, offset=offset, bytes_max=5_000, is_committed=True)
        )
        if not fetched.buffers:
            return found
        gone = {producer for producer, _ in fetched.aborted}
        for data in split_batches(fetched.buffers):
            header = check(data)
            offset = header.next_offset
            if not header.is_control and header.producer_id not in gone:
                found += [(r.offset, _text(r.key), _text(r.value)) for r in iter_records(data)]


async def committed(on: Cluster, key: PartitionKey, *nodes: int) -> None:
    """Followers have heard that everything is, and have read it."""

    def has_all(node: int) -> bool:
        replicator = on.nodes[node].replica(key)
        end = on.nodes[on.row(key).leader].replica(key).log.end_offset
        fold = replicator.follower_log.replay
        return replicator.replica.high_watermark == end and fold is not None and fold.offset == end

    await until(lambda: all(has_all(node) for node in nodes))


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.INTERVAL, Fsync.NEVER])
async def test_a_follower_compacts_by_itself_and_leads_with_what_is_left(
    tmp_path: Path, fsync: Fsync
) -> None:
    async with cluster(tmp_path, fsync=fsync) as on:
        topic, key = await compacted(on)
        await fill(on, 1, topic)
        await put(on, 1, topic, ("k1", None))
        await fill(on, 1, topic, first=62, count=1)  # k2
        await committed(on, key, 2, 3)
        before = rows(on, 2, key)
        second = on.nodes[2].replica(key)
        await until(lambda: second.log.sealed_offset == second.log.segments()[-1].base_offset)
        assert await second.follower_log.compact() > 0
        active = second.log.segments()[-1].base_offset
        newest = {text: offset for offset, text, _ in before if offset < active}
        expected = [row for row in before if row[0] >= active or row[0] in newest.values()]
        assert rows(on, 2, key) == expected
        assert rows(on, 1, key) == rows(on, 3, key) == before, "each node does its own"
        await on.elect(key, 2)
        assert await read(on, 2, topic) == expected
        await put(on, 2, topic, ("k0", "by the next leader"))
        await on.elect(key, 1)
        assert (await read(on, 1, topic))[-1][2] == "by the next leader"
        assert not any(node.replicators.troubles() for node in on.nodes.values())


async def test_a_node_compacts_what_it_follows_without_being_asked(tmp_path: Path) -> None:
    async with cluster(tmp_path, compact_interval_ms=20) as on:
        topic, key = await compacted(on)
        await fill(on, 1, topic, count=100)
        await until(lambda: all(len(rows(on, node, key)) < 40 for node in (1, 2, 3)))


async def test_followers_know_the_producers_of_a_partition(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic("t", kind=Kind.STREAM)

        async def seen(node: int) -> list[tuple[int, int]] | None:
            found = await on.nodes[node].replica(key).follower_log.producers()
            if found is None:
                return None
            return [(one.producer_id, one.transaction_start) for one in found]

        async def sees(node: int, *expected: tuple[int, int]) -> None:
            """In the end; None comes before, while the replica does not follow yet."""
            async with asyncio.timeout(10):
                while (found := await seen(node)) is None:
                    await asyncio.sleep(0.01)
            assert found == list(expected)

        await sees(2)  # nothing was ever sent
        open_transaction = batch(("k", "v"), producer=(7, 0, 0), attributes=ATTR_TRANSACTIONAL)
        await settles(
            on.nodes[1].broker.call(AppendBatches(topic, 0, acks=-1, batches=[open_transaction]))
        )
        await committed(on, key, 2, 3)
        assert await seen(2) == await seen(3) == [(7, 0)]
        second = on.nodes[2].replica(key)
        second.follower_log.replay = second.new_replay()()
        assert await seen(2) is None, "it has not read the log"
        await on.elect(key, 2)
        first = on.nodes[1].replica(key)
        await until(lambda: first.replica.role is Role.FOLLOWER)
        await sees(1, (7, 0))  # nothing has come since it led
        await on.nodes[3].kill()
        await on.nodes[3].start()
        await committed(on, key, 3)
        await sees(3, (7, 0))


async def configured(on: Cluster, topic: Topic, **configs: str) -> None:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    await on.nodes[1].catalog.change(
        topic.account,
        topic.region,
        topic.name,
        lambda t: msgspec.structs.replace(t, configs={**t.configs, **given}),
    )
    await until(
        lambda: all(
            node.replica(PartitionKey(topic.topic_id, 0)).topic.configs.items() >= given.items()
            for node in on.nodes.values()
        )
    )


def segment_counts(on: Cluster, key: PartitionKey) -> list[int]:
    return [len(node.replica(key).log.segments()) for node in on.nodes.values()]


async def test_changed_segments_hold_for_the_next_append_on_every_replica(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic("t", kind=Kind.STREAM)
        stop = asyncio.Event()

        async def load() -> None:
            number = 0
            while not stop.is_set():
                await put(on, 1, topic, (f"k{number}", "." * 500))
                number += 1

        loading = asyncio.create_task(load())
        try:
            log = on.nodes[1].replica(key).log
            await until(lambda: log.end_offset >= 20)
            assert segment_counts(on, key) == [1, 1, 1]
            await configured(on, topic, segment_bytes="3000")
            await until(lambda: min(segment_counts(on, key)) > 3)
            await configured(on, topic, segment_bytes="1000000", segment_ms="50")
            most = max(segment_counts(on, key))
            await until(lambda: min(segment_counts(on, key)) > most + 2)
        finally:
            stop.set()
            await loading
        await on.alike(key)


async def test_changed_defaults_hold_for_the_next_append_on_every_replica(tmp_path: Path) -> None:
    async with cluster(tmp_path, compact_interval_ms=20) as on:
        topic, key = await on.topic("t", kind=Kind.STREAM)
        await fill(on, 1, topic)
        assert segment_counts(on, key) == [1, 1, 1]
        defaults = {"segment.bytes": "1000", "min.cleanable.dirty.ratio": "0.01"}
        for node in on.nodes.values():
            node.replicators.context.defaults.replace(defaults)
        await asyncio.sleep(0)
        await fill(on, 1, topic)
        await until(lambda: min(segment_counts(on, key)) > 3)
        await committed(on, key, 2, 3)
        assert all(len(rows(on, node, key)) == 120 for node in (1, 2, 3))
        for node in on.nodes.values():
            node.replicators.context.defaults.replace({**defaults, "cleanup.policy": "compact"})
        await until(lambda: all(len(rows(on, node, key)) < 60 for node in (1, 2, 3)))


async def test_a_compaction_lag_is_kept_on_every_replica(tmp_path: Path) -> None:
    async with cluster(tmp_path, compact_interval_ms=20) as on:
        topic, key = await on.topic("t", kind=Kind.STREAM, configs={"cleanup.policy": "compact"})
        await fill(on, 1, topic, count=20)
        assert segment_counts(on, key) == [1, 1, 1]
        await configured(on, topic, max_compaction_lag_ms="1000")
        await asyncio.sleep(1)  # the segment is then as old as the lag
        await put(on, 1, topic, ("other", "next"))
        await until(lambda: all(len(rows(on, node, key)) == 6 for node in (1, 2, 3)))


async def test_a_follower_stops_below_a_transaction_that_is_open(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await compacted(on)
        await put(on, 1, topic, ("a", "committed"))
        opened = batch(("a", "aborted"), producer=(7, 0, 0), attributes=ATTR_TRANSACTIONAL)
        await on.nodes[1].broker.call(AppendBatches(topic, 0, acks=-1, batches=[opened]))
        await fill(on, 1, topic)
        await committed(on, key, 2)
        followed = on.nodes[2].replica(key).follower_log
        assert await followed.compact() == 0
        marker = Marker(producer_id=7, producer_epoch=0, is_commit=False, coordinator_epoch=0)
        await on.nodes[1].broker.call(AppendMarker(topic, 0, marker))
        await fill(on, 1, topic, count=5)
        await committed(on, key, 2)
        assert await followed.compact() > 0
        assert "aborted" not in [value for _, _, value in rows(on, 2, key)]
        assert followed.replay is not None
        aborted = followed.replay.producers.aborted_between(0, 1_000)
        assert aborted == [], "readers need not skip it any more"
        await on.elect(key, 2)
        assert (await read(on, 2, topic))[0] == (0, "a", "committed")


async def test_a_follower_fills_up_from_a_compacted_leader_and_compacts_what_it_got(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await compacted(on)
        await fill(on, 1, topic, count=7)
        on.nodes[3].is_cut = True
        sending = asyncio.ensure_future(fill(on, 1, topic, first=7, count=90))
        await until(lambda: on.row(key).in_sync == {1, 2})
        await settles(sending)
        leading = on.nodes[1].replica(key).partition
        assert leading is not None
        assert await leading.compact() > 0
        on.nodes[3].is_cut = False
        await until(lambda: on.row(key).in_sync == {1, 2, 3})
        await committed(on, key, 2, 3)
        # It has its first batches as they were, and the others as the leader has left them.
        assert len(rows(on, 3, key)) < 40
        await on.nodes[3].replica(key).follower_log.compact()
        await on.nodes[2].replica(key).follower_log.compact()
        clean = max(on.nodes[n].replica(key).log.segments()[-1].base_offset for n in (1, 2, 3))
        found = [rows(on, node, key) for node in (1, 2, 3)]
        assert len({tuple(row for row in one if row[0] >= clean) for one in found}) == 1
        values = [{text: value for _, text, value in one} for one in found]
        assert values[0] == values[1] == values[2]
        await on.elect(key, 3)
        assert {text: value for _, text, value in await read(on, 3, topic)} == values[0]


async def test_that_a_key_is_gone_is_kept_for_a_replica_that_is_away(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await compacted(on, delete_retention_ms="0")
        await put(on, 1, topic, ("gone", "value"))
        await on.alike(key)
        on.nodes[3].is_cut = True
        sending = asyncio.ensure_future(put(on, 1, topic, ("gone", None)))
        await until(lambda: on.row(key).in_sync == {1, 2})
        await settles(sending)
        leading = on.nodes[1].replica(key).partition
        assert leading is not None

        async def compact() -> None:
            for number in range(2):  # the first round only writes down that it is old now
                await fill(on, 1, topic, first=number, count=20)
                await committed(on, key, 2)
                await leading.compact()
                await on.nodes[2].replica(key).follower_log.compact()

        await compact()
        for node in (1, 2):
            assert ("gone", "-") in [row[1:] for row in rows(on, node, key)]
        on.nodes[3].is_cut = False
        await until(lambda: on.row(key).in_sync == {1, 2, 3})
        await committed(on, key, 2, 3)
        await compact()
        for node in (1, 2):
            assert "gone" not in [row[1] for row in rows(on, node, key)]
        await on.elect(key, 3)
        values = {text: value for _, text, value in await read(on, 3, topic)}
        assert values.pop("gone", "-") == "-"
        assert len(values) == 5


async def test_a_round_ends_where_a_follower_is_about_to_lead(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await compacted(on)
        await fill(on, 1, topic, count=200)
        await committed(on, key, 2)
        second = on.nodes[2].replica(key)
        round_ = asyncio.ensure_future(second.follower_log.compact())
        await asyncio.sleep(0)
        await on.elect(key, 2)
        await settles(round_)
        values = {text: value for _, text, value in await read(on, 2, topic)}
        assert values == {f"k{at % 5}": f"v{at}" for at in range(195, 200)}
        await put(on, 2, topic, ("k0", "more"))
        assert list(second.log.folder.glob("*.swap")) == []
        assert not on.nodes[2].replicators.troubles()


async def test_a_follower_that_is_cut_back_ends_its_round_first(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await compacted(on)
        await fill(on, 1, topic, count=100)
        await committed(on, key, 2, 3)
        on.nodes[2].is_cut = on.nodes[3].is_cut = True
        alone = asyncio.ensure_future(fill(on, 1, topic, first=100, count=1))
        first = on.nodes[1].replica(key)
        await until(lambda: first.log.end_offset >= 101)
        on.nodes[2].is_cut = False
        await on.elect(key, 2)
        await asyncio.gather(alone, return_exceptions=True)
        await put(on, 2, topic, ("k9", "of the next epoch"))
        rounds = [asyncio.ensure_future(first.follower_log.compact()) for _ in range(3)]
        on.nodes[3].is_cut = False
        await settles(asyncio.gather(*rounds))
        await until(lambda: on.row(key).in_sync == {1, 2, 3})
        await committed(on, key, 1, 3)
        assert rows(on, 1, key)[-1][1:] == ("k9", "of the next epoch")
        assert not any(node.replicators.troubles() for node in on.nodes.values())


async def test_followers_of_a_quiet_stream_let_go_of_what_its_retention_has_dropped(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        configs = {"segment.bytes": "1000", "retention.bytes": "3000"}
        topic, key = await on.topic("t", kind=Kind.STREAM, configs=configs)
        await fill(on, 1, topic, count=100)
        leading = on.nodes[1].replica(key).partition
        assert leading is not None
        assert await leading.clean() > 0
        # Nothing is sent any more: the news travels by itself.
        start = on.nodes[1].replica(key).log.start_offset
        assert start > 0
        await until(lambda: all(on.nodes[n].replica(key).log.start_offset == start for n in (2, 3)))
        assert all(on.nodes[n].replica(key).replica.start_offset == start for n in (2, 3))
        await on.elect(key, 3)
        assert (await on.nodes[3].broker.call(Ends(topic, 0))).start_offset >= start


async def test_followers_let_go_of_what_a_queue_is_finished_with(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(configs={"segment.bytes": "1000"})
        for number in range(60):
            await settles(on.sent(1, topic, f"message {number}" * 5))
        broker = on.nodes[1].broker
        while taken := await broker.call(Lease(topic, LeaseRequest(count=10))):
            claims = [Claim(0, one.record.offset, one.lease_seq) for one in taken]
            await settles(broker.call(Ack(topic, 0, claims)))
        leading = on.nodes[1].replica(key).partition
        assert leading is not None
        await leading.clean()
        start = on.nodes[1].replica(key).log.start_offset
        assert start > 50
        await until(lambda: all(on.nodes[n].replica(key).log.start_offset == start for n in (2, 3)))


async def test_every_follower_of_a_quiet_partition_learns_what_is_committed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "the last for a long time"))
        await until(
            lambda: all(on.nodes[n].replica(key).replica.high_watermark == 1 for n in (2, 3))
        )
