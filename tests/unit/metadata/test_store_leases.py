"""What every store promises about leases, create revisions and lists, run over every store there
is: also over the one that asks a metadata node, which takes only entries that are what they should
be and changes that compare what they change. So everything here is about tenants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from tests.unit.metadata.conftest import make_tenant
from tests.unit.metadata.stores import (
    HISTORY,
    EtcdPlace,
    Place,
    RemotePlace,
    SqlitePlace,
    opened,
    take,
)

from penstock.metadata.security.identity_entries import TENANTS_PREFIX, TenantEntry, tenant_key
from penstock.metadata.store import (
    LEASE_TTL_MS_MAX,
    Change,
    ChangeKind,
    Compacted,
    LeaseGone,
    Store,
    StoreUnusable,
)
from penstock.model.errors import InvalidRequest, VersionConflict

LONG_MS = 60_000
# The shortest that an etcd grants whose elections take half a second.
SHORT_MS = 1_000
KEPT_MS = 4_000  # a pause of this machine is shorter


def key(n: int) -> str:
    return tenant_key(f"{n:012d}")


def value(n: int, name: str = "somebody") -> bytes:
    return msgspec.json.encode(TenantEntry(make_tenant(f"{n:012d}", name=name)))


@pytest.fixture(params=["sqlite", "remote", "etcd"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "etcd":
        return EtcdPlace(request.getfixturevalue("etcd"))
    return RemotePlace() if request.param == "remote" else SqlitePlace()


@pytest.fixture
async def store(place: Place, tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(place, tmp_path) as store:
        yield store


async def put_new(store: Store, n: int, *, lease: int = 0) -> int:
    return await store.txn(compare=((key(n), 0),), puts=((key(n), value(n)),), lease=lease)


async def keys_in(store: Store, *, min_revision: int) -> list[str]:
    entries, revision = await store.list(TENANTS_PREFIX, min_revision=min_revision)
    assert revision >= min_revision
    return [entry.key for entry in entries]


# ── Create revisions ─────────────────────────────────────────────────────────────────────────


async def test_a_create_revision_holds_over_changes_and_not_over_a_new_beginning(
    store: Store,
) -> None:
    created = await put_new(store, 1)
    changed = await store.txn(
        compare=((key(1), created),),
        compare_created=((key(1), created),),
        puts=((key(1), value(1, "b")),),
    )
    assert await store.txn(
        compare=((key(2), 0),), compare_created=((key(1), created),), puts=((key(2), value(2)),)
    )
    await store.txn(compare=((key(1), changed),), deletes=(key(1),))
    again = await put_new(store, 1)
    with pytest.raises(VersionConflict, match=key(1)):
        await store.txn(
            compare=((key(3), 0),),
            compare_created=((key(1), created),),
            puts=((key(3), value(3)),),
        )
    revision = await store.txn(
        compare=((key(3), 0),), compare_created=((key(1), again),), puts=((key(3), value(3)),)
    )
    assert await keys_in(store, min_revision=revision) == [key(1), key(2), key(3)]


async def test_a_create_revision_of_nothing_is_zero(store: Store) -> None:
    created = await store.txn(
        compare=((key(1), 0),), compare_created=((key(2), 0),), puts=((key(1), value(1)),)
    )
    with pytest.raises(VersionConflict, match=key(1)):
        await store.txn(
            compare=((key(2), 0),), compare_created=((key(1), 0),), puts=((key(2), value(2)),)
        )
    with pytest.raises(VersionConflict, match=key(3)):
        await store.txn(
            compare=((key(2), 0),),
            compare_created=((key(1), created), (key(3), created)),
            puts=((key(2), value(2)),),
        )
    assert await store.get(key(2)) is None


# ── Lists ────────────────────────────────────────────────────────────────────────────────────


async def test_a_list_holds_what_was_written_before_its_least_revision(store: Store) -> None:
    for n in range(1, 20):
        revision = await put_new(store, n)
        assert key(n) in await keys_in(store, min_revision=revision)


async def test_a_store_that_was_set_back_is_not_believed(store: Store) -> None:
    revision = await put_new(store, 1)
    with pytest.raises(StoreUnusable, match=r"older state|older copy"):
        await store.list(TENANTS_PREFIX, min_revision=revision + 1_000)


# ── Leases ───────────────────────────────────────────────────────────────────────────────────


async def test_what_hangs_on_a_lease_goes_with_it_and_a_watch_says_so(store: Store) -> None:
    lease = await store.grant(LONG_MS)
    await put_new(store, 1)
    await put_new(store, 2, lease=lease)
    last = await put_new(store, 3, lease=lease)
    async with aclosing(store.watch(TENANTS_PREFIX, from_revision=last + 1)) as watch:
        following = asyncio.create_task(take(watch, 2))
        await store.revoke(lease)
        told = await following
    assert {change.key for change in told} == {key(2), key(3)}
    assert all(change.kind is ChangeKind.DELETE for change in told)
    assert all(change.version > last for change in told)
    assert await keys_in(store, min_revision=told[-1].version) == [key(1)]


async def test_a_lease_that_nobody_keeps_alive_ends_by_itself(store: Store) -> None:
    loop = asyncio.get_running_loop()
    while True:
        begun = loop.time()
        lease = await store.grant(SHORT_MS)
        try:
            revision = await put_new(store, 1, lease=lease)
            break
        except LeaseGone:
            pass  # this machine paused for longer than that
    async with aclosing(store.watch(TENANTS_PREFIX, from_revision=revision + 1)) as watch:
        told = await take(watch, 1)
    assert told == [Change(ChangeKind.DELETE, key(1), b"", told[0].version)]
    assert loop.time() - begun >= SHORT_MS / 1_000
    with pytest.raises(LeaseGone):
        await store.keep_alive(lease)


@pytest.mark.slow
async def test_a_lease_that_is_kept_alive_outlives_its_time(store: Store) -> None:
    lease = await store.grant(KEPT_MS)
    revision = await put_new(store, 1, lease=lease)
    for _ in range(12):
        await asyncio.sleep(KEPT_MS / 8_000)
        left_ms = await store.keep_alive(lease)
        assert KEPT_MS <= left_ms <= 3 * KEPT_MS
    assert await keys_in(store, min_revision=revision) == [key(1)]
    await store.revoke(lease)


async def test_nothing_hangs_on_a_lease_that_has_ended(store: Store) -> None:
    lease = await store.grant(LONG_MS)
    await store.revoke(lease)
    with pytest.raises(LeaseGone):
        await put_new(store, 1, lease=lease)
    with pytest.raises(LeaseGone):
        await store.keep_alive(lease)
    await store.revoke(lease)
    revision = await put_new(store, 2)
    assert await keys_in(store, min_revision=revision) == [key(2)]


async def test_a_comparison_that_fails_says_so_before_the_lease_does(store: Store) -> None:
    await put_new(store, 1)
    lease = await store.grant(LONG_MS)
    await store.revoke(lease)
    with pytest.raises(VersionConflict):
        await put_new(store, 1, lease=lease)


async def test_an_entry_leaves_its_lease_with_its_next_change(store: Store) -> None:
    first, second = await store.grant(LONG_MS), await store.grant(LONG_MS)
    assert first != second
    freed = await put_new(store, 1, lease=first)
    moved = await put_new(store, 2, lease=first)
    await put_new(store, 3, lease=first)
    await store.txn(compare=((key(1), freed),), puts=((key(1), value(1)),))
    last = await store.txn(compare=((key(2), moved),), puts=((key(2), value(2)),), lease=second)
    async with aclosing(store.watch(TENANTS_PREFIX, from_revision=last + 1)) as watch:
        following = asyncio.create_task(take(watch, 1))
        await store.revoke(first)
        told = await following
    assert await keys_in(store, min_revision=told[-1].version) == [key(1), key(2)]
    await store.revoke(second)


async def test_a_lease_comes_in_no_length(store: Store) -> None:
    for ttl_ms in (0, -1, LEASE_TTL_MS_MAX + 1):
        with pytest.raises(InvalidRequest):
            await store.grant(ttl_ms)
    with pytest.raises(LeaseGone):
        await store.keep_alive(4_711)


async def test_a_watch_behind_forgotten_history_lists_and_goes_on_without_a_gap(
    place: Place, store: Store
) -> None:
    version = first = await put_new(store, 1)
    for n in range(3 * HISTORY):
        version = await store.txn(compare=((key(1), version),), puts=((key(1), value(1, f"n{n}")),))
    await place.forget(version - 1)
    if not isinstance(place, RemotePlace):  # a metadata node remembers more than its store
        with pytest.raises(Compacted):
            await take(store.watch(TENANTS_PREFIX, from_revision=first), 1)
    _, revision = await store.list(TENANTS_PREFIX, min_revision=version)
    async with aclosing(store.watch(TENANTS_PREFIX, from_revision=revision + 1)) as watch:
        following = asyncio.create_task(take(watch, 2))
        second = await put_new(store, 2)
        third = await store.txn(compare=((key(2), second),), deletes=(key(2),))
        told = await following
    assert [(change.key, change.version) for change in told] == [(key(2), second), (key(2), third)]
