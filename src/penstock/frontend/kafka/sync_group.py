"""SyncGroup: the leader brings everyone's share, the others wait for theirs."""

from penstock.cursor.group.classic_state import SyncRequest
from penstock.cursor.group.codes import Code
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.sync_group import SyncGroupRequest, SyncGroupResponse

KEY = 14
_PROTOCOL_REQUIRED_FROM = 5


async def run(context: KafkaContext, call: KafkaCall, asked: SyncGroupRequest) -> SyncGroupResponse:
    if not on_group(context, call, Operation.READ, asked.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    is_unsaid = asked.protocol_type is None or asked.protocol_name is None
    if call.version >= _PROTOCOL_REQUIRED_FROM and is_unsaid:
        return SyncGroupResponse(error_code=Code.INCONSISTENT_GROUP_PROTOCOL)
    reply = await context.groups.sync(
        asked.group_id,
        SyncRequest(
            member_id=asked.member_id,
            generation=asked.generation_id,
            instance_id=asked.group_instance_id,
            protocol_type=asked.protocol_type,
            protocol=asked.protocol_name,
            assignments=tuple((each.member_id, each.assignment) for each in asked.assignments),
        ),
    )
    return SyncGroupResponse(
        error_code=reply.code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


ACTION = KafkaAction(KEY, run)
