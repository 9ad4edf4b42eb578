"""CreateDelegationToken: create a token with which a program logs in as the token's owner. Only the
replies to this request and to DescribeDelegationToken contain the secret."""

import base64
from typing import Final

import msgspec

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.delegation_tokens import NO_TIME, USER, check_asked, may_create_for
from penstock.frontend.kafka.logins import user_shown
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.identity import DelegationToken
from penstock.model.limits import (
    ACL_TEXT_CHARS_MAX,
    TOKEN_LIFE_MS_MAX,
    TOKEN_RENEWAL_MS_MAX,
    TOKEN_RENEWERS_MAX,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

KEY = 38
ID_BYTES: Final = 16


async def run(
    context: KafkaContext, call: KafkaCall, asked: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    reply = CreateDelegationTokenResponse(
        principal_type=(asked.owner_principal_name and asked.owner_principal_type) or USER,
        principal_name=asked.owner_principal_name or user_shown(call.caller),
        token_requester_principal_type=USER,
        token_requester_principal_name=user_shown(call.caller),
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )
    try:
        tokens = check_asked(context, call)
        token = _new(context, call, asked)
        await tokens.create(token)
    except REFUSALS as error:
        return msgspec.structs.replace(reply, error_code=refusal_of(error).code)
    return msgspec.structs.replace(
        reply,
        issue_timestamp_ms=token.issued_at_ms,
        expiry_timestamp_ms=token.expires_at_ms,
        max_timestamp_ms=token.max_at_ms,
        token_id=token.token_id,
        hmac=tokens.hmac_of(token.token_id),
    )


def _new(
    context: KafkaContext, call: KafkaCall, asked: CreateDelegationTokenRequest
) -> DelegationToken:
    """Raises Refusal."""
    owner = asked.owner_principal_name or call.caller.user
    is_user = not asked.owner_principal_name or asked.owner_principal_type == USER
    user = context.identities.user(context.account, owner) if is_user else None
    if user is None or not may_create_for(context, call, user):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(renewer.principal_type != USER for renewer in asked.renewers):
        raise Refusal(ErrorCode.INVALID_PRINCIPAL_TYPE)
    renewers = tuple(dict.fromkeys(renewer.principal_name for renewer in asked.renewers))
    too_long = any(len(name) > ACL_TEXT_CHARS_MAX for name in renewers)
    if len(renewers) > TOKEN_RENEWERS_MAX or too_long:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    life_ms = TOKEN_LIFE_MS_MAX
    if asked.max_lifetime_ms > 0:
        life_ms = min(life_ms, asked.max_lifetime_ms)
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


ACTION = KafkaAction(KEY, run)
