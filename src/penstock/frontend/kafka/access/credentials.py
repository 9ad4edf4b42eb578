"""Handles requests about passwords (AlterUserScramCredentials, DescribeUserScramCredentials) and
about delegation tokens (CreateDelegationToken and the like).

A client sends keys that it has derived from a password, so no node ever sees the password. Setting
the password of an unknown user creates the user, without rights, because Kafka has no request to
create users. Only operators may change an operator's password.

A client that logs in with a token acts as the owner of the token. The secret of a token is only in
the replies to CreateDelegationToken and DescribeDelegationToken."""

import base64
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error, error_fields
from penstock.frontend.kafka.login.logins import user_shown
from penstock.frontend.kafka.login.passwords import is_live
from penstock.frontend.kafka.permissions import may_by_rules
from penstock.metadata.security.acl_rules import DelegationTokens
from penstock.model.acls import Operation, ResourceType
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.model.identity import Caller, DelegationToken, User
from penstock.model.levels import ACLS_STORED
from penstock.model.limits import (
    ACL_TEXT_CHARS_MAX,
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    TOKEN_LIFE_MS_MAX,
    TOKEN_RENEWAL_MS_MAX,
    TOKEN_RENEWERS_MAX,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_user_scram_credentials as alter_wire
from penstock.wire.kafka.generated import create_delegation_token as create_wire
from penstock.wire.kafka.generated import describe_delegation_token as tokens_wire
from penstock.wire.kafka.generated import describe_user_scram_credentials as describe_wire
from penstock.wire.kafka.generated import expire_delegation_token as expire_wire
from penstock.wire.kafka.generated import renew_delegation_token as renew_wire
from penstock.wire.kafka.scram import SHA_256, SHA_512, credential_of

MECHANISMS: Final[Mapping[int, str]] = {1: SHA_256, 2: SHA_512}

Change = alter_wire.ScramCredentialUpsertion | alter_wire.ScramCredentialDeletion
USER: Final = "User"
ID_BYTES: Final = 16
_NO_TIME: Final = -1  # in replies with an error


async def alter_scram(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    """Set and delete passwords. If a change is invalid, none of that user's changes are made."""
    changes: list[Change] = [*request.deletions, *request.upsertions]
    errors: dict[str, ApiError] = {}  # by user
    counts = Counter((each.name, each.mechanism) for each in changes)
    for each in changes:
        try:
            if each.name not in errors:
                _check(call, each, counts[each.name, each.mechanism])
        except ApiError as error:
            errors[each.name] = error
    for each in changes:
        try:
            if each.name not in errors:
                await _carry_out(call.context, each)
        except API_ERRORS as error:
            errors[each.name] = api_error(error)
    results = []
    for name in dict.fromkeys(each.name for each in changes):
        fields = error_fields(errors[name]) if name in errors else {"error_message": None}
        results.append(alter_wire.AlterUserScramCredentialsResult(name, **fields))
    return alter_wire.Response(results=results)


def _check(call: KafkaCall, change: Change, count: int) -> None:
    context, caller = call.context, call.caller
    if context.changes is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED)
    check_cluster(call, Operation.ALTER)
    user = context.identities.user(context.account, change.name)
    if user is not None and user.is_operator and not (caller.is_operator or caller.is_trusted):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not change.name:
        raise _unacceptable("The user name must not be empty.")
    mechanism = MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if count > 1:
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE)
    if isinstance(change, alter_wire.ScramCredentialDeletion):
        if context.identities.scram(context.account, change.name, mechanism) is None:
            raise _no_password()
    elif change.iterations < SCRAM_ITERATIONS_MIN:
        raise _unacceptable(f"Too few iterations: at least {SCRAM_ITERATIONS_MIN} are needed.")
    elif change.iterations > SCRAM_ITERATIONS_MAX:
        raise _unacceptable(f"Too many iterations: at most {SCRAM_ITERATIONS_MAX} are allowed.")


def _unacceptable(reason: str) -> ApiError:
    return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)


def _no_password() -> ApiError:
    return ApiError(ErrorCode.RESOURCE_NOT_FOUND, "The user has no password for this mechanism.")


