"""LeaveGroup: members leave a classic group. Before version 3 one, whose error is the answer's."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)

KEY = 13
_MANY_FROM = 3


async def run(
    context: KafkaContext, call: KafkaCall, asked: LeaveGroupRequest
) -> LeaveGroupResponse:
    if not on_group(context, call, Operation.READ, asked.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if call.version < _MANY_FROM:
        reply = await context.groups.leave(asked.group_id, ((asked.member_id, None),))
        code = reply.code or next((code for _, _, code in reply.members), reply.code)
        return LeaveGroupResponse(error_code=code)
    leavers = [(each.member_id, each.group_instance_id) for each in asked.members]
    reply = await context.groups.leave(asked.group_id, leavers)
    return LeaveGroupResponse(
        error_code=reply.code, members=[MemberResponse(*each) for each in reply.members]
    )


ACTION = KafkaAction(KEY, run)
