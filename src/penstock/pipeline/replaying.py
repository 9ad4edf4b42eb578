"""Sends one partition of an archive, in a task of the job ``replay``.

Delivery is exactly once even after kills, without transactions, so that the target can also be a
standard queue. Each archived partition has its own producer, whose id is stored when the job
starts, and a **position**: the next archived offset, and its sequence number. A chunk is one batch
with this sequence number; after the reply, the position advances. If a task is killed before that,
the next task sends the same chunk with the same sequence number, and the broker, which remembers
the last batches of a producer, drops it as a duplicate. Only count and size limit a chunk, so the
next task forms the same chunks.

Positions are committed offsets of consumer groups, one group for each archived partition: they are
as durable as the sent records, and tools that show groups show the progress of a replay.

FIFO queues do not accept records from Kafka producers; they get messages (``queue_sender.py``) with
a deduplication id of job, partition and offset.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.net.kafka_client import LATEST, KafkaClient, KafkaRefused, Place
from penstock.pipeline.connections import client_for
from penstock.pipeline.options import Connection
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_RECORDS: Final = 1_000
CHUNK_BYTES: Final = 768 * 1_024  # less than the default maximum of a batch, 1 MB
SEQUENCE_MODULO: Final = 1 << 31
COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
SYSTEM_HEADER: Final = "penstock"
DONE_SCHEMA: Final = "partition int, sent long, repeated long"
_OFFSET_COMMIT, _OFFSET_FETCH = 8, 9
_COMMIT_BY_NAME_MAX: Final = 9  # newer commits name topics by id
_FETCH_ONE_GROUP_MAX: Final = 7


class ProgressLost(Exception):
    """The cluster lost the position of a replay: continuing could send records twice."""


@dataclass(frozen=True, slots=True)
class Way:
    """The parameters of one replay that a task needs."""

    job: str
    connection: Connection
    topic: str  # or queue
    partitions: int  # of the target
    rate: float | None  # records a second, of each archived partition
    is_original_time: bool = False
    now_ms: int = 0  # timestamp of all records, unless ``is_original_time``
    queue: "QueueAddress | None" = None  # of a FIFO queue

    def target_of(self, partition: int) -> Place:
        """Return one target partition for each archived partition, so that order is kept."""
        return Place(self.topic, partition % self.partitions)

    def group_of(self, partition: int) -> str:
        return f"penstock-replay.{self.job}.{partition}"


@dataclass(frozen=True, slots=True)
class QueueAddress:
    endpoint: str
    region: str
    key_id: str
    secret_file: str  # a path, because plans are logged and must not contain secrets


@dataclass(frozen=True, slots=True)
class Standing:
    """The position of one archived partition."""

    next_offset: int
    producer_id: int
    producer_epoch: int
    sequence: int

    def behind(self, offset: int, count: int) -> "Standing":
        sequence = (self.sequence + count) % SEQUENCE_MODULO
        return replace(self, next_offset=offset + 1, sequence=sequence)


# ── Positions in the cluster ─────────────────────────────────────────────────────────────────


def read_standing(client: KafkaClient, way: Way, partition: int) -> Standing | None:
    """Return the position, or None if none was committed. Raises KafkaTrouble, ProgressLost."""
    from penstock.wire.kafka.generated import offset_fetch as api

    place, group = way.target_of(partition), way.group_of(partition)
    topic = api.OffsetFetchRequestTopic(place.topic, [place.partition])
    request = api.OffsetFetchRequest(group_id=group, topics=[topic])

    def ask() -> Any:
        node = client.coordinator(group)
        reply = client.call(_OFFSET_FETCH, request, node=node, version_max=_FETCH_ONE_GROUP_MAX)
        code = reply.error_code or reply.topics[0].partitions[0].error_code
        if code:
            raise KafkaRefused(code, subject=f"group {group}")
        return reply.topics[0].partitions[0]

    found = client.retried(ask)
    if found.committed_offset < 0:
        return None
    try:
        producer_id, epoch, sequence = json.loads(found.metadata or "")
    except ValueError:
        raise ProgressLost(f"group {group} was changed by somebody else") from None
    return Standing(found.committed_offset, producer_id, epoch, sequence)


def note_standing(client: KafkaClient, way: Way, partition: int, standing: Standing) -> None:
    """Raises KafkaTrouble."""
    from penstock.wire.kafka.generated import offset_commit as api

    place, group = way.target_of(partition), way.group_of(partition)
    text = json.dumps([standing.producer_id, standing.producer_epoch, standing.sequence])
    part = api.OffsetCommitRequestPartition(
        place.partition, standing.next_offset, committed_metadata=text
    )
    topic = api.OffsetCommitRequestTopic(place.topic, partitions=[part])
    request = api.OffsetCommitRequest(group_id=group, topics=[topic])

    def ask() -> None:
        node = client.coordinator(group)
        reply = client.call(_OFFSET_COMMIT, request, node=node, version_max=_COMMIT_BY_NAME_MAX)
        code = reply.topics[0].partitions[0].error_code
        if code:
            raise KafkaRefused(code, subject=f"group {group}")

    client.retried(ask)


# ── In the executors ─────────────────────────────────────────────────────────────────────────


class Sender(Protocol):
    """A sender of chunks; ``send`` returns True if the target reports a duplicate."""

    def send(self, partition: int, rows: Sequence[Any], standing: Standing) -> bool: ...


def send_again(batches: "Iterable[pa.RecordBatch]", way: Way) -> "Iterator[pa.RecordBatch]":
    """Send rows, sorted by partition and offset, and yield a row for each partition."""
    import pyarrow as pa

    client = client_for(way.connection)
    sender = _sender(client, way)
    done: list[tuple[int, int, int]] = []
    current: _Partition | None = None
    for row in _rows(batches):
        if current is None or current.number != row[0]:
            if current is not None:
                done.append(current.finish())
            current = _Partition(row[0], client, sender, way)
        current.take(row)
    if current is not None:
        done.append(current.finish())
    kinds = (pa.int32(), pa.int64(), pa.int64())
    columns = list(zip(*done, strict=True)) or [(), (), ()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, ["partition", "sent", "repeated"])


def _rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    for batch in batches:
        columns = []
        for name in COLUMNS:
            column = batch.column(name)
            if name == "timestamp":
                column = column.cast(pa.int64())  # microseconds
            columns.append(column.to_pylist())
        yield from zip(*columns, strict=True)


def _sender(client: KafkaClient, way: Way) -> Sender:
    if way.queue is None:
        return TopicSender(client, way)
    from penstock.pipeline.queue_sender import QueueSender

    return QueueSender(way)


class _Partition:
    """An archived partition, whose rows are collected in chunks, sent, and then committed."""

    def __init__(self, number: int, client: KafkaClient, sender: Sender, way: Way) -> None:
        standing = read_standing(client, way, number)
        if standing is None:
            raise ProgressLost(
                f"group {way.group_of(number)} is gone: nobody knows what was sent before"
            )
        self.number = number
        self._standing = standing
        self._client = client
        self._sender = sender
        self._way = way
        self._chunk: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._sent = 0
        self._repeated = 0
        self._began_at = time.monotonic()
        self._pause = threading.Event()

    def take(self, row: tuple[Any, ...]) -> None:
        if row[1] < self._standing.next_offset:
            return
        size = len(row[3] or b"") + len(row[4] or b"") + 64
        size += sum(len(h["key"]) + len(h["value"] or b"") + 8 for h in row[5] or ())
        is_full = len(self._chunk) == CHUNK_RECORDS or self._bytes + size > CHUNK_BYTES
        if self._chunk and is_full:
            self._send()
        self._chunk.append(row)
        self._bytes += size

    def _send(self) -> None:
        chunk, self._chunk, self._bytes = self._chunk, [], 0
        was_there = self._sender.send(self.number, chunk, self._standing)
        self._standing = self._standing.behind(chunk[-1][1], len(chunk))
        note_standing(self._client, self._way, self.number, self._standing)
        self._sent += len(chunk)
        self._repeated += len(chunk) if was_there else 0
        if self._way.rate is not None:
            due_s = self._began_at + self._sent / self._way.rate - time.monotonic()
            if due_s > 0:
                self._pause.wait(due_s)

    def finish(self) -> tuple[int, int, int]:
        if self._chunk:
            self._send()
        return self.number, self._sent, self._repeated


class TopicSender:
    """A sender to a topic or a standard queue; each chunk is one idempotent batch."""

    def __init__(self, client: KafkaClient, way: Way) -> None:
        self._client = client
        self._way = way
        self._begun: set[int] = set()

    def send(self, partition: int, rows: Sequence[Any], standing: Standing) -> bool:
        times = [
            row[2] // 1_000 if self._way.is_original_time else self._way.now_ms for row in rows
        ]
        base = times[0]
        records = [
            encode_record(
                offset_delta=delta,
                timestamp_delta=at_ms - base,
                key=row[3],
                value=row[4],
                headers=_headers(row[5]),
            )
            for delta, (row, at_ms) in enumerate(zip(rows, times, strict=True))
        ]
        batch = encode_batch(
            records,
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=base,
            max_timestamp=max(times),
            producer_id=standing.producer_id,
            producer_epoch=standing.producer_epoch,
            base_sequence=standing.sequence,
        )
        place = self._way.target_of(partition)
        # Only the first chunk of a task may have been sent before, by a task that was killed.
        end = self._client.offsets({place: LATEST})[place] if self._is_first(partition) else 0
        return self._client.produce({place: batch}, is_repeatable=True)[place] < end

    def _is_first(self, partition: int) -> bool:
        is_first = partition not in self._begun
        self._begun.add(partition)
        return is_first


def _headers(headers: Sequence[Any] | None) -> list[tuple[bytes, bytes | None]]:
    """Return all headers but the one with the queue's message id: a copy is another message."""
    return [(h["key"].encode(), h["value"]) for h in headers or () if h["key"] != SYSTEM_HEADER]
