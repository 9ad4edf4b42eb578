"""FindCoordinator: the node that coordinates a group, a transactional id or a share group: the
leader of the partition of the internal topic to which its id belongs, also for unused ids."""

from penstock.frontend.kafka.checks import check_cluster, check_group, check_transactional_id
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.ports.brokers import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from penstock.model.names import scoped_id
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import find_coordinator as wire

_BATCHED_FROM = 4
_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_NO_NODE = -1


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    if call.version >= _BATCHED_FROM:
        return wire.Response(
            coordinators=await call.slices.map(
                lambda key: _of(call, request.key_type, key),
                dict.fromkeys(request.coordinator_keys),
            )
        )
    found = _of(call, request.key_type, request.key)
    return wire.Response(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _of(call: KafkaCall, key_type: int, key: str) -> wire.Coordinator:
    context = call.context
    try:
        _check(call, key_type, key)
        # The internal topic has keys that contain the account.
        internal = TRANSACTIONS_TOPIC if key_type == _TRANSACTION else GROUPS_TOPIC
        group_id = (
            key.partition(":")[0] if key_type == _SHARE else key
        )  # before topic id, partition
        scoped = scoped_id(context.account, group_id, own_account=context.config.account)
        found = context.brokers.coordinator(internal, scoped)
        if found is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except ApiError as error:
        return wire.Coordinator(key, _NO_NODE, "", _NO_NODE, **error_fields(error))
    return wire.Coordinator(key, found.node_id, found.host, found.port, 0, "")


def _check(call: KafkaCall, key_type: int, key: str) -> None:
    if key_type == _GROUP:
        check_group(call, Operation.DESCRIBE, key)
    elif key_type == _TRANSACTION:
        check_transactional_id(call, Operation.DESCRIBE, key)
    elif key_type == _SHARE:
        check_cluster(call, Operation.CLUSTER_ACTION)
    else:
        raise invalid_request(f"There are no coordinators of type {key_type}.")
