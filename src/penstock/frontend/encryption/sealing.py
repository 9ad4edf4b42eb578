"""Encrypts data that frontends send to brokers and decrypts data that brokers return. The settings
of a topic say whether it is encrypted (a KMS key, SQS-managed encryption, ``penstock.encryption``).
If they do not, ``keys.encrypt_by_default`` decides. A change applies to later messages only, so a
log may have encrypted and plain records.

A message that cannot be decrypted is never delivered. In a queue it stays leased, so that it moves
to the dead-letter queue; a Kafka consumer sees a gap in the offsets, as after compaction."""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from penstock.frontend.encryption.content import (
    NONCE_BYTES,
    UNKNOWN_KEY,
    Quarantine,
    Unopenable,
    check_count,
    open_batch,
    open_message,
    place_of,
    seal_message,
    seal_records,
    sealed_runs,
)
from penstock.metadata.security.data_keys import DataKeys
from penstock.model.errors import InvalidRequest
from penstock.model.file_slice import in_memory
from penstock.model.limits import BATCH_BYTES_MAX, OPENED_BATCH_BYTES_MAX
from penstock.model.message import Delivery, Message
from penstock.model.ports import Acquired, Clock, Fetched
from penstock.model.topic import Topic
from penstock.net.slices import unpacked
from penstock.record.batch import BatchHeader, parse_header, repacked
from penstock.record.compression import TooLarge
from penstock.record.malformed import MalformedBatch
from penstock.telemetry.metrics import Meter
from penstock.wire.kafka.batches import BatchRefused, check_opened_count, too_large

# Undecryptable messages to remember, so that each is counted and logged once.
QUARANTINED_MAX: Final = 16_384
TOPICS_LOGGED_MAX: Final = 1_024
LOG_INTERVAL_MS: Final = 1_000  # between two log lines about one topic

Buffer = bytes | memoryview
T = TypeVar("T")

log = logging.getLogger("penstock.frontend")


