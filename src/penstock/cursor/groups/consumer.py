"""Consumer groups whose partitions are assigned by the coordinator (KIP-848).

A heartbeat has the member's id and epoch and, if they changed, its subscription and its partitions.
The reply has the partitions that the member must have now. No member waits for the others. A member
is removed if it does not give up partitions within its rebalance timeout, or sends no heartbeat
within the session timeout. ``patterns/matches.py`` finds the topics that match a pattern."""

from collections import Counter
from typing import Any, TypeAlias

from penstock.cursor.groups import records
from penstock.cursor.groups.assigned import (
    JOIN,
    LEAVE_STATIC,
    NEW_MEMBER,
    REVOKE,
    AssignedGroup,
    Heartbeat,
    Kinds,
    MemberAssignment,
    MemberState,
)
from penstock.cursor.groups.assignors import (
    ASSIGNOR_DEFAULT,
    ASSIGNORS,
    MemberSpec,
    Partitions,
    TopicPartition,
    from_map,
    to_map,
)
from penstock.cursor.groups.decision import Decision, Description, MemberDescription, Reply
from penstock.cursor.groups.records import MemberValue, RowKind
from penstock.cursor.groups.settings import ConsumerSettings, GroupSettings, consumer_settings
from penstock.cursor.patterns.matches import Topics, TopicVisibility, VisibleMatches
from penstock.cursor.patterns.pattern import InvalidPattern
from penstock.wire.kafka.faults import ErrorCode

_NO_TOPICS = (
    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
)
_NO_TIMEOUT = "RebalanceTimeoutMs must be provided in first request."
DuePatterns: TypeAlias = tuple[frozenset[str], str]
_SUBSCRIPTION = ("topic_names", "topic_regex", "assignor")


class ConsumerReply(Reply, frozen=True):
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_ms: int = 0
    assignment: Partitions | None = None  # None if unchanged


