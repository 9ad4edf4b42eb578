"""Keys and passwords over the real store: sealed, rotated, used, and gone with their user."""

import asyncio
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.metadata.security import identity_entries as entries
from penstock.metadata.security.identities import NewKey, StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.model.errors import (
    Conflict,
    Damaged,
    DiskFull,
    InvalidRequest,
    NotFound,
)
from penstock.model.identity import (
    ADMIN_POLICY,
    AccessKey,
    KeyStatus,
    User,
)
from penstock.node.keys.keyring import MasterKeyRing

from .conftest import ACCOUNT, MASTER, make_node, make_scram, make_tenant, until

# ── Keys ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_is_shown_once_and_kept_sealed(
    here: StoredIdentities, ann: User, tmp_path: Path
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=5)
    assert made.key.key_id.startswith("PSAK")
    assert len(made.key.key_id) == 20
    assert len(made.secret) == 40
    found = here.key(made.key.key_id)
    assert found == made.key
    assert found is not None
    assert here.secret(found) == made.secret.encode()
    assert made.secret not in repr(made) + repr(found)
    for file in tmp_path.iterdir():
        assert made.secret.encode() not in file.read_bytes()


async def test_no_two_keys_are_alike_and_a_user_has_four(here: StoredIdentities, ann: User) -> None:
    made = [await here.create_key(ACCOUNT, "ann", now_ms=number) for number in range(4)]
    assert len({one.secret for one in made}) == len({one.key.key_id for one in made}) == 4
    assert list(here.keys(ACCOUNT, "ann")) == [one.key for one in made]
    with pytest.raises(Conflict, match="4 keys"):
        await here.create_key(ACCOUNT, "ann", now_ms=5)
    with pytest.raises(Conflict, match="4 keys"):
        await here.rotate_key(made[0].key.key_id, now_ms=5)


async def test_a_rotated_key_works_on_until_it_is_disabled(
    here: StoredIdentities, ann: User
) -> None:
    old = await here.create_key(ACCOUNT, "ann", now_ms=1)
    new = await here.rotate_key(old.key.key_id, now_ms=2)
    assert (new.key.user, new.key.account) == ("ann", ACCOUNT)
    assert here.key(old.key.key_id) == old.key
    disabled = await here.set_key_status(old.key.key_id, KeyStatus.DISABLED)
    assert here.key(old.key.key_id) == disabled
    assert disabled.status is KeyStatus.DISABLED
    assert here.secret(disabled) == old.secret.encode()
    await here.set_key_status(old.key.key_id, KeyStatus.ACTIVE)
    assert here.key(old.key.key_id) == old.key
    await here.delete_key(old.key.key_id)
    assert here.key(old.key.key_id) is None
    assert list(here.keys(ACCOUNT, "ann")) == [new.key]


async def test_a_key_may_be_brought_along(here: StoredIdentities, ann: User) -> None:
    made = await here.create_key(
        ACCOUNT, "ann", now_ms=1, key_id="ROOTROOTROOTROOT", secret="s" * 40
    )
    assert here.secret(made.key) == b"s" * 40
    with pytest.raises(Conflict, match="already"):
        await here.create_key(ACCOUNT, "ann", now_ms=1, key_id="ROOTROOTROOTROOT", secret="t" * 40)
    for key_id, secret in (("short", "s" * 40), ("R" * 20, "short"), ("a/b" * 9, "s" * 40)):
        with pytest.raises(InvalidRequest):
            await here.create_key(ACCOUNT, "ann", now_ms=1, key_id=key_id, secret=secret)


async def test_what_is_not_there_is_named(here: StoredIdentities, ann: User) -> None:
    for call in (
        here.create_key(ACCOUNT, "bob", now_ms=1),
        here.delete_user(ACCOUNT, "bob"),
        here.put_policy(ACCOUNT, "bob", "p", ADMIN_POLICY),
        here.put_scram(make_scram(user="bob")),
    ):
        with pytest.raises(NotFound, match="no user bob"):
            await call
    for other in (
        here.delete_key("PSAKXXXXXXXXXXXXXXXX"),
        here.set_key_status("PSAKXXXXXXXXXXXXXXXX", KeyStatus.DISABLED),
        here.rotate_key("PSAKXXXXXXXXXXXXXXXX", now_ms=1),
    ):
        with pytest.raises(NotFound, match="no key PSAK"):
            await other


