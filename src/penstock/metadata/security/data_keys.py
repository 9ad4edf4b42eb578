"""Data keys, which encrypt the messages of encrypted topics.

    /datakeys/{topic_id}/{key id}   the key, encrypted ("wrapped") by the key ring

A topic has one key that encrypts new messages, and older keys that are kept to decrypt older ones.
A new key is created after a day, after 2^31 messages (nonces are random; with more messages two
might be equal), or when the queue names another KMS key. Before a node uses a key, it reserves a
block of 2^24 messages in the store, so that the count per key survives restarts and covers all
nodes. A key is removed when no message encrypted with it can exist: when the topic's retention and
28 days have passed since the end of its last block. In these 28 days a message may go to a
dead-letter queue, be moved back and fail again. Keys of a deleted topic are kept for 28 days too.

For each message, a frontend calls ``take`` or ``find``, which read memory. Only if these find no
key, for example because another node has just created it, the frontend calls ``reserve`` or
``learn``, which call the store."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.metadata.cache import TRIES_MAX, Cache, put_in, write_all
from penstock.metadata.security.identities import Resealed, reseal
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.model.errors import Damaged, Overloaded, Throttled, VersionConflict
from penstock.model.limits import SEGMENT_AGE_MS_MAX
from penstock.model.ports import Catalog, Clock, KeyRing
from penstock.model.stream import settings_of
from penstock.model.topic import Topic

DATA_KEYS_PREFIX: Final = "/datakeys/"
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
TOPIC_ID_BYTES: Final = 16

DAY_MS: Final = 24 * 3_600_000
USES_MAX: Final = 2**31  # half of the limit for random nonces of 96 bits
BLOCK_USES: Final = 2**24  # more than the records of one batch
RESERVED_MS: Final = DAY_MS  # a block must be used within this time
KEY_AGE_MS_MAX: Final = DAY_MS - 2 * 3_600_000  # so that every new block gets a new key
# Twice the longest retention of a queue, which is 14 days: once as a dead letter, and once more for
# messages that were moved back and failed again.
COPIES_MS: Final = 28 * DAY_MS
# Ten years of daily keys. Above it a topic continues with its present key, up to USES_MAX.
KEYS_PER_TOPIC_MAX: Final = 4_096
READY_MAX: Final = 4_096  # keys that are unwrapped in memory
SWEEP_INTERVAL_MS: Final = 3_600_000
RENEW_BEFORE_MS: Final = 3_600_000  # time before its end at which a block is replaced
RETRY_MS: Final = 60_000

log = logging.getLogger(__name__)


class DataKeyEntry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    account: str
    wrapped: bytes
    created_at_ms: int
    reserved: int = 0  # number of messages, in whole blocks
    reserved_at_ms: int = 0
    label: str = ""  # hash of the KMS key that the queue named
    orphaned_at_ms: int = 0  # when its topic was found to be deleted


decode_data_key = msgspec.json.Decoder(DataKeyEntry).decode


class DataKey:
    """A decrypted data key. ``place``, its address, is the topic id followed by the key id."""

    __slots__ = ("decrypt", "encrypt", "owner", "place")

    def __init__(self, place: bytes, account: str, secret: bytes) -> None:
        self.place = place
        self.owner = account.encode()
        cipher = AESGCM(secret)
        self.encrypt = cipher.encrypt
        self.decrypt = cipher.decrypt

    def __repr__(self) -> str:
        return f"DataKey({self.place.hex()})"


@dataclass(slots=True)
class _Block:
    """A block of messages that this node has reserved, and may encrypt with one key."""

    key: DataKey
    label: str
    until_ms: int  # on the monotonic clock
    renew_at_ms: int
    left: int = BLOCK_USES


def data_key_key(topic_id: str, key_id: str) -> str:
    return f"{DATA_KEYS_PREFIX}{topic_id}/{key_id}"


def _parts_of(at: str) -> tuple[str, str]:
    topic_id, _, key_id = at.removeprefix(DATA_KEYS_PREFIX).partition("/")
    return topic_id, key_id


def _label_of(topic: Topic) -> str:
    name = topic.settings.kms_key
    return blake2b(name.encode(), digest_size=8).hexdigest() if name else ""


class DataKeys:
    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        catalog: Catalog,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],  # returns this number of random bytes
    ) -> None:
        # Returns the longest retention of a topic on any node. Replaced when configs are known.
        self.retention_ms_of: Callable[[Topic], int | None] = lambda topic: (
            settings_of(topic).retention_ms
        )
        self._store = store
        self._ring = ring
        self._catalog = catalog
        self._clock = clock
        self._entropy = entropy
        self._entries = Cache(
            store, DATA_KEYS_PREFIX, decode=decode_data_key, on_change=self._on_entry_change
        )
        self._by_topic: dict[str, dict[str, DataKeyEntry]] = {}  # by topic id and metadata key
        self._ready: dict[bytes, DataKey] = {}  # by topic id and key id; oldest first
        self._unreadable: set[str] = set()  # entries that the key ring cannot unwrap
        self._blocks: dict[str, _Block] = {}  # by topic id
        self._reserving: dict[str, asyncio.Task[None]] = {}  # one per topic, shared by all requests
        self._swept_at_ms = 0

    async def start(self) -> None:
        """Load all keys. Messages whose key cannot be decrypted are not delivered."""
        await self._entries.start()
        for at, entry in self._all():
            self._secret(at, entry)
        if self._unreadable:
            log.error("data keys cannot be unwrapped", extra={"count": len(self._unreadable)})

    async def stop(self) -> None:
        for task in tuple(self._reserving.values()):
            await asyncio.wait((task,))
        await self._entries.stop()

    @property
    def trouble(self) -> str | None:
        if self._unreadable:
            return (
                f"{len(self._unreadable)} data keys cannot be unwrapped: their messages are not"
                " delivered until the master key that wrapped them is configured"
            )
        return self._entries.trouble

    def has(self, topic_id: str) -> bool:
        return topic_id in self._by_topic

    def find(self, place: bytes) -> DataKey | None:
        """Return a key from memory. ``place`` is the topic id followed by the key id."""
        return self._ready.get(place) or self._unwrapped(
            place[:TOPIC_ID_BYTES].hex(), place[TOPIC_ID_BYTES:].hex()
        )

    async def learn(self, place: bytes) -> DataKey | None:
        """Return a key from the store, where another node may just have created it."""
        topic_id, key_id = place[:TOPIC_ID_BYTES].hex(), place[TOPIC_ID_BYTES:].hex()
        await self._entries.refresh(data_key_key(topic_id, key_id))
        return self.find(place)

    def _unwrapped(self, topic_id: str, key_id: str) -> DataKey | None:
        at = data_key_key(topic_id, key_id)
        entry = self._entries.get(at)
        if entry is None:
            return None
        secret = self._secret(at, entry)
        if secret is None:
            return None
        return self._keep(DataKey(bytes.fromhex(topic_id + key_id), entry.account, secret))

    def _secret(self, at: str, entry: DataKeyEntry) -> bytes | None:
        try:
            secret = self._ring.unwrap(entry.wrapped, context=at.encode())
        except Damaged:
            self._unreadable.add(at)
            return None
        self._unreadable.discard(at)
        return secret

    def _keep(self, key: DataKey) -> DataKey:
        if len(self._ready) >= READY_MAX:
            del self._ready[next(iter(self._ready))]
        self._ready[key.place] = key
        return key

    def take(self, topic: Topic, count: int) -> DataKey | None:
        """Return the key for the next ``count`` messages, or None if ``reserve`` is needed."""
        block = self._blocks.get(topic.topic_id)
        if block is None or block.left < count:
            return None
        now_ms = self._clock.mono_ms()
        if now_ms >= block.until_ms or block.label != _label_of(topic):
            return None
        if now_ms >= block.renew_at_ms:
            # Early enough that a short outage of the store delays no request.
            block.renew_at_ms = now_ms + RETRY_MS
            self._begin(topic)
        block.left -= count
        return block.key

    async def reserve(self, topic: Topic, count: int) -> DataKey:
        """Reserve a block of messages, and return the key for the next ``count`` messages."""
        assert count <= BLOCK_USES
        for _ in range(TRIES_MAX):
            key = self.take(topic, count)
            if key is not None:
                return key
            # The reservation must not be cancelled with the request that started it.
            await asyncio.shield(self._begin(topic))
        raise Throttled(f"The data key of {topic.name} cannot be renewed fast enough; retry.")

    async def rotate(self, topic: Topic) -> None:
        """Create a new key for later messages. Earlier messages stay encrypted as they are."""
        if len(self._by_topic.get(topic.topic_id, ())) >= KEYS_PER_TOPIC_MAX:
            raise Overloaded(f"{topic.name} has the maximum of {KEYS_PER_TOPIC_MAX} data keys.")
        label = _label_of(topic)
        self._hold(topic, label, await self._create(topic, label))

    def _begin(self, topic: Topic) -> "asyncio.Task[None]":
        task = self._reserving.get(topic.topic_id)
        if task is None:
            task = asyncio.create_task(self._reserve(topic), name="reserve a data key")
            self._reserving[topic.topic_id] = task
            task.add_done_callback(partial(self._reserved, topic))
        return task

    def _reserved(self, topic: Topic, task: "asyncio.Task[None]") -> None:
        del self._reserving[topic.topic_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning(
                "reserving a data key failed", extra={"topic": topic.name, "reason": str(error)}
            )

    async def _reserve(self, topic: Topic) -> None:
        label = _label_of(topic)
        for _ in range(TRIES_MAX):
            at = self._usable(topic, label)
            if at is None:
                self._hold(topic, label, await self._create(topic, label))
                return
            entry = self._entries.get(at)
            assert entry is not None
            after = msgspec.structs.replace(
                entry,
                reserved=entry.reserved + BLOCK_USES,
                reserved_at_ms=self._clock.wall_ms(),
                orphaned_at_ms=0,
            )
            if await self._put(at, after):
                key = self._unwrapped(*_parts_of(at))
                if key is not None:
                    self._hold(topic, label, key)
                    return
        raise Throttled(f"The data key of {topic.name} is being renewed by another node; retry.")

    def _usable(self, topic: Topic, label: str) -> str | None:
        """Return the newest key that may encrypt another block of messages, or None."""
        known = self._by_topic.get(topic.topic_id, {})
        found = [
            (entry.created_at_ms, at, entry)
            for at, entry in known.items()
            if entry.reserved + BLOCK_USES <= USES_MAX and at not in self._unreadable
        ]
        found.sort(reverse=True, key=lambda one: one[:2])
        now_ms = self._clock.wall_ms()
        is_full = len(known) >= KEYS_PER_TOPIC_MAX
        for created_at_ms, at, entry in found:
            is_fresh = now_ms - created_at_ms < KEY_AGE_MS_MAX and entry.label == label
            if is_full or is_fresh:
                return at
        return None

    async def _create(self, topic: Topic, label: str) -> DataKey:
        topic_id, now_ms = topic.topic_id, self._clock.wall_ms()
        key_id = self._entropy(KEY_ID_BYTES).hex()
        at = data_key_key(topic_id, key_id)
        secret = self._entropy(KEY_BYTES)
        entry = DataKeyEntry(
            account=topic.account,
            wrapped=self._ring.wrap(secret, context=at.encode()),
            created_at_ms=now_ms,
            reserved=BLOCK_USES,
            reserved_at_ms=now_ms,
            label=label,
        )
        await self._entries.write(at, entry, if_version=0)
        return self._keep(DataKey(bytes.fromhex(topic_id + key_id), topic.account, secret))

    def _hold(self, topic: Topic, label: str, key: DataKey) -> None:
        until_ms = self._clock.mono_ms() + RESERVED_MS
        self._blocks[topic.topic_id] = _Block(key, label, until_ms, until_ms - RENEW_BEFORE_MS)

    async def sweep(self) -> int:
        """Remove the keys that no message needs, at most once an hour. Returns their number."""
        now_ms = self._clock.wall_ms()
        if 0 <= now_ms - self._swept_at_ms < SWEEP_INTERVAL_MS:
            return 0
        self._swept_at_ms = now_ms
        mono_ms = self._clock.mono_ms()
        for topic_id, block in list(self._blocks.items()):
            if mono_ms >= block.until_ms or self._catalog.find_id(topic_id) is None:
                del self._blocks[topic_id]
        changes = [
            (at, after)
            for at, entry in self._all()
            if (after := self._aged(_parts_of(at)[0], entry, now_ms)) != entry
        ]
        gone = 0
        for start in range(0, len(changes), CHANGES_PER_TXN_MAX):
            gone += await self._write(changes[start : start + CHANGES_PER_TXN_MAX])
        return gone

    def _aged(self, topic_id: str, entry: DataKeyEntry, now_ms: int) -> DataKeyEntry | None:
        """Return a key's entry with a new ``orphaned_at_ms``, or None if the key is not needed."""
        topic = self._catalog.find_id(topic_id)
        if topic is None:
            # The key is removed by a later sweep: the topic may only be missing in memory.
            orphaned_at_ms = entry.orphaned_at_ms or now_ms
            if now_ms - orphaned_at_ms >= COPIES_MS:
                return None
            return msgspec.structs.replace(entry, orphaned_at_ms=orphaned_at_ms)
        retention_ms = self.retention_ms_of(topic)
        used_until_ms = max(entry.created_at_ms, entry.reserved_at_ms) + RESERVED_MS
        if retention_ms is not None:
            # Records are removed with their segment, which may be appended to for a while.
            kept_ms = retention_ms + SEGMENT_AGE_MS_MAX + COPIES_MS
            if now_ms - used_until_ms >= kept_ms:
                return None
        return msgspec.structs.replace(entry, orphaned_at_ms=0)

    async def _write(self, changes: Sequence[tuple[str, DataKeyEntry | None]]) -> int:
        compare = [(at, self._entries.version(at)) for at, _ in changes]
        try:
            await write_all(self._store, compare, [(self._entries, *change) for change in changes])
        except VersionConflict:
            return 0  # one of the keys has changed; the next round tries again
        return sum(entry is None for _, entry in changes)

    async def reseal(self, rewrap: Callable[[bytes, bytes], bytes]) -> Resealed:
        """Encrypt every data key with the current master key. Messages are not changed."""

        def change(at: str, entry: DataKeyEntry) -> DataKeyEntry:
            return msgspec.structs.replace(entry, wrapped=rewrap(entry.wrapped, at.encode()))

        return await reseal(self._entries, [at for at, _ in self._all()], change)

    def _all(self) -> Iterator[tuple[str, DataKeyEntry]]:
        for entries in self._by_topic.values():
            yield from entries.items()

    async def _put(self, at: str, entry: DataKeyEntry) -> bool:
        """Store an entry. Returns False, and updates memory, if another node has changed it."""
        try:
            await self._entries.write(at, entry, if_version=self._entries.version(at))
            return True
        except VersionConflict:
            await self._entries.refresh(at)
            return False

    def _on_entry_change(
        self, at: str, before: DataKeyEntry | None, after: DataKeyEntry | None
    ) -> None:
        topic_id, key_id = _parts_of(at)
        put_in(self._by_topic, topic_id, at, after)
        if after is None:
            self._ready.pop(bytes.fromhex(topic_id + key_id), None)
            self._unreadable.discard(at)
        elif before is None:
            # A newer key than the one in use, perhaps made by another node: switch to it.
            self._blocks.pop(topic_id, None)
