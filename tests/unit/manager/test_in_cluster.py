"""Managers at work on a real store: one at a time, and every partition led, whatever falls."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import msgspec
import pytest
from tests.unit.manager.cluster import Cluster, topic, until

from penstock.manager import operator_requests
from penstock.manager.decisions import DecisionKind, Policy
from penstock.metadata.cluster_entries import MANAGER_KEY, ManagerEntry, PartitionKey, encode_entry
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.replication.election import Standing
from penstock.replication.row import PartitionRow

pytestmark = pytest.mark.slow
KEY = PartitionKey("a", 0)


def _has_in_sync_min(cluster: Cluster, count: int) -> bool:
    return all(row.in_sync_min == count for row in cluster.rows("a"))


either_store = pytest.mark.parametrize("store", ["sqlite", "etcd"], indirect=True)


async def three(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        await cluster.join(number)
    await until(lambda: len(cluster.managing) == 1)


@either_store
class TestBeingTheManager:
    async def test_one_of_many_manages_and_another_one_when_it_stops(
        self, cluster: Cluster
    ) -> None:
        for number in range(1, 6):
            await cluster.join(number)
        await until(lambda: len(cluster.managing) == 1)
        [first] = cluster.managing
        await cluster.nodes.pop(first).stop()
        await until(lambda: len(cluster.managing) == 1)
        [second] = cluster.managing
        assert second != first
        await until(
            lambda: all(
                node.manager is not None and node.manager.manager == second
                for node in cluster.nodes.values()
            )
        )

    async def test_another_one_manages_when_it_dies(self, cluster: Cluster) -> None:
        await three(cluster)
        [first] = cluster.managing
        await cluster.kill(first)
        await until(lambda: len(cluster.managing) == 1)
        assert cluster.managing != [first]

    async def test_a_node_whose_lease_is_gone_manages_no_longer(self, cluster: Cluster) -> None:
        node = await cluster.join(1)
        await until(lambda: cluster.managing == [1])
        await node.membership.stop()
        await until(lambda: cluster.managing == [])
        assert await cluster.store.get(MANAGER_KEY) is None
        await node.register()
        await until(lambda: cluster.managing == [1])

    @pytest.mark.parametrize("lost", ["answers_lost", "requests_lost"])
    async def test_a_message_that_was_lost_does_not_leave_the_cluster_without_one(
        self, cluster: Cluster, lost: str
    ) -> None:
        node = await cluster.join(1, stands=False)
        setattr(node.line, lost, 1)
        await node.stand()
        await until(lambda: cluster.managing == [1])

    async def test_a_deposed_manager_changes_nothing_R3(self, cluster: Cluster) -> None:
        """It believes to be the one, for it has not heard yet that another one is."""
        for number in (1, 2, 3):
            await cluster.join(number, stands=number == 1)
        await cluster.create(topic("a", 1))
        line = cluster.nodes[1].line
        line.hears.clear()
        await cluster.store.delete(MANAGER_KEY)
        await cluster.store.put(MANAGER_KEY, encode_entry(ManagerEntry(9)))
        before = cluster.row("a")
        assert cluster.managing == [1]
        await cluster.nodes[before.leader].register()
        await until(lambda: cluster.managing == [])
        assert cluster.row("a") == before
        line.hears.set()


@either_store
class TestPartitions:
    async def test_of_a_new_topic_are_created_with_a_leader_and_spread(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        await cluster.create(topic("a", 12))
        assert cluster.leaders("a") == {1: 4, 2: 4, 3: 4}
        for row in cluster.rows("a"):
            assert (row.epoch, row.in_sync_min) == (1, 2)
            assert row.in_sync == set(row.replicas) == {1, 2, 3}
            assert row.leader == row.replicas[0]

    async def test_of_topics_that_were_there_before_the_manager_are_created(
        self, cluster: Cluster
    ) -> None:
        node = await cluster.join(1, stands=False)
        await node.catalog.create(topic("a", 3, replication_factor="1"))
        await node.stand()
        await until(lambda: len(cluster.rows("a")) == 3)
        assert cluster.row("a").in_sync_min == 1

    async def test_wait_for_the_first_node(self, cluster: Cluster) -> None:
        node = await cluster.join(1)
        await until(lambda: cluster.managing == [1])
        key = "/nodes/1"
        entry = await cluster.store.get(key)
        assert entry is not None
        await cluster.store.delete(key)
        await until(lambda: not node.view.nodes)
        await cluster.catalog.create(topic("a", 2))
        await cluster.store.txn(puts=((key, entry.value),), lease=node.membership.lease)
        await until(lambda: len(cluster.rows("a")) == 2)

    async def test_that_are_added_to_a_topic_are_created(self, cluster: Cluster) -> None:
        await three(cluster)
        one = topic("a", 1)
        await cluster.create(one)
        await cluster.catalog.change(one.account, one.region, one.name, lambda _: topic("a", 4))
        await until(lambda: len(cluster.rows("a")) == 4)

    async def test_of_a_deleted_topic_go_with_their_wishes(self, cluster: Cluster) -> None:
        await three(cluster)
        one = topic("a", 100)
        await cluster.create(one)
        await cluster.store.put("/wishes/places/a/0", b'{"replicas":[1,2,9]}')
        await cluster.catalog.delete(one.account, one.region, one.name, now_ms=1)
        await until(lambda: not cluster.rows("a"))
        entries, _ = await cluster.store.list("/wishes/")
        assert not entries

    async def test_of_a_topic_that_is_merely_missing_stay(self, cluster: Cluster) -> None:
        await three(cluster)
        await cluster.create(topic("a", 1))
        await cluster.store.delete("/topics/111111111111/us-east-1/a")
        await until(lambda: cluster.catalog.find_id("a") is None)
        leader = cluster.row("a").leader
        await cluster.kill(leader)
        await until(lambda: cluster.is_led(cluster.row("a")))
        assert cluster.row("a").leader != leader

    async def test_follow_the_settings_of_their_topic(self, cluster: Cluster) -> None:
        await three(cluster)
        one = topic("a", 2)
        await cluster.create(one)
        await cluster.catalog.change(
            one.account,
            one.region,
            one.name,
            lambda _: topic("a", 2, replication_factor="1", min_insync_replicas="1"),
        )
        await until(
            lambda: all((len(row.replicas), row.in_sync_min) == (1, 1) for row in cluster.rows("a"))
        )
        await cluster.catalog.change(
            one.account, one.region, one.name, lambda _: topic("a", 2, min_insync_replicas="3")
        )
        await until(
            lambda: all(len(row.in_sync) == 3 == row.in_sync_min for row in cluster.rows("a"))
        )

    async def test_follow_the_default_that_an_operator_sets(self, cluster: Cluster) -> None:
        await three(cluster)
        await cluster.create(topic("a", 2))
        await cluster.create(topic("b", 2, min_insync_replicas="2"))
        await cluster.create(msgspec.structs.replace(topic("c", 2), name="__groups"))
        assert {row.in_sync_min for name in "abc" for row in cluster.rows(name)} == {2}
        for wanted, expected in ((1, 1), (3, 3), (None, 2)):
            cluster.policy.topics_in_sync_min = wanted
            for node in cluster.nodes.values():
                assert node.manager is not None
                node.manager.policy_changed()
            await until(partial(_has_in_sync_min, cluster, expected))
            assert all(row.in_sync_min == 2 for row in cluster.rows("b")), "a value of its own"
            assert all(row.in_sync_min == 2 for row in cluster.rows("c")), "the nodes' own topic"


@either_store
class TestFailover:
    async def test_partitions_of_a_fallen_node_are_led_by_the_others_and_come_back(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        await cluster.create(topic("a", 30))
        await cluster.kill(2)
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        assert cluster.leaders("a") == {1: 15, 3: 15}
        assert all(2 in row.in_sync for row in cluster.rows("a")), "that is its leader's business"
        await cluster.join(2)
        await until(lambda: cluster.leaders("a") == {1: 10, 2: 10, 3: 10})
        assert max(row.epoch for row in cluster.rows("a")) == 3, "there and back, and not more"

    async def test_a_node_that_came_back_at_once_leads_only_by_a_new_election_R8(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        await cluster.create(topic("a", 1))
        before = cluster.row("a")
        await cluster.nodes[before.leader].register()
        await until(lambda: cluster.row("a").epoch > 1 and cluster.is_led(cluster.row("a")))

    async def test_nobody_leads_who_may_lack_something_R7(self, cluster: Cluster) -> None:
        await three(cluster)
        await cluster.create(topic("a", 1, min_insync_replicas="1"))
        leader = cluster.row("a").leader
        for node in cluster.nodes.values():
            node.is_catching_up = False
        await cluster.change_row(KEY, in_sync=frozenset({leader}))
        await cluster.kill(leader)
        await until(lambda: leader not in cluster.view.nodes)
        await cluster.create(topic("b", 1))  # the manager has seen to everything by then
        assert cluster.row("a").leader == leader
        await cluster.join(leader)
        await until(lambda: cluster.is_led(cluster.row("a")))
        assert (cluster.row("a").leader, cluster.row("a").epoch) == (leader, 2)

    async def test_of_a_leader_that_is_about_to_stop_another_one_takes_over(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        await cluster.create(topic("a", 9))
        await cluster.create(topic("b", 3, replication_factor="1"))
        leaving = cluster.nodes[3]
        assert cluster.leaders("a")[3] == 3
        await leaving.membership.change(is_leaving=True)
        await until(lambda: cluster.leaders("a")[3] == 0)
        assert cluster.leaders("b")[3] == 1, "nobody else has that one"
        assert cluster.view.incarnations[3] == leaving.membership.incarnation

    @pytest.mark.parametrize("lost", ["answers_lost", "requests_lost"])
    async def test_changes_of_which_nobody_knows_are_looked_at_again_R2(
        self, cluster: Cluster, lost: str
    ) -> None:
        await three(cluster)
        await cluster.create(topic("a", 30))
        [manager] = cluster.managing
        line = cluster.nodes[manager].line
        other = next(number for number in cluster.nodes if number != manager)
        setattr(line, lost, 1)
        await cluster.nodes[other].register()
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        # Some may have been handed back by now, in an epoch more.
        assert sum(row.epoch >= 2 for row in cluster.rows("a")) >= 10
        await until(lambda: not getattr(line, lost))  # an answer is lost once it has come

    async def test_one_bad_decision_holds_up_no_other(self, cluster: Cluster) -> None:
        """A row changes under the manager's hands while many are to be elected."""
        await three(cluster)
        await cluster.create(topic("a", 60))
        [manager] = cluster.managing
        other = next(number for number in cluster.nodes if number != manager)
        ours = [
            PartitionKey("a", at) for at, row in enumerate(cluster.rows("a")) if row.leader == other
        ]
        killing = asyncio.create_task(cluster.kill(other))
        for key in ours[::3]:
            row = cluster.view.rows[key].row
            await cluster.change_row(key, watermark_floor=row.watermark_floor + 1)
        await killing
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        await until(
            lambda: all(cluster.view.rows[key].row.watermark_floor == 1 for key in ours[::3])
        )
        assert all(cluster.is_led(row) for row in cluster.rows("a"))


