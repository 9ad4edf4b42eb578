"""ConsumerGroupHeartbeat and ShareGroupHeartbeat: members of groups whose partitions the
coordinator assigns (KIP-848, KIP-932) send their state and get their assignment."""

from collections.abc import Sequence
from typing import Any

from penstock.cursor.coordinator_calls import BeatConsumer, BeatShare
from penstock.cursor.groups.assigned import JOIN, LEAVE
from penstock.cursor.groups.assignors import Partitions, to_map
from penstock.cursor.groups.consumer import ConsumerHeartbeat
from penstock.cursor.groups.share import ShareHeartbeat, ShareReply
from penstock.cursor.patterns.matches import TopicVisibility
from penstock.frontend.kafka.checks import check_group, check_topic
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.frontend.kafka.shares.share_groups import open_share
from penstock.frontend.kafka.topic_lookup import find_id
from penstock.model.errors import InvalidRequest, PenstockError, client_text
from penstock.model.names import uuid_text
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import consumer_group_heartbeat as consumer_wire
from penstock.wire.kafka.generated import share_group_heartbeat as share_wire

_OWN_ID_FROM = 1


async def check_heartbeat(call: KafkaCall, group_id: str, names: Sequence[str] | None) -> None:
    """Raises ApiError unless the caller may read the group and describe the topics."""
    if not group_id:
        raise invalid_request("GroupId can't be empty.")
    check_group(call, Operation.READ, group_id)
    async for name in call.slices.each(names or ()):
        check_topic(call, Operation.DESCRIBE, name)


# ── Consumer groups ──────────────────────────────────────────────────────────────────────────


async def consumer(call: KafkaCall, request: consumer_wire.Request) -> consumer_wire.Response:
    try:
        await check_heartbeat(call, request.group_id, request.subscribed_topic_names)
    except ApiError as error:
        return consumer_wire.Response(**error_fields(error), member_id=request.member_id or None)
    heartbeat = _consumer_heartbeat(call, request)
    reply = await call.context.groups.call(
        BeatConsumer(request.group_id, heartbeat, visibility=_visible_topics(call))
    )
    return consumer_wire.Response(
        error_code=reply.code,
        error_message=reply.message,
        member_id=reply.member_id or heartbeat.member_id or None,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_ms,
        assignment=None
        if reply.assignment is None
        else consumer_wire.Assignment(
            [
                consumer_wire.ConsumerGroupHeartbeatResponseTopicPartitions(*each)
                for each in _by_topic(reply.assignment)
            ]
        ),
    )


def _visible_topics(call: KafkaCall) -> TopicVisibility | None:
    """For the coordinator: a pattern of the member must match only topics that the caller may
    read. None: all topics."""
    if call.caller.is_trusted:
        return None
    return TopicVisibility(
        call.context.identities.epoch, lambda name: on_topic(call, Operation.READ, name)
    )


def _consumer_heartbeat(call: KafkaCall, request: consumer_wire.Request) -> ConsumerHeartbeat:
    member_id = request.member_id
    if not member_id and request.member_epoch == JOIN and call.version < _OWN_ID_FROM:
        member_id = uuid_text(call.context.entropy(16))
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset((each.topic_id.hex(), index) for each in owned for index in each.partitions),
        client_id=call.client_id,
        client_host=call.client_host,
    )


# ── Share groups ─────────────────────────────────────────────────────────────────────────────


async def share(call: KafkaCall, request: share_wire.Request) -> share_wire.Response:
    try:
        reply = await _share_reply(call, request)
    except ApiError as error:
        return share_wire.Response(**error_fields(error), member_id=request.member_id or None)
    assignment = [share_wire.TopicPartitions(*each) for each in _by_topic(reply.assignment)]
    return share_wire.Response(
        member_id=request.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=0 if request.member_epoch == LEAVE else reply.settings.heartbeat_ms,
        assignment=share_wire.Assignment(assignment) if reply.is_news else None,
    )


async def _share_reply(call: KafkaCall, request: share_wire.Request) -> ShareReply:
    """Raises ApiError."""
    group_id, names = request.group_id, request.subscribed_topic_names
    await check_heartbeat(call, group_id, names)
    heartbeat = ShareHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        topic_names=None if names is None else tuple(names),
        client_id=call.client_id,
        client_host=call.client_host,
    )
    reply = await call.context.groups.call(BeatShare(group_id, heartbeat))
    if reply.code:
        raise ApiError(reply.code, reply.message)
    if request.member_epoch != LEAVE:
        try:
            await _open_shares(call, group_id, reply)
        except InvalidRequest as error:
            raise invalid_request(str(error)) from None
        except PenstockError as error:
            # The client retries, so the topic is not forgotten.
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, client_text(error)) from None
    return reply


async def _open_shares(call: KafkaCall, group_id: str, reply: ShareReply) -> None:
    """Open the group's share of each assigned topic before the member learns of the topic: then
    records produced from now on are found, however late the first fetch is. A group that has never
    read the topic begins where ``share.auto.offset.reset`` says; by default after the latest
    record."""
    for topic_id in {topic_id for topic_id, _ in reply.assignment}:
        topic = find_id(call.context, bytes.fromhex(topic_id))
        if topic is not None and call.context.anywhere.find_share(topic, group_id) is None:
            is_earliest = reply.settings.is_earliest
            await open_share(call.context, topic, group_id, is_earliest=is_earliest)


def _by_topic(partitions: Partitions) -> Any:
    """Return topic ids, each with its partitions."""
    return [(bytes.fromhex(topic_id), indexes) for topic_id, indexes in to_map(partitions).items()]
