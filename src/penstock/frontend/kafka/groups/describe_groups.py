"""ListGroups and DeleteGroups, and the four APIs that describe groups with their members. Each of
the four describes groups of one kind and does not find other groups. A group that reads topics that
the caller may not describe is not described, unless it is a classic group."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import astuple

from penstock.cursor.coordinator_calls import DeleteGroup, DescribeGroup, ListGroups
from penstock.cursor.groups.assignors import Partitions, to_map
from penstock.cursor.groups.classic.classic_state import State
from penstock.cursor.groups.decision import Description, MemberDescription
from penstock.cursor.groups.records import InternalTopic, StreamsMemberValue, TopologyValue
from penstock.cursor.groups.streams.streams_requests import topic_names
from penstock.cursor.groups.streams.task_assignor import maps_by_role
from penstock.frontend.kafka import permissions
from penstock.frontend.kafka.checks import check_group, find_id, id_of
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error
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
G = TypeVar("G")
_MEMBER_TYPE_CONSUMER = 1  # as opposed to a classic member that is being converted


async def list_groups(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    """Return the groups that the caller may describe, filtered by state (version 4) and type
    (version 5). A caller who may describe the cluster sees all groups."""
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
            lookups.append(_denied(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id))
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
            lookups.append(_denied(ErrorCode.TOPIC_AUTHORIZATION_FAILED, group_id))
    return lookups


def _denied(code: ErrorCode, group_id: str) -> _Lookup:
    return _Lookup(group_id, code=code, message=code.message)


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
    """Yield topics with partition indexes, without deleted topics, whose names are unknown."""
    for topic_id, indexes in to_map(partitions).items():
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None:
            yield topic, indexes


async def classic(call: KafkaCall, request: classic_wire.Request) -> classic_wire.Response:
    """Describe classic groups. An unknown group is Dead, and has an error from version 6 on."""
    is_missing_error = call.version >= _MISSING_IS_ERROR_FROM
    return classic_wire.Response(
        groups=[
            _classic(lookup, is_missing_error=is_missing_error)
            for lookup in await _look_up(call, request, "classic")
        ]
    )


def _classic(lookup: _Lookup, *, is_missing_error: bool) -> classic_wire.DescribedGroup:
    found, group_id = lookup.found, lookup.group_id
    if found is not None:
        return classic_wire.DescribedGroup(
            group_id=group_id,
            group_state=found.state,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol,
            members=[
                classic_wire.DescribedGroupMember(*astuple(each)) for each in found.classic_members
            ],
            authorized_operations=lookup.operations,
        )
    if lookup.code != ErrorCode.GROUP_ID_NOT_FOUND:
        return classic_wire.DescribedGroup(lookup.code, lookup.message, group_id)
    return classic_wire.DescribedGroup(
        error_code=lookup.code if is_missing_error else ErrorCode.NONE,
        error_message=f"There is no classic group {group_id}." if is_missing_error else None,
        group_id=group_id,
        group_state=State.DEAD,
        authorized_operations=lookup.operations,
    )


async def _described(
    call: KafkaCall,
    request: Any,
    kind: str,
    group: Callable[..., G],
    members: Callable[[KafkaCall, Description], Awaitable[Mapping[str, Any]]],
) -> list[G]:
    """Describe groups of a kind other than classic. ``members`` returns the fields of this kind."""
    groups = []
    async for lookup in call.slices.each(await _look_up(call, request, kind)):
        found = lookup.found
        if found is None:
            groups.append(group(lookup.code, lookup.message, lookup.group_id))
            continue
        groups.append(
            group(
                group_id=found.group_id,
                group_state=found.state,
                group_epoch=found.epoch,
                assignment_epoch=found.target_epoch,
                authorized_operations=lookup.operations,
                **await members(call, found),
            )
        )
    return groups


async def consumer(call: KafkaCall, request: consumer_wire.Request) -> consumer_wire.Response:
    kind = consumer_wire.DescribedGroup
    return consumer_wire.Response(
        groups=await _described(call, request, "consumer", kind, _consumers)
    )


async def _consumers(call: KafkaCall, found: Description) -> dict[str, Any]:
    def assignment(partitions: Partitions) -> consumer_wire.Assignment:
        return consumer_wire.Assignment(
            [
                consumer_wire.TopicPartitions(id_of(topic), topic.name, indexes)
                for topic, indexes in _topics(call.context, partitions)
            ]
        )

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
            assignment=assignment(member.assigned),
            target_assignment=assignment(member.target),
            member_type=_MEMBER_TYPE_CONSUMER,
        )
        for member in found.consumer_members
    ]
    return {"assignor_name": found.assignor, "members": members}


async def share(call: KafkaCall, request: share_wire.Request) -> share_wire.Response:
    kind = share_wire.DescribedGroup
    return share_wire.Response(groups=await _described(call, request, "share", kind, _sharers))


async def _sharers(call: KafkaCall, found: Description) -> dict[str, Any]:
    members = [
        share_wire.Member(
            member_id=member.member_id,
            rack_id=member.metadata.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.metadata.client_id,
            client_host=member.metadata.client_host,
            subscribed_topic_names=member.metadata.topic_names,
            assignment=share_wire.Assignment(
                [
                    share_wire.TopicPartitions(id_of(topic), topic.name, indexes)
                    for topic, indexes in _topics(call.context, member.assigned)
                ]
            ),
        )
        for member in found.share_members
    ]
    return {"assignor_name": found.assignor, "members": members}


async def streams(call: KafkaCall, request: streams_wire.Request) -> streams_wire.Response:
    kind = streams_wire.DescribedGroup
    return streams_wire.Response(groups=await _described(call, request, "streams", kind, _streams))


async def _streams(call: KafkaCall, found: Description) -> dict[str, Any]:
    topology, counts = found.topology, found.partition_counts
    members = [_streams_member(each) async for each in call.slices.each(found.streams_members)]
    return {
        "topology": None if topology is None else await _topology(call, topology, counts),
        "members": members,
    }


async def _topology(
    call: KafkaCall, topology: TopologyValue, counts: Mapping[str, int]
) -> streams_wire.Topology:
    def infos(topics: Sequence[InternalTopic]) -> list[streams_wire.TopicInfo]:
        return [
            streams_wire.TopicInfo(
                topic.name,
                counts.get(topic.name, topic.partition_count),
                topic.replicas,
                [streams_wire.KeyValue(*config) for config in topic.configs],
            )
            for topic in topics
        ]

    return streams_wire.Topology(
        topology.epoch,
        [
            streams_wire.Subtopology(
                part.subtopology_id,
                part.sources,
                part.repartition_sinks,
                infos(part.changelogs),
                infos(part.repartition_sources),
            )
            async for part in call.slices.each(topology.subtopologies)
        ],
    )


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


async def delete_groups(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    """Delete groups without members, with their offsets or, for share groups, their shares."""
    results = []
    async for group_id in call.slices.each(dict.fromkeys(request.groups_names)):
        try:
            check_group(call, permissions.Operation.DELETE, group_id)
            await _close_shares(call.context, group_id)
            code = (await call.context.groups.call(DeleteGroup(group_id))).code
        except API_ERRORS as error:
            code = api_error(error).code
        results.append(delete_wire.DeletableGroupResult(group_id, code))
    return delete_wire.Response(results=results)


async def _close_shares(context: KafkaContext, group_id: str) -> None:
    """Close the group's shares (its lease cursors), so that a later group does not find them."""
    try:
        await check_share_group(context, group_id, must_be_empty=True)
    except ApiError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return  # the group may be of another kind
        raise
    for topic in shared_topics(context, group_id):
        await context.anywhere.call(CloseShare(topic, group_id))
