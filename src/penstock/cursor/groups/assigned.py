"""The code shared by groups whose coordinator assigns partitions or tasks: consumer groups and
streams groups. Share groups use a part of it, because they do not store their members.

The state is rebuilt from the group's rows. No row may depend on an earlier row of another kind,
because compaction may have removed the earlier row. Members move towards the target assignment one
by one: each first gives up partitions, then takes partitions that no other member has.

    group epoch    rises when members, subscriptions or topics change
    target epoch   is set to the group epoch when the assignment for it is complete
    member epoch   is set to the target epoch when the member has given up revoked partitions

In a request, the member epoch 0 means join, -1 leave, and -2 that a static member leaves but will
return soon. A member that sends its previous epoch did not get the last reply."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.cursor.deadlines import Deadlines
from penstock.cursor.groups import records
from penstock.cursor.groups.assignors import Partitions, TopicPartition
from penstock.cursor.groups.decision import Decision, Description, Reply
from penstock.cursor.groups.offsets import CommitRequest
from penstock.cursor.groups.records import CODEC, MemberValue, RowKind
from penstock.cursor.groups.settings import ConsumerSettings, GroupSettings, ShareSettings
from penstock.cursor.patterns.matches import Topics
from penstock.cursor.rows import KeyFields
from penstock.wire.kafka.faults import ErrorCode

# Special member epochs in requests.
JOIN = 0
LEAVE = -1
LEAVE_STATIC = -2

SESSION = "session"
REVOKE = "revoke"
NEW_MEMBER = MemberValue(None, None, "", "", 0, (), "", None)

MemberT = TypeVar("MemberT", bound=MemberValue | records.StreamsMemberValue)
ValueT = TypeVar("ValueT", bound=records.ConsumerValue | records.StreamsValue | records.TargetValue)
TimesT = TypeVar("TimesT", bound=ConsumerSettings | ShareSettings)


class Heartbeat(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    reply_type: ClassVar[Callable[..., Reply]]

    def refused(self, code: ErrorCode, message: str) -> Reply:
        return self.reply_type(code, message)

    def malformed(self, topics: Topics) -> Reply | None:
        """Return an error reply if the request is invalid regardless of the group's state."""
        raise NotImplementedError

    def merged_into(self, old: MemberT, rebalance_ms_max: int, **fields: Any) -> MemberT:
        names = frozenset(old.__struct_fields__).intersection(self.__struct_fields__)
        changes = {name: getattr(self, name) for name in names} | fields
        for name in ("client_id", "client_host"):
            changes[name] = changes[name] or None
        rebalance_ms = min(changes["rebalance_ms"], rebalance_ms_max)
        changes["rebalance_ms"] = rebalance_ms if changes["rebalance_ms"] > 0 else None
        known = {name: value for name, value in changes.items() if value is not None}
        return replace(old, **known)

    def first_of(self, errors: Mapping[str, bool]) -> Reply | None:
        text = next((text for text, is_wrong in errors.items() if is_wrong), None)
        return None if text is None else self.refused(ErrorCode.INVALID_REQUEST, text)


class MemberState(IntEnum):
    STABLE = 0  # the member has no partitions to give up or to wait for
    UNREVOKED = 1  # the member must give up partitions first
    UNRELEASED = 2  # the member waits for partitions that others have not given up yet


