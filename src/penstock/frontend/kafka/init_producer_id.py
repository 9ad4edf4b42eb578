"""InitProducerId: a number for a producer whose batches must not count twice.

Without a transactional id the number is new every time, so its epoch is always 0. With one the
coordinator answers: the same number under the next epoch, which fences whoever had it before, once
the transaction that producer may have left open is aborted."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, may_write_somewhere, on_transaction
from penstock.frontend.kafka.transaction_calls import code_for_version
from penstock.model.errors import PenstockError
from penstock.wire.kafka.faults import ErrorCode, code_of
from penstock.wire.kafka.generated.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

KEY = 22
_FENCED_FROM = 4
_ABORTABLE_FROM = 5
_NO_ID = -1
_NO_EPOCH = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: InitProducerIdRequest
) -> InitProducerIdResponse:
    transactional_id = asked.transactional_id
    if transactional_id is None:
        if not may_write_somewhere(context, call):
            return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    elif not on_transaction(context, call, Operation.WRITE, transactional_id):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (asked.producer_id == _NO_ID) != (asked.producer_epoch == _NO_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        return await _transactional(context, call, asked, transactional_id)
    try:
        producer_id = await context.producer_ids.next_id()
    except PenstockError as error:
        code = code_of(error)
        # Producers give up upon codes that they do not expect here; upon this one they ask again.
        is_later = code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_later else code)
    return InitProducerIdResponse(producer_id=producer_id)


async def _transactional(
    context: KafkaContext, call: KafkaCall, asked: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    reply = await context.transactions.init(
        transactional_id,
        timeout_ms=asked.transaction_timeout_ms,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
    )
    if reply.code:
        return _refused(
            code_for_version(
                reply.code,
                call.version,
                fenced_from=_FENCED_FROM,
                abortable_from=_ABORTABLE_FROM,
            )
        )
    return InitProducerIdResponse(
        producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=_NO_EPOCH)


ACTION = KafkaAction(KEY, run)
