"""Client and handlers of calls between group and transaction coordinators of two nodes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.offsets import FetchReply
from penstock.model.call_times import COORDINATOR_CALL_MS
from penstock.model.errors import PenstockError
from penstock.wire.internal import node_calls
from penstock.wire.internal.calls import Call, Caller, CallerInfo, CallHandlers, Q, R
from penstock.wire.kafka.faults import ErrorCode


class GroupsHere(calls.Coordinators, Protocol):
    async def fetch_here(self, call: calls.FetchOffsets, /) -> FetchReply: ...


@dataclass(kw_only=True)
class RemoteCoordinators:
    own_node: int
    leader: Callable[[str, str], int | None]  # node that coordinates a key of an internal topic
    caller: Callable[[int], Caller]
    # Returns when leaders may have changed, at the latest after the given seconds.
    wait_changed: Callable[[float], Awaitable[None]]

    def node_of(self, topic: str, key: str) -> int | None:
        """Return the node that coordinates ``key``, or None if that is this node or not known."""
        node = self.leader(topic, key)
        return None if node is None or node == self.own_node else node

    async def complete_transaction(self, node: int, call: calls.CompleteTransaction) -> Reply:
        request = node_calls.GroupComplete(*msgspec.structs.astuple(call))
        return Reply(await self._code(node, node_calls.GROUP_COMPLETE, request))

    async def fetch(self, node: int, call: calls.FetchOffsets) -> FetchReply:
        request = node_calls.GroupFetch(*msgspec.structs.astuple(call))
        reply = await self._call(node, node_calls.GROUP_FETCH, request)
        if reply is None:
            return FetchReply(calls.UNAVAILABLE)
        return msgspec.convert(reply, FetchReply, from_attributes=True)

    async def add_partitions(
        self, node: int, call: calls.AddPartitions | calls.VerifyPartition
    ) -> ErrorCode:
        is_check = isinstance(call, calls.VerifyPartition)
        partitions = (
            [call.partition] if isinstance(call, calls.VerifyPartition) else call.partitions
        )
        producer = (call.transactional_id, call.producer_id, call.producer_epoch)
        request = node_calls.TransactionAdd(*producer, partitions, is_check)
        return await self._code(node, node_calls.TRANSACTION_ADD, request)

    async def _code(self, node: int, call: Call[Q, node_calls.CodeReply], request: Q) -> ErrorCode:
        reply = await self._call(node, call, request)
        return calls.UNAVAILABLE if reply is None else ErrorCode(reply.code)

    async def _call(self, node: int, call: Call[Q, R], request: Q) -> R | None:
        try:
            return await self.caller(node).call(call, request, timeout_ms=COORDINATOR_CALL_MS)
        except PenstockError:
            return None


def register(
    handlers: CallHandlers, *, groups: GroupsHere, transactions: calls.Coordinators
) -> None:

    async def complete(
        request: node_calls.GroupComplete, _caller: CallerInfo
    ) -> node_calls.CodeReply:
        reply = await groups.call(calls.CompleteTransaction(*msgspec.structs.astuple(request)))
        return node_calls.CodeReply(int(reply.code))

    async def fetch(request: node_calls.GroupFetch, _caller: CallerInfo) -> node_calls.GroupFetched:
        reply = await groups.fetch_here(calls.FetchOffsets(*msgspec.structs.astuple(request)))
        return msgspec.convert(reply, node_calls.GroupFetched, from_attributes=True)

    async def add(request: node_calls.TransactionAdd, _caller: CallerInfo) -> node_calls.CodeReply:
        producer = (request.transactional_id, request.producer_id, request.producer_epoch)
        if request.is_check:
            code = await transactions.call(calls.VerifyPartition(*producer, request.partitions[0]))
        else:
            code = await transactions.call(calls.AddPartitions(*producer, request.partitions))
        return node_calls.CodeReply(int(code))

    handlers.add(node_calls.GROUP_COMPLETE, complete)
    handlers.add(node_calls.GROUP_FETCH, fetch)
    handlers.add(node_calls.TRANSACTION_ADD, add)
