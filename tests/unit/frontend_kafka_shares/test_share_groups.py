"""Share groups as bytes in and out: heartbeats, configs, listings, offsets."""

from pathlib import Path

import pytest
from tests.unit.frontend_kafka_shares.stage import (
    ALTER_CONFIGS,
    ALTER_OFFSETS,
    DELETE_GROUPS,
    DELETE_OFFSETS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    LIST,
    OFFSETS,
    ShareRig,
    shares,
    values,
)

from penstock.cursor.coordinator_calls import ReadConfigs
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_configs import AlterableConfig as GivenConfig
from penstock.wire.kafka.generated.alter_configs import (
    AlterConfigsRequest,
)
from penstock.wire.kafka.generated.alter_configs import (
    AlterConfigsResource as GivenResource,
)
from penstock.wire.kafka.generated.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from penstock.wire.kafka.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.kafka.generated.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from penstock.wire.kafka.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.wire.kafka.generated.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from penstock.wire.kafka.generated.list_groups import ListGroupsRequest
from penstock.wire.kafka.generated.share_group_describe import ShareGroupDescribeRequest


async def offsets(
    rig: ShareRig, *topics: tuple[str, list[int]], group: str = "g", version: int = 1
) -> list[tuple[str, int, int, int, int]]:
    """(topic, partition, start, lag, code) each; without topics: all there are."""
    asked = [DescribeShareGroupOffsetsRequestTopic(*each) for each in topics] or None
    request = DescribeShareGroupOffsetsRequest(
        [DescribeShareGroupOffsetsRequestGroup(group, asked)]
    )
    (found,) = (await rig.ask(OFFSETS, version, request)).groups
    assert found.error_code == 0, found.error_message
    return [
        (
            topic.topic_name,
            one.partition_index,
            one.start_offset - rig.base if one.start_offset >= 0 else -1,
            one.lag,
            one.error_code,
        )
        for topic in found.topics
        for one in topic.partitions
    ]


async def restart(rig: ShareRig, offset: int, *, topic: str = "t", partition: int = 0) -> int:
    """AlterShareGroupOffsets: the first code that is not 0."""
    asked = AlterShareGroupOffsetsRequestPartition(partition, rig.base + offset)
    request = AlterShareGroupOffsetsRequest(
        "g", [AlterShareGroupOffsetsRequestTopic(topic, [asked])]
    )
    found = await rig.ask(ALTER_OFFSETS, 0, request)
    if found.error_code:
        return int(found.error_code)
    ((one,),) = (each.partitions for each in found.responses)
    return int(one.error_code)


def config(found: object) -> dict[str, tuple[str | None, int]]:
    (result,) = found.results  # type: ignore[attr-defined]
    return {each.name: (each.value, each.config_source) for each in result.configs}


