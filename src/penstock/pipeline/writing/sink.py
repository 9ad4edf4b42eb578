"""The sink of ``df.write.format("penstock")`` and ``writeStream``, which writes rows as records.

    exactly-once     a transaction for each task, one decision for the batch
    at-least-once    records are appended at once; a repeated batch appends them twice

A batch write is never repeated: the transactions of its tasks are committed when all tasks have
finished, and aborted if one fails. In a micro-batch, each task that has rows leaves its transaction
open. When all tasks have finished, the driver *decides*: one offset commit of a consumer group
names the batch and the transactions of all tasks. Then the driver ends these one after another.

A repeated micro-batch first looks for a decision. If there is none, transactions of earlier
attempts are aborted when the tasks take over their transactional ids. If there is one, the
transactions are ended (which is idempotent) and no rows are written. Only if a transaction timed
out between decision and end, its task writes the rows again."""

import base64
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.net.kafka_client.client import TRANSACTION, KafkaClient, KafkaRefused, Place
from penstock.net.kafka_client.group_offsets import Committed, commit_offsets, committed_offsets
from penstock.pipeline.client.options import Delivery, WriteOptions, client_for
from penstock.pipeline.writing.appender import Appender, Producer
from penstock.wire.kafka.faults import ErrorCode

_INIT_PRODUCER_ID, _END_TXN = 22, 26
_END_TWICE_MAX: Final = 4  # newer versions raise the epoch, which makes a second end an error
_ENTRY: Final = struct.Struct(">iqh")  # task, producer id, epoch
assert _ENTRY.size == 14
_FORMAT: Final = "1:"
_METADATA_MAX: Final = 4_096  # characters of an offset's metadata
TASKS_MAX: Final = (_METADATA_MAX - len(_FORMAT)) // 4 * 3 // _ENTRY.size

_ABORTED: Final = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)


class TooManyTasks(ValueError):
    """Raised if a batch has too many tasks. The text is one line for the author of the query."""


class Written(NamedTuple):
    task: int
    producer_id: int
    epoch: int


class Decision(NamedTuple):
    batch_id: int
    written: tuple[Written, ...]


def group_of(query_id: str) -> str:
    return f"spark-sink-{query_id}"


def transactional_id(query_id: str, task: int) -> str:
    return f"spark-{query_id}-{task}"


def begin(client: KafkaClient, query_id: str, task: int, *, timeout_ms: int) -> Producer:
    """Take over the task's transactional id. The open transaction of an earlier attempt is aborted,
    and the earlier attempt can send no more records."""
    from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

    name = transactional_id(query_id, task)
    request = InitProducerIdRequest(name, transaction_timeout_ms=timeout_ms)

    reply = _at_coordinator(client, name, _INIT_PRODUCER_ID, request)
    return Producer(reply.producer_id, reply.producer_epoch, name)


def _at_coordinator(
    client: KafkaClient, name: str, api: int, request: Any, passed: Sequence[int] = (), **how: int
) -> Any:
    def call() -> Any:
        reply = client.call(api, request, node=client.coordinator(name, kind=TRANSACTION), **how)
        if reply.error_code and reply.error_code not in passed:
            raise KafkaRefused(reply.error_code, subject=name)
        return reply

    return client.retried(call)


def end(client: KafkaClient, query_id: str, written: Written, *, is_commit: bool) -> bool:
    """Commit or abort a transaction. Return False if the server had already aborted it."""
    from penstock.wire.kafka.generated.end_txn import EndTxnRequest

    name = transactional_id(query_id, written.task)
    request = EndTxnRequest(name, written.producer_id, written.epoch, is_commit)
    how = {"version_max": _END_TWICE_MAX}
    return not _at_coordinator(client, name, _END_TXN, request, _ABORTED, **how).error_code


def decide(client: KafkaClient, query_id: str, decision: Decision, *, topic: str) -> None:
    """Store the decision to commit a batch as a committed offset of ``topic``, which must exist."""
    written = decision.written
    if len(written) > TASKS_MAX:
        raise TooManyTasks(
            f"{len(written)} tasks write in one batch, but exactly-once allows at most {TASKS_MAX}:"
            " coalesce before writing, or set delivery=at-least-once"
        )
    raw = b"".join(_ENTRY.pack(each.task, each.producer_id, each.epoch) for each in written)
    entry = Committed(decision.batch_id, _FORMAT + base64.b64encode(raw).decode())
    commit_offsets(client, group_of(query_id), {Place(topic, 0): entry})


def decided(client: KafkaClient, query_id: str) -> Decision | None:
    found = [
        Decision(entry.offset, _unpacked(entry.metadata))
        for entry in committed_offsets(client, group_of(query_id)).values()
        if entry.metadata.startswith(_FORMAT)
    ]
    return max(found, key=lambda each: each.batch_id, default=None)


