"""The metadata role and its frontends: three services and several catalogs over one real store."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metadata.cluster import (
    ACCOUNT,
    REGION,
    Cluster,
    delayed,
    make_topic,
    running,
    until,
)

from penstock.metadata.security.data_keys import DataKeyEntry, data_key_key
from penstock.metadata.security.identity_entries import UserEntry, key_key, user_key
from penstock.metadata.serving.calls import (
    FIND_ID,
    GET,
    LIST,
    TXN,
    WATCH,
    FindId,
    Get,
    Got,
    Listed,
    ListPage,
    Misdirected,
    Watch,
)
from penstock.metadata.serving.mirror import merge_pages, place_of
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.store import ChangeKind, Compacted, Entry, Txn
from penstock.metadata.topics.catalog import StoredCatalog, tomb_key, topic_key
from penstock.model.errors import (
    Draining,
    InvalidRequest,
    QuotaExceeded,
    Throttled,
    VersionConflict,
)
from penstock.model.identity import AccessKey, User
from penstock.model.topic import Topic
from penstock.wire.internal.calls import Caller

# Sharded from twenty topics on, whole again from sixteen down.
pytestmark = pytest.mark.slow
SMALL = MetadataConfig(whole_entries_max=20, read_through_entries_max=5, forward_ms_max=30_000)

encode = msgspec.json.encode


def key_of(name: str) -> str:
    return topic_key(ACCOUNT, REGION, name)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path, "m1", "m2", "m3") as cluster:
        yield cluster


@pytest.fixture
async def sharded(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Sixty topics, of which each node holds a third."""
    async with running(tmp_path, "m1", "m2", "m3", config=SMALL) as cluster:
        await fill(cluster, 60)
        await cluster.settled()
        yield cluster


async def fill(cluster: Cluster, count: int, *, start: int = 0) -> None:
    puts = [(key_of(f"q{n:04d}"), encode(make_topic(f"q{n:04d}"))) for n in range(start, count)]
    for at in range(0, len(puts), 100):
        await cluster.store.txn(puts=puts[at : at + 100])


async def get(caller: Caller, name: str, **more: object) -> Got:
    request = msgspec.structs.replace(Get(key_of(name)), **more)
    return await caller.call(GET, request, timeout_ms=5_000)


async def list_all(caller: Caller, prefix: str = "/topics/", count_max: int = 7) -> list[str]:
    keys: list[str] = []
    after = ""
    while True:
        page = await caller.call(
            LIST, ListPage(prefix, after, count_max=count_max), timeout_ms=5_000
        )
        keys += [entry.key for entry in page.entries]
        if page.is_end:
            return keys
        after = keys[-1]


# ── The whole catalog on every node ──────────────────────────────────────────────────────────


async def test_every_node_answers_for_everything_while_there_is_little(cluster: Cluster) -> None:
    await fill(cluster, 10)
    await cluster.settled()
    for node_id in ("m1", "m2", "m3"):
        caller = cluster.caller(node_id)
        got = await get(caller, "q0003")
        assert got.entry is not None
        assert msgspec.json.decode(got.entry.value, type=Topic) == make_topic("q0003")
        assert (await get(caller, "absent")).entry is None
        assert await list_all(caller) == [key_of(f"q{n:04d}") for n in range(10)]
        found = await caller.call(FIND_ID, FindId(f"id-{ACCOUNT}-q0007"), timeout_ms=5_000)
        assert found.entry is not None
        assert found.entry.key == key_of("q0007")
        assert cluster.nodes[node_id].service.topics.is_whole
        assert cluster.nodes[node_id].service.forwarded_count == 0


async def test_a_page_begins_behind_a_key_and_stays_under_its_prefix(cluster: Cluster) -> None:
    for name in ("a", "ab", "abc", "b"):
        await cluster.store.put(key_of(name), encode(make_topic(name)))
    other = make_topic("ab", account="222222222222")
    await cluster.store.put(topic_key(other.account, REGION, "ab"), encode(other))
    await cluster.settled()
    caller = cluster.caller("m2")
    assert await list_all(caller, key_of("ab"), count_max=1) == [key_of("ab"), key_of("abc")]
    assert await list_all(caller, key_of(""), count_max=2) == [
        key_of(name) for name in ("a", "ab", "abc", "b")
    ]
    assert await list_all(caller, key_of("x")) == []


