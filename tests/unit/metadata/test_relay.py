"""A metadata node over another's store, and what a node does whose metadata service is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.metadata.cluster import (
    ACCOUNT,
    CLUSTER,
    QUICK,
    REGION,
    WIRE,
    Cluster,
    delayed,
    make_topic,
    running,
    until,
)

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.metadata.serving.remote_store import RemoteCatalog, RemoteStore
from penstock.metadata.serving.service import MetadataConfig, MetadataService
from penstock.metadata.store import store_id
from penstock.metadata.topics.catalog import (
    PRODUCER_IDS_BLOCK,
    StoredCatalog,
    StoredProducerIds,
    topic_key,
)
from penstock.model.errors import Overloaded, Throttled
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.calls import Caller, CallHandlers
from penstock.wire.internal.faults import Unreachable

RELAY = replace(QUICK, is_relay=True, away_ms=0)


def nobody(node_id: str) -> Caller:
    raise Unreachable(f"Node {node_id} is nowhere.")


class Mirror:
    """A metadata node whose store is another metadata node's."""

    def __init__(self, cluster: Cluster) -> None:
        self.store = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=RELAY)
        self.service = MetadataService(
            self.store,
            node_id="mirror",
            members=lambda: ("mirror",),
            peer=nobody,
            config=MetadataConfig(stale_ms_max=1_000),
            store_stale_ms=lambda: self.store.staleness_ms,
        )

    async def __aenter__(self) -> InternalClient:
        await self.service.start()
        answers = CallHandlers()
        self.service.register(answers)
        self._listener = InternalListener(answers, NodeEnd("mirror", CLUSTER, config=WIRE))
        bound = await self._listener.start("127.0.0.1", 0)
        port = int(bound.rpartition(":")[2])
        self._client = InternalClient("127.0.0.1", port, NodeEnd("frontend", CLUSTER, config=WIRE))
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self.service.stop()
        await self._listener.drain(seconds_max=1.0)
        await self.store.close()


@asynccontextmanager
async def frontend_of(client: Caller) -> AsyncIterator[RemoteCatalog]:
    catalog = RemoteCatalog(
        client, clock=SystemClock(), config=replace(QUICK, stale_ms_max=1_500, away_ms=0)
    )
    await catalog.start()
    try:
        yield catalog
    finally:
        await catalog.stop()


async def test_a_mirror_passes_changes_on_and_tells_of_those_of_others(tmp_path: Path) -> None:
    async with (
        running(tmp_path, "m1") as cluster,
        Mirror(cluster) as client,
        frontend_of(client) as frontend,
    ):
        topic = await frontend.create(make_topic("orders"))
        stored = StoredCatalog(cluster.store)
        await stored.start()
        assert stored.find(ACCOUNT, REGION, "orders") == topic
        changed = await stored.change(ACCOUNT, REGION, "orders", delayed(7))
        await until(lambda: frontend.find(ACCOUNT, REGION, "orders") == changed)
        # Made a moment ago elsewhere: neither the mirror nor the frontend may have heard of it.
        await stored.create(make_topic("new"))
        again = await frontend.change(ACCOUNT, REGION, "new", delayed(9))
        assert again.settings.delay_ms == 9
        await stored.stop()


async def test_a_mirror_says_for_how_long_it_has_heard_nothing(tmp_path: Path) -> None:
    async with (
        running(tmp_path, "m1") as cluster,
        Mirror(cluster) as client,
        frontend_of(client) as frontend,
    ):
        topic = await frontend.create(make_topic("orders"))
        back: list[int] = []
        frontend.store.on_back(lambda: back.append(1))
        await cluster.nodes["m1"].cut_off()
        await until(lambda: frontend.store.staleness_ms > 1_500)
        assert frontend.find(ACCOUNT, REGION, "orders") == topic
        assert frontend.trouble is not None
        with pytest.raises(Throttled):
            frontend.find(ACCOUNT, REGION, "unheard-of")
        # Nor does the mirror say that there is none: it might have been made since.
        key = topic_key(ACCOUNT, REGION, "unheard-of")
        with pytest.raises(Overloaded):
            await frontend._look_name(key, ACCOUNT, REGION, "unheard-of")
        with pytest.raises(Overloaded):
            await frontend.create(make_topic("more"))
        await cluster.nodes["m1"].listen()
        await until(lambda: frontend.trouble is None and bool(back))
        await frontend.create(make_topic("more"))
        assert frontend.find(ACCOUNT, REGION, "unheard-of") is None


async def test_a_service_that_cannot_start_yet_is_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path, "m1") as cluster:
        await cluster.nodes["m1"].cut_off()
        mirror = Mirror(cluster)
        with pytest.raises(Overloaded):
            await mirror.service.start()
        await cluster.nodes["m1"].listen()
        await until(lambda: cluster.nodes["m1"].listener is not None)
        await asyncio.sleep(0.1)  # the pause of a client that was refused
        async with mirror as client, frontend_of(client) as frontend:
            begun = asyncio.get_running_loop().time()
            await frontend.create(make_topic("orders"))
            # A watch that waits is a watch that is not answered over and over.
            before = mirror.service.watcher_count
            assert before > 0
            assert asyncio.get_running_loop().time() - begun < 5


async def test_once_the_service_is_known_to_be_away_nobody_waits_to_hear_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "m1") as cluster:
        config = replace(QUICK, away_ms=50)
        store = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=config)
        back: list[int] = []
        store.on_back(lambda: back.append(1))
        catalog = StoredCatalog(store)
        await catalog.start()
        await cluster.nodes["m1"].cut_off()
        await until(lambda: store.trouble is not None)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.06)
        took = []
        for _ in range(50):
            begun = loop.time()
            with pytest.raises(Unreachable, match="is unreachable"):
                await catalog.create(make_topic("more"))
            took.append(loop.time() - begun)
        assert sorted(took)[25] < 0.05  # whoever waits does so each time
        assert not back
        await cluster.nodes["m1"].listen()
        await until(lambda: bool(back))
        await catalog.create(make_topic("more"))
        await store.close()
        await catalog.stop()


async def test_producer_ids_are_never_given_twice_by_nodes_that_share_a_service(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "m1", "m2") as cluster:
        stores = [
            RemoteStore(cluster.caller(name), clock=SystemClock(), config=QUICK)
            for name in ("m1", "m2", "m1")
        ]
        makers = [StoredProducerIds(store) for store in stores]

        async def some(maker: StoredProducerIds) -> list[int]:
            return [await maker.next_id() for _ in range(PRODUCER_IDS_BLOCK + 10)]

        given = [one for ids in await asyncio.gather(*map(some, makers)) for one in ids]
        assert len(set(given)) == len(given) == 3 * (PRODUCER_IDS_BLOCK + 10)


async def test_a_store_has_one_name_for_good(tmp_path: Path) -> None:
    async with running(tmp_path, "m1") as cluster:
        drawn = iter((b"a" * 12, b"b" * 12, b"c" * 12))
        names = await asyncio.gather(
            *(store_id(cluster.store, lambda _size: next(drawn)) for _ in range(3))
        )
        assert len(set(names)) == 1
        assert await store_id(cluster.store, lambda _size: b"d" * 12) == names[0]
