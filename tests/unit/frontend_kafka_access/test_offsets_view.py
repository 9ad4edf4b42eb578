"""``__consumer_offsets``: what a tenant's groups have committed, in Apache Kafka's records, and
nothing of any other tenant."""

import asyncio
import itertools
import os
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.unit.broker.coordination.test_row_log import lived
from tests.unit.frontend_kafka.rig import batch
from tests.unit.frontend_kafka_access.stage import OTHER, OWN, REGION, Client, House, allow, codes

from penstock.broker.coordination.host import PARTITION_COUNT
from penstock.broker.coordination.row_log import encode_rows
from penstock.cursor.groups.records import CODEC, OffsetValue, RowKind
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.kafka.offsets_view import STEP, as_offsets
from penstock.frontend.kafka.pipeline import KafkaFrontend
from penstock.metadata.security.data_keys import DataKeys
from penstock.metadata.sqlite import SqliteStore
from penstock.model.calls import Fetch
from penstock.model.names import OFFSETS_TOPIC, scoped_id
from penstock.model.ports import Fetched, StreamEnds
from penstock.model.topic import partition_of_group
from penstock.net.slices import SLICE_SECONDS, Slices, Turns
from penstock.node.keys.keyring import MasterKeyRing
from penstock.record.batch import parse_header, split_batches
from penstock.record.record import iter_records
from penstock.telemetry.metrics import Meter
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
)
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

INVALID = ErrorCode.INVALID_TOPIC_EXCEPTION
TOPIC = 2  # resource type


class Commit(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int | None  # None: deleted
    epoch: int = -1
    metadata: str = ""
    topic_id: bytes = b""
    at_ms: int = 0


def parsed(key: bytes, value: bytes | None) -> Commit:
    """As Kafka's schemas OffsetCommitKey version 1 and OffsetCommitValue version 4 say."""
    assert key[:2] == b"\x00\x01"
    at = 2
    texts = []
    for _ in range(2):
        (size,) = struct.unpack_from(">h", key, at)
        texts.append(key[at + 2 : at + 2 + size].decode())
        at += 2 + size
    group, topic = texts
    (partition,) = struct.unpack(">i", key[at:])
    if value is None:
        return Commit(group, topic, partition, None)
    version, offset, epoch = struct.unpack_from(">hqi", value)
    assert version == 4
    size = value[14] - 1
    text = value[15 : 15 + size].decode()
    (at_ms,) = struct.unpack_from(">q", value, 15 + size)
    tagged = value[23 + size :]
    assert tagged[:3] == b"\x01\x00\x10"  # one field, tag 0, 16 bytes
    return Commit(group, topic, partition, offset, epoch, text, tagged[3:], at_ms)


async def fetched(
    client: Client, partition: int, offset: int, *, wait_ms: int = 0, by_id: bytes = b""
) -> Any:
    topic = FetchTopic(
        "" if by_id else OFFSETS_TOPIC,
        by_id or ZERO_UUID,
        [FetchPartition(partition, offset, 1_000_000)],
    )
    reply = await client.ask(1, FetchRequest(wait_ms, 1, [topic]), 13 if by_id else 12)
    ((one,),) = (each.partitions for each in reply.topics)
    return one


async def read(client: Client, *, by_id: bytes = b"") -> list[tuple[int, int, Commit]]:
    """All records with their partition and offset, as a consumer reads them: each fetch begins
    after the last batch."""
    found = []
    for partition in range(PARTITION_COUNT):
        offset = 0
        while True:
            one = await fetched(client, partition, offset, by_id=by_id)
            assert one.error_code == 0
            if offset >= one.high_watermark:
                break
            before = offset
            for each in split_batches(one.records):
                header = parse_header(each)
                offset = header.next_offset
                if not header.is_control:
                    found += [
                        (partition, record.offset, parsed(record.key or b"", record.value))
                        for record in iter_records(each)
                    ]
            assert offset > before, "a fetch below the high watermark brings the reader forward"
    return found


async def commit(
    client: Client, group: str, offsets: dict[int, int], *, topic: str = "t", text: str = ""
) -> set[int]:
    rows = [
        offset_commit.OffsetCommitRequestPartition(index, offset, 3, text)
        for index, offset in offsets.items()
    ]
    entry = offset_commit.OffsetCommitRequestTopic(topic, ZERO_UUID, rows)
    return set(
        codes(await client.ask(8, offset_commit.OffsetCommitRequest(group, topics=[entry]), 9))
    )


async def shown_id(client: Client) -> bytes:
    asked = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(ZERO_UUID, OFFSETS_TOPIC)]
    )
    (topic,) = (await client.ask(3, asked)).topics
    assert topic.error_code == 0
    return bytes(topic.topic_id)


