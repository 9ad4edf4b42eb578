"""DescribeGroups: classic groups with their members. A group that is not there is Dead, which was
no error before version 6; one of the other kind is not there for this API."""

from penstock.cursor.group.classic_state import State
from penstock.cursor.group.codes import Code
from penstock.cursor.group.describe import Description
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import (
    UNASKED,
    Operation,
    group_operations,
    on_group,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

KEY = 15
_MISSING_IS_ERROR_FROM = 6


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    groups = []
    async for group_id in call.slices.each(dict.fromkeys(asked.groups)):
        if not on_group(context, call, Operation.DESCRIBE, group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            groups.append(DescribedGroup(code, code.message, group_id))
            continue
        operations = UNASKED
        if asked.include_authorized_operations:
            operations = group_operations(context, call, group_id)
        found = await context.groups.describe(group_id)
        if found.code is Code.NONE and found.kind == "classic":
            groups.append(_described(found, operations))
        elif found.code in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            groups.append(_missing(group_id, call.version, operations))
        else:
            groups.append(DescribedGroup(found.code, group_id=group_id))
    return DescribeGroupsResponse(groups=groups)


def _missing(group_id: str, version: int, operations: int) -> DescribedGroup:
    is_error = version >= _MISSING_IS_ERROR_FROM
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=f"There is no classic group {group_id}." if is_error else None,
        group_id=group_id,
        group_state=State.DEAD,
        authorized_operations=operations,
    )


def _described(found: Description, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=found.group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=[
            DescribedGroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.metadata,
                each.assignment,
            )
            for each in found.classic_members
        ],
        authorized_operations=operations,
    )


ACTION = KafkaAction(KEY, run)
