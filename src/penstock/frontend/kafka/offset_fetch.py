"""OffsetFetch: what a group has committed. Nothing committed is offset -1 and no error, also for a
group or a topic nobody has heard of: a consumer asks before it has done anything.

Versions 8 and later ask for several groups at once and are mapped to themselves; earlier ones ask
for one and become a request of one group here. Errors of a whole group had no field in version 1,
so they are repeated for each partition there."""

from collections.abc import Iterable, Sequence

from penstock.cursor.group.offsets import FetchedOffset
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.topics import find_id, id_of, locate_id, locate_name
from penstock.frontend.slices import Slices, portions
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

KEY = 9
_GROUP_ERROR_FROM = 2
_MANY_GROUPS_FROM = 8
_BY_ID_FROM = 10
_NO_OFFSET = -1

Offsets = dict[tuple[str, int], FetchedOffset]


async def run(
    context: KafkaContext, call: KafkaCall, asked: OffsetFetchRequest
) -> OffsetFetchResponse:
    if call.version >= _MANY_GROUPS_FROM:
        groups = [
            await _group(context, call, each, asked.require_stable)
            async for each in call.slices.each(asked.groups)
        ]
        return OffsetFetchResponse(groups=groups)
    topics = None
    if asked.topics is not None:
        topics = await call.slices.map(_renamed, asked.topics)
    alone = OffsetFetchRequestGroup(asked.group_id, topics=topics)
    found = await _group(context, call, alone, asked.require_stable)
    if found.error_code and call.version < _GROUP_ERROR_FROM:
        code = ErrorCode(found.error_code)
        return OffsetFetchResponse(topics=await _refused(call, topics or (), code))
    return OffsetFetchResponse(
        error_code=found.error_code, topics=await _as_one(call, found.topics)
    )


def _renamed(asked: OffsetFetchRequestTopic) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(asked.name, partition_indexes=asked.partition_indexes)


async def _group(
    context: KafkaContext, call: KafkaCall, asked: OffsetFetchRequestGroup, requires_stable: bool
) -> OffsetFetchResponseGroup:
    if not on_group(context, call, Operation.DESCRIBE, asked.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return OffsetFetchResponseGroup(asked.group_id, error_code=code)
    slices = call.slices
    located: list[tuple[OffsetFetchRequestTopics, Topic | ErrorCode]] = []
    wanted: list[tuple[str, int]] = []
    for each in asked.topics or ():
        if slices.is_over:
            await slices.next()
        topic = _located(context, call, each)
        located.append((each, topic))
        if isinstance(topic, Topic):
            wanted += [(topic.topic_id, index) for index in each.partition_indexes]
    found: list[FetchedOffset] = []
    for some in (None,) if asked.topics is None else portions(wanted) or ((),):
        if slices.is_over:
            await slices.next()
        reply = await context.groups.fetch(
            asked.group_id,
            some,
            requires_stable=requires_stable,
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
        )
        if reply.code:
            return OffsetFetchResponseGroup(asked.group_id, error_code=reply.code)
        found += reply.partitions
    if asked.topics is None:
        return OffsetFetchResponseGroup(asked.group_id, await _everything(context, call, found))
    offsets = {(each.topic_id, each.partition): each for each in found}
    topics = [await _topic(slices, each, topic, offsets) for each, topic in located]
    return OffsetFetchResponseGroup(asked.group_id, topics)


def _located(
    context: KafkaContext, call: KafkaCall, asked: OffsetFetchRequestTopics
) -> Topic | ErrorCode:
    """NONE for a topic that is not there, where it is named by its name."""
    if call.version >= _BY_ID_FROM:
        return locate_id(context, call, Operation.DESCRIBE, asked.topic_id)
    topic = locate_name(context, call, Operation.DESCRIBE, asked.name)
    return ErrorCode.NONE if topic is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else topic


async def _everything(
    context: KafkaContext, call: KafkaCall, fetched: Iterable[FetchedOffset]
) -> list[OffsetFetchResponseTopics]:
    """By topic; what belongs to topics deleted a moment ago, or to such as are none of the
    caller's business, is left out."""
    by_topic: dict[str, list[FetchedOffset]] = {}
    async for offset in call.slices.each(fetched):
        by_topic.setdefault(offset.topic_id, []).append(offset)
    found = []
    async for topic_id, offsets in call.slices.each(by_topic.items()):
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None and on_topic(context, call, Operation.DESCRIBE, topic.name, topic):
            rows = [_row(offset) for offset in offsets]
            found.append(OffsetFetchResponseTopics(topic.name, id_of(topic), rows))
    return found


async def _topic(
    slices: Slices, asked: OffsetFetchRequestTopics, topic: Topic | ErrorCode, offsets: Offsets
) -> OffsetFetchResponseTopics:
    indexes = asked.partition_indexes
    if isinstance(topic, Topic):
        topic_id = topic.topic_id
        rows = await slices.map(lambda index: _row(offsets[topic_id, index]), indexes)
    else:
        rows = await slices.map(lambda index: _nothing(index, topic), indexes)
    return OffsetFetchResponseTopics(asked.name, asked.topic_id, rows)


def _row(offset: FetchedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        offset.partition, offset.offset, offset.leader_epoch, offset.metadata, offset.code
    )


def _nothing(index: int, code: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(index, _NO_OFFSET, error_code=code)


async def _refused(
    call: KafkaCall, topics: Iterable[OffsetFetchRequestTopics], code: ErrorCode
) -> list[OffsetFetchResponseTopic]:
    return await _as_one(call, [await _topic(call.slices, each, code, {}) for each in topics])


async def _as_one(
    call: KafkaCall, topics: Sequence[OffsetFetchResponseTopics]
) -> list[OffsetFetchResponseTopic]:
    """In the shapes of the versions that know one group only: the same fields, other classes."""
    slices = call.slices
    found = []
    for each in topics:
        rows = await slices.map(_row_as_one, each.partitions)
        found.append(OffsetFetchResponseTopic(each.name, rows))
    return found


def _row_as_one(row: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        row.partition_index,
        row.committed_offset,
        row.committed_leader_epoch,
        row.metadata,
        row.error_code,
    )


ACTION = KafkaAction(KEY, run)
