"""CreatePartitions: more partitions for a topic, never fewer. The broker opens them when it sees
the catalog change.

Records that are there stay where they are, so a key may be found in two partitions afterwards:
clients of Kafka know that. A FIFO queue promises order by message group and is refused."""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.frontend.context import PARTITIONS_MAX as QUEUE_PARTITIONS_MAX
from penstock.frontend.kafka.assignments import check_lists, invalid
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_not_repeated, check_topic, repeated, topic_named
from penstock.frontend.kafka.new_topic import check_partition_count
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.reconfigure import reconfigure
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.replication import MANUAL, PLACEMENT, factor_of
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
            await _grow(context, wanted, is_dry=asked.validate_only)
            results[wanted.name] = CreatePartitionsTopicResult(name=wanted.name)
        except REFUSALS as error:
            refusal = refusal_of(error)
            results[wanted.name] = CreatePartitionsTopicResult(
                name=wanted.name, error_code=refusal.code, error_message=refusal.message
            )
    return CreatePartitionsResponse(results=tuple(results.values()))


async def _grow(context: KafkaContext, wanted: CreatePartitionsTopic, *, is_dry: bool) -> None:
    topic = topic_named(context, wanted.name)
    count, now_ms = topic.partition_count, context.clock.wall_ms()
    places = _places(context, topic, wanted)
    is_assigned = bool(places) and context.joined is not None

    def change(topic: Topic) -> Topic:
        _check_growth(topic, wanted.count)
        if places and topic.partition_count != count:
            raise invalid(f"{topic.name} has {topic.partition_count} partitions meanwhile.")
        configs = {**topic.configs, PLACEMENT: MANUAL} if is_assigned else topic.configs
        return msgspec.structs.replace(
            topic, partition_count=wanted.count, configs=configs, modified_at_ms=now_ms
        )

    await reconfigure(context, wanted.name, change, is_dry=is_dry or bool(places))
    if places and not is_dry:
        async with context.cluster.placed(topic, places):
            await reconfigure(context, wanted.name, change, is_dry=False)


def _check_growth(topic: Topic, count: int) -> None:
    if topic.is_fifo:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a FIFO queue: its message groups must stay in their partitions.",
        )
    if count <= topic.partition_count:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partition_count} partition(s);"
            f" {count} would not be an increase.",
        )
    check_partition_count(count)
    if topic.is_queue and count > QUEUE_PARTITIONS_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a queue, which has at most {QUEUE_PARTITIONS_MAX} partitions.",
        )


def _places(
    context: KafkaContext, topic: Topic, wanted: CreatePartitionsTopic
) -> Mapping[int, Sequence[int]]:
    """The replicas of each new partition; empty where the manager chooses. Raises Refusal."""
    _check_growth(topic, wanted.count)
    if wanted.assignments is None:
        return {}
    added = range(topic.partition_count, wanted.count)
    if len(wanted.assignments) != len(added):
        raise invalid(
            f"{len(added)} partitions are added, and {len(wanted.assignments)} are assigned."
        )
    lists = [assignment.broker_ids for assignment in wanted.assignments]
    factor = factor_of(topic, None, context.config.replicas_default)
    check_lists(lists, context.cluster.nodes, factor=factor)
    return dict(zip(added, lists, strict=True))


ACTION = KafkaAction(KEY, run)
