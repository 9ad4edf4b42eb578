"""ShareAcknowledge: take acknowledgements as ShareFetch does, without fetching. The last request of
a member has the closing epoch: records that are not acknowledged by then are released."""

from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.sessions.share_sessions import CLOSING, OPENING, ShareSession
from penstock.frontend.kafka.shares.share_leases import acknowledge, close_session
from penstock.frontend.kafka.topic_lookup import find_id
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import share_acknowledge as wire

_LOCK_FROM = 2
_NO_LEADER = wire.LeaderIdAndEpoch(-1, -1)  # the leader has not changed


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    session = _session(call, request)
    if isinstance(session, ErrorCode):
        return wire.Response(error_code=session, error_message=session.message)
    slices = call.slices
    topics = []
    for each in request.topics:
        if slices.is_over:
            await slices.next()
        partitions = []
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            partitions.append(
                await _acknowledged(
                    call, session, each.topic_id, one, is_renewal=request.is_renew_ack
                )
            )
        topics.append(wire.ShareAcknowledgeTopicResponse(each.topic_id, partitions))
    if request.share_session_epoch == CLOSING:
        await close_session(call.context, session)
    lock_ms = call.context.groups.share_settings(session.group_id).lock_ms
    return wire.Response(
        acquisition_lock_timeout_ms=lock_ms if call.version >= _LOCK_FROM else 0, responses=topics
    )


def _session(call: KafkaCall, request: wire.Request) -> ShareSession | ErrorCode:
    if not on_group(call, Operation.READ, request.group_id or ""):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not request.group_id or not request.member_id:
        return ErrorCode.INVALID_REQUEST
    if request.share_session_epoch == OPENING:
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH  # only a fetch opens a session
    return call.context.share_sessions.go_on(
        request.group_id,
        request.member_id,
        request.share_session_epoch,
        account=call.context.account,
    )


async def _acknowledged(
    call: KafkaCall,
    session: ShareSession,
    topic_id: bytes,
    requested: wire.AcknowledgePartition,
    *,
    is_renewal: bool,
) -> wire.PartitionData:
    index = requested.partition_index
    topic = find_id(call.context, topic_id)
    if topic is not None and not on_topic(call, Operation.READ, topic.name, topic):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return wire.PartitionData(index, code, code.message, _NO_LEADER)
    code = await acknowledge(
        call.context,
        session,
        (topic_id, index),
        requested.acknowledgement_batches,
        is_renewal=is_renewal,
    )
    return wire.PartitionData(index, code, code.message or None, _NO_LEADER)
