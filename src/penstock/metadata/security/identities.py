"""Changes of tenants, users, keys and policies. Implements ``model.ports.Identities``.

A change is written to the store first, by compare-and-swap, and retried after a conflict; it is in
memory when the call returns. Entries, limits and reads are in ``identity_entries.py``. Before
deleting a tenant, the caller must check that it has no queues. The admin API checks who may call
these functions."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from penstock.access.evaluation import Kind, compile_policy
from penstock.metadata.cache import TRIES_MAX, Cache, write_all
from penstock.metadata.security import identity_entries as entries
from penstock.metadata.security.identity_entries import TenantEntry, UserEntry
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.model.acls import Acl
from penstock.model.errors import Conflict, Damaged, NotFound, Throttled, VersionConflict
from penstock.model.identity import AccessKey, KeyStatus, ScramCredential, Tenant, User
from penstock.model.limits import MINUTE_MS
from penstock.model.ports import KeyRing

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
Step = Callable[Concatenate[Any, bool, P], Awaitable[R]]
Change = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


class NewKey(msgspec.Struct, frozen=True):
    """A new key with its secret, which is not shown in the ``repr``."""

    key: AccessKey
    secret: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.key_id})"


class Resealed(msgspec.Struct, frozen=True):
    count: int  # secrets that are now encrypted by the present master key
    unreadable: int  # secrets encrypted by an unknown master key


async def reseal(cache: Cache[T], keys: Iterable[str], change: Callable[[str, T], T]) -> Resealed:
    """Replace each entry by ``change(key, entry)``, which encrypts its secret with the current
    master key, or raises Damaged if the secret cannot be decrypted."""
    count = unreadable = 0
    for key in keys:

        def step(entry: T | None, key: str = key) -> T | None:
            return None if entry is None else change(key, entry)

        before = cache.get(key)
        try:
            await cache.update(key, step, what=f"The secret {key}")
            count += cache.get(key) != before
        except Damaged:
            unreadable += 1
    return Resealed(count, unreadable)


def _repeated(what: str) -> Callable[[Step[P, R]], Change[P, R]]:
    """Make a method retry after a conflict. The method gets ``is_behind``, an argument that callers
    do not pass: True in a retry, when it must read the store, because memory may be out of date.
    The error after too many conflicts begins with ``what``, formatted with the arguments."""

    def decorate(step: Step[P, R]) -> Change[P, R]:
        async def repeat(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
            for attempt in range(TRIES_MAX):
                try:
                    return await step(self, attempt > 0, *args, **kwargs)
                except VersionConflict:
                    continue
                except (Conflict, NotFound):
                    if attempt > 0:
                        raise
            given = signature(step).bind(self, True, *args, **kwargs).arguments
            raise Throttled(f"{what.format(**given)} is being changed by another request; retry.")

        return repeat

    return decorate


class StoredIdentities(entries.IdentityMemory):
    """Implements ``model.ports.Identities`` over any store."""

    def __init__(self, store: Store, ring: KeyRing, *, entropy: Callable[[int], bytes]) -> None:
        super().__init__(store, ring)
        self._entropy = entropy
        self._commit = partial(write_all, store)
        self._used: dict[str, int] = {}  # by key id: the time of its last use, not yet stored

    def free_account(self) -> str:
        while True:
            account = entries.new_account(self._entropy(8))
            if self.tenant(account) is None:
                return account

    @_repeated("The tenant {tenant.account}")
    async def create_tenant(self, is_behind: bool, tenant: Tenant) -> Tenant:
        entries.check_tenant(tenant)
        at = entries.tenant_key(tenant.account)
        if is_behind and (await self._tenants.refresh(at))[1]:
            raise Conflict(f"The tenant {tenant.account} exists already.")
        if len(self._tenants) >= entries.TENANTS_MAX:
            raise Conflict(f"The limit of {entries.TENANTS_MAX} tenants is reached.")
        self._check_tenant_name(tenant)
        await self._commit(((at, 0),), ((self._tenants, at, TenantEntry(tenant)),))
        return tenant

    async def change_tenant(self, account: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        def changed(entry: TenantEntry) -> TenantEntry:
            after = change(entry.tenant)
            assert after.account == account
            if after != entry.tenant:
                entries.check_tenant(after)
                self._check_tenant_name(after)
            return msgspec.structs.replace(entry, tenant=after)

        at, what = entries.tenant_key(account), f"tenant {account}"
        return (await self._change(self._tenants, at, what, changed)).tenant

    @_repeated("The tenant {account}")
    async def delete_tenant(self, is_behind: bool, account: str) -> None:
        """Delete a tenant and its access rules. Raises Conflict if it has users."""
        at = entries.tenant_key(account)
        entry, version = await self._tenant_entry(account, is_behind)
        if entry.user_count:
            raise Conflict(f"The tenant {account} still has {entry.user_count} users.")
        # Rules first: if a crash left them, they would apply to the next tenant of the account.
        await self._acls.remove_all(account)
        await self._commit(((at, version),), ((self._tenants, at, None),))

    def _check_tenant_name(self, tenant: Tenant) -> None:
        # Checked in memory only: two nodes at once could use a name twice. That is acceptable,
        # because tenants are identified by their account; names are for people.
        for other in self._tenants.values():
            if other.tenant.name == tenant.name and other.tenant.account != tenant.account:
                raise Conflict(f"Tenant {other.tenant.account} already has the name {tenant.name}.")

    @_repeated("The user {user.name}")
    async def create_user(
        self, is_behind: bool, user: User, scram: ScramCredential | None = None
    ) -> User:
        """Create a user, and its password if ``scram`` is given, in one transaction."""
        entries.check_user_name(user.name)
        _check_policies(user, before={})
        at, tenant_at = entries.user_key(user.account, user.name), entries.tenant_key(user.account)
        made = UserEntry(user)
        writes = []
        if scram is not None:
            entries.check_scram(scram)
            scram_at = entries.scram_key(user.account, user.name, scram.mechanism)
            sealed = entries.convert_scram(scram, scram_at, self._ring.wrap)
            made = UserEntry(user, mechanisms=(scram.mechanism,))
            writes.append((self._scrams, scram_at, sealed))
        if is_behind and (await self._users.refresh(at))[1]:
            raise Conflict(f"The user {user.name} exists already.")
        entry, version = await self._tenant_entry(user.account, is_behind)
        if entry.user_count >= entries.USERS_PER_TENANT_MAX:
            raise Conflict(
                f"The tenant has {entries.USERS_PER_TENANT_MAX} users, which is the limit."
            )
        if len(self._users) >= entries.USERS_MAX:
            raise Conflict(f"The limit of {entries.USERS_MAX} users is reached.")
        counted = msgspec.structs.replace(entry, user_count=entry.user_count + 1)
        await self._commit(
            ((tenant_at, version), (at, 0)),
            ((self._tenants, tenant_at, counted), (self._users, at, made), *writes),
        )
        return user

    async def change_user(self, account: str, name: str, change: Callable[[User], User]) -> User:
        """Replace a user by ``change(user)``, which is called again after a conflict."""

        def changed(entry: UserEntry) -> UserEntry:
            after = change(entry.user)
            assert (after.account, after.name) == (account, name)
            if after != entry.user:
                _check_policies(after, before=entry.user.policies)
            return msgspec.structs.replace(entry, user=after)

        at, what = entries.user_key(account, name), f"user {name} in the tenant {account}"
        return (await self._change(self._users, at, what, changed)).user

    async def put_policy(self, account: str, user: str, policy: str, text: str) -> User:
        def change(before: User) -> User:
            return msgspec.structs.replace(before, policies={**before.policies, policy: text})

        return await self.change_user(account, user, change)

    async def remove_policy(self, account: str, user: str, policy: str) -> User:
        def change(before: User) -> User:
            if policy not in before.policies:
                raise NotFound(f"The user {user} has no policy {policy}.")
            kept = {name: text for name, text in before.policies.items() if name != policy}
            return msgspec.structs.replace(before, policies=kept)

        return await self.change_user(account, user, change)

    @_repeated("The user {name}")
    async def delete_user(self, is_behind: bool, account: str, name: str) -> None:
        """Delete a user with its keys and passwords, in one transaction."""
        at, tenant_at = entries.user_key(account, name), entries.tenant_key(account)
        entry, version = await self._user_entry(account, name, is_behind)
        tenant, tenant_version = await self._tenant_entry(account, is_behind)
        counted = msgspec.structs.replace(tenant, user_count=tenant.user_count - 1)
        keys = [(self._keys, entries.key_key(key_id), None) for key_id in entry.key_ids]
        scrams = [
            (self._scrams, entries.scram_key(account, name, m), None) for m in entry.mechanisms
        ]
        await self._commit(
            ((at, version), (tenant_at, tenant_version)),
            ((self._users, at, None), *keys, *scrams, (self._tenants, tenant_at, counted)),
        )

    @_repeated("The user {user}")
    async def create_key(
        self,
        is_behind: bool,
        account: str,
        user: str,
        *,
        now_ms: int,
        key_id: str = "",
        secret: str = "",
    ) -> NewKey:
        """Create a key. Its id and secret are random unless they are given."""
        assert bool(key_id) == bool(secret), "give both id and secret, or none"
        is_drawn = not key_id
        if is_drawn:
            secret = entries.new_secret(self._entropy(entries.SECRET_ENTROPY_BYTES))
        else:
            entries.check_key(key_id, secret)
        at = entries.user_key(account, user)
        entry, version = await self._user_entry(account, user, is_behind)
        if len(entry.key_ids) >= entries.KEYS_PER_USER_MAX:
            raise Conflict(
                f"The user {user} has {entries.KEYS_PER_USER_MAX} keys, which is the limit."
                " Delete an unused key."
            )
        chosen = key_id or entries.new_key_id(self._entropy(entries.KEY_ID_ENTROPY_BYTES))
        key_at = entries.key_key(chosen)
        if not is_drawn and (await self._keys.refresh(key_at))[1]:
            raise Conflict(f"The key {chosen} exists already.")
        sealed = self._ring.wrap(secret.encode(), context=key_at.encode())
        key = AccessKey(chosen, account, user, sealed, now_ms)
        named = msgspec.structs.replace(entry, key_ids=(*entry.key_ids, chosen))
        await self._commit(
            ((at, version), (key_at, 0)), ((self._users, at, named), (self._keys, key_at, key))
        )
        return NewKey(key, secret)

    async def rotate_key(self, key_id: str, *, now_ms: int) -> NewKey:
        """Create another key for the same user. The old key works until it is disabled."""
        key = self._live_keys.get(key_id)
        if key is None:
            key, _ = await self._key_entry(key_id, True)
        return await self.create_key(key.account, key.user, now_ms=now_ms)

    async def set_key_status(self, key_id: str, status: KeyStatus) -> AccessKey:
        def change(key: AccessKey) -> AccessKey:
            return msgspec.structs.replace(key, status=status)

        return await self._change(self._keys, entries.key_key(key_id), f"key {key_id}", change)

    @_repeated("The key {key_id}")
    async def delete_key(self, is_behind: bool, key_id: str) -> None:
        key, key_version = await self._key_entry(key_id, is_behind)
        at = entries.user_key(key.account, key.user)
        entry, version = await self._user_entry(key.account, key.user, is_behind)
        kept = tuple(other for other in entry.key_ids if other != key_id)
        named = msgspec.structs.replace(entry, key_ids=kept)
        await self._commit(
            ((at, version), (entries.key_key(key_id), key_version)),
            ((self._users, at, named), (self._keys, entries.key_key(key_id), None)),
        )

    def note_used(self, key: AccessKey, *, now_ms: int) -> None:
        if now_ms - key.last_used_at_ms >= MINUTE_MS:
            self._used[key.key_id] = now_ms - now_ms % MINUTE_MS

    async def flush(self) -> int:
        """Store when each key was last used. Returns the number of keys changed."""
        used, self._used = self._used, {}
        ids, count = list(used), 0
        try:
            for start in range(0, len(ids), CHANGES_PER_TXN_MAX):
                some = {key_id: used[key_id] for key_id in ids[start : start + CHANGES_PER_TXN_MAX]}
                # If a key was changed elsewhere, the watch reports it before the next try.
                with suppress(VersionConflict):
                    count += await self._write_used(some)
                    used = {key_id: at_ms for key_id, at_ms in used.items() if key_id not in some}
        finally:
            self._used = {**used, **self._used}
        return count

    async def _write_used(self, used: Mapping[str, int]) -> int:
        compare, changes = [], []
        for key_id, at_ms in used.items():
            key = self._live_keys.get(key_id)
            if key is None or key.last_used_at_ms >= at_ms:
                continue  # deleted, or written by another node
            at = entries.key_key(key_id)
            compare.append((at, self._keys.version(at)))
            after = msgspec.structs.replace(key, last_used_at_ms=at_ms)
            changes.append((self._keys, at, after))
        if changes:
            await self._commit(compare, changes)
        return len(changes)

    @_repeated("The user {credential.user}")
    async def put_scram(self, is_behind: bool, credential: ScramCredential) -> None:
        entries.check_scram(credential)
        account, name, mechanism = credential.account, credential.user, credential.mechanism
        at, scram_at = entries.user_key(account, name), entries.scram_key(account, name, mechanism)
        sealed = entries.convert_scram(credential, scram_at, self._ring.wrap)
        entry, version = await self._user_entry(account, name, is_behind)
        named = tuple(sorted({*entry.mechanisms, mechanism}))
        after = msgspec.structs.replace(entry, mechanisms=named)
        await self._commit(
            ((at, version),), ((self._users, at, after), (self._scrams, scram_at, sealed))
        )

    @_repeated("The user {name}")
    async def delete_scram(self, is_behind: bool, account: str, name: str, mechanism: str) -> None:
        at, scram_at = entries.user_key(account, name), entries.scram_key(account, name, mechanism)
        entry, version = await self._user_entry(account, name, is_behind)
        if mechanism not in entry.mechanisms:
            raise NotFound(f"The user {name} has no password for {mechanism}.")
        named = tuple(other for other in entry.mechanisms if other != mechanism)
        after = msgspec.structs.replace(entry, mechanisms=named)
        await self._commit(
            ((at, version),), ((self._users, at, after), (self._scrams, scram_at, None))
        )

    async def add_acls(self, account: str, rules: Collection[Acl]) -> None:
        await self._acls.add(account, rules)

    async def remove_acls(self, account: str, rules: Collection[Acl]) -> None:
        await self._acls.remove(account, rules)

    async def reseal(self, rewrap: Callable[[bytes, bytes], bytes]) -> Resealed:
        """Encrypt every secret with the current master key. Old master keys can then be removed."""

        def change(at: str, key: AccessKey) -> AccessKey:
            sealed = rewrap(key.sealed_secret, at.encode())
            return msgspec.structs.replace(key, sealed_secret=sealed)

        def change_scram(at: str, scram: ScramCredential) -> ScramCredential:
            return entries.convert_scram(scram, at, rewrap)

        keys = [entries.key_key(key_id) for key_id in self._live_keys]
        scrams = [
            entries.scram_key(one.account, one.user, one.mechanism) for one in self._scrams.values()
        ]
        first = await reseal(self._keys, keys, change)
        second = await reseal(self._scrams, scrams, change_scram)
        return Resealed(first.count + second.count, first.unreadable + second.unreadable)

    @_repeated("The {what}")
    async def _change(
        self, is_behind: bool, cache: Cache[T], at: str, what: str, change: Callable[[T], T]
    ) -> T:
        """Replace an existing entry by ``change(entry)`` and return the new entry."""
        entry, version = await _newest(cache, at, is_behind, f"There is no {what}.")
        after = change(entry)
        if after != entry:
            await self._commit(((at, version),), ((cache, at, after),))
        return after

    async def _tenant_entry(self, account: str, is_behind: bool) -> tuple[TenantEntry, int]:
        missing = f"There is no tenant {account}."
        return await _newest(self._tenants, entries.tenant_key(account), is_behind, missing)

    async def _user_entry(self, account: str, name: str, is_behind: bool) -> tuple[UserEntry, int]:
        missing = f"There is no user {name} in the tenant {account}."
        return await _newest(self._users, entries.user_key(account, name), is_behind, missing)

    async def _key_entry(self, key_id: str, is_behind: bool) -> tuple[AccessKey, int]:
        return await _newest(
            self._keys, entries.key_key(key_id), is_behind, f"There is no key {key_id}."
        )


def _check_policies(user: User, *, before: Mapping[str, str]) -> None:
    entries.check_policies(user)
    for name, text in user.policies.items():
        if before.get(name) != text:
            compile_policy(text, Kind.IDENTITY)


async def _newest(cache: Cache[T], at: str, is_behind: bool, missing: str) -> tuple[T, int]:
    """Return a value and its version, from memory or, if ``is_behind``, from the store."""
    value, version = (None, 0) if is_behind else (cache.get(at), cache.version(at))
    if value is None:
        value, version = await cache.refresh(at)
    if value is None:
        raise NotFound(missing)
    return value, version
