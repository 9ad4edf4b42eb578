"""The transaction coordinator, which keeps the state of each transactional id.

A transaction ends in two steps. First the decision (Prepare…) is written to the coordinator's log
and is then final. After that each partition gets a marker, and when all markers are committed, a
second row is written (Complete…). A coordinator that takes over writes the markers of all prepared
transactions again; a repeated marker changes nothing.

    Empty ──► Ongoing ──► PrepareCommit ──markers──► CompleteCommit ──► Ongoing
                 └──────► PrepareAbort  ──markers──► CompleteAbort  ──► Ongoing

InitProducerId, a timeout and, for clients of transaction version 2, every end of a transaction
raise the producer epoch, and markers have the raised epoch. So a batch or an EndTxn request that
was delayed on the network never counts for the next transaction. Version 1 clients keep their
epoch; for them partitions call ``verify`` before the first batch. Timeouts use this node's clock.
Older clients get other error codes instead of PRODUCER_FENCED and TRANSACTION_ABORTABLE."""

from typing import Any

import msgspec

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.deadlines import Deadlines
from penstock.cursor.rows import RowCodec
from penstock.cursor.tenants import NO_QUOTAS, PartitionUsage
from penstock.cursor.transaction_values import (
    BEFORE,
    IDLE,
    NO_EPOCH,
    NO_PRODUCER,
    PREPARED,
    Marker,
    TopicPartition,
    TxnDecision,
    TxnReply,
    TxnState,
    TxnValue,
)
from penstock.model.quotas import TRANSACTIONAL_IDS
from penstock.wire.kafka.faults import ErrorCode

EPOCH_MAX = 2**15 - 1  # only used to fence; clients get at most the epoch before it
TIMEOUT_MS_MAX = 15 * 60_000
ID_RETENTION_MS = 7 * 24 * 3_600_000
IDS_MAX = 50_000  # per coordinator partition
PARTITIONS_MAX = 10_000  # per transaction
ID_CHARS_MAX = 1_024


_TXN = 1  # the only kind of row
CODEC = RowCodec({_TXN: (tuple[str], TxnValue)})


