"""Handles requests about nodes (DescribeCluster, DescribeQuorum, UnregisterBroker, DescribeLogDirs,
AlterReplicaLogDirs and UpdateFeatures) and about replicas (AlterPartitionReassignments, which moves
partitions to given nodes, ListPartitionReassignments and ElectLeaders).

UpdateFeatures knows only features whose level says which form of a protocol clients may use. Apache
Kafka's ``metadata.version``, ``kraft.version`` and ``eligible.leader.replicas.version`` are not
implemented, because they are about how Kafka's nodes store their metadata.

The first node in a list of replicas is the preferred leader. Moves continue after the reply. A list
with more or fewer nodes than before changes the replication factor of the partition. A list with
fewer nodes than ``min.insync.replicas`` is rejected, because producers could not write then."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.frontend.kafka import checks, permissions
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error, error_fields
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.ports.cluster import NO_LEADER, Election
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.levels import STREAMS_GROUPS
from penstock.model.replication import (
    FACTOR_MAX,
    MANUAL,
    PLACEMENT,
    factor_of,
    is_manual,
    with_factors,
)
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_partition_reassignments as reassign_wire
from penstock.wire.kafka.generated import alter_replica_log_dirs as alter_wire
from penstock.wire.kafka.generated import describe_cluster as cluster_wire
from penstock.wire.kafka.generated import describe_log_dirs as describe_wire
from penstock.wire.kafka.generated import describe_quorum as quorum_wire
from penstock.wire.kafka.generated import elect_leaders as elect_wire
from penstock.wire.kafka.generated import list_partition_reassignments as list_wire
from penstock.wire.kafka.generated import unregister_broker as unregister_wire
from penstock.wire.kafka.generated import update_features as features_wire

_BROKERS = 1
_CONTROLLERS = 2
METADATA_TOPIC = "__cluster_metadata"
_STREAMS: Final = "streams.version"
T = TypeVar("T")
PREFERRED, UNCLEAN = ELECTION_TYPES = (0, 1)


async def describe_cluster(call: KafkaCall, request: cluster_wire.Request) -> cluster_wire.Response:
    context = call.context
    if request.endpoint_type == _CONTROLLERS:
        raise ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE)
    if request.endpoint_type != _BROKERS:
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    brokers = [cluster_wire.DescribeClusterBroker(*broker) for broker in context.brokers.all()]
    if request.include_fenced_brokers:
        stopped = await context.cluster.stopped()
        brokers += [
            cluster_wire.DescribeClusterBroker(*broker, is_fenced=True) for broker in stopped
        ]
    with_operations = request.include_cluster_authorized_operations
    return cluster_wire.Response(
        cluster_id=context.config.cluster_id,
        controller_id=context.brokers.controller,
        brokers=brokers,
        cluster_authorized_operations=permissions.cluster_operations(call)
        if with_operations
        else permissions.UNASKED,
    )


async def describe_quorum(call: KafkaCall, request: quorum_wire.Request) -> quorum_wire.Response:
    """Describe the quorum of Kafka's metadata log. Penstock has no such log: the reply shows the
    manager as leader, all nodes as voters, and the revision of the metadata as end offset."""
    checks.check_cluster(call, Operation.DESCRIBE)
    quorum, code = call.context.cluster.quorum(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    kind = quorum_wire.DescribeQuorumResponsePartitionData
    metadata = kind(
        partition_index=0,
        error_message="",
        leader_id=quorum.leader,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.revision,
        current_voters=[
            quorum_wire.ReplicaState(replica_id=node, log_end_offset=quorum.revision)
            for node in quorum.nodes
        ],
    )

    async def shown(topic: Any, one: Any) -> Any:
        if (topic.topic_name, one.partition_index) == (METADATA_TOPIC, 0):
            return metadata
        return kind(one.partition_index, code, code.message)

    topic_kind = quorum_wire.DescribeQuorumResponseTopicData
    topics = await call.by_topic(request.topics, topic_kind, shown)
    protocol = call.context.config.protocol
    nodes = [
        quorum_wire.Node(at.node_id, (quorum_wire.Listener(protocol, at.host, at.port),))
        for at in call.context.brokers.all()
    ]
    is_about_metadata = any(metadata in topic.partitions for topic in topics)
    return quorum_wire.Response(
        error_message="", topics=topics, nodes=nodes if is_about_metadata else ()
    )


async def unregister(call: KafkaCall, request: unregister_wire.Request) -> unregister_wire.Response:
    """Remove a stopped node. The request is rejected while the node has replicas of partitions."""
    checks.check_cluster(call, Operation.ALTER)
    try:
        await call.context.cluster.unregister(request.broker_id)
    except NotFound as error:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, str(error)) from None
    except API_ERRORS as error:
        raise api_error(error) from None
    return unregister_wire.Response(error_message=None)


class Feature(NamedTuple):
    lowest: int  # lowest level that clients may use
    level: int  # current level, also the highest


_FEATURES: Final[Mapping[str, Feature]] = {
    "group.version": Feature(1, 1),  # consumer groups of KIP-848
    "share.version": Feature(1, 1),  # share groups
    _STREAMS: Feature(1, 1),  # streams groups
    # At level 2, clients raise their epoch with every transaction, and brokers add partitions to
    # transactions. Older clients use level 1.
    "transaction.version": Feature(1, 2),
}


def features(context: KafkaContext) -> Mapping[str, Feature]:
    """Return Kafka's features by name. Streams groups are left out until all nodes support them."""
    if context.level() >= STREAMS_GROUPS:
        return _FEATURES
    return {name: feature for name, feature in _FEATURES.items() if name != _STREAMS}


