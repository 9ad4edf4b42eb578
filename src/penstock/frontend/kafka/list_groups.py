"""ListGroups: all groups of this node, filtered by state (version 4) and type (version 5)."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.generated.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

KEY = 16


async def run(
    context: KafkaContext, _call: KafkaCall, asked: ListGroupsRequest
) -> ListGroupsResponse:
    code, found = await context.groups.list_groups(
        states=asked.states_filter, kinds=asked.types_filter
    )
    return ListGroupsResponse(
        error_code=code,
        groups=[
            ListedGroup(each.group_id, each.protocol_type, each.state, each.kind.capitalize())
            for each in found
        ],
    )


ACTION = KafkaAction(KEY, run)
