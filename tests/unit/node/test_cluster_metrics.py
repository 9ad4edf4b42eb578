"""The metrics of a cluster: what a node tells, and that the documents name all of it."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.broker.replicas.stage import Cluster, ClusterNode, cluster, until

from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.calls.remote.broker import DONE, REFUSED, UNKNOWN, RemoteBroker
from penstock.manager.decisions import DecisionKind
from penstock.manager.in_cluster import Manager
from penstock.membership.cluster_view import ClusterLevel, ClusterView
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey, encode_entry, node_key
from penstock.metadata.sqlite import SqliteStore
from penstock.model.calls import CancelMove
from penstock.model.errors import InvalidRequest
from penstock.model.levels import LEVEL_MAX, Levels
from penstock.node.cluster.cluster_metrics import cluster_samples
from penstock.node.cluster.cluster_role import ClusterPeers, ClusterRole
from penstock.node.process.node_setup import NodeSetup
from penstock.replication.election import Standing
from penstock.telemetry import families
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.families import FAMILIES
from penstock.telemetry.metrics import Meter
from penstock.wire.internal.broker_calls import RULES, Rule, wire_of
from penstock.wire.internal.calls import CallerInfo, CallHandlers
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

ROOT = Path(__file__).parents[3]
Shown = dict[tuple[str, tuple[str, ...]], float]


def setup_of(name: str) -> NodeSetup:
    internal = SimpleNamespace(cluster="test")
    parts = SimpleNamespace(
        name=name,
        config=SimpleNamespace(internal=internal),
        certificates=SimpleNamespace(nodes=None),
        worker_secret=None,
    )
    return cast(NodeSetup, parts)


class Watched:
    """One node of a staged cluster with all that its metrics are about."""

    def __init__(self, found: Cluster, node: ClusterNode) -> None:
        self.level = ClusterLevel(found.store)
        self.peers = ClusterPeers(node.view, setup_of(str(node.number)), Levels())
        self.manager = Manager(
            found.store,
            node.number,
            view=node.view,
            catalog=node.catalog,
            lease=lambda: node.membership.lease,
            ask_standings=self._nobody,
            clock=SystemClock(),
            level=self.level,
        )
        self._meter = Meter()
        role = SimpleNamespace(
            level=self.level,
            listener=node.listener,
            manager=self.manager,
            membership=node.membership,
            peers=self.peers,
            replicators=node.replicators,
            view=node.view,
        )
        self._meter.register_collector(lambda: cluster_samples(cast(ClusterRole, role)))

    async def _nobody(
        self, node: int, _keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, Standing]:
        raise Unreachable(f"node {node}")

    async def start(self) -> "Watched":
        await self.level.start()
        return self

    async def stop(self) -> None:
        await self.manager.stop()
        await self.peers.close()
        await self.level.stop()

    def shown(self) -> Shown:
        text = self._meter.render().decode()
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, *labels: str) -> float:
        return self.shown()[f"penstock_{name}", labels]


async def watched(found: Cluster, number: int) -> Watched:
    return await Watched(found, found.nodes[number]).start()


async def test_a_node_tells_what_it_leads_and_holds_and_how_that_is(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found, AsyncExitStack() as stack:
        topic, key = await found.topic()
        await found.sent(1, topic, "a", "b")
        await found.alike(key)
        leading, following = await watched(found, 1), await watched(found, 2)
        stack.push_async_callback(leading.stop)
        stack.push_async_callback(following.stop)
        assert (leading.value("partitions_led"), following.value("partitions_led")) == (1, 0)
        assert (leading.value("replicas"), following.value("replicas")) == (1, 1)
        assert leading.value("partitions_under_replicated") == 0
        assert leading.value("partitions_below_minimum") == 0
        await until(lambda: leading.value("replica_lag_records") == 0)
        assert leading.value("replicated_bytes_total", "out") > 0
        assert following.value("replicated_bytes_total", "in") > 0
        assert leading.value("internal_connections", "in") >= 2
        assert leading.value("store_revision") > 0
        assert 0 < leading.value("lease_left_seconds") <= 6
        assert leading.value("feature_level") == 1  # the cluster was there before it
        assert leading.value("feature_level_max") == LEVEL_MAX
        for number in (2, 3):
            await found.nodes[number].kill()
        await until(lambda: leading.value("partitions_below_minimum") == 1)
        assert leading.value("partitions_under_replicated") == 1


async def test_the_manager_alone_tells_of_the_whole_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found, AsyncExitStack() as stack:
        _topic, _key = await found.topic()
        one, two = await watched(found, 1), await watched(found, 2)
        stack.push_async_callback(one.stop)
        stack.push_async_callback(two.stop)
        await one.manager.start()
        await until(lambda: one.manager.active is not None)
        await two.manager.start()
        assert (one.value("manager"), two.value("manager")) == (1, 0)
        await until(lambda: one.shown().get(("penstock_cluster_partitions", ("led",))) == 1)
        assert one.value("cluster_partitions", "leaderless") == 0
        assert one.value("manager_moves") == 0
        assert one.value("manager_tenure_seconds") >= 0
        await until(lambda: one.value("manager_passes_total") > 0)
        passes = one.value("manager_passes_total")
        told = {name for name, _ in two.shown()}
        assert "penstock_cluster_partitions" not in told
        assert "penstock_manager_tenure_seconds" not in told
        reasons = {labels[0] for name, labels in one.shown() if name == "penstock_elections_total"}
        kinds = {
            labels[0] for name, labels in one.shown() if name == "penstock_partition_changes_total"
        }
        assert reasons | kinds == {kind.value for kind in DecisionKind}
        assert not reasons & kinds
        await one.manager.stop()
        assert one.value("manager_passes_total") >= passes  # what was counted stays so


async def test_calls_are_counted_by_what_became_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    answers = CallHandlers()
    never = asyncio.Event()

    async def cancel(request: Any, _caller: CallerInfo) -> tuple[None]:
        if request.task_id == REFUSED:
            raise InvalidRequest("no")
        if request.task_id == UNKNOWN:
            await never.wait()
        return (None,)

    answers.add(wire_of(CancelMove), cancel)
    listener = InternalListener(answers, NodeEnd("n2", "test"))
    entry = NodeEntry(2, "n2", await listener.start("127.0.0.1", 0))
    await store.put(node_key(2), encode_entry(entry))
    view = ClusterView(store)
    await view.start()
    peers = ClusterPeers(view, setup_of("n1"), Levels())
    there, nowhere = (
        RemoteBroker(
            partial(peers.caller, node),
            moves=lambda _arn: (),
            find_share=lambda _source, _group: None,
            outcomes=peers.passed_on,
        )
        for node in (2, 9)
    )
    assert await there.call(CancelMove(DONE)) is None
    with pytest.raises(InvalidRequest):
        await there.call(CancelMove(REFUSED))
    monkeypatch.setitem(cast(Any, RULES), CancelMove, Rule(number=0x0209, call_ms=50))
    with pytest.raises(DeadlineExceeded):
        await there.call(CancelMove(UNKNOWN))
    with pytest.raises(Unreachable):
        await nowhere.call(CancelMove(DONE))
    assert peers.passed_on == {"done": 1, "refused": 1, "unknown": 1, "unreachable": 1}
    assert peers.connection_count == len(listener.connections) == 1
    await peers.close()
    assert peers.connection_count == 0
    await listener.drain(seconds_max=0)
    await view.stop()
    await store.close()


# ── Documents ────────────────────────────────────────────────────────────────────────────────

CLUSTER = tuple(
    family.name
    for family in FAMILIES[
        FAMILIES.index(families.PARTITIONS_LED) : FAMILIES.index(families.LEASE_LEFT) + 1
    ]
)


def test_every_metric_of_a_cluster_is_in_the_operators_table_and_no_other() -> None:
    text = (ROOT / "docs/operate.md").read_text("utf-8")
    table = text.partition("### Metrics of a cluster")[2].partition("\n#")[0]
    named = re.findall(r"^\| `(penstock_\w+)", table, re.MULTILINE)
    assert sorted(named) == sorted(CLUSTER)
    labels = dict(re.findall(r"^\| `(penstock_\w+)\{(\w+)\}`", table, re.MULTILINE))
    of_a_cluster = [family for family in FAMILIES if family.name in CLUSTER]
    assert labels == {family.name: family.labels[0] for family in of_a_cluster if family.labels}


def test_documents_name_only_metrics_that_there_are() -> None:
    fixtures = {"penstock_server"}  # of the pytest plugin
    known = {family.name for family in FAMILIES} | fixtures
    for path in sorted((ROOT / "docs").glob("*.md")):
        named = set(re.findall(r"`(penstock_[a-z0-9_]+)[`{]", path.read_text("utf-8")))
        assert named <= known, path.name
