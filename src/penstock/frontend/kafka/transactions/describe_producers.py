"""DescribeProducers: the producer ids that write to a partition, and the first offsets of their
open transactions. Tools use it to find hanging transactions.

The timestamp is the last time that the partition got a batch of the producer; after a restart
without a snapshot it is the time of the restart."""

from collections.abc import Sequence

from penstock.frontend.kafka.checks import check_partition, check_topic
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, error_fields, invalid_request
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topic_lookup import find_name
from penstock.model.calls import Producers
from penstock.model.errors import NotLeader
from penstock.model.ports import ProducerSeen
from penstock.model.topic import Topic
from penstock.wire.kafka.generated import describe_producers as wire


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    # A partition may have very many producers: repeated in one request, its reply would have no
    # bound.
    described: set[tuple[str, int]] = set()
    topics = []
    async for named in call.slices.each(request.topics):
        partitions = []
        async for index in call.slices.each(named.partition_indexes):
            is_again = (named.name, index) in described
            described.add((named.name, index))
            partitions.append(await _partition(call, named.name, index, is_again=is_again))
        topics.append(wire.TopicResponse(named.name, partitions))
    return wire.Response(topics=topics)


async def _partition(
    call: KafkaCall, name: str, index: int, *, is_again: bool
) -> wire.PartitionResponse:
    try:
        if is_again:
            raise invalid_request("The request names this partition more than once.")
        check_topic(call, Operation.READ, name)
        topic = check_partition(find_name(call.context, name), index)
        producers = await _producers(call.context, log_of(call.context, topic), index)
    except API_ERRORS as error:
        return wire.PartitionResponse(index, **error_fields(error))
    return wire.PartitionResponse(index, active_producers=[_state(each) for each in producers])


async def _producers(context: KafkaContext, topic: Topic, index: int) -> Sequence[ProducerSeen]:
    """Followers reply as well: tools ask every replica of a node."""
    try:
        return await context.broker.call(Producers(topic, index))
    except NotLeader:
        found = await context.cluster.followed_producers(topic, index)
        if found is None:
            raise
        return found


def _state(seen: ProducerSeen) -> wire.ProducerState:
    return wire.ProducerState(
        producer_id=seen.producer_id,
        producer_epoch=seen.producer_epoch,
        last_sequence=seen.last_sequence,
        last_timestamp=seen.seen_at_ms,
        coordinator_epoch=seen.coordinator_epoch,
        current_txn_start_offset=seen.transaction_start,
    )
