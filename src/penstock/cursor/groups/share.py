"""Share groups (KIP-932), in which several members may read the same partition.

No member owns a partition, so a new assignment applies at once. Members get it with their next
heartbeat. The lease cursor of the topic and the group decides which member gets which record.

The log stores that the group exists, and its epoch. Its members are only in this node's memory:
after a restart each gets an unknown-member error and joins again with the same id. No record is
lost, because the cursors store which records the group has read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.cursor.groups.assigned import (
    JOIN,
    LEAVE,
    NEW_MEMBER,
    SESSION,
    AssignedGroup,
    Heartbeat,
    MemberAssignment,
)
from penstock.cursor.groups.assignors import (
    MemberSpec,
    Partitions,
    Shares,
    TopicPartition,
    assign_uniform,
)
from penstock.cursor.groups.decision import Decision, Description, MemberDescription, Reply
from penstock.cursor.groups.records import MemberValue, RowKind, TargetValue
from penstock.cursor.groups.settings import (
    GENERATION_MAX,
    GroupSettings,
    ShareSettings,
    share_settings,
)
from penstock.cursor.patterns.matches import Topics
from penstock.cursor.rows import KeyFields
from penstock.wire.kafka.faults import ErrorCode

ASSIGNOR = "simple"
_ASSIGNMENT = ("assignment", "")  # name of the deadline of the next assignment


class ShareReply(Reply, frozen=True):
    message: str | None = None
    member_epoch: int = 0
    settings: ShareSettings = ShareSettings()
    assignment: Partitions = frozenset()
    is_news: bool = False  # whether the reply includes the assignment


class ShareHeartbeat(Heartbeat, frozen=True):
    """A heartbeat, in which None means "unchanged"."""

    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""
    reply_type = ShareReply

    def malformed(self, topics: Topics) -> Reply | None:  # noqa: ARG002 - for consumer groups
        has_no_topics = self.member_epoch == JOIN and not self.topic_names
        errors = {
            "MemberId can't be empty.": not self.member_id,
            "MemberEpoch is invalid.": self.member_epoch < LEAVE,
            "RackId can't be empty.": self.rack_id == "",
            "SubscribedTopicNames must be set in first request.": has_no_topics,
        }
        return self.first_of(errors)


def assign_simple(members: Sequence[MemberSpec], topics: Mapping[str, int]) -> Shares:
    """Assign each partition to one member, evenly. A member left without one shares the partition
    with the fewest readers in its topics. ``topics`` maps topic ids to partition counts."""
    shares = assign_uniform(members, topics)
    readers: Counter[TopicPartition] = Counter(tp for share in shares.values() for tp in share)
    for member in sorted(members, key=lambda each: each.member_id):
        if shares[member.member_id]:
            continue
        choice = [(t, p) for t in member.topic_ids & topics.keys() for p in range(topics[t])]
        if choice:
            # In a tie, prefer a partition that the member already has.
            best = min(choice, key=lambda tp: (readers[tp], tp not in member.current, tp))
            readers[best] += 1
            shares[member.member_id] = frozenset((best,))
    return shares


class ShareGroup(AssignedGroup[MemberValue, TargetValue, ShareSettings]):
    kind = "share"
    _nothing = TargetValue(0)
    _read_times = staticmethod(lambda configs, _: share_settings(configs))

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id, settings)
        self._topics: dict[str, tuple[str, int]] = {}  # subscribed: name → id, partition count

    def apply(self, kind: int, key: KeyFields, value: Any) -> None:  # noqa: ARG002 - one kind
        self.value = value or self._nothing
        self.target_epoch = self.value.epoch

    def erase(self, decision: Decision) -> None:
        self._put(decision, RowKind.SHARE, None)

    @property
    def state(self) -> str:
        return "Stable" if self._members else "Empty"

    def describe(self) -> Description:
        return self._describe(
            assignor=ASSIGNOR,
            # The newest assignment counts, even if the member does not have it yet.
            share_members=tuple(
                MemberDescription(member_id, epoch, member, target, target)
                for member_id, epoch, member, _, target in self._described()
            ),
            subscribed=self.subscribed(),
        )

    def subscribed(self) -> frozenset[str]:
        return frozenset(name for member in self._members.values() for name in member.topic_names)

    def begin(self, decision: Decision) -> None:
        """Raise and store the group epoch. The first call also creates the group."""
        value = TargetValue(min(self.value.epoch + 1, GENERATION_MAX))
        self._put(decision, RowKind.SHARE, value)

    def heartbeat(self, request: ShareHeartbeat, topics: Topics, decision: Decision) -> None:
        member_id, is_join = request.member_id, request.member_epoch == JOIN
        if is_join:
            refusal = self._full(request, self._settings.share_members_max)
        else:
            refusal = self._epoch_refusal(request, frozenset())
        if refusal is not None:
            decision.reply(refusal)
            return
        if request.member_epoch == LEAVE:
            self._remove(member_id, decision)
            decision.reply(ShareReply(member_epoch=LEAVE), after_commit=True)
            return
        old = self._members.get(member_id)
        names = request.topic_names and tuple(sorted(set(request.topic_names)))
        new = request.merged_into(old or NEW_MEMBER, 0, rebalance_ms=0, topic_names=names)
        self._members[member_id] = new
        has_changed = old is None or old.topic_names != new.topic_names
        self._refresh(topics, decision, has_changed=has_changed)
        self._arm_session(member_id, decision.now_ms)
        before, epoch = self._currents.get(member_id, MemberAssignment()), self.value.epoch
        previous = before.previous_epoch if before.epoch == epoch else before.epoch
        assigned = self._targets.get(member_id, frozenset())
        self._currents[member_id] = MemberAssignment(epoch, previous, assigned=assigned)
        is_news = is_join or request.topic_names is not None or before.assigned != assigned
        reply = ShareReply(ErrorCode.NONE, None, epoch, self.times, assigned, is_news)
        decision.reply(reply, after_commit=True)

    def tick(self, decision: Decision) -> None:
        while (name := self._deadlines.pop_due(decision.now_ms)) is not None:
            if name == _ASSIGNMENT:
                self._assign(decision)
            else:
                self._remove(name[1], decision)

    def _remove(self, member_id: str, decision: Decision) -> None:
        for table in (self._members, self._currents, self._targets):
            table.pop(member_id, None)
        self._deadlines.drop((SESSION, member_id))
        self._assign_in_time(decision)

    def _refresh(self, topics: Topics, decision: Decision, *, has_changed: bool) -> None:
        if topics.epoch != self._seen_topics or has_changed:
            self._seen_topics = topics.epoch
            names = self.subscribed() & topics.by_name.keys()
            found = {name: topics.by_name[name] for name in names}
            has_changed |= found != self._topics
            self._topics = found
        if has_changed:
            self._assign_in_time(decision)

    def _assign_in_time(self, decision: Decision) -> None:
        if self._assigned_at_ms is None or self._may_assign(decision.now_ms) or not self.is_stored:
            self._assign(decision)
        else:
            self._deadlines.set(_ASSIGNMENT, self._assigned_at_ms + self.times.assignment_ms)

    def _assign(self, decision: Decision) -> None:
        self._assigned_at_ms = decision.now_ms
        self._deadlines.drop(_ASSIGNMENT)
        self.begin(decision)
        specs = []
        for member_id, member in self._members.items():
            known = (self._topics[name][0] for name in member.topic_names if name in self._topics)
            current = self._targets.get(member_id, frozenset())
            specs.append(MemberSpec(member_id, frozenset(known), current))
        self._targets = assign_simple(specs, dict(self._topics.values()))
