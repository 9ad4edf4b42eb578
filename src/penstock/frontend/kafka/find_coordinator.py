"""FindCoordinator: which node keeps a group, or a transactional id. There is one node, so it is
this one, for ids that nobody has used as well. Share groups have no coordinator yet."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

KEY = 10
_BATCHED_FROM = 4
_GROUP = 0
_TRANSACTION = 1
_NOWHERE = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if call.version >= _BATCHED_FROM:
        return FindCoordinatorResponse(
            coordinators=[_of(context, asked.key_type, key) for key in asked.coordinator_keys]
        )
    found = _of(context, asked.key_type, asked.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _of(context: KafkaContext, key_type: int, key: str) -> Coordinator:
    if key_type not in (_GROUP, _TRANSACTION):
        return Coordinator(
            key,
            _NOWHERE,
            "",
            _NOWHERE,
            ErrorCode.INVALID_REQUEST,
            f"There are no coordinators of type {key_type}.",
        )
    host, port = context.config.advertised()
    return Coordinator(key, context.config.node_id, host, port, 0, None)


ACTION = KafkaAction(KEY, run)
