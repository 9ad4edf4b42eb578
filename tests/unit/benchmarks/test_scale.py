"""The store that counts answers like a real one, and the model's formulas say what they mean."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from benchmarks.scale import model
from benchmarks.scale.memory_store import MemoryStore
from benchmarks.scale.model import SIZES, Size
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.manager.decision_writer import DECISIONS_PER_TXN_MAX
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Change, ChangeKind, Compacted, LeaseGone, Store
from penstock.model.errors import VersionConflict

KEYS = ("/a/1", "/a/2", "/b/1")


# Each step: keys to compare (as they are, or wrongly), keys to put, keys to delete.
steps = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(KEYS), st.booleans(), max_size=2),
        st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=3), max_size=2),
        st.sets(st.sampled_from(KEYS), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


async def lived(
    store: Store, work: list[tuple[dict[str, bool], dict[str, bytes], set[str]]]
) -> object:
    """What a store says to all of it, with revisions counted from where it began."""
    _, base = await store.list("")
    said: list[object] = []
    for compared, puts, deletes in work:
        compare, created = [], []
        for key, is_right in compared.items():
            entry = await store.get(key)
            version = 0 if entry is None else entry.version
            made = 0 if entry is None else entry.create_revision
            compare.append((key, version if is_right else version + 1))
            created.append((key, made))
        try:
            revision = await store.txn(
                compare=compare,
                compare_created=created,
                puts=list(puts.items()),
                deletes=sorted(deletes - puts.keys()),
            )
            said.append(revision - base)
        except VersionConflict:
            said.append("refused")
    entries, revision = await store.list("/a/")
    said.append(revision - base)
    said += [(e.key, e.value, e.version - base, e.create_revision - base) for e in entries]
    await store.put("/a/end", b"end")
    heard: list[Change] = []
    async for changes in store.watch("/a/", from_revision=base + 1):
        heard += changes
        if heard[-1].key == "/a/end":
            break
    # Within a revision the port promises no order.
    heard.sort(key=lambda one: (one.version, one.key))
    said += [(one.kind, one.key, one.value, one.version - base) for one in heard]
    return said


@given(steps)
@settings(max_examples=15, deadline=None)
def test_a_store_in_memory_answers_like_one_on_disk(
    work: list[tuple[dict[str, bool], dict[str, bytes], set[str]]],
) -> None:
    async def both() -> None:
        with TemporaryDirectory() as folder:
            disk = await SqliteStore.open(Path(folder) / "store.db")
            try:
                assert await lived(MemoryStore(), work) == await lived(disk, work)
            finally:
                await disk.close()

    asyncio.run(both())


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(history_changes_max=8)
    yield store
    await store.close()


async def test_what_hangs_on_a_lease_goes_with_it_and_is_told(store: MemoryStore) -> None:
    lease = await store.grant(1_000)
    made = await store.txn(puts=(("/n/1", b"x"), ("/n/2", b"y")), lease=lease)
    await store.put("/n/2", b"z")  # hangs on nothing any more
    assert await store.keep_alive(lease) == 1_000
    await store.revoke(lease)
    entries, _ = await store.list("/n/")
    assert [entry.key for entry in entries] == ["/n/2"]
    watch = store.watch("/n/", from_revision=made + 2)
    assert [(one.kind, one.key) for one in await anext(watch)] == [(ChangeKind.DELETE, "/n/1")]
    await watch.aclose()
    for call in (store.keep_alive(lease), store.txn(puts=(("/n/3", b""),), lease=lease)):
        with pytest.raises(LeaseGone):
            await call


async def test_a_watch_of_what_is_forgotten_is_told_so(store: MemoryStore) -> None:
    first = await store.put("/a", b"")
    for _ in range(20):
        await store.put("/a", b"")
    with pytest.raises(Compacted):
        await anext(store.watch("/", from_revision=first))


async def test_is_counted_by_what_was_asked_and_told(store: MemoryStore) -> None:
    revision = await store.put("/a/1", b"1234")
    with pytest.raises(VersionConflict):
        await store.put("/a/1", b"", if_version=revision + 1)
    await store.txn(compare=(("/a/1", revision),), puts=(("/b/1", b"1"),), deletes=("/a/1",))
    watch = store.watch("/a/", from_revision=revision)
    assert len(await anext(watch)) == 2
    await watch.aclose()
    counts = store.counts
    assert (counts.txns, counts.refused, counts.compared) == (2, 1, 1)
    assert (counts.changed, counts.changed_bytes) == (3, 8 + 5)
    assert (counts.told, counts.told_bytes) == (2, 8 + 4)
    store.begin_count()
    assert store.counts.txns == 0


# ── The model ────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_takes_fewer_decisions_the_more_nodes_they_name() -> None:
    assert model.decisions_per_txn(3, named=1) == DECISIONS_PER_TXN_MAX
    assert 40 <= model.decisions_per_txn(1_000, named=1) < DECISIONS_PER_TXN_MAX
    assert model.decisions_per_txn(1_000, named=3, is_dealt=True) == 25
    assert model.decisions_per_txn(1_000, named=200) == 1


def test_with_few_nodes_everybody_follows_everybody() -> None:
    assert model.leaders_asked(Size(3, 1_000)) == pytest.approx(2)
    assert model.leaders_asked(Size(30, 30_000)) == pytest.approx(29, rel=0.001)
    assert model.leaders_asked(Size(1_000, 1_000_000)) == pytest.approx(864, rel=0.01)
    assert model.leaders_asked(Size(1, 10)) == 0


def test_one_copy_has_nobody_to_take_over() -> None:
    assert model.loss_changes(Size(3, 300, replicas=1)) == 0
    assert model.loss_changes(Size(3, 300, replicas=3)) == 400
    assert Size(2, 300).held == 300  # no more copies than nodes


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.title)
def test_larger_partitions_make_all_that_counts_partitions_smaller(size: Size) -> None:
    half = Size(size.nodes, size.queues // 2)
    assert model.loss_changes(half) == pytest.approx(model.loss_changes(size) / 2, rel=0.01)
    assert model.files_demanded(half) == model.files_demanded(size) // 2
    assert model.moves_of_drain(half) == model.moves_of_drain(size) / 2
