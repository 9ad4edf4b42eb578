"""OffsetForLeaderEpoch: the end offset of a leader epoch. After a change of leader, readers check
with it whether records that they have read were truncated."""

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_cluster, reaches_topic
from penstock.frontend.kafka.topic_lookup import epoch_error, find_name, has_partition, locate_name
from penstock.model.calls import Ends
from penstock.model.errors import PenstockError
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import offset_for_leader_epoch as wire


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    is_node = on_cluster(call, Operation.CLUSTER_ACTION)
    topics = []
    async for each in call.slices.each(request.topics):
        found = find_name(call.context, each.topic) if is_node else None
        topic: Topic | ErrorCode
        if found is not None and reaches_topic(call, Operation.DESCRIBE, found):
            topic = found
        elif is_node and found is None:
            topic = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = locate_name(call, Operation.DESCRIBE, each.topic)
        partitions = [
            await _end(call.context, topic, one) async for one in call.slices.each(each.partitions)
        ]
        topics.append(wire.OffsetForLeaderTopicResult(each.topic, partitions))
    return wire.Response(topics=topics)


async def _end(
    context: KafkaContext, topic: Topic | ErrorCode, requested: wire.OffsetForLeaderPartition
) -> wire.EpochEndOffset:
    index = requested.partition
    if isinstance(topic, ErrorCode):
        return wire.EpochEndOffset(topic, index)
    if not has_partition(topic, index):
        return wire.EpochEndOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, index)
    topic = log_of(context, topic)
    try:
        ends = await context.broker.call(Ends(topic, index))
    except PenstockError as error:
        return wire.EpochEndOffset(partition_code(error), index)
    code = epoch_error(requested.current_leader_epoch, ends.leader_epoch)
    if code or not 0 <= requested.leader_epoch <= ends.leader_epoch:
        # The epoch never existed.
        return wire.EpochEndOffset(code, index)
    if known := context.brokers.epoch_end(topic, index, requested.leader_epoch):
        return wire.EpochEndOffset(0, index, *known)
    # A single node never truncates, nor did the cluster whose backup it may have.
    return wire.EpochEndOffset(0, index, requested.leader_epoch, ends.high_watermark)
