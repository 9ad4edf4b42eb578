"""Internal topics to which nodes write audit, usage, telemetry and delivery records, exactly once.

Each write is one batch with a producer id and a sequence number, by which the partition recognizes
a repeated batch. The same bytes are sent again until the write succeeds. A new process uses a new
producer id, because it does not know the unfinished batch of the previous process. All nodes of a
cluster write to the same partition, each with its own producer id and record key."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from penstock.metadata.topics.catalog import make_internal_topic
from penstock.model.calls import AppendBatches, AppendMarker, BrokerPort, Ends, Fetch
from penstock.model.errors import Overloaded, PenstockError, ProducerRefused, TopicExists
from penstock.model.limits import BATCH_BYTES_MAX, KIB
from penstock.model.ports import Catalog, Clock, Marker
from penstock.model.topic import Topic
from penstock.record.batch import encode_batch, parse_header, split_batches
from penstock.record.compression import Codec
from penstock.record.record import Header, RawRecord, encode_record, iter_records
from penstock.wire.kafka.faults import ErrorCode

log_ = logging.getLogger(__name__)

RETENTION_MS_DEFAULT: Final = 30 * 24 * 3_600_000
ACKS_ALL: Final = -1
PARTITION: Final = 0  # all nodes write to this partition
COMPRESSED_BYTES_MIN: Final = KIB
# Long enough for a commit that waits until a failed follower leaves the in-sync set.
ATTEMPT_SECONDS_MAX: Final = 8.0
RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
# Reading backwards: records per step, and bytes per fetch.
LOOK_RECORDS: Final = 1_000
LOOK_BYTES: Final = 256 * KIB
STOP_SECONDS_MAX: Final = 5.0  # for all writers of a node together
INCARNATION_BYTES: Final = 8
_SEQUENCES: Final = 2**31
_RETENTION: Final = "retention.ms"
# Errors of a partition that has lost committed batches or the state of the producer id.
_LOST_TRACK: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class Fact(NamedTuple):
    key: bytes
    value: bytes
    headers: Sequence[Header] = ()


@dataclass(eq=False)
class FactLog:
    name: str
    _: KW_ONLY
    broker: BrokerPort
    catalog: Catalog
    next_producer_id: Callable[[], Awaitable[int]]
    namespace: tuple[str, str]  # account and region
    clock: Clock
    entropy: Callable[[int], bytes]
    retention_ms: int = RETENTION_MS_DEFAULT

    def __post_init__(self) -> None:
        self.trouble: str | None = None  # why nothing can be written now
        self._producer_id = -1
        self._sequence = 0
        self._is_earlier_settled = False
        # Encoded records that are not committed yet, and their batch.
        self._pending: list[bytes] | None = None
        self._batch = b""

    def offer(self, facts: Sequence[Fact]) -> None:
        """Set the records that the next ``settle`` writes as one batch."""
        assert self._pending is None, "one batch after the other"
        self._pending = [
            encode_record(offset_delta=index, timestamp_delta=0, **fact._asdict())
            for index, fact in enumerate(facts)
        ]

    async def settle(self) -> None:
        """Write the records set by ``offer``, with retries until they are committed."""
        if self._pending is None:
            return
        wait_s = RETRY_SECONDS
        while not await self._is_appended(self._pending):
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_SECONDS_MAX)
        self._sequence = (self._sequence + len(self._pending)) % _SEQUENCES
        self._pending, self._batch = None, b""
        if self.trouble is not None:
            log_.info("append to topic resumed", extra={"topic": self.name})
            self.trouble = None

    async def _is_appended(self, records: Sequence[bytes]) -> bool:
        try:
            topic = await self.find_or_make()
            await self._take_producer_id()
            if not self._batch:
                self._batch = self._encoded(records)
            call = AppendBatches(topic, PARTITION, acks=ACKS_ALL, batches=(self._batch,))
            async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                await self.broker.call(call)
        except TimeoutError:
            return self._note("the partition did not reply in time")
        except PenstockError as error:
            code = error.code if isinstance(error, ProducerRefused) else None
            if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return True  # appended by an earlier attempt
            if code in _LOST_TRACK:
                # The batch is not in the log, so it can be sent with a new id.
                self._producer_id, self._batch = -1, b""
            return self._note(str(error))
        return True

    async def _take_producer_id(self) -> None:
        if self._producer_id < 0:
            self._producer_id, self._sequence = await self.next_producer_id(), 0

    def _encoded(self, records: Sequence[bytes]) -> bytes:
        size = sum(map(len, records))
        assert size < BATCH_BYTES_MAX, "callers keep to the limit of a batch"
        wall_ms = self.clock.wall_ms()
        return encode_batch(
            records,
            base_offset=0,  # assigned by the log
            leader_epoch=0,
            base_timestamp=wall_ms,
            max_timestamp=wall_ms,
            attributes=Codec.ZSTD if size >= COMPRESSED_BYTES_MIN else Codec.NONE,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )

    def _note(self, reason: str) -> bool:
        if self.trouble is None:
            log_.warning("append to topic failed", extra={"topic": self.name, "reason": reason})
        self.trouble = f"{self.name}: {reason}"
        return False

    async def newest(self, key: bytes) -> RawRecord | None:
        """Return the last record with this key. Raises PenstockError if it cannot be read now."""
        topic = await self.find_or_make()
        ends = await self.broker.call(Ends(topic, PARTITION))
        if ends.leader_epoch:  # else there is one replica, and everything is committed
            if not self._is_earlier_settled:
                # Batches of earlier processes of this node are committed before this marker is,
                # which readers skip.
                await self._take_producer_id()
                marker = Marker(self._producer_id, producer_epoch=0, is_commit=True)
                await self.broker.call(AppendMarker(topic, PARTITION, marker))
                self._is_earlier_settled = True
            ends = await self.broker.call(Ends(topic, PARTITION))
        if not ends.is_settled:
            raise Overloaded(f"{self.name}: the new leader is not ready for reads yet; retry.")
        end = ends.high_watermark
        while end > ends.start_offset:
            start = max(ends.start_offset, end - LOOK_RECORDS)
            found = await self._newest_in(topic, start, end, key)
            if found is not None:
                return found
            end = start
        return None

    async def _newest_in(self, topic: Topic, start: int, end: int, key: bytes) -> RawRecord | None:
        newest: RawRecord | None = None
        async for _, records in read_records(self.broker, topic, start, end):
            for record in records:
                if record.key == key:
                    newest = record
        return newest

    async def find_or_make(self) -> Topic:
        topic = self.catalog.find(*self.namespace, self.name)
        if topic is None:
            topic = await make_internal_topic(
                self.catalog,
                self.namespace,
                self.name,
                partition_count=PARTITION + 1,
                configs={_RETENTION: str(self.retention_ms)},
                clock=self.clock,
                entropy=self.entropy,
            )
        if topic.is_queue:
            raise TopicExists(f"{self.name} is a queue, but an internal topic needs this name.")
        if topic.configs.get(_RETENTION) != str(self.retention_ms):
            topic = await self.catalog.change(*self.namespace, self.name, self._configured)
        return topic

    def _configured(self, topic: Topic) -> Topic:
        configs = {**topic.configs, _RETENTION: str(self.retention_ms)}
        now_ms = self.clock.wall_ms()
        return msgspec.structs.replace(topic, configs=configs, modified_at_ms=now_ms)


async def read_records(
    broker: BrokerPort, topic: Topic, start: int, end: int
) -> AsyncIterator[tuple[int, Sequence[RawRecord]]]:
    """Yield the records from offset ``start`` to ``end``, some at a time, and their size in the log
    in bytes. Raises PenstockError if they cannot be read now."""
    while start < end:
        call = Fetch(topic, PARTITION, offset=start, bytes_max=LOOK_BYTES, is_committed=False)
        fetched = await broker.call(call)
        if fetched.next_offset <= start:
            raise Overloaded(f"{topic.name}: the new leader is not ready for reads yet; retry.")
        size = 0
        records: list[RawRecord] = []
        for batch in split_batches(fetched.buffers):
            size += len(batch)
            if not parse_header(batch).is_control:
                records += (each for each in iter_records(batch) if start <= each.offset < end)
        start = fetched.next_offset
        yield size, records
        await asyncio.sleep(0)  # other tasks may run


# ── Writers ──────────────────────────────────────────────────────────────────────────────────

# Returns True if this node leads a partition, so that it reports the partition.
Leads = Callable[[Topic, int], bool]


def leads_all(_topic: Topic, _partition: int) -> bool:
    return True


@dataclass(eq=False)
class FactWriter(ABC):
    """A task that writes records to an internal topic at intervals and when it stops."""

    noun: ClassVar[str]  # what is written, for log lines
    table: Any  # what is written: a ``UsageTable``, or rows
    log: FactLog
    _: KW_ONLY
    node: str
    clock: Clock
    entropy: Callable[[int], bytes]
    flush_ms: int
    leads: Leads = leads_all

    def __post_init__(self) -> None:
        self._incarnation = self.entropy(INCARNATION_BYTES).hex()
        self._flush = 0
        self._is_stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        return self.log.trouble

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"{self.noun} writer")

    async def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> None:
        self._is_stopping.set()
        if self._task is not None and await is_cut_off(self._task, seconds_max):
            log_.error("last %s records lost", self.noun, extra={"reason": self.trouble})

    async def _run(self) -> None:
        is_last = False
        while not is_last:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._is_stopping.wait()
            is_last = self._is_stopping.is_set()
            try:
                await self.flush()
            except Exception as error:  # a bug; counting and writing continue
                log_.error("writing %s data failed", self.noun, exc_info=error)

    async def _append(self, wire: Any, kind: Callable[..., Any], **fields: Any) -> None:
        self._flush += 1
        named = {"node": self.node, "incarnation": self._incarnation, "flush": self._flush}
        value = wire.encode(kind(v=wire.VERSION, **named, **fields))
        self.log.offer((Fact(self.node.encode(), value, (wire.SCHEMA_HEADER,)),))
        await self.log.settle()

    @abstractmethod
    async def flush(self) -> None: ...

    @abstractmethod
    def _wait_s(self) -> float: ...


async def is_cut_off(task: asyncio.Task[None], seconds_max: float) -> bool:
    """Wait for ``task``, but cancel it after ``seconds_max``. Returns whether it was cancelled."""
    _, late = await asyncio.wait((task,), timeout=seconds_max)
    for each in late:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each
    return bool(late)
