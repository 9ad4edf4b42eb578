"""Hosts the group coordinators of this node: which group is whose, and what they share.

State lives in the internal topic ``__groups``, made on the first start. Its partition count never
changes: a group belongs to the partition that the hash of its name says, and that partition's
coordinator (``coordinator.py``) is the only one that decides about it. What is written there is in
``cursor/group/records.py``; how it stays small in ``row_keeper.py``.

The catalog tells which topics there are. Groups that are assigned here see a change with the next
heartbeat of any member; when a topic is deleted, so are the offsets committed for it. A group reads
topics of its own account, which its id tells (``model/tenancy.py``).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from penstock.broker.coordinator import Coordinator
from penstock.broker.coordinators import OtherCoordinators
from penstock.broker.group_assignments import TaskAssignments
from penstock.broker.group_configs import GroupConfigs
from penstock.broker.group_log import RowUnreadable
from penstock.broker.group_patterns import match_patterns
from penstock.broker.group_topics import GroupTopics
from penstock.broker.internal_topic import SEGMENT_BYTES, InternalTopic
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
from penstock.cursor.group.settings import GroupSettings, ShareSettings, share_settings
from penstock.cursor.group.share import ShareHeartbeat, ShareReply
from penstock.cursor.group.sight import Sight
from penstock.cursor.group.streams_requests import StreamsHeartbeat, StreamsReply
from penstock.cursor.tenants import FREE, TenantRooms
from penstock.model.levels import LEVEL_MAX, STREAMS_GROUPS
from penstock.model.limits import MINUTE_MS
from penstock.model.names import split_share
from penstock.model.partitioning import partition_of_group
from penstock.model.ports import Catalog, Clock, Streams
from penstock.model.tenancy import scoped_id
from penstock.model.topic import Topic
from penstock.wire.internal.coordinator_calls import GroupFetch

log_ = logging.getLogger(__name__)

TOPIC_NAME = "__groups"
EXPIRE_INTERVAL_MS = MINUTE_MS
FETCH_HERE_SECONDS_MAX = 3.0  # asked by another node, which asks again and may know better by then
PAUSE_SECONDS_MIN = 0.01
PAUSE_SECONDS_MAX = 0.25

_UNAVAILABLE = Code.COORDINATOR_NOT_AVAILABLE
_JOIN_FAILED = JoinReply(_UNAVAILABLE)
_SYNC_FAILED = SyncReply(_UNAVAILABLE)
_FAILED = Reply(_UNAVAILABLE)
_LEAVE_FAILED = LeaveReply(_UNAVAILABLE)
_CONSUMER_FAILED = ConsumerReply(_UNAVAILABLE, "The coordinator is not available.")
_SHARE_FAILED = ShareReply(_UNAVAILABLE, "The coordinator is not available.")
_STREAMS_FAILED = StreamsReply(_UNAVAILABLE, "The coordinator is not available.")
_NO_STREAMS = StreamsReply(
    Code.UNSUPPORTED_VERSION,
    f"Streams groups need feature level {STREAMS_GROUPS}: upgrade all nodes, then run penstock"
    " cluster upgrade.",
)
_COMMIT_FAILED = CommitReply(_UNAVAILABLE)
_FETCH_FAILED = FetchReply(_UNAVAILABLE)
_MOVES = frozenset((Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE))
_NO_CONFIGS: tuple[Code, Mapping[str, str]] = (_UNAVAILABLE, {})
_NOTHING_SET: Mapping[str, str] = {}
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
        segment_bytes: int = SEGMENT_BYTES,
        expire_interval_ms: int = EXPIRE_INTERVAL_MS,
        others: OtherCoordinators | None = None,
        rooms: TenantRooms = FREE,
        configs: GroupConfigs | None = None,
        level: Callable[[], int] = lambda: LEVEL_MAX,
    ) -> None:
        """In a cluster ``others`` coordinate what this node does not: groups are coordinated where
        their partition is led, of which ``led`` tells. ``rooms`` counts what tenants have.
        ``configs``: of groups, in the metadata store; None: they are rows at any level.
        ``level``: the feature level in force."""
        self._configs = configs
        self._level = level
        self._others = others
        self._rooms = rooms
        self._catalog = catalog
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
        self._settings = settings
        self._expire_interval_ms = expire_interval_ms
        self._coordinators: list[Coordinator] = []
        # In a cluster: partitions that this node leads.
        self._led: set[int] | None = None if others is None else set()
        self._is_draining = False
        self._job: asyncio.Task[None] | None = None
        self._topics = GroupTopics(account, region)
        self._assignments = TaskAssignments()

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """After the broker. Returns when the groups are known; what cannot be read is in
        ``troubles`` and answers that it is not available."""
        topic = await self._internal.find_or_make()
        for found in self._catalog.all_topics():
            self._catalog_changed(None, found)
        self._catalog.on_change(self._catalog_changed)
        self._coordinators = [self._coordinator(p) for p in range(topic.partition_count)]
        self._internal.on_skipped(self._read_again)
        if self._led is None:
            await asyncio.gather(*(coordinator.start() for coordinator in self._coordinators))
            await asyncio.gather(*(one.configs_moved() for one in self._coordinators))
        else:
            for partition, coordinator in enumerate(self._coordinators):
                if partition not in self._led:
                    coordinator.stand_by()
                else:
                    coordinator.take_over()
        self._job = asyncio.create_task(self._expire_forever(), name="group expiry")

    def led(self, partition: int, is_led: bool) -> None:
        """This node leads a partition of the groups' topic from now on, or no more."""
        assert self._led is not None, "a node by itself leads all"
        (self._led.add if is_led else self._led.discard)(partition)
        if partition < len(self._coordinators):
            coordinator = self._coordinators[partition]
            coordinator.take_over() if is_led else coordinator.stand_by()

    def level_changed(self) -> None:
        """The feature level may be one at which configs are in the metadata store."""
        for coordinator in self._coordinators:
            coordinator.move_configs()

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
        await self._assignments.stop()
        for coordinator in self._coordinators:
            await coordinator.stop()

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

    def _coordinator(self, partition: int) -> Coordinator:
        return Coordinator(
            open_log=partial(self._internal.open_log, partition),
            settings=self._settings,
            clock=self._clock,
            label=f"{TOPIC_NAME}/{partition}",
            rooms=self._rooms,
            configs=self._configs,
        )

    def _at(self, group_id: str) -> Coordinator:
        return self._coordinators[partition_of_group(group_id, len(self._coordinators))]

    def _catalog_changed(self, before: Topic | None, after: Topic | None) -> None:
        self._topics.changed(before, after)
        if before is not None and after is None and not before.is_share:
            for coordinator in self._coordinators:
                coordinator.forget_topic(before.topic_id)

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
                lambda groups: groups.expire(wall_ms=wall_ms, topic_ids=self._topics.id_of),
                is_divisible=True,
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

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat, *, sight: Sight | None = None
    ) -> ConsumerReply:
        sight = await match_patterns(
            self._at(group_id),
            group_id,
            request,
            sight,
            topics_of=lambda: self._topics.of(group_id),
        )
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        return await self._at(group_id).ask(
            _CONSUMER_FAILED,
            lambda groups, ticket: groups.consumer_heartbeat(
                group_id,
                request,
                self._topics.of(group_id),
                sight=sight,
                ticket=ticket,
                now_ms=now_ms,
                wall_ms=wall_ms,
            ),
        )

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareReply:
        now_ms = self._clock.mono_ms()
        return await self._at(group_id).ask(
            _SHARE_FAILED,
            lambda groups, ticket: groups.share_heartbeat(
                group_id, request, self._topics.of(group_id), ticket=ticket, now_ms=now_ms
            ),
        )

    async def streams_heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsReply:
        if self._level() < STREAMS_GROUPS:
            return _NO_STREAMS  # older nodes could not read the rows of the group
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        coordinator = self._at(group_id)
        reply = await coordinator.ask(
            _STREAMS_FAILED,
            lambda groups, ticket: groups.streams_heartbeat(
                group_id,
                request,
                self._topics.of(group_id),
                ticket=ticket,
                now_ms=now_ms,
                wall_ms=wall_ms,
            ),
        )
        self._assignments.begin(coordinator, group_id)
        return reply

    async def make_share_group(self, group_id: str) -> Reply:
        return await self._at(group_id).ask(
            _FAILED, lambda groups, ticket: groups.make_share(group_id, ticket=ticket)
        )

    def share_settings(self, group_id: str) -> ShareSettings:
        if self._configs is not None and self._configs.is_in_force:
            return share_settings(self._configs.of(group_id))
        if not self._coordinators:
            return share_settings(_NOTHING_SET)  # the node is starting
        found = self._at(group_id).peek(_NOTHING_SET, lambda groups: groups.configs(group_id))
        return share_settings(found)

    def settings_of(self, share: Topic) -> ShareSettings:
        """As ``share_settings``, of the group that reads a topic through a share."""
        named = split_share(share.name)
        assert named is not None, "a share is named after its group"
        own_account = self._namespace[0]
        return self.share_settings(scoped_id(share.account, named[1], own_account=own_account))

    @property
    def has_stored_configs(self) -> bool:
        return self._configs is None or self._configs.is_in_force

    async def configs(self, group_id: str) -> tuple[Code, Mapping[str, str]]:
        if self._configs is not None and self._configs.is_in_force:
            return Code.NONE, self._configs.of(group_id)
        return await self._at(group_id).look(
            _NO_CONFIGS, lambda groups: (Code.NONE, groups.configs(group_id))
        )

    async def change_configs(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        if self._configs is not None and self._configs.is_in_force:
            return await self._configs.change(group_id, changes)
        return await self._at(group_id).ask(
            _FAILED,
            lambda groups, ticket: groups.change_configs(group_id, changes, ticket=ticket),
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
        """Clients ask this once, between being assigned partitions and reading them, and some
        (librdkafka 2.16) never again when the coordinator has moved in that moment: they are
        assigned partitions and read nothing. So it is answered wherever it arrives."""
        asked = GroupFetch(group_id, partitions, requires_stable, member_id, member_epoch)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.fetch_ms_max / 1_000
        pause_s = PAUSE_SECONDS_MIN
        while True:
            reply = await self._fetch_here(asked, until_s=until_s)
            if reply.code not in _MOVES or self._others is None:
                return reply
            node = self._others.elsewhere(TOPIC_NAME, group_id)
            if node is not None:
                reply = await self._others.fetch(node, asked)
            left_s = until_s - loop.time()
            if reply.code not in _MOVES or left_s <= 0:
                return reply
            await self._others.wait_changed(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_SECONDS_MAX)

    async def fetch_here(self, asked: GroupFetch) -> FetchReply:
        until_s = asyncio.get_running_loop().time() + FETCH_HERE_SECONDS_MAX
        return await self._fetch_here(asked, until_s=until_s)

    async def _fetch_here(self, asked: GroupFetch, *, until_s: float) -> FetchReply:
        return await self._at(asked.group_id).look_when_settled(
            _FETCH_FAILED,
            lambda groups: groups.fetch(
                asked.group_id,
                asked.partitions,
                requires_stable=asked.requires_stable,
                member_id=asked.member_id,
                member_epoch=asked.member_epoch,
            ),
            until_s=until_s,
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
        for partition, coordinator in enumerate(self._coordinators):
            if self._led is not None and partition not in self._led:
                continue  # of these another node tells
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