@pytest.fixture
async def ann(house: House) -> Client:
    await house.user("ann", allow("*"))
    return await house.client("ann")


@pytest.fixture
async def bob(house: House) -> Client:
    await house.user("bob", allow("*"), account=OTHER)
    return await house.client("bob", account=OTHER)


# ── What the records say ─────────────────────────────────────────────────────────────────────


async def test_every_commit_is_a_record_and_a_deleted_offset_has_no_value(
    house: House, ann: Client
) -> None:
    topic = await house.topic(partitions=2)
    topic_id = bytes.fromhex(topic.topic_id)
    assert await commit(ann, "g", {0: 5, 1: 6}, text="where I am: ü") == {0}
    house.clock.wall += 1_000
    assert await commit(ann, "h", {0: 1}) == {0}
    assert await commit(ann, "g", {0: 7}) == {0}
    rows = [offset_delete.OffsetDeleteRequestPartition(1)]
    gone = offset_delete.OffsetDeleteRequest(
        "g", [offset_delete.OffsetDeleteRequestTopic("t", rows)]
    )
    assert set(codes(await ann.ask(47, gone))) == {0}

    found = await read(ann)
    then_ms = house.clock.wall - 1_000
    expected = [
        Commit("g", "t", 0, 5, 3, "where I am: ü", topic_id, then_ms),
        Commit("g", "t", 1, 6, 3, "where I am: ü", topic_id, then_ms),
        Commit("g", "t", 0, 7, 3, "", topic_id, house.clock.wall),
        Commit("g", "t", 1, None),
    ]
    assert [one for _, _, one in found if one.group == "g"] == expected
    assert [one.offset for _, _, one in found if one.group == "h"] == [1]
    places = [(partition, offset) for partition, offset, _ in found]
    assert places == sorted(set(places))
    assert await read(ann, by_id=await shown_id(ann)) == found


async def test_readers_of_the_view_commit_as_well(ann: Client) -> None:
    assert await commit(ann, "monitor", {1: 4}, topic=OFFSETS_TOPIC) == {0}
    ((_, _, one),) = await read(ann)
    assert one[:4] == ("monitor", OFFSETS_TOPIC, 1, 4)
    assert one.topic_id == await shown_id(ann)
    asked = offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup("monitor", topics=None)]
    )
    ((topic,),) = (each.topics for each in (await ann.ask(9, asked, 9)).groups)
    assert (topic.name, topic.partitions[0].committed_offset) == (OFFSETS_TOPIC, 4)


async def test_a_deleted_topic_is_named_while_its_tombstone_is_kept(
    house: House, ann: Client
) -> None:
    await house.topic()
    assert await commit(ann, "g", {0: 5}) == {0}
    asked = delete_topics.DeleteTopicsRequest([delete_topics.DeleteTopicState("t", ZERO_UUID)])
    assert set(codes(await ann.ask(20, asked, 6))) == {0}
    async with asyncio.timeout(10):
        while len(found := await read(ann)) < 2:
            await asyncio.sleep(0.01)
    assert [(one.topic, one.offset) for _, _, one in found] == [("t", 5), ("t", None)]
    await house.catalog.sweep(now_ms=house.clock.wall, is_gone=lambda _: True, kept_ms=0)
    assert await read(ann) == []


