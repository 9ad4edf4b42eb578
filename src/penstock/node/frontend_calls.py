"""The broker and the metadata as the frontends of this node call them: behind their bulkheads, and
within the quotas of tenants. On one machine all partitions are served by this node."""

from typing import NamedTuple

from penstock.broker.calls import Broker
from penstock.frontend.callees import Callees
from penstock.frontend.dispatch import DispatchedBackend, DispatchedCatalog
from penstock.frontend.dispatch_identities import DispatchedIdentities
from penstock.frontend.dispatch_streams import DispatchedShares, DispatchedStreams
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.throttle import Throttler
from penstock.metadata.identities import StoredIdentities
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.node.metadata_link import MetadataLink


class FrontendCalls(NamedTuple):
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


def make_calls(
    broker: Broker,
    metadata: MetadataLink,
    identities: StoredIdentities,
    *,
    clock: Clock,
    node: str,
) -> FrontendCalls:
    callees = Callees(clock)
    quotas = TenantQuotas(identities, metadata.topics)
    # Its watch knows at once that the metadata is back; a probe might ask half a minute later.
    metadata.on_back(callees.metadata.breaker.succeeded)

    def node_of(_topic: Topic, _partition: int | None) -> str:
        return node

    return FrontendCalls(
        callees=callees,
        quotas=quotas,
        throttler=Throttler(),
        backend=DispatchedBackend(broker, callees, quotas, node_of=node_of),
        streams=DispatchedStreams(broker, callees, quotas, node_of=node_of),
        shares=DispatchedShares(broker.shares, callees, quotas, node_of=node_of),
        catalog=DispatchedCatalog(metadata.catalog, callees, quotas),
        stream_catalog=DispatchedCatalog(metadata.topics, callees, quotas),
        directory=DispatchedIdentities(identities, callees),
    )
