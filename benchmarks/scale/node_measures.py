"""What two nodes cost each other when nothing happens: a replica fetch that waits and brings
nothing, asked and answered over a real socket, and the memory of a replica that is merely open."""

import asyncio
import gc
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec
from tests.unit.broker.replicas.stage import Cluster, cluster

from benchmarks.scale.measures import resident_bytes
from penstock.broker.replicas.fetching import CALL_MS, REPLY_BYTES_MAX
from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.topic import Topic
from penstock.replication.epochs import NO_EPOCH
from penstock.wire.internal.node_calls import REPLICA_FETCH, PartitionFetch, ReplicaFetch

PARTITIONS: Final = 40  # each on both nodes, half of them led by either
WAIT_MS: Final = 1  # the shortest that waits at all: the cost is that of any wait
ASKS: Final = (1, 100)


class NodeFigures(msgspec.Struct, frozen=True):
    """By the names that ``Constants`` has for them."""

    fetch_us: float
    fetch_ask_us: float
    replica_bytes: float


def measured_apart(folder: Path, *, calls: int) -> NodeFigures:
    """In a process of its own, whose memory nobody has used before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, folder, calls).result()


def _measured(folder: Path, calls: int) -> NodeFigures:
    return asyncio.run(measured(folder, calls=calls))


async def measured(folder: Path, *, calls: int) -> NodeFigures:
    async with cluster(folder, nodes=2) as pair:
        gc.collect()
        before = resident_bytes()
        topic, _ = await pair.topic(replicas=(1, 2), partition_count=PARTITIONS)
        gc.collect()
        replica_bytes = (resident_bytes() - before) / (2 * PARTITIONS)
        few, many = [await _fetches(pair, topic, asks=asks, calls=calls) for asks in ASKS]
        ask_us = max(0.0, (many - few) / (ASKS[1] - ASKS[0]))
        return NodeFigures(few - ask_us, ask_us, replica_bytes)


async def _fetches(pair: Cluster, topic: Topic, *, asks: int, calls: int) -> float:
    """Microseconds of processor for one call with so many partitions, both ends together."""
    leader, follower = pair.nodes[1], pair.nodes[2]
    led = [PartitionKey(topic.topic_id, index) for index in range(0, PARTITIONS, 2)]
    host, _, port = leader.membership.entry.internal.rpartition(":")
    client = InternalClient(host, int(port), NodeEnd("2", "test"))
    request = ReplicaFetch(
        follower.number,
        follower.membership.incarnation,
        WAIT_MS,
        REPLY_BYTES_MAX,
        _asks(led, asks),
    )
    try:
        await client.call(REPLICA_FETCH, request, timeout_ms=CALL_MS)
        begun = time.process_time()
        for _ in range(calls):
            answered = await client.call(REPLICA_FETCH, request, timeout_ms=CALL_MS)
            assert not answered.replies, "there is no news"
        return (time.process_time() - begun) / calls * 1e6
    finally:
        await client.close()


def _asks(led: Sequence[PartitionKey], count: int) -> list[PartitionFetch]:
    some = islice(cycle(led), count)
    return [
        PartitionFetch(
            key.topic_id, key.index, 1, 0, 0, NO_EPOCH, number, high_watermark=0, start_offset=0
        )
        for number, key in enumerate(some)
    ]