async def _carry_out(context: KafkaContext, change: Change) -> None:
    changes = context.changes
    assert changes is not None, "checked before"
    account, name, mechanism = context.account, change.name, MECHANISMS[change.mechanism]
    if isinstance(change, alter_wire.ScramCredentialDeletion):
        try:
            await changes.delete_scram(account, name, mechanism)
        except NotFound:
            raise _no_password() from None
        return
    credential = credential_of(
        account,
        name,
        mechanism,
        salted=change.salted_password,
        salt=change.salt,
        iterations=change.iterations,
    )
    try:
        if context.identities.user(account, name) is None:
            try:
                # In one change, so that a rejected password does not leave a user behind.
                await changes.create_user(User(account, name, context.clock.wall_ms()), credential)
                return
            except Conflict:
                if context.identities.user(account, name) is None:
                    raise  # there are too many users
        await changes.put_scram(credential)
    except InvalidRequest as error:
        raise _unacceptable(str(error)) from None


async def describe_scram(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    check_cluster(call, Operation.DESCRIBE)
    context, reply = call.context, describe_wire.DescribeUserScramCredentialsResult
    names = [user.name for user in request.users or ()]
    if not names:
        names = [user.name for user in context.identities.users(context.account)]
    results = []
    async for name, count in call.slices.each(Counter(names).items()):
        code, message = ErrorCode.RESOURCE_NOT_FOUND, "The user does not exist or has no password."
        infos = [
            describe_wire.CredentialInfo(number, credential.iterations)
            for number, mechanism in MECHANISMS.items()
            if (credential := context.identities.scram(context.account, name, mechanism))
        ]
        if count > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            results.append(reply(name, code, code.message))
        elif infos:
            results.append(reply(name, error_message="", credential_infos=infos))
        elif request.users:
            results.append(reply(name, code, message))
    return describe_wire.Response(error_message="", results=results)


def _check_tokens(call: KafkaCall) -> DelegationTokens:
    """Return the store of delegation tokens. Raises ApiError if authentication is off, the client
    has logged in with a token, or a node of the cluster may be too old to support tokens."""
    context = call.context
    login = context.logins.of(call.connection)
    if call.caller.is_trusted or isinstance(login.proven, DelegationToken):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if context.tokens is None or context.level() < ACLS_STORED:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return context.tokens


def _may_renew(caller: Caller, token: DelegationToken) -> bool:
    return caller.user == token.owner or caller.user in token.renewers


async def create_token(call: KafkaCall, request: create_wire.Request) -> create_wire.Response:
    requester = user_shown(call.caller)
    owner_type = (request.owner_principal_name and request.owner_principal_type) or USER
    names = (owner_type, request.owner_principal_name or requester, USER, requester)
    try:
        tokens = _check_tokens(call)
        token = _new_token(call, request)
        await tokens.create(token)
    except API_ERRORS as error:
        return create_wire.Response(api_error(error).code, *names, _NO_TIME, _NO_TIME, _NO_TIME)
    return create_wire.Response(0, *names, *_shown(tokens, token))


def _shown(tokens: DelegationTokens, token: DelegationToken) -> tuple[Any, ...]:
    times = (token.issued_at_ms, token.expires_at_ms, token.max_at_ms)
    return *times, token.token_id, tokens.hmac_of(token.token_id)


def _new_token(call: KafkaCall, request: create_wire.Request) -> DelegationToken:
    context = call.context
    owner = request.owner_principal_name or call.caller.user
    is_user = not request.owner_principal_name or request.owner_principal_type == USER
    user = context.identities.user(context.account, owner) if is_user else None
    resource, is_own = f"{USER}:{owner}", owner == call.caller.user
    is_allowed = is_own or may_by_rules(call, Operation.CREATE_TOKENS, ResourceType.USER, resource)
    # Only operators may create tokens of operators, whatever access rules allow.
    is_above = user is not None and user.is_operator and not call.caller.is_operator
    if user is None or is_above or not is_allowed:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(renewer.principal_type != USER for renewer in request.renewers):
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    renewers = tuple(dict.fromkeys(renewer.principal_name for renewer in request.renewers))
    too_long = any(len(name) > ACL_TEXT_CHARS_MAX for name in renewers)
    if len(renewers) > TOKEN_RENEWERS_MAX or too_long:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    life_ms = TOKEN_LIFE_MS_MAX
    if request.max_lifetime_ms > 0:
        life_ms = min(life_ms, request.max_lifetime_ms)
    now_ms = context.clock.wall_ms()
    return DelegationToken(
        token_id=base64.urlsafe_b64encode(context.entropy(ID_BYTES)).decode("ascii").rstrip("="),
        account=context.account,
        owner=owner,
        owner_created_at_ms=user.created_at_ms,
        requester=call.caller.user,
        renewers=renewers,
        issued_at_ms=now_ms,
        expires_at_ms=now_ms + min(life_ms, TOKEN_RENEWAL_MS_MAX),
        max_at_ms=now_ms + life_ms,
    )


async def renew_token(call: KafkaCall, request: renew_wire.Request) -> renew_wire.Response:
    period_ms = TOKEN_RENEWAL_MS_MAX
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    return renew_wire.Response(*await _expire_after(call, request.hmac, period_ms))


async def expire_token(call: KafkaCall, request: expire_wire.Request) -> expire_wire.Response:
    """Make a token expire after a period, or delete it if the period is negative. Clients that are
    logged in with a deleted token are disconnected at their next request."""
    return expire_wire.Response(
        *await _expire_after(call, request.hmac, request.expiry_time_period_ms)
    )


async def _expire_after(call: KafkaCall, hmac: bytes, period_ms: int) -> tuple[ErrorCode, int]:
    """Set the expiry time of the token with this HMAC. Return an error code and the time."""
    now_ms = call.context.clock.wall_ms()

    def change(token: DelegationToken) -> DelegationToken | None:
        if not _may_renew(call.caller, token):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        if period_ms < 0:
            return None
        if token.is_expired(now_ms=now_ms):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        expires_at_ms = min(token.max_at_ms, now_ms + period_ms)
        return msgspec.structs.replace(token, expires_at_ms=expires_at_ms)

    try:
        tokens = _check_tokens(call)
        found = tokens.find_by_hmac(call.context.account, hmac)
        done = None if found is None else await tokens.change(found.token_id, change)
    except API_ERRORS as error:
        return api_error(error).code, _NO_TIME
    if done is None:
        return ErrorCode.DELEGATION_TOKEN_NOT_FOUND, _NO_TIME
    return ErrorCode.NONE, now_ms if period_ms < 0 else done.expires_at_ms


async def describe_tokens(call: KafkaCall, request: tokens_wire.Request) -> tokens_wire.Response:
    """Return unexpired tokens that the caller owns, may renew or is allowed to describe."""
    tokens = _check_tokens(call)
    owners = None
    if request.owners is not None:
        owners = {each.principal_name for each in request.owners if each.principal_type == USER}
    identities, now_ms = call.context.identities, call.context.clock.wall_ms()
    found = []
    async for token in call.slices.each(list(tokens.of(call.context.account))):
        is_wanted = owners is None or not owners.isdisjoint((token.owner, *token.renewers))
        is_shown = is_wanted and is_live(token, identities, now_ms=now_ms)
        if not is_shown or not _may_describe(call, token):
            continue
        renewers = [
            tokens_wire.DescribedDelegationTokenRenewer(USER, each) for each in token.renewers
        ]
        names = (USER, token.owner, USER, token.requester)
        fields = (*names, *_shown(tokens, token), renewers)
        found.append(tokens_wire.DescribedDelegationToken(*fields))
    return tokens_wire.Response(tokens=found)


def _may_describe(call: KafkaCall, token: DelegationToken) -> bool:
    if _may_renew(call.caller, token):
        return True
    owner = call.context.identities.user(call.context.account, token.owner)
    if owner is not None and owner.is_operator and not call.caller.is_operator:
        return False
    return may_by_rules(
        call, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
    ) or may_by_rules(call, Operation.DESCRIBE_TOKENS, ResourceType.USER, f"{USER}:{token.owner}")
