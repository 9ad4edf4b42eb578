"""EndTxn: commit or abort, answered once that is decided for good; partitions are told behind the
answer. From version 5 on the producer gets a new epoch with each end, so that nothing it sent
before can count for what comes after."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_transaction
from penstock.frontend.kafka.transaction_calls import code_for_version
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.end_txn import EndTxnRequest, EndTxnResponse

KEY = 26
_FENCED_FROM = 2
_ABORTABLE_FROM = 4
_RAISES_EPOCH_FROM = 5


async def run(context: KafkaContext, call: KafkaCall, asked: EndTxnRequest) -> EndTxnResponse:
    if not on_transaction(context, call, Operation.WRITE, asked.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    reply = await context.transactions.end(
        asked.transactional_id,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        is_commit=asked.committed,
        raises_epoch=call.version >= _RAISES_EPOCH_FROM,
    )
    code = code_for_version(
        reply.code, call.version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM
    )
    return EndTxnResponse(
        error_code=code, producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )


ACTION = KafkaAction(KEY, run)
