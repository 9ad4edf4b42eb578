"""``/api/v1/cluster`` over real registrations, rows and managers."""

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.manager.cluster import Cluster, topic, until

from penstock.frontend.admin.api import ADMIN_ROUTES, AdminApi, entry_of, subject_of
from penstock.frontend.admin.request import Call, Context, Info
from penstock.manager.decisions import Policy
from penstock.metadata.cluster_entries import PartitionKey
from penstock.metadata.sqlite import SqliteStore
from penstock.model.identity import Caller
from penstock.node.cluster.cluster_admin import ClusterAdmin
from penstock.replication.row import NO_NODE

from .conftest import Office

LOOP_SECONDS_MAX = 0.02  # of CPU time that a request may keep the loop
TENANT = "1" * 12  # of the topics in the cluster
# Nothing moves for the sake of balance: what does move was asked for.
POLICY = Policy(replication_factor=3, in_sync_min=2, is_balancing=False)


class Ward(Office):
    """An office whose node belongs to a cluster."""

    cluster: Cluster
    admin: ClusterAdmin

    def join(self, cluster: Cluster) -> None:
        node = next(iter(cluster.nodes.values()))
        self.cluster = cluster
        self.admin = ClusterAdmin(
            node.line,
            node.view,
            node.catalog,
            node=node.number,
            policy=cluster.policy,
            level=node.level,
            manager=lambda: NO_NODE if node.manager is None else node.manager.manager,
        )
        self.api = AdminApi(
            Context(
                broker=self.backend,
                catalog=self.catalog,
                everything=node.catalog,
                meter=self.meter,
                health=self.health,
                clock=self.clock,
                info=Info("1", "n", "prod", TENANT, "us-east-1", "/data", 0),
                identities=self.identities,
                cluster=self.admin,
            ),
            is_auth_on=True,
        )

    async def state(self) -> Any:
        return await self.ok("root", "GET", "cluster")

    async def partitions(self, query: str = "") -> list[Any]:
        found = await self.ok("root", "GET", f"cluster/partitions{query}")
        return list(found["partitions"])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    store = await SqliteStore.open(tmp_path / "cluster.db")
    cluster = Cluster(store, policy=POLICY)
    yield cluster
    await cluster.stop()
    await store.close()


@pytest.fixture
async def ward(office: Office, cluster: Cluster) -> Ward:
    """Three nodes, the topic ``a`` on all of them."""
    for number in (1, 2, 3):
        await cluster.join(number, rack=f"r{number}")
    await cluster.create(topic("a", 6))
    ward = Ward(office.catalog, office.identities)
    ward.secrets = office.secrets
    ward.join(cluster)
    return ward


class TestWhoMay:
    async def test_only_operators_see_or_change_it(self, ward: Ward) -> None:
        for method, path in (
            ("GET", "cluster"),
            ("GET", "cluster/partitions"),
            ("GET", "cluster/safety"),
            ("POST", "cluster/nodes/1/drain"),
            ("POST", "cluster/nodes/1/undrain"),
            ("POST", "cluster/nodes/1/decommission"),
            ("POST", "cluster/rebalance"),
            ("POST", "cluster/place"),
            ("POST", "cluster/unclean-elect"),
        ):
            body: dict[str, Any] | None = None if method == "GET" else {}
            assert (await ward.ask("", method, path, body)).status == 401, path
            assert (await ward.ask("ann", method, path, body)).status == 403, path
        assert not (await ward.state())["nodes"][0]["is_draining"]

    async def test_a_node_by_itself_says_so(self, office: Office) -> None:
        assert "not part of a cluster" in await office.no(404, "root", "GET", "cluster")

    async def test_a_node_that_has_not_heard_of_it_yet_asks_for_patience(self, ward: Ward) -> None:
        ward.admin.manager = lambda: None  # as before its view is there
        assert "starting" in await ward.no(503, "root", "GET", "cluster")

    async def test_every_change_is_noted_with_what_it_was_about(self, ward: Ward) -> None:
        ward.api._is_audited = True  # as a node is that has nowhere to note it yet
        changes = [
            route for route in ADMIN_ROUTES if "cluster" in route.path and route.method != "GET"
        ]
        assert len(changes) == 7
        for route in changes:
            path = "/".join(route.path[2:]).replace("*", "2")
            assert (await ward.ask("root", "POST", path, {})).status == 503, path
            assert route.noted is not None
            segments = tuple(f"api/v1/{path}".split("/"))
            call = Call(ward.api._context, segments, {}, b"{}", caller=Caller(TENANT, "r"))
            subject = subject_of(call, route.noted)
            entry = entry_of(call, route.noted, subject, code="")
            about = "level" if "upgrade" in path else "partitions"
            about = "node/2" if "nodes" in path else about
            assert entry.resource.endswith(f":cluster/{about}"), path


