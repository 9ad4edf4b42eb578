"""The classic group protocol: members join, and one of them assigns the partitions to all.

A join gets its reply when all known members have joined again or the rebalance timeout is over, so
all members of a generation start together. The coordinator does not parse the assignment. A member
with an instance id is static: it may leave and return with a new member id within its session
timeout without a rebalance. ``classic_state.py`` has the phases of a rebalance."""

import struct
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.cursor.groups.classic.classic_state import (
    PENDING,
    SESSION,
    JoinReply,
    JoinRequest,
    LeaveReply,
    Member,
    Rebalance,
    State,
    SyncReply,
    SyncRequest,
    shared_protocols,
)
from penstock.cursor.groups.decision import Decision, Reply
from penstock.cursor.groups.offsets import CommitRequest
from penstock.cursor.groups.settings import MEMBER_PROTOCOLS_MAX, NEW_MEMBER_MS_MAX
from penstock.wire.kafka.faults import ErrorCode


class ClassicGroup(Rebalance):
    def join(self, request: JoinRequest, decision: Decision) -> None:
        code = self._join_refusal(request)
        if code:
            decision.reply(JoinReply(code, member_id=request.member_id))
        elif request.member_id:
            self._join_known(request, decision)
        else:
            self._join_new(request, decision)

    def _join_refusal(self, request: JoinRequest) -> ErrorCode:
        settings = self._settings
        if not settings.session_ms_min <= request.session_ms <= settings.session_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not 0 < len(request.protocols) <= MEMBER_PROTOCOLS_MAX:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self._members:
            # The protocols must match those of the other members, not the member's own old ones.
            member_id = self._static.get(request.instance_id or "", request.member_id)
            others = [m for m in self._members.values() if m.id != member_id]
            names = {name for name, _ in request.protocols}
            is_other = request.protocol_type != self.protocol_type
            if is_other or (others and not names & shared_protocols(others)):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_new(self, request: JoinRequest, decision: Decision) -> None:
        member_id = request.fresh_member_id
        if request.instance_id is not None and request.instance_id in self._static:
            self._replace_static(request, decision)
        elif len(self._members) + len(self._pending) >= self._settings.members_max:
            decision.reply(JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif request.instance_id is None and request.confirms_id:
            self._pending.add(member_id)
            self._deadlines.set((PENDING, member_id), decision.now_ms + request.session_ms)
            decision.reply(JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(request, member_id, decision)

    def _join_known(self, request: JoinRequest, decision: Decision) -> None:
        member_id = request.member_id
        if member_id in self._pending and request.instance_id is None:
            self._pending.discard(member_id)
            self._deadlines.drop((PENDING, member_id))
            self._add(request, member_id, decision)
            return
        code = self._refusal(member_id, request.instance_id)
        if code:
            decision.reply(JoinReply(code, member_id=member_id))
            return
        member = self._members[member_id]
        has_changed = member.row.protocols != request.protocols
        is_stable = self.state is State.STABLE
        if self.state is State.PREPARING:
            self._join_again(member, request, decision)
            self._maybe_complete_join(decision)
        elif has_changed or (is_stable and member_id == self.leader):
            # A leader that joins a stable group again requests a new assignment, for example
            # because the topics have changed.
            self._join_again(member, request, decision)
            self._rebalance(decision)
        else:
            # The member did not get the reply to its last join.
            self._arm_session(member, decision.now_ms)
            decision.reply(self._join_reply(member), after_commit=is_stable)

    def _add(self, request: JoinRequest, member_id: str, decision: Decision) -> None:
        if not self._members:
            self.protocol_type = request.protocol_type
        row = request.row(member_id)
        self._members[member_id] = Member(row, join_ticket=decision.ticket, is_new=True)
        if request.instance_id is not None:
            self._static[request.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._deadlines.set((SESSION, member_id), decision.now_ms + NEW_MEMBER_MS_MAX)
        self._has_newcomers = True  # reset if a rebalance begins now
        self._go_on(decision)

    def _join_again(self, member: Member, request: JoinRequest, decision: Decision) -> None:
        # A member that joins twice lost the connection of its first request.
        decision.reply_to(member.join_ticket, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS))
        member.join_ticket = decision.ticket
        row = request.row(member.id, member.row.assignment)
        member.row = replace(row, instance_id=member.row.instance_id)

    def _replace_static(self, request: JoinRequest, decision: Decision) -> None:
        """Give a new member id to a static member that rejoins. Requests with the old id fail."""
        assert request.instance_id is not None
        old = self._members[self._static[request.instance_id]]
        self._reply_parked(old, decision, ErrorCode.FENCED_INSTANCE_ID)
        member = Member(request.row(request.fresh_member_id, old.row.assignment))
        # Keep the position, because the order of members determines the next leader.
        self._members = {
            (member.id if key == old.id else key): (member if key == old.id else value)
            for key, value in self._members.items()
        }
        self._static[request.instance_id] = member.id
        self._unsynced.discard(old.id)
        self._deadlines.drop((SESSION, old.id))
        was_leader = self.leader == old.id
        if was_leader:
            self.leader = member.id
        if self.state is State.STABLE and member.row.protocols == old.row.protocols:
            self._arm_session(member, decision.now_ms)
            self._save(decision)
            reply = self._join_reply(member)
            if was_leader:
                # The member must not assign again. Old clients need another leader id for that.
                skips = request.can_skip_assignment
                leader, members = (member.id, reply.members) if skips else (old.id, ())
                reply = replace(reply, leader=leader, skip_assignment=skips, members=members)
            decision.reply(reply, after_commit=True)
            return
        member.join_ticket = decision.ticket
        self._arm_session(member, decision.now_ms)
        self._go_on(decision)

    def sync(self, request: SyncRequest, decision: Decision) -> None:
        code = self._sync_refusal(request)
        if code:
            decision.reply(SyncReply(code))
            return
        member = self._members[request.member_id]
        self._arm_session(member, decision.now_ms)
        self._unsynced.discard(member.id)
        if self.state is State.STABLE:
            # Reply after the commit, because the leader's assignment may not be in the log yet.
            decision.reply(self._sync_reply(member), after_commit=True)
            return
        decision.reply_to(member.sync_ticket, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_ticket = decision.ticket
        if member.id == self.leader:
            self._assign(request.assignments, decision)

    def _sync_refusal(self, request: SyncRequest) -> ErrorCode:
        code = self._refusal(request.member_id, request.instance_id)
        if code:
            return code
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self.protocol_type) or (
            request.protocol not in (None, self.protocol)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else ErrorCode.NONE

    def _assign(self, assignments: Sequence[tuple[str, bytes]], decision: Decision) -> None:
        given = dict(assignments)
        for member in self._members.values():
            member.row = replace(member.row, assignment=given.get(member.id, b""))
        self._move(State.STABLE)
        self._save(decision)
        for member in self._members.values():
            if member.sync_ticket is not None:
                self._reply_sync(member, self._sync_reply(member), decision, after_commit=True)

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, decision: Decision
    ) -> None:
        code = self._refusal(member_id, instance_id)
        if not code and generation != self.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        if not code:
            self._arm_session(self._members[member_id], decision.now_ms)
            if self.state is State.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        decision.reply(Reply(code))

    def leave(self, leavers: Sequence[tuple[str, str | None]], decision: Decision) -> None:
        """Remove members. A static member without a member id is found by its instance id."""
        results = []
        has_lost = False
        for member_id, instance_id in leavers:
            known_id = member_id or self._static.get(instance_id or "", "")
            if known_id in self._pending:
                self._pending.discard(known_id)
                self._deadlines.drop((PENDING, known_id))
                code = ErrorCode.NONE
            else:
                code = self._refusal(known_id, instance_id)
                if not code:
                    self._remove(self._members[known_id], decision)
                    has_lost = True
            results.append((member_id, instance_id, code))
        if has_lost:
            self._go_on(decision)
        else:
            self._maybe_complete_join(decision)
        decision.reply(LeaveReply(members=tuple(results)))

    def check_commit(
        self, request: CommitRequest, *, is_transactional: bool, now_ms: int
    ) -> ErrorCode:
        """Return the error code for a commit. A commit without error also counts as a heartbeat."""
        member_id, instance_id = request.member_id, request.instance_id
        generation = request.generation
        if generation < 0 and not self._members:
            return ErrorCode.NONE  # a consumer that assigns its partitions itself
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        code = self._refusal(member_id, instance_id)
        if code:
            return code
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is State.COMPLETING and not is_transactional:
            # The leader is assigning partitions. Producers treat this code as fatal.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._arm_session(self._members[member_id], now_ms)
        return ErrorCode.NONE

    def subscribed(self) -> frozenset[str] | None:
        """Return the subscribed topics, or None if the protocol type is not ``consumer``."""
        if not self._members:
            return frozenset()
        if self.protocol_type != "consumer":
            return None
        names: set[str] = set()
        for member in self._members.values():
            for _, metadata in member.row.protocols:
                topics = subscribed_topics(metadata)
                if topics is None:
                    return None
                names |= topics
        return frozenset(names)


# The first fields of a consumer's metadata, in all versions:
#     version i16 · count i32 · count x (length i16 · UTF-8)
_HEAD = struct.Struct(">hi")
_LENGTH_BYTES = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topic names in a consumer's metadata, or None if the bytes have another format."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    # Every name has at least a length field: reject a larger count before looping over it.
    if version < 0 or not 0 <= count <= len(metadata) // _LENGTH_BYTES:
        return None
    names = set()
    position = _HEAD.size
    for _ in range(count):
        begin = position + _LENGTH_BYTES
        length = int.from_bytes(metadata[position:begin], "big", signed=True)
        position = begin + length
        if length < 0 or position > len(metadata):
            return None
        try:
            names.add(metadata[begin:position].decode())
        except UnicodeDecodeError:
            return None
    return frozenset(names)
