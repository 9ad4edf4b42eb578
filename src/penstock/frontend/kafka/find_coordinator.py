"""FindCoordinator: which node keeps a group, a transactional id, or a share group's place in one
partition: whoever leads the partition of the internal topic that its id belongs to. That is so for
ids that nobody has used as well."""

from penstock.frontend.kafka.brokers import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import (
    Operation,
    on_cluster,
    on_group,
    on_transaction,
)
from penstock.model.tenancy import scoped_id
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
_SHARE = 2
_NOWHERE = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if call.version >= _BATCHED_FROM:
        return FindCoordinatorResponse(
            coordinators=await call.slices.map(
                lambda key: _of(context, call, asked.key_type, key),
                dict.fromkeys(asked.coordinator_keys),
            )
        )
    found = _of(context, call, asked.key_type, asked.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _of(context: KafkaContext, call: KafkaCall, key_type: int, key: str) -> Coordinator:
    if key_type not in (_GROUP, _TRANSACTION, _SHARE):
        message = f"There are no coordinators of type {key_type}."
        return _nowhere(key, ErrorCode.INVALID_REQUEST, message)
    refusal = _refusal(context, call, key_type, key)
    if refusal is not None:
        return _nowhere(key, refusal, refusal.message)
    internal, scoped = _place_of(context, key_type, key)
    found = context.brokers.coordinator(internal, scoped)
    if found is None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return _nowhere(key, code, code.message)
    return Coordinator(key, found.node_id, found.host, found.port, 0, "")


def _place_of(context: KafkaContext, key_type: int, key: str) -> tuple[str, str]:
    """The internal topic that keeps it, and its key there: a tenant's own."""
    own = context.config.account
    if key_type == _SHARE:
        key = key.partition(":")[0]  # group, topic id and partition
    scoped = scoped_id(context.account, key, own_account=own)
    return (TRANSACTIONS_TOPIC if key_type == _TRANSACTION else GROUPS_TOPIC), scoped


def _refusal(context: KafkaContext, call: KafkaCall, key_type: int, key: str) -> ErrorCode | None:
    if key_type == _GROUP and not on_group(context, call, Operation.DESCRIBE, key):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == _TRANSACTION and not on_transaction(context, call, Operation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if key_type == _SHARE and not on_cluster(context, call, Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None


def _nowhere(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key, _NOWHERE, "", _NOWHERE, code, message)


ACTION = KafkaAction(KEY, run)
