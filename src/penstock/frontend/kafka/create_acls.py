"""CreateAcls: create access rules of the caller's account, about any principal and any resource,
whether or not they exist.

Rejected while authentication is off, because nothing would check the rules. Below feature level 6
rules are statements of policies, because older nodes know no other rules (``policy_acls.py``)."""

from collections.abc import Mapping

from penstock.frontend.kafka.acls import check
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.policy_acls import AclPolicies, check_may_change, needs_level, user_of
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.acls import Acl
from penstock.model.errors import NotFound
from penstock.model.identity import User
from penstock.model.levels import ACLS_STORED
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
    code = _refusal_of_all(context, call)
    if code is not None:
        refused = AclCreationResult(code, code.message)
        return CreateAclsResponse(results=[refused for _ in asked.creations])
    refusals: dict[int, Refusal] = {}
    rules: dict[int, Acl] = {}  # by their place in the request
    async for place, creation in call.slices.each(enumerate(asked.creations)):
        rule = _rule(creation)
        try:
            check(rule)
            rules[place] = rule
        except Refusal as refusal:
            refusals[place] = refusal_of(refusal)
    if context.level() >= ACLS_STORED:
        refusals |= await _store(context, rules)
    else:
        refusals |= await _add_to_policies(context, call, rules)
    return CreateAclsResponse(
        results=[_result(refusals.get(place)) for place in range(len(asked.creations))]
    )


def _refusal_of_all(context: KafkaContext, call: KafkaCall) -> ErrorCode | None:
    if not context.config.is_auth_on or context.changes is None:
        return ErrorCode.SECURITY_DISABLED
    if not on_cluster(context, call, Operation.ALTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None


async def _store(context: KafkaContext, rules: Mapping[int, Acl]) -> Mapping[int, Refusal]:
    assert context.changes is not None
    try:
        await context.changes.add_acls(context.account, list(rules.values()))
    except REFUSALS as error:
        return dict.fromkeys(rules, refusal_of(error))
    return {}


async def _add_to_policies(
    context: KafkaContext, call: KafkaCall, rules: Mapping[int, Acl]
) -> Mapping[int, Refusal]:
    refusals: dict[int, Refusal] = {}
    by_user: dict[str, dict[int, Acl]] = {}
    for place, rule in rules.items():
        try:
            by_user.setdefault(user_of(rule), {})[place] = rule
        except Refusal as refusal:
            refusals[place] = refusal_of(refusal)
    async for user, of_user in call.slices.each(by_user.items()):
        try:
            await _add_to_policy(context, call, user, list(of_user.values()))
        except REFUSALS as error:
            refusals |= dict.fromkeys(of_user, refusal_of(error))
    return refusals


async def _add_to_policy(
    context: KafkaContext, call: KafkaCall, user: str, rules: list[Acl]
) -> None:
    """Add all rules of one user in one change of the user."""
    assert context.changes is not None
    policies = AclPolicies(account=context.account, region=context.config.region)

    def change(before: User) -> User:
        check_may_change(call.caller, before)
        return policies.with_rules(before, rules)

    try:
        await context.changes.change_user(context.account, user, change)
    except NotFound:
        raise needs_level(f"A rule for the user {user[:100]}, who does not exist,") from None


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
        return AclCreationResult()
    return AclCreationResult(refusal.code, refusal.message)


ACTION = KafkaAction(KEY, run)
