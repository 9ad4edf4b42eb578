"""The shell around one partition of transaction coordinators: ``cursor.transactions`` decides, this
one makes decisions durable, sends markers, and watches the clock.

    decide → rows committed → answer, and markers to each partition → all told → the second row

- **Markers** go out once the decision behind them is durable, in a task of their own: a client that
  hangs up stops nothing. A partition that cannot take one now is tried again until it can, or is
  gone. After a restart, markers of decided transactions are sent again, which harms nobody.
- **Who comes too early**, while the last transaction of an id is still being completed, waits for
  that for a moment instead of being sent away: markers are mostly a matter of milliseconds, and
  clients that are told to come again count in tens of them.
- **One marker per partition at a time.** A version 1 client has the same epoch in its next
  transaction, which a marker still on its way would end. So none is sent twice at once, not even
  by a coordinator that has read its log anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from penstock.broker.alarm import Alarm
from penstock.broker.group_log import GroupLog, RowUnreadable
from penstock.broker.row_keeper import RowKeeper
from penstock.cursor.group.codes import Code
from penstock.cursor.group.rows import Row
from penstock.cursor.tenants import FREE, TenantRooms
from penstock.cursor.transactions import (
    Marker,
    Transactions,
    TxnOutcome,
    TxnReply,
    TxnState,
    TxnValue,
)
from penstock.model.errors import PenstockError
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

COORDINATOR_EPOCH = 0  # one node coordinates all transactions, and always has
COMPLETION_SECONDS_MAX = 2.0  # that a call waits for the transaction before it
MARKER_RETRY_MS = 1_000

UNAVAILABLE = TxnReply(Code.COORDINATOR_NOT_AVAILABLE)
ELSEWHERE = TxnReply(Code.NOT_COORDINATOR)
_PREPARED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

Place = tuple[str, str, int]  # transactional id, topic id, partition


class TransactionCoordinator:
    """A ``row_keeper.Fold``."""

    def __init__(
        self,
        *,
        open_log: Callable[[], Awaitable[GroupLog]],
        tell: Callable[[Marker], Awaitable[None]],
        next_producer_id: Callable[[], Awaitable[int]],
        clock: Clock,
        label: str,
        rooms: TenantRooms = FREE,
    ) -> None:
        """``tell`` returns when a marker is where it belongs, or its partition is no more; what it
        raises makes us try again."""
        self._rooms = rooms
        self._label = label
        self._tell = tell
        self._next_producer_id = next_producer_id
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._keeper = RowKeeper(
            self,
            open_log=open_log,
            clock=clock,
            label=label,
        )
        self._txns = Transactions(coordinator_epoch=COORDINATOR_EPOCH)
        self._is_stopping = False
        self._spare_id: int | None = None  # a producer id that nobody has yet
        # Markers on their way, over any number of loads.
        self._under_way: set[Place] = set()
        self._tellers: set[asyncio.Task[None]] = set()
        self._failed: set[Marker] = set()  # to be sent again
        self._retry_at_ms = 0
        # Calls that wait for a transaction to be completed, by transactional id.
        self._completions: dict[str, asyncio.Future[None]] = {}
        self._alarm = Alarm(clock, self.tick)

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        await self._keeper.start()

    def stand_by(self) -> None:
        """Another node leads the log and coordinates. Markers under way may arrive: they say what
        is decided."""
        self._keeper.stand_by()

    def take_over(self) -> None:
        self._keeper.take_over()

    async def stop(self) -> None:
        """Markers that are not written now are written after the next start."""
        self._is_stopping = True
        for task in tuple(self._tellers):
            task.cancel()
        await asyncio.gather(*self._tellers, return_exceptions=True)
        await self._keeper.stop()
        self._alarm.clear()

    @property
    def trouble(self) -> str | None:
        return self._keeper.trouble

    @property
    def unreadable(self) -> RowUnreadable | None:
        return self._keeper.unreadable

    def read_again(self) -> None:
        self._keeper.read_again()

    # ── row_keeper.Fold ──────────────────────────────────────────────────────────────────────

    def reset(self) -> None:
        # Markers of an earlier coordinator that come late are refused by their partitions.
        self._txns = Transactions(
            coordinator_epoch=max(COORDINATOR_EPOCH, self._keeper.epoch),
            held=self._rooms.hold(self._label),
        )

    def replay(self, rows: Iterable[Row]) -> None:
        for key, value in rows:
            self._txns.replay(key, value)

    def loaded(self) -> None:
        self._failed.clear()  # they are among those sent now
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        self._carry_out(self._txns.loaded(now_ms=now_ms, wall_ms=wall_ms))

    def lost(self) -> None:
        self._rooms.drop(self._label)
        self._alarm.clear()
        completions, self._completions = self._completions, {}
        for future in completions.values():
            _end(future)

    # ── Calls ────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, transactional_id: str, decide: Callable[[Transactions], TxnOutcome]
    ) -> TxnReply:
        """The answer, once it is durable. ``decide`` is called again when it came too early."""
        return await self._ask(transactional_id, lambda txns, _: decide(txns), needs_id=False)

    async def ask_with_id(
        self, transactional_id: str, decide: Callable[[Transactions, int], TxnOutcome]
    ) -> TxnReply:
        """The same for a decision that may need a producer id that nobody has."""
        return await self._ask(transactional_id, decide, needs_id=True)

    async def _ask(
        self,
        transactional_id: str,
        decide: Callable[[Transactions, int], TxnOutcome],
        *,
        needs_id: bool,
    ) -> TxnReply:
        until = self._loop.time() + COMPLETION_SECONDS_MAX
        while True:
            if needs_id and not await self._has_spare_id():
                return UNAVAILABLE
            if not self._keeper.ready():
                return self._unready()
            reply = self._decide(transactional_id, decide)
            if not await self._keeper.committed():
                return self._unready()
            if reply.code is not Code.CONCURRENT_TRANSACTIONS:
                return reply
            if not await self._completed(transactional_id, until - self._loop.time()):
                return reply

    def _unready(self) -> TxnReply:
        return ELSEWHERE if self._keeper.is_standing_by else UNAVAILABLE

    def _decide(
        self, transactional_id: str, decide: Callable[[Transactions, int], TxnOutcome]
    ) -> TxnReply:
        spare_id = -1 if self._spare_id is None else self._spare_id
        outcome = self._attempt(lambda txns: decide(txns, spare_id))
        txn = self._txns.describe(transactional_id)
        if txn is not None and spare_id in (txn.producer_id, txn.next_producer_id):
            self._spare_id = None
        self._carry_out(outcome)
        return outcome.reply

    async def _has_spare_id(self) -> bool:
        """There is one when this returns, and nobody else takes it before the next await."""
        while self._spare_id is None:
            try:
                found = await self._next_producer_id()
            except PenstockError as error:
                log_.warning("no producer id to be had", extra={"reason": str(error)})
                return False
            if self._spare_id is None:
                self._spare_id = found
        return True

    async def verify(self, transactional_id: str, check: Callable[[Transactions], Code]) -> Code:
        """The code of ``check``. When it is NONE, what it rests on is durable, and still holds:
        the caller acts on it before its next await."""
        until = self._loop.time() + COMPLETION_SECONDS_MAX
        while self._keeper.ready():
            code = check(self._txns)
            if code is Code.NONE:
                if not await self._keeper.committed() or not self._keeper.ready():
                    break
                code = check(self._txns)
            if code is not Code.CONCURRENT_TRANSACTIONS:
                return code
            if not await self._completed(transactional_id, until - self._loop.time()):
                return code
        return self._unready().code

    async def describe(self, transactional_id: str) -> tuple[Code, TxnValue | None]:
        """As memory has it, shown once the log has it too."""
        if self._keeper.ready():
            found = self._txns.describe(transactional_id)
            if await self._keeper.committed():
                return Code.NONE, found
        return self._unready().code, None

    async def all_ids(self) -> tuple[Code, dict[str, TxnValue]]:
        if self._keeper.ready():
            found = self._txns.view()
            if await self._keeper.committed():
                return Code.NONE, found
        return self._unready().code, {}

    # ── Decisions ────────────────────────────────────────────────────────────────────────────

    def _attempt(self, decide: Callable[[Transactions], TxnOutcome]) -> TxnOutcome:
        try:
            return decide(self._txns)
        except BaseException:
            # A fault of ours, half way through: nobody knows what memory holds now.
            self._keeper.lose("a decision failed")
            raise

    def _note(
        self, decide: Callable[[Transactions], TxnOutcome], *, is_divisible: bool = False
    ) -> None:
        """A decision that nobody waits for, nor hears of when it fails. ``is_divisible``: a crash
        may leave its first rows without the rest."""
        try:
            outcome = self._attempt(decide)
        except Exception:
            log_.exception("a decision about transactions failed")
        else:
            self._carry_out(outcome, is_divisible=is_divisible)

    def _carry_out(self, outcome: TxnOutcome, *, is_divisible: bool = False) -> None:
        self._keeper.append(outcome.rows, is_divisible=is_divisible)
        if outcome.markers:
            markers = outcome.markers
            self._keeper.when_committed(lambda is_done: self._send(markers) if is_done else None)
        self._alarm.set(outcome.wake_at_ms)

    async def _completed(self, transactional_id: str, seconds: float) -> bool:
        """Wait until the transaction under way is over; False: it takes too long."""
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

    # ── Markers ──────────────────────────────────────────────────────────────────────────────

    def _send(self, markers: Iterable[Marker]) -> None:
        if self._is_stopping:
            return
        by_id: dict[str, list[Marker]] = {}
        for marker in markers:
            if _place(marker) not in self._under_way:
                by_id.setdefault(marker.transactional_id, []).append(marker)
        for transactional_id, fresh in by_id.items():
            self._under_way.update(map(_place, fresh))
            task = self._loop.create_task(
                self._tell_all(fresh), name=f"markers of {transactional_id}"
            )
            self._tellers.add(task)
            task.add_done_callback(self._tellers.discard)

    async def _tell_all(self, markers: Sequence[Marker]) -> None:
        if len(markers) == 1:
            results = [await self._tell_one(markers[0])]
        else:
            results = await asyncio.gather(*map(self._tell_one, markers))
        reasons = [reason for reason in results if reason is not None]
        if reasons:
            log_.warning(
                "transaction markers not written yet",
                extra={
                    "transactional_id": markers[0].transactional_id,
                    "missing": len(reasons),
                    "reason": reasons[0],
                },
            )

    async def _tell_one(self, marker: Marker) -> str | None:
        """Why it could not be done, or None."""
        try:
            await self._tell(marker)
        except PenstockError as error:
            self._try_again(marker)
            return str(error)
        except Exception as error:
            log_.exception("writing a transaction marker failed")
            self._try_again(marker)
            return type(error).__name__
        finally:
            self._under_way.discard(_place(marker))
        if self._keeper.ready():
            wall_ms = self._clock.wall_ms()
            self._note(lambda txns: txns.marked(marker, wall_ms=wall_ms))
            self._wake(marker.transactional_id)
        return None

    def _try_again(self, marker: Marker) -> None:
        if not self._failed:
            self._retry_at_ms = self._clock.mono_ms() + MARKER_RETRY_MS
            self._alarm.set(self._retry_at_ms)
        self._failed.add(marker)

    def _wake(self, transactional_id: str) -> None:
        future = self._completions.get(transactional_id)
        if future is not None and not self._is_prepared(transactional_id):
            del self._completions[transactional_id]
            _end(future)

    # ── Time ─────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Do what is due by the clock."""
        if not self._keeper.ready():
            return
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        if self._failed and self._retry_at_ms <= now_ms:
            failed, self._failed = self._failed, set()
            self._send(failed)
        # Each is aborted for itself: that one is lost in a crash takes nothing from the others.
        self._note(lambda txns: txns.tick(now_ms=now_ms, wall_ms=wall_ms), is_divisible=True)
        if self._failed:
            self._alarm.set(self._retry_at_ms)

    def expire(self) -> None:
        """Forget ids that have done nothing for long."""
        if self._keeper.ready():
            wall_ms = self._clock.wall_ms()
            self._note(lambda txns: txns.expire(wall_ms=wall_ms), is_divisible=True)


def _place(marker: Marker) -> Place:
    return marker.transactional_id, marker.topic_id, marker.partition


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