async def test_a_write_is_by_compare_and_swap_and_one_of_two_wins(cluster: Cluster) -> None:
    value = encode(make_topic("q"))
    put = Txn(compare=[(key_of("q"), 0)], puts=[(key_of("q"), value)])
    one, other = cluster.caller("m1"), cluster.caller("m2")
    written = await one.call(TXN, put, timeout_ms=5_000)
    with pytest.raises(VersionConflict):
        await other.call(TXN, put, timeout_ms=5_000)
    again = Txn(compare=[(key_of("q"), written.revision)], puts=[(key_of("q"), value)])
    assert (await other.call(TXN, again, timeout_ms=5_000)).revision == written.revision + 1
    # At once, although the watch of that node may not have brought it yet:
    got = await get(cluster.caller("m3"), "q", min_revision=written.revision + 1)
    assert got.entry is not None
    assert got.entry.version == written.revision + 1
    got = await get(cluster.caller("m3"), "q", is_fresh=True)
    assert got.revision >= written.revision + 1


async def test_a_list_is_never_older_than_the_caller_has_seen(cluster: Cluster) -> None:
    await cluster.store.put("/other/thing", b"raises the revision and is not told of")
    revision = await cluster.store.put("/other/thing", b"again")
    page = await cluster.caller("m1").call(
        LIST, ListPage("/topics/", min_revision=revision), timeout_ms=5_000
    )
    assert page.revision >= revision


async def test_there_are_only_so_many_topics(tmp_path: Path) -> None:
    async with running(tmp_path, "m1", config=MetadataConfig(topics_max=3)) as cluster:
        await fill(cluster, 3)
        await cluster.settled()
        caller = cluster.caller("m1")
        put = Txn(compare=[(key_of("x"), 0)], puts=[(key_of("x"), encode(make_topic("x")))])
        with pytest.raises(QuotaExceeded, match="limit of 3"):
            await caller.call(TXN, put, timeout_ms=5_000)
        before = (await get(caller, "q0000")).entry
        assert before is not None
        change = Txn(
            compare=[(before.key, before.version)],
            puts=[(before.key, encode(make_topic("q0000")))],
        )
        await caller.call(TXN, change, timeout_ms=5_000)


TOPIC = make_topic("q")
TOMB = msgspec.structs.replace(TOPIC, deleted_at_ms=5)
AT, TOMB_AT = key_of("q"), tomb_key(TOPIC.topic_id)
USER = UserEntry(User(ACCOUNT, "ann", 1))
USER_AT = user_key(ACCOUNT, "ann")
KEY = AccessKey("PSAK0000000000000000", ACCOUNT, "ann", b"sealed", 1)
KEY_AT = key_key(KEY.key_id)
DATA_KEY = encode(DataKeyEntry(ACCOUNT, b"wrapped", 1))
DATA_KEY_AT = data_key_key("ab" * 16, "cd" * 8)


