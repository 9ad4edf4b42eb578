"""DeleteGroups: delete groups without members, with their offsets; share groups with their shares
of all topics."""

from penstock.cursor.coordinator_calls import DeleteGroup
from penstock.frontend.kafka.checks import check_group
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.shares.share_groups import check_share_group, shared_topics
from penstock.model.calls import CloseShare
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import delete_groups as wire


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    results = []
    async for group_id in call.slices.each(dict.fromkeys(request.groups_names)):
        try:
            check_group(call, Operation.DELETE, group_id)
            await _close_shares(call.context, group_id)
        except API_ERRORS as error:
            results.append(wire.DeletableGroupResult(group_id, api_error(error).code))
            continue
        reply = await call.context.groups.call(DeleteGroup(group_id))
        results.append(wire.DeletableGroupResult(group_id, reply.code))
    return wire.Response(results=results)


async def _close_shares(context: KafkaContext, group_id: str) -> None:
    """Close the shares first: a later group of the same name must not find them."""
    try:
        await check_share_group(context, group_id, must_be_empty=True)
    except ApiError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return  # it may be of another kind
        raise
    for topic in shared_topics(context, group_id):
        await context.anywhere.call(CloseShare(topic, group_id))
