"""An internal topic that this node writes facts to: found or made, and each write in the log
exactly once.

A write is one batch with a producer id, an epoch and a sequence, so the partition knows it again.
Whatever became of an attempt (refused, failed, done while its answer was lost, cut off in the
middle), the same bytes are offered again until they are answered, and nothing else before them:
what was written is never there twice and never in part. A new process takes a new producer id; it
knows nothing of what the one before had in hand, and cannot repeat it.

All nodes of a cluster write to the same partition, each under a producer id and a key of its own;
within a node one task calls ``settle``. What stands in the facts is not known here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.metadata.own_topic import make_own_topic
from penstock.model.errors import (
    Overloaded,
    PenstockError,
    ProducerRefused,
    TopicExists,
    TopicNotFound,
)
from penstock.model.limits import BATCH_BYTES_MAX, KIB
from penstock.model.ports import Catalog, Clock, Marker, Streams
from penstock.model.topic import Topic
from penstock.record.batch import encode_batch, parse_header, split_batches
from penstock.record.compression import Codec
from penstock.record.record import Header, RawRecord, encode_record, iter_records
from penstock.wire.kafka.faults import ErrorCode

log_ = logging.getLogger(__name__)

RETENTION_MS_DEFAULT: Final = 30 * 24 * 3_600_000
ACKS_ALL: Final = -1
COMPRESSED_BYTES_MIN: Final = KIB  # below, there is nothing to gain
# Longer than a commit takes that waits for a follower to be given up. Nobody may wait for ever for
# an answer that was lost: the partition knows what is offered again.
ATTEMPT_SECONDS_MAX: Final = 8.0
RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
# Of a look backwards: so many records from their first to their last, so many bytes at a time.
LOOK_RECORDS: Final = 1_000
LOOK_BYTES: Final = 256 * KIB
_SEQUENCES: Final = 2**31
_RETENTION: Final = "retention.ms"
# What does not follow on: the partition has lost something that it had answered for, or this id.
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
        streams: Streams,
        catalog: Catalog,
        next_producer_id: Callable[[], Awaitable[int]],
        namespace: tuple[str, str],
        clock: Clock,
        entropy: Callable[[int], bytes],
        retention_ms: int = RETENTION_MS_DEFAULT,
        partition: int = 0,
    ) -> None:
        """``namespace``: account and region. ``partition``: the one that is this node's to write;
        a topic made here has that many and one."""
        self.name = name
        self.trouble: str | None = None  # why nothing can be written at the moment
        self._streams = streams
        self._catalog = catalog
        self._next_producer_id = next_producer_id
        self._namespace = namespace
        self._clock = clock
        self._entropy = entropy
        self._retention_ms = retention_ms
        self._partition = partition
        self._producer_id = -1
        self._sequence = 0
        self._is_earlier_settled = False
        # What has no answer yet: the records, and the batch as it was offered.
        self._pending: list[bytes] | None = None
        self._batch = b""

    # ── Writing ──────────────────────────────────────────────────────────────────────────────

    def offer(self, facts: Sequence[Fact]) -> None:
        """All of them as one batch, written by the next ``settle``. Those before are settled."""
        assert self._pending is None, "one batch after the other"
        self._pending = [
            encode_record(
                offset_delta=place,
                timestamp_delta=0,
                key=fact.key,
                value=fact.value,
                headers=fact.headers,
            )
            for place, fact in enumerate(facts)
        ]

    async def settle(self) -> None:
        """Until what was offered is committed, however long that takes. Interrupted, it goes on
        where it was when it is called again."""
        if self._pending is None:
            return
        wait_s = RETRY_SECONDS
        while not await self._is_taken(self._pending):
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_SECONDS_MAX)
        self._sequence = (self._sequence + len(self._pending)) % _SEQUENCES
        self._pending, self._batch = None, b""
        if self.trouble is not None:
            log_.info("facts are written again", extra={"topic": self.name})
            self.trouble = None

    async def _is_taken(self, records: Sequence[bytes]) -> bool:
        try:
            topic = await self.find_or_make()
            if self._producer_id < 0:
                self._producer_id, self._sequence = await self._next_producer_id(), 0
            if not self._batch:
                self._batch = self._encoded(records)
            async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                await self._streams.append_batches(
                    topic, self._partition, (self._batch,), acks=ACKS_ALL
                )
        except TimeoutError:
            self._note(Overloaded("the log did not answer in time"))
            return False
        except ProducerRefused as error:
            if error.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return True  # from an attempt too long ago to say where it is
            if error.code in _LOST_TRACK:
                # It is not there, so offering it under another id cannot double it.
                self._producer_id, self._batch = -1, b""
            self._note(error)
            return False
        except PenstockError as error:
            self._note(error)
            return False
        return True

    def _encoded(self, records: Sequence[bytes]) -> bytes:
        size = sum(map(len, records))
        assert size < BATCH_BYTES_MAX, "whoever writes keeps to what a batch can hold"
        wall_ms = self._clock.wall_ms()
        return encode_batch(
            records,
            base_offset=0,  # the log gives it its place
            leader_epoch=0,
            base_timestamp=wall_ms,
            max_timestamp=wall_ms,
            attributes=Codec.ZSTD if size >= COMPRESSED_BYTES_MIN else Codec.NONE,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=self._sequence,
        )

    def _note(self, error: PenstockError) -> None:
        """Once per trouble, not once per attempt."""
        if self.trouble is None:
            log_.warning(
                "facts cannot be written", extra={"topic": self.name, "reason": str(error)}
            )
        self.trouble = f"{self.name}: {error}"

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    async def newest(self, key: bytes) -> RawRecord | None:
        """The last record with this key, None when there is none: read from the end backwards, some
        at a time. Raises PenstockError; whoever asks again later may get an answer."""
        topic = await self.find_or_make()
        ends = await self._streams.ends(topic, self._partition)
        if ends.leader_epoch:  # else nobody else holds it, and all that is there is committed
            await self._settle_earlier(topic)
            ends = await self._streams.ends(topic, self._partition)
        if not ends.is_settled:
            raise Overloaded(f"{self.name} has a new leader, which does not know its end yet.")
        end = ends.high_watermark
        while end > ends.start_offset:
            start = max(ends.start_offset, end - LOOK_RECORDS)
            found = await self._newest_between(topic, start, end, key)
            if found is not None:
                return found
            end = start
        return None

    async def _settle_earlier(self, topic: Topic) -> None:
        """Once: until all that earlier processes of this node may have written can be read. What
        they had under way may be in the log and not committed yet; behind something that is
        committed nothing is. A marker is that, and readers pass over it."""
        if self._is_earlier_settled:
            return
        if self._producer_id < 0:
            self._producer_id, self._sequence = await self._next_producer_id(), 0
        marker = Marker(self._producer_id, producer_epoch=0, is_commit=True)
        await self._streams.append_marker(topic, self._partition, marker)
        self._is_earlier_settled = True

    async def _newest_between(
        self, topic: Topic, start: int, end: int, key: bytes
    ) -> RawRecord | None:
        newest: RawRecord | None = None
        offset = start
        while offset < end:
            fetched = await self._streams.fetch(
                topic,
                self._partition,
                offset=offset,
                bytes_max=LOOK_BYTES,
                is_committed=False,
            )
            if fetched.next_offset <= offset:  # another leads since, and does not know its end yet
                raise Overloaded(f"{self.name} cannot be read up to its end at the moment.")
            offset = fetched.next_offset
            for batch in split_batches(fetched.buffers):
                if not parse_header(batch).is_control:
                    for record in iter_records(batch):
                        if record.key == key and record.offset < end:
                            newest = record
            await asyncio.sleep(0)  # a long log is read beside everything else
        return newest

    # ── The topic ────────────────────────────────────────────────────────────────────────────

    async def find_or_make(self) -> Topic:
        topic = self._catalog.find(*self._namespace, self.name) or await self._make()
        if topic.is_queue:
            raise TopicExists(f"A queue has the name {self.name}, which belongs to the node.")
        if self._partition >= topic.partition_count:
            raise TopicNotFound(f"{self.name}, partition {self._partition}")
        if topic.configs.get(_RETENTION) != str(self._retention_ms):
            topic = await self._catalog.change(*self._namespace, self.name, self._configured)
        return topic

    def _configured(self, topic: Topic) -> Topic:
        return msgspec.structs.replace(
            topic,
            configs={**topic.configs, _RETENTION: str(self._retention_ms)},
            modified_at_ms=self._clock.wall_ms(),
        )

    async def _make(self) -> Topic:
        return await make_own_topic(
            self._catalog,
            self._namespace,
            self.name,
            partition_count=self._partition + 1,
            configs={_RETENTION: str(self._retention_ms)},
            clock=self._clock,
            entropy=self._entropy,
        )
