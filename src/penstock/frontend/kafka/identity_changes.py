"""What Kafka's administration changes of the identities: users' access rules and passwords. Which
store that goes to is decided where the node is put together."""

from collections.abc import Callable, Collection
from typing import Protocol

from penstock.model.acls import Acl
from penstock.model.identity import ScramCredential, User


class IdentityChanges(Protocol):
    """Implemented by ``metadata/identities.py``. Raises NotFound, Conflict, InvalidRequest and
    Throttled with a sentence each; a change is seen here when the call returns."""

    async def create_user(self, user: User, scram: ScramCredential | None = None) -> User:
        """Create a user, with a password if one is given: both or none."""
        ...

    async def change_user(self, account: str, name: str, change: Callable[[User], User]) -> User:
        """Apply a pure function to the newest value and store it, again when someone was
        faster."""
        ...

    async def put_scram(self, credential: ScramCredential) -> None: ...

    async def delete_scram(self, account: str, name: str, mechanism: str) -> None: ...

    async def add_acls(self, account: str, rules: Collection[Acl]) -> None:
        """Add all of them or, raising QuotaExceeded, none. Rules that exist stay as they are."""
        ...

    async def remove_acls(self, account: str, rules: Collection[Acl]) -> None: ...
