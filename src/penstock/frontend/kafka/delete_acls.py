"""DeleteAcls: delete all access rules of the caller's account that fit any of the filters. What the
rules allowed is denied from the next request on, also to clients that are logged in. Only operators
can delete rules that are statements of an operator's policy; to others, the reply has an error for
each of these rules."""

from collections.abc import Mapping

from penstock.frontend.kafka.acls import check_filter, is_wanted
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.policy_acls import AclPolicies, check_may_change
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.acls import Acl
from penstock.model.errors import NotFound
from penstock.model.identity import User
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

KEY = 31


async def run(
    context: KafkaContext, call: KafkaCall, asked: DeleteAclsRequest
) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            await _deleted(context, call, each) async for each in call.slices.each(asked.filters)
        ]
    )


async def _deleted(
    context: KafkaContext, call: KafkaCall, wanted: DeleteAclsFilter
) -> DeleteAclsFilterResult:
    try:
        _check(context, call, wanted)
        matching = await _delete_stored(context, call, wanted)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return DeleteAclsFilterResult(refusal.code, refusal.message)
    async for user in call.slices.each(list(context.identities.users(context.account))):
        for rule, why in (await _delete_of_user(context, call, user, wanted)).items():
            matching[rule] = matching.get(rule) or why  # it can be stored as well
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[_matching(*each) async for each in call.slices.each(list(matching.items()))],
    )


def _check(context: KafkaContext, call: KafkaCall, wanted: DeleteAclsFilter) -> None:
    if not context.config.is_auth_on or context.changes is None:
        raise Refusal(ErrorCode.SECURITY_DISABLED)
    if not on_cluster(context, call, Operation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    check_filter(wanted)


async def _delete_stored(
    context: KafkaContext, call: KafkaCall, wanted: DeleteAclsFilter
) -> dict[Acl, Refusal | None]:
    assert context.changes is not None
    gone = [
        rule
        async for rule in call.slices.each(list(context.identities.acls(context.account) or ()))
        if is_wanted(rule, wanted)
    ]
    if gone:
        await context.changes.remove_acls(context.account, gone)
    return dict.fromkeys(gone)


async def _delete_of_user(
    context: KafkaContext, call: KafkaCall, user: User, wanted: DeleteAclsFilter
) -> Mapping[Acl, Refusal | None]:
    """Those that are statements of the user's policy."""
    assert context.changes is not None
    policies = AclPolicies(account=context.account, region=context.config.region)
    gone = [rule for rule in policies.rules_of(user) if is_wanted(rule, wanted)]
    if not gone:
        return {}
    removed = frozenset(gone)

    def change(before: User) -> User:
        check_may_change(call.caller, before)
        return policies.without_rules(before, removed)

    try:
        await context.changes.change_user(context.account, user.name, change)
    except NotFound:
        pass  # the user is gone, and its rules with it
    except REFUSALS as error:
        return dict.fromkeys(gone, refusal_of(error))
    return dict.fromkeys(gone)


def _matching(rule: Acl, refusal: Refusal | None) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission_type,
    )


ACTION = KafkaAction(KEY, run)