@pytest.mark.parametrize(
    ("txn", "why"),
    [
        (Txn([], [(AT, encode(TOPIC))]), "must be conditional"),
        (Txn([(AT, 0)], [(AT, b"{}")]), "cannot be read"),
        (Txn([(AT, 0)], [(AT, b"\xff\xfe")]), "cannot be read"),
        (Txn([(key_of("r"), 0)], [(key_of("r"), encode(TOPIC))]), "the value belongs under"),
        (Txn([(AT, 0)], [(AT, encode(TOMB))]), "stored as a tombstone"),
        (Txn([(AT, 1)], [], [AT]), "put a tombstone"),
        (Txn([], [(TOMB_AT, encode(TOMB))], [AT]), "must check the version"),
        (Txn([(AT, 1)], [(TOMB_AT, encode(TOPIC))], [AT]), "time of deletion"),
        (Txn([(AT, 1)], [(tomb_key("other"), encode(TOMB))], [AT]), "the value belongs under"),
        (Txn([], [("/others/x", b"{}")]), "Only topics"),
        (Txn([("/store", 0)], [(TOMB_AT, encode(TOMB))]), "Only topics"),
        (Txn([("/keys/x", 0)], [(TOMB_AT, encode(TOMB))]), "entries of one kind"),
        (Txn([], [("/users/x", b"{}")]), "cannot be read"),
        (Txn([], [], ["/tenants/x"]), "must be conditional"),
        (Txn([], [], ["/keys/x"]), "must be conditional"),
        (Txn([(USER_AT, 0)], [("/users/x", encode(USER))]), "the value belongs under"),
        (Txn([], [(USER_AT, encode(USER))]), "must be conditional"),
        (Txn([(KEY_AT, 0)], [(KEY_AT + "x", encode(KEY))]), "the value belongs under"),
        (Txn([], [(KEY_AT, encode(KEY))]), "must be conditional"),
        (
            Txn([("/datakeys/a/b", 0)], [("/datakeys/a/b", DATA_KEY)]),
            "not the metadata key of a data key",
        ),
        (Txn([], [(DATA_KEY_AT, DATA_KEY)]), "must be conditional"),
        (Txn([(DATA_KEY_AT, 0)], [(DATA_KEY_AT, b"{}")]), "cannot be read"),
        (Txn([], [("/producer-ids", b"1")]), "must be conditional"),
        (Txn([("/producer-ids", 0)], [("/producer-ids", b"-1")]), "a number"),
        (Txn([(AT, 1)], [(AT, encode(TOPIC))], [AT]), "once"),
        (Txn([(AT, 0)] * 200), "at most"),
        (Txn([(AT, 0)], [(AT, encode(TOPIC))], (), [(AT, 0)] * 128), "at most"),
        (Txn([(AT, 0)], [(AT, encode(TOPIC))], (), [("/others/x", 0)]), "Only topics"),
        (
            Txn([(AT, 0)], [(AT, encode(msgspec.structs.replace(TOPIC, name="a/b")))]),
            "invalid account, region or name",
        ),
        (
            Txn([(AT, 0)], [(AT, encode(msgspec.structs.replace(TOPIC, account="x")))]),
            "invalid account, region or name",
        ),
    ],
)
async def test_nobody_writes_what_others_could_not_read_or_have_not_looked_at(
    tmp_path: Path, txn: Txn, why: str
) -> None:
    async with running(tmp_path, "m1") as cluster:
        with pytest.raises(InvalidRequest, match=why):
            await cluster.caller("m1").call(TXN, txn, timeout_ms=5_000)
        assert (await cluster.store.list("/"))[0] == []


async def test_what_is_not_for_other_nodes_is_not_told(cluster: Cluster) -> None:
    await cluster.store.put("/others/secret", b"1")
    caller = cluster.caller("m1")
    with pytest.raises(InvalidRequest):
        await caller.call(GET, Get("/others/secret"), timeout_ms=5_000)
    for prefix in ("/others/", "/", "", "/topics", "/wishes/"):
        with pytest.raises(InvalidRequest):
            await caller.call(LIST, ListPage(prefix), timeout_ms=5_000)
    for prefix in ("/others/", "/topics/111111111111/"):
        with pytest.raises(InvalidRequest):
            await caller.call(WATCH, Watch(prefix, 1, 0), timeout_ms=5_000)


# ── Watching ─────────────────────────────────────────────────────────────────────────────────


async def test_a_watch_is_answered_by_the_next_change_on_any_node(cluster: Cluster) -> None:
    caller = cluster.caller("m2")
    watch = Watch(
        "/topics/",
        (await caller.call(LIST, ListPage("/topics/"), timeout_ms=5_000)).revision + 1,
        20_000,
    )
    waiting = asyncio.create_task(caller.call(WATCH, watch, timeout_ms=30_000))
    await asyncio.sleep(0.02)
    begun = time.monotonic()
    revision = await cluster.store.put(AT, encode(TOPIC))
    watched = await waiting
    assert time.monotonic() - begun < 15.0
    assert [(change.kind, change.key) for change in watched.changes] == [(ChangeKind.PUT, AT)]
    assert watched.next_revision == revision + 1
    assert watched.entry_count == 1
    quiet = await caller.call(WATCH, Watch("/topics/", watched.next_revision, 50), timeout_ms=5_000)
    assert (quiet.changes, quiet.next_revision) == ([], revision + 1)


