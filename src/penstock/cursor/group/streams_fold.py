"""The state of a streams group as a fold of its rows. Only this code changes that state.

No row of the six kinds may depend on an earlier row of another kind, because compaction may have
removed it. Derived from the rows: the members that hold each task (until they have given it up).

In memory a task with its role is a pair, as a partition is in a consumer group: the role and the
subtopology id in one text, and the partition. So an active task and a standby task of the same
number differ, and a member that changes from one to the other gives up first.
"""

from collections import Counter
from collections.abc import Iterable

from penstock.cursor.group.assignors import Partitions, TopicPartition
from penstock.cursor.group.consumer_fold import Current, MemberState, from_map, to_map
from penstock.cursor.group.decision import Draft
from penstock.cursor.group.records import (
    CODEC,
    PartitionMap,
    StreamsCurrentKey,
    StreamsCurrentValue,
    StreamsKey,
    StreamsMemberKey,
    StreamsMemberValue,
    StreamsTargetKey,
    StreamsTargetOfKey,
    StreamsTargetOfValue,
    StreamsValue,
    TargetValue,
    TopologyKey,
    TopologyValue,
)
from penstock.cursor.group.rows import Row
from penstock.cursor.group.task_assignor import Task, Tasks

ACTIVE = "a"
STANDBY = "s"

StreamsRowKey = (
    StreamsKey
    | TopologyKey
    | StreamsMemberKey
    | StreamsTargetKey
    | StreamsTargetOfKey
    | StreamsCurrentKey
)
StreamsRowValue = (
    StreamsValue
    | TopologyValue
    | StreamsMemberValue
    | TargetValue
    | StreamsTargetOfValue
    | StreamsCurrentValue
)
# Epochs begin at 1, as in Kafka: a member that waits for the first assignment has epoch 1, because
# 0 means that it joins.
_EPOCH_FIRST = 1
_NOTHING = StreamsValue(_EPOCH_FIRST, (), False, 0, 0)


def with_role(role: str, tasks: Iterable[Task]) -> Partitions:
    return frozenset([(role + part, partition) for part, partition in tasks])


def of_role(role: str, held: Iterable[TopicPartition]) -> Tasks:
    return frozenset([(text[1:], partition) for text, partition in held if text[0] == role])


def maps_by_role(held: Iterable[TopicPartition]) -> tuple[PartitionMap, PartitionMap]:
    """Active and standby tasks: subtopology id → ascending partitions."""
    active: PartitionMap = {}
    standby: PartitionMap = {}
    for text, numbers in to_map(held).items():
        (active if text[0] == ACTIVE else standby)[text[1:]] = numbers
    return active, standby


def _joined(active: PartitionMap, standby: PartitionMap) -> Partitions:
    return with_role(ACTIVE, from_map(active)) | with_role(STANDBY, from_map(standby))


