"""Handles DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets. Also
acknowledges, extends and releases the leases of share sessions. A share is the lease cursor of a
group over a topic.

The records of a member are released at once when it closes its session, opens another one, or loses
the connection of its session, so that other members need not wait until its leases expire. Leaving
the group does not release records, because the last acknowledgements may arrive after that."""

import asyncio
import logging
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
from penstock.frontend.kafka.sessions.share_sessions import (
    AckBatch,
    AckPlan,
    Place,
    ShareSession,
    are_valid,
)
from penstock.model import calls
from penstock.model.errors import PenstockError, client_text
from penstock.model.message import Claim
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Topic
from penstock.net.kafka.listener import KafkaConnection
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_share_group_offsets as alter_wire
from penstock.wire.kafka.generated import delete_share_group_offsets as delete_wire
from penstock.wire.kafka.generated import describe_share_group_offsets as describe_wire
from penstock.wire.kafka.primitives import ZERO_UUID

log = logging.getLogger("penstock.frontend.kafka")

_WATCHED = "share"  # key in a connection's session: ``_lost`` is called at its end
RELEASED_MS = 0
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
    """Return whether the share group exists. Raises ApiError if the group is missing, is of another
    kind or has members, unless the arguments allow that."""
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
        calls.OpenShare(topic, 0, group_id, start=start, attempts_max=DELIVERIES_MAX)
    )


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    """Return the start offset of each partition and, from version 1 on, the lag of the group."""
    groups, kind = [], describe_wire.DescribeShareGroupOffsetsResponseGroup
    async for requested in call.slices.each(request.groups):
        group_id = requested.group_id
        try:
            checks.check_group(call, Operation.DESCRIBE, group_id)
            await check_share_group(call.context, group_id, may_be_new=True)
        except API_ERRORS as error:
            groups.append(kind(group_id, **error_fields(error)))
            continue
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
        topics = []
        async for name, topic, indexes in call.slices.each(located):
            topic_id = checks.id_of(topic) if isinstance(topic, Topic) else ZERO_UUID
            partitions = [
                await _partition(call, group_id, topic, index)
                async for index in call.slices.each(indexes)
            ]
            topic_kind = describe_wire.DescribeShareGroupOffsetsResponseTopic
            topics.append(topic_kind(name, topic_id, partitions))
        groups.append(kind(group_id, topics))
    return describe_wire.Response(groups=groups)


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
        start_offset = await broker.call(calls.ShareStart(share, index))
        if call.version >= _LAG_FROM:
            lag = await broker.call(calls.ShareLag(share, index))
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
                await context.anywhere.call(calls.RestartShare(share, index, one.start_offset))
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
    """Delete the shares (lease cursors) of a group without members. It then starts as a new one."""
    await _check_empty_group(call, Operation.DELETE, request.group_id)
    topics = []
    async for each in call.slices.each(request.topics):
        name = each.topic_name
        try:
            checks.check_topic(call, Operation.READ, name)
            topic = checks.topic_named(call.context, name)
            await call.context.anywhere.call(calls.CloseShare(topic, request.group_id))
            reply = delete_wire.DeleteShareGroupOffsetsResponseTopic(name, checks.id_of(topic))
        except API_ERRORS as error:
            reply = delete_wire.DeleteShareGroupOffsetsResponseTopic(name, **error_fields(error))
        topics.append(reply)
    return delete_wire.Response(responses=topics)


async def open_session(
    context: KafkaContext,
    connection: KafkaConnection,
    group_id: str,
    member_id: str,
    places: Sequence[Place],
) -> ShareSession | ErrorCode:
    sessions, account = context.share_sessions, context.account
    older = sessions.find(group_id, member_id, account=account)
    if older is not None:
        await close_session(context, older)
        if sessions.find(group_id, member_id, account=account) is not None:
            # Another request has opened a session at the same time.
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session = sessions.open(group_id, member_id, connection, account=account)
    if isinstance(session, ErrorCode):
        return session
    if not session.add(places):
        sessions.close(session)
        return ErrorCode.INVALID_REQUEST
    if _WATCHED not in connection.session:
        connection.session[_WATCHED] = True
        connection.on_lost.append(lambda: _lost(context, connection))
    return session


