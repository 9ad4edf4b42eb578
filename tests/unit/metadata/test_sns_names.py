"""SNS topics in the catalog of a node with a store and of nodes that ask metadata nodes, and
subscriptions by way of three metadata nodes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metadata.cluster import ACCOUNT, REGION, Cluster, make_topic, running
from tests.unit.metadata.test_subscriptions import PATIENT, TOPIC, Node, until
from tests.unit.metadata.test_subscriptions import make as make_subscription

from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.serving.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.store import Txn
from penstock.metadata.topics.catalog import StoredCatalog, topic_key
from penstock.metadata.topics.sns_names import SnsNames
from penstock.model.errors import InvalidRequest, Throttled
from penstock.model.ports import Catalog
from penstock.model.topic import Kind, SnsTopic, Topic
from penstock.telemetry.clock import SystemClock


def make(name: str, *, stream: str = "", at_ms: int = 1_000, topic_id: str = "") -> Topic:
    topic = make_topic(stream or f"sns.{name}", topic_id=topic_id)
    return msgspec.structs.replace(topic, kind=Kind.STREAM, sns=SnsTopic(name, at_ms))


def names(catalog: Catalog, start: int = 0, count: int | None = None) -> list[str]:
    found = catalog.sns_topics(ACCOUNT, REGION, start=start, count=count)
    return [topic.sns.name for topic in found if topic.sns is not None]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path, "m1", "m2", "m3") as cluster:
        yield cluster


async def test_sns_topics_are_found_by_name_and_listed_in_order_on_all_nodes(
    cluster: Cluster,
) -> None:
    stored = StoredCatalog(cluster.store)
    await stored.start()
    near = await cluster.frontend("m1", config=PATIENT)
    far = await cluster.frontend("m2", config=PATIENT)
    made = [await near.create(make(name)) for name in ("b", "c", "a.fifo")]
    await near.create(make_topic("orders"))
    for catalog in (stored, near, far):
        await until(lambda catalog=catalog: len(names(catalog)) == 3)  # type: ignore[misc]
        assert names(catalog) == ["a.fifo", "b", "c"]
        assert names(catalog, 1, 1) == ["b"]
        assert names(catalog, 2) == ["c"]
        assert catalog.find_sns(ACCOUNT, REGION, "b") == made[0]
        assert catalog.find(ACCOUNT, REGION, "sns.b") == made[0]
        assert catalog.find_sns(ACCOUNT, REGION, "orders") is None
        assert catalog.find_sns("222222222222", REGION, "b") is None
        assert names(catalog, 3) == []
    changed = await far.change(
        ACCOUNT,
        REGION,
        "sns.b",
        lambda topic: msgspec.structs.replace(
            topic, sns=SnsTopic("b", 1_000, attributes={"DisplayName": "B"})
        ),
    )
    await far.delete(ACCOUNT, REGION, "sns.c", now_ms=5)
    for catalog in (stored, near, far):
        await until(lambda catalog=catalog: names(catalog) == ["a.fifo", "b"])  # type: ignore[misc]
        await until(
            lambda catalog=catalog: catalog.find_sns(ACCOUNT, REGION, "b") == changed  # type: ignore
        )
    await stored.stop()


async def test_of_two_streams_that_claim_a_name_the_earlier_has_it(cluster: Cluster) -> None:
    """Two nodes make SNS topics of existing streams at the same moment."""
    near = await cluster.frontend("m1", config=PATIENT)
    far = await cluster.frontend("m2", config=PATIENT)
    late, early = make("orders", stream="x", at_ms=2_000), make("orders", stream="y", at_ms=1_999)
    await asyncio.gather(near.create(late), far.create(early))
    for catalog in (near, far):
        await until(
            lambda catalog=catalog: catalog.find_sns(ACCOUNT, REGION, "orders") == early  # type: ignore
        )
        await until(lambda catalog=catalog: len(catalog.all_topics()) == 2)  # type: ignore[misc]
        assert names(catalog) == ["orders"]
    plain = await near.change(
        ACCOUNT, REGION, "y", lambda topic: msgspec.structs.replace(topic, sns=None)
    )
    assert plain.sns_arn is None
    for catalog in (near, far):
        await until(
            lambda catalog=catalog: catalog.find_sns(ACCOUNT, REGION, "orders") == late  # type: ignore
        )


topics = st.builds(
    make,
    st.sampled_from(["a", "b", "c"]),
    stream=st.just("s"),
    at_ms=st.integers(1, 3),
    topic_id=st.sampled_from(["1", "2", "3"]),
)


@given(st.lists(topics, max_size=12))
def test_the_index_is_that_of_a_naive_reader(changes: list[Topic]) -> None:
    index, present = SnsNames(), dict[str, Topic]()
    for topic in changes:
        before = present.pop(topic.topic_id, None)
        if before is not None:
            index.remove(before)
        if before is None or topic.sns == before.sns:  # otherwise it is deleted
            index.add(topic)
            present[topic.topic_id] = topic
        claims: dict[str, list[tuple[int, str]]] = {}
        for one in present.values():
            assert one.sns is not None
            claims.setdefault(one.sns.name, []).append((one.sns.created_at_ms, one.topic_id))
        found = [(t.sns.name, t.topic_id) for t in index.topics(ACCOUNT, REGION) if t.sns]
        assert found == [(name, min(claims[name])[1]) for name in sorted(claims)]
    for topic in present.values():
        index.remove(topic)
    assert not index._claims
    assert not index._names


async def test_with_the_service_down_an_unknown_name_may_exist(cluster: Cluster) -> None:
    impatient = RemoteConfig(watch_ms=100, call_ms=30_000, stale_ms_max=300)
    frontend = await cluster.frontend("m1", config=impatient)
    topic = await frontend.create(make("orders"))
    for node in cluster.nodes.values():
        await node.cut_off()
    await until(lambda: frontend.trouble is not None)
    assert frontend.find_sns(ACCOUNT, REGION, "orders") == topic
    with pytest.raises(Throttled, match="cannot be looked up"):
        frontend.find_sns(ACCOUNT, REGION, "unknown")
    assert names(frontend) == ["orders"]


@pytest.mark.parametrize("name", ["", "a/b", "a.b", ".fifo", "x" * 257, "ä"])
def test_the_metadata_service_takes_valid_sns_names_only(name: str) -> None:
    key = topic_key(ACCOUNT, REGION, "s")
    good, bad = (msgspec.json.encode(make(one, stream="s")) for one in ("x" * 256, name))
    check_txn(Txn(compare=[(key, 0)], puts=[(key, good)]))
    with pytest.raises(InvalidRequest, match="invalid SNS name"):
        check_txn(Txn(compare=[(key, 0)], puts=[(key, bad)]))


async def test_subscriptions_go_on_by_way_of_another_metadata_node(cluster: Cluster) -> None:
    stores = [
        RemoteStore(cluster.caller(*order), clock=SystemClock(), config=PATIENT)
        for order in (("m1", "m2"), ("m3",))
    ]
    near, far = [await Node(store).start() for store in stores]
    first = await near.stored.create(make_subscription())
    await until(lambda: far.stored.find(first.id) == first)
    assert (await far.stored.create(make_subscription())).id == first.id
    await cluster.leave("m1")
    second = await far.stored.create(make_subscription("https://b.example/"))
    await until(lambda: near.stored.find(second.id) == second)
    await near.stored.delete(first.id)
    await until(lambda: far.ids(TOPIC) == [second.id])
    for node, store in zip((near, far), stores, strict=True):
        await store.close()
        await node.stop()
