"""StreamsGroupHeartbeat: everything a member of a streams group says (KIP-1071), and which tasks it
is told to run.

The coordinator says which internal topics the topology lacks, and they are created here with the
rights of the caller. The reply still says that they are missing; the member's next heartbeat finds
them."""

from collections.abc import Iterable, Sequence
from functools import partial

from penstock.cursor.group.consumer import LEAVE
from penstock.cursor.group.records import InternalTopic, PartitionMap, Subtopology, TopologyValue
from penstock.cursor.group.streams_fold import maps_by_role
from penstock.cursor.group.streams_requests import Endpoint, StreamsHeartbeat, StreamsReply
from penstock.cursor.group.task_assignor import Tasks
from penstock.cursor.group.topology import StatusCode, topic_names
from penstock.frontend.kafka.audited import run_noted
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.new_topic import (
    check_replicas,
    is_topic_name,
    new_stream,
    with_replicas,
)
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_group, on_topic
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.errors import TopicExists
from penstock.model.limits import STREAMS_TOPICS_MAX
from penstock.model.names import is_internal
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import streams_group_heartbeat as wire

KEY = 88
_FAILURES_SHOWN = 3  # as in Kafka
_DENIED = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def run(
    context: KafkaContext, call: KafkaCall, asked: wire.StreamsGroupHeartbeatRequest
) -> wire.StreamsGroupHeartbeatResponse:
    try:
        if not on_group(context, call, Operation.READ, asked.group_id):
            raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not asked.group_id:
            raise Refusal(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        topology = None
        if asked.topology is not None:
            topology = await _topology(call, asked.topology)
            await _check_names(context, call, topology)
    except Refusal as refusal:
        return _refused(refusal.code, refusal.message)
    reply = await context.groups.streams_heartbeat(asked.group_id, _request(call, asked, topology))
    if reply.code:
        return _refused(ErrorCode(reply.code), reply.message)
    note = ""
    if reply.missing and asked.member_epoch != LEAVE:
        note = await _create(context, call, reply.missing)
    return await _response(call, asked, reply, note)


async def _topology(call: KafkaCall, given: wire.Topology) -> TopologyValue:
    """Sorted, so that equal topologies are equal values. Raises Refusal."""
    parts = [_part(each) async for each in call.slices.each(given.subtopologies)]
    parts.sort(key=lambda part: part.subtopology_id)
    if len({part.subtopology_id for part in parts}) < len(parts):
        text = "Two subtopologies have the same id."
        raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    return TopologyValue(given.epoch, tuple(parts))


def _part(given: wire.Subtopology) -> Subtopology:
    copartitions = []
    for group in given.copartition_groups:
        try:
            names = {
                *(given.source_topics[index] for index in _checked(group.source_topics)),
                *(
                    given.repartition_source_topics[index].name
                    for index in _checked(group.repartition_source_topics)
                ),
            }
        except IndexError:
            text = f"A copartition group of subtopology {given.subtopology_id} has a wrong index."
            raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, text) from None
        copartitions.append(tuple(sorted(names)))
    return Subtopology(
        given.subtopology_id,
        _sorted(given.source_topics),
        _internal(given.repartition_source_topics),
        _sorted(given.repartition_sink_topics),
        _internal(given.state_changelog_topics),
        tuple(sorted(copartitions)),
    )


def _checked(indexes: Sequence[int]) -> Sequence[int]:
    if any(index < 0 for index in indexes):
        raise IndexError
    return indexes


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


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


async def _check_names(context: KafkaContext, call: KafkaCall, topology: TopologyValue) -> None:
    """Raises Refusal if the topology has an invalid topic name, too many topics, or a topic that
    the caller may not describe."""
    names = sorted(topic_names(topology))
    if len(names) > STREAMS_TOPICS_MAX:
        text = (
            f"The topology has {len(names):,} topics, at most {STREAMS_TOPICS_MAX:,} are allowed:"
            " split the application."
        )
        raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    owned = [name for name in names if is_internal(name)]
    if owned:
        text = f"Use of Kafka internal topics {','.join(owned)} in a Kafka Streams topology is"
        raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"{text} prohibited.")
    wrong = [name for name in names if not is_topic_name(name)]
    if wrong:
        text = f"Topic names {','.join(wrong)} are not valid topic names."
        raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    for name in names:
        if call.slices.is_over:
            await call.slices.next()
        if not on_topic(context, call, Operation.DESCRIBE, name):
            raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _request(
    call: KafkaCall, asked: wire.StreamsGroupHeartbeatRequest, topology: TopologyValue | None
) -> StreamsHeartbeat:
    parts = () if asked.topology is None else asked.topology.subtopologies
    endpoint, tags = asked.user_endpoint, asked.client_tags
    return StreamsHeartbeat(
        member_id=asked.member_id,
        member_epoch=asked.member_epoch,
        endpoint_epoch=asked.endpoint_information_epoch,
        instance_id=asked.instance_id,
        rack_id=asked.rack_id,
        rebalance_ms=asked.rebalance_timeout_ms,
        topology=topology,
        active=_tasks(asked.active_tasks),
        standby=_tasks(asked.standby_tasks),
        warmup=_tasks(asked.warmup_tasks),
        process_id=asked.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags=None if tags is None else tuple(sorted((t.key, t.value) for t in tags)),
        has_patterns=any(part.source_topic_regex for part in parts),
        has_offsets=asked.task_offsets is not None,
        has_end_offsets=asked.task_end_offsets is not None,
        is_shutdown=asked.shutdown_application,
        client_id=call.client_id,
        client_host=call.client_host,
    )


