"""The identities of a node with authentication off: none."""

from collections.abc import Mapping, Sequence

from penstock.model.acls import AclIndex
from penstock.model.errors import NotFound
from penstock.model.identity import AccessKey, ScramCredential, Tenant, User


class NoIdentities:
    """Implements ``model.ports.Identities``."""

    epoch = 0

    def tenant(self, account: str) -> Tenant | None:  # noqa: ARG002
        return None

    def tenants(self) -> Sequence[Tenant]:
        return ()

    def user(self, account: str, name: str) -> User | None:  # noqa: ARG002
        return None

    def users(self, account: str) -> Sequence[User]:  # noqa: ARG002
        return ()

    def key(self, key_id: str) -> AccessKey | None:  # noqa: ARG002
        return None

    def keys(self, account: str, user: str) -> Sequence[AccessKey]:  # noqa: ARG002
        return ()

    def secret(self, key: AccessKey) -> bytes:
        raise NotFound(f"There is no key {key.key_id}.")

    def scram(self, account: str, user: str, mechanism: str) -> ScramCredential | None:  # noqa: ARG002
        return None

    def iteration_counts(self, mechanism: str) -> Mapping[str, Mapping[int, int]]:  # noqa: ARG002
        return {}

    def acls(self, account: str) -> AclIndex | None:  # noqa: ARG002
        return None

    def note_used(self, key: AccessKey, *, now_ms: int) -> None:
        pass