def _lost(context: KafkaContext, connection: KafkaConnection) -> None:
    """Close the sessions of a lost connection, and release their records in the background."""
    for session in context.share_sessions.owned_by(connection):
        context.share_sessions.close(session)
        task = asyncio.get_running_loop().create_task(
            release_all(context, session), name="release of a share session"
        )
        context.share_releases.add(task)
        task.add_done_callback(context.share_releases.discard)


async def close_session(context: KafkaContext, session: ShareSession) -> None:
    context.share_sessions.close(session)
    await release_all(context, session)


async def release_all(context: KafkaContext, session: ShareSession) -> None:
    for place, claims in tuple(session.held()):
        await release(context, session, place, claims)


async def release(
    context: KafkaContext, session: ShareSession, place: Place, claims: Sequence[Claim]
) -> None:
    """Release leases. Errors are only logged, because the leases expire anyway."""
    share = share_at(context, session, place)
    if isinstance(share, ErrorCode):
        return
    given = [(claim, RELEASED_MS) for claim in claims]
    try:
        await context.anywhere.call(calls.Prolong(share, place[1], given))
    except PenstockError as error:
        log.info(
            "leases of a share session not released; they will expire",
            extra={"group": session.group_id, "count": len(claims), "reason": str(error)},
        )
    session.let_go(place, claims)


def share_at(context: KafkaContext, session: ShareSession, place: Place) -> Topic | ErrorCode:
    """Return the group's share (lease cursor) of a partition's topic, or an error code."""
    topic = checks.find_id(context, place[0])
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not checks.has_partition(topic, place[1]):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # The heartbeat that assigned the partition to the member has opened the share.
    share = context.anywhere.find_share(topic, session.group_id)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if share is None else share


async def acknowledge(
    context: KafkaContext,
    session: ShareSession,
    place: Place,
    batches: Sequence[AckBatch],
    *,
    is_renewal: bool,
) -> ErrorCode:
    """Process all acknowledgements of a partition, or none if one of the leases is missing."""
    if not are_valid(batches, is_renewal=is_renewal):
        return ErrorCode.INVALID_REQUEST
    share = share_at(context, session, place)
    if isinstance(share, ErrorCode):
        return share
    plan = session.plan(place, batches)
    if plan is None:
        return ErrorCode.INVALID_RECORD_STATE
    if plan.renewed and not context.groups.share_settings(session.group_id).is_renewable:
        return ErrorCode.INVALID_RECORD_STATE
    try:
        return await _carry_out(context, session, place, share, plan)
    except PenstockError as error:
        return partition_code(error)


async def _carry_out(
    context: KafkaContext, session: ShareSession, place: Place, share: Topic, plan: AckPlan
) -> ErrorCode:
    broker, partition = context.anywhere, place[1]
    results: list[Exception | None] = []
    # Claims are let go after each call, so that the rest is released if the request is cancelled.
    for claims, is_rejected in ((plan.accepted, False), (plan.rejected, True)):
        if claims:
            results += await broker.call(
                calls.Finish(share, partition, claims, is_rejected=is_rejected)
            )
            session.let_go(place, claims)
    if plan.released:
        given = [(claim, RELEASED_MS) for claim in plan.released]
        results += await broker.call(calls.Prolong(share, partition, given))
        session.let_go(place, plan.released)
    if plan.renewed:
        lock_ms = context.groups.share_settings(session.group_id).lock_ms
        given = [(claim, lock_ms) for claim in plan.renewed]
        renewed = await broker.call(calls.Prolong(share, partition, given))
        ends_at_ms = context.clock.mono_ms() + lock_ms
        pairs = list(zip(plan.renewed, renewed, strict=True))
        session.let_go(place, [claim for claim, error in pairs if error is not None])
        kept = [(claim.offset, claim.lease_seq, 0) for claim, error in pairs if error is None]
        session.hold(place, kept, ends_at_ms)
        results += renewed
    error = next((each for each in results if each is not None), None)
    if isinstance(error, PenstockError):
        return partition_code(error)
    return ErrorCode.NONE if error is None else ErrorCode.UNKNOWN_SERVER_ERROR
