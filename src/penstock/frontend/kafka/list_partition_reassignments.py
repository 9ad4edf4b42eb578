"""ListPartitionReassignments: partitions that are moving, with the replicas that come and go."""

from collections.abc import Iterator, Sequence

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.topics import find_name
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

KEY = 46


async def run(
    context: KafkaContext, call: KafkaCall, asked: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not on_cluster(context, call, Operation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ListPartitionReassignmentsResponse(error_code=code, error_message=code.message)
    moves = await context.cluster.moves()
    moving = {topic_id for topic_id, _ in moves}
    topics = []
    async for topic, indexes in call.slices.each(_chosen(context, asked)):
        if topic.topic_id not in moving:
            continue
        found = [
            OngoingPartitionReassignment(index, *moves[topic.topic_id, index])
            async for index in call.slices.each(indexes)
            if (topic.topic_id, index) in moves
        ]
        if found:
            topics.append(OngoingTopicReassignment(topic.name, found))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _chosen(
    context: KafkaContext, asked: ListPartitionReassignmentsRequest
) -> Iterator[tuple[Topic, Sequence[int]]]:
    if asked.topics is None:
        for topic in list(context.catalog.topics(context.account, context.config.region)):
            yield topic, range(topic.partition_count)
        return
    for each in asked.topics:
        found = find_name(context, each.name)
        if found is not None:
            yield found, each.partition_indexes


ACTION = KafkaAction(KEY, run)
