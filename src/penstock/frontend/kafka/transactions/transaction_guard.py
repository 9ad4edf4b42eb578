"""Checks before a transactional batch is appended: the partition must be in the open transaction of
the producer. Otherwise the batch would open a transaction that never ends, and readers of committed
records would wait for ever. A partition that already has records of the transaction needs no check.

Up to version 11 of Produce the producer has added the partition, and the coordinator verifies it;
from 12 on the server adds it."""

from penstock.cursor.coordinator_calls import AddPartitions, VerifyPartition
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.model.calls import IsInTransaction
from penstock.model.topic import Topic
from penstock.record.batch import BatchHeader
from penstock.wire.kafka.faults import ErrorCode

_ABORTABLE_FROM = 11
_ADDS_FROM = 12
NEVER = 1 << 15
# Producers do not expect these codes of coordinators; they get one that all of them retry.
_LATER = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS)


async def check_transaction(
    context: KafkaContext,
    version: int,
    transactional_id: str | None,
    topic: Topic,
    index: int,
    header: BatchHeader,
) -> None:
    """Raises ApiError unless the batch may be appended, before the caller's next await."""
    if topic.is_queue:
        raise invalid_request(
            "A queue does not support transactions: its consumers do not wait for their end."
        )
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "The request has no transactional id.")
    producer_id, producer_epoch = header.producer_id, header.producer_epoch
    if await context.broker.call(IsInTransaction(topic, index, producer_id, producer_epoch)):
        return
    place = (topic.topic_id, index)
    if version >= _ADDS_FROM:
        code = await context.transactions.call(
            AddPartitions(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=(place,),
            )
        )
    else:
        code = await context.transactions.call(
            VerifyPartition(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partition=place,
            )
        )
    if code in _LATER:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"The transaction cannot continue yet: {code}."
        )
    if code:
        raise ApiError(
            code_for_version(code, version, fenced_from=NEVER, abortable_from=_ABORTABLE_FROM)
        )


def code_for_version(
    code: ErrorCode, version: int, *, fenced_from: int, abortable_from: int
) -> ErrorCode:
    """Return the code for a client: two codes are newer than some APIs, whose clients expect other
    codes before the given versions."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < abortable_from:
        return ErrorCode.INVALID_TXN_STATE
    return code
