"""AlterReplicaLogDirs: a node has one folder, so a replica can only be told to be where it is."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.topics import find_name, has_partition
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

KEY = 34


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    is_allowed = on_cluster(context, call, Operation.ALTER)
    results = []
    for folder in asked.dirs:
        async for topic in call.slices.each(folder.topics):
            partitions = []
            async for index in call.slices.each(topic.partitions):
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = await _code(context, folder.path, topic.name, index)
                partitions.append(AlterReplicaLogDirPartitionResult(index, code))
            results.append(AlterReplicaLogDirTopicResult(topic.name, partitions))
    return AlterReplicaLogDirsResponse(results=results)


async def _code(context: KafkaContext, path: str, name: str, index: int) -> ErrorCode:
    if path.rstrip("/") != context.config.log_dir.rstrip("/"):
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = find_name(context, name)
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if await context.cluster.replica(topic, index) is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE


ACTION = KafkaAction(KEY, run)
