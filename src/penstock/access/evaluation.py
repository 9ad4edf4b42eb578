"""Compiles policies (documents of statements that allow or deny actions) and evaluates them.

A user's policies state what the user may do; the policy of a resource (a queue) states who may do
what with it. ``decide`` combines them: a Deny in any policy denies; for a resource of the caller's
own account one Allow is enough; for a resource of another account both kinds must allow. A service
of this server has no policies: the policy of the resource must allow it, in any account. Parsing is
strict, because ignoring a misspelt element could allow more than the author meant."""

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from penstock.access.conditions import (
    Asks,
    Condition,
    Facts,
    Globs,
    MalformedPolicy,
    check_variables,
    compile_conditions,
)
from penstock.model.identity import Caller
from penstock.model.names import is_account

WITH_VARIABLES = "2012-10-17"
VERSIONS = ("2008-10-17", WITH_VARIABLES)
ITEMS_MAX = 200  # actions, resources or principals of one statement
ITEM_CHARS_MAX = 2_048
COMPILED_MAX = 1_024  # compiled policies to cache


class Kind(StrEnum):
    IDENTITY = "identity"
    RESOURCE = "resource"


# A user's policy may have one statement for each of many ACLs of other protocols.
_CHARS_MAX = {Kind.IDENTITY: 131_072, Kind.RESOURCE: 20_480}
STATEMENTS_MAX = {Kind.IDENTITY: 1_000, Kind.RESOURCE: 20}  # AWS also allows 20 for a queue
_ELEMENTS = frozenset(("Sid", "Effect", "Condition")) | {
    negation + name for negation in ("", "Not") for name in ("Principal", "Action", "Resource")
}
_ACTION = re.compile(r"(\*+|[A-Za-z0-9*?-]+:[A-Za-z0-9*?_-]+)\Z")
# Kinds of principals that are valid but match no caller.
_OTHER_PRINCIPALS = frozenset(("Federated", "CanonicalUser"))


class Principals(msgspec.Struct, frozen=True):
    is_everyone: bool = False
    accounts: frozenset[str] = frozenset()
    users: frozenset[tuple[str, str]] = frozenset()  # account and name
    services: frozenset[str] = frozenset()

    def has(self, caller: Caller) -> bool:
        if caller.service:
            return self.is_everyone or caller.service in self.services or "*" in self.services
        account = caller.account
        return self.is_everyone or account in self.accounts or (account, caller.user) in self.users


class Statement(msgspec.Struct, frozen=True):
    label: str  # the Sid, else the position in the policy
    is_allow: bool
    actions: Globs  # in lower case
    is_action_negated: bool
    resources: Globs
    is_resource_negated: bool
    principals: Principals | None = None  # None in a user's policy, which applies to that user
    is_principal_negated: bool = False
    conditions: tuple[Condition, ...] = ()

    def is_about(self, caller: Caller) -> bool:
        principals = self.principals
        return principals is None or principals.has(caller) != self.is_principal_negated

    def holds(self, facts: Facts) -> bool:
        unknown = not self.is_allow  # with an unknown condition a Deny applies, an Allow does not
        return all(condition.holds(facts, unknown=unknown) for condition in self.conditions)


class Compiled(msgspec.Struct, frozen=True):
    statements: tuple[Statement, ...]
    asks: Asks = Asks.NOTHING


class Decision(msgspec.Struct, frozen=True):
    is_allowed: bool
    is_explicit: bool = False  # True: a statement decided; False: no statement matched
    statement_id: str = ""
    source: str = ""  # kind of the policy that decided, or in which an Allow is missing


# ── Deciding ─────────────────────────────────────────────────────────────────────────────────


def decide(
    identity: Sequence[Compiled],
    resource: Compiled | None,
    facts: Facts,
    action: str,
    resource_arn: str,
) -> Decision:
    caller = facts.caller
    if caller.is_trusted:
        return Decision(is_allowed=True)
    is_own = caller.account == facts.owner_account
    name = action.lower()
    by_identity: Statement | None = None
    for policy in identity:
        found = _verdict(policy, name, resource_arn, facts)
        if found is not None and not found.is_allow:
            return Decision(False, True, found.label, Kind.IDENTITY)
        by_identity = by_identity or found
    by_resource = None if resource is None else _verdict(resource, name, resource_arn, facts)
    if by_resource is not None and not by_resource.is_allow:
        return Decision(False, True, by_resource.label, Kind.RESOURCE)
    if by_identity is not None and (by_resource is not None or is_own):
        return Decision(True, True, by_identity.label, Kind.IDENTITY)
    if by_resource is not None and (is_own or caller.service):
        return Decision(True, True, by_resource.label, Kind.RESOURCE)
    is_resource_silent = by_identity is not None or bool(caller.service)
    return Decision(False, source=Kind.RESOURCE if is_resource_silent else Kind.IDENTITY)


