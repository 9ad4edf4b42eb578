"""CreateAcls: access rules for users, each kept in a policy of the user it is about (``acls.py``).

Refused with authentication off: a rule that was taken and never looked at would be a promise
broken. Rules about an operator are for operators to make."""

from penstock.frontend.kafka.acls import Acl, AclPolicies, check, check_may_change, user_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.errors import NotFound
from penstock.model.identity import User
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)

KEY = 30


async def run(
    context: KafkaContext, call: KafkaCall, asked: CreateAclsRequest
) -> CreateAclsResponse:
    code = refusal_of_all(context, call)
    if code is not None:
        refused = AclCreationResult(code, code.message)
        return CreateAclsResponse(results=[refused for _ in asked.creations])
    refusals: dict[int, Refusal] = {}
    by_user: dict[str, dict[int, Acl]] = {}  # rules by their place in the request
    async for place, creation in call.slices.each(enumerate(asked.creations)):
        rule = _rule(creation)
        try:
            check(rule)
            by_user.setdefault(user_of(rule.principal), {})[place] = rule
        except Refusal as refusal:
            refusals[place] = refusal
    async for user, rules in call.slices.each(by_user.items()):
        try:
            await _add(context, call, user, list(rules.values()))
        except REFUSALS as error:
            refusals |= dict.fromkeys(rules, refusal_of(error))
    return CreateAclsResponse(
        results=[_result(refusals.get(place)) for place in range(len(asked.creations))]
    )


def refusal_of_all(context: KafkaContext, call: KafkaCall) -> ErrorCode | None:
    if not context.config.is_auth_on or context.changes is None:
        return ErrorCode.SECURITY_DISABLED
    if not on_cluster(context, call, Operation.ALTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None


async def _add(context: KafkaContext, call: KafkaCall, user: str, rules: list[Acl]) -> None:
    """All of one user's at once, so that none of them is lost to another change."""
    assert context.changes is not None
    policies = AclPolicies(account=context.account, region=context.config.region)

    def change(before: User) -> User:
        check_may_change(call.caller, before)
        return policies.with_rules(before, rules)

    try:
        await context.changes.change_user(context.account, user, change)
    except NotFound:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"There is no user {user[:100]}.") from None


def _rule(creation: AclCreation) -> Acl:
    return Acl(
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _result(refusal: Refusal | None) -> AclCreationResult:
    if refusal is None:
        return AclCreationResult(error_message=None)
    return AclCreationResult(refusal.code, refusal.message)


ACTION = KafkaAction(KEY, run)
