"""New topics of Kafka clients: valid names, and the value that is stored. ``Catalog.create`` checks
whether the topic exists."""

from collections.abc import Mapping

import msgspec

from penstock.frontend.kafka.checks import check_name, check_not_internal
from penstock.frontend.kafka.config import PARTITIONS_MAX
from penstock.frontend.kafka.configs.altered_topics import with_configs
from penstock.frontend.kafka.configs.resources import Edit
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError
from penstock.model.replication import REPLICATION_FACTOR
from penstock.model.topic import Kind, Topic
from penstock.wire.kafka.faults import ErrorCode

RECEIPT_KEY_BYTES = 32  # a stream may become a queue later, and then signs receipts


def check_partition_count(partition_count: int) -> None:
    if not 1 <= partition_count <= PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partition_count}.",
        )


def new_stream(
    context: KafkaContext,
    name: str,
    partition_count: int,
    configs: Mapping[str, str | None] | None = None,
) -> Topic:
    """Return a topic to store: a stream, unless its configs make it a queue. Raises ApiError."""
    check_name(name)
    check_not_internal(name)
    check_partition_count(partition_count)
    now_ms = context.clock.wall_ms()
    topic = Topic(
        topic_id=context.entropy(16).hex(),
        account=context.account,
        region=context.config.region,
        name=name,
        kind=Kind.STREAM,
        partition_count=partition_count,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=context.entropy(RECEIPT_KEY_BYTES),
    )
    defaults = context.defaults.configs
    return with_configs(topic, Edit(configs or {}), now_ms=now_ms, defaults=defaults)


def check_replicas(context: KafkaContext, replicas: int) -> None:
    nodes = len(context.cluster.nodes)
    if not 1 <= replicas <= nodes:
        allowed = "1, for there is one node" if nodes == 1 else f"1 to {nodes}, the number of nodes"
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be {allowed}; it is {replicas}.",
        )


def with_replicas(context: KafkaContext, topic: Topic, replicas: int) -> Topic:
    """Return the topic unchanged on a single node."""
    if context.joined is None:
        return topic
    return msgspec.structs.replace(
        topic, configs={**topic.configs, REPLICATION_FACTOR: str(replicas)}
    )
