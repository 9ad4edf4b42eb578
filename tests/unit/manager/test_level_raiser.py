"""The feature level is raised by whoever manages, when everybody speaks what an operator wants."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from penstock.frontend.admin.ports import Upgrade
from penstock.membership.cluster_view import LevelRefused
from penstock.metadata.cluster_entries import LEVEL_KEY, LevelEntry, encode_entry
from penstock.metadata.store import Store
from penstock.model.errors import Conflict, InvalidRequest
from penstock.model.levels import Levels
from penstock.node.cluster import cluster_admin

from .cluster import FIRST, Cluster, Node, until

NEW = Levels(1, 2)


async def begun(cluster: Cluster, *levels: Levels) -> list[Node]:
    """At the first level, as an older version has left it."""
    await cluster.store.put(LEVEL_KEY, encode_entry(LevelEntry(1)))
    return [await cluster.join(number, levels=each) for number, each in enumerate(levels, start=1)]


def upgrade(node: Node) -> Callable[..., Awaitable[Upgrade]]:
    return partial(cluster_admin.upgrade, node.line, node.level)


@pytest.mark.parametrize("store", ["sqlite", "etcd"], indirect=True)
async def test_what_all_speak_is_in_force_when_it_is_answered(
    cluster: Cluster, store: Store
) -> None:
    nodes = await begun(cluster, NEW, NEW, NEW)
    told = await upgrade(nodes[2])(None, is_dry_run=False, nodes=cluster.view.nodes, away=())
    assert (told.level, told.to, told.is_done) == (1, 2, True)
    await until(lambda: all(node.level.in_force == 2 for node in nodes))
    assert all(node.level.entry.wanted == 0 for node in nodes)
    with pytest.raises(LevelRefused):
        await cluster.join(4, levels=FIRST)


async def test_nothing_is_raised_that_one_does_not_speak(cluster: Cluster) -> None:
    nodes = await begun(cluster, NEW, FIRST)
    asked = upgrade(nodes[0])
    tried = await asked(2, is_dry_run=True, nodes=cluster.view.nodes, away=(7,))
    assert [line.split(" ", 2)[1] for line in tried.obstacles] == ["2", "7"]
    with pytest.raises(Conflict, match=r"node 2 \(n2\) has version"):
        await asked(2, is_dry_run=False, nodes=cluster.view.nodes, away=())
    latest = await asked(None, is_dry_run=False, nodes=cluster.view.nodes, away=())
    assert (latest.level, latest.to, latest.is_done) == (1, 1, True)
    with pytest.raises(InvalidRequest, match="cannot be lowered"):
        await asked(0, is_dry_run=False, nodes=cluster.view.nodes, away=())


async def test_a_wish_that_was_not_looked_at_well_is_taken_back(cluster: Cluster) -> None:
    nodes = await begun(cluster, NEW, FIRST)
    only_the_first = {1: cluster.view.nodes[1]}
    with pytest.raises(Conflict, match="does not support it"):
        await upgrade(nodes[0])(2, is_dry_run=False, nodes=only_the_first, away=())
    assert [node.level.in_force for node in nodes] == [1, 1]


async def test_the_next_manager_sees_to_what_the_last_one_left(cluster: Cluster) -> None:
    nodes = await begun(cluster, NEW, NEW)
    await until(lambda: len(cluster.managing) == 1)
    managing = cluster.nodes[cluster.managing[0]]
    other = next(node for node in nodes if node is not managing)
    managing.line.is_cut = True
    await cluster.store.put(LEVEL_KEY, encode_entry(LevelEntry(1, 2)))
    await until(lambda: other.level.entry.wanted == 2)
    assert other.level.in_force == 1
    await cluster.kill(managing.number)
    await until(lambda: other.level.in_force == 2)


async def test_the_manager_counts_its_looks_and_who_has_no_leader(cluster: Cluster) -> None:
    from .cluster import topic

    await begun(cluster, NEW, NEW, NEW, NEW)
    await cluster.create(topic("a", 4, replication_factor="1", min_insync_replicas="1"))
    await until(lambda: len(cluster.managing) == 1)
    managing = cluster.nodes[cluster.managing[0]].manager
    assert managing is not None
    active = managing.active
    assert active is not None
    assert active.passes > 0
    victim = next(row.leader for row in cluster.rows("a") if row.leader != cluster.managing[0])
    lost = sum(row.leader == victim for row in cluster.rows("a"))
    await cluster.kill(victim)
    await until(lambda: len(active.leaderless) == lost)
    await cluster.join(victim, levels=NEW)
    await until(lambda: not active.leaderless)