def _tasks(given: Sequence[wire.StreamsGroupHeartbeatRequestTaskIds] | None) -> Tasks | None:
    if given is None:
        return None
    return frozenset((each.subtopology_id, index) for each in given for index in each.partitions)


async def _create(context: KafkaContext, call: KafkaCall, missing: Sequence[InternalTopic]) -> str:
    """Create topics as CreateTopics does. Returns the reason of failures, to be appended to the
    status."""
    failures: dict[str, Refusal] = {}
    action = KafkaAction(KEY, partial(_create_each, failures))
    if context.audit is None:
        await action.run(context, call, missing)
    else:
        await run_noted(context.audit, context, call, action, missing)
    if not failures:
        return ""
    denied = [name for name, why in failures.items() if why is _DENIED]
    if denied:
        return f"; Unauthorized to CREATE on topics {', '.join(denied)}."
    shown = [f"{name} ({why.message})" for name, why in failures.items()]
    left = len(shown) - _FAILURES_SHOWN
    more = f" and {left} more" if left > 0 else ""
    return f"; Creation failed: {', '.join(shown[:_FAILURES_SHOWN])}{more}."


async def _create_each(
    failures: dict[str, Refusal],
    context: KafkaContext,
    call: KafkaCall,
    missing: Sequence[InternalTopic],
) -> dict[str, int]:
    """Create all topics, or none if the caller may not create one of them. Returns the error codes
    of topics that were created, denied or rejected."""
    if not on_cluster(context, call, Operation.CREATE):
        async for topic in call.slices.each(missing):
            if not on_topic(context, call, Operation.CREATE, topic.name):
                failures[topic.name] = _DENIED
        if failures:
            return dict.fromkeys(failures, _DENIED.code)
    codes: dict[str, int] = {}
    async for topic in call.slices.each(missing):
        try:
            made = new_stream(context, topic.name, topic.partition_count, dict(topic.configs))
            if topic.replicas:
                check_replicas(context, topic.replicas)
                made = with_replicas(context, made, topic.replicas)
            await context.catalog.create(made)
            codes[topic.name] = ErrorCode.NONE
        except TopicExists:  # another member was faster
            continue
        except REFUSALS as error:
            refusal = failures[topic.name] = refusal_of(error)
            codes[topic.name] = refusal.code
    return codes


def _refused(code: ErrorCode, message: str | None) -> wire.StreamsGroupHeartbeatResponse:
    return wire.StreamsGroupHeartbeatResponse(error_code=code, error_message=message, status=())


async def _response(
    call: KafkaCall, asked: wire.StreamsGroupHeartbeatRequest, reply: StreamsReply, note: str
) -> wire.StreamsGroupHeartbeatResponse:
    active, standby = (None, None) if reply.assigned is None else maps_by_role(reply.assigned)
    endpoints = reply.endpoints
    return wire.StreamsGroupHeartbeatResponse(
        member_id=asked.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_ms,
        status=[
            wire.Status(
                each.code,
                each.detail + (note if each.code is StatusCode.MISSING_INTERNAL_TOPICS else ""),
            )
            for each in reply.statuses
        ],
        active_tasks=_task_ids(active),
        standby_tasks=_task_ids(standby),
        warmup_tasks=None if reply.assigned is None else (),
        endpoint_information_epoch=reply.endpoint_epoch,
        partitions_by_user_endpoint=None
        if endpoints is None
        else [_endpoint(each) async for each in call.slices.each(endpoints)],
    )


def _task_ids(tasks: PartitionMap | None) -> list[wire.StreamsGroupHeartbeatResponseTaskIds] | None:
    if tasks is None:
        return None
    return [
        wire.StreamsGroupHeartbeatResponseTaskIds(part, indexes) for part, indexes in tasks.items()
    ]


def _endpoint(endpoint: Endpoint) -> wire.EndpointToPartitions:
    active, standby = endpoint.partitions()
    return wire.EndpointToPartitions(
        wire.StreamsGroupHeartbeatResponseEndpoint(endpoint.host, endpoint.port),
        _partitions(active),
        _partitions(standby),
    )


def _partitions(topics: PartitionMap) -> list[wire.TopicPartition]:
    return [wire.TopicPartition(name, indexes) for name, indexes in topics.items()]


ACTION = KafkaAction(KEY, run)
