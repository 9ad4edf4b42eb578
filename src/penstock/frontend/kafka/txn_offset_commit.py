"""TxnOffsetCommit: how far a group has read, as part of a transaction: it counts if that commits.

Up to version 4 the producer has added the group before (AddOffsetsToTxn); from 5 on that is left to
us. Clients look at other codes here than at the coordinator's: being fenced is an old epoch, and a
transaction that is still being completed is a coordinator that is still busy."""

from penstock.cursor.group.codes import Code
from penstock.cursor.group.offsets import CommitRequest, PartitionCommit
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_transaction
from penstock.frontend.kafka.topics import has_partition, locate_name
from penstock.frontend.kafka.transaction_calls import code_for_version
from penstock.frontend.slices import portions
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

KEY = 28
_ABORTABLE_FROM = 4
_ADDS_GROUP_FROM = 5
_NEVER = 1 << 15

Codes = dict[tuple[str, int], ErrorCode]  # topic id, partition → what came of it


async def run(
    context: KafkaContext, call: KafkaCall, asked: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    refusal = _refusal_of_all(context, call, asked)
    slices = call.slices
    located: list[tuple[TxnOffsetCommitRequestTopic, Topic | ErrorCode]] = []
    commits: list[PartitionCommit] = []
    for each in asked.topics:
        if slices.is_over:
            await slices.next()
        topic = refusal or locate_name(context, call, Operation.READ, each.name)
        located.append((each, topic))
        if isinstance(topic, Topic):
            commits += _commits(topic, each)
    codes: Codes = {}
    default = ErrorCode.NONE
    for some in portions(commits):
        if slices.is_over:
            await slices.next()
        reply = await context.transactions.commit_offsets(
            asked.transactional_id,
            asked.group_id,
            CommitRequest(
                partitions=some,
                member_id=asked.member_id,
                generation=asked.generation_id,
                instance_id=asked.group_instance_id,
            ),
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            adds_group=call.version >= _ADDS_GROUP_FROM,
        )
        for topic_id, index, code in reply.partitions:
            codes[topic_id, index] = _code(code, call.version)
        default = _code(reply.code, call.version) or default
    return TxnOffsetCommitResponse(
        topics=await slices.map(lambda one: _answer(*one, codes, default), located)
    )


def _refusal_of_all(
    context: KafkaContext, call: KafkaCall, asked: TxnOffsetCommitRequest
) -> ErrorCode | None:
    if not on_transaction(context, call, Operation.WRITE, asked.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not on_group(context, call, Operation.READ, asked.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


def _commits(topic: Topic, asked: TxnOffsetCommitRequestTopic) -> list[PartitionCommit]:
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


def _code(code: Code, version: int) -> ErrorCode:
    if code is Code.CONCURRENT_TRANSACTIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return code_for_version(code, version, fenced_from=_NEVER, abortable_from=_ABORTABLE_FROM)


def _answer(
    asked: TxnOffsetCommitRequestTopic, topic: Topic | ErrorCode, codes: Codes, default: ErrorCode
) -> TxnOffsetCommitResponseTopic:
    """``default``: for partitions the coordinator did not answer one by one."""
    partitions = []
    for each in asked.partitions:
        index = each.partition_index
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if isinstance(topic, ErrorCode):
            code = topic
        elif has_partition(topic, index):
            code = codes.get((topic.topic_id, index), default)
        partitions.append(TxnOffsetCommitResponsePartition(index, code))
    return TxnOffsetCommitResponseTopic(asked.name, partitions)


ACTION = KafkaAction(KEY, run)
