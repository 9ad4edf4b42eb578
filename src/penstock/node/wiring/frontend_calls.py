"""The broker, its coordinators and the metadata as the frontends of this node call them: behind
their bulkheads, and within the quotas of tenants. A node by itself serves all partitions. In a
cluster SQS calls go to the leader of the partition; Kafka clients find leaders by themselves."""

from collections.abc import Mapping

from penstock.broker.calls import Broker
from penstock.calls.callees import Callees
from penstock.calls.guarded import GuardedBroker
from penstock.cursor.coordinator_calls import Coordinators, GroupCoordinators
from penstock.cursor.tenants import CoordinatorUsage
from penstock.frontend.kafka.ports.coordinators import GuardedCoordinators, GuardedGroups
from penstock.frontend.limited_calls import GuardedCatalog, LimitedBroker, guard_identities
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.metadata.security.identities import StoredIdentities
from penstock.model.calls import BrokerPort
from penstock.model.ports import Clock
from penstock.model.quotas import Quota
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.metadata.metadata_link import MetadataLink


class FrontendCalls:
    def __init__(
        self,
        broker: Broker,
        metadata: MetadataLink,
        identities: StoredIdentities,
        *,
        clock: Clock,
        node: str,
        own_account: str,
        bounds: Mapping[Quota, int],
        coordinators: CoordinatorUsage,
        cluster: ClusterRole | None = None,
    ) -> None:
        """``bounds``: what this node has for all tenants together."""
        self._node = node
        callees = self.callees = Callees(clock, own_account=own_account)
        guarded = GuardedBroker(broker, callees.backend(node), callees.metadata)
        self.unlimited: BrokerPort = broker  # the brokers of all nodes, for records of this node
        routed: BrokerPort = guarded
        if cluster is not None:
            routed = cluster.route(broker, callees)(guarded)
            self.unlimited = cluster.anywhere
        quotas = self.quotas = TenantQuotas(
            identities,
            metadata.topics,
            own_account=own_account,
            bounds=bounds,
            coordinators=coordinators,
        )
        # Its watch knows at once that the metadata is back; a probe might ask half a minute later.
        metadata.on_back(callees.metadata.mark_available)
        self.throttler = Throttler(own_account=own_account)
        self.broker = LimitedBroker(guarded, callees.metadata, quotas)  # of this node
        self.anywhere = LimitedBroker(routed, callees.metadata, quotas)  # of all nodes
        self.catalog = GuardedCatalog(metadata.catalog, callees.metadata, quotas)
        # For Kafka, whose clients take "no such topic" for "not yet" and ask again by themselves.
        self.stream_catalog = GuardedCatalog(metadata.topics, callees.metadata, quotas)
        self.directory = guard_identities(identities, callees.metadata)

    # Coordinators are there only once the broker has started.

    def groups(self, groups: GroupCoordinators) -> GuardedGroups:
        return GuardedGroups(groups, self.callees.groups(self._node))

    def transactions(self, transactions: Coordinators) -> GuardedCoordinators:
        return GuardedCoordinators(transactions, self.callees.transactions(self._node))

    def share_among(self, frontend_count: int) -> None:
        """Share limits and quotas of tenants among the live frontends, this one included."""
        self.throttler.share_among(frontend_count)
        self.quotas.share_among(frontend_count)
