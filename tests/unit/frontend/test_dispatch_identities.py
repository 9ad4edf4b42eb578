"""Changes of identities behind the bulkhead of the metadata."""

import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from tests.unit.frontend.memory import MemoryClock

from penstock.frontend.callees import Callees
from penstock.frontend.dispatch_identities import ACLS_PER_CALL_MAX, DispatchedIdentities
from penstock.metadata.identities import StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.model.acls import Acl
from penstock.model.errors import Conflict
from penstock.model.identity import Tenant, User
from penstock.node.keyring import MasterKeyRing

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
    dispatched = DispatchedIdentities(stored, Callees(MemoryClock()))
    await dispatched.remove_acls(ACCOUNT, RULES)
    assert stored.removed == [ACLS_PER_CALL_MAX, ACLS_PER_CALL_MAX, 1]
    assert stored.acls(ACCOUNT) is None


async def test_a_tenant_goes_with_its_rules_and_stays_with_them(stored: Noted) -> None:
    dispatched = DispatchedIdentities(stored, Callees(MemoryClock()))
    await stored.create_user(User(ACCOUNT, "ann", 0))
    with pytest.raises(Conflict):
        await dispatched.delete_tenant(ACCOUNT)
    assert len(stored.acls(ACCOUNT) or ()) == len(RULES)
    await stored.delete_user(ACCOUNT, "ann")
    await dispatched.delete_tenant(ACCOUNT)
    assert stored.removed == [ACLS_PER_CALL_MAX, ACLS_PER_CALL_MAX, 1]
    assert stored.tenant(ACCOUNT) is None
