"""StreamsGroupDescribe: streams groups with their topology, member by member. A group of another
kind is not there for this API, and of a group with topics that the caller may not describe nothing
is told."""

from collections.abc import Mapping, Sequence

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.describe import Description, StreamsMemberDescription
from penstock.cursor.group.records import InternalTopic, PartitionMap, TopologyValue
from penstock.cursor.group.streams_fold import maps_by_role
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.described_groups import look_up
from penstock.wire.kafka.generated import streams_group_describe as wire

KEY = 89


async def run(
    context: KafkaContext, call: KafkaCall, asked: wire.StreamsGroupDescribeRequest
) -> wire.StreamsGroupDescribeResponse:
    looked_up = await look_up(
        context,
        call,
        asked.group_ids,
        kind="streams",
        wants_operations=asked.include_authorized_operations,
    )
    return wire.StreamsGroupDescribeResponse(
        groups=[
            wire.DescribedGroup(one.code, one.message, one.group_id)
            if one.found is None
            else await _described(call, one.found, one.operations)
            async for one in call.slices.each(looked_up)
        ]
    )


async def _described(call: KafkaCall, found: Description, operations: int) -> wire.DescribedGroup:
    topology, counts = found.topology, found.partition_counts
    return wire.DescribedGroup(
        group_id=found.group_id,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.target_epoch,
        topology=None if topology is None else await _topology(call, topology, counts),
        members=[_member(each) async for each in call.slices.each(found.streams_members)],
        authorized_operations=operations,
    )


async def _topology(
    call: KafkaCall, topology: TopologyValue, counts: Mapping[str, int]
) -> wire.Topology:
    return wire.Topology(
        topology.epoch,
        [
            wire.Subtopology(
                part.subtopology_id,
                part.sources,
                part.repartition_sinks,
                _topics(part.changelogs, counts),
                _topics(part.repartition_sources, counts),
            )
            async for part in call.slices.each(topology.subtopologies)
        ],
    )


def _topics(topics: Sequence[InternalTopic], counts: Mapping[str, int]) -> list[wire.TopicInfo]:
    return [
        wire.TopicInfo(
            topic.name,
            counts.get(topic.name, topic.partition_count),
            topic.replicas,
            [wire.KeyValue(*config) for config in topic.configs],
        )
        for topic in topics
    ]


def _member(member: StreamsMemberDescription) -> wire.Member:
    said = member.metadata
    return wire.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        rack_id=said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        topology_epoch=said.topology_epoch,
        process_id=said.process_id,
        user_endpoint=None if said.endpoint is None else wire.Endpoint(*said.endpoint),
        client_tags=[wire.KeyValue(*tag) for tag in said.client_tags],
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(member.target),
    )


def _assignment(tasks: Partitions) -> wire.Assignment:
    active, standby = maps_by_role(tasks)
    return wire.Assignment(_task_ids(active), _task_ids(standby))


def _task_ids(tasks: PartitionMap) -> list[wire.TaskIds]:
    return [wire.TaskIds(part, indexes) for part, indexes in tasks.items()]


ACTION = KafkaAction(KEY, run)