async def test_a_deleted_user_takes_keys_and_passwords_along_at_one_revision(
    here: StoredIdentities, there: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    await there.put_scram(make_scram())
    _, before = await store.list("/")
    await here.delete_user(ACCOUNT, "ann")
    left, after = await store.list("/")
    assert [entry.key for entry in left] == [entries.tenant_key(ACCOUNT)]
    assert after == before + 1
    # Another one of that name has none of them, on no node.
    await here.create_user(User(ACCOUNT, "ann", 2))
    await until(lambda: there.user(ACCOUNT, "ann") == User(ACCOUNT, "ann", 2))
    for node in (here, there):
        assert node.key(made.key.key_id) is None
        assert list(node.keys(ACCOUNT, "ann")) == []
        assert node.scram(ACCOUNT, "ann", "SCRAM-SHA-256") is None


async def test_a_key_made_while_its_user_is_deleted_does_not_outlive_it(
    here: StoredIdentities, there: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    await until(lambda: there.user(ACCOUNT, "ann") is not None)
    await asyncio.gather(
        here.delete_user(ACCOUNT, "ann"),
        there.create_key(ACCOUNT, "ann", now_ms=1),
        there.put_scram(make_scram()),
        return_exceptions=True,
    )
    left, _ = await store.list("/")
    assert [entry.key for entry in left] == [entries.tenant_key(ACCOUNT)]


async def test_a_change_elsewhere_arrives_and_raises_the_epoch(
    here: StoredIdentities, there: StoredIdentities, ann: User
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    await until(lambda: there.key(made.key.key_id) is not None)
    found = there.key(made.key.key_id)
    assert found is not None
    assert there.secret(found) == made.secret.encode()
    epoch = there.epoch
    await here.set_key_status(made.key.key_id, KeyStatus.DISABLED)
    await until(lambda: there.epoch > epoch)
    found = there.key(made.key.key_id)
    assert found is not None
    assert found.status is KeyStatus.DISABLED


async def test_a_node_that_starts_later_knows_all(
    here: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    await here.put_scram(make_scram())
    late = make_node(store)
    await late.start()
    assert late.user(ACCOUNT, "ann") == ann
    assert any(late.users(tenant.account) for tenant in late.tenants())
    assert late.key(made.key.key_id) == made.key
    assert late.scram(ACCOUNT, "ann", "SCRAM-SHA-256") == make_scram()
    assert late.trouble is None
    await late.stop()


# ── Last used ────────────────────────────────────────────────────────────────────────────────


async def test_the_use_of_a_key_is_written_once_a_minute_and_voids_no_decision(
    here: StoredIdentities, there: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    epoch = here.epoch

    def use(now_ms: int) -> None:
        key = here.key(made.key.key_id)
        assert key is not None
        here.note_used(key, now_ms=now_ms)

    for now_ms in range(600_000, 659_000, 1_000):
        use(now_ms)
    assert await here.flush() == 1
    _, revision = await store.list("/")
    for now_ms in range(600_000, 659_000, 1_000):
        use(now_ms)
    assert await here.flush() == 0
    assert (await store.list("/"))[1] == revision
    use(661_000)
    assert await here.flush() == 1
    key = here.key(made.key.key_id)
    assert key is not None
    assert key.last_used_at_ms == 660_000
    assert here.epoch == epoch

    def arrived() -> bool:
        found = there.key(made.key.key_id)
        return found is not None and found.last_used_at_ms == 660_000

    await until(arrived)


async def test_a_use_that_could_not_be_written_is_written_later(
    here: StoredIdentities, ann: User, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    gone = await here.create_key(ACCOUNT, "ann", now_ms=1)
    for one in (made, gone):
        here.note_used(one.key, now_ms=600_000)
    await here.delete_key(gone.key.key_id)
    commit = store.commit

    async def full(_txn: object) -> int:
        raise DiskFull("full")

    monkeypatch.setattr(store, "commit", full)
    with pytest.raises(DiskFull):
        await here.flush()
    monkeypatch.setattr(store, "commit", commit)
    assert await here.flush() == 1
    assert await here.flush() == 0


async def test_a_use_overtaken_by_a_change_elsewhere_undoes_nothing(
    here: StoredIdentities, there: StoredIdentities, ann: User
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    await until(lambda: there.key(made.key.key_id) is not None)
    there.note_used(made.key, now_ms=600_000)
    await here.set_key_status(made.key.key_id, KeyStatus.DISABLED)
    await there.flush()

    def is_disabled() -> bool:
        key = there.key(made.key.key_id)
        return key is not None and key.status is KeyStatus.DISABLED

    await until(is_disabled)
    await there.flush()
    key = there.key(made.key.key_id)
    assert key is not None
    assert (key.status, key.last_used_at_ms) == (KeyStatus.DISABLED, 600_000)


# ── Passwords ────────────────────────────────────────────────────────────────────────────────


async def test_a_password_is_kept_sealed_per_mechanism(
    here: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    for mechanism in entries.KEY_BYTES_BY_MECHANISM:
        await here.put_scram(make_scram(mechanism))
        assert here.scram(ACCOUNT, "ann", mechanism) == make_scram(mechanism)
        entry = await store.get(entries.scram_key(ACCOUNT, "ann", mechanism))
        assert entry is not None
        kept = entries.decode_scram(entry.value)
        assert kept.stored_key != make_scram(mechanism).stored_key
        assert kept.server_key != make_scram(mechanism).server_key
    assert list(here.mechanisms(ACCOUNT, "ann")) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    await here.put_scram(make_scram(iterations=10_000))
    found = here.scram(ACCOUNT, "ann", "SCRAM-SHA-256")
    assert found is not None
    assert found.iterations == 10_000
    await here.delete_scram(ACCOUNT, "ann", "SCRAM-SHA-256")
    assert here.scram(ACCOUNT, "ann", "SCRAM-SHA-256") is None
    assert list(here.mechanisms(ACCOUNT, "ann")) == ["SCRAM-SHA-512"]
    with pytest.raises(NotFound, match="SCRAM-SHA-256"):
        await here.delete_scram(ACCOUNT, "ann", "SCRAM-SHA-256")


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": "PLAIN"},
        {"mechanism": "SCRAM-SHA-512"},
        {"iterations": 4_095},
        {"iterations": 10**9},
        {"salt": b"x" * 256},
        {"stored_key": b"x"},
        {"server_key": b"x" * 64},
    ],
)
async def test_a_password_that_is_badly_kept_is_refused(
    here: StoredIdentities, ann: User, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        await here.put_scram(msgspec.structs.replace(make_scram(), **changes))
    assert here.mechanisms(ACCOUNT, "ann") == ()


# ── Another master key ───────────────────────────────────────────────────────────────────────


async def test_everything_is_sealed_anew_under_another_master_key(
    here: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    await here.put_scram(make_scram())
    new = bytes(range(32, 64))
    ring = MasterKeyRing(new, old=[MASTER])
    both = StoredIdentities(store, ring, entropy=os.urandom)
    await both.start()
    assert (await both.reseal(ring.rewrap)).count == 2
    again = await both.reseal(ring.rewrap)
    assert (again.count, again.unreadable) == (0, 0)
    await both.stop()
    after = make_node(store, new)
    await after.start()
    key = after.key(made.key.key_id)
    assert key is not None
    assert after.secret(key) == made.secret.encode()
    assert after.scram(ACCOUNT, "ann", "SCRAM-SHA-256") == make_scram()
    await after.stop()


async def test_a_lost_master_key_is_noticed_and_nothing_is_overwritten(
    here: StoredIdentities, ann: User, store: SqliteStore
) -> None:
    made = await here.create_key(ACCOUNT, "ann", now_ms=1)
    await here.put_scram(make_scram())
    ring = MasterKeyRing(bytes(32))
    lost = StoredIdentities(store, ring, entropy=os.urandom)
    await lost.start()
    found = await lost.reseal(ring.rewrap)
    assert (found.count, found.unreadable) == (0, 2)
    key = lost.key(made.key.key_id)
    assert key is not None
    with pytest.raises(Damaged):
        lost.secret(key)
    await lost.stop()
    assert here.secret(made.key) == made.secret.encode()


# ── Any order of changes, on two nodes ───────────────────────────────────────────────────────

NAMES = st.sampled_from(["ann", "bob"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["user", "no user", "key", "no key", "disable", "scram", "no scram"]),
        NAMES,
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    max_size=25,
)


async def take(
    node: StoredIdentities, step: tuple[str, str, int, int], made: dict[str, list[AccessKey]]
) -> None:
    verb, name, _, number = step
    keys = made.setdefault(name, [])
    key_id = keys[number % len(keys)].key_id if keys else "PSAKXXXXXXXXXXXXXXXX"
    if verb == "user":
        await node.create_user(User(ACCOUNT, name, 1))
    elif verb == "no user":
        await node.delete_user(ACCOUNT, name)
        keys.clear()
    elif verb == "key":
        new: NewKey = await node.create_key(ACCOUNT, name, now_ms=1)
        keys.append(new.key)
    elif verb == "no key":
        await node.delete_key(key_id)
        del keys[number % len(keys)]
    elif verb == "disable":
        keys[number % len(keys)] = await node.set_key_status(key_id, KeyStatus.DISABLED)
    elif verb == "scram":
        await node.put_scram(make_scram(user=name))
    else:
        await node.delete_scram(ACCOUNT, name, "SCRAM-SHA-256")


async def check_run(folder: Path, steps: list[tuple[str, str, int, int]]) -> None:
    store = await SqliteStore.open(folder / "metadata.db")
    nodes = [make_node(store), make_node(store)]
    for node in nodes:
        await node.start()
    await nodes[0].create_tenant(make_tenant())
    made: dict[str, list[AccessKey]] = {}
    users: set[str] = set()
    passwords: set[str] = set()
    for step in steps:
        verb, name = step[:2]
        expected = {
            "user": name not in users,
            "no user": name in users,
            "key": name in users and len(made.get(name, [])) < 4,
            "no key": bool(made.get(name)),
            "disable": bool(made.get(name)),
            "scram": name in users,
            "no scram": name in passwords,
        }[verb]
        try:
            await take(nodes[step[2]], step, made)
            succeeded = True
        except (Conflict, NotFound):
            succeeded = False
        assert succeeded == expected, step
        if succeeded and verb == "user":
            users.add(name)
        elif succeeded and verb == "no user":
            users.discard(name)
            passwords.discard(name)
        elif succeeded and verb in ("scram", "no scram"):
            (passwords.add if verb == "scram" else passwords.discard)(name)
    for node in nodes:
        await node.stop()
    fresh = make_node(store)
    await fresh.start()
    assert {user.name for user in fresh.users(ACCOUNT)} == users
    for name in ("ann", "bob"):
        assert list(fresh.keys(ACCOUNT, name)) == made.get(name, [])
        assert (fresh.scram(ACCOUNT, name, "SCRAM-SHA-256") is not None) == (name in passwords)
    # Nothing is left of what is gone, and the tenant's count is right to the last.
    left, _ = await store.list("/")
    key_count = sum(map(len, made.values()))
    assert len(left) == 1 + len(users) + key_count + len(passwords)
    for name in users:
        await fresh.delete_user(ACCOUNT, name)
    await fresh.delete_tenant(ACCOUNT)
    assert (await store.list("/"))[0] == []
    await fresh.stop()
    await store.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_any_order_of_changes_on_two_nodes_ends_as_it_should(
    steps: list[tuple[str, str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_run(Path(folder), steps))
