"""DescribeLogDirs and AlterReplicaLogDirs: a node has one data folder with all its replicas."""

import asyncio
from collections.abc import Iterator, Sequence

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster, reaches_topic
from penstock.frontend.kafka.topic_lookup import find_name, has_partition
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_replica_log_dirs as alter_wire
from penstock.wire.kafka.generated import describe_log_dirs as describe_wire


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    """Return the replicas of this node, as leader or follower, with their sizes and how far they
    are behind their leaders."""
    check_cluster(call, Operation.DESCRIBE)
    topics = []
    async for topic, indexes in call.slices.each(_requested(call.context, request)):
        if not reaches_topic(call, Operation.DESCRIBE, topic):
            continue  # left out, as a topic that does not exist
        partitions = []
        async for index in call.slices.each(indexes):
            replica = await call.context.cluster.replica(topic, index)
            if replica is not None:
                partitions.append(describe_wire.DescribeLogDirsPartition(index, *replica))
        if partitions:
            topics.append(describe_wire.DescribeLogDirsTopic(topic.name, partitions))
    total_bytes, usable_bytes = await asyncio.to_thread(call.context.volume)
    result = describe_wire.DescribeLogDirsResult(
        log_dir=call.context.config.log_dir,
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return describe_wire.Response(results=(result,))


def _requested(
    context: KafkaContext, request: describe_wire.Request
) -> Iterator[tuple[Topic, Sequence[int]]]:
    if request.topics is None:
        for topic in list(context.catalog.topics(context.account, context.config.region)):
            yield topic, range(topic.partition_count)
        return
    for each in request.topics:
        found = find_name(context, each.topic)
        if found is not None:  # unknown topics are left out
            yield found, [index for index in each.partitions if has_partition(found, index)]


async def alter(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    """A replica can only be moved to the folder in which it is."""
    is_allowed = on_cluster(call, Operation.ALTER)
    results = []
    for folder in request.dirs:
        async for topic in call.slices.each(folder.topics):
            partitions = []
            async for index in call.slices.each(topic.partitions):
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = await _code(call.context, folder.path, topic.name, index)
                partitions.append(alter_wire.AlterReplicaLogDirPartitionResult(index, code))
            results.append(alter_wire.AlterReplicaLogDirTopicResult(topic.name, partitions))
    return alter_wire.Response(results=results)


async def _code(context: KafkaContext, path: str, name: str, index: int) -> ErrorCode:
    if path.rstrip("/") != context.config.log_dir.rstrip("/"):
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = find_name(context, name)
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_here = await context.cluster.replica(topic, index) is not None
    return ErrorCode.NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE
