"""StreamsGroupHeartbeat: members of streams groups (KIP-1071) send their state and get their tasks.

The handler creates missing internal topics of the topology, with the rights of the caller. The
reply still reports them as missing, and the next heartbeat of the member finds them."""

from collections.abc import Sequence
from functools import partial

from penstock.cursor.coordinator_calls import BeatStreams
from penstock.cursor.groups.assigned import LEAVE
from penstock.cursor.groups.records import InternalTopic, Subtopology, TopologyValue
from penstock.cursor.groups.streams.streams_requests import (
    StatusCode,
    StreamsHeartbeat,
    StreamsReply,
    topic_names,
)
from penstock.cursor.groups.streams.task_assignor import Tasks, maps_by_role
from penstock.frontend.kafka.audit import run_audited
from penstock.frontend.kafka.checks import check_group, check_topic, is_topic_name
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error, invalid_request
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_topic
from penstock.frontend.kafka.topics.changes import new_stream, with_replicas
from penstock.model.errors import TopicExists
from penstock.model.limits import STREAMS_TOPICS_MAX
from penstock.model.names import is_internal
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import streams_group_heartbeat as wire

_FAILURES_SHOWN = 3  # as in Kafka
_DENIED = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    try:
        check_group(call, Operation.READ, request.group_id)
        if not request.group_id:
            raise invalid_request("GroupId can't be empty.")
        topology = None
        if request.topology is not None:
            topology = await _topology(call, request.topology)
    except ApiError as error:
        return wire.Response(error_code=error.code, error_message=error.message, status=())
    parts = () if request.topology is None else request.topology.subtopologies
    endpoint, tags = request.user_endpoint, request.client_tags
    heartbeat = StreamsHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_ms=request.rebalance_timeout_ms,
        topology=topology,
        active=_tasks(request.active_tasks),
        standby=_tasks(request.standby_tasks),
        warmup=_tasks(request.warmup_tasks),
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=None if tags is None else tuple(sorted((t.key, t.value) for t in tags)),
        has_patterns=any(part.source_topic_regex for part in parts),
        has_offsets=request.task_offsets is not None,
        has_end_offsets=request.task_end_offsets is not None,
        is_shutdown=request.shutdown_application,
        client_id=call.client_id,
        client_host=call.client_host,
    )
    reply = await call.context.groups.call(BeatStreams(request.group_id, heartbeat))
    if reply.code:
        return wire.Response(error_code=reply.code, error_message=reply.message, status=())
    note = ""
    if reply.missing and request.member_epoch != LEAVE:
        note = await _create(call, reply.missing)
    return await _response(call, request, reply, note)


async def _topology(call: KafkaCall, given: wire.Topology) -> TopologyValue:
    """Return the topology in sorted order, so that equal topologies compare equal. Raises ApiError
    if it is invalid, too large or has a topic that the caller may not describe."""
    parts = [_part(each) async for each in call.slices.each(given.subtopologies)]
    parts.sort(key=lambda part: part.subtopology_id)
    if len({part.subtopology_id for part in parts}) < len(parts):
        raise _invalid("Two subtopologies have the same id.")
    topology = TopologyValue(given.epoch, tuple(parts))
    names = sorted(topic_names(topology))
    if len(names) > STREAMS_TOPICS_MAX:
        raise _invalid(
            f"The topology has {len(names):,} topics; at most {STREAMS_TOPICS_MAX:,} are allowed:"
            " split the application."
        )
    if owned := [name for name in names if is_internal(name)]:
        raise _invalid(
            f"Use of Kafka internal topics {','.join(owned)} in a Kafka Streams topology is"
            " prohibited."
        )
    if wrong := [name for name in names if not is_topic_name(name)]:
        raise _invalid(f"Topic names {','.join(wrong)} are not valid topic names.")
    async for name in call.slices.each(names):
        check_topic(call, Operation.DESCRIBE, name)
    return topology


def _invalid(reason: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, reason)


