"""JoinGroup: become a member, or one of the next generation; parked until all have joined.

A new member gets its id from here. From version 4 on it is told so first and joins again with it
(MEMBER_ID_REQUIRED), unless it is static and known by its instance id."""

from penstock.cursor.group.classic_state import JoinReply, JoinRequest
from penstock.cursor.group.codes import Code
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.model.limits import MIB
from penstock.model.names import uuid_text
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

KEY = 11
_CONFIRMS_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIPS_ASSIGNMENT_FROM = 9
# Names of ten thousand topics for two assignors; kept in memory and in the log as long as the
# member is there.
METADATA_BYTES_MAX = MIB
PREFIX_CHARS_MAX = 255  # of what a member's id begins with, for people who read logs


async def run(context: KafkaContext, call: KafkaCall, asked: JoinGroupRequest) -> JoinGroupResponse:
    if not on_group(context, call, Operation.READ, asked.group_id):
        return JoinGroupResponse(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            protocol_name="" if call.version < _NULL_PROTOCOL_FROM else None,
            member_id=asked.member_id,
        )
    if sum(len(each.metadata) for each in asked.protocols) > METADATA_BYTES_MAX:
        reply = JoinReply(Code.INVALID_REQUEST, member_id=asked.member_id)
    else:
        reply = await context.groups.join(asked.group_id, _request(context, call, asked))
    protocol = reply.protocol
    if call.version < _NULL_PROTOCOL_FROM:
        protocol = protocol or ""
    return JoinGroupResponse(
        error_code=reply.code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id or asked.member_id,
        members=[JoinGroupResponseMember(*member) for member in reply.members],
    )


def _request(context: KafkaContext, call: KafkaCall, asked: JoinGroupRequest) -> JoinRequest:
    prefix = asked.group_instance_id or call.client_id
    return JoinRequest(
        member_id=asked.member_id,
        fresh_member_id=f"{prefix[:PREFIX_CHARS_MAX]}-{uuid_text(context.entropy(16))}",
        session_ms=asked.session_timeout_ms,
        rebalance_ms=asked.rebalance_timeout_ms,
        protocol_type=asked.protocol_type,
        protocols=tuple((each.name, each.metadata) for each in asked.protocols),
        instance_id=asked.group_instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        confirms_id=call.version >= _CONFIRMS_ID_FROM,
        can_skip_assignment=call.version >= _SKIPS_ASSIGNMENT_FROM,
    )


ACTION = KafkaAction(KEY, run)
