"""Hosts the group coordinators of this node: which group is whose, and what they share.

State lives in the internal topic ``__groups``, made on the first start. Its partition count never
changes: a group belongs to the partition that the hash of its name says, and that partition's
coordinator (``coordinator.py``) is the only one that decides about it. What is written there is in
``cursor/group/records.py``; how it stays small in ``group_log.py``.

The catalog tells which topics there are. Groups that are assigned here see a change with the next
heartbeat of any member; when a topic is deleted, so are the offsets committed for it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from penstock.broker.coordinator import Coordinator
from penstock.broker.group_log import GroupLog
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
from penstock.cursor.group.consumer import ConsumerHeartbeat, ConsumerReply, Topics
from penstock.cursor.group.decision import Reply
from penstock.cursor.group.describe import Description, Listing
from penstock.cursor.group.offsets import CommitReply, CommitRequest, FetchReply
from penstock.cursor.group.settings import GroupSettings
from penstock.model.errors import TopicExists
from penstock.model.limits import MIB, MINUTE_MS
from penstock.model.names import is_internal
from penstock.model.partitioning import partition_of_group
from penstock.model.ports import Catalog, Clock, Streams
from penstock.model.topic import Kind, Topic

log_ = logging.getLogger(__name__)

TOPIC_NAME = "__groups"
PARTITION_COUNT = 4  # each is a log of its own; commits of different groups rarely wait for another
REWRITE_BYTES = 16 * MIB
EXPIRE_INTERVAL_MS = MINUTE_MS
# Rows are kept until they are overwritten, however old. What a rewrite has deleted is freed segment
# by segment, so those are small.
CONFIGS = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "segment.bytes": str(REWRITE_BYTES),
}
RECEIPT_KEY_BYTES = 32

_UNAVAILABLE = Code.COORDINATOR_NOT_AVAILABLE
_JOIN_FAILED = JoinReply(_UNAVAILABLE)
_SYNC_FAILED = SyncReply(_UNAVAILABLE)
_FAILED = Reply(_UNAVAILABLE)
_LEAVE_FAILED = LeaveReply(_UNAVAILABLE)
_CONSUMER_FAILED = ConsumerReply(_UNAVAILABLE, "The coordinator is not available.")
_COMMIT_FAILED = CommitReply(_UNAVAILABLE)
_FETCH_FAILED = FetchReply(_UNAVAILABLE)
_NOT_LISTED: tuple[Code, tuple[Listing, ...]] = (_UNAVAILABLE, ())


class GroupHost:
    """Implements ``frontend.kafka.group_calls.GroupCalls``."""

    def __init__(
        self,
        *,
        streams: Streams,
        catalog: Catalog,
        clock: Clock,
        entropy: Callable[[int], bytes],
        account: str,
        region: str,
        settings: GroupSettings,
        rewrite_bytes: int = REWRITE_BYTES,
        expire_interval_ms: int = EXPIRE_INTERVAL_MS,
    ) -> None:
        self._streams = streams
        self._catalog = catalog
        self._clock = clock
        self._entropy = entropy
        self._namespace = (account, region)
        self._settings = settings
        self._rewrite_bytes = rewrite_bytes
        self._expire_interval_ms = expire_interval_ms
        self._coordinators: list[Coordinator] = []
        self._is_draining = False
        self._job: asyncio.Task[None] | None = None
        # Topics as groups see them: kept up to date in place, the epoch tells of a change.
        self._by_name: dict[str, tuple[str, int]] = {}
        self._topics = Topics(0, self._by_name)

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """After the broker. Returns when the groups are known; what cannot be read is in
        ``troubles`` and answers that it is not available."""
        topic = await self._internal_topic()
        for found in self._catalog.topics(*self._namespace):
            self._catalog_changed(None, found)
        self._catalog.on_change(self._catalog_changed)
        self._coordinators = [self._coordinator(p) for p in range(topic.partition_count)]
        await asyncio.gather(*(coordinator.start() for coordinator in self._coordinators))
        self._job = asyncio.create_task(self._expire_forever(), name="group expiry")

    def end_waits(self) -> None:
        """The node drains: who is parked is answered, and nobody is parked any more. Commits and
        reads go on."""
        self._is_draining = True
        for coordinator in self._coordinators:
            coordinator.end_waits()

    async def stop(self) -> None:
        """Before the broker."""
        self.end_waits()
        if self._job is not None:
            self._job.cancel()
            await asyncio.gather(self._job, return_exceptions=True)
        for coordinator in self._coordinators:
            await coordinator.stop()

    def troubles(self) -> Sequence[str]:
        return [c.trouble for c in self._coordinators if c.trouble is not None]

    def _coordinator(self, partition: int) -> Coordinator:
        async def open_log() -> GroupLog:
            topic = await self._internal_topic()
            return GroupLog(self._streams, topic, partition, self._clock)

        return Coordinator(
            open_log=open_log,
            settings=self._settings,
            clock=self._clock,
            partition=partition,
            rewrite_bytes=self._rewrite_bytes,
        )

    async def _internal_topic(self) -> Topic:
        account, region = self._namespace
        found = self._catalog.find(account, region, TOPIC_NAME)
        if found is not None:
            return found
        now_ms = self._clock.wall_ms()
        topic = Topic(
            topic_id=self._entropy(16).hex(),
            account=account,
            region=region,
            name=TOPIC_NAME,
            kind=Kind.STREAM,
            # If somebody deleted it meanwhile: as many as there are coordinators.
            partition_count=len(self._coordinators) or PARTITION_COUNT,
            created_at_ms=now_ms,
            modified_at_ms=now_ms,
            receipt_key=self._entropy(RECEIPT_KEY_BYTES),
            configs=CONFIGS,
        )
        try:
            return await self._catalog.create(topic)
        except TopicExists:
            found = self._catalog.find(account, region, TOPIC_NAME)
            if found is None:
                raise
            return found

    def _at(self, group_id: str) -> Coordinator:
        return self._coordinators[partition_of_group(group_id, len(self._coordinators))]

    # ── Topics ───────────────────────────────────────────────────────────────────────────────

    def _catalog_changed(self, before: Topic | None, after: Topic | None) -> None:
        topic = after or before
        assert topic is not None
        is_ours = (topic.account, topic.region) == self._namespace
        if is_ours and not is_internal(topic.name):
            if after is None:
                self._by_name.pop(topic.name, None)
            else:
                entry = (after.topic_id, after.partition_count)
                if self._by_name.get(after.name) == entry:
                    return
                self._by_name[after.name] = entry
            self._topics = Topics(self._topics.epoch + 1, self._by_name)
        if before is not None and after is None:
            for coordinator in self._coordinators:
                coordinator.forget_topic(before.topic_id)

    def _topic_id(self, name: str) -> str | None:
        entry = self._by_name.get(name)
        return None if entry is None else entry[0]

    # ── Time ─────────────────────────────────────────────────────────────────────────────────

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expire_interval_ms / 1_000)
            self.expire()

    def expire(self) -> None:
        """Drop offsets out of retention, and groups without any."""
        wall_ms = self._clock.wall_ms()
        for coordinator in self._coordinators:
            coordinator.note(
                lambda groups: groups.expire(wall_ms=wall_ms, topic_ids=self._topic_id)
            )

    def tick(self) -> None:
        """Do what is due by the clock now. Timers do so by themselves."""
        for coordinator in self._coordinators:
            coordinator.tick()

    # ── frontend.kafka.group_calls.GroupCalls ────────────────────────────────────────────────

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        if self._is_draining:
            return _JOIN_FAILED
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _JOIN_FAILED,
            lambda groups, ticket: groups.join(
                group_id, request, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms
            ),
        )

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        if self._is_draining:
            return _SYNC_FAILED
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _SYNC_FAILED,
            lambda groups, ticket: groups.sync(
                group_id, request, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms
            ),
        )

    async def heartbeat(
        self, group_id: str, *, member_id: str, generation: int, instance_id: str | None
    ) -> Reply:
        now_ms = self._clock.mono_ms()
        return await self._at(group_id).ask(
            _FAILED,
            lambda groups, ticket: groups.heartbeat(
                group_id,
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
                ticket=ticket,
                now_ms=now_ms,
            ),
        )

    async def leave(self, group_id: str, leavers: Sequence[tuple[str, str | None]]) -> LeaveReply:
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _LEAVE_FAILED,
            lambda groups, ticket: groups.leave(
                group_id, leavers, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms
            ),
        )

    async def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> ConsumerReply:
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _CONSUMER_FAILED,
            lambda groups, ticket: groups.consumer_heartbeat(
                group_id, request, self._topics, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms
            ),
        )

    async def commit(self, group_id: str, request: CommitRequest) -> CommitReply:
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _COMMIT_FAILED,
            lambda groups, ticket: groups.commit(
                group_id, request, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms
            ),
        )

    async def commit_in_transaction(
        self, group_id: str, request: CommitRequest, *, producer_id: int, producer_epoch: int
    ) -> CommitReply:
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _COMMIT_FAILED,
            lambda groups, ticket: groups.commit_in_transaction(
                group_id,
                request,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                ticket=ticket,
                now_ms=now_ms,
                wall_ms=wall_ms,
            ),
        )

    async def complete_transaction(
        self, group_id: str, *, producer_id: int, producer_epoch: int, is_commit: bool
    ) -> Reply:
        wall_ms = self._clock.wall_ms()
        return await self._at(group_id).ask(
            _FAILED,
            lambda groups, ticket: groups.complete_transaction(
                producer_id, producer_epoch, is_commit=is_commit, ticket=ticket, wall_ms=wall_ms
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
        return await self._at(group_id).look(
            _FETCH_FAILED,
            lambda groups: groups.fetch(
                group_id,
                partitions,
                requires_stable=requires_stable,
                member_id=member_id,
                member_epoch=member_epoch,
            ),
        )

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, str, int]]
    ) -> CommitReply:
        return await self._at(group_id).ask(
            _COMMIT_FAILED,
            lambda groups, ticket: groups.delete_offsets(group_id, partitions, ticket=ticket),
        )

    async def list_groups(
        self, *, states: Collection[str], kinds: Collection[str]
    ) -> tuple[Code, Sequence[Listing]]:
        """All or nothing: a list that quietly lacks a part of the groups misleads."""
        found: list[Listing] = []
        for coordinator in self._coordinators:
            code, listings = await coordinator.look(
                _NOT_LISTED,
                lambda groups: (Code.NONE, groups.list_groups(states=states, kinds=kinds)),
            )
            if code:
                return _NOT_LISTED
            found.extend(listings)
        return Code.NONE, found

    async def describe(self, group_id: str) -> Description:
        failed = Description(_UNAVAILABLE, group_id, state=State.DEAD)
        return await self._at(group_id).look(failed, lambda groups: groups.describe(group_id))

    async def delete_group(self, group_id: str) -> Reply:
        return await self._at(group_id).ask(
            _FAILED, lambda groups, ticket: groups.delete_group(group_id, ticket=ticket)
        )
