"""Handles OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of
groups. Offsets committed in a transaction take effect when the transaction commits.

Offsets are stored by topic id, so a topic that is deleted and created again starts without offsets.
The node's retention time applies, not the one in versions 2 to 4 of OffsetCommit."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from penstock.cursor.coordinator_calls import Commit, CommitOffsets, DeleteOffsets, FetchOffsets
from penstock.cursor.groups.offsets import (
    CommitReply,
    CommitRequest,
    FetchedOffset,
    PartitionCommit,
)
from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic, on_transaction
from penstock.frontend.kafka.transactions.producers import NEVER, code_for_version
from penstock.model.topic import Topic
from penstock.net.slices import Slices, portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import offset_commit as commit_wire
from penstock.wire.kafka.generated import offset_delete as delete_wire
from penstock.wire.kafka.generated import offset_fetch as fetch_wire
from penstock.wire.kafka.generated import txn_offset_commit as txn_wire

_EPOCHS_FROM = 9
_BY_ID_FROM = 10
_ABORTABLE_FROM = 4
_ADDS_GROUP_FROM = 5

ReplyT = TypeVar("ReplyT")
Results = Sequence[tuple[int, ErrorCode]]  # partitions of one topic with their codes
_GROUP_ERROR_FROM = 2
_MANY_GROUPS_FROM = 8
_FETCH_BY_ID_FROM = 10
_NO_OFFSET = -1
Offsets = dict[tuple[str, int], FetchedOffset]


async def commit(call: KafkaCall, request: commit_wire.Request) -> commit_wire.Response:
    may_read = on_group(call, Operation.READ, request.group_id)

    def locate(requested: commit_wire.OffsetCommitRequestTopic) -> Topic | ErrorCode:
        if not may_read:
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if call.version >= _BY_ID_FROM:
            return checks.locate_id(call, Operation.READ, requested.topic_id)
        return checks.locate_name(call, Operation.READ, requested.name)

    async def commit_some(partitions: tuple[PartitionCommit, ...]) -> CommitReply:
        commits = CommitRequest(
            partitions=partitions,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
            knows_epochs=call.version >= _EPOCHS_FROM,
        )
        return await call.context.groups.call(Commit(request.group_id, commits))

    def reply(
        requested: commit_wire.OffsetCommitRequestTopic, results: Results
    ) -> commit_wire.OffsetCommitResponseTopic:
        partitions = [commit_wire.OffsetCommitResponsePartition(*result) for result in results]
        return commit_wire.OffsetCommitResponseTopic(requested.name, requested.topic_id, partitions)

    topics = await _commit_all(call, request.topics, locate, commit_some, reply)
    return commit_wire.Response(topics=topics)


async def commit_in_transaction(call: KafkaCall, request: txn_wire.Request) -> txn_wire.Response:
    """Commit offsets in a transaction. Before version 5, the producer must have added the group to
    the transaction (AddOffsetsToTxn)."""
    denied: ErrorCode | None = None
    if not on_transaction(call, Operation.WRITE, request.transactional_id):
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not on_group(call, Operation.READ, request.group_id):
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED

    def locate(requested: txn_wire.TxnOffsetCommitRequestTopic) -> Topic | ErrorCode:
        return denied or checks.locate_name(call, Operation.READ, requested.name)

    async def commit_some(partitions: tuple[PartitionCommit, ...]) -> CommitReply:
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
        partitions = []
        for index, code in results:
            if code is ErrorCode.CONCURRENT_TRANSACTIONS:  # the transaction is being completed
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            # Clients expect INVALID_PRODUCER_EPOCH for a fenced producer.
            shown = code_for_version(code, call.version, NEVER, _ABORTABLE_FROM)
            partitions.append(txn_wire.TxnOffsetCommitResponsePartition(index, shown))
        return txn_wire.TxnOffsetCommitResponseTopic(requested.name, partitions)

    topics = await _commit_all(call, request.topics, locate, commit_some, reply)
    return txn_wire.Response(topics=topics)


async def _commit_all(
    call: KafkaCall,
    topics: Sequence[Any],
    locate: Callable[[Any], Topic | ErrorCode],
    commit: Callable[[tuple[PartitionCommit, ...]], Awaitable[CommitReply]],
    reply: Callable[[Any, Results], ReplyT],
) -> list[ReplyT]:
    """Commit the offsets of all topics that exist. Return a reply for each topic."""
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
                if checks.has_partition(topic, each.partition_index)
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
        if not checks.has_partition(topic, index):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return codes.get((topic.topic_id, index), default)

    def replied(one: tuple[Any, Topic | ErrorCode]) -> ReplyT:
        requested, topic = one
        indexes = [each.partition_index for each in requested.partitions]
        return reply(requested, [(index, code_at(topic, index)) for index in indexes])

    return await slices.map(replied, list(zip(topics, located, strict=True)))


async def fetch(call: KafkaCall, request: fetch_wire.Request) -> fetch_wire.Response:
    """Return committed offsets. The offset is -1 if nothing is committed or the group or topic is
    unknown. In version 1, an error of the group is repeated for each partition."""
    if call.version >= _MANY_GROUPS_FROM:
        groups = [
            await _of_group(call, each, request.require_stable)
            async for each in call.slices.each(request.groups)
        ]
        return fetch_wire.Response(groups=groups)
    topics = None
    if request.topics is not None:
        kind = fetch_wire.OffsetFetchRequestTopics
        topics = await call.slices.map(
            lambda each: kind(each.name, partition_indexes=each.partition_indexes), request.topics
        )
    alone = fetch_wire.OffsetFetchRequestGroup(request.group_id, topics=topics)
    found = await _of_group(call, alone, request.require_stable)
    if found.error_code and call.version < _GROUP_ERROR_FROM:
        code = ErrorCode(found.error_code)
        failed = [await _topic(call.slices, each, code, {}) for each in topics or ()]
        return fetch_wire.Response(topics=cast(Any, failed))
    # Replies with one group have other classes for topics and partitions, with the same fields.
    return fetch_wire.Response(error_code=found.error_code, topics=cast(Any, found.topics))


async def _of_group(
    call: KafkaCall, requested: fetch_wire.OffsetFetchRequestGroup, requires_stable: bool
) -> fetch_wire.OffsetFetchResponseGroup:
    slices, group_id, kind = call.slices, requested.group_id, fetch_wire.OffsetFetchResponseGroup
    if not on_group(call, Operation.DESCRIBE, group_id):
        return kind(group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    located: list[tuple[fetch_wire.OffsetFetchRequestTopics, Topic | ErrorCode]] = []
    wanted: list[tuple[str, int]] = []
    for each in requested.topics or ():
        if slices.is_over:
            await slices.next()
        if call.version >= _FETCH_BY_ID_FROM:
            topic = checks.locate_id(call, Operation.DESCRIBE, each.topic_id)
        else:
            topic = checks.locate_name(call, Operation.DESCRIBE, each.name)
            if topic is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                topic = ErrorCode.NONE
        located.append((each, topic))
        if isinstance(topic, Topic):
            wanted += [(topic.topic_id, index) for index in each.partition_indexes]
    found: list[FetchedOffset] = []
    for some in (None,) if requested.topics is None else portions(wanted) or ((),):
        if slices.is_over:
            await slices.next()
        reply = await call.context.groups.call(
            FetchOffsets(
                group_id,
                some,
                requires_stable=requires_stable,
                member_id=requested.member_id,
                member_epoch=requested.member_epoch,
            )
        )
        if reply.code:
            return kind(group_id, error_code=reply.code)
        found += reply.partitions
    if requested.topics is None:
        return kind(group_id, await _everything(call, found))
    offsets = {(each.topic_id, each.partition): each for each in found}
    topics = [await _topic(slices, each, topic, offsets) for each, topic in located]
    return kind(group_id, topics)


async def _everything(
    call: KafkaCall, fetched: Iterable[FetchedOffset]
) -> list[fetch_wire.OffsetFetchResponseTopics]:
    """Return the offsets of all topics that exist and that the caller may describe, by topic."""
    by_topic: dict[str, list[FetchedOffset]] = {}
    async for offset in call.slices.each(fetched):
        by_topic.setdefault(offset.topic_id, []).append(offset)
    found = []
    async for topic_id, offsets in call.slices.each(by_topic.items()):
        topic = checks.find_id(call.context, bytes.fromhex(topic_id))
        if topic is not None and on_topic(call, Operation.DESCRIBE, topic.name, topic):
            rows = [_row(offset) for offset in offsets]
            found.append(
                fetch_wire.OffsetFetchResponseTopics(topic.name, checks.id_of(topic), rows)
            )
    return found


async def _topic(
    slices: Slices,
    requested: fetch_wire.OffsetFetchRequestTopics,
    topic: Topic | ErrorCode,
    offsets: Offsets,
) -> fetch_wire.OffsetFetchResponseTopics:
    def row(index: int) -> fetch_wire.OffsetFetchResponsePartitions:
        if isinstance(topic, Topic):
            return _row(offsets[topic.topic_id, index])
        return fetch_wire.OffsetFetchResponsePartitions(index, _NO_OFFSET, error_code=topic)

    rows = await slices.map(row, requested.partition_indexes)
    return fetch_wire.OffsetFetchResponseTopics(requested.name, requested.topic_id, rows)


def _row(offset: FetchedOffset) -> fetch_wire.OffsetFetchResponsePartitions:
    return fetch_wire.OffsetFetchResponsePartitions(
        offset.partition, offset.offset, offset.leader_epoch, offset.metadata, offset.code
    )


async def delete(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    """Delete committed offsets of a group, except those of topics that its members still read."""
    checks.check_group(call, Operation.DELETE, request.group_id)
    located = {
        each.name: checks.locate_name(call, Operation.READ, each.name)
        async for each in call.slices.each(request.topics)
    }
    ids = {name: topic.topic_id for name, topic in located.items() if isinstance(topic, Topic)}
    places = [
        (ids[each.name], each.name, partition.partition_index)
        async for each in call.slices.each(request.topics)
        if each.name in ids
        for partition in each.partitions
    ]
    codes: dict[tuple[str, int], int] = {}
    async for some in call.slices.each(portions(places) or ((),)):
        reply = await call.context.groups.call(DeleteOffsets(request.group_id, some))
        if reply.code:
            return delete_wire.Response(error_code=reply.code)
        codes |= {(topic_id, index): int(code) for topic_id, index, code in reply.partitions}
    kind, topics = delete_wire.OffsetDeleteResponsePartition, []
    async for each in call.slices.each(request.topics):
        topic, indexes = located[each.name], [one.partition_index for one in each.partitions]
        partitions = [
            kind(index, codes[topic.topic_id, index] if isinstance(topic, Topic) else topic)
            for index in indexes
        ]
        topics.append(delete_wire.OffsetDeleteResponseTopic(each.name, partitions))
    return delete_wire.Response(topics=topics)
