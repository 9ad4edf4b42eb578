"""Commits the transactions of a micro-batch's tasks with one atomic decision.

Each task that has rows writes them in a separate transaction and leaves it open. When all tasks
have finished, the driver *decides*: one offset commit of a consumer group, which is a single row in
the server's log, names the batch and the transactions of all tasks. Then the driver ends the
transactions one after another.

    tasks     init (fences an earlier attempt) ── records ── left open
    driver    decide(batch, every transaction) ── end, end, end …

A repeated batch first looks for a decision. Without one, transactions of earlier attempts are
aborted when the tasks take over their transactional ids. With one, the transactions are ended
(which is idempotent) and no rows are written. Only a transaction that timed out between decision
and end is written again, by its task."""

import base64
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.net.kafka_client.client import TRANSACTION, KafkaClient, KafkaRefused, Place
from penstock.net.kafka_client.group_offsets import Committed, commit_offsets, committed_offsets
from penstock.pipeline.writing.appender import Producer
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
    """A batch has too many tasks. The text is one line for the author of the query."""


@dataclass(frozen=True, slots=True)
class Written:
    """The open transaction of a task."""

    task: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    batch_id: int
    written: tuple[Written, ...]


def group_of(query_id: str) -> str:
    return f"spark-sink-{query_id}"


def transactional_id(query_id: str, task: int) -> str:
    return f"spark-{query_id}-{task}"


def begin(client: KafkaClient, query_id: str, task: int, *, timeout_ms: int) -> Producer:
    """Take over the task's transactional id: the open transaction of an earlier attempt is aborted,
    and its later records are rejected. Raises KafkaTrouble."""
    from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

    name = transactional_id(query_id, task)
    request = InitProducerIdRequest(name, transaction_timeout_ms=timeout_ms)

    def begin_transaction() -> Producer:
        node = client.coordinator(name, kind=TRANSACTION)
        reply = client.call(_INIT_PRODUCER_ID, request, node=node)
        if reply.error_code:
            raise KafkaRefused(reply.error_code, subject=name)
        return Producer(reply.producer_id, reply.producer_epoch, name)

    return client.retried(begin_transaction)


def end(client: KafkaClient, query_id: str, written: Written, *, is_commit: bool) -> bool:
    """End a transaction. Return True if it has ended as requested, now or before; False if it was
    aborted. Raises KafkaTrouble."""
    from penstock.wire.kafka.generated.end_txn import EndTxnRequest

    name = transactional_id(query_id, written.task)
    request = EndTxnRequest(name, written.producer_id, written.epoch, is_commit)

    def end_transaction() -> bool:
        node = client.coordinator(name, kind=TRANSACTION)
        reply = client.call(_END_TXN, request, node=node, version_max=_END_TWICE_MAX)
        if reply.error_code in _ABORTED:
            return False
        if reply.error_code:
            raise KafkaRefused(reply.error_code, subject=name)
        return True

    return client.retried(end_transaction)


def decide(client: KafkaClient, query_id: str, decision: Decision, *, topic: str) -> None:
    """Store the decision, which is final after the reply. ``topic`` is any existing topic. Raises
    KafkaTrouble, TooManyTasks."""
    if len(decision.written) > TASKS_MAX:
        raise TooManyTasks(
            f"{len(decision.written)} tasks write in one batch, exactly-once allows {TASKS_MAX}:"
            " coalesce before writing, or set delivery=at-least-once"
        )
    entry = Committed(decision.batch_id, _packed(decision.written))
    commit_offsets(client, group_of(query_id), {Place(topic, 0): entry})


def decided(client: KafkaClient, query_id: str) -> Decision | None:
    """Return the newest decision of a query, if any. Raises KafkaTrouble."""
    found = [
        Decision(entry.offset, _unpacked(entry.metadata))
        for entry in committed_offsets(client, group_of(query_id)).values()
        if entry.metadata.startswith(_FORMAT)
    ]
    return max(found, key=lambda each: each.batch_id, default=None)


def settle(client: KafkaClient, query_id: str, decision: Decision) -> frozenset[int]:
    """Commit the transactions of a decision. Return the tasks whose transactions are committed.
    Raises KafkaTrouble."""
    return frozenset(
        each.task for each in decision.written if end(client, query_id, each, is_commit=True)
    )


def _packed(written: Iterable[Written]) -> str:
    raw = b"".join(_ENTRY.pack(each.task, each.producer_id, each.epoch) for each in written)
    return _FORMAT + base64.b64encode(raw).decode()


def _unpacked(text: str) -> tuple[Written, ...]:
    raw = base64.b64decode(text.removeprefix(_FORMAT))
    return tuple(Written(*fields) for fields in _ENTRY.iter_unpack(raw))
