"""Handles ListGroups, DeleteGroups and the four APIs that describe groups with their members. Each
of these four finds groups of one kind only. A group is not described if it reads topics that the
caller may not describe, unless it is a classic group."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import astuple

from penstock.cursor.coordinator_calls import DeleteGroup, DescribeGroup, ListGroups
from penstock.cursor.groups.assignors import Partitions, to_map
from penstock.cursor.groups.classic.classic_state import State
from penstock.cursor.groups.decision import Description, MemberDescription
from penstock.cursor.groups.records import InternalTopic, StreamsMemberValue
from penstock.cursor.groups.streams.streams_requests import topic_names
from penstock.cursor.groups.streams.task_assignor import maps_by_role
from penstock.frontend.kafka import permissions
from penstock.frontend.kafka.checks import check_group, find_id, id_of
from penstock.frontend.kafka.context import Handler, KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, api_error
from penstock.frontend.kafka.shares.share_groups import check_share_group, shared_topics
from penstock.model.calls import CloseShare
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import consumer_group_describe as consumer_wire
from penstock.wire.kafka.generated import delete_groups as delete_wire
from penstock.wire.kafka.generated import describe_groups as classic_wire
from penstock.wire.kafka.generated import list_groups as list_wire
from penstock.wire.kafka.generated import share_group_describe as share_wire
from penstock.wire.kafka.generated import streams_group_describe as streams_wire

_MISSING_IS_ERROR_FROM = 6  # version of DescribeGroups
_MEMBER_TYPE_CONSUMER = 1  # as opposed to a classic member that is being converted


async def list_groups(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    """Return the groups that the caller may describe, filtered by state (from version 4 on) and
    type (from version 5 on). A caller who may describe the cluster sees all groups."""
    sees_all = permissions.on_cluster(call, permissions.Operation.DESCRIBE)
    code, found = await call.context.groups.call(
        ListGroups(states=request.states_filter, kinds=request.types_filter)
    )
    return list_wire.Response(
        error_code=code,
        groups=[
            list_wire.ListedGroup(*astuple(each))
            async for each in call.slices.each(found)
            if sees_all or permissions.on_group(call, permissions.Operation.DESCRIBE, each.group_id)
        ],
    )


class _Lookup(NamedTuple):
    group_id: str
    found: Description | None = None
    operations: int = permissions.UNASKED
    code: int = ErrorCode.NONE
    message: str | None = None


async def _look_up(call: KafkaCall, request: Any, kind: str) -> list[_Lookup]:
    lookups = []
    group_ids = request.groups if kind == "classic" else request.group_ids
    async for group_id in call.slices.each(dict.fromkeys(group_ids)):
        if not permissions.on_group(call, permissions.Operation.DESCRIBE, group_id):
            denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
            lookups.append(_Lookup(group_id, code=denied, message=denied.message))
            continue
        operations = permissions.UNASKED
        if request.include_authorized_operations:
            operations = permissions.group_operations(call, group_id)
        found = await call.context.groups.call(DescribeGroup(group_id))
        if found.code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            lookups.append(_Lookup(group_id, code=found.code))
        elif found.code or found.kind != kind:
            text = "not found." if found.code else f"is not a {kind} group."
            code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {text}"
            lookups.append(_Lookup(group_id, None, operations, code, message))
        elif await _may_describe_topics(call, found):
            lookups.append(_Lookup(group_id, found, operations))
        else:
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            lookups.append(_Lookup(group_id, code=denied, message=denied.message))
    return lookups


async def _may_describe_topics(call: KafkaCall, group: Description) -> bool:
    if call.caller.is_trusted:
        return True
    names: set[str] = set()

    def add(partitions: Partitions) -> None:
        names.update(topic.name for topic, _ in _topics(call.context, partitions))

    async for member in call.slices.each((*group.consumer_members, *group.share_members)):
        names.update(member.metadata.topic_names)
        add(member.assigned)
        add(member.target)
    if group.topology is not None:
        names.update(topic_names(group.topology))
    async for name in call.slices.each(names):
        if not permissions.on_topic(call, permissions.Operation.DESCRIBE, name):
            return False
    return True


def _topics(context: KafkaContext, partitions: Partitions) -> Iterator[tuple[Topic, Sequence[int]]]:
    """Yield each topic with its partition indexes. Deleted topics have no name and are left out."""
    for topic_id, indexes in to_map(partitions).items():
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None:
            yield topic, indexes


async def classic(call: KafkaCall, request: classic_wire.Request) -> classic_wire.Response:
    """Describe classic groups. An unknown group gets state Dead and, since version 6, an error."""
    groups = []
    for group_id, found, operations, code, message in await _look_up(call, request, "classic"):
        if found is not None:
            group = classic_wire.DescribedGroup(
                group_id=group_id,
                group_state=found.state,
                protocol_type=found.protocol_type,
                protocol_data=found.protocol,
                members=[
                    classic_wire.DescribedGroupMember(*astuple(each))
                    for each in found.classic_members
                ],
                authorized_operations=operations,
            )
        elif code != ErrorCode.GROUP_ID_NOT_FOUND:
            group = classic_wire.DescribedGroup(code, message, group_id)
        else:
            is_error = call.version >= _MISSING_IS_ERROR_FROM
            group = classic_wire.DescribedGroup(
                error_code=code if is_error else ErrorCode.NONE,
                error_message=f"There is no classic group {group_id}." if is_error else None,
                group_id=group_id,
                group_state=State.DEAD,
                authorized_operations=operations,
            )
        groups.append(group)
    return classic_wire.Response(groups=groups)


def _describer(
    kind: str, wire: Any, members: Callable[[KafkaCall, Description], Awaitable[dict[str, Any]]]
) -> Handler:
    """Return a handler that describes groups of one kind (not classic). ``members`` returns the
    fields of the reply that differ between kinds."""

    async def describe(call: KafkaCall, request: Any) -> Any:
        groups = []
        async for lookup in call.slices.each(await _look_up(call, request, kind)):
            found = lookup.found
            if found is None:
                groups.append(wire.DescribedGroup(lookup.code, lookup.message, lookup.group_id))
                continue
            groups.append(
                wire.DescribedGroup(
                    group_id=found.group_id,
                    group_state=found.state,
                    group_epoch=found.epoch,
                    assignment_epoch=found.target_epoch,
                    authorized_operations=lookup.operations,
                    **await members(call, found),
                )
            )
        return wire.Response(groups=groups)

    return describe


def _assignment(call: KafkaCall, wire: Any, partitions: Partitions) -> Any:
    topics, kind = _topics(call.context, partitions), wire.TopicPartitions
    return wire.Assignment([kind(id_of(topic), topic.name, indexes) for topic, indexes in topics])


async def _consumers(call: KafkaCall, found: Description) -> dict[str, Any]:
    members = [
        consumer_wire.Member(
            member_id=member.member_id,
            instance_id=member.metadata.instance_id,
            rack_id=member.metadata.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.metadata.client_id,
            client_host=member.metadata.client_host,
            subscribed_topic_names=member.metadata.topic_names,
            subscribed_topic_regex=member.metadata.topic_regex or "",
            assignment=_assignment(call, consumer_wire, member.assigned),
            target_assignment=_assignment(call, consumer_wire, member.target),
            member_type=_MEMBER_TYPE_CONSUMER,
        )
        for member in found.consumer_members
    ]
    return {"assignor_name": found.assignor, "members": members}


async def _sharers(call: KafkaCall, found: Description) -> dict[str, Any]:
    members = [
        share_wire.Member(
            member_id=member.member_id,
            rack_id=member.metadata.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.metadata.client_id,
            client_host=member.metadata.client_host,
            subscribed_topic_names=member.metadata.topic_names,
            assignment=_assignment(call, share_wire, member.assigned),
        )
        for member in found.share_members
    ]
    return {"assignor_name": found.assignor, "members": members}


async def _streams(call: KafkaCall, found: Description) -> dict[str, Any]:
    def infos(topics: Sequence[InternalTopic]) -> list[streams_wire.TopicInfo]:
        return [
            streams_wire.TopicInfo(
                topic.name,
                found.partition_counts.get(topic.name, topic.partition_count),
                topic.replicas,
                [streams_wire.KeyValue(*config) for config in topic.configs],
            )
            for topic in topics
        ]

    topology = None
    if found.topology is not None:
        parts = [
            streams_wire.Subtopology(
                part.subtopology_id,
                part.sources,
                part.repartition_sinks,
                infos(part.changelogs),
                infos(part.repartition_sources),
            )
            async for part in call.slices.each(found.topology.subtopologies)
        ]
        topology = streams_wire.Topology(found.topology.epoch, parts)
    members = [_streams_member(each) async for each in call.slices.each(found.streams_members)]
    return {"topology": topology, "members": members}


def _streams_member(member: MemberDescription[StreamsMemberValue]) -> streams_wire.Member:
    metadata, endpoint = member.metadata, member.metadata.endpoint
    return streams_wire.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=None if endpoint is None else streams_wire.Endpoint(*endpoint),
        client_tags=[streams_wire.KeyValue(*tag) for tag in metadata.client_tags],
        assignment=_tasks(member.assigned),
        target_assignment=_tasks(member.target),
    )


def _tasks(tasks: Partitions) -> streams_wire.Assignment:
    active, standby = (
        [streams_wire.TaskIds(*each) for each in role.items()] for role in maps_by_role(tasks)
    )
    return streams_wire.Assignment(active, standby)


consumer: Final = _describer("consumer", consumer_wire, _consumers)
share: Final = _describer("share", share_wire, _sharers)
streams: Final = _describer("streams", streams_wire, _streams)


async def delete_groups(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    """Delete groups that have no members, together with their offsets or lease cursors."""
    results = []
    async for group_id in call.slices.each(dict.fromkeys(request.groups_names)):
        try:
            check_group(call, permissions.Operation.DELETE, group_id)
            # Shares (lease cursors) are closed, so that a later group does not find them.
            if await check_share_group(
                call.context, group_id, must_be_empty=True, may_be_other=True
            ):
                for topic in shared_topics(call.context, group_id):
                    await call.context.anywhere.call(CloseShare(topic, group_id))
            code = (await call.context.groups.call(DeleteGroup(group_id))).code
        except API_ERRORS as error:
            code = api_error(error).code
        results.append(delete_wire.DeletableGroupResult(group_id, code))
    return delete_wire.Response(results=results)
