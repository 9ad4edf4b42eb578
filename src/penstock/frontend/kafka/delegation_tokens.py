"""The checks that requests about delegation tokens share: who may send them, and about which
tokens."""

from collections.abc import Callable
from typing import Final

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import may_by_rules
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.token_calls import TokenCalls
from penstock.model.acls import Operation, ResourceType
from penstock.model.identity import Caller, DelegationToken, User
from penstock.model.levels import ACLS_STORED
from penstock.wire.kafka.faults import ErrorCode

USER: Final = "User"
NO_TIME: Final = -1  # in replies that reject a request


def check_asked(context: KafkaContext, call: KafkaCall) -> TokenCalls:
    """Return the store of tokens. Raises Refusal if this client must not send requests about
    tokens, or if a node of the cluster may be too old to know tokens."""
    login = context.logins.of(call.connection)
    if call.caller.is_trusted or isinstance(login.proven, DelegationToken):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if context.tokens is None or context.level() < ACLS_STORED:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return context.tokens


def may_create_for(context: KafkaContext, call: KafkaCall, owner: User) -> bool:
    """Return whether the caller may create a token of this owner. Tokens of operators are for
    operators only, whatever rules say."""
    if owner.is_operator and not call.caller.is_operator:
        return False
    return owner.name == call.caller.user or may_by_rules(
        context, call, Operation.CREATE_TOKENS, ResourceType.USER, f"{USER}:{owner.name}"
    )


def may_describe(context: KafkaContext, call: KafkaCall, token: DelegationToken) -> bool:
    """Return whether the caller may see a token. The description contains the token's secret."""
    if may_renew(call.caller, token):
        return True
    owner = context.identities.user(context.account, token.owner)
    if owner is not None and owner.is_operator and not call.caller.is_operator:
        return False
    return may_by_rules(
        context, call, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
    ) or may_by_rules(
        context, call, Operation.DESCRIBE_TOKENS, ResourceType.USER, f"{USER}:{token.owner}"
    )


def may_renew(caller: Caller, token: DelegationToken) -> bool:
    return caller.user == token.owner or caller.user in token.renewers


async def change_token(
    context: KafkaContext,
    call: KafkaCall,
    hmac: bytes,
    change: Callable[[DelegationToken], DelegationToken | None],
) -> DelegationToken:
    """Apply ``change`` to the token with this HMAC; None deletes the token. Raises Refusal."""
    tokens = check_asked(context, call)
    found = tokens.find_by_hmac(context.account, hmac)

    def checked(token: DelegationToken) -> DelegationToken | None:
        if not may_renew(call.caller, token):
            raise Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return change(token)

    try:
        done = None if found is None else await tokens.change(found.token_id, checked)
    except REFUSALS as error:
        raise refusal_of(error) from None
    if done is None:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return done
