"""What an operator may ask for, on a real store with managers at work."""

import asyncio

import msgspec
import pytest
from tests.unit.manager.cluster import Cluster, is_empty, is_safe_to_stop, topic, until

from penstock.manager import operator_requests
from penstock.manager.cluster_state import read_cluster_state
from penstock.manager.decisions import Policy
from penstock.manager.overview import overview, states_of
from penstock.metadata.cluster_entries import PartitionKey, placement_key
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.replication.row import Change

KEY = PartitionKey("a", 0)


async def started(cluster: Cluster, nodes: int, *, partitions: int = 8, factor: int = 3) -> None:
    for number in range(1, nodes + 1):
        await cluster.join(number)
    await cluster.create(topic("a", partitions, replication_factor=str(factor)))


class TestDrains:
    async def test_empty_a_node_and_keep_it_empty_until_taken_back(self, cluster: Cluster) -> None:
        await started(cluster, 4, partitions=20)
        await operator_requests.drain(cluster.store, 2)
        await until(lambda: 2 not in cluster.replicas("a"))
        assert cluster.replicas("a") == {1: 20, 3: 20, 4: 20}
        state = await read_cluster_state(cluster.store)
        assert is_empty(state, 2)
        assert not state.requests, "all moves have ended"
        await cluster.create(topic("b", 5))
        assert 2 not in cluster.replicas("b")
        await operator_requests.undrain(cluster.store, 2)
        await until(lambda: cluster.replicas("a")[2] + cluster.replicas("b")[2] >= 18)

    async def test_move_leaders_first(self, cluster: Cluster) -> None:
        await started(cluster, 3)
        await operator_requests.drain(cluster.store, 3)
        await until(lambda: 3 not in cluster.leaders("a"))
        assert cluster.replicas("a")[3] == 8, "there is no other node for a third replica"

    async def test_replace_a_node_that_is_gone_for_good(self, cluster: Cluster) -> None:
        await started(cluster, 4)
        await cluster.kill(4)
        await operator_requests.drain(cluster.store, 4)
        await until(lambda: 4 not in cluster.replicas("a"))
        assert cluster.replicas("a") == {1: 8, 2: 8, 3: 8}

    async def test_of_a_node_that_never_was_are_refused(self, cluster: Cluster) -> None:
        await started(cluster, 1, factor=1)
        with pytest.raises(NotFound, match="no node 7"):
            await operator_requests.drain(cluster.store, 7)

    async def test_copy_one_partition_at_a_time_between_two_nodes(self, cluster: Cluster) -> None:
        await started(cluster, 4, partitions=24)
        most = {"moves": 0}

        def watch(key: PartitionKey, view: object) -> None:
            pairs = [
                (each.row.leader, node)
                for each in cluster.view.rows.values()
                for node in each.row.replicas
                if node not in each.row.whole
            ]
            most["moves"] = max([most["moves"], *(pairs.count(pair) for pair in set(pairs))])

        cluster.view.on_row(watch)
        await operator_requests.drain(cluster.store, 4)
        await until(lambda: 4 not in cluster.replicas("a"))
        assert most["moves"] == 1


