"""AlterUserScramCredentials and DescribeUserScramCredentials: passwords of users of the caller's
tenant. A client sends keys that it has derived from a password, so no node ever sees the password.

A user that does not exist is created without rights: Kafka knows users by their passwords only.
Only operators may change an operator's password, because its holder is an operator."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error, error_fields
from penstock.frontend.kafka.permissions import Operation
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.model.identity import User
from penstock.model.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_user_scram_credentials as alter_wire
from penstock.wire.kafka.generated import describe_user_scram_credentials as describe_wire
from penstock.wire.kafka.scram import SHA_256, SHA_512, credential_of

MECHANISMS: Final[Mapping[int, str]] = MappingProxyType({1: SHA_256, 2: SHA_512})

Change = alter_wire.ScramCredentialUpsertion | alter_wire.ScramCredentialDeletion


# ── Changing ─────────────────────────────────────────────────────────────────────────────────


async def alter(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    """A user with an invalid change keeps all passwords as they are."""
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
    results = [
        alter_wire.AlterUserScramCredentialsResult(name, **error_fields(errors[name]))
        if name in errors
        else alter_wire.AlterUserScramCredentialsResult(name, error_message=None)
        for name in dict.fromkeys(each.name for each in changes)
    ]
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
        raise _unacceptable("The name of a user is not empty.")
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
    return ApiError(ErrorCode.RESOURCE_NOT_FOUND, "The user has no password of this mechanism.")


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
                # Together with its password: a rejected password must not leave a user.
                await changes.create_user(User(account, name, context.clock.wall_ms()), credential)
                return
            except Conflict:
                if context.identities.user(account, name) is None:
                    raise  # there are too many users
        await changes.put_scram(credential)
    except InvalidRequest as error:
        raise _unacceptable(str(error)) from None


# ── Describing ───────────────────────────────────────────────────────────────────────────────


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    """Return the users that have a password, with mechanisms and numbers of iterations."""
    check_cluster(call, Operation.DESCRIBE)
    context = call.context
    if request.users:
        counts = Counter(user.name for user in request.users)
        results = [
            _described(context, name, count)
            async for name, count in call.slices.each(counts.items())
        ]
    else:
        results = [
            describe_wire.DescribeUserScramCredentialsResult(
                user.name, error_message="", credential_infos=infos
            )
            async for user in call.slices.each(list(context.identities.users(context.account)))
            if (infos := _infos(context, user.name))
        ]
    return describe_wire.Response(error_message="", results=results)


def _described(
    context: KafkaContext, name: str, count: int
) -> describe_wire.DescribeUserScramCredentialsResult:
    if count > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        return describe_wire.DescribeUserScramCredentialsResult(name, code, code.message)
    infos = _infos(context, name)
    if not infos:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, "No user of this name has a password."
        return describe_wire.DescribeUserScramCredentialsResult(name, code, message)
    return describe_wire.DescribeUserScramCredentialsResult(
        name, error_message="", credential_infos=infos
    )


def _infos(context: KafkaContext, user: str) -> list[describe_wire.CredentialInfo]:
    return [
        describe_wire.CredentialInfo(number, credential.iterations)
        for number, mechanism in MECHANISMS.items()
        if (credential := context.identities.scram(context.account, user, mechanism)) is not None
    ]