async def test_rows_of_groups_other_than_offsets_are_left_out(house: House) -> None:
    rows = lived((await house.topic()).topic_id)
    expected = []
    for key, value in rows:
        kind, fields, committed = CODEC.decode(key, value)
        if kind == RowKind.OFFSET:
            offset = committed.offset if isinstance(committed, OffsetValue) else None
            expected.append((fields[0], fields[2], offset))
    assert {group for group, _, _ in expected} == {"plain", "tasks"}
    (batch_,) = encode_rows([rows], wall_ms=1)
    fetched = Fetched(StreamEnds(0, len(rows), len(rows), 0), [batch_], len(rows), len(rows))
    shown = await as_offsets(house.context.of(OWN), fetched, Slices(Turns(time.monotonic)))
    (made,) = split_batches(shown.buffers)
    found = [parsed(record.key or b"", record.value) for record in iter_records(made)]
    assert [(one.group, one.partition, one.offset) for one in found] == expected
    assert parse_header(made).next_offset == len(rows)


async def test_decoding_many_rows_gives_the_loop_back(house: House, ann: Client) -> None:
    await house.topic(partitions=600)
    assert await commit(ann, "g", dict.fromkeys(range(600), 1)) == {0}
    groups = house.catalog.find(OWN, REGION, "__groups")
    assert groups is not None
    partition = partition_of_group("g", PARTITION_COUNT)
    rows = await house.stage.broker.call(
        Fetch(groups, partition, offset=0, bytes_max=1_000_000, is_committed=False)
    )
    looks = itertools.count()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    # Each look at the clock finds that the slice is over.
    slices = Slices(Turns(lambda: next(looks) * 2 * SLICE_SECONDS))
    shown = await as_offsets(house.context.of(OWN), rows, slices)
    counting.cancel()
    assert shown.record_count == 600
    assert turns > 600 // STEP // 2


async def test_what_one_fetch_decodes_is_bounded(house: House, ann: Client) -> None:
    await house.topic(partitions=100)
    for number in range(20):
        assert await commit(ann, "g", dict.fromkeys(range(100), number)) == {0}
    one = await fetched(ann, partition_of_group("g", PARTITION_COUNT), 0)
    assert one.high_watermark == 2_000
    *_, last = split_batches(one.records)
    assert 0 < parse_header(last).next_offset < 1_500
    assert len(await read(ann)) == 2_000


# ── Whose records ────────────────────────────────────────────────────────────────────────────


async def test_a_tenant_sees_only_its_own_groups(house: House, ann: Client, bob: Client) -> None:
    await house.topic()
    await house.topic(account=OTHER)
    for number in range(8):
        assert await commit(ann, f"g{number}", {0: 10 + number}) == {0}
        assert await commit(bob, f"g{number}", {0: 20 + number}) == {0}
    assert await commit(ann, f"{OTHER}/g0", {0: 99}) == {0}  # as bob's groups are named inside
    mine, theirs = [[one for _, _, one in await read(each)] for each in (ann, bob)]
    names = [f"g{number}" for number in range(8)]
    assert {one.group: one.offset for one in mine} == {
        **{name: 10 + number for number, name in enumerate(names)},
        f"{OTHER}/g0": 99,
    }
    assert {one.group: one.offset for one in theirs} == {
        name: 20 + number for number, name in enumerate(names)
    }
    assert len(mine) == 9
    assert len(theirs) == 8
    assert await shown_id(ann) != await shown_id(bob)
    one = await fetched(ann, 0, 0, by_id=await shown_id(bob))
    assert one.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@asynccontextmanager
async def encrypting(house: House, folder: Path) -> AsyncIterator[None]:
    """Topics of which nothing was said are encrypted."""
    store = await SqliteStore.open(folder / "keys.db")
    ring = MasterKeyRing(bytes(range(32)))
    keys = DataKeys(store, ring, house.catalog, clock=house.clock, entropy=os.urandom)
    await keys.start()
    house.context.sealing = Sealing(
        keys, clock=house.clock, entropy=os.urandom, meter=Quarantines(), is_default=True
    )
    house.frontend = KafkaFrontend(house.context)
    try:
        yield
    finally:
        await keys.stop()
        await store.close()


