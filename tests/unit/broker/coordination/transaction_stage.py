"""Transactions from a client's bytes down to a real broker and back, with a port in between that
can hold markers back and fail appends."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from tests.unit.broker.stage import HandClock, Stage, on_stage
from tests.unit.frontend_kafka.rig import Rig

from penstock.broker.calls import Broker
from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import SEGMENT_BYTES, CoordinatorSetup
from penstock.broker.coordination.transactions import TOPIC_NAME, TransactionHost
from penstock.cursor.coordinator_calls import DescribeTransaction, FetchOffsets
from penstock.cursor.groups.settings import GroupSettings
from penstock.model.calls import AppendBatches, AppendMarker, BrokerCall, BrokerPort, Fetch, R
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.ports import Marker
from penstock.model.topic import Kind, Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch, parse_header, split_batches
from penstock.record.record import encode_record, iter_records
from penstock.wire.kafka.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.kafka.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from penstock.wire.kafka.generated.end_txn import EndTxnRequest
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.kafka.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

PRODUCE, INIT, ADD, ADD_OFFSETS, END, OFFSETS = 0, 22, 24, 25, 26, 28
DESCRIBE, LIST = 65, 66
TIMEOUT_MS = 60_000

_producer_ids = itertools.count(4_000)  # over restarts, too


async def next_producer_id() -> int:
    return next(_producer_ids)


class Between:
    """The broker in front of the real one. Markers wait for ``gate``, and raise
    ``marker_failure`` when there is one; rows of coordinators raise ``row_failure``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_waiting = asyncio.Event()
        self.marker_failure: Exception | None = None
        self.row_failure: Exception | None = None
        self.markers: list[Marker] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def call(self, call: BrokerCall[R]) -> R:
        if isinstance(call, AppendBatches):
            if self.row_failure is not None and call.topic.name == TOPIC_NAME:
                raise self.row_failure
        elif isinstance(call, AppendMarker):
            self.is_waiting.set()
            await self.gate.wait()
            if self.marker_failure is not None:
                raise self.marker_failure
        reply = await self._broker.call(call)
        if isinstance(call, AppendMarker):
            self.markers.append(call.marker)
        return reply


class TxnRig(Rig):
    def __init__(
        self, stage: Stage, between: Between, groups: GroupHost, host: TransactionHost
    ) -> None:
        super().__init__()
        self.stage = stage
        self.clock = stage.clock
        self.between = between
        self.groups = groups
        self.host = host
        context = self.context
        context.broker = cast(BrokerPort, between)
        context.catalog = stage.catalog
        context.clock = stage.clock
        context.groups = groups
        context.transactions = host

    async def stream(self, name: str = "t", partitions: int = 1) -> Topic:
        topic = await self.stage.topic(name, partitions=partitions)
        return await self.stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda found: msgspec.structs.replace(found, kind=Kind.STREAM),
        )

    async def read(
        self, topic: Topic, partition: int = 0, *, is_committed: bool = True
    ) -> list[str]:
        """What a consumer shows its application, which skips aborted records by itself."""
        found: list[str] = []
        start = 0
        while True:
            fetched = await self.stage.broker.call(
                Fetch(topic, partition, offset=start, bytes_max=1_000, is_committed=is_committed)
            )
            if not fetched.buffers:
                return found
            waiting = sorted(fetched.aborted, key=lambda each: each[1])
            aborted: set[int] = set()
            for data in split_batches(fetched.buffers):
                header = parse_header(data)
                start = header.next_offset
                if header.is_control:
                    aborted.discard(header.producer_id)
                    continue
                while waiting and waiting[0][1] < header.next_offset:
                    aborted.add(waiting.pop(0)[0])
                if header.attributes & ATTR_TRANSACTIONAL and header.producer_id in aborted:
                    continue
                found += [(record.value or b"").decode() for record in iter_records(data)]

    async def committed(
        self, group_id: str, topic: Topic, *, requires_stable: bool = False
    ) -> tuple[int, int]:
        """Code and offset."""
        reply = await self.groups.call(
            FetchOffsets(group_id, [(topic.topic_id, 0)], requires_stable=requires_stable)
        )
        (found,) = reply.partitions
        return int(reply.code or found.code), found.offset


