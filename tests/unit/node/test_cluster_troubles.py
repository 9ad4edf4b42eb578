"""What a node reports of its cluster: the same sentences as ``penstock cluster status``."""

import asyncio
from pathlib import Path

import msgspec
from tests.unit.manager.cluster import Cluster, topic

from penstock.cli.cluster.status import problems
from penstock.manager.decisions import Policy
from penstock.metadata.sqlite import SqliteStore
from penstock.model.troubles import Kind, Trouble
from penstock.node.cluster.cluster_admin import ClusterAdmin
from penstock.node.cluster.cluster_troubles import ClusterTroubles, count
from penstock.replication.row import NO_NODE, PartitionRow, View


def view(**fields: object) -> View:
    row = PartitionRow(
        replicas=(1, 2, 3),
        leader=1,
        leader_incarnation=7,
        epoch=1,
        in_sync=frozenset({1, 2, 3}),
        in_sync_min=2,
    )
    return View(1, 1, msgspec.structs.replace(row, **fields))


def test_partitions_are_counted_by_what_their_dead_nodes_mean_for_them() -> None:
    alive = {1: 7, 2: 8}
    found = count([view(), view(leader=3, leader_incarnation=9)], alive, alive)  # type: ignore[arg-type]
    assert found.away == {3: 2}
    assert found.states == {"below_minimum": 0, "leaderless": 1, "lost": 0}
    only = {1: 7}
    found = count([view(), view(leader_incarnation=6)], only, only)  # type: ignore[arg-type]
    assert found.away == {2: 2, 3: 2}
    assert found.states == {"below_minimum": 2, "leaderless": 1, "lost": 0}


class Watch:
    """Troubles as one node sees them, and as an operator is told of them through it."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        node = cluster.nodes[1]
        self.manager = 1

        def manager() -> int:
            return self.manager

        self.admin = ClusterAdmin(
            node.line,
            node.view,
            node.catalog,
            node=1,
            policy=policy,
            level=node.level,
            manager=manager,
        )
        self.troubles = ClusterTroubles(node.view, self.admin.seen, manager=manager)

    def look(self) -> dict[Kind, Trouble]:
        return {one.kind: one for one in self.troubles.look()}

    async def until_reported(self, *kinds: Kind) -> dict[Kind, Trouble]:
        async with asyncio.timeout(20):
            while set(found := self.look()) != set(kinds):
                await asyncio.sleep(0.01)
        return found

    async def until_reads(self, beginning: str) -> Trouble:
        """Return the trouble with this sentence. Numbers change while leaders are elected."""
        async with asyncio.timeout(20):
            while True:
                for one in self.look().values():
                    if one.text.startswith(beginning):
                        return one
                await asyncio.sleep(0.01)

    async def status(self) -> list[str]:
        return problems({**msgspec.to_builtins(await self.admin.state()), "reasons": []})


async def test_a_dead_node_and_a_lost_quorum_are_told_in_the_words_of_cluster_status(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "cluster.db")
    policy = Policy(replication_factor=3, in_sync_min=2, is_balancing=False)
    cluster = Cluster(store, policy=policy)
    for number in (1, 2, 3):
        await cluster.join(number)
    await cluster.create(topic("a", 8))
    watch = Watch(cluster, policy)
    await watch.until_reported()

    await cluster.kill(3)
    found = await watch.until_reported(Kind.NODE_DEAD)
    assert found[Kind.NODE_DEAD].text == "node 3 (n3) declared dead, 8 partitions affected"
    assert any(line.startswith(found[Kind.NODE_DEAD].text) for line in await watch.status())

    await cluster.kill(2)
    await watch.until_reported(Kind.NODE_DEAD, Kind.QUORUM_LOST)
    lost = await watch.until_reads("quorum lost: 8 partitions with too few replicas in sync; ")
    assert any(line.startswith(lost.text) for line in await watch.status())

    await cluster.join(2)
    await cluster.join(3)
    await watch.until_reported()
    watch.troubles.stop()
    await cluster.stop()
    await store.close()


async def test_a_missing_manager_is_reported_when_it_is_not_a_mere_handover(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "cluster.db")
    policy = Policy(replication_factor=1, in_sync_min=1)
    cluster = Cluster(store, policy=policy)
    await cluster.join(1)
    watch = Watch(cluster, policy)
    watch.manager = NO_NODE
    assert watch.look() == {}
    (trouble,) = watch.look().values()
    assert trouble.kind is Kind.NO_MANAGER
    assert any(line.startswith(trouble.text) for line in await watch.status())
    watch.manager = 1
    assert watch.look() == {}
    watch.troubles.stop()
    await cluster.stop()
    await store.close()


async def test_rows_are_counted_only_after_a_change_and_then_seldom(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "cluster.db")
    policy = Policy(replication_factor=1, in_sync_min=1)
    cluster = Cluster(store, policy=policy)
    await cluster.join(1)
    await cluster.create(topic("a", 2))
    watch = Watch(cluster, policy)
    watch.look()
    job = watch.troubles._job
    assert job is not None
    await job
    watch.troubles._is_old = False  # whatever has changed meanwhile
    watch.look()
    assert watch.troubles._job is None, "nothing has changed"
    watch.troubles._changed()
    watch.troubles._next_at = asyncio.get_running_loop().time() + 3_600
    watch.look()
    assert watch.troubles._job is None, "it is too early"
    await cluster.stop()
    await store.close()
