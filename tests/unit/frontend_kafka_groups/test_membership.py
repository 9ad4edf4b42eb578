"""Join, sync, heartbeat and leave in all versions; groups of either kind listed and described."""

import asyncio

import pytest
from tests.unit.frontend_kafka_groups.stage import (
    CONSUMER_DESCRIBE,
    CONSUMER_HEARTBEAT,
    DELETE,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    SYNC,
    GroupRig,
    groups,
)

from penstock.cursor.coordinator_calls import DescribeGroup
from penstock.frontend.kafka.groups.membership import METADATA_BYTES_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import consumer_group_heartbeat as beats
from penstock.wire.kafka.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.kafka.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.kafka.generated.describe_groups import DescribeGroupsRequest
from penstock.wire.kafka.generated.heartbeat import HeartbeatRequest
from penstock.wire.kafka.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.kafka.generated.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.kafka.generated.list_groups import ListGroupsRequest
from penstock.wire.kafka.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_in_any_version(version: int) -> None:
    async with groups() as rig:
        first = await rig.join("g", version=version)
        if version >= 4:
            assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
            assert first.member_id.startswith("me-")
            first = await rig.join("g", version=version, member_id=first.member_id)
        assert (first.error_code, first.generation_id) == (0, 1)
        assert first.leader == first.member_id
        assert [member.member_id for member in first.members] == [first.member_id]
        assert first.protocol_name == "range"
        assert first.protocol_type == ("consumer" if version >= 7 else None)


@pytest.mark.parametrize("version", range(10))
async def test_a_refused_join_can_be_written_in_any_version(version: int) -> None:
    async with groups() as rig:
        refused = await rig.join("g", version=version, member_id="stranger")
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert refused.member_id == "stranger"
        assert refused.protocol_name == (None if version >= 7 else "")


async def test_a_static_member_joins_at_once_and_carries_its_name_in_its_id() -> None:
    async with groups() as rig:
        joined = await rig.join("g", version=5, group_instance_id="till-7")
        assert joined.error_code == 0
        assert joined.member_id.startswith("till-7-")
        assert joined.members[0].group_instance_id == "till-7"


async def test_metadata_beyond_the_bound_is_refused() -> None:
    async with groups() as rig:
        request = JoinGroupRequest(
            "g",
            10_000,
            10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", bytes(METADATA_BYTES_MAX + 1))],
        )
        found = await rig.ask(JOIN, 5, request)
        assert found.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(6))
async def test_the_leader_hands_out_shares_in_any_version(version: int) -> None:
    async with groups() as rig:
        joined = await rig.joined("g")
        is_named = version >= 5
        request = SyncGroupRequest(
            "g",
            joined.generation_id,
            joined.member_id,
            protocol_type="consumer" if is_named else None,
            protocol_name="range" if is_named else None,
            assignments=[SyncGroupRequestAssignment(joined.member_id, b"mine")],
        )
        found = await rig.ask(SYNC, version, request)
        assert (found.error_code, found.assignment) == (0, b"mine")
        assert found.protocol_name == ("range" if is_named else None)


async def test_from_version_five_a_sync_must_name_its_protocol() -> None:
    async with groups() as rig:
        joined = await rig.joined("g")
        request = SyncGroupRequest("g", joined.generation_id, joined.member_id)
        found = await rig.ask(SYNC, 5, request)
        assert found.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
async def test_a_heartbeat_tells_of_a_rebalance_in_any_version(version: int) -> None:
    async with groups() as rig:
        joined = await rig.stable("g")
        request = HeartbeatRequest("g", joined.generation_id, joined.member_id)
        assert (await rig.ask(HEARTBEAT, version, request)).error_code == 0
        other = asyncio.create_task(rig.joined("g", version=3))
        while (await rig.host.call(DescribeGroup("g"))).state == "Stable":
            await asyncio.sleep(0)
        found = await rig.ask(HEARTBEAT, version, request)
        assert found.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        other.cancel()
        stranger = HeartbeatRequest("g", joined.generation_id, "stranger")
        found = await rig.ask(HEARTBEAT, version, stranger)
        assert found.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
async def test_a_member_leaves_in_any_version(version: int) -> None:
    async with groups() as rig:
        joined = await rig.stable("g")
        if version < 3:
            request = LeaveGroupRequest("g", joined.member_id)
            stranger = LeaveGroupRequest("g", "stranger")
            assert (await rig.ask(LEAVE, version, stranger)).error_code == 25
            assert (await rig.ask(LEAVE, version, request)).error_code == 0
        else:
            leavers = [MemberIdentity(joined.member_id), MemberIdentity("stranger")]
            found = await rig.ask(LEAVE, version, LeaveGroupRequest("g", members=leavers))
            assert found.error_code == 0
            assert [member.error_code for member in found.members] == [0, 25]
        assert (await rig.host.call(DescribeGroup("g"))).state == "Empty"


# ── Assigned by the coordinator ──────────────────────────────────────────────────────────────


