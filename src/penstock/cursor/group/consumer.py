"""Consumer groups that the coordinator assigns (KIP-848): one request, ConsumerGroupHeartbeat.

A heartbeat has the member's id and epoch and, if they changed, its subscription and its partitions.
The reply has the partitions that the member shall have now. Members move towards the target
assignment one by one: first give up, then take partitions that no other member has. No member waits
for all others.

    epoch in the request:  0 join · -1 leave · -2 a static member leaves for a short time
    the previous epoch: the reply was lost, and is repeated

A member is removed if it does not give up partitions within its rebalance timeout, or sends no
heartbeat within the session timeout.

``consumer_fold.py`` has the state, ``sight.py`` finds the topics that match a pattern; each call
gets the topics as a value with an epoch.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from penstock.cursor.group.assignors import (
    ASSIGNOR_DEFAULT,
    ASSIGNORS,
    MemberSpec,
    Partitions,
)
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer_fold import ConsumerFold, Current, MemberState
from penstock.cursor.group.deadlines import Deadlines
from penstock.cursor.group.decision import Draft, Reply
from penstock.cursor.group.matches import Matches
from penstock.cursor.group.pattern_syntax import InvalidPattern
from penstock.cursor.group.reconcile import epoch_text, reconcile
from penstock.cursor.group.records import (
    ConsumerKey,
    ConsumerValue,
    MemberKey,
    MemberValue,
    TargetKey,
    TargetValue,
)
from penstock.cursor.group.settings import GroupSettings, consumer_settings
from penstock.cursor.group.sight import Finds, Sight

JOIN = 0
LEAVE = -1
LEAVE_STATIC = -2

_SESSION = "session"
_REVOKE = "revoke"
_NO_TOPICS = (
    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
)


class Topics(msgspec.Struct, frozen=True):
    """All topics. ``epoch`` changes whenever another field does."""

    epoch: int
    by_name: Mapping[str, tuple[str, int]]  # name → id, partition count
    matches: Matches = msgspec.field(default_factory=Matches)  # of these names, for all epochs


class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """None means "unchanged" in every field that may be None."""

    member_id: str  # from the client; for clients of version 0, from the broker
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""


class ConsumerReply(Reply, frozen=True):
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_ms: int = 0
    assignment: Partitions | None = None  # None: unchanged


class ConsumerMemberView(msgspec.Struct, frozen=True):
    """One member, for descriptions."""

    member_id: str
    subscription: MemberValue
    member_epoch: int
    assigned: Partitions
    target: Partitions


class ConsumerGroup(ConsumerFold):
    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id)
        self._settings = settings
        self.times = consumer_settings({}, settings)  # set again before each heartbeat
        # Local to this node.
        self._assigned_at_ms: int | None = None
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._seen_topics: int | None = None  # epoch of the topics at the last heartbeat
        self._finds = Finds(patterns_max=settings.members_max)

    def arm(self, *, now_ms: int) -> None:
        """Restart the timers of all members, after replay."""
        self._deadlines.clear()
        for member_id in self._members:
            self._arm_session(member_id, now_ms)
            current = self._currents.get(member_id)
            if current is not None and current.state is MemberState.UNREVOKED:
                self._arm_revoke(member_id, now_ms)

    # ── Queries ──────────────────────────────────────────────────────────────────────────────
    @property
    def epoch(self) -> int:
        return self._value.epoch

    @property
    def target_epoch(self) -> int:
        return self._target_epoch

    @property
    def changed_at_ms(self) -> int:
        return self._value.changed_at_ms

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def state(self) -> str:
        if not self._members:
            return "Empty"
        if self._value.epoch > self._target_epoch:
            return "Assigning"
        settled = self._states[MemberState.STABLE, self._target_epoch]
        return "Stable" if settled == len(self._members) else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members request; the smaller name in a tie."""
        votes = Counter(m.assignor for m in self._members.values() if m.assignor is not None)
        if not votes:
            return ASSIGNOR_DEFAULT
        return min(votes, key=lambda name: (-votes[name], name))

    def members(self) -> tuple[ConsumerMemberView, ...]:
        return tuple(
            ConsumerMemberView(
                member_id,
                member,
                self._currents[member_id].epoch,
                self._currents[member_id].assigned,
                self._targets.get(member_id, frozenset()),
            )
            for member_id, member in self._members.items()
        )

    def subscribed(self) -> frozenset[str]:
        return frozenset(name for name, _, _ in self._value.topics)

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    # ── Heartbeat ────────────────────────────────────────────────────────────────────────────
    def heartbeat(
        self,
        request: ConsumerHeartbeat,
        topics: Topics,
        draft: Draft,
        *,
        sight: Sight | None = None,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        """Apply a heartbeat. ``sight``: the topics that the member may see; None: all of them."""
        refusal = self._refusal(request)
        if refusal is not None:
            draft.answer(ticket, refusal)
            return
        if request.member_epoch < JOIN:
            self._leave(request, draft, ticket, now_ms, wall_ms)
            return
        member_id = request.member_id
        before = self._currents.get(member_id)
        has_changed = False
        if request.member_epoch == JOIN:
            before = None
            has_changed = self._admit(request, draft)
        has_changed |= self._update_member(request, draft)
        regex = self._members[member_id].topic_regex
        has_changed |= self._finds.look(
            member_id,
            regex,
            topics.by_name,
            epoch=topics.epoch,
            sight=sight,
            matches=topics.matches,
        )
        self._refresh(topics, draft, has_changed=has_changed, wall_ms=wall_ms)
        if self._value.epoch > self._target_epoch and self._may_assign(now_ms):
            self._assigned_at_ms = now_ms
            self._assign(topics, draft)
        owned = request.owned if request.member_epoch != JOIN else frozenset()
        current = self._reconcile(member_id, owned)
        was_unrevoked = before is not None and before.state is MemberState.UNREVOKED
        self._put_current(draft, member_id, current)
        self._arm_session(member_id, now_ms)
        if current.state is not MemberState.UNREVOKED:
            self._deadlines.drop((_REVOKE, member_id))
        elif not was_unrevoked or before != current:
            self._arm_revoke(member_id, now_ms)
        is_full = request.owned is not None and (
            request.topic_names is not None or request.topic_regex is not None
        )
        is_news = before is None or before.assigned != current.assigned or is_full
        reply = ConsumerReply(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_ms=self.times.heartbeat_ms,
            assignment=current.assigned if is_news else None,
        )
        draft.answer(ticket, reply, after_commit=True)

    def due_patterns(
        self, request: ConsumerHeartbeat, topics: Topics, sight: Sight | None
    ) -> tuple[frozenset[str], str]:
        """Return the patterns to match before the decision about a heartbeat, and the one (empty:
        none) whose matching topics to check with ``sight``. The broker does both in advance,
        because a decision cannot be interrupted."""
        regex = request.topic_regex
        if regex is None:
            member = self._members.get(request.member_id)
            regex = "" if member is None else member.topic_regex
        is_due = self._finds.is_due(request.member_id, regex, epoch=topics.epoch, sight=sight)
        if (
            not is_due
            and request.member_epoch != JOIN
            and request.topic_names is None
            and request.topic_regex is None
            and topics.epoch == self._seen_topics
            and self._value.epoch == self._target_epoch
        ):
            return frozenset(), ""
        patterns = {member.topic_regex for member in self._members.values()}
        return frozenset((patterns | {regex}) - {""}), regex if is_due else ""

    def _refusal(self, request: ConsumerHeartbeat) -> ConsumerReply | None:
        """Return an error if the member's id, instance id or epoch is wrong."""
        member_id, epoch = request.member_id, request.member_epoch
        if request.instance_id is not None:
            known_id = self._static.get(request.instance_id)
            if known_id is not None and known_id != member_id:
                if epoch != JOIN:
                    text = "Another member has this instance id."
                    return ConsumerReply(Code.FENCED_INSTANCE_ID, text)
                if self._currents[known_id].epoch != LEAVE_STATIC:
                    text = "The member that has this instance id is still there."
                    return ConsumerReply(Code.UNRELEASED_INSTANCE_ID, text)
                return None
        if epoch == JOIN:
            is_full = len(self._members) >= self._settings.members_max
            if is_full and member_id not in self._members:
                text = f"The group has {self._settings.members_max} members."
                return ConsumerReply(Code.GROUP_MAX_SIZE_REACHED, text)
            return None
        current = self._currents.get(member_id)
        if current is None:
            text = f"Member {member_id} is not a member of the group."
            return ConsumerReply(Code.UNKNOWN_MEMBER_ID, text)
        if epoch > 0 and epoch != current.epoch:
            # The previous epoch is accepted if the member cannot have missed a revocation.
            has_lost_answer = (
                epoch == current.previous_epoch < current.epoch
                and request.owned is not None
                and request.owned <= current.assigned
            )
            if not has_lost_answer:
                text = epoch_text("consumer", epoch, current.epoch)
                return ConsumerReply(Code.FENCED_MEMBER_EPOCH, text)
        return None

    def _admit(self, request: ConsumerHeartbeat, draft: Draft) -> bool:
        """Add a member that joins: for the first time, again, or in the place of a static member
        that is away. True if the group's epoch must rise."""
        member_id = request.member_id
        old_id = self._static.get(request.instance_id or "", member_id)
        if old_id not in self._members:
            return True
        if old_id == member_id:
            # It owns nothing any more, unless it was away: others may take its partitions at once.
            away = self._currents[member_id].epoch == LEAVE_STATIC
            kept = self._currents[member_id].assigned if away else frozenset()
            self._put_current(draft, member_id, Current(assigned=kept))
            return False
        old, target = self._members[old_id], self._targets.get(old_id)
        current = Current(assigned=self._currents[old_id].assigned)
        self._forget(draft, old_id)
        self._drop_deadlines(old_id)
        self._finds.forget(old_id)
        self._put(draft, MemberKey(self.group_id, member_id), old)
        if target is not None:
            self._put_target(draft, member_id, target)
        self._put_current(draft, member_id, current)
        return False

    def _update_member(self, request: ConsumerHeartbeat, draft: Draft) -> bool:
        """Update the member's row. True if its subscription or assignor has changed."""
        key = MemberKey(self.group_id, request.member_id)
        old = self._members.get(request.member_id)
        if old is None:
            old = MemberValue(None, None, "", "", 0, (), "", None)
        names = request.topic_names
        regex = request.topic_regex
        new = MemberValue(
            request.instance_id if request.instance_id is not None else old.instance_id,
            request.rack_id if request.rack_id is not None else old.rack_id,
            request.client_id or old.client_id,
            request.client_host or old.client_host,
            self._patience_ms(request.rebalance_ms)
            if request.rebalance_ms > 0
            else old.rebalance_ms,
            old.topic_names if names is None else tuple(sorted(set(names))),
            old.topic_regex if regex is None else regex,
            old.assignor if request.assignor is None else request.assignor,
        )
        if new != old:
            self._put(draft, key, new)
        return (new.topic_names, new.topic_regex, new.assignor) != (
            old.topic_names,
            old.topic_regex,
            old.assignor,
        )

    def _patience_ms(self, asked_ms: int) -> int:
        return min(asked_ms, self._settings.rebalance_ms_max)

    # ── Leaving ──────────────────────────────────────────────────────────────────────────────
    def _leave(
        self, request: ConsumerHeartbeat, draft: Draft, ticket: int, now_ms: int, wall_ms: int
    ) -> None:
        member_id = request.member_id
        if request.member_epoch == LEAVE_STATIC and request.instance_id in self._static:
            current = self._currents[member_id]
            away = Current(
                LEAVE_STATIC, current.epoch, MemberState.STABLE, current.assigned, frozenset()
            )
            self._put_current(draft, member_id, away)
            self._deadlines.drop((_REVOKE, member_id))
            self._arm_session(member_id, now_ms)
        else:
            self._remove(member_id, draft, wall_ms)
        reply = ConsumerReply(member_id=member_id, member_epoch=request.member_epoch)
        draft.answer(ticket, reply, after_commit=True)

    def _remove(self, member_id: str, draft: Draft, wall_ms: int) -> None:
        self._forget(draft, member_id)
        self._drop_deadlines(member_id)
        self._finds.forget(member_id)
        self._seen_topics = None  # it may have been a topic's last subscriber
        value = ConsumerValue(self._value.epoch + 1, self._value.topics, wall_ms)
        self._put(draft, ConsumerKey(self.group_id), value)

    def tick(self, draft: Draft, *, wall_ms: int, now_ms: int) -> None:
        """Remove members that timed out; the next heartbeat reassigns their partitions."""
        while (name := self._deadlines.pop_due(now_ms)) is not None:
            self._remove(name[1], draft, wall_ms)

    # ── Assignment ───────────────────────────────────────────────────────────────────────────
    def _refresh(self, topics: Topics, draft: Draft, *, has_changed: bool, wall_ms: int) -> None:
        """Raise the group's epoch if anything an assignment depends on has changed."""
        if not has_changed and topics.epoch == self._seen_topics:
            return
        self._seen_topics = topics.epoch
        names: set[str] = set()
        for member_id, member in self._members.items():
            names.update(self._names(member_id, member, topics))
        rows = tuple(
            (name, *topics.by_name[name]) for name in sorted(names) if name in topics.by_name
        )
        if has_changed or rows != self._value.topics:
            value = ConsumerValue(self._value.epoch + 1, rows, wall_ms)
            self._put(draft, ConsumerKey(self.group_id), value)

    def _names(self, member_id: str, member: MemberValue, topics: Topics) -> frozenset[str]:
        if not member.topic_regex:
            return frozenset(member.topic_names)
        found = self._finds.names(
            member_id,
            member.topic_regex,
            topics.by_name,
            epoch=topics.epoch,
            matches=topics.matches,
        )
        return found.union(member.topic_names)

    def _may_assign(self, now_ms: int) -> bool:
        """Return whether the last assignment is old enough. If not, the next heartbeat retries."""
        assigned_at_ms = self._assigned_at_ms
        return assigned_at_ms is None or now_ms >= assigned_at_ms + self.times.assignment_ms

    def _assign(self, topics: Topics, draft: Draft) -> None:
        ids = {name: topic_id for name, topic_id, _ in self._value.topics}
        counts = {topic_id: count for _, topic_id, count in self._value.topics}
        members = [
            MemberSpec(
                member_id,
                frozenset(
                    ids[name] for name in self._names(member_id, member, topics) if name in ids
                ),
                self._targets.get(member_id, frozenset()),
                member.instance_id,
            )
            for member_id, member in self._members.items()
        ]
        shares = ASSIGNORS[self.assignor](members, counts)
        for member_id, share in shares.items():
            self._put_target(draft, member_id, share)
        self._put(draft, TargetKey(self.group_id), TargetValue(self._value.epoch))

    # ── Reconciliation ───────────────────────────────────────────────────────────────────────
    def _reconcile(self, member_id: str, owned: Partitions | None) -> Current:
        """Return the member's partitions after its next step towards the target."""
        mine = {None, member_id}
        return reconcile(
            self._currents.get(member_id, Current()),
            self._targets.get(member_id, frozenset()),
            target_epoch=self._target_epoch,
            owned=owned,
            is_free=lambda partition: self._owners.get(partition) in mine,
        )

    def _arm_session(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((_SESSION, member_id), now_ms + self.times.session_ms)

    def _arm_revoke(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((_REVOKE, member_id), now_ms + self._members[member_id].rebalance_ms)

    def _drop_deadlines(self, member_id: str) -> None:
        self._deadlines.drop((_SESSION, member_id))
        self._deadlines.drop((_REVOKE, member_id))

    # ── Commits ──────────────────────────────────────────────────────────────────────────────
    def check_commit(self, member_id: str, epoch: int, *, stale: Code) -> Code:
        """Check a commit. ``stale``: the code for a wrong epoch, which differs between plain and
        transactional commits."""
        if epoch < 0 and not self._members:
            return Code.NONE  # an operator, or a consumer that assigns its partitions itself
        current = self._currents.get(member_id)
        if current is None:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if epoch == current.epoch else stale


def malformed(request: ConsumerHeartbeat, topics: Topics) -> ConsumerReply | None:
    """Return the error of a request that no group accepts."""
    epoch, is_join = request.member_epoch, request.member_epoch == JOIN
    # An empty list and an empty pattern are subscriptions to nothing.
    no_topics = request.topic_names is None and request.topic_regex is None
    wrong = (
        (not request.member_id, "MemberId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (epoch < LEAVE_STATIC, "MemberEpoch is invalid."),
        (epoch == LEAVE_STATIC and request.instance_id is None, "InstanceId can't be null."),
        (
            is_join and request.rebalance_ms <= 0,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            is_join and (request.owned is None or bool(request.owned)),
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (is_join and no_topics, _NO_TOPICS),
    )
    for is_wrong, text in wrong:
        if is_wrong:
            return ConsumerReply(Code.INVALID_REQUEST, text)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        known = ", ".join(sorted(ASSIGNORS, reverse=True))
        text = f"ServerAssignor {request.assignor} is not supported. Supported assignors: {known}."
        return ConsumerReply(Code.UNSUPPORTED_ASSIGNOR, text)
    if request.topic_regex:
        try:
            topics.matches.check(request.topic_regex)
        except InvalidPattern as error:
            regex = request.topic_regex
            text = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
            return ConsumerReply(Code.INVALID_REGULAR_EXPRESSION, text)
    return None
