"""CreateAcls, DeleteAcls and DescribeAcls: the access rules of the caller's tenant.

A rule may name any principal and any resource, whether or not they exist. With authentication off
the reply is SECURITY_DISABLED, because no rules are checked. ``model/acls.py`` evaluates rules.
Below feature level 6 a new rule is stored as a statement of a user's policy (``policy_acls.py``).
Such rules are shown and deleted like others, but only operators may change an operator's policy."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import astuple

from penstock.frontend.kafka.access import policy_acls
from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import (
    API_ERRORS,
    ApiError,
    api_error,
    error_fields,
    invalid_request,
)
from penstock.frontend.kafka.ports.identities import IdentityChanges
from penstock.model import acls as model
from penstock.model.errors import NotFound
from penstock.model.identity import User
from penstock.model.levels import ACLS_STORED
from penstock.model.limits import ACL_TEXT_CHARS_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import create_acls as create_wire
from penstock.wire.kafka.generated import delete_acls as delete_wire
from penstock.wire.kafka.generated import describe_acls as describe_wire

Filter = describe_wire.Request | delete_wire.DeleteAclsFilter

_TYPES: Final = frozenset(model.ResourceType)
_OPERATIONS: Final = frozenset((model.ALL, *model.Operation))
_PATTERNS: Final = frozenset(model.PatternType)
_PERMISSIONS: Final = frozenset(model.Permission)


def _check_allowed(call: KafkaCall, operation: model.Operation) -> IdentityChanges:
    changes = call.context.changes
    if not call.context.config.is_auth_on or changes is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED)
    check_cluster(call, operation)
    return changes


def _policies(call: KafkaCall) -> policy_acls.AclPolicies:
    return policy_acls.AclPolicies(account=call.context.account, region=call.context.config.region)


async def create(call: KafkaCall, request: create_wire.Request) -> create_wire.Response:
    creations = request.creations
    try:
        changes = _check_allowed(call, model.Operation.ALTER)
    except ApiError as error:
        denied = create_wire.AclCreationResult(**error_fields(error))
        return create_wire.Response(results=[denied for _ in creations])
    errors: dict[int, ApiError] = {}
    rules: dict[int, model.Acl] = {}  # by position in the request
    async for position, creation in call.slices.each(enumerate(creations)):
        rule = model.Acl(*astuple(creation))
        try:
            _check_rule(rule)
            rules[position] = rule
        except ApiError as error:
            errors[position] = api_error(error)
    if call.context.level() < ACLS_STORED:
        errors |= await _add_to_policies(call, changes, rules)
    else:
        try:
            await changes.add_acls(call.context.account, list(rules.values()))
        except API_ERRORS as error:
            errors |= dict.fromkeys(rules, api_error(error))
    return create_wire.Response(
        results=[
            create_wire.AclCreationResult(**error_fields(errors[at]) if at in errors else {})
            for at in range(len(creations))
        ]
    )


def _check_rule(acl: model.Acl) -> None:
    reason = None
    if acl.resource_type not in _TYPES:
        reason = f"Invalid resource type {acl.resource_type}: 2 to 7 are allowed."
    elif acl.pattern_type not in (model.PatternType.LITERAL, model.PatternType.PREFIXED):
        reason = f"Invalid pattern type {acl.pattern_type}: use 3 (literal) or 4 (prefixed)."
    elif acl.operation not in _OPERATIONS:
        reason = f"Invalid operation {acl.operation}: 2 to 15 are allowed."
    elif acl.permission_type not in _PERMISSIONS:
        reason = f"Invalid permission type {acl.permission_type}: use 2 (deny) or 3 (allow)."
    elif not acl.resource_name:
        reason = "Invalid empty resource name"
    elif (
        acl.resource_type == model.ResourceType.CLUSTER and acl.resource_name != model.CLUSTER_NAME
    ):
        reason = f"The only valid name for the CLUSTER resource is {model.CLUSTER_NAME}"
    elif ":" not in acl.principal:
        reason = (
            f"Could not parse principal from `{acl.principal[:100]}` (no colon is present"
            " separating the principal type from the principal name)"
        )
    if reason is not None:
        raise invalid_request(reason)
    for field in ("resource_name", "principal", "host"):
        count = len(getattr(acl, field))
        if count > ACL_TEXT_CHARS_MAX:
            raise invalid_request(
                f"The {field.replace('_', ' ')} has {count:,} characters; at most"
                f" {ACL_TEXT_CHARS_MAX:,} are allowed."
            )


async def _add_to_policies(
    call: KafkaCall, changes: IdentityChanges, rules: Mapping[int, model.Acl]
) -> Mapping[int, ApiError]:
    """Store rules in the policies of users, where older nodes find them. Return the errors."""
    errors: dict[int, ApiError] = {}
    by_user: dict[str, dict[int, model.Acl]] = {}
    for position, rule in rules.items():
        try:
            by_user.setdefault(policy_acls.user_of(rule), {})[position] = rule
        except ApiError as error:
            errors[position] = api_error(error)
    policies = _policies(call)
    async for user, added in call.slices.each(by_user.items()):

        def change(before: User, added: Mapping[int, model.Acl] = added) -> User:
            policy_acls.check_may_change(call.caller, before)
            return policies.with_rules(before, list(added.values()))

        try:
            await changes.change_user(call.context.account, user, change)
        except NotFound:
            unknown = policy_acls.needs_level(
                f"A rule for the user {user[:100]}, who does not exist,"
            )
            errors |= dict.fromkeys(added, unknown)
        except API_ERRORS as error:
            errors |= dict.fromkeys(added, api_error(error))
    return errors


async def _stored(call: KafkaCall, wanted: Filter) -> list[model.Acl]:
    rules = list(call.context.identities.acls(call.context.account) or ())
    return [rule async for rule in call.slices.each(rules) if is_match(rule, wanted)]


def is_match(rule: model.Acl, wanted: Filter) -> bool:
    return (
        wanted.resource_type_filter in (model.ANY, rule.resource_type)
        and wanted.operation in (model.ANY, rule.operation)
        and wanted.permission_type in (model.ANY, rule.permission_type)
        and wanted.principal_filter in (None, rule.principal)
        and wanted.host_filter in (None, rule.host)
        and _is_name_match(rule, wanted)
    )


def _is_name_match(rule: model.Acl, wanted: Filter) -> bool:
    name, pattern_type = wanted.resource_name_filter, wanted.pattern_type_filter
    if pattern_type not in (model.ANY, model.PatternType.MATCH):
        return pattern_type == rule.pattern_type and name in (None, rule.resource_name)
    if name is None:
        return True
    if pattern_type == model.ANY:
        return name == rule.resource_name
    if rule.pattern_type == model.PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in (name, model.EVERY)


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    _check_allowed(call, model.Operation.DESCRIBE)
    rules = await _stored(call, request)
    policies = _policies(call)
    async for user in call.slices.each(list(call.context.identities.users(call.context.account))):
        rules += [rule for rule in policies.rules_of(user) if is_match(rule, request)]
    found: dict[tuple[int, str, int], list[describe_wire.AclDescription]] = {}
    async for rule in call.slices.each(dict.fromkeys(rules)):
        resource_type, name, pattern_type, *rest = astuple(rule)
        described = describe_wire.AclDescription(*rest)
        found.setdefault((resource_type, name, pattern_type), []).append(described)
    resources = [describe_wire.DescribeAclsResource(*key, acls) for key, acls in found.items()]
    return describe_wire.Response(resources=resources)


async def delete(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    """Delete all rules that match a filter, with effect from the next request of every client."""
    results = [await _deleted(call, each) async for each in call.slices.each(request.filters)]
    return delete_wire.Response(filter_results=results)


async def _deleted(
    call: KafkaCall, wanted: delete_wire.DeleteAclsFilter
) -> delete_wire.DeleteAclsFilterResult:
    context = call.context
    try:
        changes = _check_allowed(call, model.Operation.ALTER)
        _check_filter(wanted)
        stored = await _stored(call, wanted)
        if stored:
            await changes.remove_acls(context.account, stored)
    except API_ERRORS as error:
        return delete_wire.DeleteAclsFilterResult(**error_fields(error))
    matching: dict[model.Acl, ApiError | None] = dict.fromkeys(stored)
    async for user in call.slices.each(list(context.identities.users(context.account))):
        for rule, failure in (await _delete_of_user(call, changes, user, wanted)).items():
            matching[rule] = matching.get(rule) or failure  # a rule may also be in a policy
    return delete_wire.DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            delete_wire.DeleteAclsMatchingAcl(
                *((0, None) if failure is None else (failure.code, failure.message)),
                *astuple(rule),
            )
            async for rule, failure in call.slices.each(list(matching.items()))
        ],
    )


def _check_filter(wanted: Filter) -> None:
    """Raise ApiError for an unknown number, so that no rule is deleted by mistake."""
    for field, number, known in (
        ("resource type", wanted.resource_type_filter, _TYPES),
        ("pattern type", wanted.pattern_type_filter, _PATTERNS),
        ("operation", wanted.operation, _OPERATIONS),
        ("permission type", wanted.permission_type, _PERMISSIONS),
    ):
        if number != model.ANY and number not in known:
            raise invalid_request(
                f"The filter has an invalid {field} {number}: use {model.ANY} to match any."
            )


async def _delete_of_user(
    call: KafkaCall, changes: IdentityChanges, user: User, wanted: Filter
) -> Mapping[model.Acl, ApiError | None]:
    policies = _policies(call)
    found = [rule for rule in policies.rules_of(user) if is_match(rule, wanted)]
    if not found:
        return {}

    def change(before: User) -> User:
        policy_acls.check_may_change(call.caller, before)
        return policies.without_rules(before, frozenset(found))

    try:
        await changes.change_user(call.context.account, user.name, change)
    except NotFound:
        pass  # the user is gone, and its rules with it
    except API_ERRORS as error:
        return dict.fromkeys(found, api_error(error))
    return dict.fromkeys(found)