def grants_anything(resource: Compiled, facts: Facts, resource_arn: str) -> bool:
    return any(
        statement.is_allow
        and statement.is_about(facts.caller)
        and statement.resources.match(resource_arn) != statement.is_resource_negated
        and statement.holds(facts)
        for statement in resource.statements
    )


def _verdict(policy: Compiled, action: str, resource_arn: str, facts: Facts) -> Statement | None:
    """Return the first statement that denies, else the first that allows, else None."""
    allowing: Statement | None = None
    for statement in policy.statements:
        if statement.is_allow and allowing is not None:
            continue
        if (
            statement.actions.match(action) == statement.is_action_negated
            or statement.resources.match(resource_arn) == statement.is_resource_negated
            or not statement.is_about(facts.caller)
            or not statement.holds(facts)
        ):
            continue
        if not statement.is_allow:
            return statement
        allowing = statement
    return allowing


# ── Compiling ────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=COMPILED_MAX)
def compile_policy(text: str, kind: Kind) -> Compiled:
    if len(text) > _CHARS_MAX[kind]:
        raise MalformedPolicy(f"A policy may have at most {_CHARS_MAX[kind]} characters.")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise MalformedPolicy("A policy must be a JSON object.") from None
    if not isinstance(document, dict):
        raise MalformedPolicy("A policy must be a JSON object.")
    for name in document:
        if name not in ("Version", "Id", "Statement"):
            raise MalformedPolicy(f"Unknown element of a policy: {name[:80]}.")
    version = document.get("Version", VERSIONS[0])
    if version not in VERSIONS:
        raise MalformedPolicy(f"Version must be one of {', '.join(VERSIONS)}.")
    if not isinstance(document.get("Id", ""), str):
        raise MalformedPolicy("Id must be a string.")
    given = document.get("Statement")
    blocks = given if isinstance(given, list) else [given]
    if not blocks or given is None:
        raise MalformedPolicy("A policy needs at least one Statement.")
    if len(blocks) > STATEMENTS_MAX[kind]:
        raise MalformedPolicy(f"A policy may have at most {STATEMENTS_MAX[kind]} statements.")
    has_variables = version == WITH_VARIABLES
    statements = tuple(
        _statement(block, place, kind, has_variables=has_variables)
        for place, block in enumerate(blocks, 1)
    )
    asks = Asks.NOTHING
    for statement in statements:
        for condition in statement.conditions:
            asks |= condition.asks
    return Compiled(statements, asks)


def _statement(block: object, place: int, kind: Kind, *, has_variables: bool) -> Statement:
    where = f"Statement {place}"
    if not isinstance(block, dict):
        raise MalformedPolicy(f"{where} must be a JSON object.")
    for name in block:
        if name not in _ELEMENTS:
            raise MalformedPolicy(f"{where}: unknown element {name[:80]}.")
    sid = block.get("Sid", "")
    if not isinstance(sid, str) or len(sid) > ITEM_CHARS_MAX:
        raise MalformedPolicy(f"{where}: Sid must be a string.")
    if block.get("Effect") not in ("Allow", "Deny"):
        raise MalformedPolicy(f"{where}: Effect must be Allow or Deny.")
    principals, is_principal_negated = _principals(block, where, kind)
    actions, is_action_negated = _either(block, "Action", where)
    for action in actions:
        if _ACTION.match(action) is None:
            raise MalformedPolicy(
                f"{where}: Action {action[:200]} must name a service, as in sqs:SendMessage."
            )
    if kind is Kind.RESOURCE and "Resource" not in block and "NotResource" not in block:
        block = {**block, "Resource": "*"}  # means the queue that has the policy
    resources, is_resource_negated = _either(block, "Resource", where)
    if has_variables:
        check_variables(resources, where)
    others = [each for each in resources if each.strip("*") and not each.startswith("arn:")]
    if others:
        # SQS accepts any text in the policy of a queue; a text that is not an ARN matches no queue.
        if kind is Kind.IDENTITY:
            raise MalformedPolicy(f"{where}: Resource {others[0][:200]} is neither an ARN nor *.")
        resources = [each for each in resources if each not in others]
    conditions = block.get("Condition")
    return Statement(
        label=sid or where,
        is_allow=block["Effect"] == "Allow",
        actions=Globs(action.lower() for action in actions),
        is_action_negated=is_action_negated,
        resources=Globs(resources, has_escapes=has_variables),
        is_resource_negated=is_resource_negated,
        principals=principals,
        is_principal_negated=is_principal_negated,
        conditions=compile_conditions(
            {} if conditions is None else conditions,
            where=where,
            has_escapes=has_variables,
            takes_any_arn=kind is Kind.RESOURCE,
        ),
    )