class Client:
    """A transactional producer of transaction version 1 or 2 that does as it is told, and tells
    the code of each answer."""

    def __init__(self, rig: TxnRig, transactional_id: str = "tx", *, is_v2: bool = False) -> None:
        self.rig = rig
        self.id = transactional_id
        self.is_v2 = is_v2
        self.producer_id = self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    def on(self, rig: TxnRig) -> "Client":
        """The same one, on a server that was started again."""
        self.rig = rig
        return self

    async def init(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        asked = InitProducerIdRequest(self.id, timeout_ms)
        found = await self.rig.ask(INIT, 5 if self.is_v2 else 4, asked)
        if not found.error_code:
            self._renew(found.producer_id, found.producer_epoch)
        return int(found.error_code)

    def _renew(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def add(self, topic: Topic, *partitions: int, version: int = 3) -> int:
        asked = AddPartitionsToTxnRequest(
            (),
            self.id,
            self.producer_id,
            self.epoch,
            [AddPartitionsToTxnTopic(topic.name, partitions)],
        )
        found = await self.rig.ask(ADD, version, asked)
        (code,) = {
            each.partition_error_code
            for topic_result in found.results_by_topic_v3_and_below
            for each in topic_result.results_by_partition
        }
        return int(code)

    async def produce(
        self, topic: Topic, *values: str, partition: int = 0, version: int | None = None
    ) -> int:
        """Without adding the partition first; ``send`` does both."""
        place = (topic.topic_id, partition)
        first = self._sequences.get(place, 0)
        records = [
            encode_record(offset_delta=n, timestamp_delta=0, key=None, value=value.encode())
            for n, value in enumerate(values)
        ]
        now_ms = self.rig.clock.wall
        data = encode_batch(
            records,
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=ATTR_TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
        )
        partitions = [ProducePartition(partition, memoryview(data))]
        asked = ProduceRequest(
            self.id, -1, 1_000, [ProduceTopic(topic.name, bytes(16), partitions)]
        )
        if version is None:
            version = 12 if self.is_v2 else 10
        found = await self.rig.ask(PRODUCE, version, asked)
        code = int(found.topics[0].partitions[0].error_code)
        if not code:
            self._sequences[place] = first + len(values)
        return code

    async def send(self, topic: Topic, *values: str, partition: int = 0) -> int:
        if not self.is_v2:
            code = await self.add(topic, partition)
            if code:
                return code
        return await self.produce(topic, *values, partition=partition)

    async def add_group(self, group_id: str) -> int:
        asked = AddOffsetsToTxnRequest(self.id, self.producer_id, self.epoch, group_id)
        return int((await self.rig.ask(ADD_OFFSETS, 3, asked)).error_code)

    async def commit_offset(self, group_id: str, topic: Topic, offset: int) -> int:
        """Without adding the group first."""
        asked = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    topic.name, [TxnOffsetCommitRequestPartition(0, offset)]
                )
            ],
        )
        found = await self.rig.ask(OFFSETS, 5 if self.is_v2 else 3, asked)
        return int(found.topics[0].partitions[0].error_code)

    async def send_offset(self, group_id: str, topic: Topic, offset: int) -> int:
        if not self.is_v2:
            code = await self.add_group(group_id)
            if code:
                return code
        return await self.commit_offset(group_id, topic, offset)

    async def end(self, *, is_commit: bool) -> int:
        asked = EndTxnRequest(self.id, self.producer_id, self.epoch, is_commit)
        found = await self.rig.ask(END, 5 if self.is_v2 else 3, asked)
        if self.is_v2 and not found.error_code:
            self._renew(found.producer_id, found.producer_epoch)
        return int(found.error_code)

    async def commit(self) -> int:
        return await self.end(is_commit=True)

    async def abort(self) -> int:
        return await self.end(is_commit=False)


@asynccontextmanager
async def transacting(
    folder: Path,
    clock: HandClock | None = None,
    *,
    is_crash: bool = False,
    segment_bytes: int = SEGMENT_BYTES,
) -> AsyncIterator[TxnRig]:
    async with on_stage(folder, clock, is_crash=is_crash) as stage:
        between = Between(stage.broker)
        setup = CoordinatorSetup(
            broker=cast(BrokerPort, between),
            catalog=stage.catalog,
            clock=stage.clock,
            entropy=secrets.token_bytes,
            account=ACCOUNT_DEFAULT,
            region=REGION_DEFAULT,
            segment_bytes=segment_bytes,
        )
        groups = GroupHost(setup, settings=GroupSettings(initial_delay_ms=0))
        host = TransactionHost(setup, groups=groups, next_producer_id=next_producer_id)
        await groups.start()
        await host.start()
        try:
            yield TxnRig(stage, between, groups, host)
        finally:
            await host.stop()
            await groups.stop()


async def settled(rig: TxnRig, transactional_id: str = "tx") -> None:
    """Until the markers of the id's last transaction are written."""
    async with asyncio.timeout(5):
        while True:
            _, found = await rig.host.call(DescribeTransaction(transactional_id))
            if found is None or not found.state.name.startswith("PREPARE"):
                return
            await asyncio.sleep(0.001)
