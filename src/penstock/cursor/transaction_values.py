"""The stored state of a transactional id, and the replies and decisions of its coordinator
(``transactions.py``)."""

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from penstock.cursor.rows import Row
from penstock.wire.kafka.faults import ErrorCode

TopicPartition: TypeAlias = tuple[str, int]  # topic id, partition

NO_PRODUCER = -1
NO_EPOCH = -1


class TxnState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


_S = TxnState
PREPARED = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
IDLE = (_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
BEFORE: dict[TxnState, tuple[TxnState, ...]] = {  # the states that each state may follow
    _S.EMPTY: IDLE,
    _S.ONGOING: (*IDLE, _S.ONGOING),
    _S.PREPARE_COMMIT: (_S.ONGOING,),
    # A version 2 client may abort without a transaction, to get a new epoch.
    _S.PREPARE_ABORT: (*IDLE, _S.ONGOING),
    _S.COMPLETE_COMMIT: (_S.PREPARE_COMMIT,),
    _S.COMPLETE_ABORT: (_S.PREPARE_ABORT,),
}


class TxnValue(msgspec.Struct, frozen=True, array_like=True):
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState
    changed_at_ms: int  # wall clock
    started_at_ms: int = -1  # wall clock at the start of the open transaction
    partitions: tuple[TopicPartition, ...] = ()  # sorted
    # The producer id and epoch before the client's last request that raised the epoch. A request
    # with these is a retry after a lost reply. -1 once the client has been fenced.
    last_producer_id: int = NO_PRODUCER
    last_epoch: int = NO_EPOCH
    # The client's new producer id, used once the markers of the old one are written.
    next_producer_id: int = NO_PRODUCER

    def moved(self, state: TxnState, decision: "TxnDecision", **changes: Any) -> "TxnValue":
        assert self.state in BEFORE[state], f"{self.state!r} must not become {state!r}"
        return msgspec.structs.replace(self, state=state, changed_at_ms=decision.wall_ms, **changes)


class Marker(msgspec.Struct, frozen=True, gc=False):
    """A commit or abort marker to write to one partition. The broker calls ``Transactions.marked``
    when the marker is committed or the partition no longer exists."""

    transactional_id: str
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


class TxnReply(msgspec.Struct, frozen=True, gc=False):
    code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH


class TxnDecision(msgspec.Struct):
    """The result of a request or timeout: rows to write, and markers to send after their commit."""

    now_ms: int
    wall_ms: int
    fresh_producer_id: int = NO_PRODUCER  # an unused id, taken if a new one is needed
    rows: list[Row] = []
    markers: list[Marker] = []
