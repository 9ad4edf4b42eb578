"""The brokers and leaders that Kafka clients see in a cluster, from the rows this node knows."""

from collections.abc import Sequence

from penstock.frontend.kafka.ports.cluster import NO_LEADER, BrokerAt, Place
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.model.ports import Catalog
from penstock.model.topic import Topic, partition_of_group
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.configuration.addresses import parse_listen


class ClusterBrokers:
    """Implements ``frontend.kafka.ports.cluster.Brokers``."""

    def __init__(self, cluster: ClusterRole, catalog: Catalog, *, account: str, region: str):
        self._cluster = cluster
        self._catalog = catalog
        self._namespace = (account, region)

    def all(self) -> Sequence[BrokerAt]:
        found = [broker_of(entry) for _, entry in sorted(self._cluster.view.nodes.items())]
        return [one for one in found if one is not None]

    @property
    def controller(self) -> int:
        manager = self._cluster.manager
        return NO_LEADER if manager is None else manager.manager

    def place(self, topic: Topic, index: int) -> Place:
        view = self._cluster.view.of_topic(topic.source_id or topic.topic_id).get(index)
        if view is None:
            return Place(NO_LEADER, -1, (), ())
        row, nodes = view.row, self._cluster.view.nodes
        led = self._cluster.routes.leader(topic, index)
        leader, epoch = (NO_LEADER, row.epoch) if led is None else led
        return Place(
            leader,
            epoch,
            row.replicas,
            sorted(row.in_sync),
            [node for node in row.replicas if node not in nodes],
        )

    def epoch_end(self, topic: Topic, index: int, epoch: int) -> tuple[int, int] | None:
        found = self._cluster.replicators.find(PartitionKey(topic.topic_id, index))
        if found is None or found.replica.leader is None:
            return None
        return found.replica.history.end_of(epoch, end_offset=found.replica.end_offset)

    def coordinator(self, internal_topic: str, key: str) -> BrokerAt | None:
        topic = self._catalog.find(*self._namespace, internal_topic)
        if topic is None:
            return None
        led = self._cluster.routes.leader(topic, partition_of_group(key, topic.partition_count))
        entry = None if led is None else self._cluster.view.nodes.get(led[0])
        return None if entry is None else broker_of(entry)


def broker_of(entry: NodeEntry) -> BrokerAt | None:
    if not entry.kafka:
        return None  # no Kafka listener, or not open yet
    host, port = parse_listen(entry.kafka)
    return BrokerAt(entry.node, host, port, entry.rack or None)
