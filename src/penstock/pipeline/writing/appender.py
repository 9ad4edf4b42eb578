"""A producer for one task, which appends the task's rows to partitions as record batches.

Rows are collected in one open batch for each partition, which is sent when it is full. All batches
carry a producer id and sequence numbers: a batch whose reply was lost is sent again and stored
once. The sink decides whether batches are part of a transaction (``sink``).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.net.kafka_client.client import KafkaClient, KafkaRefused, Place
from penstock.pipeline.client.write_options import WriteOptions
from penstock.pipeline.writing.key_hashes import hashes
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch
from penstock.record.record import encode_varint
from penstock.wire.kafka.faults import ErrorCode

_RUN: Final = 1_000  # rows without a key that go to one partition before the next partition
_OPEN_BYTES_MAX: Final = 32 * 1_048_576  # in all open batches of a task
_SEQUENCES: Final = 2**31
_TOPICS_MAX: Final = 10_000  # of one task
_CREATION_PAUSES_S: Final = (0.1, 0.2, 0.4)  # Apache Kafka creates topics after its reply


class RowInvalid(ValueError):
    """A row cannot be written; the text is one line with the reason."""


class TopicMissing(Exception):
    """A topic does not exist, and the server does not create it."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic} does not exist: penstock topic create {self.topic}"


def partition_count(client: KafkaClient, topic: str) -> int:
    """Return the number of partitions of a topic. The server creates the topic if it does not exist
    and the settings of the server allow it. Raises TopicMissing, KafkaTrouble."""
    for pause_s in (*_CREATION_PAUSES_S, None):
        try:
            found = client.retried(lambda: client.topic(topic, may_create=True))
            return len(found.partitions)
        except KafkaRefused as refused:
            if refused.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                return _count_existing(client, topic)
            if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        if pause_s is not None:
            time.sleep(pause_s)
    raise TopicMissing(topic)


def _count_existing(client: KafkaClient, topic: str) -> int:
    """Return the partition count after creation was not authorized. Raises TopicMissing, or
    KafkaRefused if the principal may not use the existing topic."""
    try:
        return len(client.topic(topic).partitions)
    except KafkaRefused as refused:
        if refused.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicMissing(topic) from None
        raise


@dataclass(slots=True)
class Producer:
    producer_id: int
    epoch: int
    transactional_id: str | None = None


@dataclass(slots=True)
class _Open:
    """A batch of one partition that still accepts records."""

    records: list[bytes] = field(default_factory=list)
    size: int = 0
    sequence: int = 0


class Appender:
    """A producer; ``add`` and ``flush`` raise KafkaTrouble, TopicMissing and RowInvalid."""

    def __init__(
        self, client: KafkaClient, options: WriteOptions, producer: Producer, *, turn: int
    ) -> None:
        """``turn``: first partition of rows without a key; tasks begin with different ones."""
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
        """Yield each topic with the indices of its rows."""
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
                    f"topic {topic} has partitions 0 to {count - 1}; a row has another one"
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
        opened = {number: self._opened(Place(topic, number)) for number in set(chosen.tolist())}
        for number, key, value, row in zip(
            chosen.tolist(), names, bodies, rows.tolist(), strict=True
        ):
            into = opened[number]
            tail = _headers(headers[row]) if headers is not None else b"\x00"
            record = _record(len(into.records), key, value, tail)
            if into.records and into.size + len(record) > batch_bytes:
                self._flush_large()
                record = _record(len(into.records), key, value, tail)
            into.records.append(record)
            into.size += len(record)
            self._size += len(record)
            if self._size > _OPEN_BYTES_MAX:
                self.flush()

    def _opened(self, place: Place) -> _Open:
        return self._open.setdefault(place, _Open())

    def _flush_large(self) -> None:
        """Send the batches that are full, or at least a quarter full, in one request."""
        least = self._options.batch_bytes // 4
        self._send([place for place, each in self._open.items() if each.size >= least])

    def flush(self) -> None:
        self._send([place for place, each in self._open.items() if each.records])

    def _send(self, places: Sequence[Place]) -> None:
        if not places:
            return
        batches = {place: self._closed(self._open[place]) for place in places}
        try:
            self._client.produce(
                batches, is_repeatable=True, transactional_id=self._producer.transactional_id
            )
        except KafkaRefused as refusal:
            if refusal.code == ErrorCode.INVALID_REQUEST and "queue" in refusal.message:
                raise RowInvalid(
                    f"{refusal.subject}: {refusal.message} Set option delivery=at-least-once."
                ) from None
            raise
        for place in places:
            each = self._open[place]
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
    """Encode as ``record.encode_record`` does: timestamp delta 0, ``tail`` the encoded headers."""
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