class ConsumerHeartbeat(Heartbeat, frozen=True):
    """A heartbeat, in which None means "unchanged"."""

    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    reply_type = ConsumerReply

    @property
    def has_topics(self) -> bool:
        return self.topic_names is not None or self.topic_regex is not None

    def malformed(self, topics: Topics) -> Reply | None:
        epoch, is_join, instance_id = self.member_epoch, self.member_epoch == JOIN, self.instance_id
        has_owned = is_join and self.owned != frozenset()
        errors = {
            "MemberId can't be empty.": not self.member_id,
            "InstanceId can't be empty.": instance_id == "",
            "RackId can't be empty.": self.rack_id == "",
            "MemberEpoch is invalid.": epoch < LEAVE_STATIC,
            "InstanceId can't be null.": epoch == LEAVE_STATIC and instance_id is None,
            _NO_TIMEOUT: is_join and self.rebalance_ms <= 0,
            "TopicPartitions must be empty when (re-)joining.": has_owned,
            _NO_TOPICS: is_join and not self.has_topics,
        }
        if any(errors.values()):
            return self.first_of(errors)
        if self.assignor is not None and self.assignor not in ASSIGNORS:
            known = ", ".join(sorted(ASSIGNORS, reverse=True))
            text = f"ServerAssignor {self.assignor} is not supported. Supported assignors: {known}."
            return ConsumerReply(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
        regex = self.topic_regex
        if regex:
            try:
                topics.matches.check(regex)
            except InvalidPattern as error:
                text = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
                return ConsumerReply(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
        return None


class ConsumerGroup(AssignedGroup[MemberValue, records.ConsumerValue, ConsumerSettings]):
    kind = "consumer"
    kinds = Kinds(
        RowKind.CONSUMER, RowKind.MEMBER, RowKind.TARGET, RowKind.TARGET_OF, RowKind.CURRENT
    )
    _current_type = records.CurrentValue
    _without_epochs = ErrorCode.UNKNOWN_MEMBER_ID
    _nothing = records.ConsumerValue(0, (), 0)
    _read_times = staticmethod(consumer_settings)

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id, settings)
        # Derived from the rows in the log. A member owns a partition until it has given it up.
        self._owners: dict[TopicPartition, str] = {}
        self._static: dict[str, str] = {}  # instance id → member id
        self._matches = VisibleMatches()

    def _held_in(self, value: records.CurrentValue) -> tuple[Partitions, Partitions]:
        return from_map(value.assigned), from_map(value.revoking)

    def _fields_of(self, member_id: str, current: MemberAssignment) -> tuple[Any, ...]:  # noqa: ARG002
        return to_map(current.assigned), to_map(current.revoking)

    def _target_in(self, value: records.TargetOfValue) -> Partitions:
        return from_map(value.partitions)

    def _set_member(self, member_id: str, value: MemberValue | None) -> None:
        old = self._members.get(member_id)
        if old is not None and self._static.get(old.instance_id or "") == member_id:
            del self._static[old.instance_id or ""]
        super()._set_member(member_id, value)
        if value is not None and value.instance_id is not None:
            self._static[value.instance_id] = member_id

    def _held(self, member_id: str, partitions: Partitions) -> None:
        self._owners.update(dict.fromkeys(partitions, member_id))

    def _released(self, member_id: str, partitions: Partitions) -> None:
        for partition in partitions:
            if self._owners.get(partition) == member_id:
                del self._owners[partition]

    def _is_free(self, member_id: str, partition: TopicPartition) -> bool:
        return self._owners.get(partition, member_id) == member_id

    def _put_target(self, decision: Decision, member_id: str, partitions: Partitions) -> None:
        if partitions != self._targets.get(member_id):
            value = records.TargetOfValue(to_map(partitions))
            self._put(decision, RowKind.TARGET_OF, value, member_id)

    @property
    def assignor(self) -> str:
        """The assignor that most members request, or the first by name in a tie."""
        votes = Counter(m.assignor for m in self._members.values() if m.assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name), default=ASSIGNOR_DEFAULT)

    def describe(self) -> Description:
        members = tuple(MemberDescription(*each) for each in self._described())
        return self._describe(assignor=self.assignor, consumer_members=members)

    def subscribed(self) -> frozenset[str]:
        if not self._members:
            return frozenset()
        return frozenset(name for name, _, _ in self.value.topics)

    def heartbeat(
        self,
        request: ConsumerHeartbeat,
        topics: Topics,
        decision: Decision,
        visibility: TopicVisibility | None = None,  # topics that the member may see; None for all
    ) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            decision.reply(refusal)
            return
        if request.member_epoch < JOIN:
            self._leave(request, decision)
            return
        member_id, is_join = request.member_id, request.member_epoch == JOIN
        before = None if is_join else self._currents.get(member_id)
        has_changed = is_join and self._admit(request, decision)
        has_changed |= self._update_member(request, decision)
        regex = self._members[member_id].topic_regex
        has_changed |= self._matches.update(member_id, regex, topics, visibility)
        self._refresh(topics, decision, has_changed=has_changed)
        if self.value.epoch > self.target_epoch and self._may_assign(decision.now_ms):
            self._assigned_at_ms = decision.now_ms
            self._assign(topics, decision)
        owned = frozenset() if is_join else request.owned
        current = self._advance(member_id, owned, before, decision)
        is_full = request.owned is not None and request.has_topics
        is_news = before is None or before.assigned != current.assigned or is_full
        assignment, heartbeat_ms = current.assigned if is_news else None, self.times.heartbeat_ms
        fields = (member_id, current.epoch, heartbeat_ms, assignment)
        decision.reply(ConsumerReply(ErrorCode.NONE, None, *fields), after_commit=True)

    def due_patterns(
        self, request: ConsumerHeartbeat, topics: Topics, visibility: TopicVisibility | None
    ) -> DuePatterns:
        """Return two things: the topic patterns to match before this heartbeat is handled, and
        the member's own pattern, or "" if the visibility of its matches need not be checked."""
        regex = request.topic_regex
        if regex is None:
            regex = self._members.get(request.member_id, NEW_MEMBER).topic_regex
        is_due = self._matches.is_due(request.member_id, regex, topics, visibility)
        if (
            not is_due
            and request.member_epoch != JOIN
            and not request.has_topics
            and topics.epoch == self._seen_topics
            and self.value.epoch == self.target_epoch
        ):
            return frozenset(), ""
        patterns = {member.topic_regex for member in self._members.values()}
        return frozenset((patterns | {regex}) - {""}), regex if is_due else ""

    def _refusal(self, request: ConsumerHeartbeat) -> Reply | None:
        member_id, is_join = request.member_id, request.member_epoch == JOIN
        known_id = self._static.get(request.instance_id or "", member_id)
        if known_id != member_id:
            if not is_join:
                text = "Another member uses this instance id."
                return ConsumerReply(ErrorCode.FENCED_INSTANCE_ID, text)
            if self._currents[known_id].epoch != LEAVE_STATIC:
                text = "Another member still uses this instance id."
                return ConsumerReply(ErrorCode.UNRELEASED_INSTANCE_ID, text)
            return None
        if not is_join:
            return self._epoch_refusal(request, request.owned)
        return self._full(request, self._settings.members_max)

    def _admit(self, request: ConsumerHeartbeat, decision: Decision) -> bool:
        """Add a new or returning member. Return True if the group's epoch must rise."""
        member_id = request.member_id
        old_id = self._static.get(request.instance_id or "", member_id)
        if old_id not in self._members:
            return True
        if old_id == member_id:
            # A member that joins again has lost its partitions, unless it was a static member away.
            away = self._currents[member_id].epoch == LEAVE_STATIC
            kept = self._currents[member_id].assigned if away else frozenset()
            self._put_current(decision, member_id, MemberAssignment(assigned=kept))
            return False
        old, target = self._members[old_id], self._targets.get(old_id)
        current = MemberAssignment(assigned=self._currents[old_id].assigned)
        self._forget(decision, old_id)
        self._matches.forget(old_id)
        self._put(decision, RowKind.MEMBER, old, member_id)
        if target is not None:
            self._put_target(decision, member_id, target)
        self._put_current(decision, member_id, current)
        return False

    def _update_member(self, request: ConsumerHeartbeat, decision: Decision) -> bool:
        """Store changes of the member. Return True if its subscription or assignor has changed."""
        old = self._members.get(request.member_id, NEW_MEMBER)
        names = request.topic_names and tuple(sorted(set(request.topic_names)))
        new = request.merged_into(old, self._settings.rebalance_ms_max, topic_names=names)
        if new != old:
            self._put(decision, RowKind.MEMBER, new, request.member_id)
        return any(getattr(new, name) != getattr(old, name) for name in _SUBSCRIPTION)

    def _leave(self, request: ConsumerHeartbeat, decision: Decision) -> None:
        member_id = request.member_id
        if request.member_epoch == LEAVE_STATIC and request.instance_id in self._static:
            current = self._currents[member_id]
            stable = (MemberState.STABLE, current.assigned)
            away = MemberAssignment(LEAVE_STATIC, current.epoch, *stable)
            self._put_current(decision, member_id, away)
            # The member may return within its session timeout.
            self._deadlines.drop((REVOKE, member_id))
            self._arm_session(member_id, decision.now_ms)
        else:
            self._remove(member_id, decision)
        reply = ConsumerReply(member_id=member_id, member_epoch=request.member_epoch)
        decision.reply(reply, after_commit=True)

    def _remove(self, member_id: str, decision: Decision) -> None:
        self._forget(decision, member_id)
        self._matches.forget(member_id)
        self._seen_topics = None  # the member may have been the last subscriber of a topic
        self._raise_epoch(decision)

    def _refresh(self, topics: Topics, decision: Decision, *, has_changed: bool) -> None:
        if not has_changed and topics.epoch == self._seen_topics:
            return
        self._seen_topics = topics.epoch
        names: set[str] = set()
        for member_id, member in self._members.items():
            names.update(self._names(member_id, member, topics))
        known = sorted(names & topics.by_name.keys())
        rows = tuple((name, *topics.by_name[name]) for name in known)
        if has_changed or rows != self.value.topics:
            self._raise_epoch(decision, topics=rows)

    def _names(self, member_id: str, member: MemberValue, topics: Topics) -> frozenset[str]:
        if not member.topic_regex:
            return frozenset(member.topic_names)
        found = self._matches.names(member_id, member.topic_regex, topics)
        return found.union(member.topic_names)

    def _assign(self, topics: Topics, decision: Decision) -> None:
        ids = {name: topic_id for name, topic_id, _ in self.value.topics}
        counts = {topic_id: count for _, topic_id, count in self.value.topics}
        members = []
        for member_id, member in self._members.items():
            names = self._names(member_id, member, topics)
            wanted = frozenset(ids[name] for name in names if name in ids)
            target = self._targets.get(member_id, frozenset())
            members.append(MemberSpec(member_id, wanted, target, member.instance_id))
        for member_id, share in ASSIGNORS[self.assignor](members, counts).items():
            self._put_target(decision, member_id, share)
        self._put(decision, RowKind.TARGET, records.TargetValue(self.value.epoch))
