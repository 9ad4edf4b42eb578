"""The phases of a classic group: waiting for joins, waiting for the assignment, and their ends.

One row is durable, written when the group becomes Stable or Empty and when a static member is
replaced. The rest (parked requests, timers, members that are joining) is local to this node: a new
coordinator reads the last row, treats the group as stable, and gives every member its session
timeout to send a heartbeat. A generation number that was sent to members but never got its
assignment can be used again after a crash; the connections that received it are closed by then.

A member that does not join in time is removed, unless it is static: then it stays until its session
ends. Waiting in a join or sync counts as being alive.
"""

from penstock.cursor.group.classic_state import (
    TRANSITIONS,
    JoinReply,
    Member,
    State,
    SyncReply,
    Trigger,
    select_protocol,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.deadlines import Deadlines
from penstock.cursor.group.decision import Draft
from penstock.cursor.group.records import CODEC, ClassicKey, ClassicValue
from penstock.cursor.group.settings import GENERATION_MAX, GroupSettings

SESSION = "session"
PENDING = "pending"
_JOIN = ("join", "")
_SYNC = ("sync", "")


class Rebalance:
    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._settings = settings
        # The last row.
        self.row: ClassicValue | None = None
        # The current state; equal to the row while Stable or Empty.
        self._state = State.EMPTY
        self._generation = 0
        self._protocol_type = ""
        self._protocol: str | None = None
        self._leader: str | None = None
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id → member id
        # Local to this node.
        self._pending: set[str] = set()  # got a member id and have not joined with it yet
        self._unsynced: set[str] = set()  # joined the generation, have not sent a sync yet
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._is_delaying = False  # a group that was empty waits for more members
        self._delay_left_ms = 0
        self._has_newcomers = False

    # ── The fold ─────────────────────────────────────────────────────────────────────────────
    def apply(self, row: ClassicValue | None, *, now_ms: int) -> None:
        self.row = row
        self._deadlines.clear()
        self._pending.clear()
        self._unsynced.clear()
        self._is_delaying = False
        members = () if row is None else row.members
        self._members = {m.member_id: Member(m) for m in members}
        self._static = {m.instance_id: m.member_id for m in members if m.instance_id is not None}
        self._state = State.STABLE if members else State.EMPTY
        self._generation = 0 if row is None else row.generation
        self._protocol_type = "" if row is None else row.protocol_type
        self._protocol = None if row is None else row.protocol
        self._leader = None if row is None else row.leader
        for member in self._members.values():
            self._arm_session(member, now_ms)

    def _save(self, draft: Draft, wall_ms: int) -> None:
        self.row = self.live_row(wall_ms)
        draft.rows.append(CODEC.encode(ClassicKey(self.group_id), self.row))

    def live_row(self, changed_at_ms: int) -> ClassicValue:
        return ClassicValue(
            self._generation,
            self._protocol_type,
            self._protocol,
            self._leader,
            changed_at_ms,
            tuple(m.row() for m in self._members.values()),
        )

    # ── Queries ──────────────────────────────────────────────────────────────────────────────
    @property
    def state(self) -> State:
        return self._state

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def protocol_type(self) -> str:
        return self._protocol_type

    @property
    def protocol(self) -> str | None:
        return self._protocol

    @property
    def leader(self) -> str | None:
        return self._leader

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    @property
    def is_idle(self) -> bool:
        """The group has no member, and no client is joining."""
        return self._state is State.EMPTY and not self._pending

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    # ── Time ─────────────────────────────────────────────────────────────────────────────────
    def tick(self, draft: Draft, *, now_ms: int, wall_ms: int) -> None:
        while (name := self._deadlines.pop_due(now_ms)) is not None:
            kind, member_id = name
            if name == _JOIN:
                self._on_join_deadline(draft, now_ms, wall_ms)
            elif name == _SYNC:
                self._on_sync_deadline(draft, now_ms, wall_ms)
            elif kind == PENDING:
                self._pending.discard(member_id)
                self._maybe_complete_join(draft, now_ms, wall_ms)
            else:
                self._on_session_end(self._members[member_id], draft, now_ms, wall_ms)

    def _on_session_end(self, member: Member, draft: Draft, now_ms: int, wall_ms: int) -> None:
        is_waiting = member.join_ticket is not None or member.sync_ticket is not None
        if is_waiting and not member.is_new:
            self._arm_session(member, now_ms)
            return
        self._remove(member, draft)
        self._on_lost(draft, now_ms, wall_ms)

    def _on_join_deadline(self, draft: Draft, now_ms: int, wall_ms: int) -> None:
        if self._is_delaying and self._has_newcomers and self._delay_left_ms > 0:
            delay_ms = min(self._settings.initial_delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay_ms
            self._has_newcomers = False
            self._deadlines.set(_JOIN, now_ms + delay_ms)
            return
        self._complete_join(draft, now_ms, wall_ms)

    def _on_sync_deadline(self, draft: Draft, now_ms: int, wall_ms: int) -> None:
        """Remove the members that joined this generation but sent no sync; without the leader, the
        others would wait for ever."""
        if self._state not in (State.COMPLETING, State.STABLE) or not self._unsynced:
            return
        for member_id in sorted(self._unsynced):
            self._remove(self._members[member_id], draft)
        self._on_lost(draft, now_ms, wall_ms)

    def _arm_session(self, member: Member, now_ms: int) -> None:
        self._deadlines.set((SESSION, member.id), now_ms + member.session_ms)

    # ── Phases ───────────────────────────────────────────────────────────────────────────────
    def _move(self, trigger: Trigger) -> None:
        self._state = TRANSITIONS[self._state, trigger]

    def _rebalance(self, draft: Draft, now_ms: int, wall_ms: int) -> None:
        """Make all members join again."""
        if self._state is State.COMPLETING:
            for member in self._members.values():
                if member.sync_ticket is not None:
                    draft.answer(member.sync_ticket, SyncReply(Code.REBALANCE_IN_PROGRESS))
                    member.sync_ticket = None
                    self._arm_session(member, now_ms)  # it was alive while it waited
        delay_ms = self._settings.initial_delay_ms if self._state is State.EMPTY else 0
        self._move(Trigger.REBALANCE)
        self._unsynced.clear()
        self._deadlines.drop(_SYNC)
        self._is_delaying = delay_ms > 0
        self._has_newcomers = False
        wait_ms = self._rebalance_ms()
        if self._is_delaying:
            self._delay_left_ms = max(0, wait_ms - delay_ms)
            wait_ms = delay_ms
        self._deadlines.set(_JOIN, now_ms + wait_ms)
        self._maybe_complete_join(draft, now_ms, wall_ms)

    def _rebalance_ms(self) -> int:
        asked_ms = max((m.rebalance_ms for m in self._members.values()), default=0)
        return max(0, min(asked_ms, self._settings.rebalance_ms_max))

    def _maybe_complete_join(self, draft: Draft, now_ms: int, wall_ms: int) -> None:
        if self._state is not State.PREPARING:
            return
        if not self._members:
            self._complete_join(draft, now_ms, wall_ms)
        elif self._is_delaying or self._pending:
            return
        elif all(m.join_ticket is not None for m in self._members.values()):
            self._complete_join(draft, now_ms, wall_ms)

    def _complete_join(self, draft: Draft, now_ms: int, wall_ms: int) -> None:
        absent = [m for m in self._members.values() if m.join_ticket is None]
        for member in absent:
            if member.instance_id is None:
                self._remove(member, draft)
        joined = [m for m in self._members.values() if m.join_ticket is not None]
        if self._members and not joined:
            # Only static members, all away. They stay until their sessions end.
            self._deadlines.set(_JOIN, now_ms + max(1, self._rebalance_ms()))
            return
        self._is_delaying = False
        self._deadlines.drop(_JOIN)
        self._generation = 1 if self._generation == GENERATION_MAX else self._generation + 1
        if not joined:
            self._move(Trigger.EMPTIED)
            self._protocol = None
            self._leader = None
            self._save(draft, wall_ms)
            return
        if self._leader is None or self._members[self._leader].join_ticket is None:
            self._leader = joined[0].id
        self._protocol = select_protocol(self._members.values())
        self._move(Trigger.JOINED)
        self._unsynced = {m.id for m in joined}
        self._deadlines.set(_SYNC, now_ms + self._rebalance_ms())
        for member in joined:
            draft.answer(member.join_ticket, self._join_reply(member))
            member.join_ticket = None
            member.is_new = False
            self._arm_session(member, now_ms)

    # ── Members ──────────────────────────────────────────────────────────────────────────────
    def _refusal(self, member_id: str, instance_id: str | None) -> Code:
        """Return the error code if the member id or the instance id is wrong."""
        if instance_id is not None:
            known_id = self._static.get(instance_id)
            if known_id is not None and known_id != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self._members else Code.UNKNOWN_MEMBER_ID

    def _remove(self, member: Member, draft: Draft) -> None:
        self._answer_parked(member, draft, Code.UNKNOWN_MEMBER_ID)
        del self._members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._unsynced.discard(member.id)
        self._deadlines.drop((SESSION, member.id))
        if self._leader == member.id:
            self._leader = next(iter(self._members), None)

    def _on_lost(self, draft: Draft, now_ms: int, wall_ms: int) -> None:
        if self._state is State.PREPARING:
            self._maybe_complete_join(draft, now_ms, wall_ms)
        else:
            self._rebalance(draft, now_ms, wall_ms)

    def _answer_parked(self, member: Member, draft: Draft, code: Code) -> None:
        draft.answer(member.join_ticket, JoinReply(code, member_id=member.id))
        draft.answer(member.sync_ticket, SyncReply(code))
        member.join_ticket = member.sync_ticket = None

    def _join_reply(self, member: Member) -> JoinReply:
        is_leader = member.id == self._leader
        return JoinReply(
            generation=self._generation,
            protocol_type=self._protocol_type,
            protocol=self._protocol,
            leader=self._leader or "",
            member_id=member.id,
            members=tuple(
                (m.id, m.instance_id, m.metadata(self._protocol)) for m in self._members.values()
            )
            if is_leader
            else (),
        )

    def _sync_reply(self, member: Member) -> SyncReply:
        return SyncReply(
            protocol_type=self._protocol_type,
            protocol=self._protocol,
            assignment=member.assignment,
        )
