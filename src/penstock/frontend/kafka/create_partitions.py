"""CreatePartitions: more partitions for a topic, never fewer. The broker opens them when it sees
the catalog change.

Records that are there stay where they are, so a key may be found in two partitions afterwards:
clients of Kafka know that. A FIFO queue promises order by message group and is refused."""

from collections.abc import Callable

import msgspec

from penstock.frontend.context import PARTITIONS_MAX as QUEUE_PARTITIONS_MAX
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_not_repeated, check_topic, repeated
from penstock.frontend.kafka.new_topic import check_partition_count
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.reconfigure import reconfigure
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

KEY = 37


async def run(
    context: KafkaContext, call: KafkaCall, asked: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    twice = repeated(topic.name for topic in asked.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    async for wanted in call.slices.each(asked.topics):
        if wanted.name in results:
            continue  # told once that it is there twice
        try:
            check_not_repeated(wanted.name, twice)
            check_topic(context, call, Operation.ALTER, wanted.name)
            change = _grown(context, wanted)
            await reconfigure(context, wanted.name, change, is_dry=asked.validate_only)
            results[wanted.name] = CreatePartitionsTopicResult(name=wanted.name)
        except REFUSALS as error:
            refusal = refusal_of(error)
            results[wanted.name] = CreatePartitionsTopicResult(
                name=wanted.name, error_code=refusal.code, error_message=refusal.message
            )
    return CreatePartitionsResponse(results=tuple(results.values()))


def _grown(context: KafkaContext, wanted: CreatePartitionsTopic) -> Callable[[Topic], Topic]:
    now_ms = context.clock.wall_ms()

    def change(topic: Topic) -> Topic:
        _check_growth(topic, wanted.count)
        _check_assignments(context.config.node_id, topic, wanted)
        return msgspec.structs.replace(topic, partition_count=wanted.count, modified_at_ms=now_ms)

    return change


def _check_growth(topic: Topic, count: int) -> None:
    if topic.is_fifo:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a FIFO queue: its message groups must stay in their partitions.",
        )
    if count <= topic.partition_count:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} has {topic.partition_count} partitions, and {count} are not more.",
        )
    check_partition_count(count)
    if topic.is_queue and count > QUEUE_PARTITIONS_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a queue, which has at most {QUEUE_PARTITIONS_MAX} partitions.",
        )


def _check_assignments(node_id: int, topic: Topic, wanted: CreatePartitionsTopic) -> None:
    if not wanted.assignments:
        return
    added = wanted.count - topic.partition_count
    if len(wanted.assignments) != added:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{added} partitions are added, and {len(wanted.assignments)} are assigned.",
        )
    if any(tuple(assignment.broker_ids) != (node_id,) for assignment in wanted.assignments):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The one replica of a partition must be on node {node_id}.",
        )


ACTION = KafkaAction(KEY, run)
