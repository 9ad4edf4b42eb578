"""OffsetCommit: how far a group has read, partition by partition; answered once it is durable.

Offsets are kept by topic id: those of a topic that is deleted and made anew do not come back. The
retention time that versions 2 to 4 can ask for is not looked at; all offsets have the node's."""

from penstock.cursor.group.offsets import CommitRequest, PartitionCommit
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.frontend.kafka.topics import has_partition, locate_id, locate_name
from penstock.frontend.slices import portions
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

KEY = 8
_EPOCHS_FROM = 9
_BY_ID_FROM = 10

Codes = dict[tuple[str, int], int]  # topic id, partition → what came of it


async def run(
    context: KafkaContext, call: KafkaCall, asked: OffsetCommitRequest
) -> OffsetCommitResponse:
    slices = call.slices
    located: list[tuple[OffsetCommitRequestTopic, Topic | ErrorCode]] = []
    commits: list[PartitionCommit] = []
    for each in asked.topics:
        if slices.is_over:
            await slices.next()
        topic = _located(context, call, asked.group_id, each)
        located.append((each, topic))
        if isinstance(topic, Topic):
            commits += _commits(topic, each)
    codes: Codes = {}
    default: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for some in portions(commits):
        if slices.is_over:
            await slices.next()
        reply = await context.groups.commit(
            asked.group_id,
            CommitRequest(
                partitions=some,
                member_id=asked.member_id,
                generation=asked.generation_id_or_member_epoch,
                instance_id=asked.group_instance_id,
                knows_epochs=call.version >= _EPOCHS_FROM,
            ),
        )
        codes |= {(topic_id, index): code for topic_id, index, code in reply.partitions}
        default = reply.code or default
    return OffsetCommitResponse(
        topics=await slices.map(lambda one: _answer(*one, codes, default), located)
    )


def _located(
    context: KafkaContext, call: KafkaCall, group_id: str, asked: OffsetCommitRequestTopic
) -> Topic | ErrorCode:
    if not on_group(context, call, Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.version >= _BY_ID_FROM:
        return locate_id(context, call, Operation.READ, asked.topic_id)
    return locate_name(context, call, Operation.READ, asked.name)


def _commits(topic: Topic, asked: OffsetCommitRequestTopic) -> list[PartitionCommit]:
    return [
        PartitionCommit(
            topic.topic_id,
            each.partition_index,
            each.committed_offset,
            each.committed_leader_epoch,
            each.committed_metadata or "",
        )
        for each in asked.partitions
        if has_partition(topic, each.partition_index)
    ]


def _answer(
    asked: OffsetCommitRequestTopic, topic: Topic | ErrorCode, codes: Codes, default: int
) -> OffsetCommitResponseTopic:
    """``default``: for partitions the coordinator did not answer one by one."""
    partitions = []
    for each in asked.partitions:
        index = each.partition_index
        code: int
        if not isinstance(topic, Topic):
            code = topic
        elif not has_partition(topic, index):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            code = codes.get((topic.topic_id, index), default)
        partitions.append(OffsetCommitResponsePartition(index, code))
    return OffsetCommitResponseTopic(asked.name, asked.topic_id, partitions)


ACTION = KafkaAction(KEY, run)
