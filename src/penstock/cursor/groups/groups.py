"""All groups of one coordinator partition: the entry point of every group protocol request.

A group has one kind at a time. An empty group changes between classic and consumer, and between
classic and streams, when a member of the other kind joins; its offsets stay. A group whose
consumers assign partitions themselves has only offsets and counts as classic. A share group has no
offsets and never changes its kind. Reads return the state in memory; the broker delays their
replies until earlier appends are committed."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from penstock.cursor.groups.assigned import JOIN, AssignedGroup, Heartbeat
from penstock.cursor.groups.assignors import TopicPartition
from penstock.cursor.groups.classic.classic import ClassicGroup
from penstock.cursor.groups.classic.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    State,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.groups.consumer import ConsumerGroup, ConsumerHeartbeat
from penstock.cursor.groups.decision import Decision, Description, Listing, Reply
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, FetchReply, Offsets
from penstock.cursor.groups.share import ShareGroup, ShareHeartbeat
from penstock.cursor.groups.streams.streams import StreamsGroup
from penstock.cursor.groups.streams.streams_requests import StreamsHeartbeat
from penstock.cursor.groups.streams.task_assignor import Assignment, AssignmentInput
from penstock.cursor.groups.table import Group, GroupTable, Members
from penstock.cursor.patterns.matches import Topics, TopicVisibility
from penstock.model.quotas import OFFSET_BYTES
from penstock.wire.kafka.faults import ErrorCode


class Groups(GroupTable):
    # ── The classic protocol ─────────────────────────────────────────────────────────────────
    def join(self, group_id: str, request: JoinRequest, decision: Decision) -> None:
        group, code = self._find_or_create(group_id, may_create=not request.member_id)
        if group is not None and not isinstance(group.members, ClassicGroup | None):
            if isinstance(group.members, ShareGroup) or not group.members.is_empty:
                group, code = None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            else:
                self._erase_members(group, decision)
        if group is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID if code is ErrorCode.GROUP_ID_NOT_FOUND else code
            decision.reply(JoinReply(code, member_id=request.member_id))
            return
        if not isinstance(group.members, ClassicGroup):
            group.members = ClassicGroup(group_id, self._settings)
        group.members.join(request, decision)
        self._finish(group)

    def sync(self, group_id: str, request: SyncRequest, decision: Decision) -> None:
        group, classic = self._classic(group_id)
        if classic is None:
            decision.reply(SyncReply(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            classic.sync(request, decision)
            self._finish(group)

    def heartbeat(
        self,
        group_id: str,
        decision: Decision,
        *,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
    ) -> None:
        group, classic = self._classic(group_id)
        if classic is None:
            decision.reply(Reply(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            classic.heartbeat(member_id, instance_id, generation, decision)
            self._finish(group)

    def leave(
        self, group_id: str, leavers: Sequence[tuple[str, str | None]], decision: Decision
    ) -> None:
        group, classic = self._classic(group_id)
        if classic is None:
            results = tuple((m, i, ErrorCode.UNKNOWN_MEMBER_ID) for m, i in leavers)
            decision.reply(LeaveReply(members=results))
        else:
            classic.leave(leavers, decision)
            self._finish(group)

    def _classic(self, group_id: str) -> tuple[Group | None, ClassicGroup | None]:
        members = self._members(group_id)
        return self._groups.get(group_id), members if isinstance(members, ClassicGroup) else None

    def _members(self, group_id: str) -> Members | None:
        group = self._groups.get(group_id)
        return None if group is None else group.members

    # ── Heartbeats of consumer, share and streams groups ─────────────────────────────────────
    def beat(
        self,
        group_id: str,
        request: Heartbeat,
        topics: Topics,
        decision: Decision,
        **rights: TopicVisibility | None,
    ) -> None:
        """Apply a heartbeat. ``rights`` may contain ``visibility``, the topics that the member may
        see."""
        refusal = request.malformed(topics)
        if refusal is not None:
            decision.reply(refusal)
            return
        kind = _KINDS[type(request)]
        group, members, code = self._find(group_id, kind, is_join=request.member_epoch == JOIN)
        if group is None or members is None:
            text = self._no_group(group_id, code, kind.kind)
            decision.reply(request.refused(code, text))
            return
        members.set_times(self.configs(group_id))
        members.heartbeat(request, topics, decision, **rights)
        if members.is_stored and group.members is not members:
            self._erase_members(group, decision)
            group.members = members  # a rejected first join creates no group
        self._finish(group)

    consumer_heartbeat = share_heartbeat = streams_heartbeat = beat

    def _find(
        self, group_id: str, kind: type[Any], *, is_join: bool
    ) -> tuple[Group | None, Any, ErrorCode]:
        group, code = self._find_or_create(group_id, may_create=is_join)
        if group is None or isinstance(group.members, kind):
            return group, group and group.members, code
        if is_join and (group.is_blank if kind is ShareGroup else group.is_idle_classic):
            return group, kind(group_id, self._settings), code
        return None, None, ErrorCode.GROUP_ID_NOT_FOUND

    def due_patterns(
        self,
        group_id: str,
        request: ConsumerHeartbeat,
        topics: Topics,
        visibility: TopicVisibility | None,
    ) -> tuple[frozenset[str], str]:
        members = self._members(group_id)
        if not isinstance(members, ConsumerGroup):
            members = ConsumerGroup(group_id, self._settings)
        return members.due_patterns(request, topics, visibility)

    def pending_assignment(self, group_id: str) -> AssignmentInput | None:
        """Return the input of a large assignment. The caller passes the result to
        ``take_assignment``."""
        members = self._members(group_id)
        return members.pending if isinstance(members, StreamsGroup) else None

    def take_assignment(self, assignment: Assignment, decision: Decision) -> None:
        group = self._groups.get(assignment.input.group_id)
        if group is not None and isinstance(group.members, StreamsGroup):
            group.members.take_assignment(assignment, decision)
            self._finish(group)

    def make_share(self, group_id: str, decision: Decision) -> None:
        """Create a share group. Replies GROUP_ID_NOT_FOUND if a group of another kind has the
        id."""
        group, share, code = self._find(group_id, ShareGroup, is_join=True)
        if group is not None and share is not None and not share.epoch:
            share.begin(decision)
            group.members = share
        decision.reply(Reply(code), after_commit=share is not None)
        self._finish(group)

    # ── Offsets ──────────────────────────────────────────────────────────────────────────────
    def commit(
        self,
        group_id: str,
        request: CommitRequest,
        decision: Decision,
        *,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Commit offsets. ``producer`` is the id and epoch of a producer that commits in a
        transaction."""
        group, code = self._find_or_create(group_id, may_create=request.generation < 0)
        if group is not None:
            code = self._commit_refusal(group, request, decision.now_ms, producer)
        elif code is ErrorCode.GROUP_ID_NOT_FOUND and (producer or not request.knows_epochs):
            code = ErrorCode.ILLEGAL_GENERATION  # as older clients expect for an unknown group
        if code or group is None:
            results = tuple((p.topic_id, p.partition, code) for p in request.partitions)
            decision.reply(CommitReply(code, results))
        else:
            reply = group.offsets.commit(
                request,
                decision,
                entries_max=self._settings.offsets_max,
                bytes_max=self._usage.room(group.account, OFFSET_BYTES),
                producer=producer,
            )
            decision.reply(reply, after_commit=True)
        self._finish(group)

    def _commit_refusal(
        self, group: Group, request: CommitRequest, now_ms: int, producer: tuple[int, int] | None
    ) -> ErrorCode:
        members, is_transactional = group.members, producer is not None
        if isinstance(members, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND  # share groups have no offsets
        if producer is not None:
            known_epochs = self._fences.epoch_of(producer[0]), group.offsets.epoch_of(producer[0])
            if producer[1] < max(known_epochs):
                return ErrorCode.INVALID_PRODUCER_EPOCH
        if members is None:
            return ErrorCode.NONE if request.generation < 0 else ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(members, ClassicGroup):
            return members.check_commit(request, is_transactional=is_transactional, now_ms=now_ms)
        return members.check_commit(request, is_transactional=is_transactional)

    def complete_transaction(
        self, producer_id: int, producer_epoch: int, decision: Decision, *, is_commit: bool
    ) -> None:
        """Commit or drop the pending offsets of a transaction. Repeating this changes nothing."""
        if producer_epoch < self._fences.epoch_of(producer_id):
            decision.reply(Reply(ErrorCode.INVALID_PRODUCER_EPOCH))
            return
        for group_id in sorted(self._open_groups.get(producer_id, ())):
            group = self._groups[group_id]
            group.offsets.complete(producer_id, decision, is_commit=is_commit)
            self._finish(group)
        self._fences.raise_to(producer_id, producer_epoch, decision)
        decision.reply(Reply(), after_commit=True)

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        requires_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchReply:
        """Return the committed offsets of a group. For an unknown group, all offsets are -1."""
        group = self._groups.get(group_id)
        if group is None:
            nothing = Offsets(group_id, {}, self._usage)
            return nothing.fetch(partitions, requires_stable=requires_stable)
        if isinstance(group.members, ShareGroup):
            return FetchReply(ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group.members, AssignedGroup) and member_id is not None and member_epoch >= 0:
            member = CommitRequest((), member_id, member_epoch)
            code = group.members.check_commit(member, is_transactional=False)
            if code:
                return FetchReply(code)
        return group.offsets.fetch(partitions, requires_stable=requires_stable)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, str, int]], decision: Decision
    ) -> None:
        """Delete the offsets of partitions (topic id, topic name, partition) of topics without
        subscribers."""
        group = self._groups.get(group_id)
        if group is None or isinstance(group.members, ShareGroup):  # share groups have no offsets
            decision.reply(CommitReply(ErrorCode.GROUP_ID_NOT_FOUND))
            return
        subscribed = group.subscribed()
        if subscribed is None:
            decision.reply(CommitReply(ErrorCode.NON_EMPTY_GROUP))
            return
        results = []
        for topic_id, name, partition in partitions:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if name in subscribed else ErrorCode.NONE
            if not code:
                group.offsets.delete((topic_id, partition), decision)
            results.append((topic_id, partition, code))
        decision.reply(CommitReply(partitions=tuple(results)), after_commit=True)
        self._finish(group)

    # ── Whole groups ─────────────────────────────────────────────────────────────────────────
    def delete_group(self, group_id: str, decision: Decision) -> None:
        group = self._groups.get(group_id)
        if group is None:
            decision.reply(Reply(ErrorCode.GROUP_ID_NOT_FOUND))
        elif not group.is_empty:
            decision.reply(Reply(ErrorCode.NON_EMPTY_GROUP))
        else:
            self._erase(group, decision)
            decision.reply(Reply(), after_commit=True)

    def list_groups(
        self, *, states: Collection[str] = (), kinds: Collection[str] = ()
    ) -> tuple[Listing, ...]:
        """List groups. Filters ignore case; an empty filter accepts all."""
        wanted_states = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        return tuple(
            Listing(group.id, group.protocol_type, group.state, group.kind)
            for group in self._groups.values()
            if (not wanted_states or group.state.lower() in wanted_states)
            and (not wanted_kinds or group.kind in wanted_kinds)
        )

    def describe(self, group_id: str) -> Description:
        """Describe a group. The reply is GROUP_ID_NOT_FOUND with state Dead if there is none."""
        group = self._groups.get(group_id)
        if group is None:
            return Description(ErrorCode.GROUP_ID_NOT_FOUND, group_id, state=State.DEAD)
        if group.members is None:
            return Description(ErrorCode.NONE, group_id)
        return group.members.describe()

    def forget_topics(self, topic_ids: frozenset[str], decision: Decision) -> None:
        for group in list(self._groups.values()):
            group.offsets.erase(decision, topic_ids)
            self._finish(group)

    # ── Time ─────────────────────────────────────────────────────────────────────────────────
    def tick(self, decision: Decision) -> None:
        while (group_id := self._wakes.pop_due(decision.now_ms)) is not None:
            group = self._groups[group_id]
            if group.members is not None:
                group.members.tick(decision)
            self._finish(group)

    def expire(self, decision: Decision, *, topic_ids: Callable[[str, str], str | None]) -> None:
        """Drop old offsets and empty groups. ``topic_ids`` returns the topic id for a group id and
        a topic name."""
        self._fences.expire(decision)
        bound_ms = decision.wall_ms - self._settings.offsets_retention_ms
        for group in list(self._groups.values()):
            if isinstance(group.members, ShareGroup):
                continue  # share groups have no offsets and stay until they are deleted
            if group.is_empty:
                self._expire_empty(group, bound_ms, decision)
                continue
            subscribed = group.subscribed()
            if subscribed is not None:
                # Only offsets of topics without a subscriber expire.
                found = (topic_ids(group.id, name) for name in subscribed)
                kept = frozenset(topic_id for topic_id in found if topic_id is not None)
                group.offsets.expire(decision, older_than_ms=bound_ms, topics_kept=kept)

    def _expire_empty(self, group: Group, bound_ms: int, decision: Decision) -> None:
        members = group.members
        emptied_at_ms = None if members is None else members.changed_at_ms
        if emptied_at_ms is not None and emptied_at_ms >= bound_ms:
            return
        # If the group has only offsets, each offset expires by its age.
        group.offsets.expire(decision, older_than_ms=bound_ms)
        is_idle = not isinstance(members, ClassicGroup) or members.is_idle
        if not len(group.offsets) and is_idle:
            self._erase(group, decision)


_KINDS: dict[type[Heartbeat], type[ConsumerGroup | ShareGroup | StreamsGroup]] = {
    ConsumerHeartbeat: ConsumerGroup,
    ShareHeartbeat: ShareGroup,
    StreamsHeartbeat: StreamsGroup,
}
