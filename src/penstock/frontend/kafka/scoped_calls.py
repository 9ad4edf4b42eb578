"""Groups and transactions as one account sees them: its own, by the ids it gave them.

The coordinators keep those of all accounts under ids with the account inside
(``model/tenancy.py``). It is put on here and taken off here, and nowhere else in this package: an
action that asks these calls cannot reach what is not its caller's, whatever id it is given.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from penstock.cursor.group.assignors import TopicPartition
from penstock.cursor.group.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import ConsumerHeartbeat, ConsumerReply
from penstock.cursor.group.decision import Reply
from penstock.cursor.group.describe import Description, Listing
from penstock.cursor.group.offsets import CommitReply, CommitRequest, FetchReply
from penstock.cursor.group.settings import ShareSettings
from penstock.cursor.group.share import ShareHeartbeat, ShareReply
from penstock.cursor.group.sight import Sight
from penstock.cursor.group.streams_requests import StreamsHeartbeat, StreamsReply
from penstock.cursor.transactions import TopicPartition as Place
from penstock.cursor.transactions import TxnReply, TxnValue
from penstock.frontend.kafka.group_calls import GroupCalls
from penstock.frontend.kafka.transaction_calls import TransactionCalls
from penstock.model.tenancy import scoped_id, split_scoped


class _Scope:
    __slots__ = ("_account", "_own_account")

    def __init__(self, account: str, own_account: str) -> None:
        self._account = account
        self._own_account = own_account

    def _in(self, plain_id: str) -> str:
        return scoped_id(self._account, plain_id, own_account=self._own_account)

    def _out(self, scoped: str) -> str | None:
        """None: it is somebody else's."""
        account, plain_id = split_scoped(scoped, own_account=self._own_account)
        return plain_id if account == self._account else None


class ScopedGroups(_Scope):
    """Implements ``GroupCalls`` over those of the node. No coordinator is asked about members of a
    group without an id: every node rejects them."""

    __slots__ = ("_calls",)

    def __init__(self, calls: GroupCalls, *, account: str, own_account: str) -> None:
        super().__init__(account, own_account)
        self._calls = calls

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        if not group_id:
            return JoinReply(Code.INVALID_GROUP_ID)
        return await self._calls.join(self._in(group_id), request)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        if not group_id:
            return SyncReply(Code.INVALID_GROUP_ID)
        return await self._calls.sync(self._in(group_id), request)

    async def heartbeat(
        self, group_id: str, *, member_id: str, generation: int, instance_id: str | None
    ) -> Reply:
        if not group_id:
            return Reply(Code.INVALID_GROUP_ID)
        return await self._calls.heartbeat(
            self._in(group_id), member_id=member_id, generation=generation, instance_id=instance_id
        )

    async def leave(self, group_id: str, leavers: Sequence[tuple[str, str | None]]) -> LeaveReply:
        if not group_id:
            return LeaveReply(Code.INVALID_GROUP_ID)
        return await self._calls.leave(self._in(group_id), leavers)

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, *, sight: Sight | None = None
    ) -> ConsumerReply:
        return await self._calls.consumer_heartbeat(self._in(group_id), request, sight=sight)

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareReply:
        return await self._calls.share_heartbeat(self._in(group_id), request)

    async def streams_heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsReply:
        return await self._calls.streams_heartbeat(self._in(group_id), request)

    async def make_share_group(self, group_id: str) -> Reply:
        return await self._calls.make_share_group(self._in(group_id))

    def share_settings(self, group_id: str) -> ShareSettings:
        return self._calls.share_settings(self._in(group_id))

    @property
    def has_stored_configs(self) -> bool:
        return self._calls.has_stored_configs

    async def configs(self, group_id: str) -> tuple[Code, Mapping[str, str]]:
        return await self._calls.configs(self._in(group_id))

    async def change_configs(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        return await self._calls.change_configs(self._in(group_id), changes)

    async def commit(self, group_id: str, request: CommitRequest) -> CommitReply:
        return await self._calls.commit(self._in(group_id), request)

    async def commit_in_transaction(
        self, group_id: str, request: CommitRequest, *, producer_id: int, producer_epoch: int
    ) -> CommitReply:
        return await self._calls.commit_in_transaction(
            self._in(group_id), request, producer_id=producer_id, producer_epoch=producer_epoch
        )

    async def complete_transaction(
        self, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply:
        return await self._calls.complete_transaction(
            self._in(group_id),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_commit=is_commit,
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
        return await self._calls.fetch(
            self._in(group_id),
            partitions,
            requires_stable=requires_stable,
            member_id=member_id,
            member_epoch=member_epoch,
        )

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, str, int]]
    ) -> CommitReply:
        return await self._calls.delete_offsets(self._in(group_id), partitions)

    async def list_groups(
        self, *, states: Collection[str], kinds: Collection[str]
    ) -> tuple[Code, Sequence[Listing]]:
        code, found = await self._calls.list_groups(states=states, kinds=kinds)
        own = []
        for each in found:
            plain_id = self._out(each.group_id)
            if plain_id is not None:
                own.append(msgspec.structs.replace(each, group_id=plain_id))
        return code, own

    async def describe(self, group_id: str) -> Description:
        found = await self._calls.describe(self._in(group_id))
        return msgspec.structs.replace(found, group_id=group_id)

    async def delete_group(self, group_id: str) -> Reply:
        return await self._calls.delete_group(self._in(group_id))


class ScopedTransactions(_Scope):
    """Implements ``TransactionCalls`` over those of the node. Every node rejects transactions
    without an id."""

    __slots__ = ("_calls",)

    def __init__(self, calls: TransactionCalls, *, account: str, own_account: str) -> None:
        super().__init__(account, own_account)
        self._calls = calls

    async def init(
        self, transactional_id: str, *, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> TxnReply:
        if not transactional_id:
            return TxnReply(Code.INVALID_REQUEST)
        return await self._calls.init(
            self._in(transactional_id),
            timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    async def add(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Place],
    ) -> Code:
        if not transactional_id:
            return Code.INVALID_REQUEST
        return await self._calls.add(
            self._in(transactional_id),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions,
        )

    async def add_group(
        self, transactional_id: str, *, producer_id: int, producer_epoch: int, group_id: str
    ) -> Code:
        if not transactional_id:
            return Code.INVALID_REQUEST
        return await self._calls.add_group(
            self._in(transactional_id),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            group_id=self._in(group_id),
        )

    async def verify(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: Place,
    ) -> Code:
        return await self._calls.verify(
            self._in(transactional_id),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition=partition,
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
        return await self._calls.commit_offsets(
            self._in(transactional_id),
            self._in(group_id),
            request,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            adds_group=adds_group,
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
        if not transactional_id:
            return TxnReply(Code.INVALID_REQUEST)
        return await self._calls.end(
            self._in(transactional_id),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_commit=is_commit,
            raises_epoch=raises_epoch,
        )

    async def describe(self, transactional_id: str) -> tuple[Code, TxnValue | None]:
        return await self._calls.describe(self._in(transactional_id))

    async def all_ids(self) -> tuple[Code, dict[str, TxnValue]]:
        code, found = await self._calls.all_ids()
        own = {}
        for scoped, txn in found.items():
            plain_id = self._out(scoped)
            if plain_id is not None:
                own[plain_id] = txn
        return code, own
