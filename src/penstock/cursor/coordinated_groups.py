"""All groups of one coordinator partition: the entry point of every group protocol request.

A group has one kind at a time. An empty group changes between classic and consumer, and between
classic and streams, when a member of the other kind joins; its offsets stay. A group whose
consumers assign partitions themselves has only offsets and counts as classic. A share group has no
offsets and never changes its kind. Reads return the state in memory; the broker delays their
replies until earlier appends are committed."""

from collections.abc import Callable
from typing import Any

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.assigned import JOIN, AssignedGroup, Heartbeat
from penstock.cursor.groups.classic.classic import ClassicGroup
from penstock.cursor.groups.classic.classic_state import JoinReply, State
from penstock.cursor.groups.consumer import ConsumerGroup, ConsumerHeartbeat, DuePatterns
from penstock.cursor.groups.decision import Decision, Description, Listing, Reply
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, FetchReply, Offsets
from penstock.cursor.groups.records import ConfigsValue
from penstock.cursor.groups.settings import GROUP_ID_CHARS_MAX
from penstock.cursor.groups.share import ShareGroup, ShareHeartbeat
from penstock.cursor.groups.streams.streams import StreamsGroup
from penstock.cursor.groups.streams.streams_requests import StreamsHeartbeat
from penstock.cursor.groups.streams.task_assignor import Assignment, AssignmentInput
from penstock.cursor.groups.table import Group, GroupTable, Members
from penstock.cursor.patterns.matches import Topics
from penstock.model.quotas import GROUP_CONFIGS
from penstock.wire.kafka.faults import ErrorCode