class TestLevel:
    async def test_is_shown_and_not_raised_by_a_body_that_makes_no_sense(self, ward: Ward) -> None:
        assert (await ward.state())["level"] == {"in_force": 1, "wanted": None, "latest": 1}
        for body in ({"to": 0}, {"to": "2"}, {"to": 10**9}, {"level": 2}, {"dry_run": 1}):
            assert "is not valid" in await ward.no(400, "root", "POST", "cluster/upgrade", body)
        assert "node 1" in await ward.no(409, "root", "POST", "cluster/upgrade", {"to": 9})
        told = await ward.ok("root", "POST", "cluster/upgrade", {"to": 9, "dry_run": True})
        assert (told["is_done"], len(told["obstacles"])) == (False, 3)


class TestState:
    async def test_shows_nodes_and_a_healthy_cluster(self, ward: Ward) -> None:
        found = await ward.state()
        assert found["node"] == 1
        assert found["manager"] in (1, 2, 3)
        assert found["trouble"] is None
        assert found["partitions"] == {
            "total": 6,
            "under_replicated": 0,
            "below_minimum": 0,
            "leaderless": 0,
            "lost": 0,
            "moving": 0,
            "missing": 0,
            "orphaned": 0,
        }
        assert [one["node"] for one in found["nodes"]] == [1, 2, 3]
        assert [one["rack"] for one in found["nodes"]] == ["r1", "r2", "r3"]
        assert all(one["is_alive"] and one["replicas"] == 6 for one in found["nodes"])
        assert sum(one["leaders"] for one in found["nodes"]) == 6
        assert [one["node"] for one in found["nodes"] if one["is_manager"]] == [found["manager"]]

    async def test_of_a_node_that_is_away_keeps_its_name(self, ward: Ward) -> None:
        await ward.cluster.kill(3)
        found = await ward.state()
        away = found["nodes"][2]
        assert (away["node"], away["name"], away["is_alive"]) == (3, "n3", False)
        assert found["partitions"]["under_replicated"] == 6
        assert found["partitions"]["below_minimum"] == 0
        await ward.cluster.kill(2)
        found = await ward.state()
        assert found["partitions"]["below_minimum"] == 6

    async def test_is_told_from_memory_while_the_store_is_away(self, ward: Ward) -> None:
        await ward.ok("root", "POST", "cluster/nodes/3/drain", {})
        await ward.state()
        ward.cluster.nodes[1].line.is_cut = True
        found = await ward.state()
        assert "the line is cut" in found["trouble"]
        assert found["partitions"]["total"] == 6
        assert found["nodes"][2]["is_draining"], "as it was heard last"
        assert "the line is cut" in await ward.no(503, "root", "POST", "cluster/rebalance", {})
        ward.cluster.nodes[1].line.is_cut = False

    async def test_a_move_is_no_lack_of_replicas(self, ward: Ward) -> None:
        await ward.cluster.join(4)
        for node in ward.cluster.nodes.values():
            node.is_catching_up = False  # so that it does not end
        body = {"topic": "a", "partition": 2, "replicas": [1, 2, 4]}
        assert (await ward.ok("root", "POST", "cluster/place", body))["moving_to"] == [1, 2, 4]
        await until(lambda: len(ward.cluster.row("a", 2).replicas) == 4)
        shown = [one for one in await ward.partitions("?topic=a") if one["partition"] == 2]
        assert shown[0]["states"] == ["moving"]
        assert shown[0]["moving_to"] == [1, 2, 4]
        assert (await ward.state())["partitions"]["under_replicated"] == 0


