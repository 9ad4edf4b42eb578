"""Delegation tokens in the metadata store.

    /tokens/{token id}    the token as JSON, without its secret

Every node has all tokens in memory, updated by a watch. The secret of a token, its HMAC, is
computed from the token id and a key that all nodes share.
"""

import hmac
import re
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from penstock.metadata.cache import Cache
from penstock.metadata.store import Store
from penstock.model.errors import QuotaExceeded
from penstock.model.identity import DelegationToken
from penstock.model.limits import (
    ACL_TEXT_CHARS_MAX,
    TOKEN_RENEWERS_MAX,
    TOKENS_MAX,
    TOKENS_PER_TENANT_MAX,
)
from penstock.model.names import is_account
from penstock.wire.internal.faults import OutcomeUnknown

TOKENS_PREFIX: Final = "/tokens/"

_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z")
_decode = msgspec.json.Decoder(DelegationToken).decode
Change = Callable[[DelegationToken], DelegationToken | None]


def token_key(token_id: str) -> str:
    return f"{TOKENS_PREFIX}{token_id}"


def decode_token(value: bytes) -> DelegationToken:
    """Raises ValueError for a value that a node never writes."""
    token = _decode(value)
    names = (token.owner, token.requester, *token.renewers)
    if not is_account(token.account) or _ID.match(token.token_id) is None:
        raise ValueError("a delegation token needs an account and an id of 22 characters")
    if len(token.renewers) > TOKEN_RENEWERS_MAX or max(map(len, names)) > ACL_TEXT_CHARS_MAX:
        raise ValueError("a delegation token has too many renewers, or a name that is too long")
    return token


class DelegationTokens(Cache[DelegationToken]):
    def __init__(self, store: Store, secret: bytes) -> None:
        """``secret``: the key of all HMACs, the same on every node."""
        super().__init__(store, TOKENS_PREFIX, decode=decode_token, on_change=self._on_token_change)
        self._secret = secret
        self._by_account: dict[str, dict[str, DelegationToken]] = {}
        self._by_hmac: dict[bytes, DelegationToken] = {}

    def find(self, token_id: str) -> DelegationToken | None:
        return self.get(token_key(token_id))

    def find_by_hmac(self, account: str, value: bytes) -> DelegationToken | None:
        """Return the token of the tenant that has this HMAC, or None."""
        token = self._by_hmac.get(value)
        return token if token is not None and token.account == account else None

    def of(self, account: str) -> Collection[DelegationToken]:
        return self._by_account.get(account, {}).values()

    def hmac_of(self, token_id: str) -> bytes:
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    async def create(self, token: DelegationToken) -> None:
        """Store a new token. Raises QuotaExceeded if the tenant or the server has the maximum."""
        self._check_room(token.account)
        key = token_key(token.token_id)
        try:
            await self.write(key, token, if_version=0)
        except OutcomeUnknown:  # ids are random: no other node writes this key
            found, _ = await self.refresh(key)
            if found is None:
                raise

    async def change(self, token_id: str, change: Change) -> DelegationToken | None:
        """Apply a pure function to the newest value and store its result; None deletes the token.
        Returns None if the token does not exist. Raises the errors of ``change``, and Throttled if
        changes of other nodes keep conflicting."""
        found: DelegationToken | None = None

        def step(before: DelegationToken | None) -> DelegationToken | None:
            nonlocal found
            after = None if before is None else change(before)
            found = after or before
            return after

        await self.update(token_key(token_id), step, what="The delegation token")
        return found

    async def sweep(self, *, now_ms: int) -> int:
        """Delete expired tokens and return their number."""
        expired = [token for token in self.values() if token.is_expired(now_ms=now_ms)]

        def left(token: DelegationToken) -> DelegationToken | None:
            return None if token.is_expired(now_ms=now_ms) else token

        for token in expired:
            await self.change(token.token_id, left)
        return len(expired)

    def _check_room(self, account: str) -> None:
        """Counts tokens in memory, not in the store: nodes that add at once may exceed a bound."""
        used = len(self.of(account))
        if used >= TOKENS_PER_TENANT_MAX:
            raise QuotaExceeded(
                f"This tenant has {used:,} of {TOKENS_PER_TENANT_MAX:,} delegation tokens: expire"
                " some, or wait until they have expired."
            )
        if len(self) >= TOKENS_MAX:
            raise QuotaExceeded(
                f"All tenants together have {TOKENS_MAX:,} of {TOKENS_MAX:,} delegation tokens:"
                " expire some, or wait until they have expired."
            )

    def _on_token_change(
        self, _key: str, before: DelegationToken | None, after: DelegationToken | None
    ) -> None:
        if before is not None:
            tokens = self._by_account[before.account]
            del tokens[before.token_id]
            if not tokens:
                del self._by_account[before.account]
            del self._by_hmac[self.hmac_of(before.token_id)]
        if after is not None:
            self._by_account.setdefault(after.account, {})[after.token_id] = after
            self._by_hmac[self.hmac_of(after.token_id)] = after
