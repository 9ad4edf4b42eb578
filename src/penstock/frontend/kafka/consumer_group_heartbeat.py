"""ConsumerGroupHeartbeat: everything a member of a group says that the coordinator assigns
(KIP-848), and what it is told. Version 0 lets the coordinator choose the member's id, which is done
here; later clients bring their own. A pattern finds no topic that the caller may not read: with
each heartbeat the coordinator is told how to find that out."""

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.consumer import JOIN, ConsumerHeartbeat
from penstock.cursor.group.consumer_fold import to_map
from penstock.cursor.group.sight import Sight
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.names import uuid_text
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

KEY = 68
_OWN_ID_FROM = 1


async def run(
    context: KafkaContext, call: KafkaCall, asked: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    refusal = await _refusal(context, call, asked)
    if refusal is not None:
        return ConsumerGroupHeartbeatResponse(
            error_code=refusal.code,
            error_message=refusal.message,
            member_id=asked.member_id or None,
        )
    request = _request(context, call, asked)
    reply = await context.groups.consumer_heartbeat(
        asked.group_id, request, sight=_sight(context, call)
    )
    return ConsumerGroupHeartbeatResponse(
        error_code=reply.code,
        error_message=reply.message,
        member_id=reply.member_id or request.member_id or None,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_ms,
        assignment=None if reply.assignment is None else _assignment(reply.assignment),
    )


async def _refusal(
    context: KafkaContext, call: KafkaCall, asked: ConsumerGroupHeartbeatRequest
) -> Refusal | None:
    if not asked.group_id:
        return Refusal(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if not on_group(context, call, Operation.READ, asked.group_id):
        return Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    for name in asked.subscribed_topic_names or ():
        if call.slices.is_over:
            await call.slices.next()
        if not on_topic(context, call, Operation.DESCRIBE, name):
            return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


def _sight(context: KafkaContext, call: KafkaCall) -> Sight | None:
    if call.caller.is_trusted:
        return None
    return Sight(
        context.identities.epoch, lambda name: on_topic(context, call, Operation.READ, name)
    )


def _request(
    context: KafkaContext, call: KafkaCall, asked: ConsumerGroupHeartbeatRequest
) -> ConsumerHeartbeat:
    member_id = asked.member_id
    if not member_id and asked.member_epoch == JOIN and call.version < _OWN_ID_FROM:
        member_id = uuid_text(context.entropy(16))
    names = asked.subscribed_topic_names
    owned = asked.topic_partitions
    return ConsumerHeartbeat(
        member_id=member_id,
        member_epoch=asked.member_epoch,
        instance_id=asked.instance_id,
        rack_id=asked.rack_id,
        rebalance_ms=asked.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(names),
        topic_regex=asked.subscribed_topic_regex,
        assignor=asked.server_assignor,
        owned=None
        if owned is None
        else frozenset((each.topic_id.hex(), index) for each in owned for index in each.partitions),
        client_id=call.client_id,
        client_host=call.client_host,
    )


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        [
            ConsumerGroupHeartbeatResponseTopicPartitions(bytes.fromhex(topic_id), indexes)
            for topic_id, indexes in to_map(partitions).items()
        ]
    )


ACTION = KafkaAction(KEY, run)