# ── Heartbeats ───────────────────────────────────────────────────────────────────────────────
async def test_a_member_is_told_its_partitions_once(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        member = rig.member()
        found = await member.beat("t")
        assert (found.member_id, found.member_epoch) == ("m", 1)
        assert found.heartbeat_interval_ms == 5_000
        assert found.assignment is not None
        ((topic_id, partitions),) = (
            (each.topic_id, tuple(each.partitions)) for each in found.assignment.topic_partitions
        )
        assert (topic_id.hex(), partitions) == (topic.topic_id, (0, 1))
        assert (await member.beat()).assignment is None
        left = await member.beat(epoch=-1)
        assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (0, -1, 0)
        assert (await member.beat(epoch=1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_heartbeats_are_refused_with_a_reason(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await rig.stream()
        found = await rig.member(group="").beat("t")
        assert (found.error_code, bool(found.error_message)) == (ErrorCode.INVALID_REQUEST, True)
        assert (await rig.member("").beat("t")).error_code == ErrorCode.INVALID_REQUEST
        unknown = await rig.member().beat(epoch=3)
        assert (unknown.error_code, unknown.member_epoch) == (ErrorCode.GROUP_ID_NOT_FOUND, 0)
        assert (await rig.member().beat(epoch=-3)).error_code == ErrorCode.INVALID_REQUEST


async def test_a_topic_that_cannot_be_shared_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await rig.stage.topic("t.fifo", fifo=True)
        found = await rig.member().beat("t.fifo")
        assert found.error_code == ErrorCode.INVALID_REQUEST
        assert "FIFO" in (found.error_message or "")


async def test_a_group_begins_behind_the_latest_record(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        await rig.send(topic, b"old")
        member = await rig.joined("t")
        await rig.send(topic, b"new")
        assert values(await member.fetch(topic)) == [b"new"]


async def test_a_group_begins_at_the_earliest_record_if_told_so_before(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        await rig.send(topic, b"old")
        assert await rig.configure(share_auto_offset_reset="earliest") == (0, None)
        member = await rig.joined("t")
        assert values(await member.fetch(topic)) == [b"old"]


# ── Configs ──────────────────────────────────────────────────────────────────────────────────
DEFAULTS = {
    "consumer.assignment.interval.ms": "0",
    "consumer.heartbeat.interval.ms": "5000",
    "consumer.session.timeout.ms": "45000",
    "share.assignment.interval.ms": "0",
    "share.auto.offset.reset": "latest",
    "share.delivery.count.limit": "5",
    "share.heartbeat.interval.ms": "5000",
    "share.isolation.level": "read_uncommitted",
    "share.partition.max.record.locks": "2000",
    "share.record.lock.duration.ms": "30000",
    "share.renew.acknowledge.enable": "true",
    "share.session.timeout.ms": "45000",
    "streams.assignment.interval.ms": "0",
    "streams.heartbeat.interval.ms": "5000",
    "streams.initial.rebalance.delay.ms": "3000",
    "streams.num.standby.replicas": "0",
    "streams.session.timeout.ms": "45000",
}
OTHERS = {
    "consumer.assignment.interval.ms": "2000",
    "consumer.heartbeat.interval.ms": "6000",
    "consumer.session.timeout.ms": "50000",
    "share.assignment.interval.ms": "15000",
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "10",
    "share.heartbeat.interval.ms": "7000",
    "share.isolation.level": "read_committed",
    "share.partition.max.record.locks": "10000",
    "share.record.lock.duration.ms": "20000",
    "share.renew.acknowledge.enable": "false",
    "share.session.timeout.ms": "60000",
    "streams.assignment.interval.ms": "1",
    "streams.heartbeat.interval.ms": "8000",
    "streams.initial.rebalance.delay.ms": "0",
    "streams.num.standby.replicas": "2",
    "streams.session.timeout.ms": "55000",
}


@pytest.mark.parametrize("name", DEFAULTS)
async def test_each_group_config_is_set_and_shown_with_its_source(
    tmp_path: Path, name: str
) -> None:
    async with shares(tmp_path) as rig:
        assert await rig.configure(**{name.replace(".", "_"): OTHERS[name]}) == (0, None)
        resource = DescribeConfigsResource(GROUP, "g", None)
        describe = DescribeConfigsRequest([resource], include_synonyms=True)
        shown = config(await rig.ask(DESCRIBE_CONFIGS, 4, describe))
        wanted = {each: (text, 5) for each, text in DEFAULTS.items()}
        assert shown == {**wanted, name: (OTHERS[name], 8)}


async def test_group_configs_are_set_shown_and_unset(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        resource = DescribeConfigsResource(GROUP, "g", None)
        describe = DescribeConfigsRequest([resource], include_synonyms=True)
        before = config(await rig.ask(DESCRIBE_CONFIGS, 4, describe))
        assert before == {name: (text, 5) for name, text in DEFAULTS.items()}
        changes = {"share_record_lock_duration_ms": "15000", "share_session_timeout_ms": "50000"}
        assert await rig.configure(**changes) == (0, None)
        after = config(await rig.ask(DESCRIBE_CONFIGS, 4, describe))
        assert after["share.record.lock.duration.ms"] == ("15000", 8)
        assert after["share.session.timeout.ms"] == ("50000", 8)
        assert await rig.configure(share_session_timeout_ms=None) == (0, None)
        after = config(await rig.ask(DESCRIBE_CONFIGS, 4, describe))
        assert after["share.session.timeout.ms"] == ("45000", 5)
        assert after["share.record.lock.duration.ms"] == ("15000", 8)


async def test_the_older_request_replaces_all_group_configs(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await rig.configure(share_record_lock_duration_ms="15000")
        given = GivenConfig("share.auto.offset.reset", "earliest")
        request = AlterConfigsRequest([GivenResource(GROUP, "g", [given])])
        (found,) = (await rig.ask(ALTER_CONFIGS, 2, request)).responses
        assert found.error_code == 0
        assert await rig.host.call(ReadConfigs("g")) == (0, {"share.auto.offset.reset": "earliest"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("share_isolation_level", "serializable"),
        ("share_auto_offset_reset", "by_duration:PT1H"),
        ("share_record_lock_duration_ms", "999"),
        ("share_record_lock_duration_ms", "3600001"),
        ("share_record_lock_duration_ms", "soon"),
        ("share_session_timeout_ms", "5999"),
        ("share_heartbeat_interval_ms", "45000"),
        ("consumer_session_timeout_ms", "5999"),
        ("consumer_session_timeout_ms", "5000"),
        ("consumer_heartbeat_interval_ms", "45000"),
        ("consumer_assignment_interval_ms", "15001"),
        ("consumer_assignment_interval_ms", "-1"),
        ("share_delivery_count_limit", "1"),
        ("share_delivery_count_limit", "11"),
        ("share_partition_max_record_locks", "99"),
        ("share_partition_max_record_locks", "10001"),
        ("share_renew_acknowledge_enable", "yes"),
        ("streams_session_timeout_ms", "5000"),
        ("streams_heartbeat_interval_ms", "45000"),
        ("streams_num_standby_replicas", "3"),
        ("streams_initial_rebalance_delay_ms", "-1"),
        ("no_such", "1"),
    ],
)
async def test_group_configs_that_cannot_be_are_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    async with shares(tmp_path) as rig:
        code, message = await rig.configure(**{name: text})
        assert code == ErrorCode.INVALID_CONFIG
        assert name.replace("_", ".") in (message or "")
        assert await rig.host.call(ReadConfigs("g")) == (0, {})


# ── Listing, describing, deleting ────────────────────────────────────────────────────────────
async def test_share_groups_are_listed_and_described(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await rig.stream()
        await rig.joined("t")
        (listed,) = (await rig.ask(LIST, 5, ListGroupsRequest(types_filter=["share"]))).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "share")
        assert (listed.group_state, listed.group_type) == ("Stable", "share")
        request = ShareGroupDescribeRequest(["g", "none"], True)
        found, missing = (await rig.ask(DESCRIBE, 1, request)).groups
        assert (missing.error_code, missing.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")
        assert (found.group_state, found.assignor_name) == ("Stable", "simple")
        assert found.group_epoch == found.assignment_epoch == 1
        (member,) = found.members
        assert (member.member_id, member.client_id) == ("m", "m")
        assert list(member.subscribed_topic_names) == ["t"]
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, list(assigned.partitions)) == ("t", [0])


async def test_a_deleted_share_group_forgets_where_it_was(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a")
        request = DeleteGroupsRequest(["g"])
        (found,) = (await rig.ask(DELETE_GROUPS, 2, request)).results
        assert found.error_code == ErrorCode.NON_EMPTY_GROUP
        assert rig.context.anywhere.find_share(topic, "g") is not None
        await member.beat(epoch=-1)
        (found,) = (await rig.ask(DELETE_GROUPS, 2, request)).results
        assert found.error_code == 0
        assert rig.context.anywhere.find_share(topic, "g") is None
        (found,) = (await rig.ask(DELETE_GROUPS, 2, request)).results
        assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# ── Offsets ──────────────────────────────────────────────────────────────────────────────────
async def with_three(rig: ShareRig) -> Topic:
    """Three records of which the group has finished with the first, and no members."""
    topic = await rig.stream()
    member = await rig.joined("t")
    await rig.send(topic, b"a", b"b", b"c")
    assert rig.acquired(await member.fetch(topic)) == [(0, 2, 1)]
    await member.acknowledge(topic, [(0, 0, (1,))], epoch=-1)
    await member.beat(epoch=-1)
    return topic


async def test_offsets_tell_how_far_a_group_has_come(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await with_three(rig)
        await rig.stream("never")
        assert await offsets(rig) == [("t", 0, 1, 2, 0)]
        assert await offsets(rig, version=0) == [("t", 0, 1, -1, 0)]
        asked = ("t", [0, 7]), ("never", [0]), ("none", [0])
        assert await offsets(rig, *asked) == [
            ("t", 0, 1, 2, 0),
            ("t", 7, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("never", 0, -1, -1, 0),
            ("none", 0, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert await offsets(rig, group="nobody") == []
        assert await offsets(rig, ("t", [0]), group="nobody") == [("t", 0, -1, -1, 0)]


async def test_a_group_without_members_begins_anew_where_it_is_told_to(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await with_three(rig)
        assert await restart(rig, 0) == 0
        assert await offsets(rig) == [("t", 0, 0, 3, 0)]
        member = await rig.joined("t")
        assert rig.acquired(await member.fetch(topic)) == [(0, 2, 1)]
        assert await restart(rig, 0) == ErrorCode.NON_EMPTY_GROUP
        await member.beat(epoch=-1)
        assert await restart(rig, -5 - rig.base) == ErrorCode.INVALID_REQUEST
        assert await restart(rig, 0, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await restart(rig, 0, partition=4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_group_can_be_told_where_to_begin_in_a_topic_it_never_read(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await with_three(rig)
        other = await rig.stream("other")
        await rig.send(other, b"x", b"y")
        assert await restart(rig, 1, topic="other") == 0
        member = await rig.joined("other")
        assert values(await member.fetch(other)) == [b"y"]


async def test_a_group_without_members_forgets_topics(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await with_three(rig)
        names = [DeleteShareGroupOffsetsRequestTopic(name) for name in ("t", "none")]
        request = DeleteShareGroupOffsetsRequest("g", names)
        found = await rig.ask(DELETE_OFFSETS, 0, request)
        codes = [(each.topic_name, each.error_code) for each in found.responses]
        assert codes == [("t", 0), ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert rig.context.anywhere.find_share(topic, "g") is None
        assert await offsets(rig) == []
        member = await rig.joined("t")
        found = await rig.ask(DELETE_OFFSETS, 0, request)
        assert found.error_code == ErrorCode.NON_EMPTY_GROUP
        await member.beat(epoch=-1)
        found = await rig.ask(DELETE_OFFSETS, 0, DeleteShareGroupOffsetsRequest("none", names))
        assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
