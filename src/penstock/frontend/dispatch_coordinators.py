"""Calls out to the coordinators of groups and of transactions, and for producer ids: as in
``dispatch.py``.

A coordinator that hangs or has too much to do is answered for here, by the code that clients know
for it: they look for the coordinator and ask again. So these calls raise no more than those that
they stand for, and actions need not know. Numbers for producers come from the metadata.

Who joins a group waits there for the others, for as long as the slowest of them may take: that is
for the coordinator to end, and here only counted; likewise who asks for offsets of a coordinator
that is moving. At one that has just failed nobody begins to wait before it has answered a question:
the wait would be what everybody waits for."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from penstock.cursor.group.assignors import TopicPartition
from penstock.cursor.group.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    State,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import ConsumerHeartbeat, ConsumerReply
from penstock.cursor.group.decision import Reply
from penstock.cursor.group.describe import Description, Listing
from penstock.cursor.group.offsets import CommitReply, CommitRequest, FetchReply
from penstock.cursor.group.settings import GroupSettings, ShareSettings
from penstock.cursor.group.share import ShareHeartbeat, ShareReply
from penstock.cursor.group.sight import Sight
from penstock.cursor.group.streams_requests import StreamsHeartbeat, StreamsReply
from penstock.cursor.transactions import TopicPartition as Place
from penstock.cursor.transactions import TxnReply, TxnValue
from penstock.frontend.bulkhead import Bulkhead
from penstock.frontend.kafka.context import ProducerIds
from penstock.frontend.kafka.group_calls import GroupCalls
from penstock.frontend.kafka.transaction_calls import TransactionCalls
from penstock.model.errors import Overloaded
from penstock.model.tenancy import split_scoped

T = TypeVar("T")

REBALANCE_MS_MAX: Final = GroupSettings().rebalance_ms_max
FETCH_MS_MAX: Final = GroupSettings().fetch_ms_max
_AWAY: Final = Code.COORDINATOR_NOT_AVAILABLE
CALLS: Final = "calls to a coordinator under way"
_WHY: Final = "The coordinator does not answer in time."


class _Behind:
    """A bulkhead, and an answer where there is none."""

    __slots__ = ("_bulkhead",)

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead

    async def _ask(self, scoped_id: str, failed: T, work: Callable[[], Awaitable[T]]) -> T:
        """``scoped_id``: of the group or transaction, which tells whose call it is."""
        try:
            with self._holding(scoped_id):
                return await self._bulkhead.call(work)
        except Overloaded:
            return failed

    async def _look(self, scoped_id: str, failed: T, work: Callable[[], Awaitable[T]]) -> T:
        """For what changes nothing."""
        try:
            with self._holding(scoped_id):
                return await self._bulkhead.read(work)
        except Overloaded:
            return failed

    def _holding(self, scoped_id: str) -> AbstractContextManager[None]:
        shares = self._bulkhead.shares
        account, _ = split_scoped(scoped_id, own_account=shares.own_account or "")
        return shares.holding(account, CALLS)


class DispatchedGroups(_Behind):
    """Implements ``GroupCalls`` over those of one node."""

    __slots__ = ("_calls",)

    def __init__(self, calls: GroupCalls, bulkhead: Bulkhead) -> None:
        super().__init__(bulkhead)
        self._calls = calls

    async def _wait(
        self,
        group_id: str,
        failed: T,
        work: Callable[[], Awaitable[T]],
        *,
        wait_ms: int = REBALANCE_MS_MAX,
    ) -> T:
        bulkhead = self._bulkhead
        try:
            if bulkhead.is_suspect():
                await bulkhead.read(lambda: self._calls.describe(group_id))
            place = bulkhead.park(wait_ms)
            try:
                answer = await work()
            except BaseException as error:
                bulkhead.failed(place, error)
                raise
            bulkhead.left(place)
        except Overloaded:
            return failed
        return answer

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        return await self._wait(
            group_id, JoinReply(_AWAY), lambda: self._calls.join(group_id, request)
        )

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        return await self._wait(
            group_id, SyncReply(_AWAY), lambda: self._calls.sync(group_id, request)
        )

    async def heartbeat(
        self, group_id: str, *, member_id: str, generation: int, instance_id: str | None
    ) -> Reply:
        return await self._ask(
            group_id,
            Reply(_AWAY),
            lambda: self._calls.heartbeat(
                group_id, member_id=member_id, generation=generation, instance_id=instance_id
            ),
        )

    async def leave(self, group_id: str, leavers: Sequence[tuple[str, str | None]]) -> LeaveReply:
        return await self._ask(
            group_id, LeaveReply(_AWAY), lambda: self._calls.leave(group_id, leavers)
        )

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, *, sight: Sight | None = None
    ) -> ConsumerReply:
        return await self._ask(
            group_id,
            ConsumerReply(_AWAY, _WHY),
            lambda: self._calls.consumer_heartbeat(group_id, request, sight=sight),
        )

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareReply:
        return await self._ask(
            group_id,
            ShareReply(_AWAY, _WHY),
            lambda: self._calls.share_heartbeat(group_id, request),
        )

    async def streams_heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsReply:
        failed = StreamsReply(_AWAY, _WHY, request.member_epoch)
        return await self._ask(
            group_id, failed, lambda: self._calls.streams_heartbeat(group_id, request)
        )

    async def make_share_group(self, group_id: str) -> Reply:
        return await self._ask(
            group_id, Reply(_AWAY), lambda: self._calls.make_share_group(group_id)
        )

    def share_settings(self, group_id: str) -> ShareSettings:
        return self._calls.share_settings(group_id)  # from memory: waits for nothing

    @property
    def has_stored_configs(self) -> bool:
        return self._calls.has_stored_configs

    async def configs(self, group_id: str) -> tuple[Code, Mapping[str, str]]:
        return await self._look(group_id, (_AWAY, {}), lambda: self._calls.configs(group_id))

    async def change_configs(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        return await self._ask(
            group_id, Reply(_AWAY), lambda: self._calls.change_configs(group_id, changes)
        )

    async def commit(self, group_id: str, request: CommitRequest) -> CommitReply:
        return await self._ask(
            group_id, CommitReply(_AWAY), lambda: self._calls.commit(group_id, request)
        )

    async def commit_in_transaction(
        self, group_id: str, request: CommitRequest, *, producer_id: int, producer_epoch: int
    ) -> CommitReply:
        return await self._ask(
            group_id,
            CommitReply(_AWAY),
            lambda: self._calls.commit_in_transaction(
                group_id, request, producer_id=producer_id, producer_epoch=producer_epoch
            ),
        )

    async def complete_transaction(
        self, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply:
        return await self._ask(
            group_id,
            Reply(_AWAY),
            lambda: self._calls.complete_transaction(
                group_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=is_commit,
            ),
        )

    async def fetch(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        *,
        requires_stable: bool,
        member_id: str | None,
        member_epoch: int,
    ) -> FetchReply:
        return await self._wait(
            group_id,
            FetchReply(_AWAY),
            lambda: self._calls.fetch(
                group_id,
                partitions,
                requires_stable=requires_stable,
                member_id=member_id,
                member_epoch=member_epoch,
            ),
            wait_ms=FETCH_MS_MAX,
        )

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, str, int]]
    ) -> CommitReply:
        return await self._ask(
            group_id, CommitReply(_AWAY), lambda: self._calls.delete_offsets(group_id, partitions)
        )

    async def list_groups(
        self, *, states: Collection[str], kinds: Collection[str]
    ) -> tuple[Code, Sequence[Listing]]:
        return await self._look(
            "", (_AWAY, ()), lambda: self._calls.list_groups(states=states, kinds=kinds)
        )

    async def describe(self, group_id: str) -> Description:
        return await self._look(
            group_id,
            Description(_AWAY, group_id, state=State.DEAD),
            lambda: self._calls.describe(group_id),
        )

    async def delete_group(self, group_id: str) -> Reply:
        return await self._ask(group_id, Reply(_AWAY), lambda: self._calls.delete_group(group_id))


class DispatchedTransactions(_Behind):
    """Implements ``TransactionCalls`` over those of one node."""

    __slots__ = ("_calls",)

    def __init__(self, calls: TransactionCalls, bulkhead: Bulkhead) -> None:
        super().__init__(bulkhead)
        self._calls = calls

    async def init(
        self, transactional_id: str, *, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> TxnReply:
        return await self._ask(
            transactional_id,
            TxnReply(_AWAY),
            lambda: self._calls.init(
                transactional_id,
                timeout_ms=timeout_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            ),
        )

    async def add(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Place],
    ) -> Code:
        return await self._ask(
            transactional_id,
            _AWAY,
            lambda: self._calls.add(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=partitions,
            ),
        )

    async def add_group(
        self, transactional_id: str, *, producer_id: int, producer_epoch: int, group_id: str
    ) -> Code:
        return await self._ask(
            transactional_id,
            _AWAY,
            lambda: self._calls.add_group(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group_id,
            ),
        )

    async def verify(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: Place,
    ) -> Code:
        # Behind the callee's answer there is no await, so what it says holds for who asked here.
        return await self._look(
            transactional_id,
            _AWAY,
            lambda: self._calls.verify(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partition=partition,
            ),
        )

    async def commit_offsets(
        self,
        transactional_id: str,
        group_id: str,
        request: CommitRequest,
        *,
        producer_id: int,
        producer_epoch: int,
        adds_group: bool,
    ) -> CommitReply:
        return await self._ask(
            transactional_id,
            CommitReply(_AWAY),
            lambda: self._calls.commit_offsets(
                transactional_id,
                group_id,
                request,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                adds_group=adds_group,
            ),
        )

    async def end(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        raises_epoch: bool,
    ) -> TxnReply:
        return await self._ask(
            transactional_id,
            TxnReply(_AWAY),
            lambda: self._calls.end(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=is_commit,
                raises_epoch=raises_epoch,
            ),
        )

    async def describe(self, transactional_id: str) -> tuple[Code, TxnValue | None]:
        return await self._look(
            transactional_id, (_AWAY, None), lambda: self._calls.describe(transactional_id)
        )

    async def all_ids(self) -> tuple[Code, dict[str, TxnValue]]:
        return await self._look("", (_AWAY, {}), lambda: self._calls.all_ids())


class DispatchedProducerIds:
    """Implements ``ProducerIds`` over another one."""

    __slots__ = ("_bulkhead", "_ids")

    def __init__(self, ids: ProducerIds, bulkhead: Bulkhead) -> None:
        self._ids = ids
        self._bulkhead = bulkhead

    async def next_id(self) -> int:
        """Raises Overloaded."""
        return await self._bulkhead.call(self._ids.next_id)
