"""Before a transactional batch is appended: the partition must be part of the producer's open
transaction, or the batch would open one that nobody ends and hold all readers of committed records
back for ever. A partition that has records of the transaction already need not be asked about.

Up to version 11 of Produce the producer has added the partition itself, and the coordinator is
asked whether it is so; from 12 on it is left to us to add it."""

from penstock.cursor.group.codes import Code
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.transaction_calls import code_for_version
from penstock.model.topic import Topic
from penstock.record.batch import BatchHeader
from penstock.wire.kafka.faults import ErrorCode

_ABORTABLE_FROM = 11
_ADDS_FROM = 12
_NEVER = 1 << 15
# Producers take no codes of coordinators, but all of them try this one again.
_LATER = (Code.COORDINATOR_NOT_AVAILABLE, Code.CONCURRENT_TRANSACTIONS)


async def check_transaction(
    context: KafkaContext,
    version: int,
    transactional_id: str | None,
    topic: Topic,
    index: int,
    header: BatchHeader,
) -> None:
    """Raises Refusal, or the batch may be appended before the caller's next await."""
    if topic.is_queue:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "A queue takes no transactions: its consumers do not wait for their end.",
        )
    if not transactional_id:
        raise Refusal(ErrorCode.INVALID_TXN_STATE, "The request has no transactional id.")
    producer_id, producer_epoch = header.producer_id, header.producer_epoch
    if await context.streams.is_in_transaction(topic, index, producer_id, producer_epoch):
        return
    place = (topic.topic_id, index)
    if version >= _ADDS_FROM:
        code = await context.transactions.add(
            transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=(place,),
        )
    else:
        code = await context.transactions.verify(
            transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition=place,
        )
    if code in _LATER:
        raise Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, f"The transaction cannot go on yet: {code}.")
    if code:
        raise Refusal(
            code_for_version(code, version, fenced_from=_NEVER, abortable_from=_ABORTABLE_FROM)
        )
