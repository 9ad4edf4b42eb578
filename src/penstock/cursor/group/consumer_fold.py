"""The state of a consumer group as a fold of its rows. Only this code changes that state.

No row of the five kinds may depend on an earlier row of another kind, because compaction may have
removed it. Derived from the rows: the owner of each partition (a member owns a partition until it
has given it up), and the member of each instance id.

    epochs   the group's rises when members, subscriptions or topics change;
             the target's follows when an assignment for it is complete;
             a member's follows when it has given up the partitions it must.
"""

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

import msgspec

from penstock.cursor.group.assignors import Partitions, TopicPartition
from penstock.cursor.group.decision import Draft
from penstock.cursor.group.records import (
    CODEC,
    ConsumerKey,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    MemberKey,
    MemberValue,
    PartitionMap,
    TargetKey,
    TargetOfKey,
    TargetOfValue,
    TargetValue,
)

ConsumerRowKey = ConsumerKey | MemberKey | TargetKey | TargetOfKey | CurrentKey
ConsumerRowValue = ConsumerValue | MemberValue | TargetValue | TargetOfValue | CurrentValue


class MemberState(IntEnum):
    STABLE = 0  # has nothing to give up or to wait for
    UNREVOKED = 1  # must give up partitions before anything else
    UNRELEASED = 2  # waits for partitions that others have not given up yet


class Current(msgspec.Struct, frozen=True):
    """A member's partitions. ``epoch`` -2: a static member that is away and will return."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()


def to_map(partitions: Iterable[TopicPartition]) -> PartitionMap:
    found: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(numbers) for topic_id, numbers in found.items()}


def from_map(partitions: PartitionMap) -> Partitions:
    return frozenset((t, p) for t, numbers in partitions.items() for p in numbers)


class ConsumerFold:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        # The fold.
        self._value = ConsumerValue(0, (), 0)
        self._target_epoch = 0
        self._members: dict[str, MemberValue] = {}
        self._targets: dict[str, Partitions] = {}
        self._currents: dict[str, Current] = {}
        # Derived from the fold.
        self._owners: dict[TopicPartition, str] = {}
        self._static: dict[str, str] = {}  # instance id → member id
        self._states: Counter[tuple[MemberState, int]] = Counter()  # members by state and epoch

    def apply(self, key: ConsumerRowKey, value: ConsumerRowValue | None) -> None:
        if isinstance(key, CurrentKey):
            assert value is None or isinstance(value, CurrentValue)
            self._apply_current(key.member_id, value)
        elif isinstance(key, MemberKey):
            assert value is None or isinstance(value, MemberValue)
            self._apply_member(key.member_id, value)
        elif isinstance(key, TargetOfKey):
            if value is None:
                self._targets.pop(key.member_id, None)
            else:
                assert isinstance(value, TargetOfValue)
                self._targets[key.member_id] = from_map(value.partitions)
        elif isinstance(key, TargetKey):
            assert value is None or isinstance(value, TargetValue)
            self._target_epoch = 0 if value is None else value.epoch
        else:
            assert value is None or isinstance(value, ConsumerValue)
            self._value = ConsumerValue(0, (), 0) if value is None else value

    def _apply_current(self, member_id: str, value: CurrentValue | None) -> None:
        old = self._currents.pop(member_id, None)
        if old is not None:
            self._states[old.state, old.epoch] -= 1
            if not self._states[old.state, old.epoch]:
                del self._states[old.state, old.epoch]
            for partition in old.assigned | old.revoking:
                if self._owners.get(partition) == member_id:
                    del self._owners[partition]
        if value is None:
            return
        new = Current(
            value.epoch,
            value.previous_epoch,
            MemberState(value.state),
            from_map(value.assigned),
            from_map(value.revoking),
        )
        self._currents[member_id] = new
        self._states[new.state, new.epoch] += 1
        for partition in new.assigned | new.revoking:
            self._owners[partition] = member_id

    def _apply_member(self, member_id: str, value: MemberValue | None) -> None:
        old = self._members.pop(member_id, None)
        instance_id = None if old is None else old.instance_id
        if instance_id is not None and self._static.get(instance_id) == member_id:
            del self._static[instance_id]
        if value is not None:
            self._members[member_id] = value
            if value.instance_id is not None:
                self._static[value.instance_id] = member_id

    # ── Writing: a row and its effect, always together ───────────────────────────────────────
    def _put(self, draft: Draft, key: ConsumerRowKey, value: ConsumerRowValue | None) -> None:
        draft.rows.append(CODEC.encode(key, value))
        self.apply(key, value)

    def _put_current(self, draft: Draft, member_id: str, current: Current) -> None:
        if current == self._currents.get(member_id):
            return
        value = CurrentValue(
            current.epoch,
            current.previous_epoch,
            current.state,
            to_map(current.assigned),
            to_map(current.revoking),
        )
        self._put(draft, CurrentKey(self.group_id, member_id), value)

    def _put_target(self, draft: Draft, member_id: str, partitions: Partitions) -> None:
        if partitions != self._targets.get(member_id):
            value = TargetOfValue(to_map(partitions))
            self._put(draft, TargetOfKey(self.group_id, member_id), value)

    def _forget(self, draft: Draft, member_id: str) -> None:
        self._put(draft, CurrentKey(self.group_id, member_id), None)
        if member_id in self._targets:
            self._put(draft, TargetOfKey(self.group_id, member_id), None)
        self._put(draft, MemberKey(self.group_id, member_id), None)

    def erase(self, draft: Draft) -> None:
        """Delete all rows: the group is deleted or becomes a classic group."""
        for member_id in list(self._members):
            self._forget(draft, member_id)
        self._put(draft, TargetKey(self.group_id), None)
        self._put(draft, ConsumerKey(self.group_id), None)

    def view(self) -> tuple[object, ...]:
        """Return the whole state as a value that tests compare."""
        return (
            self._value,
            self._target_epoch,
            dict(sorted(self._members.items())),
            dict(sorted(self._targets.items())),
            dict(sorted(self._currents.items())),
            dict(sorted(self._owners.items())),
            dict(sorted(self._static.items())),
            self._states,
        )
