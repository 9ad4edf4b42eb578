"""The port of the transaction coordinators, as the transaction APIs and Produce see it, and how
their codes are put for older clients.

Requests and replies are those of ``cursor.transactions``. Topics are named by their ids, so that a
topic made anew has no part in a transaction of the old one; names end in this package.

A call for an id whose last transaction is still being completed waits for that for a moment before
it answers CONCURRENT_TRANSACTIONS. Every call may answer COORDINATOR_NOT_AVAILABLE, upon which
clients look for the coordinator and ask again. None raises.
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.cursor.group.codes import Code
from penstock.cursor.group.offsets import CommitReply, CommitRequest
from penstock.cursor.transactions import TopicPartition, TxnReply, TxnValue
from penstock.wire.kafka.faults import ErrorCode


class TransactionCalls(Protocol):
    """Implemented by ``broker/transactions.py``."""

    async def init(
        self, transactional_id: str, *, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> TxnReply:
        """A producer begins under this id: whoever had it is fenced, its open transaction aborted.
        ``producer_id`` and ``producer_epoch``: of a producer that only wants its epoch raised."""
        ...

    async def add(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Code: ...

    async def add_group(
        self, transactional_id: str, *, producer_id: int, producer_epoch: int, group_id: str
    ) -> Code: ...

    async def verify(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> Code:
        """Whether the partition is in the producer's open transaction. NONE holds until the
        caller's next await."""
        ...

    async def commit_offsets(
        self,
        transactional_id: str,
        group_id: str,
        request: CommitRequest,
        *,
        producer_id: int,
        producer_epoch: int,
        adds_group: bool,
    ) -> CommitReply:
        """``adds_group``: the client has left that to us. When the reply has a code of its own it
        holds for all partitions of the request."""
        ...

    async def end(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        raises_epoch: bool,
    ) -> TxnReply:
        """Returns when the decision is durable; partitions are told behind that.
        ``raises_epoch``: the client goes on with the id and epoch of the reply."""
        ...

    async def describe(self, transactional_id: str) -> tuple[Code, TxnValue | None]: ...

    async def all_ids(self) -> tuple[Code, dict[str, TxnValue]]: ...


def code_for_version(
    code: Code, version: int, *, fenced_from: int, abortable_from: int
) -> ErrorCode:
    """Two codes are younger than the APIs that answer with them; before the given versions clients
    know others for the same."""
    if code is Code.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is Code.TRANSACTION_ABORTABLE and version < abortable_from:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode(code)
