"""Interfaces through which handlers change users, passwords, access rules and tokens."""

from collections.abc import Callable, Collection
from typing import Protocol

from penstock.model.acls import Acl
from penstock.model.identity import DelegationToken, ScramCredential, User


class IdentityChanges(Protocol):
    """Changes of users, passwords and access rules. They are visible when a call returns."""

    async def create_user(self, user: User, scram: ScramCredential | None = None) -> User: ...

    async def change_user(self, account: str, name: str, change: Callable[[User], User]) -> User:
        """Apply a pure function to the newest version of a user and store the result."""

    async def put_scram(self, credential: ScramCredential) -> None: ...

    async def delete_scram(self, account: str, name: str, mechanism: str) -> None: ...

    async def add_acls(self, account: str, rules: Collection[Acl]) -> None:
        """Add all rules that do not exist yet, or none and raise QuotaExceeded."""

    async def remove_acls(self, account: str, rules: Collection[Acl]) -> None: ...


class TokenCalls(Protocol):
    """The store of delegation tokens. Changes are visible when a call returns."""

    def find(self, token_id: str) -> DelegationToken | None: ...

    def find_by_hmac(self, account: str, value: bytes) -> DelegationToken | None: ...

    def of(self, account: str) -> Collection[DelegationToken]: ...

    def hmac_of(self, token_id: str) -> bytes: ...

    async def create(self, token: DelegationToken) -> None:
        """Store a new token. Raises QuotaExceeded if the tenant has too many tokens."""

    async def change(
        self, token_id: str, change: Callable[[DelegationToken], DelegationToken | None]
    ) -> DelegationToken | None:
        """Apply a pure function to the newest version of a token and store its result. The result
        None deletes the token. Return None if the token does not exist."""
