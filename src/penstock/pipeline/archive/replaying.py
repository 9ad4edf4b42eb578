"""Sends one partition of an archive to a topic or a queue, in a task of the job ``replay``.

Each record is delivered exactly once, even if tasks are killed. Transactions are not used, so that
the target can also be a standard queue. Each archived partition has its own producer, whose id is
stored when the job starts, and a **position**: the next archived offset to send, and its sequence
number. A chunk of records is sent as one batch with this sequence number; after the reply, the
position advances. If a task is killed before that, the next task sends the same chunk with the same
number, and the broker drops it as a duplicate. Only count and size limit a chunk, so the next task
forms the same chunks. Positions are committed offsets of consumer groups, so they are durable.

FIFO queues do not accept records from Kafka producers, so they get SQS messages. A record's key
becomes the message group, so that order is kept; its headers become message attributes. A record
that cannot be converted to a message ends the replay with an error."""

import base64
import hashlib
import http
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.model.limits import BATCH_ENTRIES_MAX, MESSAGE_BYTES_MAX
from penstock.net.kafka_client.client import LATEST, KafkaClient, Place
from penstock.net.kafka_client.group_offsets import Committed, commit_offsets, committed_offsets
from penstock.pipeline.arrow_map import batch_of, schema_of
from penstock.pipeline.client.options import Connection, client_for
from penstock.pipeline.client.sqs_client import Endpoint, Sqs, SqsRefused, SqsUnreachable
from penstock.record.batch import encode_batch
from penstock.record.message import SYSTEM_HEADER, TYPE_PREFIX
from penstock.record.record import encode_record

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE_PREFIX: Final = TYPE_PREFIX.decode()
_TRIES: Final = 8
T = TypeVar("T")
_PAUSE_S: Final = 0.1


class NotSendable(Exception):
    """Raised if a record cannot be converted to a message, or the queue rejected the message."""


class QueueAddress(NamedTuple):
    endpoint: str
    region: str
    key_id: str
    secret_file: str  # a path, because plans are logged and must not contain secrets


class QueueSender:
    """Sends the records of a replay to a FIFO queue, which silently drops duplicates."""

    def __init__(self, queue: str, address: QueueAddress, job: str) -> None:
        self._queue = queue
        self._job = job
        secret = Path(address.secret_file).read_text(encoding="utf-8").strip()
        self._sqs = Sqs(Endpoint(address.endpoint, address.region, address.key_id, secret))
        self._queue_url = ""
        self._pause = threading.Event()

    def send(self, _partition: int, rows: Sequence[Any], _position: "Position") -> bool:
        if not self._queue_url:
            self._queue_url = self._call("GetQueueUrl", {"QueueName": self._queue})["QueueUrl"]
        entries = (entry_of(self._job, row) for row in rows)
        limits = {"count_max": BATCH_ENTRIES_MAX, "bytes_max": MESSAGE_BYTES_MAX}
        for some in _grouped(entries, lambda each: len(json.dumps(each).encode()), **limits):
            self._send_all([{"Id": str(number), **each} for number, each in enumerate(some)])
        return False

    def _send_all(self, entries: list[dict[str, Any]]) -> None:
        for attempt in range(_TRIES):
            body = {"QueueUrl": self._queue_url, "Entries": entries}
            failed = self._call("SendMessageBatch", body).get("Failed", [])
            if not failed:
                return
            if any(each["SenderFault"] for each in failed):
                raise NotSendable(f"{self._queue} rejected a message: {failed[0].get('Message')}")
            # Retry from the first failed entry on, to keep the order of later ones.
            first = min(int(each["Id"]) for each in failed)
            entries = [entry for entry in entries if int(entry["Id"]) >= first]
            self._pause.wait(_PAUSE_S * 2**attempt)
        raise NotSendable(f"{self._queue} still rejects messages after {_TRIES} attempts")

    def _call(self, action: str, request: Mapping[str, Any]) -> Any:
        reason = ""
        for attempt in range(_TRIES):
            try:
                return self._sqs.call(action, request)
            except SqsRefused as error:
                if error.status < 500 and error.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                    raise NotSendable(f"{action} was rejected: {error.message}") from None
                reason = error.message
            except SqsUnreachable as error:
                reason = str(error)
            self._pause.wait(_PAUSE_S * 2**attempt)
        raise NotSendable(f"{action} failed {_TRIES} times: {reason}")


