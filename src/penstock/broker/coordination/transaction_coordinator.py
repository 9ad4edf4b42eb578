"""The coordinator of the transactional ids in one partition of ``__transactions``.
``cursor.transactions`` makes the decisions; this class makes them durable, sends transaction
markers and runs the timers.

- **Markers** are sent in a separate task once the decision is durable, so a client that disconnects
  stops nothing. They are retried until the partition accepts them or is deleted, and are sent again
  after a restart, which is safe.
- **A call that arrives while the last transaction of its id is being completed** waits for that:
  markers take a few milliseconds, but clients wait tens of milliseconds before they retry.
- **At most one marker per transactional id and partition is in progress.** A version 1 client uses
  the same epoch in its next transaction, which a delayed marker would end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.context.timers import cancel_all
from penstock.broker.coordination.row_log import RowLog
from penstock.broker.coordination.runtime import CoordinatorRuntime
from penstock.cursor.coordinator_calls import UNAVAILABLE
from penstock.cursor.rows import Row
from penstock.cursor.transactions import Marker, Transactions, TxnDecision, TxnReply, TxnState
from penstock.model.errors import PenstockError
from penstock.wire.kafka.faults import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.coordination.host import CoordinatorSetup

log_ = logging.getLogger(__name__)

COORDINATOR_EPOCH = 0  # used on a node without a cluster
COMPLETION_SECONDS_MAX = 2.0  # maximum wait of a call for the previous transaction
MARKER_RETRY_MS = 1_000

_PREPARED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

_MarkerKey = tuple[str, str, int]  # transactional id, topic id, partition
T = TypeVar("T")


class TransactionCoordinator(CoordinatorRuntime):
    def __init__(
        self,
        open_log: Callable[[], Awaitable[RowLog]],
        setup: "CoordinatorSetup",
        label: str,
        write_marker: Callable[[Marker], Awaitable[None]],
        next_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        super().__init__(open_log, setup, label)
        self._write_marker = write_marker
        self._next_producer_id = next_producer_id
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
        """Stop sending markers. The remaining ones are written after the next start."""
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
        """Return the reply once it is committed. Waits until the previous transaction has ended."""
        until = self._loop.time() + COMPLETION_SECONDS_MAX
        while True:
            if needs_id and not await self._has_spare_id():
                return TxnReply(UNAVAILABLE)
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
        return ErrorCode.NOT_COORDINATOR if self.is_standing_by else UNAVAILABLE

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
        """Fetch an unused producer id if there is none. Returns False if that fails."""
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
        """Return the result of ``check``, once the state that was checked is committed."""
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
        """Return what ``read`` finds in memory, once it is committed."""
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
            log_.exception(
                "background change of transactions failed", extra={"coordinator": self._label}
            )
        else:
            self._carry_out(decision, is_divisible=is_divisible)

    def _carry_out(self, decision: TxnDecision, *, is_divisible: bool = False) -> None:
        self.append(decision.rows, is_divisible=is_divisible)
        if decision.markers:
            markers = decision.markers
            self.when_committed(lambda is_done: self._send(markers) if is_done else None)
        self._alarm.set(self._txns.next_wake_ms())

    async def _completed(self, transactional_id: str, seconds: float) -> bool:
        """Wait until the transaction in progress is completed. Returns False after a timeout."""
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
            log_.exception("transaction marker not written", extra={"coordinator": self._label})
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
