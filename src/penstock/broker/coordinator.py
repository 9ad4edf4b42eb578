"""The shell around one partition of group coordinators: ``cursor.group`` decides, this one parks
requests, appends rows, answers, and watches the clock.

- **Tickets.** Every request waits under a ticket; a decision answers any of them. A request whose
  client has gone takes its ticket along, and its answer finds nobody.
- **Appends** go out one after another, so that the log has the order of the decisions. What is
  decided while one is under way goes together into the next: under load many commits share a sync.
- **Held answers** wait for the newest append at the time of the decision, whether it is their own.
- **A failed append** leaves memory ahead of the log. All who wait are told to ask again, and the
  state is read from the log anew; until then, and when reading fails, everybody is told so.

There are never more tickets than requests under way, which the listener bounds; what a group may
hold is bounded in ``cursor.group.settings``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from penstock.broker.group_log import GroupLog, Newest
from penstock.cursor.group.decision import Decision
from penstock.cursor.group.groups import Groups
from penstock.cursor.group.rows import Row
from penstock.cursor.group.settings import GroupSettings
from penstock.model.errors import PenstockError
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

# A disk that refuses every append must not make us read the whole log for each request; a log that
# cannot be read is tried ever more rarely.
RELOAD_MS_MIN = 1_000
RELOAD_MS_MAX = 60_000
FORGOTTEN_MAX = 10_000  # beyond it, offsets of deleted topics wait for their retention to end

ReplyT = TypeVar("ReplyT")


class _Append:
    """What goes to the log together, and the answers that wait for it."""

    __slots__ = ("answers", "decisions")

    def __init__(self) -> None:
        self.decisions: list[Sequence[Row]] = []
        self.answers: list[tuple[int, object]] = []


class Coordinator:
    def __init__(
        self,
        *,
        open_log: Callable[[], Awaitable[GroupLog]],
        settings: GroupSettings,
        clock: Clock,
        partition: int,
        rewrite_bytes: int,
    ) -> None:
        """``rewrite_bytes``: how much is appended before the log is rewritten."""
        self.partition = partition
        self.trouble: str | None = None  # why nothing is served, for the probes
        self._open_log = open_log
        self._settings = settings
        self._clock = clock
        self._rewrite_bytes = rewrite_bytes
        self._loop = asyncio.get_running_loop()
        self._log: GroupLog | None = None
        self._groups: Groups | None = None  # None: memory does not know what the log says
        self._is_stopping = False
        self._forgotten: set[str] = set()  # topics deleted while nothing was loaded
        # Requests under way: ticket → the future of its reply, and the reply if all fails.
        self._waiters: dict[int, tuple[asyncio.Future[Any], object]] = {}
        self._ticket = 0
        # Appends: collected, under way.
        self._next = _Append()
        self._flying: _Append | None = None
        self._appender: asyncio.Task[None] | None = None
        # Loading and rewriting.
        self._loader: asyncio.Task[None] | None = None
        self._load_from_ms = 0  # not before
        self._reload_ms = RELOAD_MS_MIN
        self._reader: asyncio.Task[None] | None = None
        self._newest: Newest | None = None
        self._log_bytes = 0  # appended since the last rewrite
        self._live_bytes = 0  # what that rewrite left
        # The one timer.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Returns when the groups are known, or when they cannot be: ``trouble`` says."""
        self._want_load()
        if self._loader is not None:
            await asyncio.shield(self._loader)

    def end_waits(self) -> None:
        """Answer those who wait for other members: their clients find a coordinator elsewhere, or
        here again. Who waits for the log is answered when that has come so far."""
        held = {
            ticket
            for append in (self._flying, self._next)
            if append is not None
            for ticket, _ in append.answers
        }
        for ticket, (_, failed) in self._waiters.items():
            if ticket not in held:
                self._answer(ticket, failed)

    def _fail_all(self) -> None:
        for ticket, (_, failed) in self._waiters.items():
            self._answer(ticket, failed)

    async def stop(self) -> None:
        """What was decided is appended; who still waits is told to ask again."""
        self._is_stopping = True
        self._newest = None
        for task in (self._loader, self._reader):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._appender is not None:
            await asyncio.shield(self._appender)
        self._groups = None
        self._disarm()
        self._fail_all()

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    async def ask(self, failed: ReplyT, decide: Callable[[Groups, int], Decision]) -> ReplyT:
        """Wait for the answer to one decision. ``failed`` is the answer if there is none."""
        groups = self._ready()
        if groups is None:
            return failed
        ticket, future = self._park(failed)
        try:
            self._carry_out(self._decide(groups, lambda groups: decide(groups, ticket)))
            return cast(ReplyT, await future)
        finally:
            self._waiters.pop(ticket, None)

    async def look(self, failed: ReplyT, read: Callable[[Groups], ReplyT]) -> ReplyT:
        """Read what memory has, shown once the log has it too."""
        groups = self._ready()
        if groups is None:
            return failed
        found = read(groups)
        append = self._newest_append()
        if append is None:
            return found
        ticket, future = self._park(failed)
        append.answers.append((ticket, found))
        try:
            return cast(ReplyT, await future)
        finally:
            self._waiters.pop(ticket, None)

    def note(self, decide: Callable[[Groups], Decision]) -> None:
        """A decision that nobody waits for."""
        groups = self._ready()
        if groups is not None:
            self._carry_out(self._decide(groups, decide))

    def forget_topic(self, topic_id: str) -> None:
        if self._groups is None and len(self._forgotten) < FORGOTTEN_MAX:
            self._forgotten.add(topic_id)
        self.note(lambda groups: groups.forget_topics(frozenset((topic_id,))))

    def _ready(self) -> Groups | None:
        if self._groups is None:
            self._want_load()
        return self._groups

    def _park(self, failed: object) -> tuple[int, asyncio.Future[Any]]:
        self._ticket += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiters[self._ticket] = (future, failed)
        return self._ticket, future

    def _answer(self, ticket: int, reply: object) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(reply)

    # ── Decisions ────────────────────────────────────────────────────────────────────────────

    def _decide(self, groups: Groups, decide: Callable[[Groups], Decision]) -> Decision:
        try:
            return decide(groups)
        except BaseException:
            # A fault of ours, half way through: nobody knows what memory holds now.
            self._lose("a decision failed")
            raise

    def _carry_out(self, decision: Decision) -> None:
        self._arm(decision.wake_at_ms)
        if decision.rows:
            self._next.decisions.append(decision.rows)
            self._want_appender()
        append = self._newest_append()
        for answer in decision.answers:
            if answer.after_commit and append is not None:
                append.answers.append((answer.ticket, answer.reply))
            else:
                self._answer(answer.ticket, answer.reply)

    def _newest_append(self) -> _Append | None:
        """The one to wait for, so that everything decided so far is committed."""
        return self._next if self._next.decisions else self._flying

    def _lose(self, reason: str) -> None:
        """Memory and log have parted."""
        log_.warning(
            "group coordinator reads its log anew",
            extra={"partition": self.partition, "reason": reason},
        )
        self._groups = None
        self.trouble = f"groups of partition {self.partition}: {reason}"
        self._next = _Append()
        self._newest = None
        self._disarm()
        self._fail_all()
        self._want_load()

    # ── Time ─────────────────────────────────────────────────────────────────────────────────

    def _arm(self, at_ms: int | None) -> None:
        """A timer that fires too early looks and arms itself again, so only an earlier time
        matters: heartbeats push deadlines back all the time."""
        if at_ms is None:
            self._disarm()
            return
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        delay_s = max(1, at_ms - self._clock.mono_ms()) / 1_000
        self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timer_fired(self) -> None:
        self._timer = None
        self.tick()

    def tick(self) -> None:
        """Do what is due by the clock."""
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        self.note(lambda groups: groups.tick(now_ms=now_ms, wall_ms=wall_ms))

    # ── Appending ────────────────────────────────────────────────────────────────────────────

    def _want_appender(self) -> None:
        if self._appender is None:
            self._appender = self._loop.create_task(
                self._append_all(), name=f"append groups {self.partition}"
            )

    async def _append_all(self) -> None:
        """Runs while there is something to append. Begins with the next turn of the loop, so what
        is decided in this one goes out together."""
        try:
            while self._next.decisions or self._newest is not None:
                assert self._log is not None, "decisions are made once the log was read"
                newest, self._newest = self._newest, None
                if newest is not None:
                    await self._replace(self._log, newest)
                elif self._next.decisions:
                    await self._append_next(self._log)
        finally:
            self._flying = None
            self._appender = None
            if self._groups is None:
                self._want_load()

    async def _append_next(self, log: GroupLog) -> None:
        self._flying, self._next = self._next, _Append()
        try:
            size = await log.append(self._flying.decisions)
        except PenstockError as error:
            self._lose(f"append failed: {error}")
            return
        except Exception as error:
            log_.exception("appending group rows failed")
            self._lose(f"append failed: {type(error).__name__}")
            return
        if self._groups is None:
            return  # everybody was answered when it was lost
        for ticket, reply in self._flying.answers:
            self._answer(ticket, reply)
        self._flying = None
        self._log_bytes += size
        self._maybe_rewrite(log)

    # ── Rewriting ────────────────────────────────────────────────────────────────────────────

    def _maybe_rewrite(self, log: GroupLog) -> None:
        is_due = self._log_bytes > max(self._rewrite_bytes, 2 * self._live_bytes)
        if is_due and self._reader is None and self._newest is None and not self._is_stopping:
            self._reader = self._loop.create_task(
                self._read_for_rewrite(log), name=f"rewrite groups {self.partition}"
            )

    async def _read_for_rewrite(self, log: GroupLog) -> None:
        """Most of the reading, while appends go on. The appender does the rest in its own turn."""
        try:
            start, end = await log.ends()
            newest = Newest(start)
            await newest.read_up_to(log, end)
        except Exception as error:
            self._not_rewritten(error)
        else:
            if self._groups is not None:
                self._newest = newest
                self._want_appender()
        finally:
            self._reader = None

    async def _replace(self, log: GroupLog, newest: Newest) -> None:
        try:
            self._live_bytes = await log.replace(newest)
            self._log_bytes = self._live_bytes
        except Exception as error:
            # Some rows may stand in the log once more; they say the same.
            self._not_rewritten(error)

    def _not_rewritten(self, error: Exception) -> None:
        log_.warning(
            "group log not rewritten",
            extra={"partition": self.partition, "reason": str(error) or type(error).__name__},
        )
        self._log_bytes = self._live_bytes  # try again when as much has been appended again

    # ── Loading ──────────────────────────────────────────────────────────────────────────────

    def _want_load(self) -> None:
        # Not while an append is under way: it would be read, or not, by chance.
        if self._loader is not None or self._appender is not None or self._is_stopping:
            return
        now_ms = self._clock.mono_ms()
        if now_ms < self._load_from_ms:
            self._arm(self._load_from_ms)
            return
        self._load_from_ms = now_ms + self._reload_ms
        self._loader = self._loop.create_task(self._load(), name=f"load groups {self.partition}")

    async def _load(self) -> None:
        try:
            log = await self._open_log()
            groups = Groups(self._settings)
            start, end = await log.ends()
            total_bytes = 0
            async for rows, size in log.read(start, end):
                total_bytes += size
                now_ms = self._clock.mono_ms()
                for key, value in rows:
                    groups.replay(key, value, now_ms=now_ms)
        except (PenstockError, ValueError) as error:  # MalformedBatch is one of the latter
            self._not_loaded(str(error))
        except Exception as error:
            log_.exception("reading group rows failed")
            self._not_loaded(type(error).__name__)
        else:
            self._log = log
            self._groups = groups
            self.trouble = None
            self._reload_ms = RELOAD_MS_MIN
            self._log_bytes = total_bytes
            self._live_bytes = 0
            self._carry_out(groups.loaded(now_ms=self._clock.mono_ms()))
            if self._forgotten:
                topic_ids, self._forgotten = frozenset(self._forgotten), set()
                self.note(lambda groups: groups.forget_topics(topic_ids))
            self._maybe_rewrite(log)
        finally:
            self._loader = None

    def _not_loaded(self, reason: str) -> None:
        self.trouble = f"groups of partition {self.partition}: reading failed: {reason}"
        self._reload_ms = min(2 * self._reload_ms, RELOAD_MS_MAX)
        log_.error(
            "group coordinator is out of service",
            extra={"partition": self.partition, "reason": reason},
        )
