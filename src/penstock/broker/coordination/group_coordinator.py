"""The coordinator of the groups in one partition of ``__groups``. ``cursor.groups`` makes the
decisions; this class keeps the waiting requests, sends their replies and runs the timers.

Each waiting request has a number, its ticket, because one decision may reply to several requests.
Some replies are held until all earlier decisions are committed in the log. If an append fails, all
waiting requests fail and clients retry."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from penstock.broker.context.timers import cancel_all
from penstock.broker.coordination.host import CoordinatorHost, CoordinatorRuntime
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.groups.decision import Decision, Reply, TicketReply
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.rows import Row
from penstock.cursor.tenants import CoordinatorUsage
from penstock.metadata.topics.resource_configs import GROUP, Configs, Resource, ResourceConfigs
from penstock.model.errors import InvalidRequest, PenstockError, QuotaExceeded
from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.model.limits import RESOURCE_CONFIGS_MAX
from penstock.model.names import split_scoped
from penstock.model.quotas import GROUP_CONFIGS
from penstock.wire.kafka.faults import ErrorCode


@dataclass
class GroupConfigs:
    """Group configs in the metadata store. Clusters below feature level 3 keep them in the
    coordinator's log; the coordinator moves them to the store when the level is raised."""

    configs: ResourceConfigs
    usage: CoordinatorUsage
    level: Callable[[], int]  # the feature level in force

    @property
    def is_in_force(self) -> bool:
        return self.level() >= GROUP_CONFIGS_STORED

    def of(self, group_id: str) -> Configs:
        return self.configs.get(self._resource(group_id))

    async def change(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        """Change validated configs of a group. None resets a config to its default."""
        resource = self._resource(group_id)
        is_new = any(text is not None for text in changes.values()) and not self.of(group_id)
        if is_new and not self._has_room(resource.account):
            return Reply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        try:
            await self.configs.change(resource, changes)
        except QuotaExceeded:
            return Reply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        except InvalidRequest:
            return Reply(ErrorCode.INVALID_GROUP_ID)
        except PenstockError:
            return Reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Reply()

    async def take_over(self, group_id: str, configs: Configs) -> None:
        """Copy a group's configs from the log to the store, but do not overwrite stored configs."""
        await self.configs.add_missing(self._resource(group_id), configs)

    def _has_room(self, account: str) -> bool:
        most = self.usage.most(account, GROUP_CONFIGS, RESOURCE_CONFIGS_MAX)
        if len(self.configs.names(account, GROUP)) < most:
            return True
        self.usage.note_refused(account, GROUP_CONFIGS)
        return False

    def _resource(self, group_id: str) -> Resource:
        account, name = split_scoped(group_id, own_account=self.usage.own_account)
        return Resource(account, GROUP, name)


log_ = logging.getLogger(__name__)

MOVE_RETRY_SECONDS = 1.0  # before the metadata store is called again
FORGOTTEN_MAX = 10_000  # above this, offsets of deleted topics are kept until they expire

ReplyT = TypeVar("ReplyT")
Decide = Callable[[Groups, Decision], None]


class GroupCoordinator(CoordinatorRuntime):
    def __init__(
        self,
        host: CoordinatorHost[Any],
        partition: int,
        settings: GroupSettings,
        configs: GroupConfigs | None,
    ) -> None:
        super().__init__(host, partition)
        self._configs = configs
        self._move: asyncio.Task[None] | None = None  # moves configs to the store
        self._settings = settings
        self._groups = Groups(settings)  # valid while ``ready``
        self._forgotten: set[str] = set()  # deleted topics for which the log may still have offsets
        # Requests in progress, by ticket: the future of the reply, and the reply on failure.
        self._waiters: dict[int, tuple[asyncio.Future[Any], object]] = {}
        self._ticket = 0
        self._held: set[int] = set()  # tickets whose reply waits until the log is committed

    def end_waits(self) -> None:
        """Fail the requests that wait for other members, but not those that wait for the log."""
        for ticket in self._waiters:
            if ticket not in self._held:
                self._fail(ticket)

    async def stop(self) -> None:
        await cancel_all((self._move,))
        await super().stop()
        self._fail_all()

    def reset(self) -> None:
        stored = None if self._configs is None else self._configs.of
        self._groups = Groups(self._settings, self._usage.start(self._label), stored=stored)

    def replay(self, row: Row) -> None:
        self._groups.replay(row.key, row.value, now_ms=self._clock.mono_ms())

    def loaded(self) -> None:
        self._carry_out(self._decide(Groups.loaded))
        if self._forgotten:
            self._forget(frozenset(self._forgotten))
        self.move_configs()

    def lost(self) -> None:
        self._usage.drop(self._label)
        self._alarm.clear()
        self._fail_all()

    def move_configs(self) -> None:
        """Start moving configs from the log to the store, if the feature level allows it."""
        if self._configs is None or not self._configs.is_in_force or self._move is not None:
            return
        if self.ready() and self._groups.configs_rows():
            groups = self._groups
            self._move = self._loop.create_task(
                self._move_all(self._configs, groups), name=f"move configs {self._label}"
            )
            self._move.add_done_callback(lambda _: self._move_ended(groups))

    async def configs_moved(self) -> None:
        if self._move is not None:
            await asyncio.wait((self._move,))

    def _move_ended(self, groups: Groups) -> None:
        self._move = None
        if self._groups is not groups:
            self.move_configs()  # the log was read again in the meantime

    async def _move_all(self, configs: GroupConfigs, groups: Groups) -> None:
        """Copy the configs in the log to the store, then delete them from the log. After a crash,
        the configs that are still in the log are moved again."""
        # A former leader may have outdated rows. It cannot commit, so it stops here.
        self.note(Groups.repeat_configs, is_divisible=True)
        if not await self.committed():
            return
        moved = []
        for group_id, row in groups.configs_rows().items():
            try:
                await self._store_configs(configs, group_id, row)
            except InvalidRequest as error:
                fields = {"group": group_id, "reason": str(error)}
                log_.error("group configs not moved to the metadata store", extra=fields)
            else:
                moved.append(group_id)
        if self._groups is groups:
            self.note(lambda now, decision: now.drop_configs(moved, decision), is_divisible=True)
            done: dict[str, object] = {"coordinator": self._label, "groups": len(moved)}
            log_.info("group configs moved to the metadata store", extra=done)

    async def _store_configs(self, configs: GroupConfigs, group_id: str, row: Configs) -> None:
        while True:
            try:
                return await configs.take_over(group_id, row)
            except InvalidRequest:
                raise
            except PenstockError as error:
                fields = {"coordinator": self._label, "reason": str(error)}
                log_.warning("group configs not moved yet, retrying", extra=fields)
            await asyncio.sleep(MOVE_RETRY_SECONDS)

    async def request(self, failed: ReplyT, decide: Decide) -> ReplyT:
        if not self.ready():
            return self._unready(failed)
        self._ticket += 1
        ticket = self._ticket
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiters[ticket] = (future, failed)
        try:
            self._carry_out(self._decide(decide, ticket))
            return cast(ReplyT, await future)
        finally:
            del self._waiters[ticket]

    def peek(self, unready: ReplyT, read: Callable[[Groups], ReplyT]) -> ReplyT:
        return read(self._groups) if self.ready() else unready

    async def read(self, failed: ReplyT, read: Callable[[Groups], ReplyT]) -> ReplyT:
        if not self.ready():
            return self._unready(failed)
        found = read(self._groups)
        return found if await self.committed() else self._unready(failed)

    def _unready(self, failed: ReplyT) -> ReplyT:
        """Return the reply ``failed``, with NOT_COORDINATOR if another node is the coordinator."""
        if not self.is_standing_by:
            return failed
        if isinstance(failed, tuple):
            return cast(ReplyT, (ErrorCode.NOT_COORDINATOR, *failed[1:]))
        assert isinstance(failed, msgspec.Struct)
        return msgspec.structs.replace(failed, code=ErrorCode.NOT_COORDINATOR)

    def note(self, decide: Decide, *, is_divisible: bool = False) -> None:
        """Call ``decide`` and carry out its decision in the background. Errors are only logged."""
        if not self.ready():
            return
        try:
            decision = self._decide(decide)
        except Exception:
            log_.exception("consumer group state update failed", extra={"coordinator": self._label})
        else:
            self._carry_out(decision, is_divisible=is_divisible)

    def forget_topic(self, topic_id: str) -> None:
        if len(self._forgotten) < FORGOTTEN_MAX:
            self._forgotten.add(topic_id)
        self._forget(frozenset((topic_id,)))

    def _forget(self, topic_ids: frozenset[str]) -> None:
        """Delete the offsets that groups committed for deleted topics."""
        self.note(lambda now, decision: now.forget_topics(topic_ids, decision), is_divisible=True)
        self.when_committed(
            lambda is_done: self._forgotten.difference_update(topic_ids) if is_done else None
        )

    def _fail_all(self) -> None:
        for ticket in self._waiters:
            self._fail(ticket)

    def _fail(self, ticket: int) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None:
            self._reply(ticket, self._unready(waiter[1]))

    def _reply(self, ticket: int, reply: object) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(reply)

    def _decide(self, decide: Decide, ticket: int | None = None) -> Decision:
        clock = self._clock
        decision = Decision(ticket, now_ms=clock.mono_ms(), wall_ms=clock.wall_ms())
        try:
            decide(self._groups, decision)
            return decision
        except BaseException:
            self.lose("a group decision raised an exception")  # memory may be inconsistent
            raise

    def _carry_out(self, decision: Decision, *, is_divisible: bool = False) -> None:
        self.append(decision.rows, is_divisible=is_divisible)
        self._alarm.set(self._groups.next_wake_ms())
        held = [each for each in decision.replies if each.after_commit]
        for each in decision.replies:
            if not each.after_commit:
                self._reply(each.ticket, each.reply)
        if held:
            self._held.update(each.ticket for each in held)
            self.when_committed(lambda is_committed: self._release(held, is_committed))

    def _release(self, held: Sequence[TicketReply], is_committed: bool) -> None:
        for each in held:
            self._held.discard(each.ticket)
            if is_committed:
                self._reply(each.ticket, each.reply)
            else:
                self._fail(each.ticket)

    def tick(self) -> None:
        self.note(Groups.tick)
