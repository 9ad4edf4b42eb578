"""Hosts the transaction coordinators of this node: which transactional id is whose, and how the end
of a transaction reaches partitions and groups.

State lives in the internal topic ``__transactions``, made on the first start. Its partition count
never changes: an id belongs to the partition that its hash says, and that partition's coordinator
(``transaction_coordinator.py``) is the only one that decides about it. What is written there is in
``cursor/transactions.py``; how it stays small in ``row_keeper.py``.

Offsets that a consumer group commits inside a transaction wait in the group's coordinator. So that
it gets its marker like any partition, the group joins the transaction as one: where others have the
id of a topic it has ``__groups/`` and its name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from penstock.broker.coordinators import OtherCoordinators
from penstock.broker.group_log import RowUnreadable
from penstock.broker.groups import TOPIC_NAME as GROUPS
from penstock.broker.groups import GroupHost
from penstock.broker.hold import Hold
from penstock.broker.internal_topic import SEGMENT_BYTES, InternalTopic
from penstock.broker.transaction_coordinator import TransactionCoordinator
from penstock.cursor.group.codes import Code
from penstock.cursor.group.offsets import CommitReply, CommitRequest
from penstock.cursor.group.settings import GROUP_ID_CHARS_MAX
from penstock.cursor.tenants import FREE, TenantRooms
from penstock.cursor.transactions import Marker, TopicPartition, TxnReply, TxnValue
from penstock.model import ports
from penstock.model.errors import Overloaded, ProducerRefused, TopicNotFound
from penstock.model.limits import MINUTE_MS
from penstock.model.partitioning import partition_of_group
from penstock.model.ports import Clock, Streams
from penstock.model.topic import Topic
from penstock.wire.internal.coordinator_calls import TransactionAdd

log_ = logging.getLogger(__name__)

TOPIC_NAME = "__transactions"
EXPIRE_INTERVAL_MS = 10 * MINUTE_MS
GROUP_PLACE = f"{GROUPS}/"


class TopicsById(ports.Catalog, Protocol):
    def find_id(self, topic_id: str) -> Topic | None: ...


class TransactionHost:
    """Implements ``frontend.kafka.transaction_calls.TransactionCalls``."""

    def __init__(
        self,
        *,
        streams: Streams,
        groups: GroupHost,
        catalog: TopicsById,
        next_producer_id: Callable[[], Awaitable[int]],
        clock: Clock,
        entropy: Callable[[int], bytes],
        account: str,
        region: str,
        segment_bytes: int = SEGMENT_BYTES,
        expire_interval_ms: int = EXPIRE_INTERVAL_MS,
        others: OtherCoordinators | None = None,
        rooms: TenantRooms = FREE,
        markers: Streams | None = None,
        hold: Hold | None = None,
    ) -> None:
        """In a cluster: ``others`` coordinate what this node does not, and ``markers`` reaches
        partitions wherever they are led."""
        self._others = others
        self._rooms = rooms
        self._led: set[int] | None = None if others is None else set()
        self._markers = markers or streams
        self._hold = hold or Hold()
        self._streams = streams
        self._groups = groups
        self._catalog = catalog
        self._next_producer_id = next_producer_id
        self._clock = clock
        self._namespace = (account, region)
        self._internal = InternalTopic(
            TOPIC_NAME,
            streams=streams,
            catalog=catalog,
            namespace=self._namespace,
            clock=clock,
            entropy=entropy,
            segment_bytes=segment_bytes,
        )
        self._expire_interval_ms = expire_interval_ms
        self._coordinators: list[TransactionCoordinator] = []
        self._job: asyncio.Task[None] | None = None

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """After the groups. Returns when transactions are known; those that were decided are being
        completed then. What cannot be read is in ``troubles`` and answers so."""
        topic = await self._internal.find_or_make()
        self._coordinators = [self._coordinator(p) for p in range(topic.partition_count)]
        self._internal.on_skipped(self._read_again)
        if self._led is None:
            await asyncio.gather(*(coordinator.start() for coordinator in self._coordinators))
        else:
            for partition, coordinator in enumerate(self._coordinators):
                coordinator.take_over() if partition in self._led else coordinator.stand_by()
        self._job = asyncio.create_task(self._expire_forever(), name="transactional id expiry")

    async def stop(self) -> None:
        """Before the groups."""
        if self._job is not None:
            self._job.cancel()
            await asyncio.gather(self._job, return_exceptions=True)
        for coordinator in self._coordinators:
            await coordinator.stop()

    def led(self, partition: int, is_led: bool) -> None:
        """This node leads a partition of the transactions' topic from now on, or no more."""
        assert self._led is not None, "a node by itself leads all"
        (self._led.add if is_led else self._led.discard)(partition)
        if partition < len(self._coordinators):
            coordinator = self._coordinators[partition]
            coordinator.take_over() if is_led else coordinator.stand_by()

    def troubles(self) -> Sequence[str]:
        """Why coordinators are out of service, without those that an unreadable row stops."""
        return [
            c.trouble for c in self._coordinators if c.trouble is not None and c.unreadable is None
        ]

    def unreadable_rows(self) -> Sequence[RowUnreadable]:
        """Those that keep coordinators out of service until an operator skips them."""
        return [c.unreadable for c in self._coordinators if c.unreadable is not None]

    def _read_again(self) -> None:
        for coordinator in self._coordinators:
            coordinator.read_again()

    def _coordinator(self, partition: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            open_log=partial(self._internal.open_log, partition),
            tell=self._tell,
            next_producer_id=self._next_producer_id,
            clock=self._clock,
            label=f"{TOPIC_NAME}/{partition}",
            rooms=self._rooms,
        )

    def _at(self, transactional_id: str) -> TransactionCoordinator:
        return self._coordinators[partition_of_group(transactional_id, len(self._coordinators))]

    def _elsewhere(self, transactional_id: str) -> int | None:
        if self._others is None:
            return None
        return self._others.elsewhere(TOPIC_NAME, transactional_id)

    # ── Time ─────────────────────────────────────────────────────────────────────────────────

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expire_interval_ms / 1_000)
            self.expire()

    def expire(self) -> None:
        """Forget ids that have done nothing for long."""
        for coordinator in self._coordinators:
            coordinator.expire()

    def tick(self) -> None:
        """Do what is due by the clock now. Timers do so by themselves."""
        for coordinator in self._coordinators:
            coordinator.tick()

    # ── Markers ──────────────────────────────────────────────────────────────────────────────

    async def _tell(self, marker: Marker) -> None:
        """Returns when the marker is committed where it belongs, or has nowhere to go."""
        await self._hold.crossing()
        try:
            if marker.topic_id.startswith(GROUP_PLACE):
                await self._tell_group(marker, marker.topic_id.removeprefix(GROUP_PLACE))
            else:
                await self._tell_partition(marker)
        except TopicNotFound:
            return  # deleted, and its records with it
        except ProducerRefused as error:
            # The producer has gone on there under a newer epoch, whose marker ends it all.
            log_.warning(
                "transaction marker from the past",
                extra={
                    "transactional_id": marker.transactional_id,
                    "topic": marker.topic_id,
                    "partition": marker.partition,
                    "reason": str(error),
                },
            )

    async def _tell_partition(self, marker: Marker) -> None:
        topic = self._catalog.find_id(marker.topic_id)
        if topic is None:
            raise TopicNotFound
        told = ports.Marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
        )
        await self._markers.append_marker(topic, marker.partition, told)

    async def _tell_group(self, marker: Marker, group_id: str) -> None:
        node = None if self._others is None else self._others.elsewhere(GROUPS, group_id)
        if self._others is not None and node is not None:
            reply = await self._others.complete_transaction(
                node,
                group_id,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                is_commit=marker.is_commit,
            )
        else:
            reply = await self._groups.complete_transaction(
                group_id,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                is_commit=marker.is_commit,
            )
        if reply.code is Code.INVALID_PRODUCER_EPOCH:
            raise ProducerRefused(int(reply.code), reply.code.name)
        if reply.code:
            raise Overloaded(f"coordinator of group {group_id}: {reply.code.name}")

    # ── frontend.kafka.transaction_calls.TransactionCalls ────────────────────────────────────

    async def init(
        self, transactional_id: str, *, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> TxnReply:
        return await self._at(transactional_id).ask_with_id(
            transactional_id,
            lambda txns, fresh_id: txns.init(
                transactional_id,
                timeout_ms=timeout_ms,
                fresh_producer_id=fresh_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                wall_ms=self._clock.wall_ms(),
            ),
        )

    async def add(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Code:
        node = self._elsewhere(transactional_id)
        if self._others is not None and node is not None:
            return await self._others.add(
                node,
                TransactionAdd(transactional_id, producer_id, producer_epoch, list(partitions)),
            )
        reply = await self._at(transactional_id).ask(
            transactional_id,
            lambda txns: txns.add(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=partitions,
                now_ms=self._clock.mono_ms(),
                wall_ms=self._clock.wall_ms(),
            ),
        )
        return reply.code

    async def add_group(
        self, transactional_id: str, *, producer_id: int, producer_epoch: int, group_id: str
    ) -> Code:
        if not 0 < len(group_id) <= GROUP_ID_CHARS_MAX:
            return Code.INVALID_GROUP_ID
        return await self.add(
            transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=(_place_of_group(group_id),),
        )

    async def verify(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> Code:
        node = self._elsewhere(transactional_id)
        if self._others is not None and node is not None:
            asked = TransactionAdd(
                transactional_id, producer_id, producer_epoch, [partition], is_check=True
            )
            return await self._others.add(node, asked)
        return await self._at(transactional_id).verify(
            transactional_id,
            lambda txns: txns.verify(
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
        if adds_group:
            code = await self.add_group(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group_id,
            )
            if code:
                return CommitReply(code)
        code = await self.verify(
            transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition=_place_of_group(group_id),
        )
        if code:
            return CommitReply(code)
        # Decided within this turn of the loop, so before any marker of this transaction.
        return await self._groups.commit_in_transaction(
            group_id, request, producer_id=producer_id, producer_epoch=producer_epoch
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
        return await self._at(transactional_id).ask_with_id(
            transactional_id,
            lambda txns, fresh_id: txns.end(
                transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_commit=is_commit,
                raises_epoch=raises_epoch,
                fresh_producer_id=fresh_id,
                wall_ms=self._clock.wall_ms(),
            ),
        )

    async def describe(self, transactional_id: str) -> tuple[Code, TxnValue | None]:
        code, found = await self._at(transactional_id).describe(transactional_id)
        if code:
            return code, None
        if found is None:
            return Code.TRANSACTIONAL_ID_NOT_FOUND, None
        shown = tuple(map(self._shown, found.partitions))
        return code, msgspec.structs.replace(found, partitions=shown)

    def _shown(self, place: TopicPartition) -> TopicPartition:
        """A group as the partition of ``__groups`` that it is kept in."""
        topic_id, _ = place
        groups = self._catalog.find(*self._namespace, GROUPS)
        if groups is None or not topic_id.startswith(GROUP_PLACE):
            return place
        group_id = topic_id.removeprefix(GROUP_PLACE)
        return GROUPS, partition_of_group(group_id, groups.partition_count)

    async def all_ids(self) -> tuple[Code, dict[str, TxnValue]]:
        """All or nothing: a list that quietly lacks a part misleads."""
        found: dict[str, TxnValue] = {}
        for partition, coordinator in enumerate(self._coordinators):
            if self._led is not None and partition not in self._led:
                continue  # of these another node tells
            code, ids = await coordinator.all_ids()
            if code:
                return code, {}
            found.update(ids)
        return Code.NONE, found


def _place_of_group(group_id: str) -> TopicPartition:
    return GROUP_PLACE + group_id, 0
