"""RenewDelegationToken: let a token expire later, at its maximum lifetime at the latest."""

import msgspec

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.delegation_tokens import NO_TIME, change_token
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.identity import DelegationToken
from penstock.model.limits import TOKEN_RENEWAL_MS_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

KEY = 39


async def run(
    context: KafkaContext, call: KafkaCall, asked: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    now_ms = context.clock.wall_ms()
    period_ms = TOKEN_RENEWAL_MS_MAX
    if asked.renew_period_ms > 0:
        period_ms = min(period_ms, asked.renew_period_ms)

    def renew(token: DelegationToken) -> DelegationToken:
        if token.is_expired(now_ms=now_ms):
            raise Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        expires_at_ms = min(token.max_at_ms, now_ms + period_ms)
        return msgspec.structs.replace(token, expires_at_ms=expires_at_ms)

    try:
        token = await change_token(context, call, asked.hmac, renew)
    except Refusal as refusal:
        return RenewDelegationTokenResponse(refusal.code, NO_TIME)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=token.expires_at_ms)


ACTION = KafkaAction(KEY, run)