class Transactions:
    def __init__(
        self, *, coordinator_epoch: int, ids_max: int = IDS_MAX, usage: PartitionUsage | None = None
    ) -> None:
        self._usage = usage or PartitionUsage(NO_QUOTAS)
        self._coordinator_epoch = coordinator_epoch
        self._ids_max = ids_max
        # Derived from the rows in the log.
        self._txns: dict[str, TxnValue] = {}
        # Local to this node.
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._deadlines: Deadlines[str] = Deadlines()

    def replay(self, key: bytes, value: bytes | None) -> None:
        _, (transactional_id,), txn = CODEC.decode(key, value)
        self._apply(transactional_id, txn)

    def _apply(self, transactional_id: str, value: TxnValue | None) -> None:
        change = (value is not None) - (transactional_id in self._txns)
        if change:
            account = self._usage.account_of(transactional_id)
            self._usage.add(account, TRANSACTIONAL_IDS, change)
        if value is None:
            self._txns.pop(transactional_id, None)
        else:
            self._txns[transactional_id] = value

    def loaded(self, decision: TxnDecision) -> None:
        """Start timeouts and resume prepared transactions. Called when the whole log was read."""
        for transactional_id, txn in list(self._txns.items()):
            if txn.state is TxnState.ONGOING:
                self._deadlines.set(transactional_id, decision.now_ms + txn.timeout_ms)
            elif txn.state in PREPARED:
                self._send_markers(transactional_id, decision)

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def view(self) -> dict[str, TxnValue]:
        return dict(sorted(self._txns.items()))

    def describe(self, transactional_id: str) -> TxnValue | None:
        return self._txns.get(transactional_id)

    def _put(self, transactional_id: str, value: TxnValue | None, decision: TxnDecision) -> None:
        decision.rows.append(CODEC.encode(_TXN, (transactional_id,), value))
        self._apply(transactional_id, value)

    def init(self, call: calls.InitProducer, decision: TxnDecision) -> TxnReply:
        transactional_id, producer = call.transactional_id, (call.producer_id, call.producer_epoch)
        if not 0 < len(transactional_id) <= ID_CHARS_MAX:
            return TxnReply(ErrorCode.INVALID_REQUEST)
        if not 0 < call.timeout_ms <= TIMEOUT_MS_MAX:
            return TxnReply(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        txn = self._txns.get(transactional_id)
        raised, last = (decision.fresh_producer_id, 0), (NO_PRODUCER, NO_EPOCH)
        if txn is None:
            if len(self._txns) >= self._ids_max:
                return TxnReply(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            if not self._usage.may_add(transactional_id, TRANSACTIONAL_IDS, self._ids_max):
                return TxnReply(ErrorCode.POLICY_VIOLATION)
        else:
            has_given = call.producer_id != NO_PRODUCER
            is_current = producer == (txn.producer_id, txn.epoch)
            is_repeat = _is_last(txn, *producer)
            if has_given and not is_current and not is_repeat:
                return TxnReply(ErrorCode.PRODUCER_FENCED)
            if txn.state in PREPARED:
                return TxnReply(ErrorCode.CONCURRENT_TRANSACTIONS)
            if txn.state is TxnState.ONGOING:
                # The client retries, and succeeds when the abort is complete.
                self._fence(transactional_id, txn, decision, is_own=is_current)
                return TxnReply(ErrorCode.CONCURRENT_TRANSACTIONS)
            if is_repeat and txn.epoch < EPOCH_MAX:
                return TxnReply(ErrorCode.NONE, txn.producer_id, txn.epoch)
            assert txn.state in BEFORE[TxnState.EMPTY]
            raised = _raised(txn, decision)
            last = (txn.producer_id, txn.epoch) if has_given else last
        empty = TxnValue(*raised, call.timeout_ms, TxnState.EMPTY, decision.wall_ms, -1, (), *last)
        self._put(transactional_id, empty, decision)
        return TxnReply(ErrorCode.NONE, *raised)

    def _fence(
        self, transactional_id: str, txn: TxnValue, decision: TxnDecision, *, is_own: bool = False
    ) -> None:
        """Abort the transaction and raise the producer's epoch. ``is_own`` is True if the producer
        itself requested this, so that it may continue."""
        value = txn.moved(
            TxnState.PREPARE_ABORT,
            decision,
            epoch=min(txn.epoch + 1, EPOCH_MAX),
            last_producer_id=txn.producer_id if is_own else NO_PRODUCER,
            last_epoch=txn.epoch if is_own else NO_EPOCH,
        )
        self._prepare(transactional_id, value, decision)

    def _prepare(self, transactional_id: str, value: TxnValue, decision: TxnDecision) -> None:
        self._deadlines.drop(transactional_id)
        self._put(transactional_id, value, decision)
        self._send_markers(transactional_id, decision)

    def add(self, call: calls.AddPartitions, decision: TxnDecision) -> TxnReply:
        """Add partitions to a transaction, for AddPartitionsToTxn, AddOffsetsToTxn, and produce
        requests and offset commits of version 2 clients."""
        code, txn = self._find(call)
        if code:
            return TxnReply(code)
        is_ongoing = txn.state is TxnState.ONGOING
        known = set(txn.partitions) if is_ongoing else set()
        wanted = known.union(call.partitions)
        if len(wanted) > PARTITIONS_MAX:
            return TxnReply(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if wanted != known:
            value = txn.moved(
                TxnState.ONGOING,
                decision,
                started_at_ms=txn.started_at_ms if is_ongoing else decision.wall_ms,
                partitions=tuple(sorted(wanted)),
                last_producer_id=NO_PRODUCER,
                last_epoch=NO_EPOCH,
            )
            if not is_ongoing:
                self._deadlines.set(call.transactional_id, decision.now_ms + txn.timeout_ms)
            self._put(call.transactional_id, value, decision)
        return TxnReply(ErrorCode.NONE, call.producer_id, call.producer_epoch)

    def verify(self, call: calls.VerifyPartition) -> ErrorCode:
        """Return NONE if the partition is in the client's open transaction. Without this check, a
        delayed batch of a version 1 client could open a transaction that never ends."""
        code, txn = self._find(call)
        if code:
            return code
        is_in = txn.state is TxnState.ONGOING and call.partition in txn.partitions
        return ErrorCode.NONE if is_in else ErrorCode.TRANSACTION_ABORTABLE

    def _find(
        self, call: calls.ProducerCall[Any], *, may_be_prepared: bool = False
    ) -> tuple[ErrorCode, TxnValue]:
        txn, producer_id = self._txns.get(call.transactional_id), call.producer_id
        if txn is not None and txn.next_producer_id == producer_id != NO_PRODUCER:
            # The client already uses its new id, while markers for the old one are being written.
            return ErrorCode.CONCURRENT_TRANSACTIONS, txn
        if txn is None or txn.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, _UNKNOWN
        if txn.epoch != call.producer_epoch:
            return ErrorCode.PRODUCER_FENCED, txn
        if txn.state in PREPARED and not may_be_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS, txn
        return ErrorCode.NONE, txn

    def end(self, call: calls.EndTransaction, decision: TxnDecision) -> TxnReply:
        known, is_commit = self._txns.get(call.transactional_id), call.is_commit
        producer = (call.producer_id, call.producer_epoch)
        if known is not None and call.raises_epoch and _is_last(known, *producer):
            return _ended_before(known, is_commit)
        # A client that raises its epoch has the raised one already: this ends its next, empty
        # transaction.
        code, txn = self._find(call, may_be_prepared=not call.raises_epoch)
        if code:
            return TxnReply(code)
        if txn.state is not TxnState.ONGOING:
            if not call.raises_epoch:
                return _ended_before(txn, is_commit)
            if is_commit:
                return TxnReply(ErrorCode.INVALID_TXN_STATE)
        value = txn.moved(
            TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT,
            decision,
            partitions=txn.partitions if txn.state is TxnState.ONGOING else (),
        )
        next_id, next_epoch = txn.producer_id, txn.epoch
        if call.raises_epoch:
            next_id, next_epoch = _raised(txn, decision)
            value = msgspec.structs.replace(
                value,
                epoch=txn.epoch + 1,
                last_producer_id=txn.producer_id,
                last_epoch=txn.epoch,
                next_producer_id=next_id if next_id != txn.producer_id else NO_PRODUCER,
            )
        self._prepare(call.transactional_id, value, decision)
        return TxnReply(ErrorCode.NONE, next_id, next_epoch)

    def _send_markers(self, transactional_id: str, decision: TxnDecision) -> None:
        txn = self._txns[transactional_id]
        assert txn.state in PREPARED, "markers are written only after the commit or abort decision"
        if not txn.partitions:
            self._complete(transactional_id, txn, decision)
            return
        self._unmarked[transactional_id] = set(txn.partitions)
        is_commit = txn.state is TxnState.PREPARE_COMMIT
        producer, coordinator = (txn.producer_id, txn.epoch), self._coordinator_epoch
        decision.markers += [
            Marker(transactional_id, *p, *producer, is_commit, coordinator) for p in txn.partitions
        ]

    def marked(self, marker: Marker, decision: TxnDecision) -> None:
        txn = self._txns.get(marker.transactional_id)
        waiting = self._unmarked.get(marker.transactional_id)
        named = (marker.producer_id, marker.producer_epoch)
        if txn is None or waiting is None or named != (txn.producer_id, txn.epoch):
            return
        waiting.discard((marker.topic_id, marker.partition))
        if not waiting:
            del self._unmarked[marker.transactional_id]
            self._complete(marker.transactional_id, txn, decision)

    def _complete(self, transactional_id: str, txn: TxnValue, decision: TxnDecision) -> None:
        has_next = txn.next_producer_id != NO_PRODUCER
        is_commit = txn.state is TxnState.PREPARE_COMMIT
        value = txn.moved(
            TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT,
            decision,
            producer_id=txn.next_producer_id if has_next else txn.producer_id,
            epoch=0 if has_next else txn.epoch,
            next_producer_id=NO_PRODUCER,
            started_at_ms=-1,
            partitions=(),
        )
        self._put(transactional_id, value, decision)

    def tick(self, decision: TxnDecision) -> None:
        while (transactional_id := self._deadlines.pop_due(decision.now_ms)) is not None:
            self._fence(transactional_id, self._txns[transactional_id], decision)

    def expire(self, decision: TxnDecision) -> None:
        bound_ms = decision.wall_ms - ID_RETENTION_MS
        for transactional_id, txn in list(self._txns.items()):
            if txn.state in IDLE and txn.changed_at_ms < bound_ms:
                self._put(transactional_id, None, decision)


_UNKNOWN = TxnValue(NO_PRODUCER, NO_EPOCH, 0, TxnState.EMPTY, 0)


def _raised(txn: TxnValue, decision: TxnDecision) -> tuple[int, int]:
    """Return the producer id with the next epoch, or a new producer id when epochs run out."""
    if txn.epoch + 1 >= EPOCH_MAX:
        return decision.fresh_producer_id, 0
    return txn.producer_id, txn.epoch + 1


def _ended_before(txn: TxnValue, is_commit: bool) -> TxnReply:
    """Return the reply to an EndTxn request, probably a retry, that finds no open transaction."""
    if txn.state is (TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT):
        return TxnReply(ErrorCode.NONE, txn.producer_id, txn.epoch)
    if txn.state is (TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT):
        return TxnReply(ErrorCode.CONCURRENT_TRANSACTIONS)
    return TxnReply(ErrorCode.INVALID_TXN_STATE)


def _is_last(txn: TxnValue, *producer: int) -> bool:
    return producer == (txn.last_producer_id, txn.last_epoch) and producer[0] != NO_PRODUCER
