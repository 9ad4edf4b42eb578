"""The states of a classic group, its requests, replies and members, and the phases of a rebalance.

    Empty ──► PreparingRebalance ──all joined──► CompletingRebalance ──assigned──► Stable
      ▲            │   ▲    ▲                            │                           │
      └──no member─┘   │    └──members or protocols──────┘                           │
                       └───────────────have changed──────────────────────────────────┘

In PreparingRebalance the coordinator waits until every member has joined again; then, in
CompletingRebalance, for the assignment from the leader (a member). The group's row is written when
the group becomes Stable or Empty and when a static member is replaced. Parked requests, timers and
joining members are local to this node: a new coordinator reads the row, treats the group as stable,
and gives every member its session timeout to send a heartbeat. After a crash, a generation number
may be used again if its assignment was not stored. No connection that received it is left then.

A dynamic member that does not join in time is removed. A static member is removed only when its
session ends. A member that waits in a join or sync request counts as alive."""

from collections import Counter
from collections.abc import Collection
from enum import StrEnum

import msgspec

from penstock.cursor.deadlines import Deadlines
from penstock.cursor.groups.decision import ClassicMemberDescription, Decision, Description, Reply
from penstock.cursor.groups.records import CODEC, ClassicMember, ClassicValue, RowKind
from penstock.cursor.groups.settings import GENERATION_MAX, GroupSettings
from penstock.wire.kafka.faults import ErrorCode


