"""DeleteAcls: all access rules of the caller's account that fit any of the filters go. Who is
logged in loses what they allowed with its next request. Rules of an operator stay unless the caller
is an operator; the reply names them with an error each."""

from penstock.frontend.kafka.acls import Acl, AclPolicies, check_filter, check_may_change, is_wanted
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
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
    except Refusal as refusal:
        return DeleteAclsFilterResult(refusal.code, refusal.message)
    matching = []
    async for user in call.slices.each(list(context.identities.users(context.account))):
        matching += await _deleted_of(context, call, user, wanted)
    return DeleteAclsFilterResult(error_message=None, matching_acls=matching)


def _check(context: KafkaContext, call: KafkaCall, wanted: DeleteAclsFilter) -> None:
    if not context.config.is_auth_on or context.changes is None:
        raise Refusal(ErrorCode.SECURITY_DISABLED)
    if not on_cluster(context, call, Operation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    check_filter(wanted)


async def _deleted_of(
    context: KafkaContext, call: KafkaCall, user: User, wanted: DeleteAclsFilter
) -> list[DeleteAclsMatchingAcl]:
    assert context.changes is not None
    policies = AclPolicies(account=context.account, region=context.config.region)
    gone = [rule for rule in policies.rules_of(user) if is_wanted(rule, wanted)]
    if not gone:
        return []
    removed = frozenset(gone)
    code, message = ErrorCode.NONE, None

    def change(before: User) -> User:
        check_may_change(call.caller, before)
        return policies.without_rules(before, removed)

    try:
        await context.changes.change_user(context.account, user.name, change)
    except NotFound:
        pass  # the user is gone, and its rules with it
    except REFUSALS as error:
        refusal = refusal_of(error)
        code, message = refusal.code, refusal.message
    return [_matching(rule, code, message) for rule in gone]


def _matching(rule: Acl, code: ErrorCode, message: str | None) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=code,
        error_message=message,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission_type,
    )


ACTION = KafkaAction(KEY, run)
