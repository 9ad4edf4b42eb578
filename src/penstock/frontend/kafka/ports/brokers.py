"""The port to nodes, leaders and coordinators, which Kafka clients find by themselves. A single
node leads everything."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

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
    """The replicas of a partition."""

    leader: int  # NO_LEADER: none at the moment
    epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()


class Brokers(Protocol):
    def all(self) -> Sequence[BrokerAt]: ...

    @property
    def controller(self) -> int: ...

    def place(self, topic: Topic, index: int) -> Place: ...

    def epoch_end(self, topic: Topic, index: int, epoch: int) -> tuple[int, int] | None:
        """Return the largest epoch up to this one in a log that this node leads, and its end
        offset; None if the log has only one epoch."""
        ...

    def coordinator(self, internal_topic: str, key: str) -> BrokerAt | None:
        """Return the coordinator of a group or transaction; None if there is none at the moment."""
        ...


class SoleBroker:
    def __init__(
        self,
        node_id: int,
        advertised: Callable[[], tuple[str, int]],
        epoch_of: Callable[[Topic, int], int] = lambda _topic, _index: 0,
    ) -> None:
        """``epoch_of``: the one epoch of each log. Logs from the backup of a cluster have another
        epoch than 0."""
        self.controller = node_id
        self._advertised = advertised
        self._epoch_of = epoch_of
        self._place = Place(node_id, 0, (node_id,), (node_id,))

    def all(self) -> Sequence[BrokerAt]:
        return (self._at(),)

    def place(self, topic: Topic, index: int) -> Place:
        epoch = self._epoch_of(topic, index)
        return self._place._replace(epoch=epoch) if epoch else self._place

    def epoch_end(self, topic: Topic, index: int, epoch: int) -> tuple[int, int] | None:  # noqa: ARG002
        return None

    def coordinator(self, internal_topic: str, key: str) -> BrokerAt | None:  # noqa: ARG002
        return self._at()

    def _at(self) -> BrokerAt:
        host, port = self._advertised()
        return BrokerAt(self.controller, host, port)
