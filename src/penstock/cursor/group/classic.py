"""The classic group protocol: members join, one of them assigns, all get their assignment.

No join gets a reply until all known members have joined again or the time for it is over, so all
members of a generation start together. Then the group waits for the leader's assignment, which is
opaque here: eager and cooperative consumers are served alike.

A member with an instance id is static: it may leave and return with a new member id within its
session timeout without a rebalance.

This module has the decisions for each request, ``rebalance.py`` the phases that they start,
``classic_state.py`` the states and data types. ``groups.py`` finds and creates groups.
"""

from collections.abc import Sequence

from penstock.cursor.group.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    Member,
    State,
    SyncReply,
    SyncRequest,
    Trigger,
    member_of,
    shared_protocols,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Draft, Reply
from penstock.cursor.group.rebalance import PENDING, SESSION, Rebalance
from penstock.cursor.group.settings import MEMBER_PROTOCOLS_MAX, NEW_MEMBER_MS_MAX
from penstock.cursor.group.subscription import subscribed_topics


class ClassicGroup(Rebalance):
    # ── Join ─────────────────────────────────────────────────────────────────────────────────
    def join(
        self, request: JoinRequest, draft: Draft, *, ticket: int, now_ms: int, wall_ms: int
    ) -> None:
        code = self._join_refusal(request)
        if code:
            draft.answer(ticket, JoinReply(code, member_id=request.member_id))
        elif request.member_id:
            self._join_known(request, draft, ticket, now_ms, wall_ms)
        else:
            self._join_new(request, draft, ticket, now_ms, wall_ms)

    def _join_refusal(self, request: JoinRequest) -> Code:
        settings = self._settings
        if not settings.session_ms_min <= request.session_ms <= settings.session_ms_max:
            return Code.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not 0 < len(request.protocols) <= MEMBER_PROTOCOLS_MAX:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if self._members:
            # A member that replaces its row must agree with the other members only.
            member_id = self._static.get(request.instance_id or "", request.member_id)
            others = [m for m in self._members.values() if m.id != member_id]
            names = {name for name, _ in request.protocols}
            if request.protocol_type != self._protocol_type:
                return Code.INCONSISTENT_GROUP_PROTOCOL
            if others and not names & shared_protocols(others):
                return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.NONE

    def _join_new(
        self, request: JoinRequest, draft: Draft, ticket: int, now_ms: int, wall_ms: int
    ) -> None:
        member_id = request.fresh_member_id
        if request.instance_id is not None and request.instance_id in self._static:
            self._replace_static(request, draft, ticket, now_ms, wall_ms)
        elif len(self._members) + len(self._pending) >= self._settings.members_max:
            draft.answer(ticket, JoinReply(Code.GROUP_MAX_SIZE_REACHED))
        elif request.instance_id is None and request.confirms_id:
            self._pending.add(member_id)
            self._deadlines.set((PENDING, member_id), now_ms + request.session_ms)
            draft.answer(ticket, JoinReply(Code.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(request, member_id, draft, ticket, now_ms, wall_ms)

    def _join_known(
        self, request: JoinRequest, draft: Draft, ticket: int, now_ms: int, wall_ms: int
    ) -> None:
        member_id = request.member_id
        if member_id in self._pending and request.instance_id is None:
            self._pending.discard(member_id)
            self._deadlines.drop((PENDING, member_id))
            self._add(request, member_id, draft, ticket, now_ms, wall_ms)
            return
        code = self._refusal(member_id, request.instance_id)
        if code:
            draft.answer(ticket, JoinReply(code, member_id=member_id))
            return
        member = self._members[member_id]
        has_changed = member.protocols != request.protocols
        is_stable = self._state is State.STABLE
        if self._state is State.PREPARING:
            self._join_again(member, request, draft, ticket)
            self._maybe_complete_join(draft, now_ms, wall_ms)
        elif has_changed or (is_stable and member_id == self._leader):
            # A leader that joins again in a stable group requests a new assignment: it watches the
            # topics for all members.
            self._join_again(member, request, draft, ticket)
            self._rebalance(draft, now_ms, wall_ms)
        else:
            # The reply to its last join was lost.
            self._arm_session(member, now_ms)
            draft.answer(ticket, self._join_reply(member), after_commit=is_stable)

    def _add(
        self,
        request: JoinRequest,
        member_id: str,
        draft: Draft,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        if not self._members:
            self._protocol_type = request.protocol_type
        member = member_of(request, member_id)
        member.join_ticket = ticket
        member.is_new = True
        self._members[member_id] = member
        if request.instance_id is not None:
            self._static[request.instance_id] = member_id
        if self._leader is None:
            self._leader = member_id
        self._deadlines.set((SESSION, member_id), now_ms + NEW_MEMBER_MS_MAX)
        if self._state is State.PREPARING:
            self._has_newcomers = True
            self._maybe_complete_join(draft, now_ms, wall_ms)
        else:
            self._rebalance(draft, now_ms, wall_ms)

    def _join_again(self, member: Member, request: JoinRequest, draft: Draft, ticket: int) -> None:
        # A member that joins twice has lost the connection of its first request.
        draft.answer(member.join_ticket, JoinReply(Code.REBALANCE_IN_PROGRESS))
        member.join_ticket = ticket
        member.protocols = request.protocols
        member.session_ms = request.session_ms
        member.rebalance_ms = request.patience_ms
        member.client_id = request.client_id
        member.client_host = request.client_host

    def _replace_static(
        self, request: JoinRequest, draft: Draft, ticket: int, now_ms: int, wall_ms: int
    ) -> None:
        """Replace a static member that returned without its member id. The old id is fenced."""
        assert request.instance_id is not None
        old = self._members[self._static[request.instance_id]]
        self._answer_parked(old, draft, Code.FENCED_INSTANCE_ID)
        member = member_of(request, request.fresh_member_id)
        member.assignment = old.assignment
        # In the same position, because the order of members decides on the next leader.
        self._members = {
            (member.id if key == old.id else key): (member if key == old.id else value)
            for key, value in self._members.items()
        }
        self._static[request.instance_id] = member.id
        self._unsynced.discard(old.id)
        self._deadlines.drop((SESSION, old.id))
        was_leader = self._leader == old.id
        if was_leader:
            self._leader = member.id
        if self._state is State.STABLE and member.protocols == old.protocols:
            self._arm_session(member, now_ms)
            self._save(draft, wall_ms)
            reply = self._join_reply(member)
            if was_leader:
                # The member must not assign again. Old clients only understand another leader.
                skips = request.can_skip_assignment
                leader, members = (member.id, reply.members) if skips else (old.id, ())
                reply = JoinReply(
                    generation=reply.generation,
                    protocol_type=reply.protocol_type,
                    protocol=reply.protocol,
                    leader=leader,
                    member_id=member.id,
                    skip_assignment=skips,
                    members=members,
                )
            draft.answer(ticket, reply, after_commit=True)
            return
        member.join_ticket = ticket
        self._arm_session(member, now_ms)
        if self._state is State.PREPARING:
            self._maybe_complete_join(draft, now_ms, wall_ms)
        else:
            self._rebalance(draft, now_ms, wall_ms)

    # ── Sync ─────────────────────────────────────────────────────────────────────────────────
    def sync(
        self, request: SyncRequest, draft: Draft, *, ticket: int, now_ms: int, wall_ms: int
    ) -> None:
        code = self._sync_refusal(request)
        if code:
            draft.answer(ticket, SyncReply(code))
            return
        member = self._members[request.member_id]
        self._arm_session(member, now_ms)
        self._unsynced.discard(member.id)
        if self._state is State.STABLE:
            # After the commit, because the leader's assignment may not be in the log yet.
            draft.answer(ticket, self._sync_reply(member), after_commit=True)
            return
        draft.answer(member.sync_ticket, SyncReply(Code.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        if member.id == self._leader:
            self._assign(request.assignments, draft, now_ms, wall_ms)

    def _sync_refusal(self, request: SyncRequest) -> Code:
        code = self._refusal(request.member_id, request.instance_id)
        if code:
            return code
        if request.generation != self._generation:
            return Code.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self._protocol_type):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, self._protocol):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.REBALANCE_IN_PROGRESS if self._state is State.PREPARING else Code.NONE

    def _assign(
        self,
        assignments: Sequence[tuple[str, bytes]],
        draft: Draft,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        given = dict(assignments)
        for member in self._members.values():
            member.assignment = given.get(member.id, b"")
        self._move(Trigger.ASSIGNED)
        self._save(draft, wall_ms)
        for member in self._members.values():
            if member.sync_ticket is not None:
                draft.answer(member.sync_ticket, self._sync_reply(member), after_commit=True)
                member.sync_ticket = None
                self._arm_session(member, now_ms)

    # ── Heartbeat, leave ─────────────────────────────────────────────────────────────────────
    def heartbeat(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        draft: Draft,
        *,
        ticket: int,
        now_ms: int,
    ) -> None:
        code = self._refusal(member_id, instance_id)
        if not code and generation != self._generation:
            code = Code.ILLEGAL_GENERATION
        if not code:
            self._arm_session(self._members[member_id], now_ms)
            if self._state is State.PREPARING:
                code = Code.REBALANCE_IN_PROGRESS
        draft.answer(ticket, Reply(code))

    def leave(
        self,
        leavers: Sequence[tuple[str, str | None]],
        draft: Draft,
        *,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        """Remove members, given as (member id, instance id). With an instance id the member id may
        be empty: an operator removes a static member whose member id only the group knows."""
        results = []
        has_lost = False
        for member_id, instance_id in leavers:
            known_id = member_id or self._static.get(instance_id or "", "")
            if known_id in self._pending:
                self._pending.discard(known_id)
                self._deadlines.drop((PENDING, known_id))
                code = Code.NONE
            else:
                code = self._refusal(known_id, instance_id)
                if not code:
                    self._remove(self._members[known_id], draft)
                    has_lost = True
            results.append((member_id, instance_id, code))
        if has_lost:
            self._on_lost(draft, now_ms, wall_ms)
        else:
            self._maybe_complete_join(draft, now_ms, wall_ms)
        draft.answer(ticket, LeaveReply(members=tuple(results)))

    # ── Commits ──────────────────────────────────────────────────────────────────────────────
    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        now_ms: int,
    ) -> Code:
        """Return whether the member may commit offsets; a commit also counts as a heartbeat."""
        if generation < 0 and not self._members:
            return Code.NONE  # a consumer that assigns its partitions itself
        if generation < 0 and not member_id and instance_id is None:
            return Code.NONE if is_transactional else Code.UNKNOWN_MEMBER_ID
        code = self._refusal(member_id, instance_id)
        if code:
            return code
        if generation != self._generation:
            return Code.ILLEGAL_GENERATION
        if self._state is State.COMPLETING and not is_transactional:
            # The owners of partitions are just being decided. Producers treat this code as fatal.
            return Code.REBALANCE_IN_PROGRESS
        self._arm_session(self._members[member_id], now_ms)
        return Code.NONE

    def subscribed(self) -> frozenset[str] | None:
        """Return the names of the topics that the members read; None if only the members know them,
        because they are not plain consumers."""
        if not self._members:
            return frozenset()
        if self._protocol_type != "consumer":
            return None
        names: set[str] = set()
        for member in self._members.values():
            for _, metadata in member.protocols:
                topics = subscribed_topics(metadata)
                if topics is None:
                    return None
                names |= topics
        return frozenset(names)
