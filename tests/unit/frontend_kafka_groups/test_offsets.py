"""Offsets committed, fetched and deleted through the wire, by name and by id, in all versions."""

import asyncio
from typing import Any

import pytest
from tests.unit.frontend_kafka_groups.stage import (
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    GroupRig,
    groups,
)

from penstock.cursor.groups.settings import GroupSettings
from penstock.model.errors import DiskFull
from penstock.model.topic import Kind, Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import offset_commit as commits
from penstock.wire.kafka.generated import offset_delete as deletes
from penstock.wire.kafka.generated import offset_fetch as fetches

COMMIT_VERSIONS = range(2, 11)
FETCH_VERSIONS = range(1, 11)
ZERO_ID = bytes(16)


def id_of(topic: Topic) -> bytes:
    return bytes.fromhex(topic.topic_id)


async def commit(
    rig: GroupRig,
    version: int,
    topic: Topic | None,
    offsets: dict[int, int],
    *,
    name: str = "unknown",
    metadata: str | None = "",
    **fields: Any,
) -> list[int]:
    """Error codes by partition, as they were asked for."""
    rows = [
        commits.OffsetCommitRequestPartition(index, offset, 0, metadata)
        for index, offset in offsets.items()
    ]
    by_name = topic.name if topic is not None else name
    topic_id = id_of(topic) if topic is not None else b"\x01" * 16
    entry = commits.OffsetCommitRequestTopic(by_name, topic_id, rows)
    request = commits.OffsetCommitRequest(group_id="g", topics=[entry], **fields)
    found = await rig.ask(OFFSET_COMMIT, version, request)
    (answered,) = found.topics
    assert answered.name == (by_name if version < 10 else "")
    assert answered.topic_id == (topic_id if version >= 10 else ZERO_ID)
    assert [row.partition_index for row in answered.partitions] == list(offsets)
    return [row.error_code for row in answered.partitions]


Asked = list[tuple[Topic | str, list[int]]]  # a topic, or a name that nobody has
Found = dict[str, list[tuple[int, int, str, int]]]


async def fetch(
    rig: GroupRig, version: int, topics: Asked | None, group_id: str = "g"
) -> tuple[int, Found]:
    """The group's code and (partition, offset, metadata, code) by topic name, or id in hex."""
    asked = None
    if topics is not None:
        asked = [
            fetches.OffsetFetchRequestTopics(
                topic if isinstance(topic, str) else topic.name,
                b"\x01" * 16 if isinstance(topic, str) else id_of(topic),
                indexes,
            )
            for topic, indexes in topics
        ]
    if version >= 8:
        groups_ = [fetches.OffsetFetchRequestGroup(group_id, topics=asked)]
        found = await rig.ask(OFFSET_FETCH, version, fetches.OffsetFetchRequest(groups=groups_))
        (group,) = found.groups
        assert group.group_id == group_id
        code, answered = group.error_code, group.topics
    else:
        old = None
        if asked is not None:
            old = [
                fetches.OffsetFetchRequestTopic(each.name, each.partition_indexes) for each in asked
            ]
        request = fetches.OffsetFetchRequest(group_id=group_id, topics=old)
        found = await rig.ask(OFFSET_FETCH, version, request)
        code, answered = found.error_code, found.topics
    rows = {
        each.topic_id.hex() if version >= 10 else each.name: [
            (row.partition_index, row.committed_offset, row.metadata, row.error_code)
            for row in each.partitions
        ]
        for each in answered
    }
    return code, rows


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_offsets_are_committed_in_any_version(version: int) -> None:
    async with groups() as rig:
        topic = await rig.topic("orders", partitions=2)
        assert await commit(rig, version, topic, {0: 5, 1: 6}, metadata="note") == [0, 0]
        _, rows = await fetch(rig, 9, [(topic, [0, 1])])
        assert rows == {"orders": [(0, 5, "note", 0), (1, 6, "note", 0)]}


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_offsets_are_fetched_in_any_version(version: int) -> None:
    async with groups() as rig:
        topic = await rig.topic("orders", partitions=2)
        await commit(rig, 9, topic, {0: 5}, metadata=None)
        key = topic.topic_id if version >= 10 else "orders"
        code, rows = await fetch(rig, version, [(topic, [1, 0])])
        assert (code, rows) == (0, {key: [(1, -1, "", 0), (0, 5, "", 0)]})