class Quarantines(Meter):
    def quarantined(self, count: int) -> None:
        raise AssertionError(f"{count} records do not open")


async def test_encryption_by_default_shows_no_rows_as_they_are(
    house: House, tmp_path: Path
) -> None:
    async with encrypting(house, tmp_path):
        await house.user("ann", allow("*"))
        await house.user("bob", allow("*"), account=OTHER)
        ann, bob = await house.client("ann"), await house.client("bob", account=OTHER)
        await house.topic()
        assert await commit(ann, "g", {0: 5}) == {0}
        assert [one.offset for _, _, one in await read(ann)] == [5]
        assert await read(bob) == []


async def test_a_waiting_fetch_is_answered_for_its_own_tenant_alone(
    house: House, ann: Client, bob: Client
) -> None:
    await house.topic()
    await house.topic(account=OTHER)
    partition = partition_of_group("g", PARTITION_COUNT)
    group = next(
        name
        for name in (f"g{number}" for number in range(100))
        if partition_of_group(scoped_id(OTHER, name, own_account=OWN), PARTITION_COUNT) == partition
    )
    waiting = asyncio.create_task(fetched(ann, partition, 0, wait_ms=60_000))
    for offset in range(3):
        assert await commit(bob, group, {0: offset}) == {0}
    done, _ = await asyncio.wait((waiting,), timeout=0.2)
    assert not done
    assert await commit(ann, "g", {0: 7}) == {0}
    one = await asyncio.wait_for(waiting, 10)
    *_, last = split_batches(one.records)
    (record,) = iter_records(last)
    assert parsed(record.key or b"", record.value).offset == 7
    # A wait that ends without a record of the tenant still brings the reader forward.
    end = parse_header(last).next_offset
    assert await commit(bob, group, {0: 9}) == {0}
    one = await fetched(ann, partition, end, wait_ms=1)
    (only,) = split_batches(one.records)
    header = parse_header(only)
    assert header.is_control
    assert header.next_offset == one.high_watermark == end + 1


async def test_reading_needs_the_right_to_read_it(house: House, bob: Client) -> None:
    await house.user("eve", allow("kafka:Describe"), account=OTHER)
    eve = await house.client("eve", account=OTHER)
    assert (await fetched(eve, 0, 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (await fetched(bob, 0, 0)).error_code == 0
    await house.user("dan", account=OTHER)
    dan = await house.client("dan", account=OTHER)
    listed = await dan.ask(3, metadata.MetadataRequest(topics=None))
    assert listed.topics == ()


# ── What it looks like, and what is refused ──────────────────────────────────────────────────


async def test_it_is_described_as_an_internal_compacted_topic(house: House, ann: Client) -> None:
    await house.topic("a")
    await house.topic("z")
    listed = await ann.ask(3, metadata.MetadataRequest(topics=None))
    assert [(each.name, each.is_internal) for each in listed.topics] == [
        (OFFSETS_TOPIC, True),
        ("a", False),
        ("z", False),
    ]
    topic_id = await shown_id(ann)
    by_id = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(topic_id, None)])
    (one,) = (await ann.ask(3, by_id)).topics
    assert (one.name, one.is_internal, len(one.partitions)) == (
        OFFSETS_TOPIC,
        True,
        PARTITION_COUNT,
    )
    assert {each.leader_id for each in one.partitions} == {1}
    paged = await ann.ask(75, describe_topic_partitions.DescribeTopicPartitionsRequest([], 100))
    assert [each.name for each in paged.topics] == [OFFSETS_TOPIC, "a", "z"]
    assert paged.topics[0].is_internal

    keys = ["cleanup.policy"]
    of_topic = describe_configs.DescribeConfigsResource(TOPIC, OFFSETS_TOPIC, keys)
    of_node = describe_configs.DescribeConfigsResource(4, "1", ["offsets.topic.num.partitions"])
    asked = describe_configs.DescribeConfigsRequest([of_topic, of_node])
    topic, node = (await ann.ask(32, asked)).results
    assert [(each.name, each.value) for each in topic.configs] == [("cleanup.policy", "compact")]
    assert [each.value for each in node.configs] == [str(PARTITION_COUNT)]


