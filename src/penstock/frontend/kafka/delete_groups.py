"""DeleteGroups: groups without members, with all they have committed."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.generated.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

KEY = 42


async def run(
    context: KafkaContext, _call: KafkaCall, asked: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results = []
    for group_id in asked.groups_names:
        reply = await context.groups.delete_group(group_id)
        results.append(DeletableGroupResult(group_id, reply.code))
    return DeleteGroupsResponse(results=results)


ACTION = KafkaAction(KEY, run)
