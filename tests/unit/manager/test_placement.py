"""Where replicas belong: spread, racks, drains, and that planning upon a plan changes nothing."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.manager.placement import Host, Loads, Placed, choose, plan
from penstock.metadata.cluster_entries import PartitionKey

EXAMPLES = 150


def key(index: int) -> PartitionKey:
    return PartitionKey("t", index)


def hosts(*nodes: int) -> list[Host]:
    return [Host(node) for node in nodes]


def spread(counts: Mapping[int, int], nodes: Sequence[int]) -> int:
    of_nodes = [counts.get(node, 0) for node in nodes]
    return max(of_nodes) - min(of_nodes)


def applied(
    partitions: Mapping[PartitionKey, Placed], targets: Mapping[PartitionKey, tuple[int, ...]]
) -> dict[PartitionKey, Placed]:
    return {
        each: placed._replace(replicas=targets.get(each, placed.replicas))
        for each, placed in partitions.items()
    }


def replica_counts(partitions: Mapping[PartitionKey, Placed]) -> Counter[int]:
    return Counter(node for placed in partitions.values() for node in placed.replicas)


def leader_counts(partitions: Mapping[PartitionKey, Placed]) -> Counter[int]:
    return Counter(placed.replicas[0] for placed in partitions.values())


Cluster = tuple[dict[PartitionKey, Placed], list[Host], frozenset[int]]


@st.composite
def clusters(draw: st.DrawFn, *, with_racks: bool = False, with_oddities: bool = False) -> Cluster:
    """Partitions anywhere, on nodes of which some are alive and some are to be drained. Only the
    sizes are drawn, so that they shrink; the rest follows from a seed and is quickly made."""
    nodes = draw(st.integers(1, 9))
    size = draw(st.integers(0, 30))
    chance = random.Random(draw(st.integers(0, 2**32)))
    alive = [
        Host(
            node,
            chance.choice(["", "a", "b", "c"]) if with_racks else "",
            is_open=not with_oddities or chance.random() < 0.8,
        )
        for node in range(nodes)
        if not with_oddities or chance.random() < 0.8
    ]
    partitions = {}
    for index in range(size):
        replicas = tuple(chance.sample(range(nodes), chance.randint(1, min(nodes, 4))))
        partitions[key(index)] = Placed(replicas, len(replicas))
        if with_oddities:
            partitions[key(index)] = Placed(
                replicas,
                chance.randint(1, 4),
                is_fixed=chance.random() < 0.2,
                weak=frozenset(node for node in replicas if chance.random() < 0.2),
            )
    draining = {node for node in range(nodes) if with_oddities and chance.random() < 0.2}
    return partitions, alive, frozenset(draining)


class TestNewPartitions:
    @given(nodes=st.integers(1, 9), count=st.integers(1, 4), partitions=st.integers(1, 60))
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_are_spread_within_one_by_replicas_and_by_leaders(
        self, nodes: int, count: int, partitions: int
    ) -> None:
        loads = Loads()
        for _ in range(partitions):
            replicas = choose(hosts(*range(nodes)), loads, "t", count=count)
            assert len(replicas) == len(set(replicas)) == min(count, nodes)
            loads.add("t", replicas)
            assert spread(loads.replicas, range(nodes)) <= 1
            assert spread(loads.leaders, range(nodes)) <= 1

    @given(
        nodes=st.integers(1, 9),
        count=st.integers(1, 4),
        sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    )
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_of_each_topic_are_led_by_all_nodes_alike(
        self, nodes: int, count: int, sizes: list[int]
    ) -> None:
        loads = Loads()
        for number, size in enumerate(sizes):
            led: Counter[int] = Counter()
            for _ in range(size):
                replicas = choose(hosts(*range(nodes)), loads, str(number), count=count)
                loads.add(str(number), replicas)
                led[replicas[0]] += 1
                assert spread(led, range(nodes)) <= 1
            # And not at the price of what nodes have to carry altogether.
            assert spread(loads.replicas, range(nodes)) <= 1
            assert spread(loads.leaders, range(nodes)) <= 1

    def test_of_a_topic_go_to_the_emptiest_node_first(self) -> None:
        loads = Loads()
        for _ in range(3):
            loads.add("old", (1,))
        loads.add("old", (2,))
        led: list[int] = []
        for _ in range(4):
            replicas = choose(hosts(1, 2, 3), loads, "new", count=1)
            loads.add("new", replicas)
            led += replicas
        assert led == [3, 2, 1, 3]

    def test_of_a_topic_that_grows_take_account_of_what_is_there(self) -> None:
        loads = Loads()
        for node in (1, 1, 2):
            loads.add("t", (node,))
        for node in (2, 2, 2, 3, 3, 3):
            loads.add("other", (node,))
        grown: list[int] = []
        for _ in range(3):
            replicas = choose(hosts(1, 2, 3), loads, "t", count=1)
            loads.add("t", replicas)
            grown += replicas
        assert sorted(grown) == [2, 3, 3]

    def test_of_a_node_that_falls_scatter_over_all_the_others(self) -> None:
        loads = Loads()
        chosen = [choose(hosts(1, 2, 3, 4), loads, "t", count=0)]
        for _ in range(1_200):
            replicas = choose(hosts(1, 2, 3, 4), loads, "t", count=4)
            loads.add("t", replicas)
            chosen.append(replicas)
        heirs = Counter(replicas[1] for replicas in chosen if replicas[:1] == (1,))
        assert heirs == {2: 100, 3: 100, 4: 100}

    def test_stand_in_as_many_racks_as_there_are(self) -> None:
        nodes = [Host(1, "a"), Host(2, "a"), Host(3, "b"), Host(4, "b"), Host(5, "c")]
        loads = Loads()
        for _ in range(50):
            replicas = choose(nodes, loads, "t", count=3)
            assert len({nodes[node - 1].rack for node in replicas}) == 3
            loads.add("t", replicas)

    def test_get_what_there_is_when_there_are_too_few_nodes(self) -> None:
        assert choose(hosts(7), Loads(), "t", count=3) == (7,)
        assert choose([], Loads(), "t", count=3) == ()

    @given(clusters())
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_are_counted_and_forgotten_alike(self, cluster: Cluster) -> None:
        loads = Loads()
        for placed in cluster[0].values():
            loads.add("t", placed.replicas)
        for placed in cluster[0].values():
            loads.add("t", placed.replicas, -1)
        assert not loads.replicas
        assert not loads.leaders
        assert not loads.seconds
        assert not loads.of_topics


class TestBalance:
    def test_takes_from_the_topic_that_a_node_leads_most_of(self) -> None:
        """Of two topics on one node, a second one gets half of each and not all of either."""
        partitions = {
            PartitionKey(topic, index): Placed((1,), 1) for topic in "ab" for index in range(4)
        }
        after = applied(partitions, plan(partitions, hosts(1, 2)))
        led = Counter((each.topic_id, placed.replicas[0]) for each, placed in after.items())
        assert led == {("a", 1): 2, ("a", 2): 2, ("b", 1): 2, ("b", 2): 2}

    @given(clusters())
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_ends_within_one_with_as_few_moves_as_possible(self, cluster: Cluster) -> None:
        partitions, nodes, _ = cluster
        targets = plan(partitions, nodes)
        after = applied(partitions, targets)
        numbers = [host.node for host in nodes]
        before_counts, after_counts = replica_counts(partitions), replica_counts(after)
        assert spread(after_counts, numbers) <= 1
        # The least is what the fullest have too much when the surplus is left with them.
        total = sum(before_counts.values())
        ideal = [total // len(nodes) + (at < total % len(nodes)) for at in range(len(nodes))]
        fullest = sorted((before_counts[node] for node in numbers), reverse=True)
        least = sum(max(0, has - may) for has, may in zip(fullest, ideal, strict=True))
        moved = sum(
            len(set(placed.replicas) - set(after[each].replicas))
            for each, placed in partitions.items()
        )
        assert moved == least

    @given(clusters(with_racks=True, with_oddities=True))
    @settings(max_examples=3 * EXAMPLES, deadline=None)
    def test_of_a_balanced_cluster_changes_nothing(self, cluster: Cluster) -> None:
        partitions, nodes, draining = cluster
        after = applied(partitions, plan(partitions, nodes, draining=draining))
        assert plan(after, nodes, draining=draining) == {}

    @given(clusters(with_racks=True, with_oddities=True), st.integers(1, 5))
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_in_small_steps_comes_to_rest_too(
        self,
        cluster: Cluster,
        steps_max: int,
    ) -> None:
        partitions, nodes, draining = cluster
        seen = []
        for _ in range(200):
            targets = plan(partitions, nodes, draining=draining, steps_max=steps_max)
            if not targets:
                break
            partitions = applied(partitions, targets)
            assert partitions not in seen, "never where it has been"
            seen.append(partitions)
        assert plan(partitions, nodes, draining=draining) == {}

    @given(clusters(with_racks=True, with_oddities=True))
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_never_puts_two_replicas_on_a_node_nor_any_on_one_that_is_closed(
        self, cluster: Cluster
    ) -> None:
        partitions, nodes, draining = cluster
        willing = {host.node for host in nodes if host.is_open} - draining
        for each, target in plan(partitions, nodes, draining=draining).items():
            assert len(set(target)) == len(target) >= 1
            assert set(target) - set(partitions[each].replicas) <= willing

    @given(clusters())
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_leaves_no_chain_along_which_leaders_could_be_evened_out(
        self, cluster: Cluster
    ) -> None:
        partitions, nodes, _ = cluster
        after = applied(partitions, plan(partitions, nodes))
        led = leader_counts(after)
        for start in (host.node for host in nodes):
            reach, grown = {start}, True
            while grown:
                more = {
                    node
                    for placed in after.values()
                    if placed.replicas[0] in reach
                    for node in placed.replicas
                }
                grown = not more <= reach
                reach |= more
            assert all(led[start] - led[node] <= 1 for node in reach)

    def test_hands_leaders_on_along_a_chain(self) -> None:
        """Node 1 leads four, node 3 none, and no partition is on both of them."""
        places = [(1, 2), (1, 2), (1, 4), (1, 4), (2, 3), (2, 3), (4, 3), (4, 3)]
        partitions = {key(at): Placed(place, 2) for at, place in enumerate(places)}
        targets = plan(partitions, hosts(1, 2, 3, 4))
        assert leader_counts(applied(partitions, targets)) == {1: 2, 2: 2, 3: 2, 4: 2}
        assert all(set(target) == set(places[each.index]) for each, target in targets.items())

    def test_prefers_to_move_what_the_giving_node_does_not_lead(self) -> None:
        partitions = {key(0): Placed((1, 2), 2), key(1): Placed((2, 1), 2)}
        targets = plan(partitions, hosts(1, 2, 3))
        assert len(targets) == 1
        [(moved, target)] = targets.items()
        assert target[0] == partitions[moved].replicas[0]

    def test_leaves_alone_what_is_on_nodes_that_are_away(self) -> None:
        partitions = {key(at): Placed((1, 2, 3), 3) for at in range(9)}
        assert plan(partitions, hosts(1, 2)) == {key(at): (2, 1, 3) for at in range(4)}

    def test_is_not_made_when_it_is_not_wanted(self) -> None:
        partitions = {key(at): Placed((1, 2), 2) for at in range(9)}
        assert plan(partitions, hosts(1, 2, 3), is_balancing=False) == {}


class TestDrains:
    @given(clusters(with_racks=True, with_oddities=True))
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_end_with_nothing_on_the_node_when_there_are_enough_others(
        self, cluster: Cluster
    ) -> None:
        partitions, nodes, draining = cluster
        willing = {host.node for host in nodes if host.is_open} - draining
        after = applied(partitions, plan(partitions, nodes, draining=draining))
        for placed in after.values():
            if draining & set(placed.replicas):
                # Then every willing node has it already, and still they are not enough.
                assert willing <= set(placed.replicas)
                assert len(placed.replicas) <= placed.wanted

    @given(clusters(with_racks=True, with_oddities=True))
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_never_leave_fewer_copies_than_there_were_and_are_wanted(
        self, cluster: Cluster
    ) -> None:
        partitions, nodes, draining = cluster
        after = applied(partitions, plan(partitions, nodes, draining=draining))
        for each, placed in partitions.items():
            assert len(after[each].replicas) >= min(len(placed.replicas), placed.wanted)
            assert len(after[each].replicas) <= max(placed.wanted, 1)

    def test_move_only_what_is_on_the_node(self) -> None:
        partitions = {
            key(0): Placed((1, 2, 3), 3),
            key(1): Placed((2, 3, 1), 3),
            key(2): Placed((3, 4, 2), 3),
        }
        targets = plan(partitions, hosts(1, 2, 3, 4), draining=frozenset({1}), is_balancing=False)
        assert targets == {key(0): (4, 2, 3), key(1): (2, 3, 4)}

    def test_end_only_when_there_are_as_many_copies_as_wanted(self) -> None:
        partitions = {key(0): Placed((2,), 3)}
        assert plan(partitions, hosts(2, 6), draining=frozenset({2})) == {key(0): (6, 2)}

    def test_of_a_node_that_is_gone_for_good_replace_it(self) -> None:
        partitions = {key(0): Placed((1, 2, 3), 3, is_fixed=True, weak=frozenset({1}))}
        targets = plan(partitions, hosts(2, 3, 4), draining=frozenset({1}))
        assert set(targets[key(0)]) == {2, 3, 4}


class TestTooFewOrTooMany:
    def test_too_few_are_filled_up_when_a_node_comes(self) -> None:
        partitions = {key(0): Placed((1,), 3), key(1): Placed((1, 2), 3)}
        targets = plan(partitions, hosts(1, 2, 3), is_balancing=False)
        assert {each: set(target) for each, target in targets.items()} == {
            key(0): {1, 2, 3},
            key(1): {1, 2, 3},
        }

    def test_of_too_many_the_weak_go_first(self) -> None:
        partitions = {key(0): Placed((1, 2, 3, 4), 3, is_fixed=True, weak=frozenset({2}))}
        assert plan(partitions, hosts(1, 2, 3, 4))[key(0)] == (1, 3, 4)

    def test_of_too_many_one_that_shares_its_rack_goes(self) -> None:
        nodes = [Host(1, "a"), Host(2, "b"), Host(3, "b"), Host(4, "c")]
        partitions = {key(0): Placed((1, 2, 3, 4), 3)}
        assert plan(partitions, nodes, is_balancing=False)[key(0)] == (1, 2, 4)


class TestRacks:
    @given(clusters(with_racks=True))
    @settings(max_examples=EXAMPLES, deadline=None)
    def test_no_rack_has_two_replicas_more_than_another_could_have(self, cluster: Cluster) -> None:
        partitions, nodes, _ = cluster
        racks = {host.node: host.rack or str(host.node) for host in nodes}
        after = applied(partitions, plan(partitions, nodes))
        for placed in after.values():
            counts = Counter(racks[node] for node in placed.replicas)
            for node in racks:
                if node not in placed.replicas:
                    assert max(counts.values()) - counts[racks[node]] <= 1

    def test_a_second_rack_gets_its_share_when_it_comes(self) -> None:
        nodes = [Host(1, "a"), Host(2, "a"), Host(3, "b")]
        partitions = {key(at): Placed((1, 2), 2) for at in range(4)}
        after = applied(partitions, plan(partitions, nodes))
        assert all(3 in placed.replicas for placed in after.values())


@pytest.mark.slow
def test_a_plan_for_ten_thousand_partitions_takes_less_than_a_second_of_cpu() -> None:
    loads = Loads()
    partitions = {}
    for index in range(10_000):
        replicas = choose(hosts(*range(1, 10)), loads, "t", count=3)
        loads.add("t", replicas)
        partitions[key(index)] = Placed(replicas, 3)
    begun = process_time()
    targets = plan(partitions, hosts(*range(1, 11)), steps_max=200)
    took = process_time() - begun
    print(f"plan: {took * 1_000:.0f} ms of CPU for 10,000 partitions and a tenth node")
    assert len(targets) >= 200
    assert took < 1.0
    assert all(len(set(target)) == 3 for target in targets.values())