class MemberAssignment(msgspec.Struct, frozen=True):
    """The epoch and partitions of a member. The epoch is -2 while a static member is away."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()


class Kinds(NamedTuple):
    group: RowKind
    member: RowKind
    target: RowKind
    target_of: RowKind
    current: RowKind


class AssignedGroup(Generic[MemberT, ValueT, TimesT]):
    kind: ClassVar[str]
    is_blank: ClassVar = False
    kinds: ClassVar[Kinds]
    _current_type: ClassVar[type[records.CurrentValue | records.StreamsCurrentValue]]
    _without_epochs: ClassVar[ErrorCode]  # error for commits of clients that do not know epochs
    _nothing: ValueT  # the value of a group without a row
    _read_times: Callable[[Mapping[str, str], GroupSettings], TimesT]
    _held_in: Callable[[Any], tuple[Partitions, Partitions]]  # row → assigned, revoking
    _fields_of: Callable[[str, MemberAssignment], tuple[Any, ...]]  # the inverse of ``_held_in``
    _target_in: Callable[[Any], Partitions]
    _held: Callable[[str, Partitions], None]  # called when a member has got these partitions
    _released: Callable[[str, Partitions], None]
    _is_free: Callable[[str, TopicPartition], bool]  # whether the member may take the partition
    _remove: Callable[[str, Decision], None]
    describe: Callable[[], Description]
    subscribed: Callable[[], frozenset[str]]  # names of the topics that the members read

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._settings = settings
        self.set_times({})
        # Derived from the rows in the log.
        self.value = self._nothing
        self.target_epoch = self._nothing.epoch
        self._members: dict[str, MemberT] = {}
        self._targets: dict[str, Partitions] = {}
        self._currents: dict[str, MemberAssignment] = {}
        self._states: Counter[tuple[MemberState, int]] = Counter()  # members by state and epoch
        # Lost at a restart.
        self._assigned_at_ms: int | None = None
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._seen_topics: int | None = None  # epoch of the topics at the last heartbeat

    # ── Rows ─────────────────────────────────────────────────────────────────────────────────
    def set_times(self, configs: Mapping[str, str]) -> None:
        self.times = self._read_times(configs, self._settings)

    def apply(self, kind: int, key: KeyFields, value: Any) -> None:
        kinds, member_id = self.kinds, key[-1]
        if kind == kinds.current:
            new = None
            if value is not None:
                state = MemberState(value.state)
                held = self._held_in(value)
                new = MemberAssignment(value.epoch, value.previous_epoch, state, *held)
            self._set_current(member_id, new, value)
        elif kind == kinds.member:
            self._set_member(member_id, value)
        elif kind == kinds.target_of:
            self._targets.pop(member_id, None)
            if value is not None:
                self._targets[member_id] = self._target_in(value)
        elif kind == kinds.target:
            self.target_epoch = self._nothing.epoch if value is None else value.epoch
        else:
            self.value = value or self._nothing

    def _set_member(self, member_id: str, value: MemberT | None) -> None:
        self._members.pop(member_id, None)
        if value is not None:
            self._members[member_id] = value

    def _set_current(self, member_id: str, new: MemberAssignment | None, value: Any) -> None:  # noqa: ARG002 - for streams groups
        old = self._currents.pop(member_id, None)
        if old is not None:
            self._states[old.state, old.epoch] -= 1
            if not self._states[old.state, old.epoch]:
                del self._states[old.state, old.epoch]
            self._released(member_id, old.assigned | old.revoking)
        if new is not None:
            self._currents[member_id] = new
            self._states[new.state, new.epoch] += 1
            self._held(member_id, new.assigned | new.revoking)

    def _put(self, decision: Decision, kind: RowKind, value: Any, *member_id: str) -> None:
        key = (self.group_id, *member_id)
        decision.rows.append(CODEC.encode(kind, key, value))
        self.apply(kind, key, value)

    def _put_current(self, decision: Decision, member_id: str, current: MemberAssignment) -> None:
        if current != self._currents.get(member_id):
            head = (current.epoch, current.previous_epoch, current.state)
            value = self._current_type(*head, *self._fields_of(member_id, current))
            key = (self.group_id, member_id)
            decision.rows.append(CODEC.encode(self.kinds.current, key, value))
            self._set_current(member_id, current, value)

    def _forget(self, decision: Decision, member_id: str) -> None:
        self._put(decision, self.kinds.current, None, member_id)
        if member_id in self._targets:
            self._put(decision, self.kinds.target_of, None, member_id)
        self._put(decision, self.kinds.member, None, member_id)
        self._deadlines.drop((SESSION, member_id))
        self._deadlines.drop((REVOKE, member_id))

    def _raise_epoch(self, decision: Decision, **changes: Any) -> None:
        epoch = self.value.epoch + 1
        value = replace(self.value, epoch=epoch, changed_at_ms=decision.wall_ms, **changes)
        self._put(decision, self.kinds.group, value)

    def erase(self, decision: Decision) -> None:
        for member_id in list(self._members):
            self._forget(decision, member_id)
        self._put(decision, self.kinds.target, None)
        self._put(decision, self.kinds.group, None)

    # ── Queries ──────────────────────────────────────────────────────────────────────────────
    @property
    def protocol_type(self) -> str:
        return self.kind

    @property
    def is_stored(self) -> bool:
        return self.value.epoch > 0

    @property
    def changed_at_ms(self) -> int | None:
        return getattr(self.value, "changed_at_ms", None)  # share groups do not have it

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def state(self) -> str:
        if not self._members:
            return "Empty"
        if self.value.epoch > self.target_epoch:
            return "Assigning"
        settled = self._states[MemberState.STABLE, self.target_epoch]
        return "Stable" if settled == len(self._members) else "Reconciling"

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def _describe(self, **fields: Any) -> Description:
        epochs = {"epoch": self.value.epoch, "target_epoch": self.target_epoch}
        return Description.of(self, **epochs, **fields)

    def _described(self) -> Iterator[tuple[str, int, MemberT, Partitions, Partitions]]:
        for member_id, member in self._members.items():
            current = self._currents.get(member_id, MemberAssignment())
            target = self._targets.get(member_id, frozenset())
            yield member_id, current.epoch, member, current.assigned, target

    # ── Members ──────────────────────────────────────────────────────────────────────────────
    def _epoch_refusal(self, request: Heartbeat, owned: Partitions | None) -> Reply | None:
        member_id, epoch = request.member_id, request.member_epoch
        current = self._currents.get(member_id)
        if current is None or member_id not in self._members:
            text = f"Member {member_id} is not a member of the group."
            return request.refused(ErrorCode.UNKNOWN_MEMBER_ID, text)
        # The previous epoch is accepted if the member has no partitions that it had to give up.
        has_lost_reply = (
            epoch == current.previous_epoch < current.epoch
            and owned is not None
            and owned <= current.assigned
        )
        if epoch > 0 and epoch != current.epoch and not has_lost_reply:
            size, known = "greater" if epoch > current.epoch else "smaller", current.epoch
            text = (  # as in Kafka
                f"The {self.kind} group member has a {size} member epoch ({epoch}) than the one"
                f" known by the group coordinator ({known}). The member must abandon all its"
                " partitions and rejoin."
            )
            return request.refused(ErrorCode.FENCED_MEMBER_EPOCH, text)
        return None

    def _full(self, request: Heartbeat, members_max: int) -> Reply | None:
        if len(self._members) < members_max or request.member_id in self._members:
            return None
        text = f"The group has reached its maximum of {members_max} members."
        return request.refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def _advance(
        self,
        member_id: str,
        owned: Partitions | None,
        before: MemberAssignment | None,
        decision: Decision,
    ) -> MemberAssignment:
        current = self._next(member_id, owned)
        self._put_current(decision, member_id, current)
        self._arm_session(member_id, decision.now_ms)
        if current.state is not MemberState.UNREVOKED:
            self._deadlines.drop((REVOKE, member_id))
        elif before != current:
            self._arm_revoke(member_id, decision.now_ms)
        return current

    def _next(self, member_id: str, owned: Partitions | None) -> MemberAssignment:
        """Return the member's next state, given the partitions that it reports as ``owned``."""
        current = self._currents.get(member_id, MemberAssignment())
        target, target_epoch = self._targets.get(member_id, frozenset()), self.target_epoch
        if current.state is MemberState.UNREVOKED:
            if owned is None or owned & current.revoking:
                return current  # the partitions are not given up yet
        elif current.state is MemberState.STABLE and current.epoch == target_epoch:
            return current
        keep = current.assigned & target
        revoke = current.assigned - target
        if revoke and (owned is None or owned & revoke):
            # The first revocation keeps the epoch, so that a lost reply is detected.
            is_settled = current.state is MemberState.UNREVOKED
            epoch = min(current.epoch + 1 if is_settled else current.epoch, target_epoch)
            previous = current.epoch if is_settled else current.previous_epoch
            return MemberAssignment(epoch, previous, MemberState.UNREVOKED, keep, revoke)
        wanted = target - keep
        taken = frozenset([each for each in wanted if self._is_free(member_id, each)])
        state = MemberState.STABLE if taken == wanted else MemberState.UNRELEASED
        previous = current.epoch if target_epoch != current.epoch else current.previous_epoch
        return MemberAssignment(target_epoch, previous, state, keep | taken)

    def _may_assign(self, now_ms: int) -> bool:
        at_ms = self._assigned_at_ms
        return at_ms is None or now_ms >= at_ms + self.times.assignment_ms

    def tick(self, decision: Decision) -> None:
        """Remove members that timed out. The next heartbeat reassigns their partitions."""
        while (name := self._deadlines.pop_due(decision.now_ms)) is not None:
            self._remove(name[1], decision)

    def arm(self, now_ms: int) -> None:
        self._deadlines.clear()
        for member_id in self._members:
            self._arm_session(member_id, now_ms)
            current = self._currents.get(member_id)
            if current is not None and current.state is MemberState.UNREVOKED:
                self._arm_revoke(member_id, now_ms)

    def _arm_session(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((SESSION, member_id), now_ms + self.times.session_ms)

    def _arm_revoke(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((REVOKE, member_id), now_ms + self._members[member_id].rebalance_ms)

    # ── Commits ──────────────────────────────────────────────────────────────────────────────
    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> ErrorCode:
        if not (request.knows_epochs or is_transactional or self.is_empty):
            return self._without_epochs
        if request.generation < 0 and self.is_empty:
            return ErrorCode.NONE  # an operator, or a consumer that assigns its partitions itself
        current = self._currents.get(request.member_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.generation == current.epoch:
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if is_transactional else ErrorCode.STALE_MEMBER_EPOCH
