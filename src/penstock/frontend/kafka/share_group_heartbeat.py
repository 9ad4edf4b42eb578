"""ShareGroupHeartbeat: a member of a share group is there, and learns which partitions it reads.

Before a member is told of a topic the group's share of it is opened, so that what is produced from
then on is found however long the first fetch takes. A group that has never read the topic begins
where ``share.auto.offset.reset`` says: behind the latest record, if it says nothing."""

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import LEAVE
from penstock.cursor.group.consumer_fold import to_map
from penstock.cursor.group.share import ShareHeartbeat, ShareReply
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.share_groups import open_share
from penstock.frontend.kafka.topics import find_id
from penstock.model.errors import InvalidRequest, PenstockError, client_text
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

KEY = 76


async def run(
    context: KafkaContext, call: KafkaCall, asked: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    names = asked.subscribed_topic_names
    if not asked.group_id:
        return _refused(asked, ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    refusal = await _refusal(context, call, asked)
    if refusal is not None:
        return _refused(asked, refusal, refusal.message)
    request = ShareHeartbeat(
        member_id=asked.member_id,
        member_epoch=asked.member_epoch,
        rack_id=asked.rack_id,
        topic_names=None if names is None else tuple(names),
        client_id=call.client_id,
        client_host=call.client_host,
    )
    reply = await context.groups.share_heartbeat(asked.group_id, request)
    if reply.code:
        return _refused(asked, ErrorCode(reply.code), reply.message)
    if asked.member_epoch != LEAVE:
        try:
            await _open_shares(context, asked.group_id, reply)
        except InvalidRequest as error:
            return _refused(asked, ErrorCode.INVALID_REQUEST, str(error))
        except PenstockError as error:
            # The client asks again, and the topic is not forgotten.
            return _refused(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE, client_text(error))
    return ShareGroupHeartbeatResponse(
        error_code=Code.NONE,
        member_id=asked.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=0 if asked.member_epoch == LEAVE else reply.settings.heartbeat_ms,
        assignment=_assignment(reply.assignment) if reply.is_news else None,
    )


async def _refusal(
    context: KafkaContext, call: KafkaCall, asked: ShareGroupHeartbeatRequest
) -> ErrorCode | None:
    if not on_group(context, call, Operation.READ, asked.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    for name in asked.subscribed_topic_names or ():
        if call.slices.is_over:
            await call.slices.next()
        if not on_topic(context, call, Operation.DESCRIBE, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None


async def _open_shares(context: KafkaContext, group_id: str, reply: ShareReply) -> None:
    for topic_id in {topic_id for topic_id, _ in reply.assignment}:
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None and context.shares.find_share(topic, group_id) is None:
            await open_share(context, topic, group_id, is_earliest=reply.settings.is_earliest)


def _refused(
    asked: ShareGroupHeartbeatRequest, code: ErrorCode, message: str | None
) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        error_code=code,
        error_message=message,
        member_id=asked.member_id or None,
    )


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        [
            TopicPartitions(bytes.fromhex(topic_id), indexes)
            for topic_id, indexes in to_map(partitions).items()
        ]
    )


ACTION = KafkaAction(KEY, run)
