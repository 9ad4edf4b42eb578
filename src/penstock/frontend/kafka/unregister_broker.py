"""UnregisterBroker: forget a node that is stopped and has no replicas. A node with replicas is
rejected: its partitions would wait for it for ever."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import REFUSALS, refusal_of
from penstock.model.errors import NotFound
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

KEY = 64


async def run(
    context: KafkaContext, call: KafkaCall, asked: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    if not on_cluster(context, call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return UnregisterBrokerResponse(error_code=code, error_message=code.message)
    try:
        await context.cluster.unregister(asked.broker_id)
    except NotFound as error:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=str(error)
        )
    except REFUSALS as error:
        refusal = refusal_of(error)
        return UnregisterBrokerResponse(error_code=refusal.code, error_message=refusal.message)
    return UnregisterBrokerResponse(error_message=None)


ACTION = KafkaAction(KEY, run)
