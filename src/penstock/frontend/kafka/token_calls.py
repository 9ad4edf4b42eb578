"""The port to delegation tokens, which ``metadata/delegation_tokens.py`` implements."""

from collections.abc import Callable, Collection
from typing import Protocol

from penstock.model.identity import DelegationToken


class TokenCalls(Protocol):
    """Tokens are read from memory. A change is in memory when its call returns."""

    def find(self, token_id: str) -> DelegationToken | None: ...

    def find_by_hmac(self, account: str, value: bytes) -> DelegationToken | None:
        """Return the token of a tenant that has this HMAC."""
        ...

    def of(self, account: str) -> Collection[DelegationToken]: ...

    def hmac_of(self, token_id: str) -> bytes:
        """Return the secret of a token."""
        ...

    async def create(self, token: DelegationToken) -> None:
        """Raises QuotaExceeded."""
        ...

    async def change(
        self, token_id: str, change: Callable[[DelegationToken], DelegationToken | None]
    ) -> DelegationToken | None:
        """Apply a pure function to the newest value and store its result; None deletes the token.
        Return None for a token that does not exist."""
        ...