async def test_its_ends_are_those_of_the_groups_topic(house: House, ann: Client) -> None:
    await house.topic()
    assert await commit(ann, "g", {0: 5}) == {0}
    assert await commit(ann, "g", {0: 6}) == {0}
    partition = partition_of_group("g", PARTITION_COUNT)
    for timestamp, expected in ((-1, 2), (-2, 0), (-3, 0), (house.clock.wall, 0)):
        one = list_offsets.ListOffsetsPartition(partition, -1, timestamp)
        topic = list_offsets.ListOffsetsTopic(OFFSETS_TOPIC, [one])
        reply = await ann.ask(2, list_offsets.ListOffsetsRequest(-1, 0, [topic]))
        ((found,),) = (each.partitions for each in reply.topics)
        assert (found.error_code, found.offset) == (0, expected)
    wanted = offset_for_leader_epoch.OffsetForLeaderPartition(partition, 0, 0)
    asked = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        -2, [offset_for_leader_epoch.OffsetForLeaderTopic(OFFSETS_TOPIC, [wanted])]
    )
    ((end,),) = (each.partitions for each in (await ann.ask(23, asked)).topics)
    assert (end.error_code, end.end_offset) == (0, 2)


def _reassigned() -> Any:
    requests = alter_partition_reassignments
    topic = requests.ReassignableTopic(OFFSETS_TOPIC, [requests.ReassignablePartition(0, [1])])
    return requests.AlterPartitionReassignmentsRequest(topics=[topic])


def _set() -> Any:
    requests = incremental_alter_configs
    config = requests.AlterableConfig("retention.ms", 0, "1")
    return requests.IncrementalAlterConfigsRequest(
        [requests.AlterConfigsResource(TOPIC, OFFSETS_TOPIC, [config])]
    )


def _produced() -> Any:
    rows = [ProducePartition(0, memoryview(batch(b"x")))]
    return ProduceRequest(None, -1, 1_000, [ProduceTopic(OFFSETS_TOPIC, ZERO_UUID, rows)])


REFUSED = {
    "Produce": (0, 12, _produced()),
    "DeleteTopics": (
        20,
        6,
        delete_topics.DeleteTopicsRequest(
            [delete_topics.DeleteTopicState(OFFSETS_TOPIC, ZERO_UUID)]
        ),
    ),
    "CreatePartitions": (
        37,
        None,
        create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic(OFFSETS_TOPIC, 50, None)]
        ),
    ),
    "DeleteRecords": (
        21,
        None,
        delete_records.DeleteRecordsRequest(
            [
                delete_records.DeleteRecordsTopic(
                    OFFSETS_TOPIC, [delete_records.DeleteRecordsPartition(0, 0)]
                )
            ]
        ),
    ),
    "ElectLeaders": (
        43,
        None,
        elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions(OFFSETS_TOPIC, [0])]),
    ),
    "AlterPartitionReassignments": (45, None, _reassigned()),
    "IncrementalAlterConfigs": (44, None, _set()),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_nobody_changes_it(house: House, name: str) -> None:
    key, version, request = REFUSED[name]
    root = await house.root()
    before = house.catalog.find(OWN, REGION, "__groups")
    found = set(codes(await root.ask(key, request, version)))
    assert found - {0} == {INVALID}
    assert house.catalog.find(OWN, REGION, "__groups") == before
    assert await read(root) == []


async def test_it_exists_already(house: House) -> None:
    root = await house.root()
    asked = create_topics.CreateTopicsRequest([create_topics.CreatableTopic(OFFSETS_TOPIC, 1, 1)])
    (made,) = (await root.ask(19, asked)).topics
    assert made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