async def test_changes_are_told_in_pieces_that_never_split_a_revision(cluster: Cluster) -> None:
    for batch in range(30):
        names = [f"b{batch:02d}-{n:03d}" for n in range(100)]
        await cluster.store.txn(puts=[(key_of(name), encode(make_topic(name))) for name in names])
    await cluster.settled()
    caller = cluster.caller("m1")
    seen: list[str] = []
    next_revision = 1
    answers = 0
    while len(seen) < 3_000:
        watched = await caller.call(WATCH, Watch("/topics/", next_revision, 0), timeout_ms=5_000)
        assert watched.changes
        assert len(watched.changes) % 100 == 0
        seen += [change.key for change in watched.changes]
        next_revision = watched.next_revision
        answers += 1
    assert answers > 1
    assert seen == sorted(seen)


async def test_history_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    config = MetadataConfig(history_changes_max=8)
    async with running(tmp_path, "m1", config=config) as cluster:
        await fill(cluster, 1)
        for n in range(40):
            await cluster.store.put(key_of("q0000"), encode(make_topic("q0000", topic_id=f"{n}")))
        await cluster.settled()
        caller = cluster.caller("m1")
        await until(lambda: cluster.nodes["m1"].service.trouble is None)
        with pytest.raises(Compacted) as caught:
            await caller.call(WATCH, Watch("/topics/", 2, 1_000), timeout_ms=5_000)
        oldest = caught.value.oldest_revision
        assert 30 <= oldest <= 34
        watched = await caller.call(WATCH, Watch("/topics/", oldest, 0), timeout_ms=5_000)
        assert watched.changes[0].version == oldest


async def test_watchers_have_a_bound_and_are_answered_when_the_service_stops(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "m1", config=MetadataConfig(watchers_max=2)) as cluster:
        caller = cluster.caller("m1")
        watch = Watch("/topics/", 1, 20_000)
        waiting = [
            asyncio.create_task(caller.call(WATCH, watch, timeout_ms=30_000)) for _ in range(2)
        ]
        await until(lambda: cluster.nodes["m1"].service.watcher_count == 2)
        with pytest.raises(Throttled, match="Too many watches"):
            await caller.call(WATCH, watch, timeout_ms=5_000)
        begun = time.monotonic()
        await cluster.nodes["m1"].service.stop()
        for task in waiting:
            assert (await task).changes == []
        assert time.monotonic() - begun < 15.0
        # Memory no longer follows the store: who asks now is sent elsewhere.
        with pytest.raises(Draining):
            await caller.call(WATCH, watch, timeout_ms=5_000)
        with pytest.raises(Draining):
            await get(caller, "q")
        with pytest.raises(Draining):
            await caller.call(FIND_ID, FindId("x"), timeout_ms=5_000)


# ── The ring ─────────────────────────────────────────────────────────────────────────────────


async def test_above_the_bound_each_node_holds_its_part_and_forwards_the_rest(
    sharded: Cluster,
) -> None:
    services = {node_id: node.service for node_id, node in sharded.nodes.items()}
    assert sum(service.topics.held_count for service in services.values()) == 60
    assert all(5 <= service.topics.held_count <= 35 for service in services.values())
    for node_id, service in services.items():
        caller = sharded.caller(node_id)
        for n in range(60):
            got = await get(caller, f"q{n:04d}")
            assert got.entry is not None
            assert got.entry.key == key_of(f"q{n:04d}")
        assert (await get(caller, "absent")).entry is None
        assert 0 < service.forwarded_count <= 60 - service.topics.held_count + 1
        assert service.fallback_count == 0


async def test_lists_and_ids_are_put_together_from_all_parts(sharded: Cluster) -> None:
    for node_id in ("m1", "m3"):
        caller = sharded.caller(node_id)
        assert await list_all(caller) == [key_of(f"q{n:04d}") for n in range(60)]
        assert await list_all(caller, key_of("q001"), count_max=3) == [
            key_of(f"q001{n}") for n in range(10)
        ]
        for n in range(0, 60, 7):
            found = await caller.call(FIND_ID, FindId(f"id-{ACCOUNT}-q{n:04d}"), timeout_ms=5_000)
            assert found.entry is not None
            assert found.entry.key == key_of(f"q{n:04d}")
        absent = await caller.call(FIND_ID, FindId("nobody"), timeout_ms=5_000)
        assert absent.entry is None
        assert sharded.nodes[node_id].service.fallback_count == 0


