"""The first user of a node that nobody could get into otherwise."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.security.identity_entries import KEYS_PER_USER_MAX
from penstock.metadata.sqlite import SqliteStore
from penstock.model.errors import InvalidRequest
from penstock.model.identity import ADMIN_POLICY, KeyStatus, Tenant, User
from penstock.node.keys.keyring import MasterKeyRing
from penstock.node.wiring.security import (
    BootstrapImpossible,
    bootstrap,
    find_operator_key,
    is_operator_key,
)

ACCOUNT = "000000000000"
OTHER = "111111111111"


@pytest.fixture
async def identities(tmp_path: Path) -> AsyncIterator[StoredIdentities]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    identities = StoredIdentities(store, MasterKeyRing(bytes(32)), entropy=os.urandom)
    await identities.start()
    yield identities
    await identities.stop()
    await store.close()


async def test_the_first_start_makes_an_operator_with_a_key_and_the_next_one_nothing(
    identities: StoredIdentities,
) -> None:
    made = await bootstrap(identities, account=ACCOUNT, env={}, now_ms=7)
    assert made is not None
    assert identities.secret(made.key) == made.secret.encode()
    root = identities.user(ACCOUNT, "root")
    assert root == User(ACCOUNT, "root", 7, is_operator=True, policies={"admin": ADMIN_POLICY})
    assert identities.tenant(ACCOUNT) == Tenant(ACCOUNT, "default", 7)
    assert await bootstrap(identities, account=ACCOUNT, env={}, now_ms=8) is None
    assert len(identities.keys(ACCOUNT, "root")) == 1


async def test_a_key_can_be_brought_along(identities: StoredIdentities, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 40 + "\n")
    env = {"PENSTOCK_ROOT_KEY_ID": "ROOTROOTROOTROOT", "PENSTOCK_ROOT_SECRET_FILE": str(file)}
    made = await bootstrap(identities, account=ACCOUNT, env=env, now_ms=7)
    assert made is not None
    assert (made.key.key_id, made.secret) == ("ROOTROOTROOTROOT", "s" * 40)


async def test_half_a_key_is_none(identities: StoredIdentities, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for env in (
        {"PENSTOCK_ROOT_KEY_ID": "ROOTROOTROOTROOT"},
        {"PENSTOCK_ROOT_SECRET_FILE": str(empty)},
        {"PENSTOCK_ROOT_KEY_ID": "R" * 16, "PENSTOCK_ROOT_SECRET_FILE": str(empty)},
        {"PENSTOCK_ROOT_KEY_ID": "R" * 16, "PENSTOCK_ROOT_SECRET_FILE": str(tmp_path / "no")},
    ):
        with pytest.raises(BootstrapImpossible, match="PENSTOCK_ROOT"):
            await bootstrap(identities, account=ACCOUNT, env=env, now_ms=7)
    empty.write_text("short")
    env = {"PENSTOCK_ROOT_KEY_ID": "R" * 16, "PENSTOCK_ROOT_SECRET_FILE": str(empty)}
    with pytest.raises(InvalidRequest):
        await bootstrap(identities, account=ACCOUNT, env=env, now_ms=7)


async def test_a_start_that_was_cut_short_is_gone_on_with(identities: StoredIdentities) -> None:
    await identities.create_tenant(Tenant(ACCOUNT, "default", 1))
    await identities.create_user(User(ACCOUNT, "root", 1, is_operator=True))
    made = await bootstrap(identities, account=ACCOUNT, env={}, now_ms=7)
    assert made is not None
    assert made.key.user == "root"


async def test_users_without_an_operator_do_not_keep_root_from_being_made(
    identities: StoredIdentities, tmp_path: Path
) -> None:
    await identities.create_tenant(Tenant(ACCOUNT, "default", 1))
    await identities.create_user(User(ACCOUNT, "ann", 1))
    await identities.create_key(ACCOUNT, "ann", now_ms=2)
    assert find_operator_key(identities) is None
    file = tmp_path / "secret"
    file.write_text("s" * 40 + "\n")
    env = {"PENSTOCK_ROOT_KEY_ID": "ROOTROOTROOTROOT", "PENSTOCK_ROOT_SECRET_FILE": str(file)}
    made = await bootstrap(identities, account=ACCOUNT, env=env, now_ms=7)
    assert made is not None
    assert (made.key.key_id, made.key.user) == ("ROOTROOTROOTROOT", "root")
    assert find_operator_key(identities) == "ROOTROOTROOTROOT"


async def test_an_operator_whose_keys_are_disabled_counts_as_none(
    identities: StoredIdentities,
) -> None:
    first = await bootstrap(identities, account=ACCOUNT, env={}, now_ms=7)
    assert first is not None
    assert is_operator_key(identities, first.key.key_id)
    await identities.set_key_status(first.key.key_id, KeyStatus.DISABLED)
    assert not is_operator_key(identities, first.key.key_id)
    second = await bootstrap(identities, account=ACCOUNT, env={}, now_ms=8)
    assert second is not None
    assert second.key.user == "root"


async def test_an_operator_of_any_tenant_is_enough(identities: StoredIdentities) -> None:
    await identities.create_tenant(Tenant(OTHER, "other", 1))
    await identities.create_user(User(OTHER, "olga", 1, is_operator=True))
    await identities.create_key(OTHER, "olga", now_ms=2)
    assert await bootstrap(identities, account=ACCOUNT, env={}, now_ms=7) is None
    assert identities.tenant(ACCOUNT) is None


async def test_nobody_becomes_an_operator_by_being_called_root(
    identities: StoredIdentities,
) -> None:
    await identities.create_tenant(Tenant(ACCOUNT, "default", 1))
    await identities.create_user(User(ACCOUNT, "root", 1))
    made = await bootstrap(identities, account=ACCOUNT, env={}, now_ms=7)
    assert made is not None
    assert made.key.user == "root-2"
    root = identities.user(ACCOUNT, "root")
    assert root is not None
    assert not root.is_operator


async def test_a_root_with_all_keys_it_may_have_is_left_alone(
    identities: StoredIdentities,
) -> None:
    await identities.create_tenant(Tenant(ACCOUNT, "default", 1))
    await identities.create_user(User(ACCOUNT, "root", 1, is_operator=True))
    for _ in range(KEYS_PER_USER_MAX):
        new = await identities.create_key(ACCOUNT, "root", now_ms=2)
        await identities.set_key_status(new.key.key_id, KeyStatus.DISABLED)
    made = await bootstrap(identities, account=ACCOUNT, env={}, now_ms=7)
    assert made is not None
    assert made.key.user == "root-2"


async def test_a_given_key_that_exists_and_is_disabled_does_not_stop_the_start(
    identities: StoredIdentities, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 40 + "\n")
    env = {"PENSTOCK_ROOT_KEY_ID": "ROOTROOTROOTROOT", "PENSTOCK_ROOT_SECRET_FILE": str(file)}
    assert await bootstrap(identities, account=ACCOUNT, env=env, now_ms=7) is not None
    await identities.set_key_status("ROOTROOTROOTROOT", KeyStatus.DISABLED)
    assert await bootstrap(identities, account=ACCOUNT, env=env, now_ms=8) is None
    assert find_operator_key(identities) is None, "a disabled key is not enabled by a start"
