"""DescribeProducers: who writes to a partition. The port to the broker does not tell, so the list
of a partition that is there is empty; tools use it to look for transactions that hang."""

from collections.abc import Iterator

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_partition
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.topics import find_name
from penstock.wire.kafka.generated.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
    TopicResponse,
)

KEY = 61


async def run(
    context: KafkaContext, _call: KafkaCall, asked: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[TopicResponse(named.name, list(_results(context, named))) for named in asked.topics]
    )


def _results(context: KafkaContext, named: TopicRequest) -> Iterator[PartitionResponse]:
    topic = find_name(context, named.name)
    for partition in named.partition_indexes:
        try:
            check_partition(topic, partition)
            yield PartitionResponse(partition)
        except Refusal as refusal:
            yield PartitionResponse(partition, refusal.code, refusal.message)


ACTION = KafkaAction(KEY, run)
