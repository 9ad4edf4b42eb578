"""Wrappers around the coordinators of groups and transactions.

Coordinators store the groups and transactions of all accounts under ids that contain the account
(``model/names.py``). Only ``ScopedCoordinators`` adds and removes the account, so a handler cannot
reach groups of another account, whatever id it gets.

``GuardedCoordinators`` limits calls with a bulkhead. If a coordinator hangs or is overloaded, no
call raises, but the reply has an error code that makes clients look up the coordinator again and
retry. Calls that wait at the coordinator, for example for other members of a group, have no timeout
here. After a failure, such calls are rejected until a short call has succeeded."""

from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.calls.bulkhead import Bulkhead
from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinator_calls import CoordinatorCall, R
from penstock.cursor.groups.settings import GroupSettings, ShareSettings
from penstock.model.errors import Overloaded
from penstock.model.names import scoped_id, split_scoped
from penstock.wire.kafka.faults import ErrorCode

UNDER_WAY: Final = "calls to a coordinator under way"
_IDS: Final = frozenset(("group_id", "transactional_id"))  # fields with ids that contain an account


class Rule(NamedTuple):
    is_read: bool = False  # a call that only reads may be retried once
    wait_ms: int = 0  # longest wait of the call at the coordinator
    without_id: ErrorCode | None = None  # error code for an empty id


_READ: Final = Rule(is_read=True)
_CHANGE: Final = Rule()
_PRODUCER: Final = Rule(without_id=ErrorCode.INVALID_REQUEST)
_MEMBER: Final = Rule(without_id=ErrorCode.INVALID_GROUP_ID)
_JOIN: Final = Rule(wait_ms=GroupSettings().rebalance_ms_max, without_id=ErrorCode.INVALID_GROUP_ID)

RULES: Final[dict[type[CoordinatorCall[Any]], Rule]] = {
    **dict.fromkeys((calls.Join, calls.Sync), _JOIN),
    **dict.fromkeys((calls.Heartbeat, calls.Leave), _MEMBER),
    **dict.fromkeys((calls.BeatConsumer, calls.BeatShare, calls.BeatStreams), _CHANGE),
    **dict.fromkeys((calls.MakeShareGroup, calls.ChangeConfigs, calls.DeleteGroup), _CHANGE),
    **dict.fromkeys((calls.Commit, calls.CommitInTransaction, calls.CommitOffsets), _CHANGE),
    **dict.fromkeys((calls.CompleteTransaction, calls.DeleteOffsets), _CHANGE),
    **dict.fromkeys((calls.ReadConfigs, calls.ListGroups, calls.DescribeGroup), _READ),
    **dict.fromkeys((calls.DescribeTransaction, calls.ListTransactions), _READ),
    # The caller uses the reply before any other task runs, so the reply is still true.
    calls.VerifyPartition: _READ,
    calls.FetchOffsets: Rule(wait_ms=GroupSettings().fetch_ms_max),
    **dict.fromkeys((calls.InitProducer, calls.EndTransaction), _PRODUCER),
    **dict.fromkeys((calls.AddPartitions, calls.AddGroup), _PRODUCER),
}


def _id_of(call: CoordinatorCall[Any]) -> str:
    if isinstance(call, calls.TransactionCall):
        return call.transactional_id
    return call.group_id if isinstance(call, calls.GroupCall) else ""


class GuardedCoordinators:
    def __init__(self, coordinators: calls.Coordinators, bulkhead: Bulkhead) -> None:
        self._coordinators = coordinators
        self._bulkhead = bulkhead

    async def call(self, call: CoordinatorCall[R]) -> R:
        rule, bulkhead = RULES[type(call)], self._bulkhead
        try:
            if rule.wait_ms:
                return await self._wait(call, rule.wait_ms)
            account, _ = split_scoped(_id_of(call), own_account=bulkhead.shares.own_account or "")
            with bulkhead.shares.holding(account, UNDER_WAY):
                make = bulkhead.read if rule.is_read else bulkhead.call
                return await make(lambda: self._coordinators.call(call))
        except Overloaded:
            return calls.failed(call, calls.UNAVAILABLE)

    async def _wait(self, call: CoordinatorCall[R], wait_ms: int) -> R:
        bulkhead = self._bulkhead
        if bulkhead.is_suspect():
            question = calls.DescribeGroup(_id_of(call))
            await bulkhead.read(lambda: self._coordinators.call(question))
        place = bulkhead.park(wait_ms)
        try:
            reply = await self._coordinators.call(call)
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return reply


class GuardedGroups(GuardedCoordinators):
    def __init__(self, groups: calls.GroupCoordinators, bulkhead: Bulkhead) -> None:
        super().__init__(groups, bulkhead)
        self._groups = groups
        self.share_settings = groups.share_settings  # reads from memory

    @property
    def has_stored_configs(self) -> bool:
        return self._groups.has_stored_configs


class ScopedCoordinators:
    def __init__(self, coordinators: calls.Coordinators, *, account: str, own_account: str) -> None:
        self._coordinators = coordinators
        self._account = account
        self._own_account = own_account

    def call(self, call: CoordinatorCall[R]) -> Coroutine[Any, Any, R]:
        if isinstance(call, calls.DescribeGroup | calls.ListGroups | calls.ListTransactions):
            return self._looked(call)
        return self._made(call)

    async def _made(self, call: CoordinatorCall[R]) -> R:
        rule = RULES[type(call)]
        if rule.without_id is not None and not _id_of(call):
            return calls.failed(call, rule.without_id)
        return await self._coordinators.call(self._scoped(call))

    async def _looked(self, call: CoordinatorCall[Any]) -> Any:
        found = await self._coordinators.call(self._scoped(call))
        if isinstance(call, calls.DescribeGroup):
            return replace(found, group_id=call.group_id)
        code, listed = found
        if isinstance(call, calls.ListTransactions):
            ids = ((self._plain(scoped), value) for scoped, value in listed.items())
            return code, {plain: value for plain, value in ids if plain is not None}
        ids = ((self._plain(each.group_id), each) for each in listed)
        return code, [replace(each, group_id=plain) for plain, each in ids if plain is not None]

    def _scoped(self, call: CoordinatorCall[R]) -> CoordinatorCall[R]:
        ids = {
            name: self._in(getattr(call, name)) for name in call.__struct_fields__ if name in _IDS
        }
        return replace(call, **ids) if ids else call

    def _in(self, plain: str) -> str:
        return scoped_id(self._account, plain, own_account=self._own_account)

    def _plain(self, scoped: str) -> str | None:
        """Return the id without its account, or None if it belongs to another account."""
        account, plain = split_scoped(scoped, own_account=self._own_account)
        return plain if account == self._account else None


class ScopedGroups(ScopedCoordinators):
    def __init__(self, groups: calls.GroupCoordinators, *, account: str, own_account: str) -> None:
        super().__init__(groups, account=account, own_account=own_account)
        self._groups = groups

    def share_settings(self, group_id: str) -> ShareSettings:
        return self._groups.share_settings(self._in(group_id))

    @property
    def has_stored_configs(self) -> bool:
        return self._groups.has_stored_configs
