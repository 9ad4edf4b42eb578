"""Clusters of any size as they stand in a store after a quiet life: every node alive, every queue
with its replicas on as many nodes, evenly, in a random order that a seed decides.

Rows are dealt out and not chosen by the manager one by one: that is one of the things measured. How
close to even it ends is asserted, because the model counts on it."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.scale.model import Size
from penstock.metadata.cluster_entries import (
    NodeEntry,
    PartitionKey,
    encode_entry,
    node_key,
    partition_key,
)
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.metadata.topics.catalog import topic_key
from penstock.model.topic import Kind, Topic
from penstock.replication.row import PartitionRow

ACCOUNT = "123456789012"
REGION = "eu-central-1"
FIRST_REVISION = 1_000_000  # of registrations that nobody has made in a store: of realistic length
TTL_MS = 3_600_000
IN_SYNC_MIN = 2

_encode_topic = msgspec.json.Encoder().encode


def node_entry(node: int) -> NodeEntry:
    host = f"10.{node >> 16 & 255}.{node >> 8 & 255}.{node & 255}"
    return NodeEntry(
        node,
        f"node-{node}",
        f"{host}:9400",
        http=f"https://{host}:9324",
        kafka=f"{host}:9092",
        folder_id=f"{node:032x}",
        version="0.1.0",
    )


def topic_id(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % 2**128:032x}"


def queue(number: int, *, partitions: int = 1) -> Topic:
    return Topic(
        topic_id(number),
        ACCOUNT,
        REGION,
        f"orders-of-{number:07d}",
        Kind.STANDARD,
        partitions,
        1_760_000_000_000,
        1_760_000_000_000,
        number.to_bytes(32, "big"),
    )


def topic_entry(topic: Topic) -> tuple[str, bytes]:
    return topic_key(topic.account, topic.region, topic.name), _encode_topic(topic)


def places(size: Size, *, seed: int = 1) -> Iterator[tuple[int, ...]]:
    """Where each partition is, its leader first: no node has one more than another needs to, and
    leaders differ by a few."""
    chance = random.Random(seed)
    nodes = list(range(1, size.nodes + 1))
    count = min(size.replicas, size.nodes)
    led: Counter[int] = Counter()
    dealt: list[int] = []
    for _ in range(size.partitions):
        if len(dealt) < count:
            chance.shuffle(nodes)
            while not set(dealt).isdisjoint(nodes[: count - len(dealt)]):
                chance.shuffle(nodes)  # nobody gets a partition twice
            dealt += nodes
        some, dealt = dealt[:count], dealt[count:]
        first = min(some, key=lambda node: (led[node], chance.random()))
        led[first] += 1
        yield (first, *(node for node in some if node != first))


def row(replicas: Sequence[int], incarnation: int) -> PartitionRow:
    return PartitionRow(
        tuple(replicas),
        frozenset(replicas),
        leader=replicas[0],
        leader_incarnation=incarnation,
        epoch=1,
        in_sync_min=min(IN_SYNC_MIN, len(replicas)),
    )


def keys(size: Size) -> Iterator[PartitionKey]:
    for number in range(size.queues):
        for index in range(size.partitions_per_queue):
            yield PartitionKey(topic_id(number), index)


async def register(store: Store, nodes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """As so many nodes would. Returns each one's lease and incarnation."""
    found = {}
    for node in nodes:
        lease = await store.grant(TTL_MS)
        made = await store.txn(
            puts=((node_key(node), encode_entry(node_entry(node))),), lease=lease
        )
        found[node] = (lease, made)
    return found


async def fill(store: Store, size: Size) -> dict[int, tuple[int, int]]:
    """Nodes, queues and rows of a cluster. Returns what ``register`` does."""
    registered = await register(store, range(1, size.nodes + 1))
    await _put_all(store, (topic_entry(made) for made in _queues(size)))
    rows = (
        (partition_key(key), encode_entry(row(place, registered[place[0]][1])))
        for key, place in zip(keys(size), places(size), strict=True)
    )
    await _put_all(store, rows)
    return registered


def _queues(size: Size) -> Iterator[Topic]:
    for number in range(size.queues):
        yield queue(number, partitions=size.partitions_per_queue)


async def _put_all(store: Store, entries: Iterator[tuple[str, bytes]]) -> None:
    some: list[tuple[str, bytes]] = []
    for entry in entries:
        some.append(entry)
        if len(some) == CHANGES_PER_TXN_MAX:
            await store.txn(puts=some)
            some = []
    if some:
        await store.txn(puts=some)
