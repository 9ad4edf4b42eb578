"""Handles CreateAcls, DeleteAcls and DescribeAcls for the access rules of the caller's tenant.

A rule may name any principal and any resource, whether or not they exist. With authentication off
the reply is SECURITY_DISABLED, because no rules are checked. ``model/acls.py`` evaluates rules.

While the cluster is below feature level 6, it may have nodes that read only policies. A new rule is
then stored as a statement in the policy ``kafka-acls`` of the user. The rule must name an existing
user, and its host must be an IP address or ``*``. Only operators may change the policy of an
operator. Statements that are not rules are neither shown nor changed. A rule and its statement:

    User:ann may read topics orders-*, from anywhere
        {"Effect": "Allow", "Action": "kafka:Read",
         "Resource": "arn:aws:sqs:us-east-1:000000000000:orders-*"}
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.configs.rows import is_address
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import (
    API_ERRORS,
    ApiError,
    api_error,
    error_fields,
    invalid_request,
)
from penstock.frontend.kafka.permissions import ACTIONS, OF_CLUSTERS, OF_GROUPS, OF_TOPICS, arn_of
from penstock.metadata.security.identities import StoredIdentities
from penstock.model import acls as model
from penstock.model.errors import AccessDenied, NotFound
from penstock.model.identity import Caller, User
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
POLICY: Final = "kafka-acls"
VERSION: Final = "2012-10-17"  # has ${*} for a literal star
PRINCIPAL: Final = "User:"
_ALL_ACTIONS: Final = "kafka:*"
_OF_RESOURCES: Final[Mapping[int, frozenset[model.Operation]]] = {
    model.ResourceType.TOPIC: frozenset(OF_TOPICS),
    model.ResourceType.GROUP: frozenset(OF_GROUPS),
    model.ResourceType.CLUSTER: frozenset(OF_CLUSTERS),
    model.ResourceType.TRANSACTIONAL_ID: frozenset(
        (model.Operation.WRITE, model.Operation.DESCRIBE)
    ),
}
_OF_ACTIONS: Final = {action: each for each, action in ACTIONS.items()}
_FIELDS: Final = frozenset(("Effect", "Action", "Resource", "Condition"))
_SPECIAL: Final = re.compile(r"[*?$]")
_TOKENS: Final = re.compile(r"\$\{([*?$])\}|([^*?$])", re.DOTALL)
_ESCAPED: Final = re.compile(rf"(?:{_TOKENS.pattern})+", re.DOTALL)


def _check_allowed(call: KafkaCall, operation: model.Operation) -> StoredIdentities:
    changes = call.context.changes
    if not call.context.config.is_auth_on or changes is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED)
    check_cluster(call, operation)
    return changes


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
    call: KafkaCall, changes: StoredIdentities, rules: Mapping[int, model.Acl]
) -> Mapping[int, ApiError]:
    """Store each rule in the policy of its user, so that older nodes find it too. Return the errors
    by the position of the rule in the request."""
    errors: dict[int, ApiError] = {}
    by_user: dict[str, dict[int, model.Acl]] = {}
    for position, rule in rules.items():
        try:
            by_user.setdefault(user_of(rule), {})[position] = rule
        except ApiError as error:
            errors[position] = api_error(error)
    policies = AclPolicies(call.context.account, call.context.config.region)
    async for user, added in call.slices.each(by_user.items()):

        def change(before: User, added: Mapping[int, model.Acl] = added) -> User:
            check_may_change(call.caller, before)
            return policies.with_rules(before, list(added.values()))

        try:
            await changes.change_user(call.context.account, user, change)
        except NotFound:
            unknown = needs_level(f"A rule for the user {user[:100]}, who does not exist,")
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
    policies = AclPolicies(call.context.account, call.context.config.region)
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
    """Delete all rules that match any of the filters."""
    context, kind, results = call.context, delete_wire.DeleteAclsFilterResult, []
    async for wanted in call.slices.each(request.filters):
        try:
            changes = _check_allowed(call, model.Operation.ALTER)
            _check_filter(wanted)
            stored = await _stored(call, wanted)
            if stored:
                await changes.remove_acls(context.account, stored)
        except API_ERRORS as error:
            results.append(kind(**error_fields(error)))
            continue
        matching: dict[model.Acl, ApiError | None] = dict.fromkeys(stored)
        async for user in call.slices.each(list(context.identities.users(context.account))):
            for rule, failure in (await _delete_of_user(call, changes, user, wanted)).items():
                matching[rule] = matching.get(rule) or failure  # a rule may also be in a policy
        deleted = []
        async for rule, failure in call.slices.each(list(matching.items())):
            code, message = (0, None) if failure is None else (failure.code, failure.message)
            deleted.append(delete_wire.DeleteAclsMatchingAcl(code, message, *astuple(rule)))
        results.append(kind(error_message=None, matching_acls=deleted))
    return delete_wire.Response(filter_results=results)


def _check_filter(wanted: Filter) -> None:
    """Raise ApiError if the filter has an unknown type or operation."""
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
    call: KafkaCall, changes: StoredIdentities, user: User, wanted: Filter
) -> Mapping[model.Acl, ApiError | None]:
    policies = AclPolicies(call.context.account, call.context.config.region)
    found = [rule for rule in policies.rules_of(user) if is_match(rule, wanted)]
    if not found:
        return {}

    def change(before: User) -> User:
        check_may_change(call.caller, before)
        return policies.without_rules(before, frozenset(found))

    try:
        await changes.change_user(call.context.account, user.name, change)
    except NotFound:
        pass  # the user is gone, and its rules with it
    except API_ERRORS as error:
        return dict.fromkeys(found, api_error(error))
    return dict.fromkeys(found)


def user_of(rule: model.Acl) -> str:
    """Return the user whose policy stores the rule. Raises ApiError if no policy can store it."""
    name = rule.principal.removeprefix(PRINCIPAL)
    operations = _OF_RESOURCES.get(rule.resource_type, frozenset())
    is_written = (
        rule.principal.startswith(PRINCIPAL)
        and name not in ("", model.EVERY)
        and (rule.operation == model.ALL or rule.operation in operations)
        and (
            rule.resource_type != model.ResourceType.CLUSTER
            or rule.pattern_type == model.PatternType.LITERAL
        )
        and (rule.host == model.EVERY or is_address(rule.host))
    )
    if not is_written:
        raise needs_level("This rule")
    return name


def needs_level(what: str) -> ApiError:
    return invalid_request(
        f"{what} needs feature level {ACLS_STORED}: upgrade all nodes, then run penstock cluster"
        " upgrade."
    )


def check_may_change(caller: Caller, user: User) -> None:
    if user.is_operator and not caller.is_operator:
        raise AccessDenied(f"{user.name} is an operator: only an operator may change these rules.")


class AclPolicies:
    def __init__(self, account: str, region: str) -> None:
        self._prefixes = {kind: arn_of(account, region, kind, "") for kind in _OF_RESOURCES}

    def rules_of(self, user: User) -> list[model.Acl]:
        return [rule for _, rule in self._read(user) if rule is not None]

    def with_rules(self, user: User, added: Sequence[model.Acl]) -> User:
        """Return the user with a policy that also contains the rules ``added``."""
        found = self._read(user)
        known = {rule for _, rule in found}
        fresh = [rule for rule in dict.fromkeys(added) if rule not in known]
        if not fresh:
            return user
        blocks = [block for block, _ in found] + [self._statement(rule) for rule in fresh]
        return _with_statements(user, blocks)

    def without_rules(self, user: User, removed: frozenset[model.Acl]) -> User:
        found = self._read(user)
        kept = [block for block, rule in found if rule not in removed]
        return user if len(kept) == len(found) else _with_statements(user, kept)

    def _read(self, user: User) -> list[tuple[Any, model.Acl | None]]:
        text = user.policies.get(POLICY)
        if text is None:
            return []
        given = msgspec.json.decode(text)["Statement"]
        blocks = given if isinstance(given, list) else [given]
        return [(block, self._rule(block, user.name)) for block in blocks]

    def _statement(self, rule: model.Acl) -> dict[str, Any]:
        resource = self._prefixes[rule.resource_type]
        if rule.resource_type != model.ResourceType.CLUSTER:
            is_literal, name = rule.pattern_type == model.PatternType.LITERAL, rule.resource_name
            if not is_literal or name != model.EVERY:
                name = _SPECIAL.sub(lambda found: f"${{{found[0]}}}", name)
            resource += name if is_literal else f"{name}*"
        action = _ALL_ACTIONS
        if rule.operation != model.ALL:
            action = ACTIONS[model.Operation(rule.operation)]
        is_allow = rule.permission_type == model.Permission.ALLOW
        block: dict[str, Any] = {"Effect": "Allow" if is_allow else "Deny"}
        block |= {"Action": action, "Resource": resource}
        if rule.host != model.EVERY:
            block["Condition"] = {"IpAddress": {"aws:SourceIp": rule.host}}
        return block

    def _rule(self, block: Any, user: str) -> model.Acl | None:
        """Return the access rule that a policy statement stores, or None if it stores no rule."""
        if not isinstance(block, dict) or block.keys() - _FIELDS:
            return None
        found = self._pattern(block.get("Resource"))
        host = _host(block.get("Condition"))
        action = block.get("Action")
        if found is None or host is None or not isinstance(action, str):
            return None
        operation = model.ALL if action == _ALL_ACTIONS else _OF_ACTIONS.get(action)
        if operation is None:
            return None
        is_allow = block.get("Effect") == "Allow"
        permission = model.Permission.ALLOW if is_allow else model.Permission.DENY
        return model.Acl(*found, PRINCIPAL + user, host, int(operation), permission)

    def _pattern(self, resource: object) -> tuple[int, str, int] | None:
        if not isinstance(resource, str):
            return None
        if resource == self._prefixes[model.ResourceType.CLUSTER]:
            return model.ResourceType.CLUSTER, model.CLUSTER_NAME, model.PatternType.LITERAL
        for resource_type, prefix in self._prefixes.items():
            if resource_type == model.ResourceType.CLUSTER or not resource.startswith(prefix):
                continue
            rest = resource.removeprefix(prefix)
            if rest == model.EVERY:
                return resource_type, model.EVERY, model.PatternType.LITERAL
            escaped = rest.removesuffix("*")
            if not _ESCAPED.fullmatch(escaped):
                return None  # the name is empty or has wildcards
            name = "".join(token[1] or token[2] for token in _TOKENS.finditer(escaped))
            kind = model.PatternType.PREFIXED if rest.endswith("*") else model.PatternType.LITERAL
            return resource_type, name, kind
        return None


def _host(condition: object) -> str | None:
    match condition:
        case None:
            return model.EVERY
        case {"IpAddress": {"aws:SourceIp": str(address), **inner}, **rest}:
            return None if inner or rest or "/" in address else address
    return None


def _with_statements(user: User, blocks: Sequence[Any]) -> User:
    policies = {name: text for name, text in user.policies.items() if name != POLICY}
    if blocks:
        document = {"Version": VERSION, "Statement": blocks}
        policies[POLICY] = msgspec.json.encode(document).decode()
    return msgspec.structs.replace(user, policies=policies)
