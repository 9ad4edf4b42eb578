"""InitProducerId, AddOffsetsToTxn and EndTxn: the transactions of one producer."""

from penstock.cursor.coordinator_calls import AddGroup, EndTransaction, InitProducer
from penstock.frontend.kafka.checks import check_group, check_transactional_id
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import ApiError
from penstock.frontend.kafka.permissions import Operation, may_write_somewhere
from penstock.frontend.kafka.transactions.transaction_guard import code_for_version
from penstock.model.errors import PenstockError
from penstock.wire.kafka.faults import ErrorCode, code_of
from penstock.wire.kafka.generated import add_offsets_to_txn as add_wire
from penstock.wire.kafka.generated import end_txn as end_wire
from penstock.wire.kafka.generated import init_producer_id as init_wire

_NO_ID = -1
_NO_EPOCH = -1
_RAISES_EPOCH_FROM = 5


async def init_producer_id(call: KafkaCall, request: init_wire.Request) -> init_wire.Response:
    """Return a producer id, so that no batch of the producer is appended twice.

    Without a transactional id the producer id is new every time and its epoch is 0. With one the
    coordinator returns the same id with the next epoch, which fences an earlier producer, after it
    has aborted a transaction that the earlier producer left open."""
    transactional_id = request.transactional_id
    try:
        if transactional_id is not None:
            check_transactional_id(call, Operation.WRITE, transactional_id)
        elif not may_write_somewhere(call):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if (request.producer_id == _NO_ID) != (request.producer_epoch == _NO_EPOCH):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if transactional_id is None:
            producer_id = await _new_producer_id(call)
            return init_wire.Response(producer_id=producer_id)
        reply = await call.context.transactions.call(
            InitProducer(
                transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            )
        )
        if reply.code:
            raise ApiError(
                code_for_version(reply.code, call.version, fenced_from=4, abortable_from=5)
            )
    except ApiError as error:
        return init_wire.Response(error_code=error.code, producer_epoch=_NO_EPOCH)
    return init_wire.Response(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)


async def _new_producer_id(call: KafkaCall) -> int:
    try:
        return await call.context.producer_ids.next_id()
    except PenstockError as error:
        code = code_of(error)
        if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            # Producers give up upon codes that they do not expect here; they retry upon this one.
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        raise ApiError(code) from None


async def add_offsets(call: KafkaCall, request: add_wire.Request) -> add_wire.Response:
    """Add a group to a transaction: the producer will commit offsets of the group in it."""
    check_transactional_id(call, Operation.WRITE, request.transactional_id)
    check_group(call, Operation.READ, request.group_id)
    code = await call.context.transactions.call(
        AddGroup(
            request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            group_id=request.group_id,
        )
    )
    return add_wire.Response(
        error_code=code_for_version(code, call.version, fenced_from=2, abortable_from=4)
    )


async def end(call: KafkaCall, request: end_wire.Request) -> end_wire.Response:
    """Commit or abort a transaction. The reply is sent when the decision is durable; markers are
    written to the partitions afterwards. From version 5 on the producer gets a new epoch with each
    end, so that nothing it sent before can become part of its next transaction."""
    check_transactional_id(call, Operation.WRITE, request.transactional_id)
    reply = await call.context.transactions.call(
        EndTransaction(
            request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            is_commit=request.committed,
            raises_epoch=call.version >= _RAISES_EPOCH_FROM,
        )
    )
    return end_wire.Response(
        error_code=code_for_version(reply.code, call.version, fenced_from=2, abortable_from=4),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )
