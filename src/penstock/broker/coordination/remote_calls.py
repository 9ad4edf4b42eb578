"""Calls between group and transaction coordinators on different nodes: client and handlers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.cursor.coordinator_calls import (
    UNAVAILABLE,
    AddPartitions,
    CompleteTransaction,
    Coordinators,
    FetchOffsets,
    VerifyPartition,
)
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.offsets import FetchReply
from penstock.model.call_times import COORDINATOR_CALL_MS
from penstock.model.errors import PenstockError
from penstock.wire.internal.calls import Call, Caller, CallerInfo, CallHandlers, Q, R
from penstock.wire.internal.node_calls import (
    GROUP_COMPLETE,
    GROUP_FETCH,
    TRANSACTION_ADD,
    CodeReply,
    GroupComplete,
    GroupFetch,
    GroupFetched,
    TransactionAdd,
)
from penstock.wire.kafka.faults import ErrorCode


class GroupsHere(Coordinators, Protocol):
    async def fetch_here(self, call: FetchOffsets, /) -> FetchReply: ...


@dataclass(kw_only=True)
class RemoteCoordinators:
    own_node: int
    leader: Callable[[str, str], int | None]  # node that coordinates a key of an internal topic
    caller: Callable[[int], Caller]
    # Returns when leaders may have changed, at the latest after the given seconds.
    wait_changed: Callable[[float], Awaitable[None]]

    def node_of(self, topic: str, key: str) -> int | None:
        """Return the other node that coordinates a group or transactional id, if known."""
        node = self.leader(topic, key)
        return None if node is None or node == self.own_node else node

    async def complete_transaction(self, node: int, call: CompleteTransaction) -> Reply:
        request = GroupComplete(*msgspec.structs.astuple(call))
        return Reply(await self._code(node, GROUP_COMPLETE, request))

    async def fetch(self, node: int, call: FetchOffsets) -> FetchReply:
        request = GroupFetch(*msgspec.structs.astuple(call))
        reply = await self._call(node, GROUP_FETCH, request)
        if reply is None:
            return FetchReply(UNAVAILABLE)
        return msgspec.convert(reply, FetchReply, from_attributes=True)

    async def add_partitions(self, node: int, call: AddPartitions | VerifyPartition) -> ErrorCode:
        is_check = isinstance(call, VerifyPartition)
        partitions = [call.partition] if isinstance(call, VerifyPartition) else call.partitions
        producer = (call.transactional_id, call.producer_id, call.producer_epoch)
        request = TransactionAdd(*producer, partitions, is_check)
        return await self._code(node, TRANSACTION_ADD, request)

    async def _code(self, node: int, call: Call[Q, CodeReply], request: Q) -> ErrorCode:
        reply = await self._call(node, call, request)
        return UNAVAILABLE if reply is None else ErrorCode(reply.code)

    async def _call(self, node: int, call: Call[Q, R], request: Q) -> R | None:
        try:
            return await self.caller(node).call(call, request, timeout_ms=COORDINATOR_CALL_MS)
        except PenstockError:
            return None


def register(handlers: CallHandlers, *, groups: GroupsHere, transactions: Coordinators) -> None:

    async def complete(request: GroupComplete, _caller: CallerInfo) -> CodeReply:
        reply = await groups.call(CompleteTransaction(*msgspec.structs.astuple(request)))
        return CodeReply(int(reply.code))

    async def fetch(request: GroupFetch, _caller: CallerInfo) -> GroupFetched:
        reply = await groups.fetch_here(FetchOffsets(*msgspec.structs.astuple(request)))
        return msgspec.convert(reply, GroupFetched, from_attributes=True)

    async def add(request: TransactionAdd, _caller: CallerInfo) -> CodeReply:
        producer = (request.transactional_id, request.producer_id, request.producer_epoch)
        if request.is_check:
            code = await transactions.call(VerifyPartition(*producer, request.partitions[0]))
        else:
            code = await transactions.call(AddPartitions(*producer, request.partitions))
        return CodeReply(int(code))

    handlers.add(GROUP_COMPLETE, complete)
    handlers.add(GROUP_FETCH, fetch)
    handlers.add(TRANSACTION_ADD, add)
