"""DescribeDelegationToken: return the tokens that the caller owns, may renew, or may see by an
access rule, with their secrets. Expired tokens and tokens of deleted users are left out."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.delegation_tokens import USER, check_asked, may_describe
from penstock.frontend.kafka.passwords import is_live
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.identity import DelegationToken
from penstock.wire.kafka.generated.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

KEY = 41


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Without a list of owners all tokens are meant, with an empty list none."""
    try:
        tokens = check_asked(context, call)
    except Refusal as refusal:
        return DescribeDelegationTokenResponse(error_code=refusal.code)
    wanted = None
    if asked.owners is not None:
        wanted = {each.principal_name for each in asked.owners if each.principal_type == USER}
    now_ms = context.clock.wall_ms()
    return DescribeDelegationTokenResponse(
        tokens=[
            _shown(token, tokens.hmac_of(token.token_id))
            async for token in call.slices.each(list(tokens.of(context.account)))
            if (wanted is None or not wanted.isdisjoint((token.owner, *token.renewers)))
            and is_live(token, context.identities, now_ms=now_ms)
            and may_describe(context, call, token)
        ]
    )


def _shown(token: DelegationToken, hmac: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=USER,
        principal_name=token.owner,
        token_requester_principal_type=USER,
        token_requester_principal_name=token.requester,
        issue_timestamp=token.issued_at_ms,
        expiry_timestamp=token.expires_at_ms,
        max_timestamp=token.max_at_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[DescribedDelegationTokenRenewer(USER, name) for name in token.renewers],
    )


ACTION = KafkaAction(KEY, run)
