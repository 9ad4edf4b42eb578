"""AddPartitionsToTxn: add partitions to a transaction before the producer writes to them.

All partitions of a transaction are added, or none: if one cannot be added, the others get
OPERATION_NOT_ATTEMPTED. Versions 4 and later are for requests between nodes: they have several
transactions, may only verify partitions, and need rights on the cluster instead of the producers'.

Queues cannot be in transactions, because their consumers do not wait for markers; nor can internal
topics."""

from collections.abc import Sequence

from penstock.cursor.coordinator_calls import AddPartitions, VerifyPartition
from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_topic, on_transaction
from penstock.frontend.kafka.topic_lookup import find_name, has_partition, is_internal_topic
from penstock.frontend.kafka.transactions.transaction_guard import code_for_version
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import add_partitions_to_txn as wire

_BATCHED_FROM = 4
_FENCED_FROM = 2
_ABORTABLE_FROM = 5

Codes = dict[tuple[str, int], ErrorCode]  # by topic name and partition


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    if call.version >= _BATCHED_FROM:
        check_cluster(call, Operation.CLUSTER_ACTION)
        results = [
            wire.AddPartitionsToTxnResult(each.transactional_id, await _transaction(call, each))
            async for each in call.slices.each(request.transactions)
        ]
        return wire.Response(results_by_transaction=results)
    alone = wire.AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )
    if on_transaction(call, Operation.WRITE, alone.transactional_id):
        topics = await _transaction(call, alone)
    else:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topics = await _results(call, alone.topics, {}, code)
    return wire.Response(results_by_topic_v3_and_below=topics)


async def _transaction(
    call: KafkaCall, requested: wire.AddPartitionsToTxnTransaction
) -> Sequence[wire.AddPartitionsToTxnTopicResult]:
    version = call.version
    refused: Codes = {}
    places: dict[tuple[str, int], tuple[str, int]] = {}  # by name → by id
    async for each in call.slices.each(requested.topics):
        topic = find_name(call.context, each.name)
        may_write = version >= _BATCHED_FROM or on_topic(call, Operation.WRITE, each.name, topic)
        async for index in call.slices.each(each.partitions):
            code = _check(topic, index) if may_write else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if code or topic is None:
                refused[each.name, index] = code
            else:
                places[each.name, index] = (topic.topic_id, index)
    if refused:
        return await _results(call, requested.topics, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    if requested.verify_only:
        codes = {
            name: _code(await _verified(call.context, requested, place), version)
            async for name, place in call.slices.each(places.items())
        }
        return await _results(call, requested.topics, codes, ErrorCode.NONE)
    code = ErrorCode.NONE
    async for some in call.slices.each(portions(list(places.values())) or ((),)):
        added = await call.context.transactions.call(
            AddPartitions(
                requested.transactional_id,
                producer_id=requested.producer_id,
                producer_epoch=requested.producer_epoch,
                partitions=some,
            )
        )
        code = _code(added, version)
        if code:
            break
    return await _results(call, requested.topics, {}, code)


def _check(topic: Topic | None, index: int) -> ErrorCode:
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_queue or is_internal_topic(topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _verified(
    context: KafkaContext, requested: wire.AddPartitionsToTxnTransaction, place: tuple[str, int]
) -> ErrorCode:
    return await context.transactions.call(
        VerifyPartition(
            requested.transactional_id,
            producer_id=requested.producer_id,
            producer_epoch=requested.producer_epoch,
            partition=place,
        )
    )


def _code(code: ErrorCode, version: int) -> ErrorCode:
    return code_for_version(code, version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM)


async def _results(
    call: KafkaCall,
    topics: Sequence[wire.AddPartitionsToTxnTopic],
    codes: Codes,
    default: ErrorCode,
) -> Sequence[wire.AddPartitionsToTxnTopicResult]:
    return [
        wire.AddPartitionsToTxnTopicResult(
            each.name,
            [
                wire.AddPartitionsToTxnPartitionResult(
                    index, codes.get((each.name, index), default)
                )
                async for index in call.slices.each(each.partitions)
            ],
        )
        async for each in call.slices.each(topics)
    ]
