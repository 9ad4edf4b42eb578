"""DescribeCluster: the nodes, which of them is the controller and, on request, stopped nodes."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import UNASKED, cluster_operations
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

KEY = 60
_BROKERS = 1
_CONTROLLERS = 2


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeClusterRequest
) -> DescribeClusterResponse:
    if asked.endpoint_type != _BROKERS:
        code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if asked.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(error_code=code, error_message=code.message)
    config = context.config
    brokers = [DescribeClusterBroker(*broker) for broker in context.brokers.all()]
    if asked.include_fenced_brokers:
        stopped = await context.cluster.stopped()
        brokers += [DescribeClusterBroker(*broker, is_fenced=True) for broker in stopped]
    return DescribeClusterResponse(
        cluster_id=config.cluster_id,
        controller_id=context.brokers.controller,
        brokers=brokers,
        cluster_authorized_operations=(
            cluster_operations(context, call)
            if asked.include_cluster_authorized_operations
            else UNASKED
        ),
    )


ACTION = KafkaAction(KEY, run)
