"""A Kafka frontend over streams small enough to read at a glance: lists of batches in memory. Time
and disk have no part in it. What partitions really do is tested against the real ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

from tests.harness.served import Served
from tests.unit.frontend.memory import MemoryCatalog, MemoryClock, MemoryIdentities

from penstock.cursor.coordinator_calls import Coordinators, GroupCoordinators
from penstock.frontend.kafka.config import KafkaConfig
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.pipeline import KafkaFrontend
from penstock.metadata.store import Store
from penstock.metadata.topics.resource_configs import DynamicConfigs, ResourceConfigs
from penstock.model.calls import (
    AppendBatches,
    DeleteRecords,
    Ends,
    Fetch,
    FindTime,
    IsInTransaction,
    LogBytes,
    MaxTimestamp,
)
from penstock.model.errors import OffsetOutOfRange
from penstock.model.file_slice import Piece, in_memory
from penstock.model.ports import BatchAppended, Fetched, StreamEnds
from penstock.model.topic import Kind, Topic
from penstock.net.kafka.listener import KafkaConfig as ListenerConfig
from penstock.net.kafka.listener import KafkaConnection, KafkaListener
from penstock.record.batch import encode_batch, parse_header
from penstock.record.record import encode_record
from penstock.wire.kafka.apis import APIS, LENGTH_BYTES, encode_request_frame, parse_response_header

ACCOUNT = "000000000000"
REGION = "us-east-1"
NOW_MS = 1_700_000_000_000
CORRELATION_ID = 77


def batch(
    *values: bytes,
    at_ms: int = NOW_MS,
    attributes: int = 0,
    producer_id: int = -1,
    base_sequence: int = -1,
) -> bytes:
    records = [
        encode_record(offset_delta=place, timestamp_delta=0, key=None, value=value, headers=())
        for place, value in enumerate(values)
    ]
    return encode_batch(
        records,
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=at_ms,
        max_timestamp=at_ms,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
    )


class MemoryPartition:
    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start_offset = 0
        self.end_offset = 0
        self.stable_offset: int | None = None
        self.aborted: Sequence[tuple[int, int]] = ()
        self.listeners: set[Callable[[], None]] = set()
        self.looks = 0  # how often it was read
        self.read_batches_max = 1_000  # where a segment ends
        self.broken: Exception | None = None

    def append(self, data: bytes | memoryview) -> int:
        base_offset = self.end_offset
        self.batches.append(base_offset.to_bytes(8, "big") + bytes(data)[8:])
        self.end_offset = parse_header(self.batches[-1]).next_offset
        self.tell()
        return base_offset

    def tell(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    @property
    def ends(self) -> StreamEnds:
        stable = self.end_offset if self.stable_offset is None else self.stable_offset
        return StreamEnds(self.start_offset, self.end_offset, stable)


class MemoryStreams(Served):
    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], MemoryPartition] = {}
        self.acks: list[int] = []
        self.may_commit = asyncio.Event()  # appends are answered once it is set
        self.may_commit.set()
        self.appending = 0  # appends under way
        self.most_appending = 0

    def partition(self, topic: Topic, index: int) -> MemoryPartition:
        found = self._partitions.setdefault((topic.topic_id, index), MemoryPartition())
        if found.broken is not None:
            raise found.broken
        return found

    async def append_batches(self, call: AppendBatches) -> BatchAppended:
        self.acks.append(call.acks)
        to = self.partition(call.topic, call.partition)
        self.appending += 1
        self.most_appending = max(self.most_appending, self.appending)
        await self.may_commit.wait()
        self.appending -= 1
        offsets = [to.append(each) for each in call.batches]
        return BatchAppended(offsets[0], -1, to.start_offset)

    async def is_in_transaction(self, call: IsInTransaction) -> bool:
        return False

    async def ends(self, call: Ends) -> StreamEnds:
        return self.partition(call.topic, call.partition).ends

    async def fetch(self, call: Fetch) -> Fetched:
        of = self.partition(call.topic, call.partition)
        offset, is_committed = call.offset, call.is_committed
        of.looks += 1
        ends = of.ends
        if not ends.start_offset <= offset <= ends.high_watermark:
            raise OffsetOutOfRange(offset, ends.start_offset, ends.high_watermark)
        up_to = ends.last_stable_offset if is_committed else ends.high_watermark
        found: list[bytes] = []
        for each in of.batches:
            header = parse_header(each)
            if header.next_offset <= offset or header.next_offset > up_to:
                continue
            if len(found) == of.read_batches_max:
                break
            if found and sum(map(len, found)) + len(each) > call.bytes_max:
                break
            found.append(each)
        if not found:
            return Fetched(ends)
        headers = [parse_header(each) for each in found]
        return Fetched(
            ends,
            found,
            headers[-1].next_offset,
            sum(header.count for header in headers if not header.is_control),
            of.aborted if is_committed else (),
        )

    async def find_time(self, call: FindTime) -> tuple[int, int]:
        for each in self.partition(call.topic, call.partition).batches:
            header = parse_header(each)
            if header.max_timestamp >= call.timestamp_ms:
                return header.base_offset, header.max_timestamp
        return -1, -1

    async def max_timestamp(self, call: MaxTimestamp) -> tuple[int, int]:
        batches = self.partition(call.topic, call.partition).batches
        headers = [parse_header(each) for each in batches]
        newest = max(headers, key=lambda header: header.max_timestamp, default=None)
        return (-1, -1) if newest is None else (newest.base_offset, newest.max_timestamp)

    async def delete_records(self, call: DeleteRecords) -> int:
        of, before = self.partition(call.topic, call.partition), call.before
        if before > of.end_offset:
            raise OffsetOutOfRange(before, of.start_offset, of.end_offset)
        of.start_offset = of.end_offset if before < 0 else max(before, of.start_offset)
        of.tell()
        return of.start_offset

    async def log_bytes(self, call: LogBytes) -> int:
        return sum(map(len, self.partition(call.topic, call.partition).batches))

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        listeners = self.partition(topic, partition).listeners
        listeners.add(listener)
        return lambda: listeners.discard(listener)


class IdCatalog(MemoryCatalog):
    """Tells of its changes."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[Callable[[Topic | None, Topic | None], None]] = []

    async def create(self, topic: Topic) -> Topic:
        made = await super().create(topic)
        self._tell(None, made)
        return made

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        before = self.find(account, region, name)
        after = await super().change(account, region, name, change)
        self._tell(before, after)
        return after

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        gone = await super().delete(account, region, name, now_ms=now_ms)
        self._tell(gone, None)
        return gone

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        self._told.append(listener)

    def _tell(self, before: Topic | None, after: Topic | None) -> None:
        for listener in self._told:
            listener(before, after)


