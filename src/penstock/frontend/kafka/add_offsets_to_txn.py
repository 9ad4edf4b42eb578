"""AddOffsetsToTxn: a producer says that it will commit a group's offsets in its transaction."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group, on_transaction
from penstock.frontend.kafka.transaction_calls import code_for_version
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

KEY = 25
_FENCED_FROM = 2
_ABORTABLE_FROM = 4


async def run(
    context: KafkaContext, call: KafkaCall, asked: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    if not on_transaction(context, call, Operation.WRITE, asked.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not on_group(context, call, Operation.READ, asked.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    code = await context.transactions.add_group(
        asked.transactional_id,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        group_id=asked.group_id,
    )
    return AddOffsetsToTxnResponse(
        error_code=code_for_version(
            code, call.version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM
        )
    )


ACTION = KafkaAction(KEY, run)
