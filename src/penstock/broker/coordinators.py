"""Coordinators of groups and of transactions on other nodes, as those of this node ask them, and
those of this node as the others do."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Reply
from penstock.cursor.transactions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.wire.internal.calls import Answers, Asked, Call, Caller, Q
from penstock.wire.internal.coordinator_calls import (
    GROUP_COMPLETE,
    TRANSACTION_ADD,
    CodeTold,
    GroupComplete,
    TransactionAdd,
)

CALL_MS = 5_000


class GroupCompletions(Protocol):
    async def complete_transaction(
        self, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply: ...


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
    ) -> None:
        """``leader``: who leads the partition of an internal topic that a key belongs to."""
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
        return Reply(await self._ask(node, GROUP_COMPLETE, request))

    async def add(self, node: int, request: TransactionAdd) -> Code:
        return await self._ask(node, TRANSACTION_ADD, request)

    async def _ask(self, node: int, call: Call[Q, CodeTold], request: Q) -> Code:
        try:
            told = await self._caller(node).call(call, request, timeout_ms=CALL_MS)
        except PenstockError:
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code(told.code)


def register(
    answers: Answers, *, groups: GroupCompletions, transactions: TransactionMembers
) -> None:
    """Answer other nodes for what is coordinated here."""

    async def complete(request: GroupComplete, _asked: Asked) -> CodeTold:
        reply = await groups.complete_transaction(
            request.group_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            is_commit=request.is_commit,
        )
        return CodeTold(int(reply.code))

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
    answers.add(TRANSACTION_ADD, add)