def entry_of(job: str, row: Sequence[Any]) -> dict[str, Any]:
    """Convert a record to an entry of SendMessageBatch. Raises NotSendable if this fails."""
    partition, offset, _, key, value, headers = row
    where = f"partition {partition}, offset {offset}"
    try:
        body = (value or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise NotSendable(f"{where}: the value is not UTF-8, but a message body must be") from None
    if not body:
        raise NotSendable(f"{where}: the value is empty, but a message must have a body")
    group = (key or b"").decode("utf-8", "replace")
    if not _GROUP.fullmatch(group):
        group = f"partition-{partition}" if not key else hashlib.sha256(key).hexdigest()
    return {
        "MessageBody": body,
        "MessageGroupId": group,
        "MessageDeduplicationId": f"replay-{job}-{partition}-{offset}",
        "MessageAttributes": _attributes(headers or ()),
    }


def _attributes(headers: Sequence[Any]) -> dict[str, Any]:
    given = {h["key"]: h["value"] or b"" for h in headers if h["key"] != SYSTEM_HEADER.decode()}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith(_TYPE_PREFIX) or not _NAME.fullmatch(name) or not value:
            continue
        kind = given.get(_TYPE_PREFIX + name, b"").decode("utf-8", "replace")
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            if not kind.startswith("Binary"):
                kind = "Binary"
        if kind.startswith("Binary"):
            found[name] = {"DataType": kind, "BinaryValue": base64.b64encode(value).decode()}
        else:
            found[name] = {"DataType": kind or "String", "StringValue": text}
    return found


def _grouped(
    items: Iterable[T], size_of: Callable[[T], int], *, count_max: int, bytes_max: int
) -> Iterator[list[T]]:
    group: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if group and (len(group) == count_max or size + own > bytes_max):
            yield group
            group, size = [], 0
        group.append(item)
        size += own
    if group:
        yield group


CHUNK_RECORDS: Final = 1_000
CHUNK_BYTES: Final = 768 * 1_024  # less than the default maximum of a batch, 1 MB
SEQUENCE_MODULO: Final = 1 << 31
COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
DONE_SCHEMA: Final = schema_of("partition int, sent long, repeated long")


class ProgressLost(Exception):
    """Raised if the position of a replay is lost, because continuing could send records twice."""


@dataclass(frozen=True, slots=True)
class Replay:
    job: str
    connection: Connection
    topic: str  # target topic or queue
    partitions: int  # of the target
    rate: float | None  # records a second, of each archived partition
    is_original_time: bool = False
    now_ms: int = 0  # timestamp of all records, unless ``is_original_time``
    queue: QueueAddress | None = None  # of a FIFO queue

    def target_of(self, partition: int) -> Place:
        """Return the target partition to which all records of an archived partition are sent."""
        return Place(self.topic, partition % self.partitions)

    def group_of(self, partition: int) -> str:
        return f"penstock-replay.{self.job}.{partition}"


@dataclass(frozen=True, slots=True)
class Position:
    next_offset: int
    producer_id: int
    producer_epoch: int
    sequence: int

    def after(self, offset: int, count: int) -> "Position":
        sequence = (self.sequence + count) % SEQUENCE_MODULO
        return replace(self, next_offset=offset + 1, sequence=sequence)


# Sends rows of a partition at a position; returns whether the target reports a duplicate.
Sender = Callable[[int, Sequence[Any], Position], bool]


def read_position(client: KafkaClient, replay: Replay, partition: int) -> Position | None:
    """Return a partition's committed position, or None. Raises ProgressLost if it is unreadable."""
    group = replay.group_of(partition)
    found = committed_offsets(client, group).get(replay.target_of(partition))
    if found is None:
        return None
    try:
        producer_id, epoch, sequence = json.loads(found.metadata)
    except ValueError:
        raise ProgressLost(f"another program changed the progress in group {group}") from None
    return Position(found.offset, producer_id, epoch, sequence)


def commit_position(client: KafkaClient, replay: Replay, partition: int, at: Position) -> None:
    text = json.dumps([at.producer_id, at.producer_epoch, at.sequence])
    offsets = {replay.target_of(partition): Committed(at.next_offset, text)}
    commit_offsets(client, replay.group_of(partition), offsets)


def send_partitions(
    batches: "Iterable[pa.RecordBatch]", replay: Replay
) -> "Iterator[pa.RecordBatch]":
    client = client_for(replay.connection)
    if replay.queue is None:
        sender = _topic_sender(client, replay)
    else:
        sender = QueueSender(replay.topic, replay.queue, replay.job).send
    done = [
        _send_partition(number, rows, client, sender, replay)
        for number, rows in groupby(_rows(batches), key=lambda row: row[0])
    ]
    yield batch_of(done, DONE_SCHEMA)


def _rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        found = {name: batch.column(name) for name in COLUMNS}
        found["timestamp"] = found["timestamp"].cast("int64")  # microseconds
        yield from zip(*(column.to_pylist() for column in found.values()), strict=True)


def _send_partition(
    number: int,
    rows: Iterable[tuple[Any, ...]],
    client: KafkaClient,
    sender: Sender,
    replay: Replay,
) -> tuple[int, int, int]:
    """Send the remaining rows. Return the partition, and the numbers of rows and of duplicates."""
    position = read_position(client, replay, number)
    if position is None:
        raise ProgressLost(
            f"consumer group {replay.group_of(number)}, which stores the progress, does not exist"
        )
    sent = repeated = 0
    began_at, pause = time.monotonic(), threading.Event()
    first = position.next_offset
    left = (row for row in rows if row[1] >= first)
    for chunk in _grouped(left, _size, count_max=CHUNK_RECORDS, bytes_max=CHUNK_BYTES):
        was_there = sender(number, chunk, position)
        position = position.after(chunk[-1][1], len(chunk))
        commit_position(client, replay, number, position)
        sent += len(chunk)
        repeated += len(chunk) if was_there else 0
        if replay.rate is not None:
            pause.wait(max(0.0, began_at + sent / replay.rate - time.monotonic()))
    return number, sent, repeated


def _size(row: tuple[Any, ...]) -> int:
    headers = sum(len(h["key"]) + len(h["value"] or b"") + 8 for h in row[5] or ())
    return len(row[3] or b"") + len(row[4] or b"") + 64 + headers


def _topic_sender(client: KafkaClient, replay: Replay) -> Sender:
    """Return a function that sends a chunk to a topic or standard queue as an idempotent batch."""
    begun: set[int] = set()

    def send(partition: int, rows: Sequence[Any], position: Position) -> bool:
        is_original = replay.is_original_time
        times = [row[2] // 1_000 if is_original else replay.now_ms for row in rows]
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
            producer_id=position.producer_id,
            producer_epoch=position.producer_epoch,
            base_sequence=position.sequence,
        )
        place = replay.target_of(partition)
        # Only the first chunk of a task may have been sent before, by a task that was killed.
        end = 0 if partition in begun else client.offsets({place: LATEST})[place]
        begun.add(partition)
        return client.produce({place: batch}, is_repeatable=True)[place] < end

    return send


def _headers(headers: Sequence[Any] | None) -> list[tuple[bytes, bytes | None]]:
    """Return all headers except ``penstock``, which is valid only for the original message."""
    return [
        (h["key"].encode(), h["value"]) for h in headers or () if h["key"] != SYSTEM_HEADER.decode()
    ]