class State(StrEnum):
    """The states of a group, with the names that Kafka's clients and tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


BEFORE: dict[State, tuple[State, ...]] = {  # the states that each state may follow
    State.EMPTY: (State.PREPARING,),
    State.PREPARING: (State.EMPTY, State.STABLE, State.COMPLETING),
    State.COMPLETING: (State.PREPARING,),
    State.STABLE: (State.COMPLETING,),
    State.DEAD: (State.EMPTY,),
}


class JoinRequest(msgspec.Struct, frozen=True):
    member_id: str  # empty if the client is not a member yet
    fresh_member_id: str  # unique, from the broker; used if a new member needs an id
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # in order of preference, with metadata
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # JoinGroup v4 and later: a new member first gets its id and joins again with it, so a client
    # that gives up while waiting does not become a second member when it returns.
    confirms_id: bool = True
    # JoinGroup v9 and later: the reply can state that the leader has nothing to assign.
    can_skip_assignment: bool = True

    def row(self, member_id: str, assignment: bytes = b"") -> ClassicMember:
        # JoinGroup v0 has only a session timeout.
        rebalance_ms = self.rebalance_ms if self.rebalance_ms > 0 else self.session_ms
        client = (member_id, self.instance_id, self.client_id, self.client_host)
        return ClassicMember(*client, self.session_ms, rebalance_ms, self.protocols, assignment)


class JoinReply(Reply, frozen=True):
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    skip_assignment: bool = False
    # For the leader only: member id, instance id, metadata for the chosen protocol.
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class SyncRequest(msgspec.Struct, frozen=True):
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncReply(Reply, frozen=True):
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeaveReply(Reply, frozen=True):
    members: tuple[tuple[str, str | None, ErrorCode], ...] = ()


class Member(msgspec.Struct):
    row: ClassicMember
    join_ticket: int | None = None
    sync_ticket: int | None = None
    is_new: bool = False  # whether the first join has no reply yet

    @property
    def id(self) -> str:
        return self.row.member_id

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.row.protocols if name == protocol), b"")


def shared_protocols(members: Collection[Member]) -> set[str]:
    counts = Counter(name for member in members for name in {n for n, _ in member.row.protocols})
    return {name for name, count in counts.items() if count == len(members)}


def select_protocol(members: Collection[Member]) -> str:
    """Return the protocol with the most votes, or the first by name in a tie. Each member votes for
    the first of its protocols that all members support."""
    shared = shared_protocols(members)
    assert shared, "the members must have a protocol in common"
    votes = Counter(
        next(name for name, _ in member.row.protocols if name in shared) for member in members
    )
    return min(votes, key=lambda name: (-votes[name], name))


SESSION = "session"
PENDING = "pending"
_JOIN = ("join", "")
_SYNC = ("sync", "")
_NOTHING = ClassicValue(0, "", None, None, 0, ())


class Rebalance:
    kind = "classic"

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._settings = settings
        # The row that was written last.
        self.row: ClassicValue | None = None
        # The current state; equal to the row while Stable or Empty.
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id → member id
        # Local to this node.
        self._pending: set[str] = set()  # member ids with which no client has joined yet
        self._unsynced: set[str] = set()  # members of this generation that have not sent a sync
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._is_delaying = False  # whether a group that was empty waits for more members
        self._delay_left_ms = 0
        self._has_newcomers = False

    # ── Rows ─────────────────────────────────────────────────────────────────────────────────
    def apply(self, row: ClassicValue | None, *, now_ms: int) -> None:
        self.row = row
        self._deadlines.clear()
        self._pending.clear()
        self._unsynced.clear()
        self._is_delaying = False
        stored = row or _NOTHING
        members = stored.members
        self._members = {m.member_id: Member(m) for m in members}
        self._static = {m.instance_id: m.member_id for m in members if m.instance_id is not None}
        self.state = State.STABLE if members else State.EMPTY
        self.generation = stored.generation
        self.protocol_type, self.protocol = stored.protocol_type, stored.protocol
        self.leader = stored.leader
        for member in self._members.values():
            self._arm_session(member, now_ms)

    def _save(self, decision: Decision) -> None:
        self.row = self.live_row(decision.wall_ms)
        decision.rows.append(CODEC.encode(RowKind.CLASSIC, (self.group_id,), self.row))

    def live_row(self, changed_at_ms: int) -> ClassicValue:
        members = tuple(m.row for m in self._members.values())
        head = (self.generation, self.protocol_type, self.protocol, self.leader)
        return ClassicValue(*head, changed_at_ms, members)

    def erase(self, decision: Decision) -> None:
        if self.row is not None:
            decision.rows.append(CODEC.encode(RowKind.CLASSIC, (self.group_id,), None))

    # ── Queries ──────────────────────────────────────────────────────────────────────────────
    @property
    def is_idle(self) -> bool:
        return self.state is State.EMPTY and not self._pending

    @property
    def is_blank(self) -> bool:
        return self.row is None and self.is_idle

    @property
    def changed_at_ms(self) -> int | None:
        return None if self.row is None else self.row.changed_at_ms

    def describe(self) -> Description:
        is_stable = self.state is State.STABLE  # protocols and assignments change until then
        return Description.of(
            self,
            protocol=(self.protocol or "") if is_stable else "",
            generation=self.generation,
            leader=self.leader or "",
            classic_members=tuple(
                ClassicMemberDescription(
                    m.id,
                    m.row.instance_id,
                    m.row.client_id,
                    m.row.client_host,
                    m.metadata(self.protocol) if is_stable else b"",
                    m.row.assignment if is_stable else b"",
                )
                for m in self._members.values()
            ),
        )

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    # ── Time ─────────────────────────────────────────────────────────────────────────────────
    def tick(self, decision: Decision) -> None:
        while (name := self._deadlines.pop_due(decision.now_ms)) is not None:
            kind, member_id = name
            if name == _JOIN:
                self._on_join_deadline(decision)
            elif name == _SYNC:
                # Remove members that sent no sync; without the leader, the others would wait.
                is_late = self.state in (State.COMPLETING, State.STABLE)
                self._remove_all(sorted(self._unsynced) if is_late else (), decision)
            elif kind == PENDING:
                self._pending.discard(member_id)
                self._maybe_complete_join(decision)
            else:
                member = self._members[member_id]
                is_waiting = member.join_ticket is not None or member.sync_ticket is not None
                if is_waiting and not member.is_new:
                    self._arm_session(member, decision.now_ms)
                else:
                    self._remove_all((member_id,), decision)

    def _on_join_deadline(self, decision: Decision) -> None:
        if self._is_delaying and self._has_newcomers and self._delay_left_ms > 0:
            delay_ms = min(self._settings.initial_delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay_ms
            self._has_newcomers = False
            self._deadlines.set(_JOIN, decision.now_ms + delay_ms)
            return
        self._complete_join(decision)

    def _remove_all(self, member_ids: Collection[str], decision: Decision) -> None:
        for member_id in member_ids:
            self._remove(self._members[member_id], decision)
        if member_ids:
            self._go_on(decision)

    def _arm_session(self, member: Member, now_ms: int) -> None:
        self._deadlines.set((SESSION, member.id), now_ms + member.row.session_ms)

    # ── Phases ───────────────────────────────────────────────────────────────────────────────
    def _move(self, state: State) -> None:
        assert self.state in BEFORE[state], f"{self.state} must not become {state}"
        self.state = state

    def _rebalance(self, decision: Decision) -> None:
        if self.state is State.COMPLETING:
            for member in self._members.values():
                if member.sync_ticket is not None:
                    self._reply_sync(member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS), decision)
        delay_ms = self._settings.initial_delay_ms if self.state is State.EMPTY else 0
        self._move(State.PREPARING)
        self._unsynced.clear()
        self._deadlines.drop(_SYNC)
        self._is_delaying = delay_ms > 0
        self._has_newcomers = False
        wait_ms = self._rebalance_ms()
        if self._is_delaying:
            self._delay_left_ms = max(0, wait_ms - delay_ms)
            wait_ms = delay_ms
        self._deadlines.set(_JOIN, decision.now_ms + wait_ms)
        self._maybe_complete_join(decision)

    def _rebalance_ms(self) -> int:
        requested_ms = max((m.row.rebalance_ms for m in self._members.values()), default=0)
        return max(0, min(requested_ms, self._settings.rebalance_ms_max))

    def _maybe_complete_join(self, decision: Decision) -> None:
        if self.state is not State.PREPARING:
            return
        is_waiting = self._is_delaying or self._pending
        has_all = all(m.join_ticket is not None for m in self._members.values())
        if not self._members or (has_all and not is_waiting):
            self._complete_join(decision)

    def _complete_join(self, decision: Decision) -> None:
        for member in list(self._members.values()):
            if member.join_ticket is None and member.row.instance_id is None:
                self._remove(member, decision)
        joined = [m for m in self._members.values() if m.join_ticket is not None]
        if self._members and not joined:
            # All remaining members are static and away; they stay until their sessions end.
            self._deadlines.set(_JOIN, decision.now_ms + max(1, self._rebalance_ms()))
            return
        self._is_delaying = False
        self._deadlines.drop(_JOIN)
        self.generation = 1 if self.generation == GENERATION_MAX else self.generation + 1
        if not joined:
            self._move(State.EMPTY)
            self.protocol = None
            self.leader = None
            self._save(decision)
            return
        if self.leader is None or self._members[self.leader].join_ticket is None:
            self.leader = joined[0].id
        self.protocol = select_protocol(self._members.values())
        self._move(State.COMPLETING)
        self._unsynced = {m.id for m in joined}
        self._deadlines.set(_SYNC, decision.now_ms + self._rebalance_ms())
        for member in joined:
            decision.reply_to(member.join_ticket, self._join_reply(member))
            member.join_ticket = None
            member.is_new = False
            self._arm_session(member, decision.now_ms)

    # ── Members ──────────────────────────────────────────────────────────────────────────────
    def _refusal(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known_id = self._static.get(instance_id)
            if known_id is not None and known_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def _remove(self, member: Member, decision: Decision) -> None:
        self._reply_parked(member, decision, ErrorCode.UNKNOWN_MEMBER_ID)
        del self._members[member.id]
        if member.row.instance_id is not None:
            del self._static[member.row.instance_id]
        self._unsynced.discard(member.id)
        self._deadlines.drop((SESSION, member.id))
        if self.leader == member.id:
            self.leader = next(iter(self._members), None)

    def _go_on(self, decision: Decision) -> None:
        if self.state is State.PREPARING:
            self._maybe_complete_join(decision)
        else:
            self._rebalance(decision)

    def _reply_parked(self, member: Member, decision: Decision, code: ErrorCode) -> None:
        decision.reply_to(member.join_ticket, JoinReply(code, member_id=member.id))
        decision.reply_to(member.sync_ticket, SyncReply(code))
        member.join_ticket = member.sync_ticket = None

    def _reply_sync(
        self, member: Member, reply: SyncReply, decision: Decision, *, after_commit: bool = False
    ) -> None:
        decision.reply_to(member.sync_ticket, reply, after_commit=after_commit)
        member.sync_ticket = None
        self._arm_session(member, decision.now_ms)

    def _join_reply(self, member: Member) -> JoinReply:
        readers = self._members.values() if member.id == self.leader else ()
        return JoinReply(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.id,
            members=tuple((m.id, m.row.instance_id, m.metadata(self.protocol)) for m in readers),
        )

    def _sync_reply(self, member: Member) -> SyncReply:
        assignment = member.row.assignment
        return SyncReply(ErrorCode.NONE, self.protocol_type, self.protocol, assignment)