def foreign(cluster: Cluster, node_id: str) -> str:
    """The name of a topic that is another node's."""
    ring = cluster.nodes[node_id].service.ring
    return next(
        name for n in range(60) if ring.owner_at(place_of(key_of(name := f"q{n:04d}"))) != node_id
    )


async def test_what_was_forwarded_is_remembered_until_it_changes(sharded: Cluster) -> None:
    service, caller = sharded.nodes["m1"].service, sharded.caller("m1")
    name = foreign(sharded, "m1")
    before = await get(caller, name)
    assert before.entry is not None
    assert service.forwarded_count == 1
    assert (await get(caller, name)).entry == before.entry
    assert service.forwarded_count == 1
    changed = delayed(5)(make_topic(name))
    version = await sharded.store.put(key_of(name), encode(changed))
    after = await get(caller, name, min_revision=version)
    assert after.entry is not None
    assert after.entry.version == version
    revision = 0
    while revision < version:  # the watch of this node
        revision = (await get(caller, name)).revision
    got = await get(caller, name)
    assert got.entry is not None
    assert got.entry.version == version


async def test_only_so_much_of_others_is_remembered(sharded: Cluster) -> None:
    service, caller = sharded.nodes["m1"].service, sharded.caller("m1")
    named = [f"q{n:04d}" for n in range(60)]
    names = [one for one in named if service.ring.owner_at(place_of(key_of(one))) != "m1"][:10]
    for name in names:
        await get(caller, name)
    assert service.forwarded_count == 10
    for name in names[5:]:
        await get(caller, name)
    assert service.forwarded_count == 10
    await get(caller, names[0])
    assert service.forwarded_count == 11


async def test_a_question_is_forwarded_once(sharded: Cluster) -> None:
    """Two nodes that see different members must not send it to and fro."""
    name = foreign(sharded, "m1")
    with pytest.raises(Misdirected):
        await get(sharded.caller("m1"), name, is_forwarded=True)
    with pytest.raises(Misdirected):
        await sharded.caller("m1").call(
            LIST, ListPage("/topics/", ring="another"), timeout_ms=5_000
        )
    with pytest.raises(Misdirected):
        await sharded.caller("m1").call(FIND_ID, FindId("x", ring="another"), timeout_ms=5_000)


async def test_members_of_different_minds_still_answer_from_the_store(sharded: Cluster) -> None:
    """m1 believes in a member that nobody knows: what should be there is read from the store."""
    sharded.members.append("ghost")
    service = sharded.nodes["m1"].service
    service.members_changed()
    await until(lambda: service.is_settled)
    caller = sharded.caller("m1")
    for n in range(60):
        got = await get(caller, f"q{n:04d}")
        assert got.entry is not None
    assert service.fallback_count > 0
    # One account's list is read from the store; everything at once is refused.
    names = await list_all(caller, key_of(""))
    assert names == [key_of(f"q{n:04d}") for n in range(60)]


async def test_an_owner_that_is_away_costs_a_read_of_the_store(sharded: Cluster) -> None:
    await sharded.nodes["m2"].cut_off()
    service, caller = sharded.nodes["m1"].service, sharded.caller("m1")
    begun = time.monotonic()
    for n in range(60):
        got = await get(caller, f"q{n:04d}")
        assert got.entry is not None
    assert service.fallback_count > 0
    assert time.monotonic() - begun < 5.0


async def test_a_member_that_leaves_hands_its_part_to_the_others(sharded: Cluster) -> None:
    await sharded.leave("m2")
    await sharded.settled()
    services = [node.service for node in sharded.nodes.values()]
    assert sum(service.topics.held_count for service in services) == 60
    caller = sharded.caller("m1")
    for n in range(60):
        assert (await get(caller, f"q{n:04d}")).entry is not None
    assert len(await list_all(caller)) == 60
    assert all(service.fallback_count == 0 for service in services)


