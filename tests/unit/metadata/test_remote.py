"""A frontend's catalog without a store: what it sees, how soon, and what it does when nobody
answers."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.harness.full import part
from tests.unit.metadata.cluster import (
    ACCOUNT,
    QUICK,
    REGION,
    Cluster,
    delayed,
    make_topic,
    running,
    until,
)

from penstock.metadata.serving.calls import GET, TXN, WATCH, Get, Got, Watch, Watched
from penstock.metadata.serving.remote_store import RemoteCatalog, RemoteConfig, RemoteStore
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.store import Change, ChangeKind, Compacted, Entry, Txn
from penstock.metadata.topics.catalog import StoredCatalog, topic_key
from penstock.model.errors import (
    Overloaded,
    QuotaExceeded,
    Throttled,
    TopicExists,
    TopicNotFound,
)
from penstock.model.ports import Catalog
from penstock.model.topic import Topic
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.calls import Call, Caller, Q, R, encode
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown, Unreachable

pytestmark = pytest.mark.slow
SMALL = MetadataConfig(whole_entries_max=20, read_through_entries_max=5, forward_ms_max=30_000)


def key_of(name: str) -> str:
    return topic_key(ACCOUNT, REGION, name)


def find(catalog: Catalog, name: str) -> Topic | None:
    return catalog.find(ACCOUNT, REGION, name)


async def resolve(catalog: RemoteCatalog, name: str) -> Topic | None:
    """Look a topic up as a ``find`` does that cannot know whether it exists, and wait for it."""
    topic = catalog.stored.find(ACCOUNT, REGION, name)
    if topic is not None or catalog._is_absent(catalog._absent, key_of(name)):
        return topic
    return await asyncio.shield(
        catalog._look(catalog._look_name, key_of(name), ACCOUNT, REGION, name)
    )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path, "m1", "m2", "m3") as cluster:
        yield cluster


class Heard:
    def __init__(self, of: RemoteCatalog) -> None:
        self.changes: list[tuple[Topic | None, Topic | None]] = []
        of.on_change(lambda before, after: self.changes.append((before, after)))


# ── Seeing ───────────────────────────────────────────────────────────────────────────────────


async def test_a_queue_is_seen_by_its_creator_at_once_and_by_others_soon(cluster: Cluster) -> None:
    patient = replace(QUICK, watch_ms=30_000)  # a watch that ends by itself would be too late
    here = await cluster.frontend("m1", config=patient)
    there = await cluster.frontend("m2", config=patient)
    beside = await cluster.frontend("m3", config=patient)
    heard = Heard(there)
    topic = await here.create(make_topic("orders"))
    assert find(here, "orders") == topic
    assert here.find_arn(topic.arn) == here.find_id(topic.topic_id) == topic
    await until(lambda: find(there, "orders") == find(beside, "orders") == topic)
    assert heard.changes == [(None, topic)]
    assert there.topics(ACCOUNT, REGION, "ord") == [topic]
    assert list(there.all_topics()) == [topic]
    with pytest.raises(TopicExists):
        await there.create(make_topic("orders", topic_id="another"))


async def test_a_miss_is_asked_for_once_by_all_who_want_it(cluster: Cluster) -> None:
    stored = StoredCatalog(cluster.store)
    await stored.start()
    counted = Counted(cluster.caller("m1"))
    config = replace(QUICK, negative_ms=60_000)
    frontend = RemoteCatalog(counted, clock=SystemClock(), config=config)
    await frontend.start()
    try:
        counted.hold(WATCH)  # the watch brings nothing for now
        topic = await stored.create(make_topic("orders"))
        await cluster.settled()
        assert find(frontend, "orders") is None
        found = await asyncio.gather(*(resolve(frontend, "orders") for _ in range(20)))
        assert found == [topic] * 20
        assert counted.counts["metadata.get"] == 1
        assert await resolve(frontend, "orders") == topic
        assert counted.counts["metadata.get"] == 1
        for _ in range(20):
            assert await resolve(frontend, "absent") is None
        assert counted.counts["metadata.get"] == 2
        counted.let_go(WATCH)
        absent = await stored.create(make_topic("absent"))
        # Dropped by the change, not by time alone.
        await until(lambda: find(frontend, "absent") == absent)
        assert await resolve(frontend, "absent") == absent
    finally:
        counted.let_go(WATCH)
        await frontend.stop()
        await stored.stop()


async def test_changes_and_deletes_reach_everybody(cluster: Cluster) -> None:
    here = await cluster.frontend("m1", recreate_guard_ms=60_000)
    there = await cluster.frontend("m2", recreate_guard_ms=60_000)
    await here.create(make_topic("orders"))
    changed = await there.change(ACCOUNT, REGION, "orders", delayed(5))
    assert find(there, "orders") == changed
    await until(lambda: find(here, "orders") == changed)
    now_ms = SystemClock().wall_ms()
    tomb = await here.delete(ACCOUNT, REGION, "orders", now_ms=now_ms)
    assert tomb.deleted_at_ms == now_ms
    assert find(here, "orders") is None
    assert here.recently_deleted(ACCOUNT, REGION, "orders", now_ms=now_ms + 1)
    await until(lambda: find(there, "orders") is None)
    await until(lambda: there.recently_deleted(ACCOUNT, REGION, "orders", now_ms=now_ms + 1))
    for catalog in (here, there):
        with pytest.raises(TopicNotFound):
            await catalog.change(ACCOUNT, REGION, "orders", delayed(6))
        with pytest.raises(TopicNotFound):
            await catalog.delete(ACCOUNT, REGION, "orders", now_ms=now_ms)


async def test_changes_of_one_topic_through_different_frontends_are_all_made(
    cluster: Cluster,
) -> None:
    frontends = [await cluster.frontend(node_id) for node_id in ("m1", "m2", "m3")]
    await frontends[0].create(make_topic("orders"))

    def tagged(tag: str) -> object:
        def change(topic: Topic) -> Topic:
            return msgspec.structs.replace(topic, tags={**topic.tags, tag: "yes"})

        return change

    await asyncio.gather(
        *(
            frontend.change(ACCOUNT, REGION, "orders", tagged(f"t{at}-{n}"))  # type: ignore[arg-type]
            for at, frontend in enumerate(frontends)
            for n in range(5)
        )
    )
    await until(lambda: all(len(_tags(frontend)) == 15 for frontend in frontends))


def _tags(catalog: Catalog) -> dict[str, str]:
    topic = find(catalog, "orders")
    return {} if topic is None else topic.tags


async def test_a_catalog_that_starts_later_has_everything(cluster: Cluster) -> None:
    stored = StoredCatalog(cluster.store)
    await stored.start()
    topics = [await stored.create(make_topic(f"q{n:03d}")) for n in range(120)]
    await stored.delete(ACCOUNT, REGION, "q000", now_ms=5)
    await cluster.settled()
    frontend = await cluster.frontend("m2")
    assert frontend.topics(ACCOUNT, REGION) == topics[1:]
    await stored.stop()


async def test_the_bounds_of_the_catalog_are_the_services(tmp_path: Path) -> None:
    async with running(tmp_path, "m1", config=MetadataConfig(topics_max=2)) as cluster:
        frontend = await cluster.frontend("m1")
        await frontend.create(make_topic("a"))
        await frontend.create(make_topic("b"))
        await cluster.settled()
        with pytest.raises(QuotaExceeded):
            await frontend.create(make_topic("c"))


# ── When nobody answers ──────────────────────────────────────────────────────────────────────


async def test_with_the_service_down_known_topics_resolve_and_creates_fail_at_once(
    cluster: Cluster,
) -> None:
    impatient = RemoteConfig(watch_ms=100, call_ms=30_000, stale_ms_max=300)
    frontend = await cluster.frontend("m1", "m2", "m3", config=impatient)
    topic = await frontend.create(make_topic("orders"))
    for node in cluster.nodes.values():
        await node.cut_off()
    begun = time.monotonic()
    with pytest.raises(Overloaded, match="The node at"):
        await frontend.create(make_topic("more"))
    with pytest.raises(Overloaded):
        await frontend.change(ACCOUNT, REGION, "orders", delayed(5))
    assert time.monotonic() - begun < 10
    assert find(frontend, "orders") == topic
    assert await resolve(frontend, "orders") == topic
    await until(lambda: frontend.trouble is not None)
    assert frontend.store.staleness_ms > 300
    assert "metadata service" in str(frontend.trouble)
    assert find(frontend, "orders") == topic
    # Nobody knows whether this one exists by now: that is said, and not that it does not.
    with pytest.raises(Throttled, match="cannot be looked up"):
        find(frontend, "unknown")
    with pytest.raises(Unreachable):
        await resolve(frontend, "unknown")

    for node in cluster.nodes.values():
        await node.listen()
    await until(lambda: frontend.trouble is None)
    assert find(frontend, "unknown") is None
    await frontend.create(make_topic("more"))


async def test_a_frontend_goes_on_with_another_node_and_misses_nothing(cluster: Cluster) -> None:
    frontend = await cluster.frontend("m1", "m2", config=replace(QUICK, call_ms=30_000))
    other = await cluster.frontend("m3")
    await other.create(make_topic("before"))
    await until(lambda: find(frontend, "before") is not None)
    listed = frontend.store.staleness_ms
    await cluster.leave("m1")
    created = await other.create(make_topic("after"))
    await until(lambda: find(frontend, "after") == created)
    assert listed < 10_000
    await frontend.create(make_topic("third"))
    await until(lambda: find(other, "third") is not None)


async def test_a_write_whose_connection_is_lost_is_not_made_twice(cluster: Cluster) -> None:
    frontend = await cluster.frontend("m1", "m2")
    node = cluster.nodes["m1"]
    entered, release = asyncio.Event(), asyncio.Event()
    commit = cluster.store.commit

    async def slow_commit(txn: Txn) -> int:
        revision = await commit(txn)
        entered.set()
        await release.wait()
        return revision

    cluster.store.commit = slow_commit  # type: ignore[method-assign]
    creating = asyncio.create_task(frontend.create(make_topic("orders")))
    await entered.wait()
    assert node.listener is not None
    for connection in list(node.listener.connections):
        connection.abort()
    with pytest.raises(OutcomeUnknown):
        await creating
    cluster.store.commit = commit  # type: ignore[method-assign]
    release.set()
    # It was carried out; the watch says so, and who asks again hears that the name is taken.
    await until(lambda: find(frontend, "orders") is not None)
    with pytest.raises(TopicExists):
        await frontend.create(make_topic("orders", topic_id="again"))


async def test_a_frontend_that_cannot_start_says_why_and_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    await cluster.nodes["m1"].cut_off()
    before = len(asyncio.all_tasks())
    catalog = RemoteCatalog(cluster.caller("m1"), clock=SystemClock(), config=QUICK)
    with pytest.raises(Unreachable):
        await catalog.start()
    assert len(asyncio.all_tasks()) == before


async def test_after_a_gap_everything_is_read_again(tmp_path: Path) -> None:
    """More changes while the service was away than it remembers: gone ones go, new ones come."""
    config = MetadataConfig(history_changes_max=8)
    async with running(tmp_path, "m1", config=config) as cluster:
        stored = StoredCatalog(cluster.store)
        await stored.start()
        frontend = await cluster.frontend("m1")
        for name in ("stays", "changes", "goes"):
            await stored.create(make_topic(name))
        await until(lambda: len(frontend.all_topics()) == 3)
        heard = Heard(frontend)
        await cluster.nodes["m1"].cut_off()
        await stored.delete(ACCOUNT, REGION, "goes", now_ms=5)
        changed = await stored.change(ACCOUNT, REGION, "changes", delayed(9))
        await stored.create(make_topic("brief"))
        await stored.delete(ACCOUNT, REGION, "brief", now_ms=6)
        for n in range(40):
            await stored.create(make_topic(f"new{n:02d}"))
        await cluster.settled()
        await cluster.nodes["m1"].listen()
        await until(lambda: len(frontend.all_topics()) == 42)
        assert find(frontend, "goes") is None
        assert find(frontend, "changes") == changed
        assert find(frontend, "brief") is None
        told = [(before and before.name, after and after.name) for before, after in heard.changes]
        assert ("goes", None) in told
        assert ("changes", "changes") in told
        assert sum(1 for before, after in told if before is None) == 40
        assert not any("stays" in pair for pair in told)
        await stored.stop()


# ── A service whose nodes hold parts ─────────────────────────────────────────────────────────


async def test_a_frontend_has_everything_of_a_service_whose_nodes_hold_parts(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "m1", "m2", "m3", config=SMALL) as cluster:
        made = {f"q{n:03d}": make_topic(f"q{n:03d}") for n in range(60)}
        puts = [(key_of(name), msgspec.json.encode(topic)) for name, topic in made.items()]
        await cluster.store.txn(puts=puts)
        await cluster.settled()
        frontend = await cluster.frontend("m1")
        assert {topic.name: topic for topic in frontend.all_topics()} == made
        assert await frontend._look_id(made["q007"].topic_id) == made["q007"]
        changed = await frontend.change(ACCOUNT, REGION, "q059", delayed(7))
        assert find(frontend, "q059") == changed
        await frontend.delete(ACCOUNT, REGION, "q001", now_ms=1)
        assert await resolve(frontend, "q001") is None


# ── Everything at once ───────────────────────────────────────────────────────────────────────


@pytest.mark.full_set
@pytest.mark.parametrize("seed", part(range(4), 1))
async def test_whatever_happens_every_frontend_ends_with_what_the_store_has(
    tmp_path: Path, seed: int
) -> None:
    """Three frontends create, change, delete and ask, while connections are cut and members come
    and go."""
    chance = random.Random(seed)
    config = MetadataConfig(
        whole_entries_max=12, read_through_entries_max=4, history_changes_max=16
    )
    names = [f"q{n:02d}" for n in range(30)]
    async with running(tmp_path, "m1", "m2", "m3", config=config) as cluster:
        frontends = [
            await cluster.frontend("m1", "m2", "m3", config=replace(QUICK, negative_ms=20)),
            await cluster.frontend("m2", "m3", "m1", config=replace(QUICK, negative_ms=20)),
            await cluster.frontend("m3", "m1", "m2", config=replace(QUICK, negative_ms=20)),
        ]

        async def work(frontend: RemoteCatalog) -> None:
            for step in range(60):
                name = chance.choice(names)
                try:
                    match chance.randrange(5):
                        case 0 | 1:
                            await frontend.create(make_topic(name, topic_id=f"{step}-{id(name)}"))
                        case 2:
                            await frontend.change(ACCOUNT, REGION, name, delayed(step))
                        case 3:
                            await frontend.delete(ACCOUNT, REGION, name, now_ms=step)
                        case _:
                            await resolve(frontend, name)
                except (TopicExists, TopicNotFound, Overloaded):
                    pass

        async def disturb() -> None:
            for _ in range(6):
                await asyncio.sleep(0.05)
                node = cluster.nodes[chance.choice(sorted(cluster.nodes))]
                if node.listener is not None:
                    for connection in list(node.listener.connections):
                        connection.abort()
            await cluster.leave("m2")
            await cluster.join("m4")

        await asyncio.gather(disturb(), *map(work, frontends))
        await cluster.settled()
        entries, _ = await cluster.store.list("/topics/")
        stored = {entry.key: msgspec.json.decode(entry.value, type=Topic) for entry in entries}

        def agrees(frontend: RemoteCatalog) -> bool:
            held = {topic_key(t.account, t.region, t.name): t for t in frontend.all_topics()}
            return held == stored

        await until(lambda: all(map(agrees, frontends)))
        for frontend in frontends:
            await asyncio.sleep(0.03)  # absences are remembered so long
            for name in names:
                while True:
                    try:
                        found = await resolve(frontend, name)
                        break
                    except Overloaded:
                        await asyncio.sleep(0.02)  # for room
                assert found == stored.get(key_of(name))


# ── Answers that overtake each other ─────────────────────────────────────────────────────────


class Counted:
    """Passes calls on, counts them, and can hold back those of one kind."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.counts: dict[str, int] = {}
        self._gates: dict[int, asyncio.Event] = {}

    def hold(self, call: Call) -> None:
        self._gates[call.number] = asyncio.Event()

    def let_go(self, call: Call) -> None:
        gate = self._gates.pop(call.number, None)
        if gate is not None:
            gate.set()

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        self.counts[call.name] = self.counts.get(call.name, 0) + 1
        reply = await self._caller.call(call, request, timeout_ms=timeout_ms)
        gate = self._gates.get(call.number)
        if gate is not None:
            await gate.wait()
        return reply


