import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.metadata import cache
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Entry, StoreUnusable
from penstock.metadata.topics import catalog
from penstock.metadata.topics.catalog import TOMBSTONE_MS, StoredCatalog, tomb_key, topic_key
from penstock.model.errors import QuotaExceeded, Throttled, TopicExists, TopicNotFound
from penstock.model.ports import Catalog
from penstock.model.topic import Fsync, Kind, Redrive, Topic

ACCOUNT = "000000000000"
REGION = "us-east-1"


def make_topic(name: str, *, topic_id: str = "", account: str = ACCOUNT) -> Topic:
    return Topic(
        topic_id=topic_id or f"id-{account}-{name}",
        account=account,
        region=REGION,
        name=name,
        kind=Kind.FIFO if name.endswith(".fifo") else Kind.STANDARD,
        partition_count=1,
        created_at_ms=1_000,
        modified_at_ms=1_000,
        receipt_key=b"\x00\xff" * 16,
    )


def delayed(delay_ms: int) -> Callable[[Topic], Topic]:
    return lambda topic: topic.with_settings(now_ms=2_000, delay_ms=delay_ms)


async def test_a_catalog_whose_start_failed_can_be_started_again(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    refused = [catalog.TOPICS_PREFIX]

    class Busy(SqliteStore):
        async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
            if prefix in refused:
                refused.remove(prefix)
                raise Throttled("busy")
            return await super().list(prefix, min_revision=min_revision)

    store.__class__ = Busy
    stored = StoredCatalog(store)
    with pytest.raises(Throttled):
        await stored.start()
    await stored.start()
    await stored.create(make_topic("one"))
    await stored.stop()
    await store.close()


class Heard:
    """Changes a catalog told of, to wait for instead of sleeping."""

    def __init__(self, of: StoredCatalog) -> None:
        self.changes: list[tuple[Topic | None, Topic | None]] = []
        self._more = asyncio.Event()
        of.on_change(self._hear)

    def _hear(self, before: Topic | None, after: Topic | None) -> None:
        self.changes.append((before, after))
        self._more.set()

    async def until(self, count: int) -> list[tuple[Topic | None, Topic | None]]:
        async with asyncio.timeout(10):
            while len(self.changes) < count:
                self._more.clear()
                await self._more.wait()
        return self.changes


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db", history_revisions_max=8)
    yield store
    await store.close()


@pytest.fixture
async def here(store: SqliteStore) -> AsyncIterator[StoredCatalog]:
    here = StoredCatalog(store)
    await here.start()
    yield here
    await here.stop()


@pytest.fixture
async def there(store: SqliteStore) -> AsyncIterator[StoredCatalog]:
    """A second node on the same store."""
    there = StoredCatalog(store)
    await there.start()
    yield there
    await there.stop()


async def test_it_is_a_catalog(here: StoredCatalog) -> None:
    port: Catalog = here
    assert port.find(ACCOUNT, REGION, "a") is None


async def test_a_created_topic_is_found_by_name_arn_and_id_at_once(here: StoredCatalog) -> None:
    topic = await here.create(make_topic("orders"))
    assert here.find(ACCOUNT, REGION, "orders") is topic
    assert here.find_arn("arn:aws:sqs:us-east-1:000000000000:orders") is topic
    assert here.find_id(topic.topic_id) is topic
    assert here.find(ACCOUNT, "eu-west-1", "orders") is None


async def test_the_name_is_taken_only_once(here: StoredCatalog, there: StoredCatalog) -> None:
    first = await here.create(make_topic("a", topic_id="1"))
    with pytest.raises(TopicExists):
        await here.create(make_topic("a", topic_id="2"))
    with pytest.raises(TopicExists):
        await there.create(make_topic("a", topic_id="3"))
    # Whoever lost knows who won, even before the watch comes round.
    assert there.find(ACCOUNT, REGION, "a") == first


async def test_two_nodes_creating_one_name_at_once_agree(
    here: StoredCatalog, there: StoredCatalog
) -> None:
    results = await asyncio.gather(
        here.create(make_topic("a", topic_id="1")),
        there.create(make_topic("a", topic_id="2")),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Topic", "TopicExists"]
    winner = next(result for result in results if isinstance(result, Topic))
    assert here.find(ACCOUNT, REGION, "a") == there.find(ACCOUNT, REGION, "a") == winner


async def test_topics_are_listed_by_name_and_prefix_within_their_account(
    here: StoredCatalog,
) -> None:
    for name in ["b", "a2", "a10", "a", "c.fifo", "B"]:
        await here.create(make_topic(name))
    await here.create(make_topic("a3", account="111111111111"))

    def names(prefix: str) -> list[str]:
        return [topic.name for topic in here.topics(ACCOUNT, REGION, prefix)]

    assert names("") == ["B", "a", "a10", "a2", "b", "c.fifo"]
    assert names("a") == ["a", "a10", "a2"]
    assert names("a2x") == []
    assert here.topics("222222222222", REGION) == []
    assert len(here.all_topics()) == 7


async def test_a_change_is_seen_at_once_and_its_echo_changes_nothing(
    here: StoredCatalog, there: StoredCatalog
) -> None:
    heard_here, heard_there = Heard(here), Heard(there)
    before = await here.create(make_topic("a"))
    after = await here.change(ACCOUNT, REGION, "a", delayed(5_000))
    assert here.find(ACCOUNT, REGION, "a") is after
    await heard_there.until(2)
    # The other node's watch has passed both, and ours runs on the same events.
    await there.change(ACCOUNT, REGION, "a", delayed(7_000))
    changes = await heard_here.until(3)
    assert changes[:2] == [(None, before), (before, after)]
    assert changes[1][1] is after
    assert len(changes) == 3
    assert heard_there.changes == changes


async def test_a_change_that_changes_nothing_keeps_the_object(here: StoredCatalog) -> None:
    topic = await here.create(make_topic("a"))
    heard = Heard(here)
    assert await here.change(ACCOUNT, REGION, "a", lambda t: t) is topic
    assert heard.changes == []


async def test_no_change_is_lost_when_two_nodes_change_at_once(
    here: StoredCatalog, there: StoredCatalog
) -> None:
    await here.create(make_topic("a"))

    def tagged(name: str) -> Callable[[Topic], Topic]:
        return lambda topic: msgspec.structs.replace(topic, tags={**topic.tags, name: "1"})

    await asyncio.gather(
        *(here.change(ACCOUNT, REGION, "a", tagged(f"here{n}")) for n in range(5)),
        *(there.change(ACCOUNT, REGION, "a", tagged(f"there{n}")) for n in range(5)),
    )
    last = await here.change(ACCOUNT, REGION, "a", tagged("last"))
    assert len(last.tags) == 11


async def test_changing_or_deleting_what_is_not_there_says_so(here: StoredCatalog) -> None:
    with pytest.raises(TopicNotFound):
        await here.change(ACCOUNT, REGION, "a", lambda t: t)
    with pytest.raises(TopicNotFound):
        await here.delete(ACCOUNT, REGION, "a", now_ms=1)


async def test_a_deleted_topic_leaves_a_tombstone_in_the_same_transaction(
    here: StoredCatalog, store: SqliteStore
) -> None:
    tombs: list[Topic] = []
    here.on_tombstone(tombs.append)
    topic = await here.create(make_topic("a"))
    heard = Heard(here)
    tomb = await here.delete(ACCOUNT, REGION, "a", now_ms=5_000)
    assert tomb == msgspec.structs.replace(topic, deleted_at_ms=5_000)
    assert here.find(ACCOUNT, REGION, "a") is None
    assert here.find_arn(topic.arn) is None
    assert here.find_id(topic.topic_id) is None
    assert here.topics(ACCOUNT, REGION) == []
    assert here.tombstone(topic.topic_id) == tomb
    assert tombs == [tomb]
    assert heard.changes == [(topic, None)]
    entry = await store.get(tomb_key(topic.topic_id))
    _, revision = await store.list("")
    assert entry is not None
    assert entry.version == revision


async def test_of_two_nodes_deleting_at_once_one_is_told_it_was_gone(
    here: StoredCatalog, there: StoredCatalog
) -> None:
    await here.create(make_topic("a"))
    await there.change(ACCOUNT, REGION, "a", delayed(1_000))
    results = await asyncio.gather(
        here.delete(ACCOUNT, REGION, "a", now_ms=1),
        there.delete(ACCOUNT, REGION, "a", now_ms=2),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Topic", "TopicNotFound"]


async def test_a_name_is_guarded_for_its_time_and_no_longer(store: SqliteStore) -> None:
    here = StoredCatalog(store, recreate_guard_ms=60_000)
    await here.start()
    await here.create(make_topic("a"))
    assert not here.recently_deleted(ACCOUNT, REGION, "a", now_ms=100_000)
    await here.delete(ACCOUNT, REGION, "a", now_ms=100_000)
    assert here.recently_deleted(ACCOUNT, REGION, "a", now_ms=100_000)
    assert here.recently_deleted(ACCOUNT, REGION, "a", now_ms=159_999)
    assert not here.recently_deleted(ACCOUNT, REGION, "a", now_ms=160_000)
    assert not here.recently_deleted(ACCOUNT, REGION, "a", now_ms=99_999)  # clock set back
    assert not here.recently_deleted(ACCOUNT, REGION, "b", now_ms=100_000)
    assert len(here.tombstones()) == 1
    await here.stop()


async def test_without_a_guard_a_name_is_free_at_once(here: StoredCatalog) -> None:
    await here.create(make_topic("a", topic_id="1"))
    await here.delete(ACCOUNT, REGION, "a", now_ms=5)
    assert not here.recently_deleted(ACCOUNT, REGION, "a", now_ms=5)
    again = await here.create(make_topic("a", topic_id="2"))
    assert here.find(ACCOUNT, REGION, "a") is again


async def test_the_sweep_takes_old_tombstones_whose_data_is_gone(here: StoredCatalog) -> None:
    for name in ("old", "kept", "young"):
        await here.create(make_topic(name, topic_id=name))
        at_ms = TOMBSTONE_MS if name == "young" else 0
        await here.delete(ACCOUNT, REGION, name, now_ms=at_ms)
    swept = await here.sweep(now_ms=TOMBSTONE_MS, is_gone=lambda topic_id: topic_id != "kept")
    assert swept == 1
    assert {tomb.topic_id for tomb in here.tombstones()} == {"kept", "young"}
    assert await here.sweep(now_ms=TOMBSTONE_MS, is_gone=lambda topic_id: True) == 1
    assert await here.sweep(now_ms=2 * TOMBSTONE_MS, is_gone=lambda topic_id: True) == 1
    assert here.tombstones() == []


async def test_too_many_tombstones_go_early_oldest_first(
    here: StoredCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "TOMBSTONES_MAX", 2)
    for n in range(5):
        await here.create(make_topic("a", topic_id=str(n)))
        await here.delete(ACCOUNT, REGION, "a", now_ms=n)
    assert await here.sweep(now_ms=10, is_gone=lambda topic_id: True) == 3
    assert {tomb.topic_id for tomb in here.tombstones()} == {"3", "4"}


async def test_a_restarted_node_knows_everything_again(store: SqliteStore) -> None:
    here = StoredCatalog(store, recreate_guard_ms=60_000)
    await here.start()
    topic = msgspec.structs.replace(
        make_topic("a.fifo"), fsync=Fsync.NEVER, tags={"k": "ünï"}, kind=Kind.FIFO
    )
    await here.create(topic)
    topic = await here.change(
        ACCOUNT,
        REGION,
        "a.fifo",
        lambda t: t.with_settings(now_ms=9, redrive=Redrive("arn:x", 3), policy='{"a":1}'),
    )
    await here.create(make_topic("b"))
    await here.delete(ACCOUNT, REGION, "b", now_ms=77)
    await here.stop()
    again = StoredCatalog(store, recreate_guard_ms=60_000)
    await again.start()
    assert again.all_topics() == [topic]
    assert again.recently_deleted(ACCOUNT, REGION, "b", now_ms=78)
    await again.stop()


async def test_a_node_that_fell_behind_lists_again_and_hears_of_everything(
    here: StoredCatalog, there: StoredCatalog
) -> None:
    heard = Heard(there)
    kept = await here.create(make_topic("kept"))
    await here.create(make_topic("gone"))
    await here.create(make_topic("anew", topic_id="1"))
    await heard.until(3)
    kept_there = there.find(ACCOUNT, REGION, "kept")
    await there.stop()
    await here.delete(ACCOUNT, REGION, "gone", now_ms=1)
    await here.delete(ACCOUNT, REGION, "anew", now_ms=1)
    anew = await here.create(make_topic("anew", topic_id="2"))
    for n in range(30):  # beyond the history that is kept
        await here.change(ACCOUNT, REGION, "anew", delayed(n * 1_000))
    heard.changes.clear()
    await there.start()
    ended = {before.topic_id for before, after in heard.changes if before and not after}
    assert ended == {"id-000000000000-gone", "1"}
    assert {topic.topic_id for topic in there.all_topics()} == {kept.topic_id, anew.topic_id}
    assert there.find(ACCOUNT, REGION, "kept") is kept_there
    assert there.tombstone("id-000000000000-gone") is not None
    assert there.tombstone("1") is not None


async def test_history_lost_during_a_watch_is_made_up_for_by_a_list(
    here: StoredCatalog, store: SqliteStore
) -> None:
    await here.create(make_topic("a"))
    heard = Heard(here)
    # As if the watch had been cut off here: all its later history is gone when it resumes.
    await here.stop()
    for n in range(30):
        topic = make_topic("a")
        value = msgspec.json.encode(topic.with_settings(now_ms=n, delay_ms=n * 1_000))
        await store.put(topic_key(ACCOUNT, REGION, "a"), value)
    here._topics._watching = asyncio.create_task(here._topics._follow())
    changes = await heard.until(1)
    assert len(changes) == 1
    found = here.find(ACCOUNT, REGION, "a")
    assert found is not None
    assert found.settings.delay_ms == 29_000
    assert here.trouble is None


async def test_a_late_echo_does_not_bring_a_deleted_topic_back(
    store: SqliteStore, here: StoredCatalog
) -> None:
    key = topic_key(ACCOUNT, REGION, "a")
    topic = await here.create(make_topic("a"))
    entry = await store.get(key)
    assert entry is not None
    await here.delete(ACCOUNT, REGION, "a", now_ms=1)
    here._topics.apply(key, topic, version=entry.version)
    assert here.find(ACCOUNT, REGION, "a") is None


async def test_versions_of_deleted_topics_are_not_kept_for_ever(here: StoredCatalog) -> None:
    for n in range(5):
        await here.create(make_topic("a", topic_id=str(n)))
        await here.delete(ACCOUNT, REGION, "a", now_ms=n)
    await here.create(make_topic("b"))
    async with asyncio.timeout(10):
        while here._topics._deletes:  # until the watch has passed them
            await asyncio.sleep(0.001)
    assert set(here._topics._versions) == {topic_key(ACCOUNT, REGION, "b")}


async def test_a_listener_that_fails_does_not_stop_the_others(
    here: StoredCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(before: Topic | None, after: Topic | None) -> None:
        raise RuntimeError("deaf")

    here.on_change(fail)
    heard = Heard(here)
    await here.create(make_topic("a"))
    assert len(heard.changes) == 1
    assert "catalog listener failed" in caplog.text


async def test_the_number_of_topics_is_bounded(store: SqliteStore) -> None:
    here = StoredCatalog(store, topics_max=2)
    await here.start()
    await here.create(make_topic("a"))
    await here.create(make_topic("b"))
    with pytest.raises(QuotaExceeded):
        await here.create(make_topic("c"))
    await here.delete(ACCOUNT, REGION, "a", now_ms=1)
    await here.create(make_topic("c"))
    await here.stop()


async def test_the_number_of_partitions_is_bounded(store: SqliteStore) -> None:
    def grown(topic: Topic, count: int) -> Topic:
        return msgspec.structs.replace(topic, partition_count=count)

    here = StoredCatalog(store, partitions_max=10)
    await here.start()
    await here.create(grown(make_topic("a"), 4))
    await here.create(grown(make_topic("b"), 4))
    with pytest.raises(QuotaExceeded, match="has 8 of 10 partitions; 3 more exceed"):
        await here.create(grown(make_topic("c"), 3))
    with pytest.raises(QuotaExceeded, match="open files"):
        await here.change(ACCOUNT, REGION, "a", lambda topic: grown(topic, 7))
    await here.change(ACCOUNT, REGION, "a", lambda topic: grown(topic, 6))
    assert here.partition_count == 10
    share = msgspec.structs.replace(grown(make_topic("s"), 6), source_id="a")
    await here.create(share)
    assert here.partition_count == 10, "a share has no log of its own"
    await here.delete(ACCOUNT, REGION, "b", now_ms=1)
    assert here.partition_count == 6
    await here.stop()
    again = StoredCatalog(store, partitions_max=1)
    await again.start()
    assert again.partition_count == 6, "what is there is kept"
    await again.stop()


async def test_an_unreadable_entry_stops_the_start_with_its_name(store: SqliteStore) -> None:
    await store.put(topic_key(ACCOUNT, REGION, "a"), b'{"topic_id": 7}')
    here = StoredCatalog(store)
    with pytest.raises(StoreUnusable, match="/topics/000000000000/us-east-1/a"):
        await here.start()
    await here.stop()


async def test_an_unreadable_change_is_reported_until_it_is_repaired(
    here: StoredCatalog, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "RETRY_SECONDS_MIN", 0.001)
    heard = Heard(here)
    key = topic_key(ACCOUNT, REGION, "a")
    await store.put(key, b"not json")
    async with asyncio.timeout(10):
        while here.trouble is None:
            await asyncio.sleep(0.001)
    assert key in here.trouble
    await store.put(key, msgspec.json.encode(make_topic("a")))
    await heard.until(1)
    async with asyncio.timeout(10):
        while here.trouble is not None:
            await asyncio.sleep(0.001)


NAMES = ("a", "b", "c")
CALLS = st.tuples(
    st.integers(min_value=0, max_value=1),  # which node
    st.sampled_from(["create", "change", "delete"]),
    st.sampled_from(NAMES),
)


@given(rounds=st.lists(st.lists(CALLS, min_size=1, max_size=3), max_size=12))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_two_nodes_do_at_once_both_end_with_what_is_stored(
    rounds: list[list[tuple[int, str, str]]],
) -> None:
    async def call(node: StoredCatalog, verb: str, name: str, number: int) -> None:
        try:
            if verb == "create":
                await node.create(make_topic(name, topic_id=f"id{number}"))
            elif verb == "change":
                await node.change(ACCOUNT, REGION, name, delayed(number))
            else:
                await node.delete(ACCOUNT, REGION, name, now_ms=number)
        except (TopicExists, TopicNotFound):
            return
        if verb != "delete" and node.find(ACCOUNT, REGION, name) is None:
            # Our own write may only be gone because somebody deleted it after us.
            assert node.tombstones()

    async def run(folder: Path) -> None:
        # So little history that a watch falls behind now and then and has to list again.
        store = await SqliteStore.open(folder / "metadata.db", history_revisions_max=2)
        nodes = [StoredCatalog(store), StoredCatalog(store)]
        for node in nodes:
            await node.start()
        number = 0
        for calls in rounds:
            work = []
            for which, verb, name in calls:
                number += 1
                work.append(call(nodes[which], verb, name, number))
            await asyncio.gather(*work)
        heard = [Heard(node) for node in nodes]
        last = await nodes[0].create(make_topic("last"))
        for node, ear in zip(nodes, heard, strict=True):
            seen = 0
            while node.find(ACCOUNT, REGION, "last") is None:
                seen += 1
                await ear.until(seen)
        entries, _ = await store.list("/topics/")
        stored = [msgspec.json.decode(entry.value, type=Topic) for entry in entries]
        assert last in stored
        for node in nodes:
            assert node.topics(ACCOUNT, REGION) == stored
            assert sorted(node.all_topics(), key=lambda topic: topic.name) == stored
            assert all(node.find_arn(topic.arn) == topic for topic in stored)
            assert all(node.find_id(topic.topic_id) == topic for topic in stored)
            assert node.trouble is None
            await node.stop()
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
