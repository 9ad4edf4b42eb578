"""DescribeAcls: return the access rules of the caller's account that fit a filter. With
authentication off the reply is SECURITY_DISABLED, because no rules are checked."""

from penstock.frontend.kafka.acls import is_wanted
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.policy_acls import AclPolicies
from penstock.frontend.kafka.refusal import Refusal
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

KEY = 29


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeAclsRequest
) -> DescribeAclsResponse:
    try:
        _check(context, call)
    except Refusal as refusal:
        return DescribeAclsResponse(error_code=refusal.code, error_message=refusal.message)
    rules = [
        rule
        async for rule in call.slices.each(list(context.identities.acls(context.account) or ()))
        if is_wanted(rule, asked)
    ]
    policies = AclPolicies(account=context.account, region=context.config.region)
    async for user in call.slices.each(list(context.identities.users(context.account))):
        rules += [rule for rule in policies.rules_of(user) if is_wanted(rule, asked)]
    found: dict[tuple[int, str, int], list[AclDescription]] = {}
    async for rule in call.slices.each(dict.fromkeys(rules)):
        place = (rule.resource_type, rule.resource_name, rule.pattern_type)
        found.setdefault(place, []).append(
            AclDescription(rule.principal, rule.host, rule.operation, rule.permission_type)
        )
    return DescribeAclsResponse(
        resources=[DescribeAclsResource(*place, acls) for place, acls in found.items()]
    )


def _check(context: KafkaContext, call: KafkaCall) -> None:
    if not context.config.is_auth_on or context.changes is None:
        raise Refusal(ErrorCode.SECURITY_DISABLED)
    if not on_cluster(context, call, Operation.DESCRIBE):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


ACTION = KafkaAction(KEY, run)
