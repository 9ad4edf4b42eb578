"""An internal topic that this node writes facts to, each write exactly once.

A write is one batch with a producer id, an epoch and a sequence, by which the partition recognizes
a repeated batch. Until a batch gets a reply, the same bytes are sent again, and nothing else before
them: no fact is written twice or in part. A new process takes a new producer id, because it does
not know the unfinished batch of the one before.

All nodes of a cluster write to the same partition, each with its own producer id and key; within a
node one task calls ``settle``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.metadata.topics.catalog import make_internal_topic
from penstock.model.calls import AppendBatches, AppendMarker, BrokerPort, Ends, Fetch
from penstock.model.errors import (
    Overloaded,
    PenstockError,
    ProducerRefused,
    TopicExists,
)
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
PARTITION: Final = 0  # all nodes write to the same one
COMPRESSED_BYTES_MIN: Final = KIB
# Longer than a commit that waits until a failed follower leaves the in-sync set. After a lost reply
# the batch is sent again.
ATTEMPT_SECONDS_MAX: Final = 8.0
RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
# Reading backwards: records per step, and bytes per fetch.
LOOK_RECORDS: Final = 1_000
LOOK_BYTES: Final = 256 * KIB
_SEQUENCES: Final = 2**31
_RETENTION: Final = "retention.ms"
# The partition does not know the sequence: it has lost committed batches, or the producer id.
_LOST_TRACK: Final = frozenset(
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    )
)


class Fact(NamedTuple):
    key: bytes
    value: bytes
    headers: Sequence[Header] = ()


class FactLog:
    def __init__(
        self,
        name: str,
        *,
        broker: BrokerPort,
        catalog: Catalog,
        next_producer_id: Callable[[], Awaitable[int]],
        namespace: tuple[str, str],
        clock: Clock,
        entropy: Callable[[int], bytes],
        retention_ms: int = RETENTION_MS_DEFAULT,
    ) -> None:
        """``namespace``: account and region."""
        self.name = name
        self.trouble: str | None = None  # why nothing can be written now
        self._broker = broker
        self._catalog = catalog
        self._next_producer_id = next_producer_id
        self._namespace = namespace
        self._clock = clock
        self._entropy = entropy
        self._retention_ms = retention_ms
        self._producer_id = -1
        self._sequence = 0
        self._is_earlier_settled = False
        # Records without a reply, and their batch as it was sent.
        self._pending: list[bytes] | None = None
        self._batch = b""

    # ── Writing ──────────────────────────────────────────────────────────────────────────────

    def offer(self, facts: Sequence[Fact]) -> None:
        """Take facts as one batch, for the next ``settle``. Earlier ones must be settled."""
        assert self._pending is None, "one batch after the other"
        self._pending = [
            encode_record(
                offset_delta=index,
                timestamp_delta=0,
                key=fact.key,
                value=fact.value,
                headers=fact.headers,
            )
            for index, fact in enumerate(facts)
        ]

    async def settle(self) -> None:
        """Return once the offered facts are committed, however long that takes. If cancelled, the
        next call continues."""
        if self._pending is None:
            return
        wait_s = RETRY_SECONDS
        while not await self._is_appended(self._pending):
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_SECONDS_MAX)
        self._sequence = (self._sequence + len(self._pending)) % _SEQUENCES
        self._pending, self._batch = None, b""
        if self.trouble is not None:
            log_.info("writing facts resumed", extra={"topic": self.name})
            self.trouble = None

    async def _is_appended(self, records: Sequence[bytes]) -> bool:
        try:
            topic = await self.find_or_make()
            if self._producer_id < 0:
                self._producer_id, self._sequence = await self._next_producer_id(), 0
            if not self._batch:
                self._batch = self._encoded(records)
            async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                await self._broker.call(
                    AppendBatches(topic, PARTITION, acks=ACKS_ALL, batches=(self._batch,))
                )
        except TimeoutError:
            self._note(Overloaded("the log did not reply in time"))
            return False
        except ProducerRefused as error:
            if error.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return True  # appended by an earlier attempt
            if error.code in _LOST_TRACK:
                # The batch is not in the log, so it can be sent with a new id.
                self._producer_id, self._batch = -1, b""
            self._note(error)
            return False
        except PenstockError as error:
            self._note(error)
            return False
        return True

    def _encoded(self, records: Sequence[bytes]) -> bytes:
        size = sum(map(len, records))
        assert size < BATCH_BYTES_MAX, "callers keep to the limit of a batch"
        wall_ms = self._clock.wall_ms()
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

    def _note(self, error: PenstockError) -> None:
        """Log the first of consecutive failures."""
        if self.trouble is None:
            facts = {"topic": self.name, "reason": str(error)}
            log_.warning("writing facts failed", extra=facts)
        self.trouble = f"{self.name}: {error}"

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    async def newest(self, key: bytes) -> RawRecord | None:
        """Return the last record with this key, or None. The log is read backwards in steps. Raises
        PenstockError; a retry may succeed."""
        topic = await self.find_or_make()
        ends = await self._broker.call(Ends(topic, PARTITION))
        if ends.leader_epoch:  # else there is one replica, and everything is committed
            await self._settle_earlier(topic)
            ends = await self._broker.call(Ends(topic, PARTITION))
        if not ends.is_settled:
            raise Overloaded(f"{self.name}: a new leader does not know the committed end yet.")
        end = ends.high_watermark
        while end > ends.start_offset:
            start = max(ends.start_offset, end - LOOK_RECORDS)
            found = await self._newest_between(topic, start, end, key)
            if found is not None:
                return found
            end = start
        return None

    async def _settle_earlier(self, topic: Topic) -> None:
        """Wait, once, until everything that earlier processes of this node appended is committed.
        A committed marker proves it: everything before it in the log is committed too. Readers skip
        markers."""
        if self._is_earlier_settled:
            return
        if self._producer_id < 0:
            self._producer_id, self._sequence = await self._next_producer_id(), 0
        marker = Marker(self._producer_id, producer_epoch=0, is_commit=True)
        await self._broker.call(AppendMarker(topic, PARTITION, marker))
        self._is_earlier_settled = True

    async def _newest_between(
        self, topic: Topic, start: int, end: int, key: bytes
    ) -> RawRecord | None:
        newest: RawRecord | None = None
        offset = start
        while offset < end:
            fetched = await self._broker.call(
                Fetch(topic, PARTITION, offset=offset, bytes_max=LOOK_BYTES, is_committed=False)
            )
            if fetched.next_offset <= offset:  # a new leader does not know the committed end yet
                raise Overloaded(f"{self.name} cannot be read to its end now.")
            offset = fetched.next_offset
            for batch in split_batches(fetched.buffers):
                if not parse_header(batch).is_control:
                    for record in iter_records(batch):
                        if record.key == key and record.offset < end:
                            newest = record
            await asyncio.sleep(0)  # other tasks may run
        return newest

    # ── The topic ────────────────────────────────────────────────────────────────────────────

    async def find_or_make(self) -> Topic:
        topic = self._catalog.find(*self._namespace, self.name)
        if topic is None:
            topic = await make_internal_topic(
                self._catalog,
                self._namespace,
                self.name,
                partition_count=PARTITION + 1,
                configs={_RETENTION: str(self._retention_ms)},
                clock=self._clock,
                entropy=self._entropy,
            )
        if topic.is_queue:
            raise TopicExists(f"{self.name} is a queue, but an internal topic needs this name.")
        if topic.configs.get(_RETENTION) != str(self._retention_ms):
            topic = await self._catalog.change(*self._namespace, self.name, self._configured)
        return topic

    def _configured(self, topic: Topic) -> Topic:
        return msgspec.structs.replace(
            topic,
            configs={**topic.configs, _RETENTION: str(self._retention_ms)},
            modified_at_ms=self._clock.wall_ms(),
        )
