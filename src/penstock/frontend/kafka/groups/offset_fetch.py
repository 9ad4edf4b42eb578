"""OffsetFetch: the committed offsets of groups. Offset -1 without an error means that nothing is
committed, also for an unknown group or topic.

Versions before 8 request one group, and get the classes of their reply here. Version 1 has no field
for the error of a group, so the error is repeated for each partition."""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from penstock.cursor.coordinator_calls import FetchOffsets
from penstock.cursor.groups.offsets import FetchedOffset
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.topic_lookup import find_id, id_of, locate_id, locate_name
from penstock.model.topic import Topic
from penstock.net.slices import Slices, portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import offset_fetch as wire

_GROUP_ERROR_FROM = 2
_MANY_GROUPS_FROM = 8
_BY_ID_FROM = 10
_NO_OFFSET = -1

Offsets = dict[tuple[str, int], FetchedOffset]


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    if call.version >= _MANY_GROUPS_FROM:
        groups = [
            await _group(call, each, request.require_stable)
            async for each in call.slices.each(request.groups)
        ]
        return wire.Response(groups=groups)
    topics = None
    if request.topics is not None:
        topics = await call.slices.map(_renamed, request.topics)
    alone = wire.OffsetFetchRequestGroup(request.group_id, topics=topics)
    found = await _group(call, alone, request.require_stable)
    if found.error_code and call.version < _GROUP_ERROR_FROM:
        code = ErrorCode(found.error_code)
        failed = [await _topic(call.slices, each, code, {}) for each in topics or ()]
        return wire.Response(topics=await _of_one_group(call, failed))
    replies = await _of_one_group(call, found.topics)
    return wire.Response(error_code=found.error_code, topics=replies)


def _renamed(requested: wire.OffsetFetchRequestTopic) -> wire.OffsetFetchRequestTopics:
    return wire.OffsetFetchRequestTopics(
        requested.name, partition_indexes=requested.partition_indexes
    )


async def _group(
    call: KafkaCall, requested: wire.OffsetFetchRequestGroup, requires_stable: bool
) -> wire.OffsetFetchResponseGroup:
    if not on_group(call, Operation.DESCRIBE, requested.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return wire.OffsetFetchResponseGroup(requested.group_id, error_code=code)
    slices = call.slices
    located: list[tuple[wire.OffsetFetchRequestTopics, Topic | ErrorCode]] = []
    wanted: list[tuple[str, int]] = []
    for each in requested.topics or ():
        if slices.is_over:
            await slices.next()
        topic = _located(call, each)
        located.append((each, topic))
        if isinstance(topic, Topic):
            wanted += [(topic.topic_id, index) for index in each.partition_indexes]
    found: list[FetchedOffset] = []
    for some in (None,) if requested.topics is None else portions(wanted) or ((),):
        if slices.is_over:
            await slices.next()
        reply = await call.context.groups.call(
            FetchOffsets(
                requested.group_id,
                some,
                requires_stable=requires_stable,
                member_id=requested.member_id,
                member_epoch=requested.member_epoch,
            )
        )
        if reply.code:
            return wire.OffsetFetchResponseGroup(requested.group_id, error_code=reply.code)
        found += reply.partitions
    if requested.topics is None:
        return wire.OffsetFetchResponseGroup(requested.group_id, await _everything(call, found))
    offsets = {(each.topic_id, each.partition): each for each in found}
    topics = [await _topic(slices, each, topic, offsets) for each, topic in located]
    return wire.OffsetFetchResponseGroup(requested.group_id, topics)


def _located(call: KafkaCall, requested: wire.OffsetFetchRequestTopics) -> Topic | ErrorCode:
    """Return NONE for an unknown name."""
    if call.version >= _BY_ID_FROM:
        return locate_id(call, Operation.DESCRIBE, requested.topic_id)
    topic = locate_name(call, Operation.DESCRIBE, requested.name)
    return ErrorCode.NONE if topic is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else topic


async def _everything(
    call: KafkaCall, fetched: Iterable[FetchedOffset]
) -> list[wire.OffsetFetchResponseTopics]:
    """Return all offsets by topic. Deleted topics, and topics that the caller may not describe, are
    left out."""
    by_topic: dict[str, list[FetchedOffset]] = {}
    async for offset in call.slices.each(fetched):
        by_topic.setdefault(offset.topic_id, []).append(offset)
    found = []
    async for topic_id, offsets in call.slices.each(by_topic.items()):
        topic = find_id(call.context, bytes.fromhex(topic_id))
        if topic is not None and on_topic(call, Operation.DESCRIBE, topic.name, topic):
            rows = [_row(offset) for offset in offsets]
            found.append(wire.OffsetFetchResponseTopics(topic.name, id_of(topic), rows))
    return found


async def _topic(
    slices: Slices,
    requested: wire.OffsetFetchRequestTopics,
    topic: Topic | ErrorCode,
    offsets: Offsets,
) -> wire.OffsetFetchResponseTopics:
    indexes = requested.partition_indexes
    if isinstance(topic, Topic):
        topic_id = topic.topic_id
        rows = await slices.map(lambda index: _row(offsets[topic_id, index]), indexes)
    else:
        none = partial(wire.OffsetFetchResponsePartitions, error_code=topic)
        rows = await slices.map(lambda index: none(index, _NO_OFFSET), indexes)
    return wire.OffsetFetchResponseTopics(requested.name, requested.topic_id, rows)


def _row(offset: FetchedOffset) -> wire.OffsetFetchResponsePartitions:
    return wire.OffsetFetchResponsePartitions(
        offset.partition, offset.offset, offset.leader_epoch, offset.metadata, offset.code
    )


async def _of_one_group(
    call: KafkaCall, topics: Sequence[wire.OffsetFetchResponseTopics]
) -> list[wire.OffsetFetchResponseTopic]:
    """Return the classes for versions with one group: the same fields."""

    def row(one: wire.OffsetFetchResponsePartitions) -> wire.OffsetFetchResponsePartition:
        return wire.OffsetFetchResponsePartition(*msgspec.structs.astuple(one))

    return [
        wire.OffsetFetchResponseTopic(each.name, await call.slices.map(row, each.partitions))
        for each in topics
    ]
