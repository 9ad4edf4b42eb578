"""DescribeLogDirs: how many bytes each partition takes, in the one folder that a node has."""

from collections.abc import Iterator, Sequence

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster, reaches_topic
from penstock.frontend.kafka.topics import find_name, has_partition
from penstock.model.errors import PenstockError
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
            try:
                size = await context.streams.log_bytes(topic, index)
            except PenstockError:
                continue  # gone in the meantime, or not readable: there is no size to tell
            partitions.append(DescribeLogDirsPartition(index, size))
        if partitions:
            topics.append(DescribeLogDirsTopic(topic.name, partitions))
    result = DescribeLogDirsResult(log_dir=context.config.log_dir, topics=topics)
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
