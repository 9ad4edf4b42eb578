"""Delegation tokens, with changes behind the metadata's bulkhead, as in ``dispatch.py``. Tokens are
read from memory."""

from collections.abc import Callable

from penstock.frontend.callees import Callees
from penstock.frontend.kafka.token_calls import TokenCalls
from penstock.model.identity import DelegationToken


class DispatchedTokens:
    """A ``TokenCalls`` that calls another one through the bulkhead."""

    def __init__(self, tokens: TokenCalls, callees: Callees) -> None:
        self._tokens = tokens
        self._call = callees.metadata.call
        self.find = tokens.find
        self.find_by_hmac = tokens.find_by_hmac
        self.of = tokens.of
        self.hmac_of = tokens.hmac_of

    async def create(self, token: DelegationToken) -> None:
        await self._call(lambda: self._tokens.create(token))

    async def change(
        self, token_id: str, change: Callable[[DelegationToken], DelegationToken | None]
    ) -> DelegationToken | None:
        return await self._call(lambda: self._tokens.change(token_id, change))
