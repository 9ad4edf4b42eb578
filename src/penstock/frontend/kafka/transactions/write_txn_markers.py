"""WriteTxnMarkers: end transactions in partitions without their coordinator. Nodes send the
decision of a coordinator to the partitions; people use it, through tools, to abort a hanging
transaction that its coordinator has forgotten.

A marker is rejected if its producer or coordinator has been replaced. In transaction version 2 the
epoch is raised with each transaction, so a marker with the epoch of an open transaction is late,
meant for the transaction before, and is rejected too. Queues and internal topics cannot be in
transactions."""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.topic_lookup import find_name, has_partition, is_internal_topic
from penstock.model.calls import AppendMarker, IsInTransaction
from penstock.model.errors import PenstockError
from penstock.model.ports import Marker
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import write_txn_markers as wire

_EPOCH_RAISED_FROM: Final = 2  # transaction version


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    # For nodes and for administrators.
    may_write = on_cluster(call, Operation.ALTER) or on_cluster(call, Operation.CLUSTER_ACTION)
    write = _write if may_write else _refused
    # One marker after the other: two may be for the same producer.
    return wire.Response(
        [await write(call, marker) async for marker in call.slices.each(request.markers)]
    )


async def _refused(
    call: KafkaCall, requested: wire.WritableTxnMarker
) -> wire.WritableTxnMarkerResult:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return await _result(call, requested, lambda _name, _index: code)


async def _write(
    call: KafkaCall, requested: wire.WritableTxnMarker
) -> wire.WritableTxnMarkerResult:
    places = {
        (topic.name, index): find_name(call.context, topic.name)
        async for topic in call.slices.each(requested.topics)
        for index in topic.partition_indexes
    }
    code_at: dict[tuple[str, int], ErrorCode] = {}
    async for some in call.slices.each(portions(list(places.items()))):
        codes = await asyncio.gather(
            *(_write_one(call.context, requested, topic, index) for (_, index), topic in some)
        )
        code_at.update(zip((place for place, _ in some), codes, strict=True))
    return await _result(call, requested, lambda name, index: code_at[name, index])


async def _result(
    call: KafkaCall, requested: wire.WritableTxnMarker, code_at: Callable[[str, int], ErrorCode]
) -> wire.WritableTxnMarkerResult:
    return wire.WritableTxnMarkerResult(
        requested.producer_id,
        [
            wire.WritableTxnMarkerTopicResult(
                topic.name,
                [
                    wire.WritableTxnMarkerPartitionResult(index, code_at(topic.name, index))
                    async for index in call.slices.each(topic.partition_indexes)
                ],
            )
            async for topic in call.slices.each(requested.topics)
        ],
    )


async def _write_one(
    context: KafkaContext, requested: wire.WritableTxnMarker, topic: Topic | None, index: int
) -> ErrorCode:
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_queue or is_internal_topic(topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if requested.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if requested.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    marker = Marker(
        producer_id=requested.producer_id,
        producer_epoch=requested.producer_epoch,
        is_commit=requested.transaction_result,
        coordinator_epoch=requested.coordinator_epoch,
    )
    broker = context.broker
    try:
        if requested.transaction_version >= _EPOCH_RAISED_FROM and await broker.call(
            IsInTransaction(topic, index, requested.producer_id, requested.producer_epoch)
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        await broker.call(AppendMarker(topic, index, marker))
    except PenstockError as error:
        return partition_code(error)
    return ErrorCode.NONE