class Meter:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.sent_count = 0
        self.received_count = 0

    def request(self, api: str, protocol: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        self.requests.append((api, protocol, code))

    def sent(self, count: int, size_bytes: int) -> None:
        self.sent_count += count

    def received(self, count: int, size_bytes: int) -> None:
        self.received_count += count

    def deleted(self, count: int) -> None:
        raise AssertionError("Kafka deletes no messages")


class CountingIds:
    def __init__(self) -> None:
        self._ids = itertools.count(4_000)
        self.broken: Exception | None = None

    async def next_id(self) -> int:
        if self.broken is not None:
            raise self.broken
        return next(self._ids)


class Rig:
    """Made inside a running loop: the listener asks for it."""

    def __init__(self, **config: Any) -> None:
        self.streams = MemoryStreams()
        self.catalog = IdCatalog()
        self.meter = Meter()
        self.producer_ids = CountingIds()
        self._chance = itertools.count(1)
        self.context = KafkaContext(
            broker=self.streams,
            anywhere=self.streams,
            catalog=self.catalog,
            groups=cast(GroupCoordinators, None),  # nothing here asks it
            transactions=cast(Coordinators, None),  # nor it
            producer_ids=self.producer_ids,
            clock=MemoryClock(),
            config=KafkaConfig(advertised=lambda: ("broker.test", 9092), cluster_id="c1", **config),
            meter=self.meter,
            entropy=lambda count: next(self._chance).to_bytes(count, "big"),
            identities=MemoryIdentities(),
            dynamic=DynamicConfigs(ResourceConfigs(cast(Store, None))),
        )
        self.frontend = KafkaFrontend(self.context)
        listener = KafkaListener(self.frontend.answer, config=ListenerConfig())
        self.connection = cast(KafkaConnection, listener.make_connection())

    async def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        kind: Kind = Kind.STREAM,
        account: str = ACCOUNT,
        configs: dict[str, str] | None = None,
    ) -> Topic:
        return await self.catalog.create(
            Topic(
                topic_id=self.context.entropy(16).hex(),
                account=account,
                region=REGION,
                name=name,
                kind=kind,
                partition_count=partitions,
                created_at_ms=NOW_MS,
                modified_at_ms=NOW_MS,
                receipt_key=b"k" * 32,
                configs=configs or {},
            )
        )

    def partition(self, topic: Topic, index: int = 0) -> MemoryPartition:
        return self.streams.partition(topic, index)

    async def ask(self, key: int, version: int, request: Any) -> Any:
        """One request through the whole pipeline, as bytes; None if nothing was answered."""
        api = APIS[key]
        codec = api.codec()
        buffers = await self.raw(key, version, codec.encode_request(request, version))
        if buffers is None:
            return None
        data = b"".join(in_memory(buffers))
        correlation_id, at = parse_response_header(data, api.response_header_version(version))
        assert correlation_id == CORRELATION_ID
        return codec.decode_response(data, at, version)

    async def raw(self, key: int, version: int, body: bytes) -> Sequence[Piece] | None:
        frame = encode_request_frame(
            APIS[key], version, correlation_id=CORRELATION_ID, client_id="me", body=body
        )
        return await self.frontend.answer(self.connection, frame[LENGTH_BYTES:])