@dataclass(eq=False)
class Sealing:
    keys: DataKeys
    _: KW_ONLY
    clock: Clock
    entropy: Callable[[int], bytes]
    meter: Meter
    is_default: bool = False  # whether a topic without a setting is encrypted

    def __post_init__(self) -> None:
        self._quarantined: dict[tuple[str, int, int], None] = {}  # topic, partition, offset
        self._logged_at_ms: dict[str, int] = {}  # by topic id

    def is_on(self, topic: Topic) -> bool:
        settings = topic.settings
        if settings.kms_key is not None:
            return True
        is_managed = settings.is_sse_managed
        return self.is_default if is_managed is None else is_managed

    async def rotate(self, topic: Topic) -> None:
        if not self.is_on(topic):
            raise InvalidRequest(f"The queue or topic {topic.name} is not encrypted.")
        await self.keys.rotate(topic)

    def sealed(self, topic: Topic, message: Message) -> Message | None:
        """Return the encrypted message, or None if ``seal`` must be called to load the key."""
        key = self.keys.take(topic, 1)
        return None if key is None else seal_message(message, key, self.entropy(NONCE_BYTES))

    async def seal(self, topic: Topic, message: Message) -> Message:
        key = self.keys.take(topic, 1) or await self.keys.reserve(topic, 1)
        return seal_message(message, key, self.entropy(NONCE_BYTES))

    async def opened(self, topic: Topic, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Decrypt deliveries. Messages that cannot be decrypted are left out and stay leased."""
        if not any(delivery.record.message.is_sealed for delivery in deliveries):
            return deliveries
        opened = []
        for delivery in deliveries:
            record = delivery.record
            message = await self.open(topic, delivery.partition, record.offset, record.message)
            if message is not None:
                opened.append(replace(delivery, record=replace(record, message=message)))
        return opened

    async def open(
        self, topic: Topic, partition: int, offset: int, message: Message
    ) -> Message | None:
        if not message.is_sealed:
            return message
        try:
            place = place_of(message.body)
            key = self.keys.find(place) or await self.keys.learn(place)
            if key is None:
                raise Unopenable(UNKNOWN_KEY)
            return open_message(message, key, topic.account.encode())
        except Unopenable as error:
            self._quarantine(topic, partition, [(offset, str(error))])
            return None

    async def seal_batches(
        self, topic: Topic, batches: Sequence[tuple[memoryview, BatchHeader]]
    ) -> list[tuple[memoryview, BatchHeader]]:
        sealed = []
        for batch, header in batches:
            try:
                check_opened_count(header)
                blob = await unpacked(
                    bytes(batch), header, tenant=topic.account, bytes_max=OPENED_BATCH_BYTES_MAX
                )
                check_count(blob, header)
                count = header.count
                key = self.keys.take(topic, count) or await self.keys.reserve(topic, count)
                done = await self._run(seal_records(bytes(blob), header, key, self.entropy))
            except TooLarge as error:
                raise too_large(f"{error}") from None
            except MalformedBatch as error:
                raise BatchRefused(str(error)) from None
            if len(done) > BATCH_BYTES_MAX:
                text = f"{len(done)} bytes"
                raise too_large(f"the encrypted batch has {text}; the limit is {BATCH_BYTES_MAX}")
            sealed.append((memoryview(done), parse_header(done)))
        return sealed

    def may_hold(self, topic: Topic) -> bool:
        """Return whether the topic may have encrypted records. This is true for every queue,
        because encrypted messages of other queues may be moved to it."""
        return topic.is_queue or self.keys.has(topic.topic_id) or self.is_on(topic)

    async def opened_fetch(self, topic: Topic, partition: int, fetched: Fetched) -> Fetched:
        if not fetched.buffers:
            return fetched
        held = in_memory(fetched.buffers)
        buffers, gone = await self._opened_buffers(topic, partition, held)
        if buffers is held:
            return fetched
        count = fetched.record_count - len(gone)
        return replace(fetched, buffers=buffers, record_count=max(count, 0))

    async def opened_share(self, share: Topic, partition: int, acquired: Acquired) -> Acquired:
        batches, gone = await self._opened_buffers(share, partition, acquired.batches)
        if batches is acquired.batches:
            return acquired
        picks = acquired.picks
        if gone:
            picks = [pick for pick in picks if pick[0] not in gone]
        return replace(acquired, batches=[bytes(batch) for batch in batches], picks=picks)

    async def _opened_buffers(
        self, topic: Topic, partition: int, buffers: Sequence[Buffer]
    ) -> tuple[Sequence[Buffer], set[int]]:
        """Return the decrypted buffers, and the offsets of records that could not be decrypted."""
        opened: list[Buffer] = []
        gone: set[int] = set()
        is_sealed = False
        for buffer in buffers:
            for is_batch, piece in sealed_runs(buffer):
                if not piece:
                    await asyncio.sleep(0)
                elif is_batch:
                    is_sealed = True
                    opened.append(await self._opened_batch(topic, partition, bytes(piece), gone))
                else:
                    opened.append(piece)
        return (opened, gone) if is_sealed else (buffers, gone)

    async def _opened_batch(self, topic: Topic, index: int, batch: bytes, gone: set[int]) -> bytes:
        quarantine: Quarantine = []
        owner = topic.account.encode()
        try:
            opened = await self._run(open_batch(batch, self.keys.find, owner, quarantine))
        except MalformedBatch as error:
            header = parse_header(batch)
            span = min(header.last_offset_delta + 1, len(batch))  # no record takes less than a byte
            quarantine = [(header.base_offset + delta, str(error)) for delta in range(span)]
            opened = repacked(header._replace(attributes=0), ())
        if quarantine:
            gone.update(offset for offset, _ in quarantine)
            self._quarantine(topic, index, quarantine)
        return opened

    async def _run(self, steps: Generator[bytes | None, None, T]) -> T:
        """Run a generator and return its result. Loads each key whose id the generator yields."""
        while True:
            try:
                missing = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if missing is None:
                await asyncio.sleep(0)
            else:
                await self.keys.learn(missing)

    def _quarantine(self, topic: Topic, partition: int, quarantine: Quarantine) -> None:
        known = self._quarantined
        topic_id = topic.source_id or topic.topic_id
        new = [one for one in quarantine if (topic_id, partition, one[0]) not in known]
        for offset, _ in new:
            if len(known) >= QUARANTINED_MAX:
                del known[next(iter(known))]
            known[topic_id, partition, offset] = None
        if not new:
            return
        self.meter.messages_quarantined += len(new)
        now_ms = self.clock.mono_ms()
        logged_at_ms = self._logged_at_ms.pop(topic_id, None)
        if logged_at_ms is None or now_ms - logged_at_ms >= LOG_INTERVAL_MS:
            logged_at_ms = now_ms
            offset, reason = new[0]
            facts = {"topic": topic.name, "account": topic.account, "partition": partition}
            facts |= {"offset": offset, "count": len(new), "reason": reason}
            log.error("message not delivered: decryption failed", extra=facts)
        while len(self._logged_at_ms) >= TOPICS_LOGGED_MAX:
            del self._logged_at_ms[next(iter(self._logged_at_ms))]
        self._logged_at_ms[topic_id] = logged_at_ms
