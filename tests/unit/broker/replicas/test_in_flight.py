"""The in-flight limit of a queue that several nodes lead parts of."""

import asyncio
from pathlib import Path

import pytest
from tests.harness.served import Served
from tests.unit.broker.replicas.stage import Cluster, cluster, message, settles

from penstock.model.calls import Ack, Append, Lease, Stats
from penstock.model.errors import InFlightLimit
from penstock.model.message import Claim, Delivery
from penstock.model.ports import LeaseRequest
from penstock.model.topic import QueueStats, Topic

LIMIT = 300


class OverAll(Served):
    """How much is in flight on all nodes, as routing would ask for it."""

    def __init__(self, on: Cluster) -> None:
        self._on = on
        self.asked = 0

    async def stats(self, call: Stats) -> QueueStats:
        self.asked += 1
        parts = [await node.broker.call(call) for node in self._on.nodes.values()]
        return QueueStats(0, sum(each.in_flight for each in parts), 0)


def joined(on: Cluster) -> OverAll:
    found = OverAll(on)
    for node in on.nodes.values():
        node.broker.go_through(found)
    return found


async def send(on: Cluster, topic: Topic, node: int, count: int) -> None:
    """To the partition that this node leads."""
    some = [message(f"m{n}") for n in range(count)]
    await settles(on.nodes[node].broker.call(Append(topic, node - 1, some)))


async def take_all(on: Cluster, topic: Topic, node: int) -> list[Delivery]:
    """Until the node says that it is enough, or has nothing more; it has heard of the others."""
    found: list[Delivery] = []
    tries = 0
    while tries < 3:
        try:
            got = await on.nodes[node].broker.call(Lease(topic, LeaseRequest(count=5)))
        except InFlightLimit:
            got = ()
        found += got
        tries = 0 if got else tries + 1
        await asyncio.sleep(0)  # what was asked meanwhile is answered
    return found


async def test_a_queue_whose_messages_are_all_on_one_node_has_the_whole_limit(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, in_flight_max=LIMIT) as on:
        topic, _ = await on.topic(partition_count=3)
        joined(on)
        await send(on, topic, 1, 2 * LIMIT)
        assert len(await take_all(on, topic, 1)) == LIMIT
        with pytest.raises(InFlightLimit):
            await on.nodes[1].broker.call(Lease(topic, LeaseRequest()))


async def test_what_other_nodes_have_in_flight_counts(tmp_path: Path) -> None:
    async with cluster(tmp_path, in_flight_max=LIMIT) as on:
        topic, _ = await on.topic(partition_count=3)
        others = joined(on)
        for node in (1, 2, 3):
            await send(on, topic, node, LIMIT)
        held = {node: await take_all(on, topic, node) for node in (1, 2, 3)}
        total = sum(map(len, held.values()))
        assert LIMIT <= total <= 1.5 * LIMIT
        assert 0 < others.asked < total, "not for every receive"
        # What is finished with elsewhere makes room here, once that is heard of.
        claims = [Claim(0, one.record.offset, one.lease_seq) for one in held[1]]
        await settles(on.nodes[1].broker.call(Ack(topic, 0, claims)))
        async with asyncio.timeout(5):
            while not await take_all(on, topic, 3):
                await asyncio.sleep(0.05)


async def test_a_node_asks_nobody_while_it_has_little_in_flight(tmp_path: Path) -> None:
    async with cluster(tmp_path, in_flight_max=LIMIT) as on:
        topic, _ = await on.topic(partition_count=3)
        others = joined(on)
        for node in (1, 2, 3):
            await send(on, topic, node, LIMIT // 6)
            assert len(await take_all(on, topic, node)) == LIMIT // 6
        assert others.asked == 0
