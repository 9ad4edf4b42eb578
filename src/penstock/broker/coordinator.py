"""The shell around one partition of group coordinators: ``cursor.group`` decides, this one parks
requests, answers, and watches the clock. That rows reach the log, and come back from it, is the
work of ``row_keeper.py``.

- **Tickets.** Every request waits under a ticket; a decision answers any of them. A request whose
  client has gone takes its ticket along, and its answer finds nobody.
- **Held answers** wait until all that was decided before is in the log.
- **When memory is lost**, because an append failed, all who wait are told to ask again.

There are never more tickets than requests under way, which the listener bounds; what a group may
hold is bounded in ``cursor.group.settings``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from penstock.broker.alarm import Alarm
from penstock.broker.group_configs import GroupConfigs
from penstock.broker.group_log import GroupLog, RowUnreadable
from penstock.broker.row_keeper import RowKeeper
from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Answer, Decision
from penstock.cursor.group.groups import Groups
from penstock.cursor.group.rows import Row
from penstock.cursor.group.settings import GroupSettings
from penstock.cursor.tenants import FREE, TenantRooms
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

MOVE_RETRY_SECONDS = 1.0  # before the metadata store is asked again
FORGOTTEN_MAX = 10_000  # beyond it, offsets of deleted topics wait for their retention to end

ReplyT = TypeVar("ReplyT")


class Coordinator:
    """A ``row_keeper.Fold``."""

    def __init__(
        self,
        *,
        open_log: Callable[[], Awaitable[GroupLog]],
        settings: GroupSettings,
        clock: Clock,
        label: str,
        rooms: TenantRooms = FREE,
        configs: GroupConfigs | None = None,
    ) -> None:
        """``label`` names it in logs and to the probes. ``rooms`` counts what tenants have at this
        node. ``configs``: of groups, in the metadata store; None: they stay rows."""
        self._rooms = rooms
        self._configs = configs
        self._move: asyncio.Task[None] | None = None  # of rows with configs to the metadata store
        self._label = label
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._keeper = RowKeeper(
            self,
            open_log=open_log,
            clock=clock,
            label=label,
        )
        self._groups = Groups(settings)  # known once the keeper says ready
        self._alarm = Alarm(clock, self.tick)
        self._forgotten: set[str] = set()  # deleted topics of which the log may still have offsets
        # Requests under way: ticket → the future of its reply, and the reply if all fails.
        self._waiters: dict[int, tuple[asyncio.Future[Any], object]] = {}
        self._ticket = 0
        self._held: set[int] = set()  # tickets that are answered when the log has come so far

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Returns when the groups are known, or when they cannot be: ``trouble`` says."""
        await self._keeper.start()

    def stand_by(self) -> None:
        """Another node leads the log and coordinates: those who wait are sent there."""
        self._keeper.stand_by()

    def take_over(self) -> None:
        """This node coordinates, as soon as it has read what the others left."""
        self._keeper.take_over()

    def end_waits(self) -> None:
        """Answer those who wait for other members: their clients find a coordinator elsewhere, or
        here again. Who waits for the log is answered when that has come so far."""
        for ticket in self._waiters:
            if ticket not in self._held:
                self._fail(ticket)

    async def stop(self) -> None:
        """What was decided is appended; who still waits is told to ask again."""
        if self._move is not None:
            self._move.cancel()
            await asyncio.gather(self._move, return_exceptions=True)
        await self._keeper.stop()
        self._alarm.clear()
        self._fail_all()

    @property
    def trouble(self) -> str | None:
        """Why nothing is served, for the probes."""
        return self._keeper.trouble

    @property
    def unreadable(self) -> RowUnreadable | None:
        """The row that keeps it out of service."""
        return self._keeper.unreadable

    def read_again(self) -> None:
        self._keeper.read_again()

    # ── row_keeper.Fold ──────────────────────────────────────────────────────────────────────

    def reset(self) -> None:
        stored = None if self._configs is None else self._configs.of
        self._groups = Groups(self._settings, self._rooms.hold(self._label), stored=stored)

    def replay(self, rows: Iterable[Row]) -> None:
        now_ms = self._clock.mono_ms()
        for key, value in rows:
            self._groups.replay(key, value, now_ms=now_ms)

    def loaded(self) -> None:
        self._carry_out(self._groups.loaded(now_ms=self._clock.mono_ms()))
        if self._forgotten:
            self._forget(frozenset(self._forgotten))
        self.move_configs()

    def lost(self) -> None:
        self._rooms.drop(self._label)
        self._alarm.clear()
        self._fail_all()

    # ── Configs ──────────────────────────────────────────────────────────────────────────────

    def move_configs(self) -> None:
        """Begin to move rows with configs to the metadata store, if there are any and the feature
        level allows it."""
        if self._configs is None or not self._configs.is_in_force or self._move is not None:
            return
        if self._keeper.ready() and self._groups.configs_rows():
            groups = self._groups
            self._move = self._loop.create_task(
                self._move_all(self._configs, groups), name=f"move configs {self._label}"
            )
            self._move.add_done_callback(lambda _: self._move_ended(groups))

    async def configs_moved(self) -> None:
        """Returns when the move that is under way has ended, if there is one."""
        if self._move is not None:
            await asyncio.wait((self._move,))

    def _move_ended(self, groups: Groups) -> None:
        self._move = None
        if self._groups is not groups:
            self.move_configs()  # what was read meanwhile

    async def _move_all(self, configs: GroupConfigs, groups: Groups) -> None:
        """Put each row into the store and delete it then. A crash in between leaves rows that are
        moved again. ``groups``: of the load that found the rows; another load begins anew."""
        # A coordinator that does not lead any more may have old rows, and cannot commit these.
        self.note(Groups.repeat_configs, is_divisible=True)
        if not await self._keeper.committed():
            return
        moved = []
        for group_id, row in groups.configs_rows().items():
            try:
                await self._take_over(configs, group_id, row)
            except InvalidRequest as error:
                log_.error(
                    "group configs not moved", extra={"group": group_id, "reason": str(error)}
                )
            else:
                moved.append(group_id)
        if self._groups is not groups:
            return
        self.note(lambda groups: groups.drop_configs(moved), is_divisible=True)
        log_.info("group configs moved", extra={"of": self._label, "groups": len(moved)})

    async def _take_over(
        self, configs: GroupConfigs, group_id: str, row: Mapping[str, str]
    ) -> None:
        """Raises InvalidRequest. The store may be away: it is asked until it answers."""
        while True:
            try:
                return await configs.take_over(group_id, row)
            except InvalidRequest:
                raise
            except PenstockError as error:
                log_.warning(
                    "group configs not moved yet", extra={"of": self._label, "reason": str(error)}
                )
            await asyncio.sleep(MOVE_RETRY_SECONDS)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    async def ask(self, failed: ReplyT, decide: Callable[[Groups, int], Decision]) -> ReplyT:
        """Wait for the answer to one decision. ``failed`` is the answer if there is none."""
        if not self._keeper.ready():
            return self._unready(failed)
        self._ticket += 1
        ticket = self._ticket
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiters[ticket] = (future, failed)
        try:
            self._carry_out(self._decide(lambda groups: decide(groups, ticket)))
            return cast(ReplyT, await future)
        finally:
            del self._waiters[ticket]

    def peek(self, unready: ReplyT, read: Callable[[Groups], ReplyT]) -> ReplyT:
        """Read what memory has, whether or not the log has it too."""
        return read(self._groups) if self._keeper.ready() else unready

    async def look(self, failed: ReplyT, read: Callable[[Groups], ReplyT]) -> ReplyT:
        """Read what memory has, shown once the log has it too."""
        if not self._keeper.ready():
            return self._unready(failed)
        found = read(self._groups)
        return found if await self._keeper.committed() else self._unready(failed)

    async def look_when_settled(
        self, failed: ReplyT, read: Callable[[Groups], ReplyT], *, until_s: float
    ) -> ReplyT:
        """``look``, which waits for the log to be read where this node coordinates."""
        await self._keeper.settled(until_s=until_s)
        return await self.look(failed, read)

    def _unready(self, failed: ReplyT) -> ReplyT:
        return cast(ReplyT, elsewhere(failed)) if self._keeper.is_standing_by else failed

    def note(self, decide: Callable[[Groups], Decision], *, is_divisible: bool = False) -> None:
        """A decision that nobody waits for, nor hears of when it fails. ``is_divisible``: a crash
        may leave its first rows without the rest."""
        if not self._keeper.ready():
            return
        try:
            decision = self._decide(decide)
        except Exception:
            log_.exception("a decision about groups failed")
        else:
            self._carry_out(decision, is_divisible=is_divisible)

    def forget_topic(self, topic_id: str) -> None:
        if len(self._forgotten) < FORGOTTEN_MAX:
            self._forgotten.add(topic_id)
        self._forget(frozenset((topic_id,)))

    def _forget(self, topic_ids: frozenset[str]) -> None:
        """They are forgotten about when the log says so: until then it may be read anew."""
        self.note(lambda groups: groups.forget_topics(topic_ids), is_divisible=True)
        self._keeper.when_committed(
            lambda is_done: self._forgotten.difference_update(topic_ids) if is_done else None
        )

    def _fail_all(self) -> None:
        for ticket in self._waiters:
            self._fail(ticket)

    def _fail(self, ticket: int) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None:
            self._answer(ticket, self._unready(waiter[1]))

    def _answer(self, ticket: int, reply: object) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(reply)

    # ── Decisions ────────────────────────────────────────────────────────────────────────────

    def _decide(self, decide: Callable[[Groups], Decision]) -> Decision:
        try:
            return decide(self._groups)
        except BaseException:
            # A fault of ours, half way through: nobody knows what memory holds now.
            self._keeper.lose("a decision failed")
            raise

    def _carry_out(self, decision: Decision, *, is_divisible: bool = False) -> None:
        self._keeper.append(decision.rows, is_divisible=is_divisible)
        self._alarm.set(decision.wake_at_ms)
        held: list[Answer] = []
        for answer in decision.answers:
            if answer.after_commit:
                held.append(answer)
            else:
                self._answer(answer.ticket, answer.reply)
        if held:
            self._held.update(answer.ticket for answer in held)
            self._keeper.when_committed(lambda is_committed: self._release(held, is_committed))

    def _release(self, held: Sequence[Answer], is_committed: bool) -> None:
        for answer in held:
            self._held.discard(answer.ticket)
            if is_committed:
                self._answer(answer.ticket, answer.reply)
            else:
                self._fail(answer.ticket)

    # ── Time ─────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Do what is due by the clock."""
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        self.note(lambda groups: groups.tick(now_ms=now_ms, wall_ms=wall_ms))


def elsewhere(failed: object) -> object:
    """The same answer, for a coordinator that is another node: clients look for it then."""
    if isinstance(failed, tuple):
        return (Code.NOT_COORDINATOR, *failed[1:])
    assert isinstance(failed, msgspec.Struct)
    return msgspec.structs.replace(failed, code=Code.NOT_COORDINATOR)
