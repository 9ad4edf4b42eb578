"""Tenants, users, keys, policies and access rules in the memory of this node: the reading half of
identities. ``identities.py`` contains the changes.

Reading is a dict lookup. A watch per kind reports the changes of other nodes and raises ``epoch``,
which invalidates authorization decisions cached elsewhere. Secrets stay sealed in memory and are
opened for each use.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.metadata.cache import Cache
from penstock.metadata.prefix_watch import PrefixWatch
from penstock.metadata.security.acl_rules import AclRules
from penstock.metadata.security.identity_entries import (
    KEYS_PREFIX,
    SCRAM_PREFIX,
    TENANTS_PREFIX,
    USERS_PREFIX,
    TenantEntry,
    UserEntry,
    decode_key,
    decode_scram,
    decode_tenant,
    decode_user,
    key_key,
    scram_key,
    tenant_key,
    user_key,
)
from penstock.metadata.store import Store
from penstock.model.acls import AclIndex
from penstock.model.identity import AccessKey, ScramCredential, Tenant, User
from penstock.model.limits import SCRAM_ITERATIONS_MAX
from penstock.model.ports import KeyRing


class IdentityMemory:
    def __init__(self, store: Store, ring: KeyRing) -> None:
        self._store = store
        self._ring = ring
        self._tenants = Cache(
            store, TENANTS_PREFIX, decode=decode_tenant, on_change=self._on_tenant_change
        )
        self._users = Cache(store, USERS_PREFIX, decode=decode_user, on_change=self._on_user_change)
        self._keys = Cache(store, KEYS_PREFIX, decode=decode_key, on_change=self._on_key_change)
        self._scrams = Cache(
            store, SCRAM_PREFIX, decode=decode_scram, on_change=self._on_scram_change
        )
        self._acls = AclRules(store, on_rules_change=self._raise_epoch)
        self._caches: Sequence[PrefixWatch] = (
            self._tenants,
            self._users,
            self._keys,
            self._scrams,
            self._acls,
        )
        # Views of the entries:
        self._by_account: dict[str, dict[str, User]] = {}
        self._live_keys: dict[str, AccessKey] = {}  # keys that their user's entry names
        # The number of users, by mechanism, account and iterations.
        self._iteration_counts: dict[str, dict[str, dict[int, int]]] = {}
        self._epoch = 1

    async def start(self) -> None:
        """Load everything into memory."""
        for cache in self._caches:
            await cache.start()

    async def stop(self) -> None:
        for cache in self._caches:
            await cache.stop()

    @property
    def trouble(self) -> str | None:
        """Why memory may lag behind the store (for the health endpoint), or None."""
        return next((cache.trouble for cache in self._caches if cache.trouble is not None), None)

    # ── Reading: from memory ─────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        return self._epoch

    def tenant(self, account: str) -> Tenant | None:
        entry = self._tenants.get(tenant_key(account))
        return None if entry is None else entry.tenant

    def tenants(self) -> Sequence[Tenant]:
        found = [entry.tenant for entry in self._tenants.values()]
        found.sort(key=lambda tenant: tenant.account)
        return found

    def user(self, account: str, name: str) -> User | None:
        entry = self._users.get(user_key(account, name))
        return None if entry is None else entry.user

    def users(self, account: str) -> Sequence[User]:
        users = self._by_account.get(account, {})
        return [users[name] for name in sorted(users)]

    def key(self, key_id: str) -> AccessKey | None:
        return self._live_keys.get(key_id)

    def keys(self, account: str, user: str) -> Sequence[AccessKey]:
        """Return the keys of a user, oldest first."""
        entry = self._users.get(user_key(account, user))
        ids = () if entry is None else entry.key_ids
        return [self._live_keys[key_id] for key_id in ids if key_id in self._live_keys]

    def secret(self, key: AccessKey) -> bytes:
        return self._ring.unwrap(key.sealed_secret, context=key_key(key.key_id).encode())

    def scram(self, account: str, user: str, mechanism: str) -> ScramCredential | None:
        if mechanism not in self.mechanisms(account, user):
            return None
        at = scram_key(account, user, mechanism)
        sealed = self._scrams.get(at)
        return None if sealed is None else convert_scram(sealed, at, self._ring.unwrap)

    def mechanisms(self, account: str, user: str) -> Sequence[str]:
        """Return the mechanisms for which the user has a password."""
        entry = self._users.get(user_key(account, user))
        return () if entry is None else entry.mechanisms

    def iteration_counts(self, mechanism: str) -> Mapping[str, Mapping[int, int]]:
        return self._iteration_counts.get(mechanism, {})

    def acls(self, account: str) -> AclIndex | None:
        return self._acls.of(account)

    # ── Updates: each change of this or another node, once ───────────────────────────────────

    def _raise_epoch(self) -> None:
        self._epoch += 1

    def _on_tenant_change(
        self, _at: str, before: TenantEntry | None, after: TenantEntry | None
    ) -> None:
        if before is None or after is None or before.tenant != after.tenant:
            self._epoch += 1  # a change of the user count affects no permissions

    def _on_user_change(self, _at: str, before: UserEntry | None, after: UserEntry | None) -> None:
        self._epoch += 1
        if after is not None:
            self._by_account.setdefault(after.user.account, {})[after.user.name] = after.user
        elif before is not None:
            users = self._by_account[before.user.account]
            del users[before.user.name]
            if not users:
                del self._by_account[before.user.account]
        for entry in (before, after):
            for key_id in () if entry is None else entry.key_ids:
                self._look_at_key(key_id)

    def _on_key_change(self, _at: str, before: AccessKey | None, after: AccessKey | None) -> None:
        key = after or before
        assert key is not None
        self._look_at_key(key.key_id)
        # A change of the time of the last use affects no permissions.
        if (
            before is None
            or after is None
            or before != msgspec.structs.replace(after, last_used_at_ms=before.last_used_at_ms)
        ):
            self._epoch += 1

    def _on_scram_change(
        self, _at: str, before: ScramCredential | None, after: ScramCredential | None
    ) -> None:
        self._epoch += 1
        for credential, change in ((before, -1), (after, 1)):
            if credential is not None and credential.iterations <= SCRAM_ITERATIONS_MAX:
                self._count_iterations(credential, change)

    def _count_iterations(self, credential: ScramCredential, change: int) -> None:
        by_account = self._iteration_counts.setdefault(credential.mechanism, {})
        counts = by_account.setdefault(credential.account, {})
        iterations = credential.iterations
        counts[iterations] = counts.get(iterations, 0) + change
        if not counts[iterations]:
            del counts[iterations]
        if not counts:
            del by_account[credential.account]

    def _look_at_key(self, key_id: str) -> None:
        """Add or remove a key: it is valid while its user's entry names it."""
        key = self._keys.get(key_key(key_id))
        entry = None if key is None else self._users.get(user_key(key.account, key.user))
        if key is not None and entry is not None and key_id in entry.key_ids:
            self._live_keys[key_id] = key
        else:
            self._live_keys.pop(key_id, None)


def convert_scram(
    credential: ScramCredential, at: str, convert: Callable[..., bytes]
) -> ScramCredential:
    """Return the credential with both keys replaced by ``convert(key, context=...)``."""
    return msgspec.structs.replace(
        credential,
        stored_key=convert(credential.stored_key, context=f"{at}#stored".encode()),
        server_key=convert(credential.server_key, context=f"{at}#server".encode()),
    )
