"""Changes of identities behind the bulkhead of the metadata."""

import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from tests.unit.frontend.memory import MemoryClock

from penstock.calls.bulkhead import CalleeRefused, CalleeUnavailable
from penstock.calls.callees import Callees
from penstock.flow.breaker import FAILURES_MAX
from penstock.frontend.limited_calls import ACLS_PER_CALL_MAX, guard_identities
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.model.acls import Acl
from penstock.model.errors import Conflict
from penstock.model.identity import Tenant, User
from penstock.node.keys.keyring import MasterKeyRing

ACCOUNT = "123456789012"
RULES = [
    Acl(2, f"t{number}", 3, "User:ann", "*", 3, 3) for number in range(2 * ACLS_PER_CALL_MAX + 1)
]


class Noted(StoredIdentities):
    """Notes how many rules each call removes."""

    removed: list[int]

    async def remove_acls(self, account: str, rules: Collection[Acl]) -> None:
        self.removed.append(len(rules))
        await super().remove_acls(account, rules)


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Noted]:
    store = await SqliteStore.open(tmp_path / "identities.db")
    identities = Noted(store, MasterKeyRing(bytes(32)), entropy=os.urandom)
    identities.removed = []
    await identities.start()
    await identities.create_tenant(Tenant(ACCOUNT, "tenant", 0))
    await identities.add_acls(ACCOUNT, RULES)
    yield identities
    await identities.stop()
    await store.close()


async def test_many_rules_are_removed_in_several_calls(stored: Noted) -> None:
    """One call for all would be late: the metadata would be cut off for everybody."""
    guarded = guard_identities(stored, Callees(MemoryClock()).metadata)
    await guarded.remove_acls(ACCOUNT, RULES)
    assert stored.removed == [ACLS_PER_CALL_MAX, ACLS_PER_CALL_MAX, 1]
    assert stored.acls(ACCOUNT) is None


async def test_a_tenant_goes_with_its_rules_and_stays_with_them(stored: Noted) -> None:
    guarded = guard_identities(stored, Callees(MemoryClock()).metadata)
    await stored.create_user(User(ACCOUNT, "ann", 0))
    with pytest.raises(Conflict):
        await guarded.delete_tenant(ACCOUNT)
    assert len(stored.acls(ACCOUNT) or ()) == len(RULES)
    await stored.delete_user(ACCOUNT, "ann")
    await guarded.delete_tenant(ACCOUNT)
    assert stored.removed == [ACLS_PER_CALL_MAX, ACLS_PER_CALL_MAX, 1]
    assert stored.tenant(ACCOUNT) is None


async def test_changes_pass_through_the_bulkhead_and_looks_do_not(stored: Noted) -> None:
    metadata = Callees(MemoryClock()).metadata
    guarded = guard_identities(stored, metadata)
    epoch = guarded.epoch
    await guarded.create_user(User(ACCOUNT, "ann", 0))
    assert guarded.epoch == stored.epoch > epoch, "it is read each time"
    for _ in range(FAILURES_MAX):
        with pytest.raises(CalleeUnavailable):
            await metadata.call(unreachable)
    with pytest.raises(CalleeRefused):
        await guarded.create_user(User(ACCOUNT, "bob", 0))
    with pytest.raises(CalleeRefused):
        await guarded.remove_acls(ACCOUNT, RULES)
    assert guarded.user(ACCOUNT, "bob") is None
    assert guarded.user(ACCOUNT, "ann") is not None


async def unreachable() -> None:
    raise ConnectionResetError("gone")
