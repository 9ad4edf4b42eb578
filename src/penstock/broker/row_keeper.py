"""Keeps a fold of rows and one partition of its internal topic in step: reads the log into it at
the start, and appends what it decides. The log is kept small by compaction, as any other.

- **Appends** go out one after another, so that the log has the order of the decisions. What is
  decided while one is under way goes together into the next: under load many decisions share a
  sync. The rows of one decision are in one batch.
- **Who must wait** for its decision to be durable waits for everything appended so far; so what it
  has seen in memory is durable as well.
- **A failed append** leaves memory ahead of the log. All who wait are told so, the fold is emptied
  and read from the log anew; until then, and when reading fails, it is out of service. A log that
  is read again and again without an append in between is read ever more rarely: a full disk must
  not keep us busy with that.

What the rows mean, and when they are decided, is the fold's own business. What waits here is
bounded by the requests under way, each of which has decided once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from penstock.broker.alarm import Alarm
from penstock.broker.group_log import BATCH_ROWS_BYTES_MAX, GroupLog, RowUnreadable, portions
from penstock.cursor.group.rows import Row
from penstock.model.errors import PenstockError
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

RELOAD_MS_MIN = 1_000
RELOAD_MS_MAX = 10_000
STOP_SECONDS_MAX = 3.0

Told = Callable[[bool], None]


class Fold(Protocol):
    """The state that the rows make."""

    def reset(self) -> None:
        """Forget everything: reading begins, or begins again."""
        ...

    def replay(self, rows: Iterable[Row]) -> None:
        """Some rows, in the order of the log, each taken over before the next one is asked for.
        Raises ValueError for one that is not ours."""
        ...

    def loaded(self) -> None:
        """The end of the log is reached; decisions may be made from now on."""
        ...

    def lost(self) -> None:
        """Memory is not what the log says any more; no decisions until ``loaded``."""
        ...


class _Append:
    """What goes to the log together, and who waits for it."""

    __slots__ = ("decisions", "waiting")

    def __init__(self) -> None:
        self.decisions: list[Sequence[Row]] = []
        self.waiting: list[Told] = []

    def tell(self, is_committed: bool) -> None:
        waiting, self.waiting = self.waiting, []
        for told in waiting:
            told(is_committed)


class RowKeeper:
    def __init__(
        self,
        fold: Fold,
        *,
        open_log: Callable[[], Awaitable[GroupLog]],
        clock: Clock,
        label: str,
    ) -> None:
        """``label`` names it in logs and to the probes."""
        self.trouble: str | None = None  # why nothing is served, for the probes
        # The same as a row, where one that cannot be read is why: only an operator can help.
        self.unreadable: RowUnreadable | None = None
        self._fold = fold
        self._open_log = open_log
        self._clock = clock
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._log: GroupLog | None = None  # None: memory does not know what the log says
        self._is_stopping = False
        self.is_standing_by = False  # another node leads the log, and decides
        self.epoch = 0  # of the log's leader when it was read: this node, for as long as it leads
        # Appends: collected, under way.
        self._next = _Append()
        self._flying: _Append | None = None
        self._appender: asyncio.Task[None] | None = None
        # Loading.
        self._loader: asyncio.Task[None] | None = None
        self._load_began_ms = 0
        self._reload_ms = 0  # so long after that it may begin again
        self._alarm = Alarm(clock, self._want_load)
        self._turn: asyncio.Future[None] | None = None  # of who waits for its end

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Returns when the fold is loaded, or when it cannot be: ``trouble`` says."""
        self._want_load()
        if self._loader is not None:
            await asyncio.shield(self._loader)

    async def stop(self) -> None:
        """What was decided is appended first."""
        self._is_stopping = True
        self._alarm.clear()
        self._turned()
        if self._loader is not None:
            self._loader.cancel()
            await asyncio.gather(self._loader, return_exceptions=True)
        if self._appender is not None:
            # In a cluster nobody may be left who could commit it.
            await asyncio.wait((self._appender,), timeout=STOP_SECONDS_MAX)
        given_up, self._next = self._next, _Append()
        given_up.tell(is_committed=False)
        while self._appender is not None:
            self._appender.cancel()
            await asyncio.wait((self._appender,))
        if self._log is not None:
            self._log = None
            self._fold.lost()

    def stand_by(self) -> None:
        """Another node leads the log: it decides. What is known here counts no more."""
        self.is_standing_by = True
        self._alarm.clear()
        if self._loader is not None:
            self._loader.cancel()
        self.lose("another node leads")
        self.trouble = self.unreadable = None
        self._turned()

    def take_over(self) -> None:
        """This node leads the log: read what the others have left."""
        self.is_standing_by = False
        self.read_again()

    def read_again(self) -> None:
        """Read the log without waiting for the next attempt, if it could not be read before: an
        operator has changed which rows are skipped."""
        self._reload_ms = 0
        self._want_load()

    async def settled(self, *, until_s: float) -> None:
        """Returns when it is ready, which is not before its log was read; at once where another
        node leads, and at the latest when the loop's clock says so."""
        while not self.ready() and not (self.is_standing_by or self._is_stopping):
            left_s = until_s - self._loop.time()
            if left_s <= 0:
                break
            if self._turn is None:
                self._turn = self._loop.create_future()
            await asyncio.wait((self._turn,), timeout=left_s)

    def _turned(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set_result(None)

    def ready(self) -> bool:
        """Whether decisions may be made now. If not, asking makes it read when that is due."""
        if self._log is None:
            self._want_load()
        return self._log is not None

    # ── Decisions ────────────────────────────────────────────────────────────────────────────

    def append(self, rows: Sequence[Row], *, is_divisible: bool = False) -> None:
        """The rows of one decision, which the fold has applied already. ``is_divisible``: a crash
        may leave the first of them without the rest, so they need not fit into one batch."""
        assert self._log is not None, "decisions are made once the log was read"
        if not rows:
            return
        if is_divisible:
            self._next.decisions.extend(portions(rows, BATCH_ROWS_BYTES_MAX))
        else:
            self._next.decisions.append(rows)
        self._want_appender()

    def when_committed(self, told: Told) -> None:
        """Call ``told`` with True once everything appended so far is committed, which may be now;
        with False if it never will be."""
        append = self._next if self._next.decisions else self._flying
        if self._log is None or append is None:
            told(self._log is not None)
        else:
            append.waiting.append(told)

    async def committed(self) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self.when_committed(lambda is_committed: _settle(future, is_committed))
        return await future

    def lose(self, reason: str) -> None:
        """Memory and log have parted."""
        if self._log is None:
            return
        if not self.is_standing_by:
            log_.warning("rows are read anew", extra={"of": self._label, "reason": reason})
        self._log = None
        self.trouble = f"{self._label}: {reason}"
        given_up, self._next = self._next, _Append()
        self._fold.lost()
        if self._flying is not None:
            self._flying.tell(is_committed=False)
        given_up.tell(is_committed=False)
        self._want_load()

    # ── Appending ────────────────────────────────────────────────────────────────────────────

    def _want_appender(self) -> None:
        if self._appender is None:
            self._appender = self._loop.create_task(
                self._append_all(), name=f"append {self._label}"
            )
            self._appender.add_done_callback(self._appended)

    async def _append_all(self) -> None:
        """Runs while there is something to append. Begins with the next turn of the loop, so what
        is decided in this one goes out together."""
        while self._log is not None and self._next.decisions:
            await self._append_next(self._log)

    def _appended(self, _: asyncio.Task[None]) -> None:
        self._appender = None
        if self._log is not None and self._next.decisions:
            self._want_appender()  # decided between its last look and now
        self._want_load()

    async def _append_next(self, log: GroupLog) -> None:
        flying = self._flying = self._next
        self._next = _Append()
        try:
            await log.append(flying.decisions)
        except PenstockError as error:
            self.lose(f"append failed: {error}")
        except Exception as error:
            log_.exception("appending rows failed")
            self.lose(f"append failed: {type(error).__name__}")
        else:
            self._reload_ms = RELOAD_MS_MIN
            flying.tell(is_committed=True)  # if it was lost meanwhile, nobody waits any more
        finally:
            flying.tell(is_committed=False)  # who still waits: it was given up
            self._flying = None

    # ── Loading ──────────────────────────────────────────────────────────────────────────────

    def _want_load(self) -> None:
        if self._log is not None or self._loader is not None or self._is_stopping:
            return
        if self.is_standing_by:
            return
        if self._appender is not None:
            return  # what is under way would be read, or not, by chance; its end brings us back
        now_ms = self._clock.mono_ms()
        load_from_ms = self._load_began_ms + self._reload_ms
        if now_ms < load_from_ms:
            self._alarm.set(load_from_ms)
            return
        self._load_began_ms = now_ms
        self._reload_ms = min(max(2 * self._reload_ms, RELOAD_MS_MIN), RELOAD_MS_MAX)
        self._loader = self._loop.create_task(self._load(), name=f"load {self._label}")
        self._loader.add_done_callback(self._load_ended)

    async def _load(self) -> None:
        try:
            log = await self._open_log()
            await self._read(log)
            self._log = log
            self.trouble = self.unreadable = None
            self._fold.loaded()
            self._turned()
        except (PenstockError, ValueError) as error:  # MalformedBatch is one of the latter
            self._not_loaded(error, str(error))
        except Exception as error:
            log_.exception("reading rows failed")
            self._not_loaded(error, type(error).__name__)

    def _load_ended(self, _: asyncio.Task[None]) -> None:
        """As a callback and not at the end of the task itself: one that is cancelled before its
        first step has no end, and leaders come and go within one turn of the loop."""
        self._loader = None
        self._want_load()

    async def _read(self, log: GroupLog) -> None:
        """Everything, into the fold."""
        start, end = await log.ends()
        self.epoch = log.epoch
        self._fold.reset()
        await log.replay(start, end, self._fold.replay)

    def _not_loaded(self, error: Exception, reason: str) -> None:
        self._log = None
        self._next = _Append()
        before, self.trouble = self.trouble, f"{self._label}: reading failed: {reason}"
        self.unreadable = error if isinstance(error, RowUnreadable) else None
        if self.trouble == before:
            return  # said already; every further attempt ends like this
        where: dict[str, object] = {"of": self._label, "reason": reason}
        if self.unreadable is not None:
            row = self.unreadable
            where |= {"topic": row.topic, "partition": row.partition, "offset": row.offset}
        log_.error("coordinator out of service", extra=where)


def _settle(future: asyncio.Future[bool], is_committed: bool) -> None:
    if not future.done():
        future.set_result(is_committed)
