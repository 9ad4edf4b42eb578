"""Streams groups as bytes in and out: topologies, internal topics, replies and descriptions."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.broker.stage import on_stage
from tests.unit.frontend_kafka.test_usage_and_audit import noted, trail_on
from tests.unit.frontend_kafka_groups.stage import (
    CONSUMER_DESCRIBE,
    DELETE,
    DESCRIBE,
    LIST,
    SETTINGS,
    GroupRig,
    groups,
)

from penstock.cursor.coordinator_calls import ChangeConfigs
from penstock.cursor.groups.settings import STREAMS_DELAY
from penstock.frontend.kafka.config import PARTITIONS_MAX
from penstock.frontend.kafka.connection import entries_in, requests_in
from penstock.model.levels import STREAMS_GROUPS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import streams_group_describe as shown
from penstock.wire.kafka.generated import streams_group_heartbeat as beats
from penstock.wire.kafka.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.kafka.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.kafka.generated.describe_groups import DescribeGroupsRequest
from penstock.wire.kafka.generated.list_groups import ListGroupsRequest

HEARTBEAT, STREAMS_DESCRIBE = 88, 89
COMPACT = (beats.KeyValue("cleanup.policy", "compact"),)


def counting(**more: object) -> beats.Topology:
    """Words are counted, by way of a repartition topic."""
    return beats.Topology(
        0,
        [
            beats.Subtopology(
                "1",
                state_changelog_topics=[beats.TopicInfo("counts", topic_configs=COMPACT)],
                repartition_source_topics=[
                    beats.TopicInfo("by-word", topic_configs=[beats.KeyValue("retention.ms", "-1")])
                ],
                **more,  # type: ignore[arg-type]
            ),
            beats.Subtopology("0", ["lines"], repartition_sink_topics=["by-word"]),
        ],
    )


async def beat(
    rig: GroupRig, epoch: int = 0, *, member: str = "m", **fields: object
) -> beats.StreamsGroupHeartbeatResponse:
    is_join = epoch == 0
    values: dict[str, object] = {
        "rebalance_timeout_ms": 10_000 if is_join else -1,
        "topology": counting() if is_join else None,
        "active_tasks": [] if is_join else None,
        "standby_tasks": [] if is_join else None,
        "warmup_tasks": [] if is_join else None,
        "process_id": "p" if is_join else None,
        **fields,
    }
    request = beats.StreamsGroupHeartbeatRequest("g", member, epoch, -1, **values)  # type: ignore[arg-type]
    found = await rig.ask(HEARTBEAT, 0, request)
    assert isinstance(found, beats.StreamsGroupHeartbeatResponse)
    return found


def tasks(
    found: Sequence[beats.StreamsGroupHeartbeatResponseTaskIds] | None,
) -> list[tuple[str, list[int]]] | None:
    if found is None:
        return None
    return [(each.subtopology_id, list(each.partitions)) for each in found]


def statuses(found: beats.StreamsGroupHeartbeatResponse) -> list[tuple[int, str]]:
    return [(each.status_code, each.status_detail) for each in found.status or ()]


async def test_internal_topics_are_created_with_their_configs() -> None:
    async with groups() as rig:
        await rig.topic("lines", partitions=2)
        joined = await beat(rig)
        assert (joined.error_code, joined.member_id) == (0, "m")
        assert statuses(joined) == [(3, "Internal topics are missing: by-word, counts")]
        assert tasks(joined.active_tasks) == []
        made = {topic.name: topic for topic in rig.catalog.all_topics()}
        assert made["counts"].partition_count == made["by-word"].partition_count == 2
        assert made["counts"].configs["cleanup.policy"] == "compact"
        assert made["by-word"].configs["retention.ms"] == "-1"
        ready = await beat(rig, joined.member_epoch)
        assert statuses(ready) == []
        assert tasks(ready.active_tasks) == [("0", [0, 1]), ("1", [0, 1])]
        assert (tasks(ready.standby_tasks), list(ready.warmup_tasks or ())) == ([], [])
        assert ready.heartbeat_interval_ms == 5_000
        again = await beat(rig, ready.member_epoch)
        assert (again.active_tasks, again.standby_tasks, again.warmup_tasks) == (None, None, None)
        left = await beat(rig, -1)
        assert (left.error_code, left.member_epoch, left.status) == (0, -1, ())


async def test_a_topic_that_cannot_be_created_is_told_with_the_reason() -> None:
    async with groups() as rig:
        await rig.topic("lines", partitions=2)
        topics = [
            beats.TopicInfo(f"counts-{number}", topic_configs=[beats.KeyValue("no.such", "1")])
            for number in range(5)
        ]
        part = beats.Subtopology("0", ["lines"], state_changelog_topics=topics)
        ((code, detail),) = statuses(await beat(rig, topology=beats.Topology(0, [part])))
        assert code == 3
        assert detail.startswith(
            "Internal topics are missing: counts-0, counts-1, counts-2 and 2 additional topics;"
            " Creation failed: counts-0 ("
        )
        assert detail.endswith(" and 2 more.")
        many = beats.TopicInfo("many", PARTITIONS_MAX + 1)
        parts = [
            beats.Subtopology("0", ["lines"], repartition_sink_topics=["many"]),
            beats.Subtopology("1", repartition_source_topics=[many]),
        ]
        found = await beat(rig, member="n", topology=beats.Topology(1, parts))
        assert found.error_code == ErrorCode.INVALID_REQUEST, "another topology"


async def test_a_heartbeat_that_creates_topics_is_in_the_audit_trail(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail, groups() as rig:
            rig.context.audit = trail
            await rig.topic("lines", partitions=2)
            bad = beats.TopicInfo("bad", topic_configs=[beats.KeyValue("no.such", "1")])
            good = beats.TopicInfo("good", topic_configs=COMPACT)
            part = beats.Subtopology("0", ["lines"], state_changelog_topics=[bad, good])
            joined = await beat(rig, topology=beats.Topology(0, [part]))
            await beat(rig, joined.member_epoch)
        found = await noted(stage)
    shown = [(each.action, each.resource.rpartition(":")[2], each.error_code) for each in found]
    assert shown == [
        ("kafka:CreateTopic", "bad", "INVALID_CONFIG"),
        ("kafka:CreateTopic", "good", ""),
        ("kafka:CreateTopic", "bad", "INVALID_CONFIG"),
    ], "heartbeats that create nothing are not there"
    assert found[1].params == {"partitions": 2, "configs": {"cleanup.policy": "compact"}}


async def test_the_replication_factor_is_checked() -> None:
    async with groups() as rig:
        await rig.topic("lines")
        topic = beats.TopicInfo("counts", replication_factor=3)
        part = beats.Subtopology("0", ["lines"], state_changelog_topics=[topic])
        ((_, detail),) = statuses(await beat(rig, topology=beats.Topology(0, [part])))
        assert "The replication factor must be 1, as there is one node; it is 3." in detail


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            [beats.Subtopology("0", ["__groups"])],
            "Use of Kafka internal topics __groups in a Kafka Streams topology is prohibited.",
        ),
        ([beats.Subtopology("0", ["a/b"])], "Topic names a/b are not valid topic names."),
        (
            [beats.Subtopology("0", [f"t-{number}" for number in range(1_001)])],
            "The topology has 1,001 topics; at most 1,000 are allowed: split the application.",
        ),
        (
            [beats.Subtopology("0", ["a"]), beats.Subtopology("0", ["b"])],
            "Two subtopologies have the same id.",
        ),
        (
            [beats.Subtopology("0", ["a"], copartition_groups=[beats.CopartitionGroup([1])])],
            "Subtopology 0 has an invalid copartition index.",
        ),
        (
            [
                beats.Subtopology(
                    "0",
                    ["a"],
                    copartition_groups=[beats.CopartitionGroup(repartition_source_topics=[-1])],
                )
            ],
            "Subtopology 0 has an invalid copartition index.",
        ),
    ],
)
async def test_invalid_topologies_are_rejected(parts: list[beats.Subtopology], text: str) -> None:
    async with groups() as rig:
        found = await beat(rig, topology=beats.Topology(0, parts))
        assert (found.error_code, found.error_message) == (
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            text,
        )


async def test_copartitioned_topics_must_have_the_same_number_of_partitions() -> None:
    async with groups() as rig:
        await rig.topic("a", partitions=2)
        await rig.topic("b", partitions=3)
        part = beats.Subtopology(
            "0", ["a", "b"], copartition_groups=[beats.CopartitionGroup([0, 1])]
        )
        found = await beat(rig, topology=beats.Topology(0, [part]))
        assert statuses(found) == [
            (2, "Following topics do not have the same number of partitions: [{a=2, b=3}]")
        ]


async def test_equal_topologies_may_be_written_in_any_order() -> None:
    async with groups() as rig:
        await rig.topic("lines", partitions=2)
        given = counting()
        await beat(rig)
        turned = beats.Topology(0, list(reversed(list(given.subtopologies))))
        assert (await beat(rig, member="n", topology=turned)).error_code == 0


async def test_unsupported_and_malformed_requests_have_kafkas_texts() -> None:
    async with groups() as rig:
        pattern = beats.Topology(0, [beats.Subtopology("0", ["a"], ["b.*"])])
        for fields, text in (
            ({"instance_id": "i"}, "Static membership is not yet supported."),
            ({"task_offsets": []}, "TaskOffsets are not supported yet."),
            ({"task_end_offsets": []}, "TaskEndOffsets are not supported yet."),
            (
                {"topology": pattern},
                "Regular expressions for source topics are not supported yet.",
            ),
            ({"member": ""}, "MemberId can't be empty."),
        ):
            found = await beat(rig, **fields)
            assert (found.error_code, found.error_message) == (ErrorCode.INVALID_REQUEST, text)
        request = beats.StreamsGroupHeartbeatRequest("", "m", 0)
        empty = await rig.ask(HEARTBEAT, 0, request)
        assert empty.error_message == "GroupId can't be empty."


async def test_a_group_is_described_listed_and_deleted() -> None:
    async with groups() as rig:
        await rig.topic("lines", partitions=2)
        endpoint = beats.StreamsGroupHeartbeatRequestEndpoint("here", 8080)
        tag = beats.KeyValue("zone", "x")
        joined = await beat(rig, user_endpoint=endpoint, client_tags=[tag], rack_id="r")
        ready = await beat(rig, joined.member_epoch)
        (told,) = ready.partitions_by_user_endpoint or ()
        assert (told.user_endpoint.host, told.user_endpoint.port) == ("here", 8080)
        assert [(each.topic, list(each.partitions)) for each in told.active_partitions] == [
            ("lines", [0, 1]),
            ("by-word", [0, 1]),
        ]
        (group,) = (
            await rig.ask(STREAMS_DESCRIBE, 0, shown.StreamsGroupDescribeRequest(["g"]))
        ).groups
        check_described(group)
        for key, version, request in (
            (CONSUMER_DESCRIBE, 1, ConsumerGroupDescribeRequest(["g"])),
            (DESCRIBE, 6, DescribeGroupsRequest(["g"])),
        ):
            (other,) = (await rig.ask(key, version, request)).groups
            assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        found = await rig.ask(LIST, 5, ListGroupsRequest(types_filter=["streams"]))
        assert [
            (g.group_id, g.protocol_type, g.group_state, g.group_type) for g in found.groups
        ] == [("g", "streams", "Stable", "streams")]
        for code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            (gone,) = (await rig.ask(DELETE, 2, DeleteGroupsRequest(["g"]))).results
            assert gone.error_code == code
            await beat(rig, -1)
        (group,) = (
            await rig.ask(STREAMS_DESCRIBE, 0, shown.StreamsGroupDescribeRequest(["g"]))
        ).groups
        assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")


def check_described(group: shown.DescribedGroup) -> None:
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert group.group_epoch == group.assignment_epoch == 3
    assert group.topology is not None
    zero, one = group.topology.subtopologies or ()
    assert (list(zero.source_topics), list(zero.repartition_sink_topics)) == (
        ["lines"],
        ["by-word"],
    )
    (changelog,), (repartition,) = one.state_changelog_topics, one.repartition_source_topics
    assert (changelog.name, changelog.partitions) == ("counts", 2)
    assert [(each.key, each.value) for each in changelog.topic_configs] == [
        ("cleanup.policy", "compact")
    ]
    assert (repartition.name, repartition.partitions) == ("by-word", 2)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.process_id) == ("m", 3, "p")
    assert (member.rack_id, member.instance_id, member.is_classic) == ("r", None, False)
    assert member.user_endpoint == shown.Endpoint("here", 8080)
    assert list(member.client_tags) == [shown.KeyValue("zone", "x")]
    for assignment in (member.assignment, member.target_assignment):
        assert [
            (each.subtopology_id, list(each.partitions)) for each in assignment.active_tasks
        ] == [
            ("0", [0, 1]),
            ("1", [0, 1]),
        ]


async def test_below_its_feature_level_there_are_no_streams_groups() -> None:
    async with groups() as rig:
        rig.host._level = lambda: STREAMS_GROUPS - 1
        await rig.topic("lines")
        found = await beat(rig)
        assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "need feature level 5" in (found.error_message or "")
        listed = await rig.ask(LIST, 5, ListGroupsRequest())
        assert list(listed.groups) == []


async def test_the_first_assignment_waits_as_configured() -> None:
    async with groups(SETTINGS) as rig:
        await rig.topic("lines", partitions=2)
        await rig.host.call(ChangeConfigs("g", {STREAMS_DELAY: "60000"}))
        joined = await beat(rig)
        assert [code for code, _ in statuses(joined)] == [5, 3]
        assert joined.member_epoch == 1


def test_a_request_counts_by_the_entries_of_its_topology() -> None:
    parts = [beats.Subtopology(f"{number}", ["t"] * 10) for number in range(50)]
    request = beats.StreamsGroupHeartbeatRequest("g", "m", 0, topology=beats.Topology(0, parts))
    assert entries_in(request) == 500
    assert requests_in(request, 10_000) == 5
    assert entries_in(beats.StreamsGroupHeartbeatRequest("g", "m", 1)) == 0
