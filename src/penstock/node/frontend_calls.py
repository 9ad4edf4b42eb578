"""The broker, its coordinators and the metadata as the frontends of this node call them: behind
their bulkheads, and within the quotas of tenants. A node by itself serves all partitions. In a
cluster SQS is served by way of whoever leads; Kafka's clients find their leaders by themselves."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.broker.calls import Broker
from penstock.cursor.tenants import TenantRooms
from penstock.frontend.callees import Callees
from penstock.frontend.dispatch import DispatchedBackend, DispatchedCatalog
from penstock.frontend.dispatch_coordinators import (
    DispatchedGroups,
    DispatchedProducerIds,
    DispatchedTransactions,
)
from penstock.frontend.dispatch_identities import DispatchedIdentities
from penstock.frontend.dispatch_streams import DispatchedShares, DispatchedStreams
from penstock.frontend.kafka.context import ProducerIds
from penstock.frontend.kafka.group_calls import GroupCalls
from penstock.frontend.kafka.transaction_calls import TransactionCalls
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.routing import BrokerCalls, Joined
from penstock.frontend.throttle import Throttler
from penstock.metadata.identities import StoredIdentities
from penstock.model.ports import Clock
from penstock.model.quotas import Quota
from penstock.model.topic import Topic
from penstock.node.cluster_role import ClusterRole
from penstock.node.metadata_link import MetadataLink


class FrontendCalls(NamedTuple):
    node: str
    anywhere: BrokerCalls  # the brokers of all nodes, for what this one writes for itself
    callees: Callees
    quotas: TenantQuotas
    throttler: Throttler
    backend: DispatchedBackend
    streams: DispatchedStreams
    shares: DispatchedShares
    catalog: DispatchedCatalog
    # For Kafka, whose clients take "no such topic" for "not yet" and ask again by themselves.
    stream_catalog: DispatchedCatalog
    directory: DispatchedIdentities

    # Coordinators are there only once the broker has started.

    def groups(self, calls: GroupCalls) -> DispatchedGroups:
        return DispatchedGroups(calls, self.callees.groups(self.node))

    def transactions(self, calls: TransactionCalls) -> DispatchedTransactions:
        return DispatchedTransactions(calls, self.callees.transactions(self.node))

    def producer_ids(self, ids: ProducerIds) -> DispatchedProducerIds:
        return DispatchedProducerIds(ids, self.callees.metadata)

    def share_among(self, frontend_count: int) -> None:
        """Limits and quotas of tenants: so many frontends are alive, this one included."""
        self.throttler.share_among(frontend_count)
        self.quotas.share_among(frontend_count)


def make_calls(
    broker: Broker,
    metadata: MetadataLink,
    identities: StoredIdentities,
    *,
    clock: Clock,
    node: str,
    own_account: str,
    bounds: Mapping[Quota, int],
    coordinators: TenantRooms,
    cluster: ClusterRole | None = None,
) -> FrontendCalls:
    """``bounds``: what this node has for all tenants together."""
    callees = Callees(clock, own_account=own_account)
    anywhere: BrokerCalls = (
        Joined(broker, broker, broker.shares)
        if cluster is None
        else cluster.routed(broker, callees)
    )
    quotas = TenantQuotas(
        identities,
        metadata.topics,
        own_account=own_account,
        bounds=bounds,
        coordinators=coordinators,
    )
    # Its watch knows at once that the metadata is back; a probe might ask half a minute later.
    metadata.on_back(callees.metadata.answers_again)

    def node_of(_topic: Topic, _partition: int | None) -> str:
        return node

    return FrontendCalls(
        node=node,
        anywhere=anywhere,
        callees=callees,
        quotas=quotas,
        throttler=Throttler(own_account=own_account),
        backend=DispatchedBackend(anywhere, callees, quotas, node_of=node_of),
        streams=DispatchedStreams(broker, callees, quotas, node_of=node_of),
        shares=DispatchedShares(anywhere, callees, quotas, node_of=node_of),
        catalog=DispatchedCatalog(metadata.catalog, callees, quotas),
        stream_catalog=DispatchedCatalog(metadata.topics, callees, quotas),
        directory=DispatchedIdentities(identities, callees),
    )
