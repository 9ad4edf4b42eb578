"""AddPartitionsToTxn: a producer says which partitions it is about to write to, before it does.

All of a transaction's partitions are added, or none: when one of them cannot be, the others are
answered as not attempted. Versions 4 and later carry several transactions and may ask only whether
partitions are in one; they are mapped to themselves, and earlier ones become one transaction here.
The later ones are for nodes among themselves: who sends them speaks for the cluster, not for the
producers it names.

A queue takes no part in transactions: its consumers get messages as they come and cannot wait for a
marker. Neither do the topics of the node's own."""

from collections.abc import Sequence

from penstock.cursor.group.codes import Code
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import (
    Operation,
    on_cluster,
    on_topic,
    on_transaction,
)
from penstock.frontend.kafka.topics import find_name, has_partition, is_of_node
from penstock.frontend.kafka.transaction_calls import code_for_version
from penstock.frontend.slices import portions
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

KEY = 24
_BATCHED_FROM = 4
_FENCED_FROM = 2
_ABORTABLE_FROM = 5

Codes = dict[tuple[str, int], ErrorCode]  # by topic name and partition


async def run(
    context: KafkaContext, call: KafkaCall, asked: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if call.version >= _BATCHED_FROM:
        if not on_cluster(context, call, Operation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = [
            AddPartitionsToTxnResult(each.transactional_id, await _transaction(context, call, each))
            async for each in call.slices.each(asked.transactions)
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    alone = AddPartitionsToTxnTransaction(
        asked.v3_and_below_transactional_id,
        asked.v3_and_below_producer_id,
        asked.v3_and_below_producer_epoch,
        False,
        asked.v3_and_below_topics,
    )
    if on_transaction(context, call, Operation.WRITE, alone.transactional_id):
        topics = await _transaction(context, call, alone)
    else:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topics = await _results(call, alone.topics, {}, code)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


async def _transaction(
    context: KafkaContext, call: KafkaCall, asked: AddPartitionsToTxnTransaction
) -> Sequence[AddPartitionsToTxnTopicResult]:
    version = call.version
    refused: Codes = {}
    places: dict[tuple[str, int], tuple[str, int]] = {}  # by name → by id
    async for each in call.slices.each(asked.topics):
        topic = find_name(context, each.name)
        may_write = version >= _BATCHED_FROM or on_topic(
            context, call, Operation.WRITE, each.name, topic
        )
        async for index in call.slices.each(each.partitions):
            code = _refusal(topic, index) if may_write else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if code or topic is None:
                refused[each.name, index] = code
            else:
                places[each.name, index] = (topic.topic_id, index)
    if refused:
        return await _results(call, asked.topics, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    if asked.verify_only:
        codes = {
            name: _code(await _verified(context, asked, place), version)
            async for name, place in call.slices.each(places.items())
        }
        return await _results(call, asked.topics, codes, ErrorCode.NONE)
    code = ErrorCode.NONE
    async for some in call.slices.each(portions(list(places.values())) or ((),)):
        added = await context.transactions.add(
            asked.transactional_id,
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            partitions=some,
        )
        code = _code(added, version)
        if code:
            break
    return await _results(call, asked.topics, {}, code)


def _refusal(topic: Topic | None, index: int) -> ErrorCode:
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_queue or is_of_node(topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _verified(
    context: KafkaContext, asked: AddPartitionsToTxnTransaction, place: tuple[str, int]
) -> Code:
    return await context.transactions.verify(
        asked.transactional_id,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        partition=place,
    )


def _code(code: Code, version: int) -> ErrorCode:
    return code_for_version(code, version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM)


async def _results(
    call: KafkaCall, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes, default: ErrorCode
) -> Sequence[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            each.name,
            [
                AddPartitionsToTxnPartitionResult(index, codes.get((each.name, index), default))
                async for index in call.slices.each(each.partitions)
            ],
        )
        async for each in call.slices.each(topics)
    ]


ACTION = KafkaAction(KEY, run)