@pytest.mark.parametrize("version", range(2, 11))
async def test_no_topics_at_all_asks_for_everything(version: int) -> None:
    async with groups() as rig:
        orders = await rig.topic("orders", partitions=2)
        bills = await rig.topic("bills")
        await commit(rig, 9, orders, {0: 5, 1: 6})
        await commit(rig, 9, bills, {0: 7})
        _, rows = await fetch(rig, version, None)
        assert sorted(rows.values()) == [[(0, 5, "", 0), (1, 6, "", 0)], [(0, 7, "", 0)]]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_a_group_or_topic_nobody_knows_has_offset_minus_one_and_no_error(
    version: int,
) -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        _, rows = await fetch(rig, version, [(topic, [0])], group_id="unknown")
        assert list(rows.values()) == [[(0, -1, "", 0)]]
        _, rows = await fetch(rig, version, [("nowhere", [0])])
        code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else 0
        assert list(rows.values()) == [[(0, -1, "", code)]]


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_commits_for_unknown_topics_and_partitions_are_refused_one_by_one(
    version: int,
) -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(rig, version, topic, {0: 1, 7: 1}) == [0, unknown]
        by_id = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else unknown
        assert await commit(rig, version, None, {0: 1}) == [by_id]


async def test_an_error_of_the_whole_group_is_told_for_each_partition_of_a_commit() -> None:
    async with groups() as rig:
        topic = await rig.topic("orders", partitions=2)
        joined = await rig.stable("g")
        codes = await commit(
            rig,
            9,
            topic,
            {0: 1, 1: 1},
            generation_id_or_member_epoch=1,
            member_id="stranger",
        )
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        codes = await commit(
            rig,
            9,
            topic,
            {0: 1, 1: 1},
            generation_id_or_member_epoch=1,
            member_id=joined.member_id,
        )
        assert codes == [0, 0]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_a_coordinator_out_of_service_says_so_where_the_version_has_room(
    version: int,
) -> None:
    async with groups(GroupSettings(initial_delay_ms=0, fetch_ms_max=100)) as rig:
        topic = await rig.topic("orders")
        assert await commit(rig, 9, topic, {0: 1}) == [0]
        internal = rig.catalog.find(topic.account, topic.region, "__groups")
        assert internal is not None
        for index in range(internal.partition_count):
            rig.partition(internal, index).broken = DiskFull("full")
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await commit(rig, 9, topic, {0: 2}) == [unavailable]
        code, rows = await fetch(rig, version, [(topic, [0])])
        if version == 1:
            assert list(rows.values()) == [[(0, -1, "", unavailable)]]
        else:
            assert (code, rows) == (unavailable, {})


async def test_a_queue_has_offsets_like_any_topic() -> None:
    async with groups() as rig:
        queue = await rig.topic("jobs.fifo", kind=Kind.FIFO)
        assert await commit(rig, 8, queue, {0: 3}) == [0]
        _, rows = await fetch(rig, 8, [(queue, [0])])
        assert rows == {"jobs.fifo": [(0, 3, "", 0)]}


async def test_a_topic_made_anew_begins_without_offsets() -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        await commit(rig, 9, topic, {0: 5})
        await rig.catalog.delete(topic.account, topic.region, "orders", now_ms=1)
        anew = await rig.topic("orders")
        assert anew.topic_id != topic.topic_id
        _, rows = await fetch(rig, 9, [(anew, [0])])
        assert rows == {"orders": [(0, -1, "", 0)]}
        _, rows = await fetch(rig, 9, None)
        assert rows == {}


async def test_several_groups_are_asked_about_at_once() -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        await commit(rig, 9, topic, {0: 5})
        asked = [fetches.OffsetFetchRequestTopics("orders", partition_indexes=[0])]
        request = fetches.OffsetFetchRequest(
            groups=[
                fetches.OffsetFetchRequestGroup("g", topics=asked),
                fetches.OffsetFetchRequestGroup("h", topics=asked),
            ]
        )
        found = await rig.ask(OFFSET_FETCH, 8, request)
        offsets = [group.topics[0].partitions[0].committed_offset for group in found.groups]
        assert offsets == [5, -1]


async def test_offsets_are_deleted_unless_the_topic_or_the_group_is_unknown() -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        await commit(rig, 9, topic, {0: 5})

        async def delete(group_id: str, name: str) -> deletes.OffsetDeleteResponse:
            rows = [deletes.OffsetDeleteRequestPartition(0)]
            entry = deletes.OffsetDeleteRequestTopic(name, rows)
            request = deletes.OffsetDeleteRequest(group_id, [entry])
            found = await rig.ask(OFFSET_DELETE, 0, request)
            assert isinstance(found, deletes.OffsetDeleteResponse)
            return found

        missing = await delete("none", "orders")
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        unknown = await delete("g", "nowhere")
        assert unknown.error_code == 0
        assert unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        done = await delete("g", "orders")
        assert done.topics[0].partitions[0].error_code == 0
        _, rows = await fetch(rig, 9, [(topic, [0])])
        assert rows == {"orders": [(0, -1, "", 0)]}


async def test_a_commit_is_answered_when_the_log_has_it() -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        rig.streams.may_commit.clear()
        waiting = asyncio.create_task(commit(rig, 9, topic, {0: 5}))
        while not rig.streams.appending:
            await asyncio.sleep(0)
        assert not waiting.done()
        rig.streams.may_commit.set()
        assert await waiting == [0]
