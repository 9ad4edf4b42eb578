"""The store on a real etcd of three members, while members die, stop and lose each other."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.harness.etcd import LACKING, Certificates, EtcdCluster

from penstock.membership.registration import LeaseClock, LeaseClockConfig
from penstock.metadata.etcd.links import EtcdConfig
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.store import Change, Compacted, StoreUnusable
from penstock.model.errors import PenstockError, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown, Unreachable

needs_etcd = pytest.mark.skipif(LACKING is not None, reason=LACKING or "")

CALL_MS = 3_000


def test_where_packages_can_be_installed_etcd_is() -> None:
    """So that nobody takes tests for passed that were skipped: ``tools/bootstrap.sh`` does it."""
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        assert LACKING is None


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), members=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: EtcdCluster) -> Iterator[EtcdCluster]:
    """Three members that are well, whatever the test before has done to them."""
    shared.heal()
    yield shared
    shared.heal()


class Tls(NamedTuple):
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


PLAIN = Tls()


@asynccontextmanager
async def opened(
    cluster: EtcdCluster,
    name: str,
    *,
    first: int | None = None,
    call_ms: int = CALL_MS,
    tls: Tls = PLAIN,
) -> AsyncIterator[EtcdStore]:
    """``first``: the member to be asked first."""
    endpoints = list(cluster.endpoints)
    if first is not None:
        endpoints.insert(0, endpoints.pop(first))
    config = EtcdConfig(
        endpoints=tuple(endpoints),
        namespace=f"/faults/{name}",
        call_ms=call_ms,
        connect_ms=500,
        ca_path=tls.ca,
        cert_path=tls.cert,
        key_path=tls.key,
    )
    store = await EtcdStore.open(config, chance=lambda: 0.5)
    try:
        yield store
    finally:
        await store.close()


class Followed:
    """What a watch has told, beside whatever else the test does."""

    def __init__(self, watch: AsyncGenerator[Sequence[Change], None]) -> None:
        self.changes: list[Change] = []
        self._watch = watch
        self._moved = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async with aclosing(self._watch):
            async for changes in self._watch:
                self.changes += changes
                self._moved.set()

    async def until(self, key: str, *, seconds: float = 15.0) -> None:
        async with asyncio.timeout(seconds):
            while not any(change.key == key for change in self.changes):
                if self._task.done():
                    self._task.result()
                self._moved.clear()
                waiting = asyncio.create_task(self._moved.wait())
                await asyncio.wait((waiting, self._task), return_when="FIRST_COMPLETED")
                waiting.cancel()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def written_through(store: EtcdStore, keys: Sequence[str], *, seconds: float) -> None:
    """Each key once, asked again as a caller would that does not know: only if it is absent."""
    async with asyncio.timeout(seconds):
        for key in keys:
            while not await is_written(store, key):
                await asyncio.sleep(0.02)


async def is_written(store: EtcdStore, key: str) -> bool:
    try:
        await store.put(key, b"", if_version=0)
    except VersionConflict:
        return True  # by an attempt whose answer was lost
    except PenstockError:
        return False
    return True


@needs_etcd
async def test_writes_are_back_soon_after_the_leader_was_killed(cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    async with opened(cluster, "killed", first=leader) as store:
        _, start = await store.list("")
        following = Followed(store.watch("/", from_revision=start + 1))
        await written_through(store, ["/before"], seconds=5)
        cluster.kill(leader)
        begun = time.monotonic()
        await written_through(store, ["/first"], seconds=10)
        assert time.monotonic() - begun < 10
        keys = [f"/{n}" for n in range(50)]
        await written_through(store, keys, seconds=10)
        await following.until("/49")
        await following.stop()
        assert [change.key for change in following.changes] == ["/before", "/first", *keys]
        assert [change.version for change in following.changes] == sorted(
            {change.version for change in following.changes}
        )


@needs_etcd
async def test_calls_go_on_when_the_member_that_answers_them_stops(cluster: EtcdCluster) -> None:
    stopped = next(one for one in range(3) if one != cluster.leader())
    async with opened(cluster, "stopped", first=stopped, call_ms=10_000) as store:
        _, start = await store.list("")
        following = Followed(store.watch("/", from_revision=start + 1))
        version = await store.put("/a", b"1")
        await following.until("/a")
        cluster.stop(stopped)
        begun = time.monotonic()
        entry = await store.get("/a")  # asked of the stopped one first, then of another
        assert entry is not None
        assert entry.version == version
        assert time.monotonic() - begun < 10
        assert await store.put("/b", b"2", if_version=0) > version
        await following.until("/b")
        await following.stop()
        assert [change.key for change in following.changes] == ["/a", "/b"]


@needs_etcd
async def test_a_change_whose_answer_is_lost_is_not_made_twice(cluster: EtcdCluster) -> None:
    stopped = next(one for one in range(3) if one != cluster.leader())
    async with opened(cluster, "lost", first=stopped) as store:
        version = await store.put("/a", b"1")
        cluster.stop(stopped)
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await store.put("/a", b"2", if_version=version)
        assert time.monotonic() - begun < CALL_MS / 1_000 + 5
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.version, entry.value) == (version, b"1")  # it has stopped before
        cluster.cont(stopped)
        # Now it passes it on, or its connection was gone by then: in either case only once.
        newer = await store.put("/b", b"")
        async with aclosing(store.watch("/", from_revision=version + 1)) as watch:
            async with asyncio.timeout(10):
                told = [*await anext(watch)]
                while told[-1].version < newer:
                    told += await anext(watch)
        assert sum(change.key == "/a" for change in told) <= 1


@needs_etcd
async def test_without_a_quorum_calls_fail_in_time_and_watches_go_on_afterwards(
    cluster: EtcdCluster,
) -> None:
    left = next(one for one in range(3) if one != cluster.leader())
    async with opened(cluster, "quorum", first=left) as store:
        _, start = await store.list("")
        following = Followed(store.watch("/", from_revision=start + 1))
        await store.put("/before", b"")
        await following.until("/before")
        for member in range(3):
            if member != left:
                cluster.kill(member)
        for _ in range(2):
            begun = time.monotonic()
            calls = (store.get("/a"), store.list("/"), store.put("/a", b""), store.grant(9_000))
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - begun < CALL_MS / 1_000 + 5
            for error in errors:
                assert isinstance(error, Unreachable)
                assert "etcd" in str(error)
                assert "\n" not in str(error)
        async with asyncio.timeout(15):  # the dead ones are looked at as well, in turn
            while "no leader" not in (store.trouble or ""):
                await asyncio.sleep(0.02)
        assert store.staleness_ms > 1_000
        for member in range(3):
            if member != left:
                cluster.restart(member)
        await written_through(store, ["/after"], seconds=15)
        await following.until("/after")
        await following.stop()
        keys = [change.key for change in following.changes]
        assert [key for key in keys if key != "/a"] == ["/before", "/after"]
        assert keys.count("/a") <= 2  # those whose outcome nobody knew
        assert store.trouble is None


@needs_etcd
async def test_the_calls_of_a_node_that_starts_wait_for_a_slow_etcd(cluster: EtcdCluster) -> None:
    async with opened(cluster, "slow") as store, opened(cluster, "slow") as started:
        await asyncio.gather(store.get("/a"), started.get("/a"))
        store.call_seconds = 60.0
        for member in range(3):
            cluster.stop(member)
        calls = [
            asyncio.create_task(call)
            for call in (store.get("/a"), store.list("/"), store.put("/a", b""), store.grant(9_000))
        ]
        with pytest.raises(Unreachable):
            await started.get("/a")
        assert not any(call.done() for call in calls)
        for member in range(3):
            cluster.cont(member)
        await asyncio.gather(*calls)


@needs_etcd
async def test_a_watch_that_was_away_while_history_was_cut_is_told_so(
    cluster: EtcdCluster,
) -> None:
    stopped = next(one for one in range(3) if one != cluster.leader())
    async with opened(cluster, "cut", first=stopped) as store:
        version = await store.put("/a", b"1")
        async with aclosing(store.watch("/", from_revision=version)) as watch:
            assert [change.version for change in await anext(watch)] == [version]
            cluster.stop(stopped)
            async with opened(cluster, "cut", first=cluster.leader()) as other:
                for n in range(20):
                    version = await other.put("/a", b"%d" % n)
            await asyncio.to_thread(cluster.compact, version)
            with pytest.raises(Compacted) as caught:
                async with asyncio.timeout(15):
                    await anext(watch)
            assert caught.value.oldest_revision == version + 1
        entries, revision = await store.list("/", min_revision=version)
        assert [entry.value for entry in entries] == [b"19"]
        async with aclosing(store.watch("/", from_revision=revision + 1)) as watch:
            following = asyncio.create_task(anext(watch))
            await store.put("/b", b"")
            async with asyncio.timeout(10):
                assert [change.key for change in await following] == ["/b"]


@needs_etcd
async def test_a_node_stays_in_when_the_member_that_it_is_kept_alive_by_stops_or_dies(
    cluster: EtcdCluster,
) -> None:
    async with opened(cluster, "session", first=0) as store:
        gone = asyncio.Event()
        config = LeaseClockConfig(ttl_ms=6_000, every_ms=500)
        clock = LeaseClock(store, config=config, on_gone=gone.set)
        lease = await clock.start()
        created = await store.txn(puts=(("/nodes/1", b""),), lease=lease)
        for hurt in (cluster.stop, cluster.kill):
            member = cluster.leader()
            hurt(member)
            ends = time.monotonic() + 7  # longer than the lease lasts by itself
            while time.monotonic() < ends:
                assert not gone.is_set()
                await asyncio.sleep(0.1)
            assert clock.is_good
            # Not let go on: a leader that wakes up late may end leases that a later one has kept
            # alive, which is etcd's affair (its issue 15247).
            cluster.restart(member)
            await asyncio.to_thread(cluster.wait_healthy)
        entry = await store.get("/nodes/1")
        assert entry is not None
        assert entry.create_revision == created
        await clock.stop()
        assert await store.get("/nodes/1") is None


@needs_etcd
async def test_r20_a_node_that_cannot_reach_etcd_gives_up_before_etcd_does(
    cluster: EtcdCluster,
) -> None:
    async with opened(cluster, "alone") as store:
        clock = LeaseClock(store, config=LeaseClockConfig(ttl_ms=3_000, every_ms=300))
        lease = await clock.start()
        await store.txn(puts=(("/nodes/1", b""),), lease=lease)
        for member in range(3):
            cluster.stop(member)
        async with asyncio.timeout(10):
            while clock.is_good:
                await asyncio.sleep(0.01)
        for member in range(3):
            cluster.cont(member)
        # It has ended or not; in either case nobody else could have been told so before.
        await asyncio.to_thread(cluster.wait_healthy)
        await clock.stop()


@needs_etcd
async def test_clusters_share_an_etcd_without_seeing_each_other(cluster: EtcdCluster) -> None:
    async with opened(cluster, "a") as one, opened(cluster, "ab") as other:
        revision = await one.put("/x", b"one")
        newer = await other.put("/x", b"other")
        assert newer > revision
        entries, _ = await one.list("")
        assert [(entry.key, entry.value) for entry in entries] == [("/x", b"one")]
        async with aclosing(one.watch("", from_revision=revision)) as watch:
            assert [change.value for change in await anext(watch)] == [b"one"]
            following = asyncio.create_task(anext(watch))
            await other.put("/y", b"not told")
            await one.put("/z", b"told")
            async with asyncio.timeout(10):
                assert [change.key for change in await following] == ["/z"]


@needs_etcd
async def test_under_tls_only_who_is_known_is_answered(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd", tls=True) as cluster:
        assert cluster.certificates is not None
        ca = cluster.certificates.ca
        known = Tls(ca, cluster.cert, cluster.key)
        async with opened(cluster, "tls", tls=known) as store:
            revision = await store.put("/a", b"1")
            lease = await store.grant(5_000)
            assert await store.keep_alive(lease) > 0
            async with aclosing(store.watch("/", from_revision=revision)) as watch:
                assert [change.key for change in await anext(watch)] == ["/a"]
        strangers = Certificates(tmp_path / "strangers")
        stranger_cert, stranger_key = strangers.issue("stranger")
        for wrong in (
            known._replace(ca=strangers.ca),
            Tls(ca, stranger_cert, stranger_key),
            Tls(ca),
            PLAIN,
        ):
            with pytest.raises(Unreachable) as caught:
                async with opened(cluster, "tls", call_ms=1_000, tls=wrong):
                    pass
            assert "\n" not in str(caught.value)
        with pytest.raises(StoreUnusable, match=r"missing\.pem"):
            async with opened(cluster, "tls", tls=Tls(tmp_path / "missing.pem")):
                pass


@needs_etcd
async def test_who_may_not_is_told_so_in_one_line(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        async with opened(cluster, "auth") as store:
            await store.put("/a", b"1")
            cluster.require_login()
            for call in (
                store.get("/a"),
                store.put("/a", b"2"),
                anext(aiter(store.watch("/", from_revision=1))),
            ):
                with pytest.raises(StoreUnusable) as caught:
                    await call
                assert "etcdserver" in str(caught.value)
                assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"endpoints": ()}, "endpoints"),
        ({"endpoints": ("http://host:2379",)}, "HOST:PORT"),
        ({"namespace": "penstock/"}, "namespace"),
        ({"namespace": "/"}, "namespace"),
        ({"cert_path": Path("c.pem")}, "must be set together"),
        ({"cert_path": Path("c.pem"), "key_path": Path("k.pem")}, "CA file"),
    ],
)
async def test_a_configuration_that_cannot_work_is_refused_by_name(
    wrong: dict[str, object], said: str
) -> None:
    with pytest.raises(StoreUnusable, match=said):
        await EtcdStore.open(EtcdConfig(**{"endpoints": ("127.0.0.1:1",), **wrong}))  # type: ignore[arg-type]


async def test_an_etcd_that_is_not_there_is_named_in_time() -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1\b"):
        await EtcdStore.open(EtcdConfig(endpoints=("127.0.0.1:1",), call_ms=1_000))
    assert time.monotonic() - begun < 6
