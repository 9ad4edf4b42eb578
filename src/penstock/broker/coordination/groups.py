"""The group coordinators of this node. They store their state as rows
(``cursor/groups/records.py``) in the internal topic ``__groups``. A group notices changed topics at
the next heartbeat of any member. If a topic is deleted, its committed offsets are deleted too. A
group reads only topics of its tenant, which the group id contains (``model/names.py``)."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from penstock.broker.context.timers import cancel_all
from penstock.broker.coordination.group_coordinator import GroupConfigs, GroupCoordinator
from penstock.broker.coordination.host import CoordinatorHost, CoordinatorSetup
from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.coordinator_calls import UNAVAILABLE, GroupCall, R, failed
from penstock.cursor.groups.consumer import ConsumerReply
from penstock.cursor.groups.decision import Decision, Description, Listing, Reply
from penstock.cursor.groups.offsets import FetchReply
from penstock.cursor.groups.settings import GroupSettings, ShareSettings, share_settings
from penstock.cursor.groups.streams.streams_requests import StreamsReply
from penstock.cursor.groups.streams.task_assignor import AssignmentInput, compute_assignment
from penstock.cursor.patterns.matches import Matches, Topics, TopicVisibility
from penstock.cursor.patterns.pattern import InvalidPattern
from penstock.model.call_times import FETCH_HERE_SECONDS_MAX, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN
from penstock.model.levels import LEVEL_MAX, STREAMS_GROUPS
from penstock.model.limits import MINUTE_MS
from penstock.model.names import is_internal, scoped_id, split_scoped, split_share
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode

SEEN_AT_ONCE = 32  # topics authorized without a pause; each takes up to 50 µs
_NO_PATTERNS: tuple[frozenset[str], str] = (frozenset(), "")
_NO_TOPICS = Topics(0, {})


class GroupTopics:
    """The topics that groups can subscribe to, by account and name. ``Topics.epoch`` rises with
    each change that may affect a group."""

    def __init__(self, own_account: str, region: str) -> None:
        self._own_account = own_account
        self._region = region
        # By account. The inner dicts are changed in place, and each change raises the epoch.
        self._by_name: dict[str, dict[str, tuple[str, int]]] = {}
        self._topics: dict[str, Topics] = {}
        self._epoch = 0

    def of(self, group_id: str) -> Topics:
        account, _ = split_scoped(group_id, own_account=self._own_account)
        return self._topics.get(account, _NO_TOPICS)

    def id_of(self, group_id: str, name: str) -> str | None:
        entry = self.of(group_id).by_name.get(name)
        return None if entry is None else entry[0]

    def changed(self, before: Topic | None, after: Topic | None) -> None:
        """Apply a catalog change. Ignores shares and internal topics: groups cannot use them."""
        topic = after or before
        assert topic is not None
        if topic.is_share or topic.region != self._region or is_internal(topic.name):
            return
        by_name = self._by_name.setdefault(topic.account, {})
        if after is None:
            by_name.pop(topic.name, None)
        else:
            entry = (after.topic_id, after.partition_count)
            # A new policy may change which members can see the topic.
            is_same = before is None or before.settings.policy == after.settings.policy
            if by_name.get(after.name) == entry and is_same:
                return
            by_name[after.name] = entry
        self._epoch += 1
        known = self._topics.get(topic.account)
        matches = Matches() if known is None else known.matches
        self._topics[topic.account] = Topics(self._epoch, by_name, matches)
        if not by_name:
            del self._by_name[topic.account], self._topics[topic.account]


log_ = logging.getLogger(__name__)


class TaskAssignments:
    def __init__(self) -> None:
        self._jobs: dict[str, asyncio.Task[None]] = {}  # by group id
        self._lock = asyncio.Lock()  # one assignment at a time, since threads share the interpreter

    def begin(self, coordinator: GroupCoordinator, group_id: str) -> None:
        if group_id in self._jobs:
            return
        pending = coordinator.peek(None, lambda groups: groups.pending_assignment(group_id))
        if pending is not None:
            job = asyncio.create_task(self._assign(coordinator, pending), name=f"assign {group_id}")
            self._jobs[group_id] = job
            job.add_done_callback(lambda job: self._ended(group_id, job))

    async def _assign(self, coordinator: GroupCoordinator, pending: AssignmentInput) -> None:
        async with self._lock:
            assignment = await asyncio.to_thread(compute_assignment, pending)
        coordinator.note(lambda groups, decision: groups.take_assignment(assignment, decision))

    def _ended(self, group_id: str, job: asyncio.Task[None]) -> None:
        del self._jobs[group_id]
        if not job.cancelled() and (error := job.exception()) is not None:
            log_.error("streams task assignment failed", exc_info=error, extra={"group": group_id})

    async def stop(self) -> None:
        await cancel_all(self._jobs.values())


TOPIC_NAME = "__groups"
EXPIRE_INTERVAL_MS = MINUTE_MS

_NO_STREAMS = StreamsReply(
    ErrorCode.UNSUPPORTED_VERSION,
    f"Streams groups need feature level {STREAMS_GROUPS}: upgrade all nodes, then run penstock"
    " cluster upgrade.",
)
_NO_CONFIGS: Mapping[str, str] = {}
_MOVING: Final = frozenset((ErrorCode.NOT_COORDINATOR, UNAVAILABLE))

# Calls that are a single decision.
DECISIONS: Final[dict[type[GroupCall[Any]], Callable[..., None]]] = {
    calls.Join: Groups.join,
    calls.Sync: Groups.sync,
    calls.Heartbeat: Groups.heartbeat,
    calls.Leave: Groups.leave,
    calls.BeatConsumer: Groups.beat,
    calls.BeatShare: Groups.beat,
    calls.BeatStreams: Groups.beat,
    calls.MakeShareGroup: Groups.make_share,
    calls.ChangeConfigs: Groups.change_configs,
    calls.Commit: Groups.commit,
    calls.CommitInTransaction: lambda groups, call, decision: groups.commit(
        call, decision, producer=(call.producer_id, call.producer_epoch)
    ),
    calls.CompleteTransaction: Groups.complete_transaction,
    calls.DeleteOffsets: Groups.delete_offsets,
    calls.DeleteGroup: Groups.delete_group,
}


def decide(groups: Groups, call: GroupCall[Any], topics: Topics, decision: Decision) -> None:
    known = (topics,) if isinstance(call, calls.Beat) else ()
    DECISIONS[type(call)](groups, call, *known, decision)


class GroupHost(CoordinatorHost[GroupCoordinator]):
    """The group coordinators of this node. Start them after the broker, and stop them before it."""

    def __init__(
        self,
        setup: CoordinatorSetup,
        *,
        settings: GroupSettings,
        expire_interval_ms: int = EXPIRE_INTERVAL_MS,
        configs: GroupConfigs | None = None,
        level: Callable[[], int] = lambda: LEVEL_MAX,
    ) -> None:
        super().__init__(TOPIC_NAME, setup, expire_ms=expire_interval_ms)
        self._settings = settings
        self._configs = configs
        self._level = level
        self._is_draining = False
        self._topics = GroupTopics(setup.account, setup.region)
        self._assignments = TaskAssignments()
        self.handlers = {
            **dict.fromkeys(DECISIONS, self._decide),
            calls.Join: self._join_or_sync,
            calls.Sync: self._join_or_sync,
            calls.BeatConsumer: self._beat_consumer,
            calls.BeatStreams: self._beat_streams,
            calls.ReadConfigs: self._read_configs,
            calls.ChangeConfigs: self._change_configs,
            calls.FetchOffsets: self._fetch_offsets,
            calls.ListGroups: self._list_groups,
            calls.DescribeGroup: self._describe_group,
        }

    async def start(self) -> None:
        for found in self._catalog.all_topics():
            self._catalog_changed(None, found)
        self._catalog.on_change(self._catalog_changed)
        await super().start()
        if self._led is None:
            await asyncio.gather(*(each.configs_moved() for each in self._coordinators))

    def _new_coordinator(self, partition: int) -> GroupCoordinator:
        return GroupCoordinator(self, partition, self._settings, self._configs)

    def level_changed(self) -> None:
        for coordinator in self._coordinators:
            coordinator.move_configs()

    def end_waits(self) -> None:
        """Fail waiting requests, because the node is draining. Other requests still succeed."""
        self._is_draining = True
        for coordinator in self._coordinators:
            coordinator.end_waits()

    async def stop(self) -> None:
        self.end_waits()
        await self._assignments.stop()
        await super().stop()

    def _catalog_changed(self, before: Topic | None, after: Topic | None) -> None:
        self._topics.changed(before, after)
        if before is not None and after is None and not before.is_share:
            for coordinator in self._coordinators:
                coordinator.forget_topic(before.topic_id)

    def expire(self) -> None:
        for coordinator in self._coordinators:
            coordinator.note(
                lambda groups, decision: groups.expire(decision, topic_ids=self._topics.id_of),
                is_divisible=True,
            )

    def _decide(self, call: GroupCall[R]) -> Coroutine[Any, Any, R]:
        topics, group_id = self._topics, call.group_id
        return self._at(group_id).request(
            failed(call, UNAVAILABLE),
            lambda groups, decision: decide(groups, call, topics.of(group_id), decision),
        )

    async def _join_or_sync(self, call: GroupCall[R]) -> R:
        return failed(call, UNAVAILABLE) if self._is_draining else await self._decide(call)

    async def _beat_consumer(self, call: calls.BeatConsumer) -> ConsumerReply:
        visibility = await self._matched(call)
        return await self._decide(msgspec.structs.replace(call, visibility=visibility))

    async def _matched(self, call: calls.BeatConsumer) -> TopicVisibility | None:
        """Match topic patterns and check which topics the member may see, before the group is
        changed. Lets other tasks run after each millisecond of work."""
        coordinator, visibility = self._at(call.group_id), call.visibility
        seen: dict[str, bool] = {}
        has_waited = True
        while has_waited:
            has_waited = False
            topics = self._topics.of(call.group_id)
            patterns, seen_by = coordinator.peek(
                _NO_PATTERNS, partial(Groups.due_patterns, call=call, topics=topics)
            )
            try:
                for regex in patterns:
                    for _ in topics.matches.catch_up(regex, topics.by_name, topics.epoch):
                        await asyncio.sleep(0)
                        has_waited = True
                if visibility is None or not seen_by or has_waited:
                    continue
                unseen = topics.matches.of(seen_by, topics.by_name, topics.epoch) - seen.keys()
            except InvalidPattern:
                break  # the decision will report the invalid pattern
            for number, name in enumerate(unseen, 1):
                seen[name] = visibility.may_see(name)
                if number % SEEN_AT_ONCE == 0:
                    await asyncio.sleep(0)
                    has_waited = True
        if visibility is None or not seen:
            return visibility
        may_see = visibility.may_see
        return TopicVisibility(
            visibility.version, lambda name: seen[name] if name in seen else may_see(name)
        )

    async def _beat_streams(self, call: calls.BeatStreams) -> StreamsReply:
        if self._level() < STREAMS_GROUPS:
            return _NO_STREAMS  # older nodes could not read the rows of a streams group
        coordinator = self._at(call.group_id)
        reply = await self._decide(call)
        self._assignments.begin(coordinator, call.group_id)
        return reply

    def share_settings(self, group_id: str) -> ShareSettings:
        if self._stored is not None:
            return share_settings(self._stored.of(group_id))
        if not self._coordinators:
            return share_settings(_NO_CONFIGS)  # the node is still starting
        found = self._at(group_id).peek(_NO_CONFIGS, lambda groups: groups.configs(group_id))
        return share_settings(found)

    def settings_of(self, share: Topic) -> ShareSettings:
        named = split_share(share.name)
        assert named is not None, "the name of a share contains its group"
        group_id = scoped_id(share.account, named[1], own_account=self._namespace[0])
        return self.share_settings(group_id)

    @property
    def _stored(self) -> GroupConfigs | None:
        """Return the configs in the metadata store, or None while they are still in the log."""
        return self._configs if self._configs is not None and self._configs.is_in_force else None

    @property
    def has_stored_configs(self) -> bool:
        return self._configs is None or self._configs.is_in_force

    async def _read_configs(self, call: calls.ReadConfigs) -> tuple[ErrorCode, Mapping[str, str]]:
        group_id = call.group_id
        if self._stored is not None:
            return ErrorCode.NONE, self._stored.of(group_id)
        return await self._at(group_id).read(
            failed(call, UNAVAILABLE), lambda groups: (ErrorCode.NONE, groups.configs(group_id))
        )

    async def _change_configs(self, call: calls.ChangeConfigs) -> Reply:
        if self._stored is not None:
            return await self._stored.change(call.group_id, call.changes)
        return await self._decide(call)

    async def _fetch_offsets(self, call: calls.FetchOffsets) -> FetchReply:
        """Return committed offsets, even if the coordinator moves to another node meanwhile. Some
        clients (librdkafka 2.16) fetch offsets only once, and would read nothing after an error."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.fetch_ms_max / 1_000
        pause_s = PAUSE_SECONDS_MIN
        while True:
            reply = await self._fetch(call, until_s=until_s)
            if reply.code not in _MOVING or self._remote is None:
                return reply
            node = self._remote.node_of(TOPIC_NAME, call.group_id)
            if node is not None:
                reply = await self._remote.fetch(node, call)
            left_s = until_s - loop.time()
            if reply.code not in _MOVING or left_s <= 0:
                return reply
            await self._remote.wait_changed(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_SECONDS_MAX)

    async def fetch_here(self, call: calls.FetchOffsets) -> FetchReply:
        """Return committed offsets to another node. Waits while the log is being loaded."""
        until_s = asyncio.get_running_loop().time() + FETCH_HERE_SECONDS_MAX
        return await self._fetch(call, until_s=until_s)

    async def _fetch(self, call: calls.FetchOffsets, *, until_s: float) -> FetchReply:
        coordinator = self._at(call.group_id)
        await coordinator.wait_ready(until_s=until_s)
        return await coordinator.read(failed(call, UNAVAILABLE), lambda groups: groups.fetch(call))

    async def _list_groups(self, call: calls.ListGroups) -> tuple[ErrorCode, Sequence[Listing]]:
        """List the groups that this node coordinates. Fails if a coordinator is not ready."""
        found: list[Listing] = []
        for coordinator in self._own_coordinators():
            code, listings = await coordinator.read(
                failed(call, UNAVAILABLE), lambda groups: (ErrorCode.NONE, groups.list_groups(call))
            )
            if code:
                return failed(call, UNAVAILABLE)
            found.extend(listings)
        return ErrorCode.NONE, found

    async def _describe_group(self, call: calls.DescribeGroup) -> Description:
        group_id = call.group_id
        return await self._at(group_id).read(
            failed(call, UNAVAILABLE), lambda groups: groups.describe(group_id)
        )
