"""ShareAcknowledge: what ShareFetch takes on the way, without fetching. The last request of a
member that stops carries the closing epoch: what it has not acknowledged by then is released."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.share_leases import acknowledge, close_session
from penstock.frontend.kafka.share_sessions import CLOSING, OPENING, ShareSession
from penstock.frontend.kafka.topics import find_id
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.share_acknowledge import (
    AcknowledgePartition,
    LeaderIdAndEpoch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

KEY = 79
_LOCK_FROM = 2
_NO_LEADER = LeaderIdAndEpoch(-1, -1)  # the one that answers goes on leading


async def run(
    context: KafkaContext, call: KafkaCall, asked: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    session = _session(context, call, asked)
    if isinstance(session, ErrorCode):
        return ShareAcknowledgeResponse(error_code=session, error_message=session.message)
    slices = call.slices
    topics = []
    for each in asked.topics:
        if slices.is_over:
            await slices.next()
        partitions = []
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            partitions.append(
                await _acknowledged(
                    context, call, session, each.topic_id, one, is_renewal=asked.is_renew_ack
                )
            )
        topics.append(ShareAcknowledgeTopicResponse(each.topic_id, partitions))
    if asked.share_session_epoch == CLOSING:
        await close_session(context, session)
    lock_ms = context.groups.share_settings(session.group_id).lock_ms
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_ms if call.version >= _LOCK_FROM else 0,
        responses=topics,
    )


def _session(
    context: KafkaContext, call: KafkaCall, asked: ShareAcknowledgeRequest
) -> ShareSession | ErrorCode:
    if not on_group(context, call, Operation.READ, asked.group_id or ""):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not asked.group_id or not asked.member_id:
        return ErrorCode.INVALID_REQUEST
    if asked.share_session_epoch == OPENING:
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH  # only a fetch opens one
    return context.share_sessions.go_on(
        asked.group_id, asked.member_id, asked.share_session_epoch, account=context.account
    )


async def _acknowledged(
    context: KafkaContext,
    call: KafkaCall,
    session: ShareSession,
    topic_id: bytes,
    asked: AcknowledgePartition,
    *,
    is_renewal: bool,
) -> PartitionData:
    index = asked.partition_index
    topic = find_id(context, topic_id)
    if topic is not None and not on_topic(context, call, Operation.READ, topic.name, topic):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return PartitionData(index, code, code.message, _NO_LEADER)
    code = await acknowledge(
        context, session, (topic_id, index), asked.acknowledgement_batches, is_renewal=is_renewal
    )
    return PartitionData(index, code, code.message or None, _NO_LEADER)


ACTION = KafkaAction(KEY, run)
