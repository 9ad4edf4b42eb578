"""Handles the transactions of producers (InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and
EndTxn), and checks transactional batches before they are appended."""

from collections.abc import Sequence
from typing import Any

from penstock.cursor import coordinator_calls as calls
from penstock.frontend.kafka import checks, permissions
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.permissions import Operation
from penstock.model.calls import IsInTransaction
from penstock.model.errors import PenstockError
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.record.batch import BatchHeader
from penstock.wire.kafka.faults import ErrorCode, code_of
from penstock.wire.kafka.generated import add_offsets_to_txn as add_wire
from penstock.wire.kafka.generated import add_partitions_to_txn as txn_wire
from penstock.wire.kafka.generated import end_txn as end_wire
from penstock.wire.kafka.generated import init_producer_id as init_wire

_PRODUCE_ABORTABLE_FROM = 11
_ADDS_FROM = 12
NEVER = 1 << 15
# Producers do not expect these codes in a reply to Produce; they get one that they all retry.
_LATER = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS)
_NO_ID = -1
_NO_EPOCH = -1
_RAISES_EPOCH_FROM = 5
_BATCHED_FROM = 4
_FENCED_FROM = 2
_ABORTABLE_FROM = 5
Codes = dict[tuple[str, int], ErrorCode]  # by topic name and partition


async def check_transaction(
    context: KafkaContext,
    version: int,
    transactional_id: str | None,
    topic: Topic,
    index: int,
    header: BatchHeader,
) -> None:
    """Raise ApiError unless a transactional batch may be appended right after this call.

    The partition must be in the open transaction of the producer. Otherwise the batch would open a
    transaction that never ends, and readers of committed records would wait forever. A partition
    that already has records of the transaction needs no check. Up to version 11 of Produce the
    producer has added the partition, which is verified here; from 12 on the server adds it."""
    if topic.is_queue:
        raise invalid_request(
            "A queue does not support transactions: its consumers do not wait for commits."
        )
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "The request has no transactional id.")
    producer_id, epoch = header.producer_id, header.producer_epoch
    if await context.broker.call(IsInTransaction(topic, index, producer_id, epoch)):
        return
    place = (topic.topic_id, index)
    code = await context.transactions.call(
        calls.AddPartitions(
            transactional_id, producer_id=producer_id, producer_epoch=epoch, partitions=(place,)
        )
        if version >= _ADDS_FROM
        else calls.VerifyPartition(
            transactional_id, producer_id=producer_id, producer_epoch=epoch, partition=place
        )
    )
    if code in _LATER:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The transaction is not ready ({code.name}): retry.",
        )
    if code:
        raise ApiError(code_for_version(code, version, NEVER, _PRODUCE_ABORTABLE_FROM))