class Groups(GroupTable):
    # ── The classic protocol ─────────────────────────────────────────────────────────────────
    def join(self, call: calls.Join, decision: Decision) -> None:
        request = call.request
        group, code = self._find_or_create(call.group_id, may_create=not request.member_id)
        if group is not None and not isinstance(group.members, ClassicGroup):
            if isinstance(group.members, ShareGroup) or not group.members.is_empty:
                group, code = None, ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            else:
                self._erase_members(group, decision)
        if group is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID if code is ErrorCode.GROUP_ID_NOT_FOUND else code
            decision.reply(JoinReply(code, member_id=request.member_id))
            return
        assert isinstance(group.members, ClassicGroup)
        group.members.join(request, decision)
        self._finish(group)

    def sync(self, call: calls.Sync, decision: Decision) -> None:
        group, classic = self._classic(call.group_id)
        classic.sync(call.request, decision)
        self._finish(group)

    def heartbeat(self, call: calls.Heartbeat, decision: Decision) -> None:
        group, classic = self._classic(call.group_id)
        classic.heartbeat(call.member_id, call.instance_id, call.generation, decision)
        self._finish(group)

    def leave(self, call: calls.Leave, decision: Decision) -> None:
        group, classic = self._classic(call.group_id)
        classic.leave(call.leavers, decision)
        self._finish(group)

    def _classic(self, group_id: str) -> tuple[Group | None, ClassicGroup]:
        """Return a group and its classic members (no members if the group is not classic)."""
        group = self._groups.get(group_id)
        if group is not None and isinstance(group.members, ClassicGroup):
            return group, group.members
        return group, ClassicGroup(group_id, self._settings)

    # ── Heartbeats of consumer, share and streams groups ─────────────────────────────────────
    def beat(self, call: calls.Beat, topics: Topics, decision: Decision) -> None:
        request: Heartbeat = call.request
        refusal = request.malformed(topics)
        if refusal is not None:
            decision.reply(refusal)
            return
        group_id, kind = call.group_id, _KINDS[type(request)]
        group, members, code = self._find(group_id, kind, is_join=request.member_epoch == JOIN)
        if group is None or members is None:
            text = self._no_group(group_id, code, kind.kind)
            decision.reply(request.refused(code, text))
            return
        members.set_times(self.configs(group_id))
        visibility = getattr(call, "visibility", None)  # of consumers only
        members.heartbeat(request, topics, decision, *((visibility,) if visibility else ()))
        if members.is_stored and group.members is not members:
            group.members.erase(decision)
            group.members = members  # a rejected first join creates no group
        self._finish(group)

    def _find(self, group_id: str, kind: type[Any], *, is_join: bool) -> tuple[Any, Any, ErrorCode]:
        group, code = self._find_or_create(group_id, may_create=is_join)
        if group is None or isinstance(group.members, kind):
            return group, group and group.members, code
        if is_join and (group.is_blank if kind is ShareGroup else group.is_idle_classic):
            return group, kind(group_id, self._settings), code
        return None, None, ErrorCode.GROUP_ID_NOT_FOUND

    def due_patterns(self, call: calls.BeatConsumer, topics: Topics) -> DuePatterns:
        members = self._members(call.group_id)
        if not isinstance(members, ConsumerGroup):
            members = ConsumerGroup(call.group_id, self._settings)
        return members.due_patterns(call.request, topics, call.visibility)

    def _members(self, group_id: str) -> Members | None:
        group = self._groups.get(group_id)
        return None if group is None else group.members

    def pending_assignment(self, group_id: str) -> AssignmentInput | None:
        """Return the input of a large assignment that must be computed in a thread, or None."""
        members = self._members(group_id)
        return members.pending if isinstance(members, StreamsGroup) else None

    def take_assignment(self, assignment: Assignment, decision: Decision) -> None:
        group = self._groups.get(assignment.input.group_id)
        if group is not None and isinstance(group.members, StreamsGroup):
            group.members.take_assignment(assignment, decision)
            self._finish(group)

    def make_share(self, call: calls.MakeShareGroup, decision: Decision) -> None:
        group, share, code = self._find(call.group_id, ShareGroup, is_join=True)
        if group is not None and share is not None and not share.is_stored:
            share.begin(decision)
            group.members = share
        decision.reply(Reply(code), after_commit=share is not None)
        self._finish(group)

    # ── Offsets ──────────────────────────────────────────────────────────────────────────────
    def commit(
        self,
        call: calls.Commit | calls.CommitInTransaction,
        decision: Decision,
        producer: tuple[int, int] | None = None,  # id and epoch, in a transaction
    ) -> None:
        request = call.request
        group, code = self._find_or_create(call.group_id, may_create=request.generation < 0)
        if group is not None:
            code = self._commit_refusal(group, request, decision.now_ms, producer)
        elif code is ErrorCode.GROUP_ID_NOT_FOUND and (producer or not request.knows_epochs):
            code = ErrorCode.ILLEGAL_GENERATION  # as older clients expect for an unknown group
        if code or group is None:
            results = tuple((p.topic_id, p.partition, code) for p in request.partitions)
            decision.reply(CommitReply(code, results))
        else:
            reply = group.offsets.commit(request, decision, self._settings.offsets_max, producer)
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
        if isinstance(members, ClassicGroup):
            return members.check_commit(request, is_transactional=is_transactional, now_ms=now_ms)
        return members.check_commit(request, is_transactional=is_transactional)

    def complete_transaction(self, call: calls.CompleteTransaction, decision: Decision) -> None:
        """Commit or drop the pending offsets of a transaction. A repeated call has no effect."""
        producer_id = call.producer_id
        if call.producer_epoch < self._fences.epoch_of(producer_id):
            decision.reply(Reply(ErrorCode.INVALID_PRODUCER_EPOCH))
            return
        for group_id in sorted(self._open_groups.get(producer_id, ())):
            group = self._groups[group_id]
            group.offsets.complete(producer_id, decision, is_commit=call.is_commit)
            self._finish(group)
        self._fences.raise_to(producer_id, call.producer_epoch, decision)
        decision.reply(Reply(), after_commit=True)

    def fetch(self, call: calls.FetchOffsets) -> FetchReply:
        """Return the committed offsets of a group. For an unknown group, all offsets are -1."""
        group = self._groups.get(call.group_id)
        members = None if group is None else group.members
        if isinstance(members, ShareGroup):
            return FetchReply(ErrorCode.GROUP_ID_NOT_FOUND)
        member_id, epoch = call.member_id, call.member_epoch
        if isinstance(members, AssignedGroup) and member_id is not None and epoch >= 0:
            request = CommitRequest((), member_id, epoch)
            code = members.check_commit(request, is_transactional=False)
            if code:
                return FetchReply(code)
        offsets = Offsets(call.group_id, {}, self._usage) if group is None else group.offsets
        return offsets.fetch(call.partitions, requires_stable=call.requires_stable)

    def delete_offsets(self, call: calls.DeleteOffsets, decision: Decision) -> None:
        """Delete offsets. Partitions of topics that the group subscribes to are rejected."""
        group = self._groups.get(call.group_id)
        if group is None or isinstance(group.members, ShareGroup):  # share groups have no offsets
            decision.reply(CommitReply(ErrorCode.GROUP_ID_NOT_FOUND))
            return
        subscribed = group.members.subscribed()
        if subscribed is None:
            decision.reply(CommitReply(ErrorCode.NON_EMPTY_GROUP))
            return
        results = []
        for topic_id, name, partition in call.partitions:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if name in subscribed else ErrorCode.NONE
            if not code:
                group.offsets.delete((topic_id, partition), decision)
            results.append((topic_id, partition, code))
        decision.reply(CommitReply(partitions=tuple(results)), after_commit=True)
        self._finish(group)

    def change_configs(self, call: calls.ChangeConfigs, decision: Decision) -> None:
        group_id, bound = call.group_id, self._settings.configs_max
        before = self.configs(group_id)
        merged = {**before, **call.changes}
        after = {name: text for name, text in sorted(merged.items()) if text is not None}
        if not group_id or len(group_id) > GROUP_ID_CHARS_MAX:
            decision.reply(Reply(ErrorCode.INVALID_GROUP_ID))
        elif (after and not before) and (
            len(self._configs) >= bound or not self._usage.may_add(group_id, GROUP_CONFIGS, bound)
        ):
            decision.reply(Reply(ErrorCode.GROUP_MAX_SIZE_REACHED))
        else:
            if after != before:
                self._put_configs(group_id, ConfigsValue(after) if after else None, decision)
            decision.reply(Reply(), after_commit=True)

    # ── Whole groups ─────────────────────────────────────────────────────────────────────────
    def delete_group(self, call: calls.DeleteGroup, decision: Decision) -> None:
        group = self._groups.get(call.group_id)
        if group is None:
            decision.reply(Reply(ErrorCode.GROUP_ID_NOT_FOUND))
        elif group.members.state != State.EMPTY:
            decision.reply(Reply(ErrorCode.NON_EMPTY_GROUP))
        else:
            self._erase(group, decision)
            decision.reply(Reply(), after_commit=True)

    def list_groups(self, call: calls.ListGroups) -> tuple[Listing, ...]:
        """List the groups that match. Filters ignore case; an empty filter matches all groups."""
        states = {state.lower() for state in call.states}
        kinds = {kind.lower() for kind in call.kinds}
        return tuple(
            Listing(each.group_id, each.protocol_type, each.state, each.kind)
            for each in (group.members for group in self._groups.values())
            if (not states or each.state.lower() in states) and (not kinds or each.kind in kinds)
        )

    def describe(self, group_id: str) -> Description:
        """Describe a group. An unknown group has the code GROUP_ID_NOT_FOUND and the state Dead."""
        group = self._groups.get(group_id)
        if group is None:
            return Description(ErrorCode.GROUP_ID_NOT_FOUND, group_id, state=State.DEAD)
        return group.members.describe()

    def forget_topics(self, topic_ids: frozenset[str], decision: Decision) -> None:
        for group in list(self._groups.values()):
            group.offsets.erase(decision, topic_ids)
            self._finish(group)

    # ── Time ─────────────────────────────────────────────────────────────────────────────────
    def tick(self, decision: Decision) -> None:
        while (group_id := self._wakes.pop_due(decision.now_ms)) is not None:
            group = self._groups[group_id]
            group.members.tick(decision)
            self._finish(group)

    def expire(self, decision: Decision, *, topic_ids: Callable[[str, str], str | None]) -> None:
        """Drop old offsets and empty groups. ``topic_ids(group_id, name)`` finds a topic's id."""
        self._fences.expire(decision)
        bound_ms = decision.wall_ms - self._settings.offsets_retention_ms
        for group in list(self._groups.values()):
            members = group.members
            if isinstance(members, ShareGroup):
                continue  # share groups have no offsets and stay until they are deleted
            if members.state == State.EMPTY:
                if members.changed_at_ms is None or members.changed_at_ms < bound_ms:
                    # If the group has only offsets, each offset expires by its age.
                    group.offsets.expire(decision, older_than_ms=bound_ms)
                    is_idle = not isinstance(members, ClassicGroup) or members.is_idle
                    if not len(group.offsets) and is_idle:
                        self._erase(group, decision)
                continue
            subscribed = members.subscribed()
            if subscribed is not None:
                # Only offsets of topics without a subscriber expire.
                found = (topic_ids(group.id, name) for name in subscribed)
                kept = frozenset(topic_id for topic_id in found if topic_id is not None)
                group.offsets.expire(decision, older_than_ms=bound_ms, topics_kept=kept)


_KINDS: dict[type[Heartbeat], type[ConsumerGroup | ShareGroup | StreamsGroup]] = {
    ConsumerHeartbeat: ConsumerGroup,
    ShareHeartbeat: ShareGroup,
    StreamsHeartbeat: StreamsGroup,
}