class Scripted:
    """A service whose every answer is given by the test, when the test wants it."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, object, asyncio.Future[object]]] = asyncio.Queue()

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((call.name, request, reply))
        answer = await reply
        return call.decode_reply(encode(answer))

    async def next(self, call: Call) -> tuple[object, "asyncio.Future[object]"]:
        async with asyncio.timeout(5):
            name, request, reply = await self.asked.get()
        assert name == call.name
        return request, reply


@pytest.mark.parametrize("kind", [ChangeKind.DELETE, ChangeKind.PUT])
async def test_a_get_that_a_change_has_overtaken_is_asked_again(kind: ChangeKind) -> None:
    service = Scripted()
    store = RemoteStore(service, clock=SystemClock(), config=QUICK)
    watch = store.watch("/topics/", from_revision=6)
    told = asyncio.create_task(anext(watch))
    _, watched = await service.next(WATCH)
    getting = asyncio.create_task(store.get(key_of("q")))
    request, got = await service.next(GET)
    assert isinstance(request, Get)
    old = Entry(key_of("q"), b"old", 5, 5)
    watched.set_result(Watched([Change(kind, key_of("q"), b"new", 7)], 8, 1))
    assert len(await told) == 1
    got.set_result(Got(old, 6))  # as it was before the change
    request, got = await service.next(GET)
    assert isinstance(request, Get)
    assert request.is_fresh
    assert request.min_revision == 7
    newest = None if kind is ChangeKind.DELETE else Entry(key_of("q"), b"new", 7, 5)
    got.set_result(Got(newest, 7))
    assert await getting == newest
    await watch.aclose()


async def test_a_value_that_keeps_changing_under_the_question_is_given_up() -> None:
    service = Scripted()
    store = RemoteStore(service, clock=SystemClock(), config=QUICK)
    watch = store.watch("/topics/", from_revision=2)
    getting = asyncio.create_task(store.get(key_of("q")))
    revision = 2
    pending = (await service.next(GET))[1]
    while not getting.done():
        told = asyncio.create_task(anext(watch))
        _, watched = await service.next(WATCH)
        change = Change(ChangeKind.PUT, key_of("q"), b"", revision)
        watched.set_result(Watched([change], revision + 1, 1))
        await told
        pending.set_result(Got(None, revision - 1))
        revision += 1
        asking = asyncio.create_task(service.next(GET))
        await asyncio.wait((asking, getting), return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            asking.cancel()
        else:
            pending = (await asking)[1]
    with pytest.raises(Throttled, match="changed by another request"):
        await getting
    await watch.aclose()


async def test_after_a_conflict_the_store_itself_is_read(cluster: Cluster) -> None:
    counted = Counted(cluster.caller("m1"))
    frontend = RemoteCatalog(counted, clock=SystemClock(), config=QUICK)
    await frontend.start()
    other = await cluster.frontend("m2")
    await other.create(make_topic("orders"))
    await until(lambda: find(frontend, "orders") is not None)
    counted.hold(WATCH)
    await other.change(ACCOUNT, REGION, "orders", delayed(5))
    changed = await frontend.change(
        ACCOUNT, REGION, "orders", lambda topic: msgspec.structs.replace(topic, partition_count=9)
    )
    assert changed.settings.delay_ms == 5
    assert changed.partition_count == 9
    assert counted.counts[TXN.name] == 2
    assert counted.counts[GET.name] == 1
    counted.let_go(WATCH)
    await frontend.stop()


async def test_a_watch_says_compacted_and_survives_everything_else() -> None:
    service = Scripted()
    store = RemoteStore(service, clock=SystemClock(), config=QUICK, chance=lambda: 0.0)
    watch = store.watch("/tombs/", from_revision=1)
    told = asyncio.create_task(anext(watch))
    for error in (Unreachable("away"), Throttled("busy"), OutcomeUnknown("lost")):
        _, reply = await service.next(WATCH)
        reply.set_exception(error)
        request, again = await service.next(WATCH)
        assert store.trouble == str(error)
        assert request == Watch("/tombs/", 1, QUICK.watch_ms)
        again.set_result(Watched([], 1, 0))
    _, reply = await service.next(WATCH)
    assert store.trouble is None
    reply.set_exception(Compacted(5))
    with pytest.raises(Compacted):
        await told


async def test_a_change_that_was_not_answered_in_time_may_have_happened() -> None:
    service = Scripted()
    store = RemoteStore(service, clock=SystemClock(), config=QUICK)
    for error in (DeadlineExceeded("late"), OutcomeUnknown("lost")):
        writing = asyncio.create_task(store.put("/tombs/a", b"", if_version=0))
        _, reply = await service.next(TXN)
        reply.set_exception(error)
        with pytest.raises(OutcomeUnknown, match=str(error)):
            await writing
    writing = asyncio.create_task(store.put("/tombs/a", b"", if_version=0))
    _, reply = await service.next(TXN)
    reply.set_exception(Unreachable("away"))
    with pytest.raises(Unreachable) as caught:
        await writing
    assert not isinstance(caught.value, OutcomeUnknown)
