"""AlterUserScramCredentials: give users of the caller's account passwords, or take them away. A
client sends what it has derived from the password, so that nobody here ever sees it.

A user that is not there is made, with no rights: Kafka knows users by their passwords only. An
operator's password is for operators to change: who got hold of it would be one."""

from collections import Counter

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.identity_changes import IdentityChanges
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.scram_mechanisms import MECHANISMS
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.model.identity import ScramCredential, User
from penstock.model.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.wire.kafka.scram import credential_of

KEY = 51

Change = ScramCredentialUpsertion | ScramCredentialDeletion


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    changes: list[Change] = [*asked.deletions, *asked.upsertions]
    refusals: dict[str, Refusal] = {}
    counts = Counter((each.name, each.mechanism) for each in changes)
    for each in changes:
        try:
            if each.name not in refusals:
                _check(context, call, each, counts[each.name, each.mechanism])
        except Refusal as refusal:
            refusals[each.name] = refusal
    # A user whose changes do not all make sense keeps things as they are.
    for each in changes:
        try:
            if each.name not in refusals:
                await _carry_out(context, each)
        except REFUSALS as error:
            refusals[each.name] = refusal_of(error)
    names = dict.fromkeys(each.name for each in changes)
    return AlterUserScramCredentialsResponse(
        results=[_result(name, refusals.get(name)) for name in names]
    )


def _check(context: KafkaContext, call: KafkaCall, change: Change, count: int) -> None:
    if context.changes is None:
        raise Refusal(ErrorCode.SECURITY_DISABLED)
    user = context.identities.user(context.account, change.name)
    is_reserved = user is not None and user.is_operator and not call.caller.is_operator
    if not on_cluster(context, call, Operation.ALTER) or (
        is_reserved and not call.caller.is_trusted
    ):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not change.name:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The name of a user is not empty.")
    mechanism = MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if count > 1:
        raise Refusal(ErrorCode.DUPLICATE_RESOURCE)
    if isinstance(change, ScramCredentialUpsertion):
        _check_upsertion(change)
    elif context.identities.scram(context.account, change.name, mechanism) is None:
        raise _no_credential()


def _check_upsertion(change: ScramCredentialUpsertion) -> None:
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if change.iterations < SCRAM_ITERATIONS_MIN:
        few = f"Too few iterations: at least {SCRAM_ITERATIONS_MIN} are needed."
        raise Refusal(unacceptable, few)
    if change.iterations > SCRAM_ITERATIONS_MAX:
        many = f"Too many iterations: at most {SCRAM_ITERATIONS_MAX} are allowed."
        raise Refusal(unacceptable, many)


def _no_credential() -> Refusal:
    return Refusal(ErrorCode.RESOURCE_NOT_FOUND, "The user has no password of this mechanism.")


async def _carry_out(context: KafkaContext, change: Change) -> None:
    changes = context.changes
    assert changes is not None, "checked before"
    account, name = context.account, change.name
    mechanism = MECHANISMS[change.mechanism]
    if isinstance(change, ScramCredentialDeletion):
        try:
            await changes.delete_scram(account, name, mechanism)
        except NotFound:
            raise _no_credential() from None
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
            await _make_user(context, changes, credential)
        else:
            await changes.put_scram(credential)
    except InvalidRequest as error:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from None


async def _make_user(
    context: KafkaContext, changes: IdentityChanges, credential: ScramCredential
) -> None:
    """Create the user together with its password: a rejected password leaves no user behind."""
    account, name = credential.account, credential.user
    try:
        await changes.create_user(User(account, name, context.clock.wall_ms()), credential)
    except Conflict:
        if context.identities.user(account, name) is None:
            raise  # there are too many
        await changes.put_scram(credential)  # another request created the user first


def _result(name: str, refusal: Refusal | None) -> AlterUserScramCredentialsResult:
    if refusal is None:
        return AlterUserScramCredentialsResult(name, error_message=None)
    return AlterUserScramCredentialsResult(name, refusal.code, refusal.message)


ACTION = KafkaAction(KEY, run)