class TestPartitions:
    async def test_come_in_pages_that_leave_nothing_out(self, ward: Ward) -> None:
        await ward.cluster.create(topic("b", 3))
        found: list[tuple[str, int]] = []
        after = ""
        while True:
            page = await ward.ok("root", "GET", f"cluster/partitions?limit=2{after}")
            assert len(page["partitions"]) <= 2
            found += [(one["topic"], one["partition"]) for one in page["partitions"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert found == [*(("a", n) for n in range(6)), *(("b", n) for n in range(3))]

    async def test_are_found_by_topic_node_and_state(self, ward: Ward) -> None:
        await ward.cluster.create(topic("single", 3, replication_factor="1"))
        assert len(await ward.partitions("?topic=a")) == 6
        on_two = await ward.partitions("?topic=single&node=2")
        assert [one["replicas"] for one in on_two] == [[2]]
        assert not await ward.partitions("?state=leaderless")
        await ward.cluster.kill(2)
        alone = await ward.partitions("?state=leaderless")
        await until(lambda: 2 not in ward.cluster.leaders("a"))
        alone = await ward.partitions("?state=leaderless")
        assert [(one["topic"], one["leader"]) for one in alone] == [("single", None)]
        assert len(await ward.partitions("?state=under_replicated")) == 7

    async def test_counts_are_those_of_the_list(self, ward: Ward) -> None:
        await ward.cluster.kill(3)
        await until(lambda: 3 not in ward.cluster.leaders("a"))
        key = PartitionKey("a", 1)
        for node in ward.cluster.nodes.values():
            node.is_catching_up = False  # so that it stays lost
        row = ward.cluster.row("a", 1)
        await ward.cluster.change_row(key, lost=row.in_sync)
        await until(lambda: not ward.cluster.row("a", 1).whole)
        counts = (await ward.state())["partitions"]
        assert counts["lost"] == 1
        for state, count in counts.items():
            if state != "total":
                assert len(await ward.partitions(f"?state={state}")) == count, state

    @pytest.mark.parametrize(
        ("query", "status", "words"),
        [
            ("?topic=nope", 404, "does not exist"),
            ("?state=odd", 400, "under_replicated, below_minimum"),
            ("?after=x", 400, "'after' must be the 'next' value"),
            ("?node=0", 400, "node must be a number"),
            ("?limit=1001", 400, "from 1 to 1000"),
            ("?colour=red", 400, "colour"),
        ],
    )
    async def test_mistakes_are_named(
        self, ward: Ward, query: str, status: int, words: str
    ) -> None:
        assert words in await ward.no(status, "root", "GET", f"cluster/partitions{query}")


class TestSafety:
    async def test_any_of_three_may_stop_when_all_are_in_sync(self, ward: Ward) -> None:
        found = await ward.ok("root", "GET", "cluster/safety")
        assert found["is_safe"]
        assert [one["node"] for one in found["nodes"]] == [1, 2, 3]

    async def test_with_one_away_no_other_may(self, ward: Ward) -> None:
        await ward.cluster.kill(3)
        await until(lambda: 3 not in ward.cluster.leaders("a"))
        found = await ward.ok("root", "GET", "cluster/safety?node=2")
        assert not found["is_safe"]
        assert found["nodes"] == [{"node": 2, "unavailable": 0, "unsendable": 6, "only_here": 0}]
        assert "no node 3" in await ward.no(404, "root", "GET", "cluster/safety?node=3")

    async def test_a_topic_with_one_replica_keeps_nobody_from_stopping(self, ward: Ward) -> None:
        await ward.cluster.create(topic("single", 3, replication_factor="1"))
        found = await ward.ok("root", "GET", "cluster/safety?node=1")
        assert found["is_safe"]
        assert found["nodes"][0]["only_here"] == 1

    async def test_a_yes_is_made_sure_of_in_the_store(self, ward: Ward) -> None:
        """What this node remembers may be older than what is so."""
        one = ward.cluster.nodes[1]
        leader = ward.cluster.row("a", 0).leader
        await one.view.stop()
        for node in ward.cluster.nodes.values():
            node.is_catching_up = False  # a leader would put the replicas back in sync
        key = PartitionKey("a", 0)
        await ward.cluster.change_row(key, in_sync=frozenset({leader}))
        assert not (await ward.ok("root", "GET", "cluster/safety"))["is_safe"]
        one.line.is_cut = True
        assert "cut" in await ward.no(503, "root", "GET", "cluster/safety")
        one.line.is_cut = False


class TestDrains:
    async def test_empty_a_node_and_give_it_back(self, ward: Ward) -> None:
        await ward.cluster.join(4)
        told = await ward.ok("root", "POST", "cluster/nodes/2/decommission", {})
        assert told["is_draining"]
        assert told["stuck"] == 0
        await until(lambda: 2 not in ward.cluster.replicas("a"))
        shown = next(one for one in (await ward.state())["nodes"] if one["node"] == 2)
        assert (shown["is_draining"], shown["replicas"]) == (True, 0)
        told = await ward.ok("root", "POST", "cluster/nodes/2/undrain", {})
        assert told == {"node": 2, "is_draining": False, "replicas": 0, "leaders": 0, "stuck": 0}

    async def test_that_could_not_end_are_no_way_to_decommission(self, ward: Ward) -> None:
        words = await ward.no(409, "root", "POST", "cluster/nodes/2/decommission", {})
        assert "6 of its partitions have no other node to move to" in words
        assert not (await ward.state())["nodes"][1]["is_draining"]
        told = await ward.ok("root", "POST", "cluster/nodes/2/drain", {})
        assert told["stuck"] == 6
        await until(lambda: 2 not in ward.cluster.leaders("a"))

    async def test_are_of_nodes_that_exist(self, ward: Ward) -> None:
        for verb in ("drain", "undrain"):
            words = await ward.no(404, "root", "POST", f"cluster/nodes/9/{verb}", {})
            assert "node 9" in words.lower()
        for odd in ("two", "0", "-1", "9" * 30):
            path = f"cluster/nodes/{odd}/drain"
            assert "must be a number" in await ward.no(400, "root", "POST", path, {})


class TestElections:
    async def test_rebalancing_gives_partitions_back_to_their_first_replica(
        self, ward: Ward
    ) -> None:
        row = ward.cluster.row("a", 0)
        second = row.replicas[1]
        incarnation = ward.cluster.view.incarnations[second]
        await ward.cluster.change_row(
            PartitionKey("a", 0), leader=second, leader_incarnation=incarnation, epoch=row.epoch + 1
        )
        told = await ward.ok("root", "POST", "cluster/rebalance", {})
        assert told == {"leaders_changed": 1}
        await until(lambda: ward.cluster.row("a", 0).leader == row.replicas[0])

    async def test_an_unclean_one_wants_the_loss_to_be_accepted(self, ward: Ward) -> None:
        row = ward.cluster.row("a", 3)
        chosen = row.replicas[2]
        body = {"topic": "a", "partition": 3, "node": chosen}
        words = await ward.no(400, "root", "POST", "cluster/unclean-elect", body)
        assert "accept_data_loss" in words
        assert ward.cluster.row("a", 3) == row
        body["accept_data_loss"] = True
        await ward.ok("root", "POST", "cluster/unclean-elect", body)
        await until(lambda: ward.cluster.row("a", 3).epoch > row.epoch)
        body["node"] = 9
        words = await ward.no(400, "root", "POST", "cluster/unclean-elect", body)
        assert "no replica" in words

    async def test_places_are_checked(self, ward: Ward) -> None:
        for replicas, words in (
            ([], "at least one node"),
            ([1], "at least 2 replicas"),
            ([1, 9], "node 9"),
        ):
            body = {"topic": "a", "partition": 0, "replicas": replicas}
            assert words in await ward.no(400, "root", "POST", "cluster/place", body)
        body = {"topic": "a", "partition": 77, "replicas": [1, 2]}
        assert "no partition" in await ward.no(404, "root", "POST", "cluster/place", body)
        body = {"topic": "a", "partition": "x", "replicas": [1, 2]}
        assert "partition" in await ward.no(400, "root", "POST", "cluster/place", body)


@pytest.mark.slow
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer takes most of the time")
async def test_many_partitions_do_not_hold_up_the_loop(ward: Ward) -> None:
    """Clients of the same node are served meanwhile."""
    await ward.cluster.write_rows("a", 5_000, ward.cluster.row("a", 0))
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    gc.collect()
    gc.disable()  # what the other tests have left behind is not measured
    try:
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        reply = await ward.ask("root", "GET", "cluster")
        await asyncio.sleep(0)
        ticking.cancel()
    finally:
        gc.enable()
    assert json.loads(reply.body)["partitions"]["total"] == 5_000
    assert 0 < longest < LOOP_SECONDS_MAX
