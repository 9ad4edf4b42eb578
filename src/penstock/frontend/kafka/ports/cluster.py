"""``Brokers`` finds nodes, leaders and coordinators for clients. ``KafkaCluster`` reads and changes
the cluster for admin requests. Here both are for a single node, which leads all partitions;
``node/wiring/kafka_cluster.py`` overrides them for a cluster."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Final, NamedTuple

from penstock.model.calls import BrokerPort, LogBytes
from penstock.model.errors import Conflict, InvalidRequest, NotFound, PenstockError
from penstock.model.ports import ProducerSeen
from penstock.model.topic import Topic

NO_LEADER: Final = -1
GROUPS_TOPIC: Final = "__groups"
TRANSACTIONS_TOPIC: Final = "__transactions"


class BrokerAt(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class Place(NamedTuple):
    """The nodes that have replicas of a partition."""

    leader: int  # NO_LEADER: none at the moment
    epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()


class Brokers:
    def __init__(
        self,
        node_id: int,
        advertised: Callable[[], tuple[str, int]],
        epoch_of: Callable[[Topic, int], int] = lambda _topic, _index: 0,
    ) -> None:
        self._advertised = advertised
        self._epoch_of = epoch_of  # above 0 for logs from the backup of a cluster
        self._place = Place(node_id, 0, (node_id,), (node_id,))

    def all(self) -> Sequence[BrokerAt]:
        return (BrokerAt(self._place.leader, *self._advertised()),)

    @property
    def controller(self) -> int:
        return self._place.leader

    def place(self, topic: Topic, index: int) -> Place:
        epoch = self._epoch_of(topic, index)
        return self._place._replace(epoch=epoch) if epoch else self._place

    def epoch_end(self, topic: Topic, index: int, epoch: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Return the largest leader epoch of the partition that is at most ``epoch``, with its end
        offset, or None on a single node. Raises LeaderMoved if this node does not lead it."""
        return None

    def coordinator(self, internal_topic: str, key: str) -> BrokerAt | None:  # noqa: ARG002
        """Return the coordinator of a group or transaction, or None if it has none at present."""
        return self.all()[0]


class Reassigned(NamedTuple):
    replicas: Sequence[int]  # all replicas during the move
    adding: Sequence[int]
    removing: Sequence[int]


class Election(Enum):
    DONE = "done"
    NOT_NEEDED = "not needed"
    UNAVAILABLE = "unavailable"


class ReplicaHere(NamedTuple):
    size_bytes: int
    lag: int = 0  # records that this replica does not have yet


class Quorum(NamedTuple):
    """What DescribeQuorum shows: the manager, its epoch, the metadata revision and all nodes."""

    leader: int
    epoch: int
    revision: int
    nodes: Sequence[int]


class KafkaCluster:
    def __init__(self, node: int, broker: BrokerPort) -> None:
        self._node = node
        self._broker = broker

    @property
    def nodes(self) -> Collection[int]:
        """Return the nodes that are alive."""
        return (self._node,)

    @asynccontextmanager
    async def placed(
        self,
        topic: Topic,  # noqa: ARG002
        places: Mapping[int, Sequence[int]],
    ) -> AsyncIterator[None]:
        """Create partitions on the given nodes. They are removed again if the body of the ``async
        with``, which stores the topic, fails. Raises InvalidRequest if a node is not alive."""
        for replicas in places.values():
            self._check(replicas)
        yield

    def _check(self, replicas: Sequence[int]) -> None:
        for node in replicas:
            if node != self._node:
                raise InvalidRequest(f"Node {node} does not exist. Nodes: [{self._node}].")

    async def moves(self) -> Mapping[tuple[str, int], Reassigned]:
        """Return all partitions that are being moved, by topic id and index."""
        return {}

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:  # noqa: ARG002
        """Start to move a partition to ``replicas``. Raises InvalidRequest for invalid nodes."""
        self._check(replicas)

    async def cancel_move(self, topic: Topic, index: int) -> int:
        """Cancel a move. Return how many replicas remain. Raises NotFound if there is no move."""
        raise NotFound(f"Partition {topic.name}/{index} is not moving.")

    async def elect(self, topic: Topic, index: int, *, is_unclean: bool) -> Election:  # noqa: ARG002
        """Elect a leader. Raises NotFound if the partition is still being created."""
        return Election.NOT_NEEDED

    async def replica(self, topic: Topic, index: int) -> ReplicaHere | None:
        try:
            return ReplicaHere(await self._broker.call(LogBytes(topic, index)))
        except PenstockError:
            return None  # the log was deleted meanwhile, or is unreadable

    async def followed_producers(
        self,
        topic: Topic,  # noqa: ARG002
        index: int,  # noqa: ARG002
    ) -> Sequence[ProducerSeen] | None:
        """Return the producers of a partition, or None if this node is not one of its followers."""
        return None

    async def stopped(self) -> Sequence[BrokerAt]:
        return ()

    async def unregister(self, node: int) -> None:
        """Remove a stopped node. Raises Conflict if the node is alive or has replicas."""
        if node == self._node:
            raise Conflict(f"Node {node} is alive. Stop it first.")
        raise NotFound(f"There is no node {node}.")

    def quorum(self) -> Quorum:
        return Quorum(self._node, 1, 0, (self._node,))
