"""DeleteGroups: groups without members, with all they have committed; share groups with their place
in every topic."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_group
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.share_groups import check_share_group, shared_topics
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

KEY = 42


async def run(
    context: KafkaContext, call: KafkaCall, asked: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    results = []
    async for group_id in call.slices.each(dict.fromkeys(asked.groups_names)):
        try:
            check_group(context, call, Operation.DELETE, group_id)
            await _close_shares(context, group_id)
        except REFUSALS as error:
            results.append(DeletableGroupResult(group_id, refusal_of(error).code))
            continue
        reply = await context.groups.delete_group(group_id)
        results.append(DeletableGroupResult(group_id, reply.code))
    return DeleteGroupsResponse(results=results)


async def _close_shares(context: KafkaContext, group_id: str) -> None:
    """Before the group goes: a group of the same name must not find what this one left."""
    try:
        await check_share_group(context, group_id, must_be_empty=True)
    except Refusal as refusal:
        if refusal.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return  # of another kind, perhaps
        raise
    for topic in shared_topics(context, group_id):
        await context.shares.close_share(topic, group_id)


ACTION = KafkaAction(KEY, run)