class TestPlaces:
    async def test_are_taken_with_the_first_one_leading(self, cluster: Cluster) -> None:
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 5, partitions=1)
        target = (5, 4, 1)
        await operator_requests.place(cluster.store, KEY, target)
        await until(lambda: cluster.row("a").replicas == target)
        row = cluster.row("a")
        assert row.in_sync == set(target)
        assert row.leader == 5
        entries, _ = await cluster.store.list("/wishes/places/")
        assert not entries

    async def test_change_the_order_alone(self, cluster: Cluster) -> None:
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 3, partitions=1)
        target = cluster.row("a").replicas[::-1]
        await operator_requests.place(cluster.store, KEY, target)
        await until(lambda: cluster.row("a").replicas == target)

    async def test_that_cannot_be_are_refused(self, cluster: Cluster) -> None:
        await started(cluster, 3, partitions=1)
        with pytest.raises(NotFound, match="no partition"):
            await operator_requests.place(cluster.store, PartitionKey("b", 0), (1, 2))
        with pytest.raises(InvalidRequest, match="no node 9"):
            await operator_requests.place(cluster.store, KEY, (1, 2, 9))
        with pytest.raises(InvalidRequest, match="no node twice"):
            await operator_requests.place(cluster.store, KEY, (1, 1))
        with pytest.raises(InvalidRequest, match="at least 2 replicas"):
            await operator_requests.place(cluster.store, KEY, (1,))

    async def test_that_are_given_up_leave_no_replica_too_many(self, cluster: Cluster) -> None:
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 4, partitions=1)
        for node in cluster.nodes.values():
            node.is_catching_up = False
        before = cluster.row("a").replicas
        [other] = {1, 2, 3, 4}.difference(before)
        await operator_requests.place(cluster.store, KEY, (other, *before[:2]))
        await until(lambda: len(cluster.row("a").replicas) == 4)
        await operator_requests.cancel_placement(cluster.store, KEY)
        await until(lambda: len(cluster.row("a").replicas) == 3)
        assert other not in cluster.row("a").replicas, "it was not up to date"

    async def test_that_are_given_up_end_where_they_began(self, cluster: Cluster) -> None:
        """Although one of two new replicas is in sync already, and an old one might go as well."""
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 5, partitions=1)
        for node in cluster.nodes.values():
            node.is_catching_up = False
        before = cluster.row("a").replicas
        first, second = sorted({1, 2, 3, 4, 5}.difference(before))
        await operator_requests.place(cluster.store, KEY, (before[0], first, second))
        await until(lambda: len(cluster.row("a").replicas) == 5)
        view = cluster.view.rows[KEY]
        joined = msgspec.structs.replace(view.row, in_sync=view.row.in_sync | {first})
        await cluster.view.propose(KEY, Change(view.version, joined))
        assert await operator_requests.cancel_placement(cluster.store, KEY) == before
        await until(lambda: cluster.row("a").replicas == before)
        assert not (await read_cluster_state(cluster.store)).requests
        with pytest.raises(NotFound, match="not moving"):
            await operator_requests.cancel_placement(cluster.store, KEY)

    async def test_on_a_node_that_is_drained_meanwhile_end_where_it_was(
        self, cluster: Cluster
    ) -> None:
        """Whoever has it already is better than somebody to whom it has to be copied."""
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 5, partitions=1)
        for node in cluster.nodes.values():
            node.is_catching_up = False
        before = cluster.row("a").replicas
        other = max({1, 2, 3, 4, 5}.difference(before))
        await operator_requests.place(cluster.store, KEY, (other, *before[:2]))
        await until(lambda: other in cluster.row("a").replicas)
        await operator_requests.drain(cluster.store, other)
        await until(lambda: other not in cluster.row("a").replicas)
        assert set(cluster.row("a").replicas) == set(before)
        assert not (await read_cluster_state(cluster.store)).requests

    async def test_that_cannot_be_read_can_be_cancelled(self, cluster: Cluster) -> None:
        await started(cluster, 3, partitions=1)
        await cluster.store.put(placement_key(KEY), b"{")
        before = cluster.row("a").replicas
        assert await operator_requests.cancel_placement(cluster.store, KEY) == before
        assert await cluster.store.get(placement_key(KEY)) is None
        assert cluster.row("a").replicas == before


class TestElections:
    async def test_an_unclean_one_is_made_by_name_only(self, cluster: Cluster) -> None:
        await started(cluster, 3, partitions=1)
        for node in cluster.nodes.values():
            node.is_catching_up = False
        leader = cluster.row("a").leader
        late = next(number for number in (1, 2, 3) if number != leader)
        await cluster.change_row(KEY, in_sync=frozenset({leader}), in_sync_min=1)
        await cluster.kill(leader)
        with pytest.raises(InvalidRequest, match="not alive"):
            await operator_requests.elect_uncleanly(cluster.store, KEY, leader)
        with pytest.raises(InvalidRequest, match="no replica"):
            await operator_requests.elect_uncleanly(cluster.store, KEY, 9)
        with pytest.raises(NotFound):
            await operator_requests.elect_uncleanly(cluster.store, PartitionKey("b", 0), 1)
        await operator_requests.elect_uncleanly(cluster.store, KEY, late)
        await until(lambda: cluster.row("a").leader == late)
        assert cluster.row("a").in_sync == {late}
        assert cluster.is_led(cluster.row("a"))

    async def test_preferred_leaders_are_had_at_once(self, cluster: Cluster) -> None:
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 3, partitions=9)
        await cluster.kill(2)
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        assert await operator_requests.elect_preferred(cluster.store) == 0, "it is not there"
        await cluster.join(2)
        some = [PartitionKey("a", at) for at in range(9)]
        assert await operator_requests.elect_preferred(cluster.store, some[:0]) == 0
        assert await operator_requests.elect_preferred(cluster.store, some) == 3
        await until(lambda: cluster.leaders("a") == {1: 3, 2: 3, 3: 3})

    async def test_preferred_leaders_asked_for_by_two_are_elected_once(
        self, cluster: Cluster
    ) -> None:
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 3, partitions=9)
        await cluster.nodes[1].register()
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        await until(
            lambda: not any(row.epoch == 1 and row.leader == 1 for row in cluster.rows("a"))
        )
        changed = sum(
            await asyncio.gather(
                *(operator_requests.elect_preferred(cluster.store) for _ in range(3))
            )
        )
        await until(lambda: cluster.leaders("a") == {1: 3, 2: 3, 3: 3})
        assert changed <= 3