def _part(given: wire.Subtopology) -> Subtopology:
    copartitions = []
    repartitioned = [topic.name for topic in given.repartition_source_topics]
    for group in given.copartition_groups:
        names: set[str] = set()
        for topics, indexes in (
            (given.source_topics, group.source_topics),
            (repartitioned, group.repartition_source_topics),
        ):
            if not all(0 <= index < len(topics) for index in indexes):
                raise _invalid(
                    f"Subtopology {given.subtopology_id} has an invalid copartition index."
                )
            names.update(topics[index] for index in indexes)
        copartitions.append(tuple(sorted(names)))
    return Subtopology(
        given.subtopology_id,
        tuple(sorted(set(given.source_topics))),
        _internal(given.repartition_source_topics),
        tuple(sorted(set(given.repartition_sink_topics))),
        _internal(given.state_changelog_topics),
        tuple(sorted(copartitions)),
    )


def _internal(given: Sequence[wire.TopicInfo]) -> tuple[InternalTopic, ...]:
    found = {
        topic.name: InternalTopic(
            topic.name,
            max(topic.partitions, 0),
            max(topic.replication_factor, 0),
            tuple(sorted((config.key, config.value) for config in topic.topic_configs)),
        )
        for topic in given
    }
    return tuple(found[name] for name in sorted(found))


def _tasks(given: Sequence[wire.StreamsGroupHeartbeatRequestTaskIds] | None) -> Tasks | None:
    if given is None:
        return None
    return frozenset((each.subtopology_id, index) for each in given for index in each.partitions)


async def _create(call: KafkaCall, missing: Sequence[InternalTopic]) -> str:
    """Create missing topics. Return an error message for the reply, or "" if none failed."""
    failures: dict[str, ApiError] = {}
    create = partial(_create_each, failures)
    if call.context.audit is None:
        await create(call, missing)
    else:
        await run_audited(call.context.audit, call, create, missing)
    if not failures:
        return ""
    denied = [name for name, error in failures.items() if error is _DENIED]
    if denied:
        return f"; Unauthorized to CREATE on topics {', '.join(denied)}."
    shown = [f"{name} ({error.message})" for name, error in failures.items()]
    left = len(shown) - _FAILURES_SHOWN
    more = f" and {left} more" if left > 0 else ""
    return f"; Creation failed: {', '.join(shown[:_FAILURES_SHOWN])}{more}."


async def _create_each(
    failures: dict[str, ApiError], call: KafkaCall, missing: Sequence[InternalTopic]
) -> dict[str, int]:
    """Create all topics, or none if the caller may not create one of them. Return the error codes
    by topic name, without topics that another member has just created."""
    if not on_cluster(call, Operation.CREATE):
        async for topic in call.slices.each(missing):
            if not on_topic(call, Operation.CREATE, topic.name):
                failures[topic.name] = _DENIED
        if failures:
            return dict.fromkeys(failures, _DENIED.code)
    codes: dict[str, int] = {}
    async for topic in call.slices.each(missing):
        try:
            made = new_stream(call.context, topic.name, topic.partition_count, dict(topic.configs))
            if topic.replicas:
                made = with_replicas(call.context, made, topic.replicas)
            await call.context.catalog.create(made)
            codes[topic.name] = ErrorCode.NONE
        except TopicExists:  # another member was faster
            continue
        except API_ERRORS as error:
            failed = failures[topic.name] = api_error(error)
            codes[topic.name] = failed.code
    return codes


async def _response(
    call: KafkaCall, request: wire.Request, reply: StreamsReply, note: str
) -> wire.Response:
    task_ids = wire.StreamsGroupHeartbeatResponseTaskIds
    active, standby, warmup = None, None, None
    if reply.assigned is not None:
        warmup = list[wire.StreamsGroupHeartbeatResponseTaskIds]()
        active, standby = (
            [task_ids(*each) for each in role.items()] for role in maps_by_role(reply.assigned)
        )
    endpoints = None
    if reply.endpoints is not None:
        endpoints = []
        async for each in call.slices.each(reply.endpoints):
            at = wire.StreamsGroupHeartbeatResponseEndpoint(each.host, each.port)
            maps = ([wire.TopicPartition(*one) for one in of.items()] for of in each.partitions())
            endpoints.append(wire.EndpointToPartitions(at, *maps))
    return wire.Response(
        member_id=request.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_ms,
        status=[
            wire.Status(
                each.code,
                each.detail + (note if each.code is StatusCode.MISSING_INTERNAL_TOPICS else ""),
            )
            for each in reply.statuses
        ],
        active_tasks=active,
        standby_tasks=standby,
        warmup_tasks=warmup,
        endpoint_information_epoch=reply.endpoint_epoch,
        partitions_by_user_endpoint=endpoints,
    )
