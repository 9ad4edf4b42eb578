"""The sink of ``df.write.format("penstock")`` and ``writeStream``, which writes rows as records.

    exactly-once     a transaction for each task, one decision for the batch (``sink_commit``)
    at-least-once    records are appended at once; a repeated batch appends them twice

A batch write is never repeated: the transactions of its tasks are committed when all tasks have
finished, and aborted if one fails."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.net.kafka_client.client import KafkaClient
from penstock.pipeline.client.connections import client_for
from penstock.pipeline.client.options import Delivery, WriteOptions
from penstock.pipeline.writing import sink_commit
from penstock.pipeline.writing.appender import Appender, Producer
from penstock.pipeline.writing.sink_commit import Decision, Written

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class CommitLost(Exception):
    """Transactions of tasks were aborted before the batch was committed."""

    def __init__(self, query_id: str, tasks: Sequence[int]) -> None:
        super().__init__(query_id, tasks)
        self.tasks = tasks

    def __str__(self) -> str:
        return (
            f"transactions of tasks {', '.join(map(str, self.tasks))} were aborted before the batch"
            " ended: it took longer than option transactionTimeout, or the query runs twice"
        )


@dataclass
class Done(WriterCommitMessage):
    """The result of a task."""

    query_id: str
    row_count: int = 0
    topic: str = ""  # any topic that the task wrote to
    written: Written | None = None  # an open transaction, for the driver to end
    is_settled: bool = False  # an earlier run had decided the batch


def _append(
    batches: "Iterator[pa.RecordBatch]",
    client: KafkaClient,
    options: WriteOptions,
    query_id: str,
    task: int,
) -> Done:
    """Write all rows of a task; a transaction begins with the first row."""
    appender: Appender | None = None
    producer: Producer | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if appender is None:
            if options.delivery is Delivery.EXACTLY_ONCE:
                timeout_ms = options.transaction_ms_max
                producer = sink_commit.begin(client, query_id, task, timeout_ms=timeout_ms)
                appender = Appender(client, options, producer, turn=task)
            else:
                appender = Appender(client, options, Producer(*client.producer_id()), turn=task)
        appender.add(batch)
    if appender is None:
        return Done(query_id)
    appender.flush()
    written = None
    if producer is not None:
        written = Written(task, producer.producer_id, producer.epoch)
    return Done(query_id, appender.row_count, appender.topics[0], written)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks only"
    return context


def _finish(client: KafkaClient, query_id: str, messages: Sequence[Done]) -> None:
    lost = [
        done.written.task
        for done in messages
        if done.written is not None
        and not sink_commit.end(client, query_id, done.written, is_commit=True)
    ]
    if lost:
        raise CommitLost(query_id, lost)


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    client = client_for(options.connection)
    for done in _done(messages):
        if done.written is not None and not done.is_settled:
            sink_commit.end(client, done.query_id, done.written, is_commit=False)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Done]:
    return [each for each in messages if isinstance(each, Done)]


@dataclass
class BatchWriter(DataSourceArrowWriter):
    options: WriteOptions
    job_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        client = client_for(self.options.connection)
        return _append(iterator, client, self.options, self.job_id, _context().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _finish(client_for(self.options.connection), self.job_id, _done(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages)


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    options: WriteOptions

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Done:
        context = _context()
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
    batches: "Iterator[pa.RecordBatch]",
    options: WriteOptions,
    query_id: str,
    *,
    batch_id: int,
    task: int,
) -> Done:
    """Run a task of a new or repeated micro-batch. Raises KafkaTrouble, RowInvalid."""
    client = client_for(options.connection)
    if options.delivery is Delivery.EXACTLY_ONCE:
        decision = sink_commit.decided(client, query_id)
        settled = None if decision is None else _settled(client, query_id, task, decision, batch_id)
        if settled is not None:
            for _ in batches:
                pass  # Spark expects that all rows are read
            return settled
    return _append(batches, client, options, query_id, task)


def _settled(
    client: KafkaClient, query_id: str, task: int, decision: Decision, batch_id: int
) -> Done | None:
    """Return the result of a batch that an earlier run decided; None if this task must write."""
    if decision.batch_id != batch_id:
        is_long_done = decision.batch_id > batch_id
        return Done(query_id, is_settled=True) if is_long_done else None
    committed = sink_commit.settle(client, query_id, decision)
    mine = next((each for each in decision.written if each.task == task), None)
    # If all transactions are committed, the rows may be divided differently among tasks this time.
    if len(committed) < len(decision.written) and mine is not None and task not in committed:
        return None
    return Done(query_id, written=mine, is_settled=True)


def commit_batch(messages: Sequence[Done], options: WriteOptions, *, batch_id: int) -> None:
    """Decide the batch and commit its transactions. Raises KafkaTrouble, CommitLost,
    TooManyTasks."""
    fresh = [each for each in messages if each.written is not None and not each.is_settled]
    if not fresh:
        return
    client = client_for(options.connection)
    query_id = fresh[0].query_id
    written = tuple(each.written for each in messages if each.written is not None)
    sink_commit.decide(client, query_id, Decision(batch_id, written), topic=fresh[0].topic)
    _finish(client, query_id, messages)
