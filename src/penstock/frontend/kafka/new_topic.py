"""What a topic made through Kafka is: its name's grammar and the value the catalog gets.

Used where topics are made on purpose (create_topics.py) and where a client merely names one
(metadata.py). Whether there is such a topic already is the catalog's to say, in ``create``."""

import re
from collections.abc import Mapping

import msgspec

from penstock.frontend.kafka.context import PARTITIONS_MAX, KafkaContext
from penstock.frontend.kafka.named import check_not_internal
from penstock.frontend.kafka.reconfigure import with_configs
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.replication import REPLICATION_FACTOR
from penstock.model.topic import Kind, Topic
from penstock.wire.kafka.faults import ErrorCode

RECEIPT_KEY_BYTES = 32  # a stream may become a queue later, and then signs receipts
NAME_CHARS_MAX = 249

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def is_topic_name(name: str) -> bool:
    return _NAME.match(name) is not None and name not in (".", "..")


def check_name(name: str) -> None:
    if not is_topic_name(name):
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"A topic's name has 1 to {NAME_CHARS_MAX} of the characters a-z A-Z 0-9 . _ - "
            'and is neither "." nor "..".',
        )


def check_partition_count(partition_count: int) -> None:
    if not 1 <= partition_count <= PARTITIONS_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partition_count}.",
        )


def new_stream(
    context: KafkaContext,
    name: str,
    partition_count: int,
    configs: Mapping[str, str | None] | None = None,
) -> Topic:
    """Not stored yet. A stream, unless its configs open it as a queue. Raises Refusal."""
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
    return with_configs(topic, configs or {}, now_ms=now_ms, defaults=defaults)


def check_replicas(context: KafkaContext, replicas: int) -> None:
    nodes = len(context.cluster.nodes)
    if not 1 <= replicas <= nodes:
        allowed = "1, for there is one node" if nodes == 1 else f"1 to {nodes}, the number of nodes"
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be {allowed}; it is {replicas}.",
        )


def with_replicas(context: KafkaContext, topic: Topic, replicas: int) -> Topic:
    """A node by itself has no replicas to speak of."""
    if context.joined is None:
        return topic
    return msgspec.structs.replace(
        topic, configs={**topic.configs, REPLICATION_FACTOR: str(replicas)}
    )