def code_for_version(
    code: ErrorCode, version: int, fenced_from: int, abortable_from: int
) -> ErrorCode:
    """Return the code, or an older code if it is not in this version of the API. PRODUCER_FENCED is
    in versions from ``fenced_from`` on, TRANSACTION_ABORTABLE from ``abortable_from`` on."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < abortable_from:
        return ErrorCode.INVALID_TXN_STATE
    return code


async def init_producer_id(call: KafkaCall, request: init_wire.Request) -> init_wire.Response:
    """Return a producer id, with which the server detects batches that are sent twice.

    Without a transactional id, the producer id is new every time and its epoch is 0. With one, the
    coordinator aborts a transaction that an earlier producer left open, and returns the same id
    with the next epoch, which fences the earlier producer."""
    transactional_id = request.transactional_id
    try:
        if transactional_id is not None:
            checks.check_transactional_id(call, Operation.WRITE, transactional_id)
        elif not permissions.may_write_somewhere(call):
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if (request.producer_id == _NO_ID) != (request.producer_epoch == _NO_EPOCH):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if transactional_id is None:
            return init_wire.Response(producer_id=await call.context.producer_ids.next_id())
        reply = await call.context.transactions.call(
            calls.InitProducer(
                transactional_id,
                timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            )
        )
        if reply.code:
            raise ApiError(code_for_version(reply.code, call.version, 4, 5))
    except ApiError as error:
        return init_wire.Response(error_code=error.code, producer_epoch=_NO_EPOCH)
    except PenstockError as error:
        code = code_of(error)
        if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            # Producers give up upon codes that they do not expect here; they retry upon this one.
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return init_wire.Response(error_code=code, producer_epoch=_NO_EPOCH)
    return init_wire.Response(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)


async def add_offsets(call: KafkaCall, request: add_wire.Request) -> add_wire.Response:
    """Add a group to a transaction, in which the producer will commit offsets for the group."""
    checks.check_transactional_id(call, Operation.WRITE, request.transactional_id)
    checks.check_group(call, Operation.READ, request.group_id)
    code = await call.context.transactions.call(
        calls.AddGroup(
            request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            group_id=request.group_id,
        )
    )
    return add_wire.Response(error_code=code_for_version(code, call.version, 2, 4))


async def end_transaction(call: KafkaCall, request: end_wire.Request) -> end_wire.Response:
    """Commit or abort a transaction. The reply is sent when the decision is durable; markers are
    written to the partitions afterwards. From version 5 on, the producer then gets a new epoch, so
    that nothing it sent before can become part of its next transaction."""
    checks.check_transactional_id(call, Operation.WRITE, request.transactional_id)
    reply = await call.context.transactions.call(
        calls.EndTransaction(
            request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            is_commit=request.committed,
            raises_epoch=call.version >= _RAISES_EPOCH_FROM,
        )
    )
    return end_wire.Response(
        error_code=code_for_version(reply.code, call.version, 2, 4),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


async def add_partitions(call: KafkaCall, request: txn_wire.Request) -> txn_wire.Response:
    """Add partitions to a transaction before the producer writes to them. If one cannot be added,
    none is, and the others get OPERATION_NOT_ATTEMPTED. From version 4 on, requests are for brokers
    only. A request may then have several transactions, or verify partitions without adding them."""
    if call.version >= _BATCHED_FROM:
        checks.check_cluster(call, Operation.CLUSTER_ACTION)
        kind = txn_wire.AddPartitionsToTxnResult
        results = [
            kind(each.transactional_id, await _transaction(call, each))
            async for each in call.slices.each(request.transactions)
        ]
        return txn_wire.Response(results_by_transaction=results)
    alone = txn_wire.AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )
    if permissions.on_transaction(call, Operation.WRITE, alone.transactional_id):
        topics = await _transaction(call, alone)
    else:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topics = await _results(call, alone.topics, {}, code)
    return txn_wire.Response(results_by_topic_v3_and_below=topics)


async def _transaction(
    call: KafkaCall, requested: txn_wire.AddPartitionsToTxnTransaction
) -> Sequence[txn_wire.AddPartitionsToTxnTopicResult]:
    version, make = call.version, call.context.transactions.call
    transactional_id = requested.transactional_id
    codes: Codes = {}
    places: dict[tuple[str, int], tuple[str, int]] = {}  # by name → by id
    async for each in call.slices.each(requested.topics):
        topic = checks.find_name(call.context, each.name)
        may_write = version >= _BATCHED_FROM or permissions.on_topic(
            call, Operation.WRITE, each.name, topic
        )
        async for index in call.slices.each(each.partitions):
            code = transactional_code(topic, index)
            if not may_write:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if code or topic is None:
                codes[each.name, index] = code
            else:
                places[each.name, index] = (topic.topic_id, index)
    if codes:
        return await _results(call, requested.topics, codes, ErrorCode.OPERATION_NOT_ATTEMPTED)
    code, epoch = ErrorCode.NONE, requested.producer_epoch
    producer = {"producer_id": requested.producer_id, "producer_epoch": epoch}
    if requested.verify_only:
        async for name, place in call.slices.each(places.items()):
            verify = calls.VerifyPartition(transactional_id, **producer, partition=place)
            code = code_for_version(await make(verify), version, _FENCED_FROM, _ABORTABLE_FROM)
            codes[name] = code
        return await _results(call, requested.topics, codes, ErrorCode.NONE)
    async for some in call.slices.each(portions(list(places.values())) or ((),)):
        add = calls.AddPartitions(transactional_id, **producer, partitions=some)
        code = code_for_version(await make(add), version, _FENCED_FROM, _ABORTABLE_FROM)
        if code:
            break
    return await _results(call, requested.topics, {}, code)


def transactional_code(topic: Topic | None, index: int) -> ErrorCode:
    """Return NONE if transactions may write to the partition, and an error code otherwise."""
    if topic is None or not checks.has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_queue or topic.is_fifo or checks.is_internal_topic(topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _results(
    call: KafkaCall, topics: Sequence[Any], codes: Codes, default: ErrorCode
) -> Sequence[txn_wire.AddPartitionsToTxnTopicResult]:
    async def result(topic: Any, index: int) -> txn_wire.AddPartitionsToTxnPartitionResult:
        code = codes.get((topic.name, index), default)
        return txn_wire.AddPartitionsToTxnPartitionResult(index, code)

    return await call.by_topic(topics, txn_wire.AddPartitionsToTxnTopicResult, result)
