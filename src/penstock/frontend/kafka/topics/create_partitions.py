"""CreatePartitions: add partitions to a topic. The broker opens them when the catalog changes.

Existing records stay where they are, so a key may then be in two partitions, as in Kafka. A FIFO
queue is rejected, because it promises order by message group."""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.frontend.kafka.checks import check_not_repeated, check_topic, repeated, topic_named
from penstock.frontend.kafka.cluster.assignments import check_lists, invalid
from penstock.frontend.kafka.configs.altered_topics import reconfigure
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, error_fields
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topics.new_topic import check_partition_count
from penstock.model.limits import QUEUE_PARTITIONS_MAX
from penstock.model.replication import MANUAL, PLACEMENT, factor_of
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import create_partitions as wire


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    twice = repeated(topic.name for topic in request.topics)
    results: dict[str, wire.CreatePartitionsTopicResult] = {}
    async for wanted in call.slices.each(request.topics):
        if wanted.name in results:
            continue  # one error for all entries of the name
        try:
            check_not_repeated(wanted.name, twice)
            check_topic(call, Operation.ALTER, wanted.name)
            await _grow(call.context, wanted, is_dry=request.validate_only)
            results[wanted.name] = wire.CreatePartitionsTopicResult(name=wanted.name)
        except API_ERRORS as error:
            results[wanted.name] = wire.CreatePartitionsTopicResult(
                name=wanted.name, **error_fields(error)
            )
    return wire.Response(results=tuple(results.values()))


async def _grow(context: KafkaContext, wanted: wire.CreatePartitionsTopic, *, is_dry: bool) -> None:
    topic = topic_named(context, wanted.name)
    count, now_ms = topic.partition_count, context.clock.wall_ms()
    places = _places(context, topic, wanted)
    is_assigned = bool(places) and context.joined is not None

    def change(topic: Topic) -> Topic:
        _check_growth(topic, wanted.count)
        if places and topic.partition_count != count:
            raise invalid(f"{topic.name} has {topic.partition_count} partitions now.")
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
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a FIFO queue: its message groups must stay in their partitions.",
        )
    if count <= topic.partition_count:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partition_count} partition(s);"
            f" {count} would not be an increase.",
        )
    check_partition_count(count)
    if topic.is_queue and count > QUEUE_PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a queue, which has at most {QUEUE_PARTITIONS_MAX} partitions.",
        )


def _places(
    context: KafkaContext, topic: Topic, wanted: wire.CreatePartitionsTopic
) -> Mapping[int, Sequence[int]]:
    """Return the replicas of each new partition; empty: the manager chooses. Raises ApiError."""
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
