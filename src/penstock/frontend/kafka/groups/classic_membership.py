"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the members of classic groups."""

from penstock.cursor.coordinator_calls import Heartbeat, Join, Leave, Sync
from penstock.cursor.groups.classic.classic_state import JoinReply, JoinRequest, SyncRequest
from penstock.frontend.kafka.checks import check_group
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.model.limits import MIB
from penstock.model.names import uuid_text
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import heartbeat as heartbeat_wire
from penstock.wire.kafka.generated import join_group as join_wire
from penstock.wire.kafka.generated import leave_group as leave_wire
from penstock.wire.kafka.generated import sync_group as sync_wire

_CONFIRMS_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIPS_ASSIGNMENT_FROM = 9
_SYNC_NEEDS_PROTOCOL_FROM = 5
_SEVERAL_LEAVE_FROM = 3
# Names of ten thousand topics for two assignors; kept in memory and in the log as long as the
# member is in the group.
METADATA_BYTES_MAX = MIB
PREFIX_CHARS_MAX = 255  # of the client or instance id that a member id begins with


async def join(call: KafkaCall, request: join_wire.Request) -> join_wire.Response:
    """Make the client a member of the next generation; waits until all members have joined.

    A new member gets its id from this node. From version 4 on the first reply only contains the id
    (MEMBER_ID_REQUIRED) and the member joins again with it, unless it has an instance id."""
    if not on_group(call, Operation.READ, request.group_id):
        reply = JoinReply(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif sum(len(each.metadata) for each in request.protocols) > METADATA_BYTES_MAX:
        reply = JoinReply(ErrorCode.INVALID_REQUEST)
    else:
        reply = await call.context.groups.call(Join(request.group_id, _join_request(call, request)))
    protocol = reply.protocol
    if call.version < _NULL_PROTOCOL_FROM:
        protocol = protocol or ""
    return join_wire.Response(
        error_code=reply.code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id or request.member_id,
        members=[join_wire.JoinGroupResponseMember(*member) for member in reply.members],
    )


def _join_request(call: KafkaCall, request: join_wire.Request) -> JoinRequest:
    prefix = request.group_instance_id or call.client_id
    return JoinRequest(
        member_id=request.member_id,
        fresh_member_id=f"{prefix[:PREFIX_CHARS_MAX]}-{uuid_text(call.context.entropy(16))}",
        session_ms=request.session_timeout_ms,
        rebalance_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, each.metadata) for each in request.protocols),
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        confirms_id=call.version >= _CONFIRMS_ID_FROM,
        can_skip_assignment=call.version >= _SKIPS_ASSIGNMENT_FROM,
    )


async def sync(call: KafkaCall, request: sync_wire.Request) -> sync_wire.Response:
    """Return the assignment of a member, once the leader has sent the assignments of all."""
    check_group(call, Operation.READ, request.group_id)
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if call.version >= _SYNC_NEEDS_PROTOCOL_FROM and not has_protocol:
        return sync_wire.Response(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    sync_request = SyncRequest(
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    reply = await call.context.groups.call(Sync(request.group_id, sync_request))
    return sync_wire.Response(
        error_code=reply.code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


async def heartbeat(call: KafkaCall, request: heartbeat_wire.Request) -> heartbeat_wire.Response:
    """Keep a member in its group. The code of the reply may tell the member to join again."""
    check_group(call, Operation.READ, request.group_id)
    reply = await call.context.groups.call(
        Heartbeat(
            request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        )
    )
    return heartbeat_wire.Response(error_code=reply.code)


async def leave(call: KafkaCall, request: leave_wire.Request) -> leave_wire.Response:
    """Remove members. Before version 3 it is one member, whose error is that of the reply."""
    check_group(call, Operation.READ, request.group_id)
    if call.version < _SEVERAL_LEAVE_FROM:
        reply = await call.context.groups.call(
            Leave(request.group_id, ((request.member_id, None),))
        )
        code = reply.code or next((code for _, _, code in reply.members), reply.code)
        return leave_wire.Response(error_code=code)
    leavers = [(each.member_id, each.group_instance_id) for each in request.members]
    reply = await call.context.groups.call(Leave(request.group_id, leavers))
    return leave_wire.Response(
        error_code=reply.code, members=[leave_wire.MemberResponse(*each) for each in reply.members]
    )
