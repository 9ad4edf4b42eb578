"""Coordinators of groups and of transactions on other nodes, as those of this node ask them, and
those of this node as the others do."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Reply
from penstock.cursor.group.offsets import FetchReply
from penstock.cursor.transactions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.wire.internal.calls import Answers, Asked, Call, Caller, Q, R
from penstock.wire.internal.coordinator_calls import (
    GROUP_COMPLETE,
    GROUP_FETCH,
    TRANSACTION_ADD,
    CodeTold,
    GroupComplete,
    GroupFetch,
    GroupFetched,
    TransactionAdd,
)

CALL_MS = 5_000


class GroupsHere(Protocol):
    async def complete_transaction(
        self, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply: ...

    async def fetch_here(self, asked: GroupFetch) -> FetchReply:
        """Waits for what is still being read."""
        ...


class TransactionMembers(Protocol):
    async def add(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Code: ...

    async def verify(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> Code: ...


class OtherCoordinators:
    def __init__(
        self,
        *,
        own_node: int,
        leader: Callable[[str, str], int | None],
        caller: Callable[[int], Caller],
        wait_changed: Callable[[float], Awaitable[None]],
    ) -> None:
        """``leader``: who leads the partition of an internal topic that a key belongs to.
        ``wait_changed``: returns when that may be another than before, or after so many seconds."""
        self.wait_changed = wait_changed
        self._own = own_node
        self._leader = leader
        self._caller = caller

    def elsewhere(self, topic: str, key: str) -> int | None:
        """The node that coordinates it, if that is another one."""
        node = self._leader(topic, key)
        return None if node is None or node == self._own else node

    async def complete_transaction(
        self, node: int, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply:
        request = GroupComplete(group_id, producer_id, producer_epoch, is_commit)
        return Reply(await self._code(node, GROUP_COMPLETE, request))

    async def fetch(self, node: int, request: GroupFetch) -> FetchReply:
        told = await self._ask(node, GROUP_FETCH, request)
        if told is None:
            return FetchReply(Code.COORDINATOR_NOT_AVAILABLE)
        return msgspec.convert(told, FetchReply, from_attributes=True)

    async def add(self, node: int, request: TransactionAdd) -> Code:
        return await self._code(node, TRANSACTION_ADD, request)

    async def _code(self, node: int, call: Call[Q, CodeTold], request: Q) -> Code:
        told = await self._ask(node, call, request)
        return Code.COORDINATOR_NOT_AVAILABLE if told is None else Code(told.code)

    async def _ask(self, node: int, call: Call[Q, R], request: Q) -> R | None:
        try:
            return await self._caller(node).call(call, request, timeout_ms=CALL_MS)
        except PenstockError:
            return None


def register(answers: Answers, *, groups: GroupsHere, transactions: TransactionMembers) -> None:
    """Answer other nodes for what is coordinated here."""

    async def complete(request: GroupComplete, _asked: Asked) -> CodeTold:
        reply = await groups.complete_transaction(
            request.group_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            is_commit=request.is_commit,
        )
        return CodeTold(int(reply.code))

    async def fetch(request: GroupFetch, _asked: Asked) -> GroupFetched:
        reply = await groups.fetch_here(request)
        return msgspec.convert(reply, GroupFetched, from_attributes=True)

    async def add(request: TransactionAdd, _asked: Asked) -> CodeTold:
        if request.is_check:
            code = await transactions.verify(
                request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                partition=request.partitions[0],
            )
        else:
            code = await transactions.add(
                request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                partitions=request.partitions,
            )
        return CodeTold(int(code))

    answers.add(GROUP_COMPLETE, complete)
    answers.add(GROUP_FETCH, fetch)
    answers.add(TRANSACTION_ADD, add)
