"""DescribeLogDirs: the replicas in the one folder that this node has, led here or not, with their
sizes and how far they are behind their leaders."""

import asyncio
from collections.abc import Iterator, Sequence

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster, reaches_topic
from penstock.frontend.kafka.topics import find_name, has_partition
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

KEY = 35


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    if not on_cluster(context, call, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = []
    async for topic, indexes in call.slices.each(_chosen(context, asked)):
        if not reaches_topic(context, call, Operation.DESCRIBE, topic):
            continue  # left out, as a topic that does not exist
        partitions = []
        async for index in call.slices.each(indexes):
            replica = await context.cluster.replica(topic, index)
            if replica is not None:
                partitions.append(DescribeLogDirsPartition(index, *replica))
        if partitions:
            topics.append(DescribeLogDirsTopic(topic.name, partitions))
    total_bytes, usable_bytes = await asyncio.to_thread(context.volume)
    result = DescribeLogDirsResult(
        log_dir=context.config.log_dir,
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=(result,))


def _chosen(
    context: KafkaContext, asked: DescribeLogDirsRequest
) -> Iterator[tuple[Topic, Sequence[int]]]:
    if asked.topics is None:
        for topic in list(context.catalog.topics(context.account, context.config.region)):
            yield topic, range(topic.partition_count)
        return
    for each in asked.topics:
        found = find_name(context, each.topic)
        if found is not None:  # others are left out, as of any folder they are not in
            yield found, [index for index in each.partitions if has_partition(found, index)]


ACTION = KafkaAction(KEY, run)