class TestOverview:
    async def test_names_what_is_wrong(self, cluster: Cluster) -> None:
        cluster.policy = Policy(is_balancing=False)
        await started(cluster, 3, partitions=3)
        for node in cluster.nodes.values():
            node.is_catching_up = False
        await cluster.change_row(PartitionKey("a", 0), lost=frozenset({1, 2, 3}), leader=-1)
        await cluster.change_row(PartitionKey("a", 1), in_sync=frozenset({1}))
        await operator_requests.place(cluster.store, PartitionKey("a", 2), (1, 2, 3))
        state = await read_cluster_state(cluster.store)
        catalog = cluster.catalog
        missing = topic("b", 2)
        found = {
            key.index: set(states_of(state, key, catalog, cluster.policy)) for key in state.rows
        }
        assert {*found[0]} == {"lost", "leaderless", "below_minimum", "under_replicated"}
        assert {"below_minimum", "under_replicated"} <= found[1]
        assert "moving" in found[2]
        assert "below_minimum" not in found[2]
        seen = overview(state, catalog, [*catalog.all_topics(), missing], cluster.policy)
        counts = seen.states
        assert seen.partitions == 3
        assert (counts["lost"], counts["under_replicated"], counts["moving"]) == (1, 2, 1)
        assert (counts["missing"], counts["orphaned"]) == (2, 0)
        assert [node.replicas for node in seen.nodes] == [3, 3, 3]
        assert sum(node.preferred for node in seen.nodes) == 3
        assert not is_safe_to_stop(state, 1)

    async def test_says_when_a_node_may_be_stopped(self, cluster: Cluster) -> None:
        await started(cluster, 3, partitions=3)
        await cluster.create(topic("alone", 3, replication_factor="1"))
        state = await read_cluster_state(cluster.store)
        assert [is_safe_to_stop(state, number) for number in (1, 2, 3)] == [True] * 3
        await cluster.kill(3)
        state = await read_cluster_state(cluster.store)
        assert not is_safe_to_stop(state, 1), "two are needed for anything to be sent"
        seen = overview(state, cluster.catalog, cluster.catalog.all_topics(), cluster.policy)
        assert [node.is_alive for node in seen.nodes] == [True, True, False]
        assert seen.states["under_replicated"] == 4


class TestCreations:
    async def test_put_partitions_on_the_nodes_given(self, cluster: Cluster) -> None:
        cluster.policy = Policy(is_balancing=False)
        for number in (1, 2, 3):
            await cluster.join(number)
        places = {0: (2, 3, 1), 1: (3, 1, 2), 2: (3, 2, 1)}
        await operator_requests.create(cluster.store, "a", places, in_sync_min=2)
        await cluster.create(topic("a", 4))
        assert {at: cluster.row("a", at).replicas for at in places} == places
        assert [cluster.row("a", at).leader for at in places] == [2, 3, 3]
        assert len(cluster.row("a", 3).replicas) == 3, "chosen by the manager"
        await operator_requests.create(
            cluster.store, "a", {0: (2, 3, 1), 4: (1, 2, 3)}, in_sync_min=2
        )
        with pytest.raises(Conflict, match="Partition 4 already exists"):
            await operator_requests.create(
                cluster.store, "a", {4: (2, 1, 3), 5: (1, 2, 3)}, in_sync_min=2
            )

    async def test_need_nodes_that_are_alive(self, cluster: Cluster) -> None:
        await cluster.join(1)
        with pytest.raises(InvalidRequest, match=r"no node 2, or it is stopped. Nodes: \[1\]"):
            await operator_requests.create(cluster.store, "a", {0: (1,), 1: (2,)}, in_sync_min=1)
        assert not (await read_cluster_state(cluster.store)).rows

    async def test_of_many_partitions_take_several_transactions(self, cluster: Cluster) -> None:
        for number in (1, 2, 3):
            await cluster.join(number)
        places = {at: (1 + at % 3, 1 + (at + 1) % 3) for at in range(200)}
        await operator_requests.create(cluster.store, "a", places, in_sync_min=1)
        assert len((await read_cluster_state(cluster.store)).rows) == 200

    async def test_are_undone_for_a_topic_that_never_came(self, cluster: Cluster) -> None:
        await cluster.join(1)
        await operator_requests.create(cluster.store, "a", {0: (1,)}, in_sync_min=1)
        await operator_requests.create(cluster.store, "ab", {0: (1,)}, in_sync_min=1)
        await operator_requests.discard(cluster.store, "a")
        assert set((await read_cluster_state(cluster.store)).rows) == {PartitionKey("ab", 0)}
