"""OffsetCommit and TxnOffsetCommit: store how far a group has read; the reply is sent when that is
durable. Offsets committed in a transaction count if the transaction commits.

Offsets are stored by topic id: a topic that is deleted and created again starts without offsets.
The retention time in versions 2 to 4 of OffsetCommit is ignored; all offsets have the node's."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from penstock.cursor.coordinator_calls import Commit, CommitOffsets
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, PartitionCommit
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_group, on_transaction
from penstock.frontend.kafka.topic_lookup import has_partition, locate_id, locate_name
from penstock.frontend.kafka.transactions.transaction_guard import NEVER, code_for_version
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import offset_commit as wire
from penstock.wire.kafka.generated import txn_offset_commit as txn_wire

_EPOCHS_FROM = 9
_BY_ID_FROM = 10
_ABORTABLE_FROM = 4
_ADDS_GROUP_FROM = 5

ReplyT = TypeVar("ReplyT")
Results = Sequence[tuple[int, ErrorCode]]  # partitions of one topic with their codes


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    may_read = on_group(call, Operation.READ, request.group_id)

    def locate(requested: wire.OffsetCommitRequestTopic) -> Topic | ErrorCode:
        if not may_read:
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if call.version >= _BY_ID_FROM:
            return locate_id(call, Operation.READ, requested.topic_id)
        return locate_name(call, Operation.READ, requested.name)

    async def commit(partitions: tuple[PartitionCommit, ...]) -> CommitReply:
        return await call.context.groups.call(
            Commit(
                request.group_id,
                CommitRequest(
                    partitions=partitions,
                    member_id=request.member_id,
                    generation=request.generation_id_or_member_epoch,
                    instance_id=request.group_instance_id,
                    knows_epochs=call.version >= _EPOCHS_FROM,
                ),
            )
        )

    def reply(
        requested: wire.OffsetCommitRequestTopic, results: Results
    ) -> wire.OffsetCommitResponseTopic:
        partitions = [wire.OffsetCommitResponsePartition(*result) for result in results]
        return wire.OffsetCommitResponseTopic(requested.name, requested.topic_id, partitions)

    return wire.Response(topics=await _commit_all(call, request.topics, locate, commit, reply))


async def run_in_transaction(call: KafkaCall, request: txn_wire.Request) -> txn_wire.Response:
    """Up to version 4 the producer has added the group before (AddOffsetsToTxn)."""
    denied: ErrorCode | None = None
    if not on_transaction(call, Operation.WRITE, request.transactional_id):
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not on_group(call, Operation.READ, request.group_id):
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED

    def locate(requested: txn_wire.TxnOffsetCommitRequestTopic) -> Topic | ErrorCode:
        return denied or locate_name(call, Operation.READ, requested.name)

    async def commit(partitions: tuple[PartitionCommit, ...]) -> CommitReply:
        return await call.context.transactions.call(
            CommitOffsets(
                request.transactional_id,
                group_id=request.group_id,
                request=CommitRequest(
                    partitions=partitions,
                    member_id=request.member_id,
                    generation=request.generation_id,
                    instance_id=request.group_instance_id,
                ),
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                adds_group=call.version >= _ADDS_GROUP_FROM,
            )
        )

    def reply(
        requested: txn_wire.TxnOffsetCommitRequestTopic, results: Results
    ) -> txn_wire.TxnOffsetCommitResponseTopic:
        partitions = [
            txn_wire.TxnOffsetCommitResponsePartition(index, _txn_code(code, call.version))
            for index, code in results
        ]
        return txn_wire.TxnOffsetCommitResponseTopic(requested.name, partitions)

    return txn_wire.Response(topics=await _commit_all(call, request.topics, locate, commit, reply))


def _txn_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code that clients of TxnOffsetCommit expect: an old epoch for a fenced producer, a
    coordinator that loads for a transaction that is still being completed."""
    if code is ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return code_for_version(code, version, fenced_from=NEVER, abortable_from=_ABORTABLE_FROM)


async def _commit_all(
    call: KafkaCall,
    topics: Sequence[Any],
    locate: Callable[[Any], Topic | ErrorCode],
    commit: Callable[[tuple[PartitionCommit, ...]], Awaitable[CommitReply]],
    reply: Callable[[Any, Results], ReplyT],
) -> list[ReplyT]:
    """Commit the offsets of all topics that are found, in portions. Return a reply per topic."""
    slices = call.slices
    located: list[Topic | ErrorCode] = []
    commits: list[PartitionCommit] = []
    for requested in topics:
        if slices.is_over:
            await slices.next()
        topic = locate(requested)
        located.append(topic)
        if isinstance(topic, Topic):
            commits += [
                PartitionCommit(
                    topic.topic_id,
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
                for each in requested.partitions
                if has_partition(topic, each.partition_index)
            ]
    codes: dict[tuple[str, int], ErrorCode] = {}
    default = ErrorCode.NONE  # for partitions that the coordinator's replies do not name
    for some in portions(commits):
        if slices.is_over:
            await slices.next()
        committed = await commit(some)
        codes |= {(topic_id, index): code for topic_id, index, code in committed.partitions}
        default = committed.code or default

    def code_at(topic: Topic | ErrorCode, index: int) -> ErrorCode:
        if isinstance(topic, ErrorCode):
            return topic
        if not has_partition(topic, index):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return codes.get((topic.topic_id, index), default)

    def replied(one: tuple[Any, Topic | ErrorCode]) -> ReplyT:
        requested, topic = one
        indexes = [each.partition_index for each in requested.partitions]
        return reply(requested, [(index, code_at(topic, index)) for index in indexes])

    return await slices.map(replied, list(zip(topics, located, strict=True)))
