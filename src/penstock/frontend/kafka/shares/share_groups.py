"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: how far share
groups have read. A share is the lease cursor of a group over a topic."""

from collections.abc import Sequence
from typing import Any

from penstock.cursor.coordinator_calls import DescribeGroup, MakeShareGroup
from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import (
    API_ERRORS,
    ApiError,
    api_error,
    error_fields,
    invalid_request,
    partition_code,
)
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.model.calls import CloseShare, OpenShare, RestartShare, ShareLag, ShareStart
from penstock.model.errors import PenstockError, client_text
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_share_group_offsets as alter_wire
from penstock.wire.kafka.generated import delete_share_group_offsets as delete_wire
from penstock.wire.kafka.generated import describe_share_group_offsets as describe_wire
from penstock.wire.kafka.primitives import ZERO_UUID

DELIVERIES_MAX = 5  # of one record; Kafka's default
_LAG_FROM = 1
_UNKNOWN = -1


async def check_share_group(
    context: KafkaContext,
    group_id: str,
    *,
    must_be_empty: bool = False,
    may_be_new: bool = False,
    may_be_other: bool = False,  # also allows groups of other kinds
) -> bool:
    """Return whether the share group exists. Raises ApiError if not, unless that is allowed."""
    found = await context.groups.call(DescribeGroup(group_id))
    if found.code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise ApiError(ErrorCode(found.code))
    is_missing = found.code or found.kind != "share"
    if (may_be_new and found.code) or (may_be_other and is_missing):
        return False
    if is_missing:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group_id}.")
    if must_be_empty and found.state != "Empty":
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} still has members.")
    return True


def shared_topics(context: KafkaContext, group_id: str) -> list[Topic]:
    """Return the topics that the group reads or has read, sorted by name."""
    found = context.catalog.topics(context.account, context.config.region)
    return [topic for topic in found if context.anywhere.find_share(topic, group_id) is not None]


async def open_share(
    context: KafkaContext, topic: Topic, group_id: str, *, is_earliest: bool
) -> Topic:
    start = EARLIEST if is_earliest else LATEST
    return await context.anywhere.call(
        OpenShare(topic, 0, group_id, start=start, attempts_max=DELIVERIES_MAX)
    )


async def describe_offsets(
    call: KafkaCall, request: describe_wire.Request
) -> describe_wire.Response:
    """Return the offset of the first unfinished record and, from version 1 on, the lag."""
    groups = [await _group(call, each) async for each in call.slices.each(request.groups)]
    return describe_wire.Response(groups=groups)


async def _group(
    call: KafkaCall, requested: describe_wire.DescribeShareGroupOffsetsRequestGroup
) -> describe_wire.DescribeShareGroupOffsetsResponseGroup:
    group_id = requested.group_id
    try:
        checks.check_group(call, Operation.DESCRIBE, group_id)
        await check_share_group(call.context, group_id, may_be_new=True)
    except API_ERRORS as error:
        return describe_wire.DescribeShareGroupOffsetsResponseGroup(group_id, **error_fields(error))
    located: list[tuple[str, Topic | ErrorCode, Sequence[int]]]
    if requested.topics is None:
        located = [
            (topic.name, topic, range(topic.partition_count))
            async for topic in call.slices.each(shared_topics(call.context, group_id))
            if on_topic(call, Operation.DESCRIBE, topic.name, topic)
        ]
    else:
        located = [
            (name, checks.locate_name(call, Operation.DESCRIBE, name), each.partitions)
            async for each in call.slices.each(requested.topics)
            for name in (each.topic_name,)
        ]
    topics = [
        describe_wire.DescribeShareGroupOffsetsResponseTopic(
            name,
            checks.id_of(topic) if isinstance(topic, Topic) else ZERO_UUID,
            [
                await _partition(call, group_id, topic, index)
                async for index in call.slices.each(indexes)
            ],
        )
        async for name, topic, indexes in call.slices.each(located)
    ]
    return describe_wire.DescribeShareGroupOffsetsResponseGroup(group_id, topics)


async def _partition(
    call: KafkaCall, group_id: str, topic: Topic | ErrorCode, index: int
) -> describe_wire.DescribeShareGroupOffsetsResponsePartition:
    reply = describe_wire.DescribeShareGroupOffsetsResponsePartition
    broker, lag = call.context.anywhere, _UNKNOWN
    try:
        if isinstance(topic, ErrorCode):
            raise ApiError(topic)
        share = broker.find_share(checks.check_partition(topic, index), group_id)
        if share is None:
            return reply(index, _UNKNOWN)  # the group has never read the topic
        start_offset = await broker.call(ShareStart(share, index))
        if call.version >= _LAG_FROM:
            lag = await broker.call(ShareLag(share, index))
    except ApiError as error:
        return reply(index, _UNKNOWN, **error_fields(error))
    except PenstockError as error:
        code, message = partition_code(error), client_text(error)
        return reply(index, _UNKNOWN, error_code=code, error_message=message)
    return reply(index, start_offset, call.context.brokers.place(topic, index).epoch, lag)


async def alter_offsets(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    """Set the start offsets of a share group without members, and delete its leases, delivery
    counts and acks. An unknown group is created with the first valid offset, so that an operator
    can choose where a new group starts."""
    context, group_id = call.context, request.group_id
    exists = await _check_empty_group(call, Operation.READ, group_id, may_be_new=True)
    topics = []
    async for each in call.slices.each(request.topics):
        partitions = []
        async for one in call.slices.each(each.partitions):
            index, fields = one.partition_index, dict[str, Any]()
            try:
                checks.check_topic(call, Operation.READ, each.topic_name)
                topic = checks.check_partition(checks.topic_named(context, each.topic_name), index)
                if one.start_offset < 0:
                    raise invalid_request(f"Invalid offset {one.start_offset}: use 0 or more.")
                if not exists:
                    made = await context.groups.call(MakeShareGroup(group_id))
                    if made.code:
                        text = f"Share group {group_id} could not be created."
                        raise ApiError(ErrorCode(made.code), text)
                    exists = True
                is_earliest = context.groups.share_settings(group_id).is_earliest
                share = await open_share(context, topic, group_id, is_earliest=is_earliest)
                await context.anywhere.call(RestartShare(share, index, one.start_offset))
            except API_ERRORS as error:
                fields = error_fields(error)
            partitions.append(alter_wire.AlterShareGroupOffsetsResponsePartition(index, **fields))
        found = checks.locate_name(call, Operation.READ, each.topic_name)
        topic_id = checks.id_of(found) if isinstance(found, Topic) else ZERO_UUID
        topics.append(
            alter_wire.AlterShareGroupOffsetsResponseTopic(each.topic_name, topic_id, partitions)
        )
    return alter_wire.Response(responses=topics)


async def _check_empty_group(
    call: KafkaCall, operation: Operation, group_id: str, *, may_be_new: bool = False
) -> bool:
    """Return whether the share group exists. Raises ApiError if it has members."""
    try:
        checks.check_group(call, operation, group_id)
        return await check_share_group(
            call.context, group_id, must_be_empty=True, may_be_new=may_be_new
        )
    except API_ERRORS as error:
        raise api_error(error) from None


async def delete_offsets(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    """Delete the shares of a group without members, so that it starts again in these topics."""
    await _check_empty_group(call, Operation.DELETE, request.group_id)
    topics = []
    async for each in call.slices.each(request.topics):
        name = each.topic_name
        try:
            checks.check_topic(call, Operation.READ, name)
            topic = checks.topic_named(call.context, name)
            await call.context.anywhere.call(CloseShare(topic, request.group_id))
            reply = delete_wire.DeleteShareGroupOffsetsResponseTopic(name, checks.id_of(topic))
        except API_ERRORS as error:
            reply = delete_wire.DeleteShareGroupOffsetsResponseTopic(name, **error_fields(error))
        topics.append(reply)
    return delete_wire.Response(responses=topics)
