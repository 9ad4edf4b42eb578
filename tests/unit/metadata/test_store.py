"""What every store promises that takes any entry, run over every such store. What all of them
promise, also the one that asks a metadata node, is in ``test_store_leases.py``."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.metadata.stores import HISTORY, EtcdPlace, Place, SqlitePlace, opened, take

from penstock.metadata.store import (
    CHANGES_PER_TXN_MAX,
    KEY_BYTES_MAX,
    TXN_BYTES_MAX,
    VALUE_BYTES_MAX,
    Change,
    ChangeKind,
    Compacted,
    Store,
    StoreUnusable,
)
from penstock.model.errors import InvalidRequest, VersionConflict


@pytest.fixture(params=["sqlite", "etcd"])
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request.param, request)


def place_of(name: str, request: pytest.FixtureRequest) -> Place:
    if name == "etcd":
        return EtcdPlace(request.getfixturevalue("etcd"))
    return SqlitePlace()


@pytest.fixture
async def store(place: Place, tmp_path: Path) -> AsyncIterator[Store]:
    store = await place.open(tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def start(store: Store) -> int:
    """The revision that the store begins at: an etcd has seen other tests."""
    return (await store.list(""))[1]


async def test_an_absent_key_is_none_and_an_empty_store_lists_nothing(
    store: Store, start: int
) -> None:
    assert await store.get("/a") is None
    assert await store.list("") == ([], start)


async def test_each_change_raises_the_revision_which_is_the_entrys_version(store: Store) -> None:
    first = await store.put("/a", b"1")
    second = await store.put("/b", b"2")
    third = await store.put("/a", b"3")
    assert first < second < third
    entry = await store.get("/a")
    assert entry is not None
    assert (entry.value, entry.version, entry.create_revision) == (b"3", third, first)
    _, revision = await store.list("/")
    assert revision == third


async def test_put_if_absent_succeeds_once(store: Store) -> None:
    await store.put("/a", b"1", if_version=0)
    with pytest.raises(VersionConflict):
        await store.put("/a", b"2", if_version=0)
    entry = await store.get("/a")
    assert entry is not None
    assert entry.value == b"1"


async def test_put_over_a_version_fails_when_it_has_changed_or_gone(store: Store) -> None:
    version = await store.put("/a", b"1")
    newer = await store.put("/a", b"2", if_version=version)
    with pytest.raises(VersionConflict):
        await store.put("/a", b"3", if_version=version)
    await store.delete("/a", if_version=newer)
    with pytest.raises(VersionConflict):
        await store.put("/a", b"3", if_version=newer)
    assert await store.get("/a") is None


async def test_a_conflict_leaves_the_revision_alone(store: Store) -> None:
    await store.put("/a", b"1")
    _, before = await store.list("")
    with pytest.raises(VersionConflict):
        await store.put("/a", b"2", if_version=999)
    assert (await store.list(""))[1] == before


async def test_delete_with_a_stale_version_deletes_nothing(store: Store) -> None:
    version = await store.put("/a", b"1")
    await store.put("/a", b"2")
    with pytest.raises(VersionConflict):
        await store.delete("/a", if_version=version)
    assert await store.get("/a") is not None


async def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    revision = await store.put("/a", b"1")
    assert await store.delete("/b") == revision
    assert await store.delete("/b", if_version=0) == revision


async def test_a_key_that_comes_back_is_created_anew(store: Store) -> None:
    await store.put("/a", b"1")
    await store.delete("/a")
    revision = await store.put("/a", b"2")
    entry = await store.get("/a")
    assert entry is not None
    assert entry.create_revision == entry.version == revision


async def test_list_returns_exactly_the_prefix_in_key_order(store: Store) -> None:
    keys = ["/a", "/a/", "/a/x", "/a/é", "/a/\U0010ffff", "/ab", "/b", "/a/x\x00", "/a0"]
    for key in keys:
        await store.put(key, key.encode())
    for prefix in ["", "/", "/a", "/a/", "/a/x", "/a/é", "/a/\U0010ffff", "/z"]:
        entries, _ = await store.list(prefix)
        expected = sorted((k for k in keys if k.startswith(prefix)), key=str.encode)
        assert [entry.key for entry in entries] == expected
        assert all(entry.value == entry.key.encode() for entry in entries)


async def test_a_transaction_changes_all_at_one_revision(store: Store) -> None:
    old = await store.put("/old", b"1")
    revision = await store.txn(
        compare=(("/old", old), ("/new", 0)), puts=(("/new", b"2"), ("/x", b"")), deletes=("/old",)
    )
    entries, now = await store.list("")
    assert [(e.key, e.value, e.version) for e in entries] == [
        ("/new", b"2", revision),
        ("/x", b"", revision),
    ]
    assert now == revision == old + 1


async def test_a_transaction_with_one_wrong_compare_changes_nothing(store: Store) -> None:
    version = await store.put("/a", b"1")
    with pytest.raises(VersionConflict, match="/b"):
        await store.txn(compare=(("/a", version), ("/b", 7)), puts=(("/a", b"2"),), deletes=("/b",))
    entries, revision = await store.list("")
    assert [(e.key, e.value) for e in entries] == [("/a", b"1")]
    assert revision == version


async def test_what_is_too_large_is_refused(store: Store, start: int) -> None:
    with pytest.raises(InvalidRequest):
        await store.put("/a", bytes(VALUE_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest):
        await store.put("/" + "k" * KEY_BYTES_MAX, b"")
    with pytest.raises(InvalidRequest):
        await store.txn(puts=[(f"/{n}", b"") for n in range(CHANGES_PER_TXN_MAX + 1)])
    with pytest.raises(InvalidRequest):
        await store.txn(compare=[(f"/{n}", 0) for n in range(CHANGES_PER_TXN_MAX + 1)])
    with pytest.raises(InvalidRequest):
        await store.txn(puts=[(f"/{n}", bytes(VALUE_BYTES_MAX)) for n in range(3)])
    assert await store.list("") == ([], start)


async def test_the_largest_transaction_there_may_be_is_carried_out(store: Store) -> None:
    count = CHANGES_PER_TXN_MAX
    keys = [f"/{n:0{KEY_BYTES_MAX - 1}d}" for n in range(count)]
    value = bytes(TXN_BYTES_MAX // count - KEY_BYTES_MAX)
    revision = await store.txn(
        compare=[(key, 0) for key in keys], puts=[(key, value) for key in keys]
    )
    entries, now = await store.list("/")
    assert [(entry.key, entry.version) for entry in entries] == [(key, revision) for key in keys]
    assert now == revision
    assert all(entry.value == value for entry in entries)


async def test_a_list_of_many_entries_of_all_sizes_is_whole(store: Store) -> None:
    sizes = {f"/{n:04d}": 100_000 if n >= 1_280 else n % 7 for n in range(1_300)}
    keys = list(sizes)
    for at in range(0, 1_280, 128):
        await store.txn(puts=[(key, bytes(sizes[key])) for key in keys[at : at + 128]])
    for at in range(1_280, 1_300, 10):
        await store.txn(puts=[(key, bytes(sizes[key])) for key in keys[at : at + 10]])
    entries, _ = await store.list("/")
    assert {entry.key: len(entry.value) for entry in entries} == sizes


async def test_a_list_is_not_older_than_what_somebody_has_seen(store: Store) -> None:
    revision = await store.put("/a", b"1")
    assert (await store.list("/", min_revision=revision))[1] == revision
    with pytest.raises(StoreUnusable, match=str(revision + 1_000)):
        await store.list("/", min_revision=revision + 1_000)


async def test_of_many_writers_over_one_version_exactly_one_wins(store: Store) -> None:
    version = await store.put("/a", b"")

    async def try_put(n: int) -> bool:
        try:
            await store.put("/a", b"%d" % n, if_version=version)
        except VersionConflict:
            return False
        return True

    assert sum(await asyncio.gather(*(try_put(n) for n in range(20)))) == 1


async def test_a_watch_replays_from_its_revision_and_then_follows(store: Store) -> None:
    await store.put("/a/1", b"old")
    start = await store.put("/a/2", b"x")
    gone = await store.delete("/a/1")
    async with aclosing(store.watch("/a/", from_revision=start)) as watch:
        assert await take(watch, 2) == [
            Change(ChangeKind.PUT, "/a/2", b"x", start),
            Change(ChangeKind.DELETE, "/a/1", b"", gone),
        ]
        following = asyncio.create_task(take(watch, 1))
        await store.put("/b", b"not watched")
        revision = await store.put("/a/3", b"y")
        assert await following == [Change(ChangeKind.PUT, "/a/3", b"y", revision)]


async def test_a_watch_from_the_future_waits_for_it(store: Store, start: int) -> None:
    await store.put("/a", b"1")
    async with aclosing(store.watch("/", from_revision=start + 4)) as watch:
        following = asyncio.create_task(take(watch, 1))
        for n in range(2, 5):
            await store.put("/a", b"%d" % n)
        assert [c.value for c in await following] == [b"4"]


async def test_a_watch_never_splits_a_transaction(store: Store, start: int) -> None:
    size = CHANGES_PER_TXN_MAX - 1  # no divisor of a read's size
    for n in range(12):
        await store.txn(puts=[(f"/{k}", b"%d" % n) for k in range(size)])
    seen = 0
    watching = aclosing(store.watch("/", from_revision=start + 1))
    async with watching as watch, asyncio.timeout(10):
        while seen < 12 * size:
            batch = await anext(watch)
            revisions = [change.version for change in batch]
            assert revisions == sorted(revisions)
            assert all(revisions.count(revision) == size for revision in set(revisions))
            seen += len(batch)
    assert seen == 12 * size


async def test_a_watch_of_forgotten_history_is_told_so_and_can_list_again(
    place: Place, store: Store, start: int
) -> None:
    for n in range(3 * HISTORY):
        await store.put("/a", b"%d" % n)
    await place.forget(start + 2 * HISTORY)
    with pytest.raises(Compacted) as caught:
        await take(store.watch("/", from_revision=start + 1), 1)
    oldest = caught.value.oldest_revision
    assert start + 1 < oldest <= start + 2 * HISTORY + 1
    async with aclosing(store.watch("/", from_revision=oldest)) as watch:
        assert (await take(watch, 1))[0].version == oldest
    entries, revision = await store.list("/")
    assert entries[0].value == b"%d" % (3 * HISTORY - 1)
    async with aclosing(store.watch("/", from_revision=revision + 1)) as watch:
        following = asyncio.create_task(take(watch, 1))
        await store.put("/a", b"new")
        assert (await following)[0].value == b"new"


async def test_a_delete_at_the_very_end_of_forgotten_history_is_not_passed_over(
    place: Place, store: Store
) -> None:
    await store.put("/a", b"1")
    gone = await store.delete("/a")
    for n in range(2 * HISTORY):
        await store.put("/b", b"%d" % n)
    await place.forget(gone)
    with pytest.raises(Compacted) as caught:
        await take(store.watch("/", from_revision=gone), 1)
    assert caught.value.oldest_revision > gone


async def test_an_idle_watch_is_not_left_behind_by_changes_elsewhere(
    place: Place, store: Store, start: int
) -> None:
    async with aclosing(store.watch("/quiet/", from_revision=start + 1)) as watch:
        following = asyncio.create_task(take(watch, 1))
        for n in range(3 * HISTORY):
            revision = await store.put("/busy/a", b"%d" % n)
        await place.forget(revision - HISTORY)
        await store.put("/quiet/a", b"at last")
        assert (await following)[0].value == b"at last"


async def test_watches_end_when_the_store_closes(place: Place, tmp_path: Path) -> None:
    store = await place.open(tmp_path)
    watch = store.watch("/", from_revision=1)
    following = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(10):
        assert await following is None


async def test_everything_answered_is_there_after_a_restart(place: Place, tmp_path: Path) -> None:
    async with opened(place, tmp_path) as store:
        _, start = await store.list("")
        await store.put("/a", b"1")
        await store.put("/b", b"2")
        revision = await store.delete("/a")
    async with opened(place, tmp_path) as store:
        entries, now = await store.list("")
        assert [(e.key, e.value) for e in entries] == [("/b", b"2")]
        assert now == revision
        assert await store.put("/c", b"3") == revision + 1
        async with aclosing(store.watch("/", from_revision=start + 1)) as watch:
            assert len(await take(watch, 4)) == 4


KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/ab", "/b"])
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=4), st.sampled_from(["any", "now", "off"])),
    st.tuples(st.just("delete"), KEYS, st.just(b""), st.sampled_from(["any", "now", "off"])),
)


@pytest.mark.parametrize("name", ["sqlite", "etcd"])
@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_store_behaves_like_a_dict_with_versions(
    name: str, request: pytest.FixtureRequest, steps: list[tuple[str, str, bytes, str]]
) -> None:
    place = place_of(name, request)

    async def run(folder: Path) -> None:
        model: dict[str, tuple[bytes, int, int]] = {}
        async with opened(place, folder) as store:
            _, start = await store.list("")
            revision = start
            for verb, key, value, condition in steps:
                version = model[key][1] if key in model else 0
                if_version = {"any": None, "now": version, "off": version + 1}[condition]
                call = (
                    store.put(key, value, if_version=if_version)
                    if verb == "put"
                    else store.delete(key, if_version=if_version)
                )
                if condition == "off":
                    with pytest.raises(VersionConflict):
                        await call
                    continue
                result = await call
                if verb == "put":
                    revision += 1
                    created = model[key][2] if key in model else revision
                    model[key] = (value, revision, created)
                elif model.pop(key, None) is not None:
                    revision += 1
                assert result == revision
            for prefix in ("", "/a", "/a/"):
                entries, at = await store.list(prefix)
                assert at == revision
                assert {e.key: (e.value, e.version, e.create_revision) for e in entries} == {
                    key: kept for key, kept in model.items() if key.startswith(prefix)
                }
            replayed: dict[str, bytes] = {}
            if revision > start:
                async with aclosing(store.watch("", from_revision=start + 1)) as watch:
                    changes = await take(watch, revision - start)
                for change in changes:
                    if change.kind is ChangeKind.PUT:
                        replayed[change.key] = change.value
                    else:
                        del replayed[change.key]
            assert replayed == {key: kept[0] for key, kept in model.items()}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
