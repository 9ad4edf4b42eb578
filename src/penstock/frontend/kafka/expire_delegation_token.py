"""ExpireDelegationToken: let a token expire after a period, or end a token at once, with a negative
period. Clients that are logged in with a token that was ended are disconnected at their next
request."""

import msgspec

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.delegation_tokens import NO_TIME, change_token
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.identity import DelegationToken
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

KEY = 40


async def run(
    context: KafkaContext, call: KafkaCall, asked: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    now_ms, period_ms = context.clock.wall_ms(), asked.expiry_time_period_ms

    def expire(token: DelegationToken) -> DelegationToken | None:
        if period_ms < 0:
            return None
        if token.is_expired(now_ms=now_ms):
            raise Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        expires_at_ms = min(token.max_at_ms, now_ms + period_ms)
        return msgspec.structs.replace(token, expires_at_ms=expires_at_ms)

    try:
        token = await change_token(context, call, asked.hmac, expire)
    except Refusal as refusal:
        return ExpireDelegationTokenResponse(refusal.code, NO_TIME)
    ends_at_ms = now_ms if period_ms < 0 else token.expires_at_ms
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=ends_at_ms)


ACTION = KafkaAction(KEY, run)
