"""The transaction coordinators of this node, which write the end of a transaction to partitions and
groups. Their rows (``cursor/transactions.py``) are in the topic ``__transactions``.

Offsets that a consumer group commits inside a transaction wait in the group's coordinator. The
group joins the transaction as a pseudo partition with the topic id ``__groups/<group id>``."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from penstock.broker.context.context import BackupHold
from penstock.broker.coordination.groups import TOPIC_NAME as GROUPS
from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import CoordinatorHost, CoordinatorSetup
from penstock.broker.coordination.row_log import RowLog
from penstock.broker.coordination.transaction_coordinator import TransactionCoordinator
from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinator_calls import (
    AddGroup,
    AddPartitions,
    CommitInTransaction,
    CompleteTransaction,
    ProducerCall,
    R,
    VerifyPartition,
)
from penstock.cursor.groups.offsets import CommitReply
from penstock.cursor.groups.settings import GROUP_ID_CHARS_MAX
from penstock.cursor.transactions import (
    Marker,
    TopicPartition,
    Transactions,
    TxnDecision,
    TxnReply,
    TxnValue,
)
from penstock.model import ports
from penstock.model.calls import AppendMarker, BrokerPort
from penstock.model.errors import Overloaded, ProducerRefused, TopicNotFound
from penstock.model.limits import MINUTE_MS
from penstock.model.topic import partition_of_group
from penstock.wire.kafka.faults import ErrorCode

log_ = logging.getLogger(__name__)

TOPIC_NAME = "__transactions"
EXPIRE_INTERVAL_MS = 10 * MINUTE_MS
GROUP_PREFIX = f"{GROUPS}/"


class TransactionHost(CoordinatorHost[TransactionCoordinator]):
    def __init__(
        self,
        setup: CoordinatorSetup,
        *,
        groups: GroupHost,
        next_producer_id: Callable[[], Awaitable[int]],
        markers: BrokerPort | None = None,
        hold: BackupHold | None = None,
    ) -> None:
        super().__init__(TOPIC_NAME, setup, expire_ms=EXPIRE_INTERVAL_MS)
        self._markers = markers or setup.broker
        self._hold = hold or BackupHold()
        self._groups = groups
        self._next_producer_id = next_producer_id
        self.handlers = {
            calls.InitProducer: self._init_producer,
            calls.AddPartitions: self._add_partitions,
            calls.AddGroup: self._add_group,
            calls.VerifyPartition: self._verify_partition,
            calls.CommitOffsets: self._commit_offsets,
            calls.EndTransaction: self._end_transaction,
            calls.DescribeTransaction: self._describe_transaction,
            calls.ListTransactions: self._list_transactions,
        }

    def _new_coordinator(
        self, label: str, open_log: Callable[[], Awaitable[RowLog]]
    ) -> TransactionCoordinator:
        return TransactionCoordinator(
            open_log, self._setup, label, self._write_marker, self._next_producer_id
        )

    def expire(self) -> None:
        for coordinator in self._coordinators:
            coordinator.expire()

    async def _write_marker(self, marker: Marker) -> None:
        await self._hold.crossing()
        try:
            if marker.topic_id.startswith(GROUP_PREFIX):
                await self._mark_group(marker, marker.topic_id.removeprefix(GROUP_PREFIX))
            else:
                await self._mark_partition(marker)
        except TopicNotFound:
            return  # the topic was deleted
        except ProducerRefused as error:
            # The producer continued with a newer epoch, whose marker ends this transaction too.
            place = {"topic": marker.topic_id, "partition": marker.partition}
            fields = {"transactional_id": marker.transactional_id, "reason": str(error)}
            log_.warning("transaction marker outdated: newer producer epoch", extra=place | fields)

    async def _mark_partition(self, marker: Marker) -> None:
        topic = self._catalog.find_id(marker.topic_id)
        if topic is None:
            raise TopicNotFound
        written = ports.Marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
        )
        await self._markers.call(AppendMarker(topic, marker.partition, written))

    async def _mark_group(self, marker: Marker, group_id: str) -> None:
        producer = (marker.producer_id, marker.producer_epoch)
        call = CompleteTransaction(group_id, *producer, marker.is_commit)
        node = None if self._remote is None else self._remote.node_of(GROUPS, group_id)
        if self._remote is not None and node is not None:
            reply = await self._remote.complete_transaction(node, call)
        else:
            reply = await self._groups.call(call)
        if reply.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            raise ProducerRefused(int(reply.code), reply.code.name)
        if reply.code:
            raise Overloaded(f"the coordinator of group {group_id} replied {reply.code.name}")

    async def _init_or_end(
        self,
        call: calls.InitProducer | calls.EndTransaction,
        decide: Callable[[Transactions, Any, TxnDecision], TxnReply],
    ) -> TxnReply:
        return await self._at(call.transactional_id).request(
            call.transactional_id,
            lambda txns, decision: decide(txns, call, decision),
            needs_id=True,
        )

    async def _init_producer(self, call: calls.InitProducer) -> TxnReply:
        return await self._init_or_end(call, Transactions.init)

    async def _end_transaction(self, call: calls.EndTransaction) -> TxnReply:
        return await self._init_or_end(call, Transactions.end)

    def _remote_node(self, transactional_id: str) -> int | None:
        return None if self._remote is None else self._remote.node_of(TOPIC_NAME, transactional_id)

    async def _add_partitions(self, call: calls.AddPartitions) -> ErrorCode:
        node = self._remote_node(call.transactional_id)
        if self._remote is not None and node is not None:
            return await self._remote.add_partitions(node, call)
        reply = await self._at(call.transactional_id).request(
            call.transactional_id,
            lambda txns, decision: txns.add(call, decision),
            needs_id=False,
        )
        return reply.code

    async def _verify_partition(self, call: calls.VerifyPartition) -> ErrorCode:
        node = self._remote_node(call.transactional_id)
        if self._remote is not None and node is not None:
            return await self._remote.add_partitions(node, call)
        return await self._at(call.transactional_id).verify(
            call.transactional_id, lambda txns: txns.verify(call)
        )

    async def _add_group(self, call: calls.AddGroup) -> ErrorCode:
        if not 0 < len(call.group_id) <= GROUP_ID_CHARS_MAX:
            return ErrorCode.INVALID_GROUP_ID
        partitions = (_partition_of(call.group_id),)
        return await self._add_partitions(AddPartitions(*_producer_of(call), partitions))

    async def _commit_offsets(self, call: calls.CommitOffsets) -> CommitReply:
        group_id, producer = call.group_id, _producer_of(call)
        if call.adds_group:
            code = await self._add_group(AddGroup(*producer, group_id))
            if code:
                return CommitReply(code)
        code = await self._verify_partition(VerifyPartition(*producer, _partition_of(group_id)))
        if code:
            return CommitReply(code)
        # There is no await in between, so this is decided before any marker of the transaction.
        return await self._groups.call(
            CommitInTransaction(group_id, call.request, call.producer_id, call.producer_epoch)
        )

    async def _describe_transaction(
        self, call: calls.DescribeTransaction
    ) -> tuple[ErrorCode, TxnValue | None]:
        key = call.transactional_id
        code, found = await self._at(key).read(lambda txns: txns.describe(key))
        if code:
            return code, None
        if found is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None
        shown = tuple(map(self._shown, found.partitions))
        return code, replace(found, partitions=shown)

    def _shown(self, partition: TopicPartition) -> TopicPartition:
        """Return the partition as clients see it: for a group, its partition of ``__groups``."""
        topic_id, _ = partition
        groups = self._catalog.find(*self._namespace, GROUPS)
        if groups is None or not topic_id.startswith(GROUP_PREFIX):
            return partition
        group_id = topic_id.removeprefix(GROUP_PREFIX)
        return GROUPS, partition_of_group(group_id, groups.partition_count)

    async def _list_transactions(
        self,
        call: calls.ListTransactions,  # noqa: ARG002 - it has no fields
    ) -> tuple[ErrorCode, dict[str, TxnValue]]:
        """List the transactions of this node. Returns an error if a coordinator is unavailable."""
        found: dict[str, TxnValue] = {}
        for coordinator in self._own_coordinators():
            code, ids = await coordinator.read(Transactions.view)
            if ids is None:
                return code, {}
            found.update(ids)
        return ErrorCode.NONE, found


def _partition_of(group_id: str) -> TopicPartition:
    return GROUP_PREFIX + group_id, 0


def _producer_of(call: ProducerCall[R]) -> tuple[str, int, int]:
    return call.transactional_id, call.producer_id, call.producer_epoch
