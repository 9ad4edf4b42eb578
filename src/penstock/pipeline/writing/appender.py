"""Appends the rows of one task to topics. Rows are collected in one open batch for each partition.
All batches carry a producer id and sequence numbers, so a batch whose reply was lost is sent again
but stored only once. The sink decides whether batches are part of a transaction.

Keys are hashed as Kafka's producers do, all keys of one length at once: the partition is the
Murmur2 hash of the key with Kafka's seed, without its sign bit, modulo the number of partitions."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.net.kafka_client.client import KafkaClient, KafkaRefused, Place
from penstock.pipeline.client.options import WriteOptions
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch
from penstock.record.record import encode_varint
from penstock.wire.kafka.faults import ErrorCode

_RUN: Final = 1_000  # rows without a key that go to one partition before the next partition
_OPEN_BYTES_MAX: Final = 32 * 1_048_576  # of all open batches of a task
_SEQUENCES: Final = 2**31
_TOPICS_MAX: Final = 10_000  # of one task
_CREATION_PAUSES_S: Final = (0.1, 0.2, 0.4)  # Apache Kafka creates topics after its reply


class RowInvalid(ValueError):
    """Raised if a row cannot be written. The text is one line with the reason."""


class TopicMissing(Exception):
    """Raised if a topic does not exist, and the server does not create it."""


def partition_count(client: KafkaClient, topic: str) -> int:
    """Return the number of partitions of a topic. A missing topic is created if the server's
    settings allow it; otherwise TopicMissing is raised."""
    may_create, pauses_s = True, iter(_CREATION_PAUSES_S)
    while True:
        try:
            if may_create:
                found = client.retried(lambda: client.topic(topic, may_create=True))
            else:
                found = client.topic(topic)
            return len(found.partitions)
        except KafkaRefused as refused:
            if refused.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and may_create:
                may_create = False  # the topic may exist
                continue
            if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        pause_s = next(pauses_s, None) if may_create else None
        if pause_s is None:
            raise TopicMissing(f"topic {topic} does not exist: run penstock topic create {topic}")
        time.sleep(pause_s)


@dataclass(slots=True)
class Producer:
    producer_id: int
    epoch: int
    transactional_id: str | None = None


@dataclass(slots=True)
class _Open:
    records: list[bytes] = field(default_factory=list)
    size: int = 0
    sequence: int = 0


class Appender:
    """A producer of rows. ``add`` and ``flush`` raise KafkaTrouble, TopicMissing and RowInvalid."""

    def __init__(
        self, client: KafkaClient, options: WriteOptions, producer: Producer, *, turn: int
    ) -> None:
        """Create a producer. ``turn`` is the first partition to get rows without a key."""
        self._client = client
        self._options = options
        self._producer = producer
        self._turn = turn
        self._counts: dict[str, int] = {}  # partitions of each topic
        self._open: dict[Place, _Open] = {}
        self._size = 0
        self.row_count = 0

    @property
    def topics(self) -> list[str]:
        return sorted(self._counts)

    def add(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        values = batch.column("value").cast(pa.binary())
        keys = batch.column("key").cast(pa.binary()) if "key" in names else None
        headers = batch.column("headers").to_pylist() if "headers" in names else None
        stated = batch.column("partition") if "partition" in names else None
        for topic, rows in self._by_topic(batch):
            chosen = self._partitions(topic, rows, keys, stated)
            self._append(topic, rows, chosen, keys, values, headers)
        self.row_count += batch.num_rows

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
        if "topic" not in batch.schema.names:
            yield self._options.topic, np.arange(batch.num_rows)
            return
        coded = pc.fill_null(batch.column("topic"), self._options.topic).dictionary_encode()
        indices = coded.indices.to_numpy()
        for number, topic in enumerate(coded.dictionary.to_pylist()):
            if not topic:
                raise RowInvalid("a row has no topic, and option topic is not set")
            yield topic, np.flatnonzero(indices == number)

    def _partitions(
        self, topic: str, rows: Any, keys: pa.Array | None, stated: pa.Array | None
    ) -> Any:
        count = self._counts.get(topic)
        if count is None:
            if len(self._counts) == _TOPICS_MAX:
                raise RowInvalid(f"a task writes to more than {_TOPICS_MAX} topics")
            count = self._counts[topic] = partition_count(self._client, topic)
        runs = self._turn + (self.row_count + np.arange(len(rows))) // _RUN
        chosen = runs % count
        if keys is not None:
            mine = keys.take(pa.array(rows))
            is_keyed = mine.is_valid().to_numpy(zero_copy_only=False)
            if is_keyed.any():
                chosen = np.where(is_keyed, hashes(mine) % count, chosen)
        if stated is not None:
            wanted = stated.take(pa.array(rows))
            numbers = wanted.fill_null(-1).to_numpy()
            is_stated = wanted.is_valid().to_numpy(zero_copy_only=False)
            if (is_stated & ((numbers < 0) | (numbers >= count))).any():
                raise RowInvalid(
                    f"topic {topic} has partitions 0 to {count - 1}; a row names another partition"
                )
            chosen = np.where(is_stated, numbers, chosen)
        return chosen

    def _append(
        self,
        topic: str,
        rows: Any,
        chosen: Any,
        keys: pa.Array | None,
        values: pa.Array,
        headers: Sequence[Any] | None,
    ) -> None:
        at = pa.array(rows)
        bodies = values.take(at).to_pylist()
        names = keys.take(at).to_pylist() if keys is not None else [None] * len(rows)
        batch_bytes = self._options.batch_bytes
        opened = {n: self._open.setdefault(Place(topic, n), _Open()) for n in set(chosen.tolist())}
        records = zip(chosen.tolist(), names, bodies, rows.tolist(), strict=True)
        for number, key, value, row in records:
            into = opened[number]
            tail = _headers(headers[row]) if headers is not None else b"\x00"
            record = _record(len(into.records), key, value, tail)
            if into.records and into.size + len(record) > batch_bytes:
                # Send the batches that are full, or at least a quarter full, in one request.
                self._send(size_min=batch_bytes // 4)
                record = _record(len(into.records), key, value, tail)
            into.records.append(record)
            into.size += len(record)
            self._size += len(record)
            if self._size > _OPEN_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        self._send(size_min=1)

    def _send(self, *, size_min: int) -> None:
        full = {place: each for place, each in self._open.items() if each.size >= size_min}
        if not full:
            return
        batches = {place: self._closed(each) for place, each in full.items()}
        try:
            self._client.produce(
                batches, is_repeatable=True, transactional_id=self._producer.transactional_id
            )
        except KafkaRefused as refusal:
            if refusal.code == ErrorCode.INVALID_REQUEST and "queue" in refusal.message:
                raise RowInvalid(
                    f"{refusal.subject}: {refusal.message} Set delivery=at-least-once to write"
                    " without transactions."
                ) from None
            raise
        for each in full.values():
            each.sequence = (each.sequence + len(each.records)) % _SEQUENCES
            self._size -= each.size
            each.records, each.size = [], 0

    def _closed(self, each: _Open) -> bytes:
        producer = self._producer
        now_ms = time.time_ns() // 1_000_000
        is_transactional = producer.transactional_id is not None
        return encode_batch(
            each.records,
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=self._options.codec | (ATTR_TRANSACTIONAL if is_transactional else 0),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=each.sequence,
        )


def _record(delta: int, key: bytes | None, value: bytes | None, tail: bytes) -> bytes:
    """Encode a record with a timestamp delta of 0. ``tail`` has the encoded headers."""
    body = b"".join(
        (
            b"\x00\x00",
            encode_varint(delta),
            b"\x01" if key is None else encode_varint(len(key)) + key,
            b"\x01" if value is None else encode_varint(len(value)) + value,
            tail,
        )
    )
    return encode_varint(len(body)) + body


def _headers(pairs: Sequence[Mapping[str, Any] | None] | None) -> bytes:
    if not pairs:
        return b"\x00"
    parts = [encode_varint(len(pairs))]
    for pair in pairs:
        if pair is None or pair["key"] is None:
            raise RowInvalid("a header has no key")
        name, content = pair["key"].encode(), pair["value"]
        parts += (encode_varint(len(name)), name)
        parts += (b"\x01",) if content is None else (encode_varint(len(content)), content)
    return b"".join(parts)


_SEED: Final = 0x9747B28C
_MIX: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = 0x7FFF_FFFF

Words = npt.NDArray[np.uint32]


def hashes(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Return the Murmur2 hashes of binary keys. The hash of a null key is undefined."""
    count = len(keys)
    edges = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + count + 1]
    raw = keys.buffers()[2]
    data = np.frombuffer(raw, np.uint8) if raw is not None else np.empty(0, np.uint8)
    begins = edges[:-1].astype(np.int64)
    sizes = np.diff(edges)
    found = np.zeros(count, np.int64)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        octets = data[begins[rows, None] + np.arange(size)]
        found[rows] = _murmur2(octets, size) & _POSITIVE
    return found


def _murmur2(octets: npt.NDArray[np.uint8], size: int) -> Words:
    whole = size & ~3
    words = np.ascontiguousarray(octets[:, :whole]).view("<u4") if whole else None
    state = np.full(len(octets), _SEED ^ size, np.uint32)
    for column in range(whole // 4):
        assert words is not None
        word = words[:, column] * _MIX
        word = (word ^ (word >> np.uint32(24))) * _MIX
        state = (state * _MIX) ^ word
    if whole < size:
        tail = np.zeros(len(octets), np.uint32)
        for at in range(whole, size):
            tail |= octets[:, at].astype(np.uint32) << np.uint32(8 * (at - whole))
        state = (state ^ tail) * _MIX
    state = (state ^ (state >> np.uint32(13))) * _MIX
    return state ^ (state >> np.uint32(15))
