"""Which nodes there are and who leads what, as Kafka clients are told: they find their leaders and
coordinators by themselves. A node by itself is the only one, and leads everything."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.model.topic import Topic

NOBODY: Final = -1
GROUPS_TOPIC: Final = "__groups"
TRANSACTIONS_TOPIC: Final = "__transactions"


class BrokerAt(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class Place(NamedTuple):
    """Where a partition is."""

    leader: int  # NOBODY: nobody at the moment
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
        """The largest epoch up to this one that a log led here has, and where it ends; None when
        there was never more than one."""
        ...

    def coordinator(self, internal_topic: str, key: str) -> BrokerAt | None:
        """Of a group or a transaction; None when there is none at the moment."""
        ...


class SoleBroker:
    def __init__(
        self,
        node_id: int,
        advertised: Callable[[], tuple[str, int]],
        epoch_of: Callable[[Topic, int], int] = lambda _topic, _index: 0,
    ) -> None:
        """``epoch_of``: it has always led everything, in one epoch. Which one, a log may say that
        comes from a cluster's backup."""
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
