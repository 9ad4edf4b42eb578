"""The transaction coordinators of this node, which write the end of a transaction to partitions and
groups. They store their state as rows in the internal topic ``__transactions``.
``cursor/transactions.py`` makes the decisions; a coordinator makes them durable, sends transaction
markers and runs the timers.

- **Markers** are sent in a separate task once the decision is durable, even if the client
  disconnects. A marker is retried until the partition accepts it or is deleted. After a restart all
  markers of unfinished transactions are sent again, which is safe.
- **A call for a transactional id whose last transaction is not completed** waits: markers take a
  few milliseconds, but clients would wait tens of milliseconds before they retry.
- **At most one marker per transactional id and partition is in progress.** A client with
  transaction version 1 keeps its epoch, so a delayed marker would end its next transaction.
- **Offsets that a group commits inside a transaction** wait in the group's coordinator. The group
  joins the transaction as a pseudo partition with the topic id ``__groups/<group id>``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.broker.context.context import BackupHold
from penstock.broker.context.timers import cancel_all
from penstock.broker.coordination.groups import TOPIC_NAME as GROUPS
from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import CoordinatorHost, CoordinatorRuntime, CoordinatorSetup
from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.offsets import CommitReply
from penstock.cursor.groups.settings import GROUP_ID_CHARS_MAX
from penstock.cursor.rows import Row
from penstock.cursor.transaction_values import (
    Marker,
    TopicPartition,
    TxnDecision,
    TxnReply,
    TxnState,
    TxnValue,
)
from penstock.cursor.transactions import Transactions
from penstock.model import ports
from penstock.model.calls import AppendMarker, BrokerPort
from penstock.model.errors import Overloaded, PenstockError, ProducerRefused, TopicNotFound
from penstock.model.limits import MINUTE_MS
from penstock.model.topic import partition_of_group
from penstock.wire.kafka.faults import ErrorCode

log_ = logging.getLogger(__name__)

TOPIC_NAME = "__transactions"
EXPIRE_INTERVAL_MS = 10 * MINUTE_MS
GROUP_PREFIX = f"{GROUPS}/"

COORDINATOR_EPOCH = 0  # used on a node without a cluster
COMPLETION_SECONDS_MAX = 2.0  # maximum wait of a call for the previous transaction
MARKER_RETRY_MS = 1_000

_PREPARED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

_MarkerKey = tuple[str, str, int]  # transactional id, topic id, partition
T = TypeVar("T")


class TransactionCoordinator(CoordinatorRuntime):
    def __init__(self, host: "TransactionHost", partition: int) -> None:
        super().__init__(host, partition)
        self._write_marker = host.write_marker
        self._next_producer_id = host.next_producer_id
        self._txns = Transactions(coordinator_epoch=COORDINATOR_EPOCH)
        self._spare_id: int | None = None  # an unused producer id
        # Markers being sent. They stay here when the log is loaded again.
        self._sending: set[_MarkerKey] = set()
        self._senders: set[asyncio.Task[None]] = set()
        self._failed: set[Marker] = set()  # to be retried
        self._retry_at_ms = 0
        # Calls that wait for a transaction to be completed, by transactional id.
        self._completions: dict[str, asyncio.Future[None]] = {}

    async def stop(self) -> None:
        """Stop sending markers. Markers that were not written are sent after the next start."""
        self._is_stopping = True
        await cancel_all(self._senders)
        await super().stop()

    def reset(self) -> None:
        # Partitions reject late markers of an earlier coordinator by its epoch.
        self._txns = Transactions(
            coordinator_epoch=max(COORDINATOR_EPOCH, self.epoch),
            usage=self._usage.start(self._label),
        )

    def replay(self, row: Row) -> None:
        self._txns.replay(row.key, row.value)

    def loaded(self) -> None:
        self._failed.clear()  # ``_txns.loaded`` returns them again
        decision = self._decision()
        self._txns.loaded(decision)
        self._carry_out(decision)

    def lost(self) -> None:
        self._usage.drop(self._label)
        self._alarm.clear()
        completions, self._completions = self._completions, {}
        for future in completions.values():
            future.set_result(None)

    async def request(
        self,
        transactional_id: str,
        decide: Callable[[Transactions, TxnDecision], TxnReply],
        *,
        needs_id: bool,
    ) -> TxnReply:
        """Call ``decide`` and return its reply once it is committed. Repeats the call while the
        previous transaction of this id is being completed, up to COMPLETION_SECONDS_MAX."""
        until = self._loop.time() + COMPLETION_SECONDS_MAX
        while True:
            if needs_id and not await self._has_spare_id():
                return TxnReply(calls.UNAVAILABLE)
            if not self.ready():
                return TxnReply(self._unready)
            reply = self._decide(transactional_id, decide)
            if not await self.committed():
                return TxnReply(self._unready)
            if reply.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return reply
            if not await self._completed(transactional_id, until - self._loop.time()):
                return reply

    @property
    def _unready(self) -> ErrorCode:
        return ErrorCode.NOT_COORDINATOR if self.is_standing_by else calls.UNAVAILABLE

    def _decision(self) -> TxnDecision:
        spare_id = -1 if self._spare_id is None else self._spare_id
        return TxnDecision(self._clock.mono_ms(), self._clock.wall_ms(), spare_id)

    def _decide(
        self, transactional_id: str, decide: Callable[[Transactions, TxnDecision], TxnReply]
    ) -> TxnReply:
        decision = self._decision()
        reply = self._attempt(decide, decision)
        txn = self._txns.describe(transactional_id)
        if txn is not None and decision.fresh_producer_id in (
            txn.producer_id,
            txn.next_producer_id,
        ):
            self._spare_id = None
        self._carry_out(decision)
        return reply

    async def _has_spare_id(self) -> bool:
        """Make sure that an unused producer id is known. Returns False if none can be fetched."""
        while self._spare_id is None:
            try:
                found = await self._next_producer_id()
            except PenstockError as error:
                log_.warning("no producer id available", extra={"reason": str(error)})
                return False
            if self._spare_id is None:
                self._spare_id = found
        return True

    async def verify(
        self, transactional_id: str, check: Callable[[Transactions], ErrorCode]
    ) -> ErrorCode:
        """Call ``check`` and return its result, once the state that it read is committed."""
        until = self._loop.time() + COMPLETION_SECONDS_MAX
        while self.ready():
            code = check(self._txns)
            if code is ErrorCode.NONE:
                if not await self.committed() or not self.ready():
                    break
                code = check(self._txns)
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return code
            if not await self._completed(transactional_id, until - self._loop.time()):
                return code
        return self._unready

    async def read(self, read: Callable[[Transactions], T]) -> tuple[ErrorCode, T | None]:
        """Call ``read`` and return its result, once the state that it read is committed."""
        if self.ready():
            found = read(self._txns)
            if await self.committed():
                return ErrorCode.NONE, found
        return self._unready, None

    def _attempt(self, decide: Callable[[Transactions, TxnDecision], T], to: TxnDecision) -> T:
        try:
            return decide(self._txns, to)
        except BaseException:
            self.lose("a transaction decision raised an exception")  # memory may be inconsistent
            raise

    def _note(
        self, decide: Callable[[Transactions, TxnDecision], None], *, is_divisible: bool = False
    ) -> None:
        decision = self._decision()
        try:
            self._attempt(decide, decision)
        except Exception:
            log_.exception("transaction state update failed", extra={"coordinator": self._label})
        else:
            self._carry_out(decision, is_divisible=is_divisible)

    def _carry_out(self, decision: TxnDecision, *, is_divisible: bool = False) -> None:
        self.append(decision.rows, is_divisible=is_divisible)
        if decision.markers:
            markers = decision.markers
            self.when_committed(lambda is_done: self._send(markers) if is_done else None)
        self._alarm.set(self._txns.next_wake_ms())

    async def _completed(self, transactional_id: str, seconds: float) -> bool:
        """Wait until the transaction has ended. Returns False after a timeout."""
        if not self._is_prepared(transactional_id):
            return True
        if seconds <= 0:
            return False
        future = self._completions.get(transactional_id)
        if future is None:
            future = self._completions[transactional_id] = self._loop.create_future()
        done, _ = await asyncio.wait((future,), timeout=seconds)
        return bool(done)

    def _is_prepared(self, transactional_id: str) -> bool:
        txn = self._txns.describe(transactional_id)
        return txn is not None and txn.state in _PREPARED

    def _send(self, markers: Iterable[Marker]) -> None:
        if self._is_stopping:
            return
        by_id: dict[str, list[Marker]] = {}
        for marker in markers:
            if _key(marker) not in self._sending:
                by_id.setdefault(marker.transactional_id, []).append(marker)
        for transactional_id, new in by_id.items():
            self._sending.update(map(_key, new))
            name = f"markers of {transactional_id}"
            task = self._loop.create_task(self._send_all(new), name=name)
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)

    async def _send_all(self, markers: Sequence[Marker]) -> None:
        if len(markers) == 1:
            results = [await self._send_one(markers[0])]
        else:
            results = await asyncio.gather(*map(self._send_one, markers))
        reasons = [reason for reason in results if reason is not None]
        if reasons:
            fields: dict[str, object] = {"transactional_id": markers[0].transactional_id}
            fields |= {"missing": len(reasons), "reason": reasons[0]}
            log_.warning("transaction markers not written yet, retrying", extra=fields)

    async def _send_one(self, marker: Marker) -> str | None:
        try:
            await self._write_marker(marker)
        except PenstockError as error:
            self._retry_later(marker)
            return str(error)
        except Exception as error:
            log_.exception("transaction marker write failed", extra={"coordinator": self._label})
            self._retry_later(marker)
            return type(error).__name__
        finally:
            self._sending.discard(_key(marker))
        if self.ready():
            self._note(lambda txns, decision: txns.marked(marker, decision))
            if not self._is_prepared(marker.transactional_id):
                completion = self._completions.pop(marker.transactional_id, None)
                if completion is not None:
                    completion.set_result(None)
        return None

    def _retry_later(self, marker: Marker) -> None:
        if not self._failed:
            self._retry_at_ms = self._clock.mono_ms() + MARKER_RETRY_MS
            self._alarm.set(self._retry_at_ms)
        self._failed.add(marker)

    def tick(self) -> None:
        if not self.ready():
            return
        if self._failed and self._retry_at_ms <= self._clock.mono_ms():
            failed, self._failed = self._failed, set()
            self._send(failed)
        # Divisible, since each transaction is aborted separately.
        self._note(Transactions.tick, is_divisible=True)
        if self._failed:
            self._alarm.set(self._retry_at_ms)

    def expire(self) -> None:
        if self.ready():
            self._note(Transactions.expire, is_divisible=True)


def _key(marker: Marker) -> _MarkerKey:
    return marker.transactional_id, marker.topic_id, marker.partition


class TransactionHost(CoordinatorHost[TransactionCoordinator]):
    def __init__(
        self,
        setup: CoordinatorSetup,
        *,
        groups: GroupHost,
        next_producer_id: Callable[[], Awaitable[int]],
        markers: BrokerPort | None = None,
        hold: BackupHold | None = None,
    ) -> None:
        super().__init__(TOPIC_NAME, setup, expire_ms=EXPIRE_INTERVAL_MS)
        self._markers = markers or setup.broker
        self._hold = hold or BackupHold()
        self._groups = groups
        self.next_producer_id = next_producer_id
        self.handlers = {
            calls.InitProducer: self._init_producer,
            calls.AddPartitions: self._add_partitions,
            calls.AddGroup: self._add_group,
            calls.VerifyPartition: self._verify_partition,
            calls.CommitOffsets: self._commit_offsets,
            calls.EndTransaction: self._end_transaction,
            calls.DescribeTransaction: self._describe_transaction,
            calls.ListTransactions: self._list_transactions,
        }

    def _new_coordinator(self, partition: int) -> TransactionCoordinator:
        return TransactionCoordinator(self, partition)

    def expire(self) -> None:
        for coordinator in self._coordinators:
            coordinator.expire()

    async def write_marker(self, marker: Marker) -> None:
        await self._hold.crossing()
        try:
            if marker.topic_id.startswith(GROUP_PREFIX):
                await self._mark_group(marker, marker.topic_id.removeprefix(GROUP_PREFIX))
            else:
                await self._mark_partition(marker)
        except TopicNotFound:
            return  # the topic was deleted
        except ProducerRefused as error:
            # The producer continued with a newer epoch, whose marker ends this transaction too.
            place = {"topic": marker.topic_id, "partition": marker.partition}
            fields = {"transactional_id": marker.transactional_id, "reason": str(error)}
            log_.warning("transaction marker rejected: old producer epoch", extra=place | fields)

    async def _mark_partition(self, marker: Marker) -> None:
        topic = self._catalog.find_id(marker.topic_id)
        if topic is None:
            raise TopicNotFound
        written = ports.Marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
        )
        await self._markers.call(AppendMarker(topic, marker.partition, written))

    async def _mark_group(self, marker: Marker, group_id: str) -> None:
        producer = (marker.producer_id, marker.producer_epoch)
        call = calls.CompleteTransaction(group_id, *producer, marker.is_commit)
        node = None if self._remote is None else self._remote.node_of(GROUPS, group_id)
        if self._remote is not None and node is not None:
            reply = await self._remote.complete_transaction(node, call)
        else:
            reply = await self._groups.call(call)
        if reply.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            raise ProducerRefused(int(reply.code), reply.code.name)
        if reply.code:
            raise Overloaded(f"the coordinator of group {group_id} replied {reply.code.name}")

    async def _init_or_end(
        self,
        call: calls.InitProducer | calls.EndTransaction,
        decide: Callable[[Transactions, Any, TxnDecision], TxnReply],
    ) -> TxnReply:
        return await self._at(call.transactional_id).request(
            call.transactional_id,
            lambda txns, decision: decide(txns, call, decision),
            needs_id=True,
        )

    async def _init_producer(self, call: calls.InitProducer) -> TxnReply:
        return await self._init_or_end(call, Transactions.init)

    async def _end_transaction(self, call: calls.EndTransaction) -> TxnReply:
        return await self._init_or_end(call, Transactions.end)

    def _remote_node(self, transactional_id: str) -> int | None:
        return None if self._remote is None else self._remote.node_of(TOPIC_NAME, transactional_id)

    async def _add_partitions(self, call: calls.AddPartitions) -> ErrorCode:
        node = self._remote_node(call.transactional_id)
        if self._remote is not None and node is not None:
            return await self._remote.add_partitions(node, call)
        reply = await self._at(call.transactional_id).request(
            call.transactional_id,
            lambda txns, decision: txns.add(call, decision),
            needs_id=False,
        )
        return reply.code

    async def _verify_partition(self, call: calls.VerifyPartition) -> ErrorCode:
        node = self._remote_node(call.transactional_id)
        if self._remote is not None and node is not None:
            return await self._remote.add_partitions(node, call)
        return await self._at(call.transactional_id).verify(
            call.transactional_id, lambda txns: txns.verify(call)
        )

    async def _add_group(self, call: calls.AddGroup) -> ErrorCode:
        if not 0 < len(call.group_id) <= GROUP_ID_CHARS_MAX:
            return ErrorCode.INVALID_GROUP_ID
        partitions = (_partition_of(call.group_id),)
        return await self._add_partitions(calls.AddPartitions(*_producer_of(call), partitions))

    async def _commit_offsets(self, call: calls.CommitOffsets) -> CommitReply:
        group_id, producer = call.group_id, _producer_of(call)
        if call.adds_group:
            code = await self._add_group(calls.AddGroup(*producer, group_id))
            if code:
                return CommitReply(code)
        code = await self._verify_partition(
            calls.VerifyPartition(*producer, _partition_of(group_id))
        )
        if code:
            return CommitReply(code)
        # There is no await in between, so this is decided before any marker of the transaction.
        return await self._groups.call(
            calls.CommitInTransaction(group_id, call.request, call.producer_id, call.producer_epoch)
        )

    async def _describe_transaction(
        self, call: calls.DescribeTransaction
    ) -> tuple[ErrorCode, TxnValue | None]:
        key = call.transactional_id
        code, found = await self._at(key).read(lambda txns: txns.describe(key))
        if code:
            return code, None
        if found is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None
        shown = tuple(map(self._shown, found.partitions))
        return code, replace(found, partitions=shown)

    def _shown(self, partition: TopicPartition) -> TopicPartition:
        """Return the ``__groups`` partition of a group's pseudo partition, else ``partition``."""
        topic_id, _ = partition
        groups = self._catalog.find(*self._namespace, GROUPS)
        if groups is None or not topic_id.startswith(GROUP_PREFIX):
            return partition
        group_id = topic_id.removeprefix(GROUP_PREFIX)
        return GROUPS, partition_of_group(group_id, groups.partition_count)

    async def _list_transactions(
        self,
        call: calls.ListTransactions,  # noqa: ARG002 - it has no fields
    ) -> tuple[ErrorCode, dict[str, TxnValue]]:
        """List the transactions of this node. Fails if one of its coordinators is not ready."""
        found: dict[str, TxnValue] = {}
        for coordinator in self._own_coordinators():
            code, ids = await coordinator.read(Transactions.view)
            if ids is None:
                return code, {}
            found.update(ids)
        return ErrorCode.NONE, found


def _partition_of(group_id: str) -> TopicPartition:
    return GROUP_PREFIX + group_id, 0


def _producer_of(call: calls.ProducerCall[calls.R]) -> tuple[str, int, int]:
    return call.transactional_id, call.producer_id, call.producer_epoch
