"""The ports through which handlers change users, passwords, access rules and delegation tokens."""

from collections.abc import Callable, Collection
from typing import Protocol

from penstock.model.acls import Acl
from penstock.model.identity import DelegationToken, ScramCredential, User


class IdentityChanges(Protocol):
    """Implemented by ``metadata/security/identities.py``. Raises NotFound, Conflict, InvalidRequest
    and Throttled. A change is in memory when its call returns."""

    async def create_user(self, user: User, scram: ScramCredential | None = None) -> User:
        """Create a user, with a password if one is given; if either fails, neither is stored."""

    async def change_user(self, account: str, name: str, change: Callable[[User], User]) -> User:
        """Apply a pure function to the newest value and store the result."""

    async def put_scram(self, credential: ScramCredential) -> None: ...

    async def delete_scram(self, account: str, name: str, mechanism: str) -> None: ...

    async def add_acls(self, account: str, rules: Collection[Acl]) -> None:
        """Add all rules, or none and raise QuotaExceeded. Rules that exist stay as they are."""

    async def remove_acls(self, account: str, rules: Collection[Acl]) -> None: ...


class TokenCalls(Protocol):
    """Implemented by ``metadata/security/acl_rules.py``. Tokens are read from memory. A
    change is in memory when its call returns."""

    def find(self, token_id: str) -> DelegationToken | None: ...

    def find_by_hmac(self, account: str, value: bytes) -> DelegationToken | None:
        """Return the token of a tenant that has this HMAC."""

    def of(self, account: str) -> Collection[DelegationToken]: ...

    def hmac_of(self, token_id: str) -> bytes:
        """Return the secret of a token."""

    async def create(self, token: DelegationToken) -> None:
        """Raises QuotaExceeded."""

    async def change(
        self, token_id: str, change: Callable[[DelegationToken], DelegationToken | None]
    ) -> DelegationToken | None:
        """Apply a pure function to the newest value and store its result; None deletes the token.
        Return None for a token that does not exist."""
