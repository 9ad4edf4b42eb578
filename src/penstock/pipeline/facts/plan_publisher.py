"""Publishes plans for the placement of partitions in the compacted topic ``__plans``.

The key of a record is the kind of the plan, so a newer plan replaces the older one of its kind. The
value is JSON with the time of creation and the expiry time. The first plan creates the topic."""

from typing import Any, Final

from penstock.net.kafka_client.client import KafkaClient, KafkaRefused, Place
from penstock.pipeline.facts.rebalance import Plan
from penstock.record.batch import encode_batch
from penstock.record.compression import Codec
from penstock.record.record import encode_record
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

TOPIC: Final = "__plans"
REBALANCE: Final = b"rebalance"
SCHEMA_HEADER: Final = (b"schema", b"plan/1")
_CREATE_TOPICS: Final = 19


def publish(client: KafkaClient, plan: Plan) -> int:
    """Append the plan, and return its offset. Raises KafkaTrouble."""
    client.retried(lambda: _make_topic(client))
    producer_id, epoch = client.producer_id()
    record = encode_record(
        offset_delta=0,
        timestamp_delta=0,
        key=REBALANCE,
        value=plan.to_json(),
        headers=(SCHEMA_HEADER,),
    )
    batch = encode_batch(
        [record],
        base_offset=0,
        leader_epoch=0,
        base_timestamp=plan.created_at_ms,
        max_timestamp=plan.created_at_ms,
        attributes=Codec.NONE,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
    )
    place = Place(TOPIC, 0)
    return client.produce({place: batch}, is_repeatable=True)[place]


def _make_topic(client: KafkaClient) -> None:
    wanted = CreatableTopic(
        name=TOPIC,
        num_partitions=1,
        replication_factor=-1,
        configs=(CreatableTopicConfig("cleanup.policy", "compact"),),
    )
    reply: Any = client.call(_CREATE_TOPICS, CreateTopicsRequest(topics=(wanted,)))
    for topic in reply.topics:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaRefused(topic.error_code, topic.error_message or "", TOPIC)