class StreamsFold:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        # The fold.
        self._value = _NOTHING
        self._topology: TopologyValue | None = None
        self._target_epoch = _EPOCH_FIRST
        self._members: dict[str, StreamsMemberValue] = {}
        self._targets: dict[str, Partitions] = {}
        self._currents: dict[str, Current] = {}
        self._since: dict[str, dict[Task, int]] = {}  # member → epochs of its active tasks
        # Derived from the fold.
        self._holders: dict[Task, set[tuple[str, str]]] = {}  # member, role
        self._states: Counter[tuple[MemberState, int]] = Counter()  # members by state and epoch

    def apply(self, key: StreamsRowKey, value: StreamsRowValue | None) -> None:
        if isinstance(key, StreamsCurrentKey):
            assert value is None or isinstance(value, StreamsCurrentValue)
            self._apply_current(key.member_id, value)
        elif isinstance(key, StreamsMemberKey):
            assert value is None or isinstance(value, StreamsMemberValue)
            if value is None:
                self._members.pop(key.member_id, None)
            else:
                self._members[key.member_id] = value
        elif isinstance(key, StreamsTargetOfKey):
            assert value is None or isinstance(value, StreamsTargetOfValue)
            if value is None:
                self._targets.pop(key.member_id, None)
            else:
                self._targets[key.member_id] = _joined(value.active, value.standby)
        elif isinstance(key, StreamsTargetKey):
            assert value is None or isinstance(value, TargetValue)
            self._target_epoch = _EPOCH_FIRST if value is None else value.epoch
        elif isinstance(key, TopologyKey):
            assert value is None or isinstance(value, TopologyValue)
            self._topology = value
        else:
            assert value is None or isinstance(value, StreamsValue)
            self._value = _NOTHING if value is None else value

    def _apply_current(
        self, member_id: str, value: StreamsCurrentValue | None, new: Current | None = None
    ) -> None:
        """``new``: the decoded ``value``, if the caller has it."""
        old = self._currents.pop(member_id, None)
        if old is not None:
            self._states[old.state, old.epoch] -= 1
            if not self._states[old.state, old.epoch]:
                del self._states[old.state, old.epoch]
            for text, partition in old.assigned | old.revoking:
                task = (text[1:], partition)
                holders = self._holders[task]
                holders.discard((member_id, text[0]))
                if not holders:
                    del self._holders[task]
        self._since.pop(member_id, None)
        if value is None:
            return
        if new is None:
            new = Current(
                value.epoch,
                value.previous_epoch,
                MemberState(value.state),
                _joined(value.active, value.standby),
                _joined(value.revoking_active, value.revoking_standby),
            )
        self._currents[member_id] = new
        self._states[new.state, new.epoch] += 1
        self._since[member_id] = {(part, p): epoch for part, p, epoch in value.since}
        for text, partition in new.assigned | new.revoking:
            self._holders.setdefault((text[1:], partition), set()).add((member_id, text[0]))

    def _is_free(self, member_id: str, wanted: TopicPartition) -> bool:
        """Return whether the member may take a task now: an active task has one holder, and a
        process has each task once, because the task's state is in one folder of the process."""
        role, task = wanted[0][0], (wanted[0][1:], wanted[1])
        process_id = self._members[member_id].process_id
        for holder, held_role in self._holders.get(task, ()):
            if holder == member_id:
                continue
            if role == held_role == ACTIVE:
                return False
            other = self._members.get(holder)
            if other is not None and other.process_id == process_id:
                return False
        return True

    # ── Writing: a row and its effect, always together ───────────────────────────────────────
    def _put(self, draft: Draft, key: StreamsRowKey, value: StreamsRowValue | None) -> None:
        draft.rows.append(CODEC.encode(key, value))
        self.apply(key, value)

    def _put_current(self, draft: Draft, member_id: str, current: Current) -> None:
        if current == self._currents.get(member_id):
            return
        since = self._since.get(member_id, {})
        active, standby = maps_by_role(current.assigned)
        revoking_active, revoking_standby = maps_by_role(current.revoking)
        epochs = [
            (part, partition, since.get((part, partition), current.epoch))
            for tasks in (active, revoking_active)
            for part, partitions in tasks.items()
            for partition in partitions
        ]
        value = StreamsCurrentValue(
            current.epoch,
            current.previous_epoch,
            current.state,
            active,
            standby,
            revoking_active,
            revoking_standby,
            tuple(epochs),
        )
        draft.rows.append(CODEC.encode(StreamsCurrentKey(self.group_id, member_id), value))
        self._apply_current(member_id, value, current)

    def _put_target(self, draft: Draft, member_id: str, tasks: Partitions, row: Row) -> None:
        """``row``: the encoded row with the tasks that the member shall have."""
        draft.rows.append(row)
        self._targets[member_id] = tasks

    def _forget(self, draft: Draft, member_id: str) -> None:
        self._put(draft, StreamsCurrentKey(self.group_id, member_id), None)
        if member_id in self._targets:
            self._put(draft, StreamsTargetOfKey(self.group_id, member_id), None)
        self._put(draft, StreamsMemberKey(self.group_id, member_id), None)

    def erase(self, draft: Draft) -> None:
        """Delete all rows: the group is deleted or becomes a classic group."""
        for member_id in list(self._members):
            self._forget(draft, member_id)
        self._put(draft, StreamsTargetKey(self.group_id), None)
        self._put(draft, TopologyKey(self.group_id), None)
        self._put(draft, StreamsKey(self.group_id), None)

    def view(self) -> tuple[object, ...]:
        """Return the whole state as a value that tests compare."""
        return (
            self._value,
            self._topology,
            self._target_epoch,
            dict(sorted(self._members.items())),
            dict(sorted(self._targets.items())),
            dict(sorted(self._currents.items())),
            dict(sorted(self._since.items())),
            {task: sorted(holders) for task, holders in sorted(self._holders.items())},
            self._states,
        )
