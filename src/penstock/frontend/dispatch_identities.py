"""Changes of tenants, users and keys, behind the metadata's bulkhead: as in ``dispatch.py``. Who
somebody is comes from memory and is asked directly."""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, Protocol

from penstock.frontend.admin.directory import Directory, MadeKey
from penstock.frontend.callees import Callees
from penstock.frontend.kafka.identity_changes import IdentityChanges
from penstock.model.acls import Acl
from penstock.model.identity import AccessKey, KeyStatus, ScramCredential, Tenant, User

ACLS_PER_CALL_MAX: Final = 320  # ten transactions of the metadata store


class Changeable(Directory, IdentityChanges, Protocol):
    """All that the admin API and Kafka's administration ask of identities."""


class DispatchedIdentities:
    """Implements ``Changeable`` over another one."""

    def __init__(self, identities: Changeable, callees: Callees) -> None:
        self._identities = identities
        self._call = callees.metadata.call
        self.tenant = identities.tenant
        self.tenants = identities.tenants
        self.user = identities.user
        self.users = identities.users
        self.key = identities.key
        self.keys = identities.keys
        self.secret = identities.secret
        self.scram = identities.scram
        self.iteration_counts = identities.iteration_counts
        self.note_used = identities.note_used
        self.free_account = identities.free_account
        self.mechanisms = identities.mechanisms
        self.acls = identities.acls

    @property
    def epoch(self) -> int:
        return self._identities.epoch

    async def create_tenant(self, tenant: Tenant) -> Tenant:
        return await self._call(lambda: self._identities.create_tenant(tenant))

    async def change_tenant(self, account: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        return await self._call(lambda: self._identities.change_tenant(account, change))

    async def delete_tenant(self, account: str) -> None:
        if not self.users(account):  # otherwise the tenant stays, and so must its rules
            await self.remove_acls(account, self.acls(account) or ())
        await self._call(lambda: self._identities.delete_tenant(account))

    async def create_user(self, user: User, scram: ScramCredential | None = None) -> User:
        return await self._call(lambda: self._identities.create_user(user, scram))

    async def change_user(self, account: str, name: str, change: Callable[[User], User]) -> User:
        return await self._call(lambda: self._identities.change_user(account, name, change))

    async def delete_user(self, account: str, name: str) -> None:
        await self._call(lambda: self._identities.delete_user(account, name))

    async def put_policy(self, account: str, user: str, policy: str, text: str) -> User:
        return await self._call(lambda: self._identities.put_policy(account, user, policy, text))

    async def remove_policy(self, account: str, user: str, policy: str) -> User:
        return await self._call(lambda: self._identities.remove_policy(account, user, policy))

    async def create_key(self, account: str, user: str, *, now_ms: int) -> MadeKey:
        return await self._call(lambda: self._identities.create_key(account, user, now_ms=now_ms))

    async def rotate_key(self, key_id: str, *, now_ms: int) -> MadeKey:
        return await self._call(lambda: self._identities.rotate_key(key_id, now_ms=now_ms))

    async def set_key_status(self, key_id: str, status: KeyStatus) -> AccessKey:
        return await self._call(lambda: self._identities.set_key_status(key_id, status))

    async def delete_key(self, key_id: str) -> None:
        await self._call(lambda: self._identities.delete_key(key_id))

    async def put_scram(self, credential: ScramCredential) -> None:
        await self._call(lambda: self._identities.put_scram(credential))

    async def delete_scram(self, account: str, name: str, mechanism: str) -> None:
        await self._call(lambda: self._identities.delete_scram(account, name, mechanism))

    async def add_acls(self, account: str, rules: Collection[Acl]) -> None:
        await self._call(lambda: self._identities.add_acls(account, rules))

    async def remove_acls(self, account: str, rules: Iterable[Acl]) -> None:
        """All rules of a tenant take longer than one call may, so they are removed in several."""
        left = list(rules)
        for start in range(0, len(left), ACLS_PER_CALL_MAX):
            some = left[start : start + ACLS_PER_CALL_MAX]
            await self._call(partial(self._identities.remove_acls, account, some))