def settle(client: KafkaClient, query_id: str, decision: Decision) -> frozenset[int]:
    """Commit the transactions that a decision names. Return the tasks whose commit succeeded."""
    return frozenset(
        each.task for each in decision.written if end(client, query_id, each, is_commit=True)
    )


def _unpacked(text: str) -> tuple[Written, ...]:
    raw = base64.b64decode(text.removeprefix(_FORMAT))
    return tuple(Written(*fields) for fields in _ENTRY.iter_unpack(raw))


_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class CommitLost(Exception):
    """Raised if the server aborted transactions before their batch ended."""


@dataclass
class Done(WriterCommitMessage):
    query_id: str
    row_count: int = 0
    topic: str = ""  # any topic that the task wrote to
    written: Written | None = None  # an open transaction, for the driver to end
    is_settled: bool = False  # an earlier run had decided the batch


def _append(
    batches: Iterator[pa.RecordBatch],
    client: KafkaClient,
    options: WriteOptions,
    query_id: str,
    task: int,
) -> Done:
    is_once = options.delivery is Delivery.EXACTLY_ONCE
    appender: Appender | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if appender is None:
            timeout_ms = options.transaction_ms_max
            producer = (
                begin(client, query_id, task, timeout_ms=timeout_ms)
                if is_once
                else Producer(*client.producer_id())
            )
            appender = Appender(client, options, producer, turn=task)
        appender.add(batch)
    if appender is None:
        return Done(query_id)
    appender.flush()
    written = Written(task, producer.producer_id, producer.epoch) if is_once else None
    return Done(query_id, appender.row_count, appender.topics[0], written)


def _finish(client: KafkaClient, query_id: str, messages: Sequence[Done]) -> None:
    lost = [
        done.written.task
        for done in messages
        if done.written is not None and not end(client, query_id, done.written, is_commit=True)
    ]
    if lost:
        raise CommitLost(
            f"transactions of tasks {', '.join(map(str, lost))} were aborted before the batch"
            " ended: the batch took longer than option transactionTimeout, or the query runs twice"
        )


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    client = client_for(options.connection)
    for done in _done(messages):
        if done.written is not None and not done.is_settled:
            end(client, done.query_id, done.written, is_commit=False)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Done]:
    return [each for each in messages if isinstance(each, Done)]


@dataclass
class BatchWriter(DataSourceArrowWriter):
    options: WriteOptions
    job_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        context = TaskContext.get()
        assert context is not None, "rows are written in tasks only"
        client = client_for(self.options.connection)
        return _append(iterator, client, self.options, self.job_id, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _finish(client_for(self.options.connection), self.job_id, _done(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages)


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    options: WriteOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        context = TaskContext.get()
        assert context is not None, "rows are written in tasks only"
        query_id, batch_id = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query_id is not None, "a streaming query must have an id"
        assert batch_id is not None, "tasks must belong to a batch"
        task = context.partitionId()
        return write_task(iterator, self.options, query_id, batch_id=int(batch_id), task=task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_batch(_done(messages), self.options, batch_id=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self.options, messages)


def write_task(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    query_id: str,
    *,
    batch_id: int,
    task: int,
) -> Done:
    """Write the rows of a task, unless an earlier run has committed the batch."""
    client = client_for(options.connection)
    if options.delivery is Delivery.EXACTLY_ONCE:
        decision = decided(client, query_id)
        settled = None if decision is None else _settled(client, query_id, task, decision, batch_id)
        if settled is not None:
            for _ in batches:
                pass  # Spark expects that all rows are read
            return settled
    return _append(batches, client, options, query_id, task)


def _settled(
    client: KafkaClient, query_id: str, task: int, decision: Decision, batch_id: int
) -> Done | None:
    """Return the task's result if an earlier run committed the batch, otherwise None."""
    if decision.batch_id != batch_id:
        is_long_done = decision.batch_id > batch_id
        return Done(query_id, is_settled=True) if is_long_done else None
    committed = settle(client, query_id, decision)
    mine = next((each for each in decision.written if each.task == task), None)
    # If all transactions are committed, the rows may be divided differently among tasks this time.
    if len(committed) < len(decision.written) and mine is not None and task not in committed:
        return None
    return Done(query_id, written=mine, is_settled=True)


def commit_batch(messages: Sequence[Done], options: WriteOptions, *, batch_id: int) -> None:
    """Store the decision to commit a batch, and commit its transactions."""
    fresh = [each for each in messages if each.written is not None and not each.is_settled]
    if not fresh:
        return
    client = client_for(options.connection)
    query_id = fresh[0].query_id
    written = tuple(each.written for each in messages if each.written is not None)
    decide(client, query_id, Decision(batch_id, written), topic=fresh[0].topic)
    _finish(client, query_id, messages)
