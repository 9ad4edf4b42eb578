"""OffsetForLeaderEpoch: how far the log of an epoch went. Readers ask after a change of leader,
whether what they have read was cut off. There has been one epoch, and it goes to the end."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_cluster, reaches_topic
from penstock.frontend.kafka.topics import (
    code_for,
    epoch_refusal,
    find_name,
    has_partition,
    locate_name,
)
from penstock.model.errors import PenstockError
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

KEY = 23


async def run(
    context: KafkaContext, call: KafkaCall, asked: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    is_node = on_cluster(context, call, Operation.CLUSTER_ACTION)
    topics = []
    async for each in call.slices.each(asked.topics):
        found = find_name(context, each.topic) if is_node else None
        topic: Topic | ErrorCode
        if found is not None and reaches_topic(context, call, Operation.DESCRIBE, found):
            topic = found
        elif is_node and found is None:
            topic = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = locate_name(context, call, Operation.DESCRIBE, each.topic)
        partitions = [
            await _end(context, topic, one) async for one in call.slices.each(each.partitions)
        ]
        topics.append(OffsetForLeaderTopicResult(each.topic, partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


async def _end(
    context: KafkaContext, topic: Topic | ErrorCode, asked: OffsetForLeaderPartition
) -> EpochEndOffset:
    index = asked.partition
    if isinstance(topic, ErrorCode):
        return EpochEndOffset(topic, index)
    if not has_partition(topic, index):
        return EpochEndOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, index)
    topic = log_of(context, topic)
    try:
        ends = await context.streams.ends(topic, index)
    except PenstockError as error:
        return EpochEndOffset(code_for(error), index)
    code = epoch_refusal(asked.current_leader_epoch, ends.leader_epoch)
    if code or not 0 <= asked.leader_epoch <= ends.leader_epoch:
        # Of an epoch that never was, neither number is known.
        return EpochEndOffset(code, index)
    if known := context.brokers.epoch_end(topic, index, asked.leader_epoch):
        return EpochEndOffset(0, index, *known)
    # A node by itself never takes anything back, nor did the cluster whose backup it was given.
    return EpochEndOffset(0, index, asked.leader_epoch, ends.high_watermark)


ACTION = KafkaAction(KEY, run)
