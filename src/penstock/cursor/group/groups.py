"""All groups of one coordinator partition: the entry point of every group protocol request.

A request has a ticket and results in a ``Decision``. A group has one kind at a time: classic,
consumer or streams (assigned by the coordinator), or share. An empty group changes between classic
and consumer, and between classic and streams, when a member of the other kind joins; its offsets
stay. A group whose consumers assign partitions themselves has offsets only, and counts as classic.
A share group has no offsets and never changes its kind.

Reads (``fetch``, ``list_groups``, ``describe``) return the state in memory: the broker holds their
replies, like all replies marked so, until earlier appends are committed.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.cursor.group.assignors import TopicPartition
from penstock.cursor.group.classic import ClassicGroup
from penstock.cursor.group.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    State,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import (
    JOIN,
    ConsumerGroup,
    ConsumerHeartbeat,
    ConsumerReply,
    Topics,
    malformed,
)
from penstock.cursor.group.decision import Decision, Draft, Reply
from penstock.cursor.group.describe import (
    Description,
    Listing,
    describe_classic,
    describe_consumer,
    describe_share,
    describe_streams,
)
from penstock.cursor.group.heartbeat_groups import HeartbeatGroups
from penstock.cursor.group.offsets import CommitReply, CommitRequest, FetchReply, Offsets
from penstock.cursor.group.sight import Sight
from penstock.cursor.group.table import Group
from penstock.model.quotas import OFFSET_BYTES


class Groups(HeartbeatGroups):
    # ── The classic protocol ─────────────────────────────────────────────────────────────────
    def join(
        self, group_id: str, request: JoinRequest, *, ticket: int, now_ms: int, wall_ms: int
    ) -> Decision:
        draft = Draft()
        group, code = self._find_or_create(group_id, may_create=not request.member_id)
        if group is not None and group.share is not None:
            group, code = None, Code.INCONSISTENT_GROUP_PROTOCOL
        assigned = None if group is None else group.consumer or group.streams
        if group is not None and assigned is not None:
            if assigned.is_empty:
                assigned.erase(draft)
                group.consumer = group.streams = None
            else:
                group, code = None, Code.INCONSISTENT_GROUP_PROTOCOL
        if group is None:
            code = Code.UNKNOWN_MEMBER_ID if code is Code.GROUP_ID_NOT_FOUND else code
            draft.answer(ticket, JoinReply(code, member_id=request.member_id))
            return draft.decide(self._wakes.next_ms())
        if group.classic is None:
            group.classic = ClassicGroup(group_id, self._settings)
        group.classic.join(request, draft, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms)
        return self._finish(group, draft)

    def sync(
        self, group_id: str, request: SyncRequest, *, ticket: int, now_ms: int, wall_ms: int
    ) -> Decision:
        draft = Draft()
        group = self._groups.get(group_id)
        if group is None or group.classic is None:
            draft.answer(ticket, SyncReply(Code.UNKNOWN_MEMBER_ID))
            return draft.decide(self._wakes.next_ms())
        group.classic.sync(request, draft, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms)
        return self._finish(group, draft)

    def heartbeat(
        self,
        group_id: str,
        *,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        ticket: int,
        now_ms: int,
    ) -> Decision:
        draft = Draft()
        group = self._groups.get(group_id)
        if group is None or group.classic is None:
            draft.answer(ticket, Reply(Code.UNKNOWN_MEMBER_ID))
            return draft.decide(self._wakes.next_ms())
        group.classic.heartbeat(
            member_id, instance_id, generation, draft, ticket=ticket, now_ms=now_ms
        )
        return self._finish(group, draft)

    def leave(
        self,
        group_id: str,
        leavers: Sequence[tuple[str, str | None]],
        *,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """Remove members, given as (member id, instance id). Versions below 3 have one member,
        whose code becomes the code of the reply."""
        draft = Draft()
        group = self._groups.get(group_id)
        if group is None or group.classic is None:
            results = tuple((m, i, Code.UNKNOWN_MEMBER_ID) for m, i in leavers)
            draft.answer(ticket, LeaveReply(members=results))
            return draft.decide(self._wakes.next_ms())
        group.classic.leave(leavers, draft, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms)
        return self._finish(group, draft)

    # ── The consumer protocol ────────────────────────────────────────────────────────────────
    def consumer_heartbeat(
        self,
        group_id: str,
        request: ConsumerHeartbeat,
        topics: Topics,
        *,
        sight: Sight | None = None,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        draft = Draft()
        refusal = malformed(request, topics)
        if refusal is not None:
            draft.answer(ticket, refusal)
            return draft.decide(self._wakes.next_ms())
        group, code = self._find_or_create(group_id, may_create=request.member_epoch == JOIN)
        if group is not None and group.consumer is None:
            if request.member_epoch == JOIN and self._is_idle_classic(group):
                self._erase_classic(group, draft)
            else:
                group, code = None, Code.GROUP_ID_NOT_FOUND
        if group is None:
            text = self._no_group(group_id, code, "consumer")
            draft.answer(ticket, ConsumerReply(code, text))
            return draft.decide(self._wakes.next_ms())
        consumer = group.consumer or ConsumerGroup(group_id, self._settings)
        consumer.times = self._times(group_id)
        consumer.heartbeat(
            request, topics, draft, sight=sight, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms
        )
        if consumer.epoch:  # a rejected first join creates no group
            group.consumer = consumer
        return self._finish(group, draft)

    def due_patterns(
        self,
        group_id: str,
        request: ConsumerHeartbeat,
        topics: Topics,
        sight: Sight | None,
    ) -> tuple[frozenset[str], str]:
        """Call ``ConsumerGroup.due_patterns`` of a group that may not exist yet."""
        group = self._groups.get(group_id)
        consumer = None if group is None else group.consumer
        if consumer is None:
            consumer = ConsumerGroup(group_id, self._settings)
        return consumer.due_patterns(request, topics, sight)

    # ── Offsets ──────────────────────────────────────────────────────────────────────────────
    def commit(
        self, group_id: str, request: CommitRequest, *, ticket: int, now_ms: int, wall_ms: int
    ) -> Decision:
        def check(group: Group) -> Code:
            if group.share is not None:
                return Code.GROUP_ID_NOT_FOUND
            if group.consumer is not None:
                if not request.knows_epochs and not group.consumer.is_empty:
                    return Code.UNKNOWN_MEMBER_ID
                return group.consumer.check_commit(
                    request.member_id, request.generation, stale=Code.STALE_MEMBER_EPOCH
                )
            if group.streams is not None:
                if not request.knows_epochs and not group.streams.is_empty:
                    return Code.UNSUPPORTED_VERSION
                return group.streams.check_commit(
                    request.member_id,
                    request.generation,
                    request.partitions,
                    stale=Code.STALE_MEMBER_EPOCH,
                )
            return self._check_classic(group, request, now_ms, is_transactional=False)

        return self._commit(group_id, request, check, None, ticket, wall_ms)

    def commit_in_transaction(
        self,
        group_id: str,
        request: CommitRequest,
        *,
        producer_id: int,
        producer_epoch: int,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """Commit offsets in a transaction. The broker has checked that the group is part of it."""

        def check(group: Group) -> Code:
            if group.share is not None:
                return Code.GROUP_ID_NOT_FOUND
            known_epoch = max(
                self._fences.epoch_of(producer_id), group.offsets.epoch_of(producer_id)
            )
            if producer_epoch < known_epoch:
                return Code.INVALID_PRODUCER_EPOCH
            if group.consumer is not None:
                return group.consumer.check_commit(
                    request.member_id, request.generation, stale=Code.ILLEGAL_GENERATION
                )
            if group.streams is not None:
                return group.streams.check_commit(
                    request.member_id,
                    request.generation,
                    request.partitions,
                    is_transactional=True,
                    stale=Code.ILLEGAL_GENERATION,
                )
            return self._check_classic(group, request, now_ms, is_transactional=True)

        producer = (producer_id, producer_epoch)
        return self._commit(group_id, request, check, producer, ticket, wall_ms)

    def _check_classic(
        self, group: Group, request: CommitRequest, now_ms: int, *, is_transactional: bool
    ) -> Code:
        if group.classic is None:
            return Code.NONE if request.generation < 0 else Code.UNKNOWN_MEMBER_ID
        return group.classic.check_commit(
            request.member_id,
            request.instance_id,
            request.generation,
            is_transactional=is_transactional,
            now_ms=now_ms,
        )

    def _commit(
        self,
        group_id: str,
        request: CommitRequest,
        check: Callable[[Group], Code],
        producer: tuple[int, int] | None,
        ticket: int,
        wall_ms: int,
    ) -> Decision:
        draft = Draft()
        group, code = self._find_or_create(group_id, may_create=request.generation < 0)
        if group is not None:
            code = check(group)
        elif code is Code.GROUP_ID_NOT_FOUND and (producer or not request.knows_epochs):
            code = Code.ILLEGAL_GENERATION  # what older clients expect for an unknown group
        if code or group is None:
            results = tuple((p.topic_id, p.partition, code) for p in request.partitions)
            draft.answer(ticket, CommitReply(code, results))
        else:
            reply = group.offsets.commit(
                request,
                draft,
                wall_ms=wall_ms,
                entries_max=self._settings.offsets_max,
                bytes_max=self._held.room(group.account, OFFSET_BYTES),
                producer=producer,
            )
            draft.answer(ticket, reply, after_commit=True)
        return draft.decide(self._wakes.next_ms()) if group is None else self._finish(group, draft)

    def complete_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        ticket: int,
        wall_ms: int,
    ) -> Decision:
        """Apply the marker of a transaction. A repeated marker changes nothing."""
        draft = Draft()
        if producer_epoch < self._fences.epoch_of(producer_id):
            draft.answer(ticket, Reply(Code.INVALID_PRODUCER_EPOCH))
            return draft.decide(self._wakes.next_ms())
        for group_id in sorted(self._open_groups.get(producer_id, ())):
            group = self._groups[group_id]
            group.offsets.complete(producer_id, draft, is_commit=is_commit)
            self._drop_if_blank(group)
        self._fences.raise_to(producer_id, producer_epoch, draft, wall_ms=wall_ms)
        draft.answer(ticket, Reply(), after_commit=True)
        return draft.decide(self._wakes.next_ms())

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        requires_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchReply:
        """Return committed offsets. An unknown group has none; that is not an error."""
        group = self._groups.get(group_id)
        if group is None:
            nothing = Offsets(group_id, {}, self._held)
            return nothing.fetch(partitions, requires_stable=requires_stable)
        if group.share is not None:
            return FetchReply(Code.GROUP_ID_NOT_FOUND)
        assigned = group.consumer or group.streams
        if assigned is not None and member_id is not None and member_epoch >= 0:
            code = assigned.check_commit(member_id, member_epoch, stale=Code.STALE_MEMBER_EPOCH)
            if code:
                return FetchReply(code)
        return group.offsets.fetch(partitions, requires_stable=requires_stable)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, str, int]], *, ticket: int
    ) -> Decision:
        """Delete offsets, given as (topic id, topic name, partition), of topics not subscribed."""
        draft = Draft()
        group = self._groups.get(group_id)
        if group is not None and group.share is not None:
            group = None  # share groups have no offsets
        subscribed = self._subscribed(group)
        if group is None or subscribed is None:
            code = Code.GROUP_ID_NOT_FOUND if group is None else Code.NON_EMPTY_GROUP
            draft.answer(ticket, CommitReply(code))
            return draft.decide(self._wakes.next_ms())
        results = []
        for topic_id, name, partition in partitions:
            code = Code.GROUP_SUBSCRIBED_TO_TOPIC if name in subscribed else Code.NONE
            if not code:
                group.offsets.delete((topic_id, partition), draft)
            results.append((topic_id, partition, code))
        draft.answer(ticket, CommitReply(partitions=tuple(results)), after_commit=True)
        return self._finish(group, draft)

    @staticmethod
    def _subscribed(group: Group | None) -> frozenset[str] | None:
        """Return the names of subscribed topics; None if only the members know them."""
        if group is None:
            return frozenset()
        if group.share is not None:
            return group.share.subscribed()
        if group.streams is not None:
            return group.streams.subscribed()
        if group.consumer is not None:
            return group.consumer.subscribed() if not group.consumer.is_empty else frozenset()
        return frozenset() if group.classic is None else group.classic.subscribed()

    # ── Whole groups ─────────────────────────────────────────────────────────────────────────
    def delete_group(self, group_id: str, *, ticket: int) -> Decision:
        draft = Draft()
        group = self._groups.get(group_id)
        if group is None:
            draft.answer(ticket, Reply(Code.GROUP_ID_NOT_FOUND))
        elif not group.is_empty:
            draft.answer(ticket, Reply(Code.NON_EMPTY_GROUP))
        else:
            self._erase(group, draft)
            draft.answer(ticket, Reply(), after_commit=True)
        return draft.decide(self._wakes.next_ms())

    def list_groups(
        self, *, states: Collection[str] = (), kinds: Collection[str] = ()
    ) -> tuple[Listing, ...]:
        """List groups. Filters ignore case; an empty filter accepts all."""
        wanted_states = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        found = []
        for group in self._groups.values():
            kind = protocol_type = group.kind
            if kind == "classic":
                protocol_type = "" if group.classic is None else group.classic.protocol_type
            if wanted_states and group.state.lower() not in wanted_states:
                continue
            if wanted_kinds and kind not in wanted_kinds:
                continue
            found.append(Listing(group.id, protocol_type, group.state, kind))
        return tuple(found)

    def describe(self, group_id: str) -> Description:
        """Describe a group of any kind; GROUP_ID_NOT_FOUND with state Dead if there is none."""
        group = self._groups.get(group_id)
        if group is None:
            return Description(Code.GROUP_ID_NOT_FOUND, group_id, state=State.DEAD)
        if group.share is not None:
            return describe_share(group.share)
        if group.streams is not None:
            return describe_streams(group.streams)
        if group.consumer is not None:
            return describe_consumer(group.consumer)
        return describe_classic(group_id, group.classic)

    def forget_topics(self, topic_ids: frozenset[str]) -> Decision:
        """Drop the offsets of deleted topics."""
        draft = Draft()
        for group in list(self._groups.values()):
            group.offsets.forget_topics(topic_ids, draft)
            self._drop_if_blank(group)
        return draft.decide(self._wakes.next_ms())

    # ── Time ─────────────────────────────────────────────────────────────────────────────────
    def tick(self, *, now_ms: int, wall_ms: int) -> Decision:
        draft = Draft()
        while (group_id := self._wakes.pop_due(now_ms)) is not None:
            group = self._groups[group_id]
            if group.classic is not None:
                group.classic.tick(draft, now_ms=now_ms, wall_ms=wall_ms)
            if group.consumer is not None:
                group.consumer.tick(draft, now_ms=now_ms, wall_ms=wall_ms)
            if group.streams is not None:
                group.streams.tick(draft, now_ms=now_ms, wall_ms=wall_ms)
            if group.share is not None:
                group.share.tick(draft, now_ms=now_ms)
            self._arm(group)
            self._drop_if_blank(group)
        return draft.decide(self._wakes.next_ms())

    def expire(self, *, wall_ms: int, topic_ids: Callable[[str, str], str | None]) -> Decision:
        """Drop expired offsets, and empty groups without any left. For a periodic job.
        ``topic_ids``: group id and a topic's name → the topic's id for that group."""
        draft = Draft()
        self._fences.expire(draft, wall_ms=wall_ms)
        bound_ms = wall_ms - self._settings.offsets_retention_ms
        for group in list(self._groups.values()):
            if group.share is not None:
                continue  # has no offsets, and stays until it is deleted
            if group.is_empty:
                self._expire_empty(group, bound_ms, draft)
                continue
            subscribed = self._subscribed(group)
            if subscribed is not None:
                # Offsets of topics without a subscriber expire.
                found = (topic_ids(group.id, name) for name in subscribed)
                kept = frozenset(topic_id for topic_id in found if topic_id is not None)
                group.offsets.expire(draft, older_than_ms=bound_ms, topics_kept=kept)
        return draft.decide(self._wakes.next_ms())

    def _expire_empty(self, group: Group, bound_ms: int, draft: Draft) -> None:
        emptied_at_ms = None  # offsets only: each expires by its age
        if group.consumer is not None:
            emptied_at_ms = group.consumer.changed_at_ms
        elif group.streams is not None:
            emptied_at_ms = group.streams.value.changed_at_ms
        elif group.classic is not None and group.classic.row is not None:
            emptied_at_ms = group.classic.row.changed_at_ms
        if emptied_at_ms is None or emptied_at_ms < bound_ms:
            group.offsets.expire(draft, older_than_ms=bound_ms)
        is_idle = group.classic is None or group.classic.is_idle
        has_aged = emptied_at_ms is None or emptied_at_ms < bound_ms
        if not len(group.offsets) and is_idle and has_aged:
            self._erase(group, draft)