def _chosen(block: dict[str, Any], name: str, where: str) -> str:
    negation = f"Not{name}"
    if (name in block) == (negation in block):
        raise MalformedPolicy(f"{where} must have either {name} or {negation}.")
    return negation if negation in block else name


def _either(block: dict[str, Any], name: str, where: str) -> tuple[list[str], bool]:
    """Return the values of an element, and whether it is negated (NotAction instead of Action)."""
    found = _chosen(block, name, where)
    return _strings(block[found], f"{where}: {found}"), found != name


def _strings(given: object, place: str) -> list[str]:
    values: list[Any] = given if isinstance(given, list) else [given]
    if not 0 < len(values) <= ITEMS_MAX:
        raise MalformedPolicy(f"{place} must have 1 to {ITEMS_MAX} values.")
    if not all(isinstance(value, str) and 0 < len(value) <= ITEM_CHARS_MAX for value in values):
        raise MalformedPolicy(f"{place} must be a string or a list of strings.")
    return values


# ── Principals ───────────────────────────────────────────────────────────────────────────────


def _principals(block: dict[str, Any], where: str, kind: Kind) -> tuple[Principals | None, bool]:
    if kind is Kind.IDENTITY:
        for name in ("Principal", "NotPrincipal"):
            if name in block:
                raise MalformedPolicy(f"{where}: a user's policy must not have {name}.")
        return None, False
    found = _chosen(block, "Principal", where)
    return _read_principals(block[found], f"{where}: {found}"), found == "NotPrincipal"


def _read_principals(given: object, place: str) -> Principals:
    if given == "*":
        return Principals(is_everyone=True)
    if not isinstance(given, dict) or not given:
        raise MalformedPolicy(f'{place} must be "*" or an object such as {{"AWS": …}}.')
    is_everyone = False
    accounts: set[str] = set()
    users: set[tuple[str, str]] = set()
    services: set[str] = set()
    for family, values in given.items():
        names = _strings(values, f"{place}: {family[:80]}")
        if family in _OTHER_PRINCIPALS:
            continue
        if family == "Service":
            services.update(names)
            continue
        if family != "AWS":
            raise MalformedPolicy(f"{place}: unknown kind of principal {family[:80]}.")
        for name in names:
            if name == "*":
                is_everyone = True
            elif is_account(name):
                accounts.add(name)
            else:
                _read_arn(name, place, accounts, users)
    return Principals(is_everyone, frozenset(accounts), frozenset(users), frozenset(services))


def _read_arn(arn: str, place: str, accounts: set[str], users: set[tuple[str, str]]) -> None:
    parts = arn.split(":", 5)
    is_arn = len(parts) == 6 and parts[0] == "arn" and parts[1].startswith("aws")
    is_one = "*" not in arn and "?" not in arn  # principals may not have wildcards
    if (
        not (is_arn and is_one)
        or parts[2] not in ("iam", "sts")
        or parts[3]
        or not is_account(parts[4])
    ):
        raise MalformedPolicy(f"{place}: {arn[:200]} is not an account, user or *.")
    name = parts[5]
    if parts[2] == "iam" and name == "root":
        accounts.add(parts[4])
    elif parts[2] == "iam" and name.startswith("user/"):
        users.add((parts[4], name.removeprefix("user/")))
    elif not name.startswith(("role/", "assumed-role/", "federated-user/")):  # match no caller
        raise MalformedPolicy(f"{place}: {arn[:200]} is not an account, user or *.")
