"""WriteTxnMarkers: end transactions in partitions without asking their coordinator. Between nodes
it is how a coordinator's decision gets to the partitions; people use it, through their tools, to
abort a transaction whose coordinator has forgotten it and which holds all readers back.

A marker is refused if its producer or its coordinator has been replaced since. A coordinator of
transaction version 2 raises the epoch with each transaction, so that a marker of the epoch in which
records are being written can only be a late one, meant for the transaction before: it is refused as
well. Queues and the node's own topics take no part in transactions."""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.topics import code_for, find_name, has_partition, is_of_node
from penstock.frontend.slices import portions
from penstock.model.errors import PenstockError
from penstock.model.ports import Marker
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

KEY = 27
_EPOCH_RAISED_FROM: Final = 2  # transaction version


async def run(
    context: KafkaContext, call: KafkaCall, asked: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    # Other nodes act for the cluster; people who administer it may do so as well.
    may_write = on_cluster(context, call, Operation.ALTER) or on_cluster(
        context, call, Operation.CLUSTER_ACTION
    )
    write = _write if may_write else _refused
    # One marker after the other, should two be for the same producer; its partitions together.
    return WriteTxnMarkersResponse(
        [await write(context, call, marker) async for marker in call.slices.each(asked.markers)]
    )


async def _refused(
    _context: KafkaContext, call: KafkaCall, asked: WritableTxnMarker
) -> WritableTxnMarkerResult:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return await _result(call, asked, lambda _name, _index: code)


async def _write(
    context: KafkaContext, call: KafkaCall, asked: WritableTxnMarker
) -> WritableTxnMarkerResult:
    places = {
        (topic.name, index): find_name(context, topic.name)
        async for topic in call.slices.each(asked.topics)
        for index in topic.partition_indexes
    }
    code_at: dict[tuple[str, int], ErrorCode] = {}
    async for some in call.slices.each(portions(list(places.items()))):
        codes = await asyncio.gather(
            *(_write_one(context, asked, topic, index) for (_, index), topic in some)
        )
        code_at.update(zip((place for place, _ in some), codes, strict=True))
    return await _result(call, asked, lambda name, index: code_at[name, index])


async def _result(
    call: KafkaCall, asked: WritableTxnMarker, code_at: Callable[[str, int], ErrorCode]
) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        asked.producer_id,
        [
            WritableTxnMarkerTopicResult(
                topic.name,
                [
                    WritableTxnMarkerPartitionResult(index, code_at(topic.name, index))
                    async for index in call.slices.each(topic.partition_indexes)
                ],
            )
            async for topic in call.slices.each(asked.topics)
        ],
    )


async def _write_one(
    context: KafkaContext, asked: WritableTxnMarker, topic: Topic | None, index: int
) -> ErrorCode:
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_queue or is_of_node(topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if asked.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if asked.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    marker = Marker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        is_commit=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
    )
    streams = context.streams
    try:
        if asked.transaction_version >= _EPOCH_RAISED_FROM and await streams.is_in_transaction(
            topic, index, asked.producer_id, asked.producer_epoch
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        await streams.append_marker(topic, index, marker)
    except PenstockError as error:
        return code_for(error)
    return ErrorCode.NONE


ACTION = KafkaAction(KEY, run)