async def test_a_member_that_joins_takes_its_part(sharded: Cluster) -> None:
    await sharded.join("m4")
    await sharded.settled()
    services = {node_id: node.service for node_id, node in sharded.nodes.items()}
    assert sum(service.topics.held_count for service in services.values()) == 60
    assert services["m4"].topics.held_count > 0
    caller = sharded.caller("m4")
    for n in range(60):
        assert (await get(caller, f"q{n:04d}")).entry is not None
    assert len(await list_all(caller)) == 60


async def test_changes_meet_every_part_while_members_come_and_go(sharded: Cluster) -> None:
    """Whatever is held where, the newest value is told once the nodes have settled."""
    versions: dict[str, int] = {}

    async def change() -> None:
        for n in range(300):
            name = f"q{n % 60:04d}"
            topic = delayed(n)(make_topic(name))
            versions[key_of(name)] = await sharded.store.put(key_of(name), encode(topic))

    changing = asyncio.create_task(change())
    await sharded.join("m4")
    await sharded.leave("m1")
    await changing
    await sharded.join("m5")
    await sharded.settled()
    newest = max(versions.values())
    for node_id in sharded.nodes:
        caller = sharded.caller(node_id)
        for key, version in versions.items():
            got = await caller.call(GET, Get(key, min_revision=newest), timeout_ms=5_000)
            assert got.entry is not None
            assert got.entry.version == version


async def test_a_catalog_that_has_shrunk_is_held_whole_again(sharded: Cluster) -> None:
    keys = [key_of(f"q{n:04d}") for n in range(12, 60)]
    await sharded.store.txn(deletes=keys)
    await sharded.settled()
    for node_id, node in sharded.nodes.items():
        assert node.service.topics.is_whole
        assert node.service.topics.held_count == 12
        assert len(await list_all(sharded.caller(node_id))) == 12
    await fill(sharded, 60)
    await sharded.settled()
    assert not any(node.service.topics.is_whole for node in sharded.nodes.values())


async def test_the_service_and_a_catalog_with_the_store_agree(cluster: Cluster) -> None:
    stored = StoredCatalog(cluster.store)
    await stored.start()
    await stored.create(make_topic("q"))
    await stored.change(ACCOUNT, REGION, "q", delayed(7))
    await cluster.settled()
    got = await get(cluster.caller("m3"), "q", is_fresh=True)
    assert got.entry is not None
    assert msgspec.json.decode(got.entry.value, type=Topic) == stored.find(ACCOUNT, REGION, "q")
    await stored.delete(ACCOUNT, REGION, "q", now_ms=5)
    await cluster.settled()
    assert (await get(cluster.caller("m3"), "q")).entry is None
    tomb = await cluster.caller("m3").call(
        GET, Get(tomb_key(TOPIC.topic_id), is_fresh=True), timeout_ms=5_000
    )
    assert tomb.entry is not None
    await stored.stop()


# ── Pages of parts ───────────────────────────────────────────────────────────────────────────


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 3), max_size=30),
    st.integers(1, 5),
)
def test_pages_of_parts_are_the_whole_in_order(placed: dict[str, int], count_max: int) -> None:
    parts = [sorted(key for key, part in placed.items() if part == n) for n in range(4)]
    seen: list[str] = []
    after = ""
    for _ in range(200):
        pages = []
        for part in parts:
            keys = [key for key in part if key > after]
            entries = [Entry(key, b"", 1, 1) for key in keys[:count_max]]
            pages.append(Listed(entries, len(keys) <= count_max, 1, 0))
        page = merge_pages(pages, entry_count=len(placed))
        seen += [entry.key for entry in page.entries]
        if page.is_end:
            break
        assert page.entries
        after = page.entries[-1].key
    assert seen == sorted(placed)


def test_an_entry_told_twice_is_taken_at_its_newest() -> None:
    old, new = Entry("k", b"old", 3, 1), Entry("k", b"new", 5, 1)
    page = merge_pages([Listed([old], True, 3, 1), Listed([new], True, 5, 1)], entry_count=1)
    assert page.entries == [new]
    assert page.revision == 3