async def update(call: KafkaCall, request: features_wire.Request) -> features_wire.Response:
    """Handle UpdateFeatures. Each feature has only one level, so other levels are rejected."""
    checks.check_cluster(call, Operation.ALTER)
    known, results = features(call.context), []
    async for update in call.slices.each(request.feature_updates):
        feature, reason = known.get(update.feature), None
        if feature is None:
            names = ", ".join(known)
            reason = f"Unknown feature {update.feature[:100]!r}: use one of {names}."
        elif update.max_version_level != feature.level:
            reason = (
                f"{update.feature} is at level {feature.level} and cannot be set to"
                f" {update.max_version_level}: this version of the server has no other level."
            )
        if reason is not None:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, reason)
        results.append(features_wire.UpdatableFeatureResult(update.feature, error_message=None))
    return features_wire.Response(error_message=None, results=results)


async def log_dirs(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    """Return the replicas on this node, with their sizes and their lag behind the leaders."""
    context = call.context
    checks.check_cluster(call, Operation.DESCRIBE)

    async def shown(topic: Topic, index: int) -> describe_wire.DescribeLogDirsPartition | None:
        if not checks.has_partition(topic, index):
            return None
        replica = await context.cluster.replica(topic, index)
        return replica and describe_wire.DescribeLogDirsPartition(index, *replica)

    def is_shown(topic: Topic) -> bool:  # others are left out, as topics that do not exist
        return permissions.reaches_topic(call, Operation.DESCRIBE, topic)

    kind = describe_wire.DescribeLogDirsTopic
    topics = await _chosen(call, request.topics, kind, shown, is_shown)
    total_bytes, usable_bytes = await asyncio.to_thread(context.volume)
    result = describe_wire.DescribeLogDirsResult(
        log_dir=context.config.log_dir,
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return describe_wire.Response(results=(result,))


async def alter_log_dirs(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    """Handle AlterReplicaLogDirs. A node has one data folder, so other folders are rejected."""
    is_allowed = on_cluster(call, Operation.ALTER)
    here = call.context.config.log_dir.rstrip("/")

    async def result(path: str, topic: Topic | None, index: int) -> Any:
        code = ErrorCode.NONE
        if not is_allowed:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        elif path.rstrip("/") != here:
            code = ErrorCode.LOG_DIR_NOT_FOUND
        elif topic is None or not checks.has_partition(topic, index):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif await call.context.cluster.replica(topic, index) is None:
            code = ErrorCode.REPLICA_NOT_AVAILABLE
        return alter_wire.AlterReplicaLogDirPartitionResult(index, code)

    kind, results = alter_wire.AlterReplicaLogDirTopicResult, []
    for folder in request.dirs:
        reply = partial(result, folder.path)
        results += await call.by_topic(folder.topics, kind, reply, partial(_find, call))
    return alter_wire.Response(results=results)


def check_replicas(replicas: Sequence[int], nodes: Collection[int]) -> None:
    """Raise ApiError unless ``replicas`` lists one or more live nodes, each of them once."""
    if not 1 <= len(replicas) <= FACTOR_MAX:
        raise invalid(f"A partition must have 1 to {FACTOR_MAX} replicas, not {len(replicas)}.")
    seen: set[int] = set()
    for node in replicas:
        if node in seen:
            raise invalid(f"Node {node} is in the list of replicas more than once.")
        if node not in nodes:
            raise invalid(f"Node {node} does not exist or is stopped. Nodes: {sorted(nodes)}.")
        seen.add(node)


def check_lists(lists: Sequence[Sequence[int]], nodes: Collection[int], *, factor: int) -> None:
    for replicas in lists:
        check_replicas(replicas, nodes)
        if len(replicas) != factor:
            raise invalid(f"A partition has {len(replicas)} replicas but must have {factor}.")


def invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


async def reassign(call: KafkaCall, request: reassign_wire.Request) -> reassign_wire.Response:
    checks.check_cluster(call, Operation.ALTER)
    moves = await call.context.cluster.moves() if request.topics else {}
    context, is_factor_fixed = call.context, not request.allow_replication_factor_change

    async def altered(found: Topic | None, wanted: reassign_wire.ReassignablePartition) -> Any:
        index, fields = wanted.partition_index, dict[str, Any](error_message=None)
        try:
            topic = checks.check_partition(found, index)
            checks.check_has_replicas(topic)
            if wanted.replicas is not None and is_factor_fixed:
                # The number of replicas before the current move, if there is one:
                count = len(context.brokers.place(topic, index).replicas)
                if (move := moves.get((topic.topic_id, index))) is not None:
                    count = len(move.replicas) - len(move.adding)
                if len(wanted.replicas) != count:
                    raise ApiError(
                        ErrorCode.INVALID_REPLICATION_FACTOR,
                        f"The replication factor is changed from {count} to"
                        f" {len(wanted.replicas)}, but AllowReplicationFactorChange is false.",
                    )
            await _move(context, topic, index, wanted.replicas)
        except API_ERRORS as error:
            fields = error_fields(error)
        return reassign_wire.ReassignablePartitionResponse(index, **fields)

    kind = reassign_wire.ReassignableTopicResponse
    return reassign_wire.Response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=await call.by_topic(request.topics, kind, altered, partial(_find, call)),
    )


def _find(call: KafkaCall, named: Any) -> Topic | None:
    return checks.find_name(call.context, named.name)


async def _move(
    context: KafkaContext, topic: Topic, index: int, replicas: Sequence[int] | None
) -> None:
    """Start to move a partition to ``replicas``, or cancel its move if ``replicas`` is None. Store
    the replication factor and, for a move, a mark that stops the manager from moving it again."""
    cluster, default, is_assigned = context.cluster, context.config.replicas_default, True
    if replicas is None:
        try:
            count, is_assigned = await cluster.cancel_move(topic, index), False
        except NotFound:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS) from None
    else:
        holding, count = context.brokers.place(topic, index).replicas, len(replicas)
        check_replicas(replicas, {*cluster.nodes, *holding})
        try:
            await cluster.move(topic, index, replicas)
        except InvalidRequest as error:
            raise invalid(str(error)) from None

    def change(topic: Topic) -> Topic:
        changed = with_factors(topic, {index: count}, default)
        if not is_assigned:
            return changed
        return msgspec.structs.replace(changed, configs={**changed.configs, PLACEMENT: MANUAL})

    now = context.catalog.find_id(topic.topic_id)
    if context.joined is None or now is None:
        return
    is_right = factor_of(now, index, default) == count
    if not is_right or (is_assigned and not is_manual(now)):
        await context.catalog.change(topic.account, topic.region, topic.name, change)


async def list_moves(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    checks.check_cluster(call, Operation.DESCRIBE)
    moves = await call.context.cluster.moves()
    moving, kind = {topic_id for topic_id, _ in moves}, list_wire.OngoingTopicReassignment

    async def shown(topic: Topic, index: int) -> list_wire.OngoingPartitionReassignment | None:
        move = moves.get((topic.topic_id, index))
        return move and list_wire.OngoingPartitionReassignment(index, *move)

    def is_shown(topic: Topic) -> bool:
        return topic.topic_id in moving

    topics = await _chosen(call, request.topics, kind, shown, is_shown)
    return list_wire.Response(error_message=None, topics=topics)


async def _chosen(
    call: KafkaCall,
    named: Iterable[Any] | None,
    kind: Callable[..., T],
    reply: Callable[[Topic, int], Awaitable[object]],
    is_shown: Callable[[Topic], bool] = lambda _: True,
) -> list[T]:
    """Call ``reply`` for each partition of the topics ``named``, or of all topics if that is None.
    Return one ``kind`` per topic with the replies that are not None."""
    context, topics = call.context, list[T]()
    chosen: Iterable[tuple[Topic | None, Sequence[int]]]
    if named is None:
        every = list(context.catalog.topics(context.account, context.config.region))
        chosen = ((topic, range(topic.partition_count)) for topic in every)
    else:
        pairs = (msgspec.structs.astuple(each)[:2] for each in named)
        chosen = ((checks.find_name(context, name), indexes) for name, indexes in pairs)
    async for topic, indexes in call.slices.each(chosen):
        if topic is not None and is_shown(topic):
            replies = [await reply(topic, index) async for index in call.slices.each(indexes)]
            if found := [each for each in replies if each is not None]:
                topics.append(kind(topic.name, found))
    return topics


async def elect(call: KafkaCall, request: elect_wire.Request) -> elect_wire.Response:
    """Elect the preferred leader of each partition. An unclean election elects any live replica if
    no in-sync replica is alive; records that the new leader lacks are lost."""
    code, is_unclean = ErrorCode.NONE, request.election_type == UNCLEAN
    if not on_cluster(call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif request.election_type not in ELECTION_TYPES:
        code = ErrorCode.INVALID_REQUEST
    kind = elect_wire.ReplicaElectionResult

    async def elected(named: elect_wire.TopicPartitions, index: int) -> elect_wire.PartitionResult:
        if code:
            return elect_wire.PartitionResult(index, code, code.message)
        return await _elected(call.context, named.topic, index, is_unclean=is_unclean)

    async def elected_if_needed(topic: Topic, index: int) -> elect_wire.PartitionResult | None:
        at = call.context.brokers.place(topic, index)
        if at.leader != NO_LEADER if is_unclean else at.leader in at.replicas[:1]:
            return None  # the partition has the right leader, as far as this node knows
        result = await _elected(call.context, topic.name, index, is_unclean=is_unclean)
        return None if result.error_code == ErrorCode.ELECTION_NOT_NEEDED else result

    if request.topic_partitions is None and not code:
        results = await _chosen(call, None, kind, elected_if_needed)
    else:
        # Errors are repeated for each partition: version 0 has no field for the whole request.
        results = await call.by_topic(request.topic_partitions or (), kind, elected)
    return elect_wire.Response(error_code=code, replica_election_results=results)


async def _elected(
    context: KafkaContext, name: str, index: int, *, is_unclean: bool
) -> elect_wire.PartitionResult:
    try:
        topic = checks.check_partition(checks.find_name(context, name), index)
        checks.check_has_replicas(topic)
        outcome = await context.cluster.elect(topic, index, is_unclean=is_unclean)
    except API_ERRORS as error:
        return elect_wire.PartitionResult(index, **error_fields(error))
    if outcome is Election.DONE:
        return elect_wire.PartitionResult(index, error_message=None)
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    if outcome is Election.NOT_NEEDED:
        code = ErrorCode.ELECTION_NOT_NEEDED
    elif is_unclean:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return elect_wire.PartitionResult(index, code, code.message)
