"""DescribeProducers: who writes to a partition with a producer id, and since which offset it has a
transaction open. Tools look for transactions that hang with it.

The time given is when the partition last heard of a producer. After a restart without a snapshot
that is the time of the restart: batches carry only what their producers say."""

from collections.abc import Sequence

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_partition, check_topic
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.topics import find_name
from penstock.model.errors import NotLeader
from penstock.model.ports import ProducerSeen
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

KEY = 61


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeProducersRequest
) -> DescribeProducersResponse:
    # A partition may have very many producers: whoever asks for it again and again in one request
    # would get an answer of any size.
    described: set[tuple[str, int]] = set()
    topics = []
    async for named in call.slices.each(asked.topics):
        partitions = []
        async for index in call.slices.each(named.partition_indexes):
            is_again = (named.name, index) in described
            described.add((named.name, index))
            partitions.append(await _partition(context, call, named.name, index, is_again=is_again))
        topics.append(TopicResponse(named.name, partitions))
    return DescribeProducersResponse(topics=topics)


async def _partition(
    context: KafkaContext, call: KafkaCall, name: str, index: int, *, is_again: bool
) -> PartitionResponse:
    try:
        if is_again:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, "The request names this partition more than once."
            )
        check_topic(context, call, Operation.READ, name)
        topic = check_partition(find_name(context, name), index)
        producers = await _producers(context, log_of(context, topic), index)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return PartitionResponse(index, refusal.code, refusal.message)
    return PartitionResponse(index, active_producers=[_state(each) for each in producers])


async def _producers(context: KafkaContext, topic: Topic, index: int) -> Sequence[ProducerSeen]:
    """Tools that look for hanging transactions ask every replica of a node."""
    try:
        return await context.streams.producers(topic, index)
    except NotLeader:
        found = await context.cluster.followed_producers(topic, index)
        if found is None:
            raise
        return found


def _state(seen: ProducerSeen) -> ProducerState:
    return ProducerState(
        producer_id=seen.producer_id,
        producer_epoch=seen.producer_epoch,
        last_sequence=seen.last_sequence,
        last_timestamp=seen.seen_at_ms,
        coordinator_epoch=seen.coordinator_epoch,
        current_txn_start_offset=seen.transaction_start,
    )


ACTION = KafkaAction(KEY, run)