async def beat(
    rig: GroupRig, version: int, **fields: object
) -> beats.ConsumerGroupHeartbeatResponse:
    request = beats.ConsumerGroupHeartbeatRequest(group_id="g", **fields)  # type: ignore[arg-type]
    found = await rig.ask(CONSUMER_HEARTBEAT, version, request)
    assert isinstance(found, beats.ConsumerGroupHeartbeatResponse)
    return found


async def test_version_zero_lets_the_coordinator_choose_the_members_id() -> None:
    async with groups() as rig:
        topic = await rig.topic("orders", partitions=2)
        joined = await beat(
            rig,
            0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
        )
        assert joined.error_code == 0
        assert joined.member_id
        assert joined.assignment is not None
        (share,) = joined.assignment.topic_partitions
        assert (share.topic_id.hex(), list(share.partitions)) == (topic.topic_id, [0, 1])
        owned = [
            beats.ConsumerGroupHeartbeatRequestTopicPartitions(share.topic_id, share.partitions)
        ]
        again = await beat(
            rig,
            0,
            member_id=joined.member_id,
            member_epoch=joined.member_epoch,
            topic_partitions=owned,
        )
        assert (again.error_code, again.assignment) == (0, None)


async def test_from_version_one_the_client_brings_its_id_and_may_bring_a_pattern() -> None:
    async with groups() as rig:
        await rig.topic("orders.eu")
        await rig.topic("bills")
        fields = {"rebalance_timeout_ms": 1_000, "subscribed_topic_regex": "orders.*"}
        refused = await beat(rig, 1, topic_partitions=[], **fields)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert refused.error_message
        joined = await beat(rig, 1, member_id="mine", topic_partitions=[], **fields)
        assert (joined.error_code, joined.member_id) == (0, "mine")
        assert joined.assignment is not None
        assert len(joined.assignment.topic_partitions) == 1


@pytest.mark.parametrize("version", range(2))
async def test_a_group_assigned_here_is_described_with_names(version: int) -> None:
    async with groups() as rig:
        topic = await rig.topic("orders")
        await beat(
            rig,
            1,
            member_id="m",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
        )
        await rig.stable("classic")
        asked = ConsumerGroupDescribeRequest(["g", "classic", "none"], version == 1)
        found = await rig.ask(CONSUMER_DESCRIBE, version, asked)
        described, classic, missing = found.groups
        assert (described.error_code, described.group_state) == (0, "Stable")
        assert described.assignor_name == "uniform"
        assert (described.authorized_operations > 0) == (version == 1)
        (member,) = described.members
        assert member.client_id == "me"
        assert member.member_type == (1 if version >= 1 else -1)
        assert member.subscribed_topic_regex == ""
        for assignment in (member.assignment, member.target_assignment):
            (share,) = assignment.topic_partitions
            assert (share.topic_name, list(share.partitions)) == ("orders", [0])
            assert share.topic_id.hex() == topic.topic_id
        assert classic.error_code == missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert classic.error_message == "Group classic is not a consumer group."
        assert missing.error_message == "Group none not found."


# ── Looking and deleting ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(7))
async def test_a_classic_group_is_described_in_any_version(version: int) -> None:
    async with groups() as rig:
        joined = await rig.stable("g")
        found = await rig.ask(DESCRIBE, version, DescribeGroupsRequest(["g", "none"]))
        described, missing = found.groups
        assert (described.error_code, described.group_state) == (0, "Stable")
        assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
        (member,) = described.members
        assert (member.member_id, member.client_id) == (joined.member_id, "me")
        assert member.member_assignment == b"share"
        assert missing.group_state == "Dead"
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed_and_filtered_as_far_as_the_version_can(version: int) -> None:
    async with groups() as rig:
        await rig.stable("classic")
        await beat(
            rig,
            1,
            member_id="m",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=[],
            topic_partitions=[],
        )
        found = await rig.ask(LIST, version, ListGroupsRequest())
        assert {each.group_id for each in found.groups} == {"classic", "g"}
        if version >= 4:
            none = await rig.ask(LIST, version, ListGroupsRequest(states_filter=["Empty"]))
            assert not none.groups
        if version >= 5:
            some = await rig.ask(LIST, version, ListGroupsRequest(types_filter=["consumer"]))
            assert [(g.group_id, g.group_type) for g in some.groups] == [("g", "consumer")]


@pytest.mark.parametrize("version", range(3))
async def test_only_groups_without_members_are_deleted(version: int) -> None:
    async with groups() as rig:
        joined = await rig.stable("left")
        leave = LeaveGroupRequest("left", members=[MemberIdentity(joined.member_id)])
        await rig.ask(LEAVE, 5, leave)
        await rig.stable("busy")
        asked = DeleteGroupsRequest(["left", "busy", "none"])
        found = await rig.ask(DELETE, version, asked)
        assert [(each.group_id, each.error_code) for each in found.results] == [
            ("left", 0),
            ("busy", ErrorCode.NON_EMPTY_GROUP),
            ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