@either_store
class TestTrouble:
    async def test_a_store_that_was_away_for_a_while_holds_up_what_was_due_no_longer(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        await cluster.create(topic("a", 30))
        [manager] = cluster.managing
        other = next(number for number in cluster.nodes if number != manager)
        line = cluster.nodes[manager].line
        line.is_cut = True
        await cluster.kill(other)
        await until(lambda: line.refused >= 2)
        assert not all(cluster.is_led(row) for row in cluster.rows("a"))
        line.is_cut = False
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        assert cluster.managing == [manager]

    async def test_an_entry_that_cannot_be_read_does_not_stop_the_others(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        await cluster.store.put("/wishes/places/a/0", b"{")
        await cluster.store.put("/wishes/places/nonsense", b"{}")
        await cluster.store.put("/wishes/drains/none", b"")
        await cluster.create(topic("a", 3))
        await operator_requests.drain(cluster.store, 3)
        await until(lambda: 3 not in cluster.leaders("a"))


@either_store
class TestRecovery:
    async def lose_everything(self, cluster: Cluster) -> None:
        await three(cluster)
        await cluster.create(topic("a", 1))
        for node in cluster.nodes.values():
            node.is_catching_up = False
        await cluster.change_row(KEY, lost=frozenset({1, 2, 3}), leader=-1)

    async def test_waits_until_everybody_has_answered_R6(self, cluster: Cluster) -> None:
        await self.lose_everything(cluster)
        cluster.nodes[1].standings[KEY] = Standing(1, 5)
        cluster.nodes[2].standings[KEY] = Standing(2, 3)
        await until(lambda: {number for number, _ in cluster.asked} == {1, 2, 3})
        assert not cluster.is_led(cluster.row("a"))
        cluster.nodes[3].standings[KEY] = Standing(1, 9)
        await until(lambda: cluster.is_led(cluster.row("a")))
        row = cluster.row("a")
        assert (row.leader, row.epoch) == (2, 2)
        assert row.lost == {1, 3}
        await until(
            lambda: cluster.counts[DecisionKind.RECOVERED] == 1
        )  # counted once it is answered

    async def test_asks_a_node_again_that_was_started_again(self, cluster: Cluster) -> None:
        """What it said in its former life does not count: it may have lost more since."""
        await self.lose_everything(cluster)
        [manager] = cluster.managing
        again, last = (number for number in (1, 2, 3) if number != manager)
        cluster.nodes[manager].standings[KEY] = Standing(1, 5)
        cluster.nodes[again].standings[KEY] = Standing(1, 9)
        await until(lambda: {number for number, _ in cluster.asked} == {1, 2, 3})
        cluster.nodes[again].standings[KEY] = Standing(1, 2)
        await cluster.nodes[again].register()
        cluster.nodes[last].standings[KEY] = Standing(1, 1)
        await until(lambda: cluster.is_led(cluster.row("a")))
        assert cluster.row("a").leader == manager

    async def test_waits_for_a_node_that_is_away(self, cluster: Cluster) -> None:
        await self.lose_everything(cluster)
        for node in cluster.nodes.values():
            node.is_mute = True
            node.standings[KEY] = Standing(1, 1)
        await cluster.kill(3)
        for node in cluster.nodes.values():
            node.is_mute = False
        await until(lambda: len(cluster.managing) == 1 and 3 not in cluster.view.nodes)
        await cluster.create(topic("b", 1))
        assert not cluster.is_led(cluster.row("a"))
        node = await cluster.join(3)
        node.is_catching_up = False
        node.standings[KEY] = Standing(1, 7)
        await until(lambda: cluster.is_led(cluster.row("a")))
        assert cluster.row("a").leader == 3


@either_store
class TestAThousandPartitions:
    @pytest.fixture
    async def cluster(self, store: Store) -> AsyncIterator[Cluster]:
        """Nothing happens there but what has to."""
        cluster = Cluster(store, policy=Policy(is_balancing=False))
        yield cluster
        await cluster.stop()

    async def all_led_by_nine(self, cluster: Cluster) -> None:
        """Four nodes have them, and one of those leads them all."""
        nine = await cluster.join(9, stands=False)
        for number in {1, 2, 3}.difference(cluster.nodes):
            await cluster.join(number, stands=False)
        for node in cluster.nodes.values():
            node.is_catching_up = False
        row = PartitionRow(
            (9, 1, 2, 3),
            frozenset({1, 2, 3, 9}),
            leader=9,
            leader_incarnation=nine.membership.incarnation,
            epoch=1,
            in_sync_min=2,
        )
        await cluster.write_rows("a", 1_000, row)

    async def test_are_created_at_once_and_led_again_within_five_seconds(
        self, cluster: Cluster
    ) -> None:
        await three(cluster)
        begun, cpu = perf_counter(), process_time()
        await cluster.create(topic("b", 1_000))
        print(f"\ncreated in {perf_counter() - begun:.2f} s, {process_time() - cpu:.2f} s of CPU")
        await self.all_led_by_nine(cluster)
        begun, cpu = perf_counter(), process_time()
        await cluster.kill(9)
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        took = perf_counter() - begun
        print(f"led again in {took:.2f} s, {process_time() - cpu:.2f} s of CPU, three nodes' views")
        assert took < 5
        assert {row.epoch for row in cluster.rows("a")} == {2}

    async def test_are_all_led_again_though_the_manager_dies_in_the_middle_F19(
        self, cluster: Cluster
    ) -> None:
        await self.all_led_by_nine(cluster)
        await cluster.nodes[1].stand()
        await until(lambda: cluster.managing == [1])
        await cluster.nodes[2].stand()
        line = cluster.nodes[1].line
        line.txns, line.cut_after = 0, 7  # of some twenty that it takes
        begun = perf_counter()
        await cluster.kill(9)
        await until(lambda: line.is_cut)
        await until(
            lambda: (
                1 in (epochs := Counter(row.epoch for row in cluster.rows("a")))
                and epochs[2] >= 7 * 40
            )
        )
        await cluster.kill(1)
        await until(lambda: cluster.managing == [2])
        await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
        print(f"\nled again by two managers in {perf_counter() - begun:.2f} s")
        assert perf_counter() - begun < 10
        # The first one had the most preferred replica, and what it led has been elected again.
        assert cluster.leaders("a") == {2: 1_000}
        assert {row.epoch for row in cluster.rows("a")} == {2, 3}


@either_store
class TestMoves:
    async def test_a_node_that_comes_gets_its_share(self, cluster: Cluster) -> None:
        await three(cluster)
        await cluster.create(topic("a", 16))
        await cluster.join(4)
        await until(
            lambda: (
                cluster.replicas("a") == {1: 12, 2: 12, 3: 12, 4: 12}
                and cluster.leaders("a") == {1: 4, 2: 4, 3: 4, 4: 4}
            )
        )
        assert all(len(row.replicas) == len(row.in_sync) == 3 for row in cluster.rows("a"))

    async def test_too_few_replicas_are_filled_up(self, cluster: Cluster) -> None:
        await cluster.join(1)
        await cluster.create(topic("a", 10))
        assert cluster.replicas("a") == {1: 10}
        assert cluster.row("a").in_sync_min == 2
        await cluster.join(2)
        await cluster.join(3)
        await until(
            lambda: (
                all(len(row.in_sync) == 3 for row in cluster.rows("a"))
                and max(cluster.leaders("a").values()) == 4
            )
        )

    async def test_go_on_under_another_manager(self, cluster: Cluster) -> None:
        for number in (1, 2, 3, 4):
            await cluster.join(number)
        await cluster.create(topic("a", 8))
        for node in cluster.nodes.values():
            node.is_catching_up = False
        await cluster.store.put("/wishes/drains/4", b"")
        await until(lambda: any(len(row.replicas) == 4 for row in cluster.rows("a")))
        [manager] = cluster.managing
        stopped = cluster.nodes[manager].manager
        assert stopped is not None
        await stopped.stop()
        cluster.nodes[manager].manager = None
        for node in cluster.nodes.values():
            node.is_catching_up = True
            node.look()
        await until(lambda: 4 not in cluster.replicas("a"))
        assert all(len(row.replicas) == len(row.in_sync) == 3 for row in cluster.rows("a"))
        entries, _ = await cluster.store.list("/wishes/places/")
        assert not entries


async def test_history_that_is_forgotten_at_once_is_made_up_for(tmp_path: Path) -> None:
    """Every watch is too slow all the time, and reads everything again."""
    store = await SqliteStore.open(tmp_path / "short.db", history_revisions_max=1)
    cluster = Cluster(store)
    await three(cluster)
    await cluster.create(topic("a", 60))
    await cluster.kill(3)
    await until(lambda: all(cluster.is_led(row) for row in cluster.rows("a")))
    await operator_requests.drain(store, 3)
    await until(lambda: all(row.epoch >= 1 and row.leader != 3 for row in cluster.rows("a")))
    await cluster.stop()
    await store.close()
