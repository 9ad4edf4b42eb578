"""Share groups (KIP-932), in which several members may read the same partition.

No member owns a partition, so a new assignment is valid at once, and members get it with their next
heartbeat. The lease cursor of the topic and the group decides which member gets which record.

The log stores that the group exists, and its epoch. Its members are only in this node's memory:
after a restart each gets an unknown-member error and joins again with the same id. No record is
lost, because the cursors store which records the group has read."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from penstock.cursor.deadlines import Deadlines
from penstock.cursor.groups.assigned import JOIN, LEAVE, Heartbeat, epoch_text
from penstock.cursor.groups.assignors import MemberSpec, Partitions, TopicPartition, assign_uniform
from penstock.cursor.groups.decision import Decision, Description, Reply, ShareMemberDescription
from penstock.cursor.groups.records import CODEC, RowKind, TargetValue
from penstock.cursor.groups.settings import (
    GENERATION_MAX,
    SHARE_DEFAULT,
    GroupSettings,
    ShareSettings,
    share_settings,
)
from penstock.cursor.patterns.matches import Topics
from penstock.wire.kafka.faults import ErrorCode

ASSIGNOR = "simple"
_ASSIGNMENT = ""  # name of the deadline of the next assignment; others are member ids


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

    def refused(self, code: ErrorCode, message: str) -> ShareReply:
        return ShareReply(code, message)

    def malformed(self, topics: Topics) -> Reply | None:  # noqa: ARG002 - for consumer groups
        has_no_topics = self.member_epoch == JOIN and not self.topic_names
        errors = {
            "MemberId can't be empty.": not self.member_id,
            "MemberEpoch is invalid.": self.member_epoch < LEAVE,
            "RackId can't be empty.": self.rack_id == "",
            "SubscribedTopicNames must be set in first request.": has_no_topics,
        }
        return self.first_of(errors)


class ShareMember(msgspec.Struct):
    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    assigned: Partitions = frozenset()  # in the group's newest assignment
    replied: Partitions | None = None  # the assignment in the last reply


def assign_simple(
    members: Sequence[MemberSpec], topics: Mapping[str, int]
) -> dict[str, Partitions]:
    """Assign each partition to one member, evenly. A member left without any gets the partition of
    its topics that has the fewest readers. ``topics`` maps topic ids to partition counts."""
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


class ShareGroup:
    kind = protocol_type = "share"
    is_blank = False
    changed_at_ms = None  # a share group stays until it is deleted

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.value = TargetValue(0)
        self._settings = settings
        self._members: dict[str, ShareMember] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._assigned_at_ms: int | None = None
        self.times = SHARE_DEFAULT
        self._topics_epoch: int | None = None  # ``Topics.epoch`` at the last heartbeat
        self._topics: dict[str, tuple[str, int]] = {}  # subscribed: name → id, partition count

    @property
    def epoch(self) -> int:
        return self.value.epoch

    is_stored = epoch  # the epoch is 0 until the group is stored

    def set_times(self, configs: Mapping[str, str]) -> None:
        self.times = share_settings(configs)

    @property
    def state(self) -> str:
        return "Stable" if self._members else "Empty"

    def describe(self) -> Description:
        return Description.of(
            self,
            epoch=self.epoch,
            target_epoch=self.epoch,
            assignor=ASSIGNOR,
            share_members=tuple(
                ShareMemberDescription(
                    m.member_id,
                    m.epoch,
                    m.rack_id,
                    m.client_id,
                    m.client_host,
                    tuple(sorted(m.topic_names)),
                    m.assigned,
                )
                for m in self._members.values()
            ),
            subscribed=self.subscribed(),
        )

    def subscribed(self) -> frozenset[str]:
        return frozenset(name for member in self._members.values() for name in member.topic_names)

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def begin(self, decision: Decision) -> None:
        """Raise the epoch. A new group exists from then on, even without members."""
        self.value = TargetValue(min(self.value.epoch + 1, GENERATION_MAX))
        decision.rows.append(CODEC.encode(RowKind.SHARE, (self.group_id,), self.value))

    def apply(self, value: TargetValue | None, *, now_ms: int) -> None:  # noqa: ARG002 - for classic groups
        self.value = value or TargetValue(0)

    def erase(self, decision: Decision) -> None:
        decision.rows.append(CODEC.encode(RowKind.SHARE, (self.group_id,), None))

    def heartbeat(self, request: ShareHeartbeat, topics: Topics, decision: Decision) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            decision.reply(refusal)
            return
        if request.member_epoch == LEAVE:
            self._remove(request.member_id, decision)
            decision.reply(ShareReply(member_epoch=LEAVE), after_commit=True)
            return
        member, has_changed = self._admit(request)
        self._refresh(topics, decision, has_changed=has_changed)
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        self._deadlines.set(member.member_id, decision.now_ms + self.times.session_ms)
        is_news = request.topic_names is not None or member.replied != member.assigned
        member.replied = assigned = member.assigned
        reply = ShareReply(ErrorCode.NONE, None, member.epoch, self.times, assigned, is_news)
        decision.reply(reply, after_commit=True)

    def _refusal(self, request: ShareHeartbeat) -> ShareReply | None:
        member = self._members.get(request.member_id)
        epoch, members_max = request.member_epoch, self._settings.share_members_max
        if member is None and epoch != JOIN:
            text = f"Member {request.member_id} is not a member of the group."
            return ShareReply(ErrorCode.UNKNOWN_MEMBER_ID, text)
        if member is None and len(self._members) >= members_max:
            text = f"The group has reached its maximum of {members_max} members."
            return ShareReply(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        if member is not None and epoch > 0 and epoch not in (member.epoch, member.previous_epoch):
            text = epoch_text("share", epoch, member.epoch)
            return ShareReply(ErrorCode.FENCED_MEMBER_EPOCH, text)
        return None

    def _admit(self, request: ShareHeartbeat) -> tuple[ShareMember, bool]:
        is_new = request.member_id not in self._members
        member = self._members.setdefault(request.member_id, ShareMember(request.member_id))
        if request.member_epoch == JOIN:
            member.replied = None
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        member.client_id = request.client_id or member.client_id
        member.client_host = request.client_host or member.client_host
        before = member.topic_names
        if request.topic_names is not None:
            member.topic_names = frozenset(request.topic_names)
        return member, is_new or member.topic_names != before

    def tick(self, decision: Decision) -> None:
        while (member_id := self._deadlines.pop_due(decision.now_ms)) is not None:
            if member_id == _ASSIGNMENT:
                self._assign(decision)
            else:
                self._remove(member_id, decision)

    def _remove(self, member_id: str, decision: Decision) -> None:
        del self._members[member_id]
        self._deadlines.drop(member_id)
        self._assign_in_time(decision)

    def _refresh(self, topics: Topics, decision: Decision, *, has_changed: bool) -> None:
        if topics.epoch != self._topics_epoch or has_changed:
            self._topics_epoch = topics.epoch
            names = self.subscribed() & topics.by_name.keys()
            found = {name: topics.by_name[name] for name in names}
            has_changed |= found != self._topics
            self._topics = found
        if has_changed:
            self._assign_in_time(decision)

    def _assign_in_time(self, decision: Decision) -> None:
        at_ms = self._assigned_at_ms
        if at_ms is None or decision.now_ms >= at_ms + self.times.assignment_ms or not self.epoch:
            self._assign(decision)
        else:
            self._deadlines.set(_ASSIGNMENT, at_ms + self.times.assignment_ms)

    def _assign(self, decision: Decision) -> None:
        self._assigned_at_ms = decision.now_ms
        self._deadlines.drop(_ASSIGNMENT)
        self.begin(decision)
        specs = []
        for member in self._members.values():
            known = (self._topics[name][0] for name in member.topic_names if name in self._topics)
            specs.append(MemberSpec(member.member_id, frozenset(known), member.assigned))
        counts = dict(self._topics.values())
        for member_id, share in assign_simple(specs, counts).items():
            self._members[member_id].assigned = share
