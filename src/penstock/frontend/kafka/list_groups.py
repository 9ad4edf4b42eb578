"""ListGroups: all groups that the caller may describe, filtered by state (version 4) and type
(version 5). Who may describe the cluster may know of all of them."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_group
from penstock.wire.kafka.generated.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

KEY = 16


async def run(
    context: KafkaContext, call: KafkaCall, asked: ListGroupsRequest
) -> ListGroupsResponse:
    sees_all = on_cluster(context, call, Operation.DESCRIBE)
    code, found = await context.groups.list_groups(
        states=asked.states_filter, kinds=asked.types_filter
    )
    return ListGroupsResponse(
        error_code=code,
        groups=[
            ListedGroup(each.group_id, each.protocol_type, each.state, each.kind)
            async for each in call.slices.each(found)
            if sees_all or on_group(context, call, Operation.DESCRIBE, each.group_id)
        ],
    )


ACTION = KafkaAction(KEY, run)
