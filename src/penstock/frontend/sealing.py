"""The stage that seals what goes to a broker and opens what comes back, where a topic wants that.

A topic is encrypted when its queue names a KMS key or asks for SQS-managed encryption, or when its
config ``penstock.encryption`` says so (one setting, seen from two sides). What was never said is
left to the node's ``keys.encrypt_by_default``. Turning it on or off concerns what is sent from then
on: sealed and plain records stand side by side in a log, and each is known for what it is.

What does not open is never delivered. It is counted and logged, once, without its content. A queue
keeps it leased, so that it comes to its dead-letter queue as every other message that nobody could
work on; a reader by offset finds a gap, as compaction leaves them.

Formats and ciphers are in ``seal.py`` and ``seal_batches.py``; keys come from the metadata.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from penstock.frontend.seal import (
    NONCE_BYTES,
    TopicKey,
    Unopenable,
    open_message,
    place_of,
    seal_message,
)
from penstock.frontend.seal_batches import (
    Quarantine,
    check_count,
    open_batch,
    seal_records,
    sealed_stretches,
)
from penstock.model.errors import InvalidRequest
from penstock.model.file_slice import in_memory
from penstock.model.limits import BATCH_BYTES_MAX, OPENED_BATCH_BYTES_MAX
from penstock.model.message import Delivery, Message
from penstock.model.ports import Acquired, Fetched
from penstock.model.topic import Topic
from penstock.net.unpacking import unpacked
from penstock.record.batch import BatchHeader, parse_header, repacked
from penstock.record.compression import TooLarge
from penstock.record.malformed import MalformedBatch
from penstock.wire.kafka.batches import BatchInvalid, BatchTooLarge, check_opened_count

# Messages that are known not to open: beyond it the oldest may be counted once more.
QUARANTINED_MAX: Final = 16_384
TOPICS_TOLD_MAX: Final = 1_024
TOLD_INTERVAL_MS: Final = 1_000  # between two log lines about one topic

Buffer = bytes | memoryview
Place = tuple[str, int, int]  # topic id, partition, offset
T = TypeVar("T")

log = logging.getLogger("penstock.frontend")


class TopicKeys(Protocol):
    """``metadata.data_keys`` as it is needed here."""

    def has(self, topic_id: str) -> bool: ...

    def find(self, place: bytes) -> TopicKey | None: ...

    async def learn(self, place: bytes) -> TopicKey | None: ...

    def take(self, topic: Topic, count: int) -> TopicKey | None: ...

    async def reserve(self, topic: Topic, count: int) -> TopicKey: ...

    async def rotate(self, topic: Topic) -> None: ...


class QuarantineMeter(Protocol):
    def quarantined(self, count: int) -> None: ...


class MonoClock(Protocol):
    def mono_ms(self) -> int: ...


class Sealing:
    def __init__(
        self,
        keys: TopicKeys,
        *,
        clock: MonoClock,
        entropy: Callable[[int], bytes],
        meter: QuarantineMeter,
        is_default: bool = False,
    ) -> None:
        """``entropy`` gives that many random bytes, never the same twice. ``is_default``: whether a
        topic of which nothing was said is encrypted."""
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        self._meter = meter
        self._is_default = is_default
        self._quarantined: dict[Place, None] = {}  # oldest first
        self._told_at_ms: dict[str, int] = {}  # by topic id

    def is_on(self, topic: Topic) -> bool:
        settings = topic.settings
        if settings.kms_key is not None:
            return True
        is_managed = settings.is_sse_managed
        return self._is_default if is_managed is None else is_managed

    async def rotate(self, topic: Topic) -> None:
        """Seal with a new key from now on. Raises InvalidRequest where nothing is sealed."""
        if not self.is_on(topic):
            raise InvalidRequest(f"{topic.name} is not encrypted.")
        await self._keys.rotate(topic)

    # ── Messages ─────────────────────────────────────────────────────────────────────────────

    def sealed(self, topic: Topic, message: Message) -> Message | None:
        """``seal`` without waiting; None: there is no key at hand."""
        key = self._keys.take(topic, 1)
        return None if key is None else seal_message(message, key, self._entropy(NONCE_BYTES))

    async def seal(self, topic: Topic, message: Message) -> Message:
        key = self._keys.take(topic, 1) or await self._keys.reserve(topic, 1)
        return seal_message(message, key, self._entropy(NONCE_BYTES))

    async def opened(self, topic: Topic, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those that open. The others stay leased."""
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
        """None, and noted, if it does not open."""
        if not message.is_sealed:
            return message
        try:
            place = place_of(message.body)
            key = self._keys.find(place) or await self._keys.learn(place)
            if key is None:
                raise Unopenable("its data key is not known here")
            return open_message(message, key, topic.account.encode())
        except Unopenable as error:
            self._note(topic, partition, [(offset, str(error))])
            return None

    # ── Batches ──────────────────────────────────────────────────────────────────────────────

    async def seal_batches(
        self, topic: Topic, batches: Sequence[tuple[memoryview, BatchHeader]]
    ) -> list[tuple[memoryview, BatchHeader]]:
        """Raises BatchRefused for one that cannot be taken apart, or has grown too large: what came
        compressed is stored without that."""
        sealed = []
        for batch, header in batches:
            try:
                check_opened_count(header)
                blob = await unpacked(
                    bytes(batch), header, tenant=topic.account, bytes_max=OPENED_BATCH_BYTES_MAX
                )
                check_count(blob, header)
                count = header.count
                key = self._keys.take(topic, count) or await self._keys.reserve(topic, count)
                done = await self._in_turns(seal_records(bytes(blob), header, key, self._entropy))
            except TooLarge as error:
                raise BatchTooLarge(f"{error} when decompressed") from None
            except MalformedBatch as error:
                raise BatchInvalid(str(error)) from None
            if len(done) > BATCH_BYTES_MAX:
                raise BatchTooLarge(
                    f"a batch of {len(done)} bytes when encrypted, {BATCH_BYTES_MAX} are allowed"
                )
            sealed.append((memoryview(done), parse_header(done)))
        return sealed

    def may_hold(self, topic: Topic) -> bool:
        """Whether batches of the topic have to be looked at: those of a stream only if it has keys
        or is about to, those of a queue always, for it may be where dead letters of others go."""
        return topic.is_queue or self._keys.has(topic.topic_id) or self.is_on(topic)

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
        """Without the records that do not open: these stay leased until their time is up."""
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
        """The same object where nothing is sealed, else without what does not open, and the offsets
        of that."""
        opened: list[Buffer] = []
        gone: set[int] = set()
        is_sealed = False
        for buffer in buffers:
            for is_batch, piece in sealed_stretches(buffer):
                if not piece:
                    await asyncio.sleep(0)
                elif is_batch:
                    is_sealed = True
                    opened.append(await self._opened_batch(topic, partition, bytes(piece), gone))
                else:
                    opened.append(piece)
        return (opened, gone) if is_sealed else (buffers, gone)

    async def _opened_batch(
        self, topic: Topic, partition: int, batch: bytes, gone: set[int]
    ) -> bytes:
        quarantine: Quarantine = []
        owner = topic.account.encode()
        try:
            opened = await self._in_turns(open_batch(batch, self._keys.find, owner, quarantine))
        except MalformedBatch as error:
            header = parse_header(batch)
            span = min(header.last_offset_delta + 1, len(batch))  # no record takes less than a byte
            quarantine = [(header.base_offset + delta, str(error)) for delta in range(span)]
            opened = repacked(header._replace(attributes=0), ())
        if quarantine:
            gone.update(offset for offset, _ in quarantine)
            self._note(topic, partition, quarantine)
        return opened

    async def _in_turns(self, steps: Generator[bytes | None, None, T]) -> T:
        """Run to the end, with pauses for everybody else and for keys to be looked for."""
        while True:
            try:
                missing = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if missing is None:
                await asyncio.sleep(0)
            else:
                await self._keys.learn(missing)

    # ── Quarantine ───────────────────────────────────────────────────────────────────────────

    def _note(self, topic: Topic, partition: int, quarantine: Quarantine) -> None:
        known = self._quarantined
        topic_id = topic.source_id or topic.topic_id
        news = [one for one in quarantine if (topic_id, partition, one[0]) not in known]
        for offset, _ in news:
            if len(known) >= QUARANTINED_MAX:
                del known[next(iter(known))]
            known[topic_id, partition, offset] = None
        if not news:
            return
        self._meter.quarantined(len(news))
        now_ms = self._clock.mono_ms()
        told_at_ms = self._told_at_ms.pop(topic_id, None)
        if told_at_ms is None or now_ms - told_at_ms >= TOLD_INTERVAL_MS:
            told_at_ms = now_ms
            offset, reason = news[0]
            log.error(
                "sealed message does not open: not delivered",
                extra={
                    "topic": topic.name,
                    "account": topic.account,
                    "partition": partition,
                    "offset": offset,
                    "count": len(news),
                    "reason": reason,
                },
            )
        while len(self._told_at_ms) >= TOPICS_TOLD_MAX:
            del self._told_at_ms[next(iter(self._told_at_ms))]
        self._told_at_ms[topic_id] = told_at_ms
