"""The sticky assignor of a streams group's tasks, which spreads tasks evenly over the members.

An active task stays with the member that has it, unless that member has too many tasks. Otherwise
the task goes to a member of a process that has its state (from the active task or a standby task),
else to the member with the fewest tasks. A standby task is a copy of a task's state. The active
task and its copies are all in different processes. State is in a folder of the process, so any
member of the process can use it. The result does not depend on the order of the arguments. Input
and result are immutable, because a large assignment is computed in a thread."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from penstock.cursor.groups.assignors import Partitions, TopicPartition, from_map, to_map
from penstock.cursor.groups.records import CODEC, PartitionMap, RowKind, StreamsTargetOfValue
from penstock.cursor.rows import Row
from penstock.model.limits import STREAMS_TASKS_AT_ONCE_MAX

Task: TypeAlias = tuple[str, int]  # subtopology id, partition
Tasks: TypeAlias = frozenset[Task]

# In memory a task with its role is a pair like a partition of a consumer group: role + subtopology
# id, and partition. So a member gives up a standby task before it takes the same task as active.
ACTIVE = "a"
STANDBY = "s"


def with_role(role: str, tasks: Iterable[Task]) -> Partitions:
    return frozenset([(role + part, partition) for part, partition in tasks])


def of_role(role: str, held: Iterable[TopicPartition]) -> Tasks:
    return frozenset([(text[1:], partition) for text, partition in held if text[0] == role])


def maps_by_role(held: Iterable[TopicPartition]) -> tuple[PartitionMap, PartitionMap]:
    """Return the active and the standby tasks, each as a map of subtopology id → partitions."""
    active: PartitionMap = {}
    standby: PartitionMap = {}
    for text, numbers in to_map(held).items():
        (active if text[0] == ACTIVE else standby)[text[1:]] = numbers
    return active, standby


def held_tasks(active: PartitionMap, standby: PartitionMap) -> Partitions:
    return with_role(ACTIVE, from_map(active)) | with_role(STANDBY, from_map(standby))


class StreamsMemberSpec(msgspec.Struct, frozen=True):
    member_id: str
    process_id: str
    active: Tasks = frozenset()  # tasks in the previous assignment, or in the new one
    standby: Tasks = frozenset()


def assign_sticky(
    members: Sequence[StreamsMemberSpec],
    tasks: Mapping[str, int],
    *,
    stateful: Iterable[str] = (),
    standbys: int = 0,
) -> dict[str, StreamsMemberSpec]:
    """Return members with their tasks. ``tasks`` maps subtopology ids to task counts. Tasks of a
    ``stateful`` subtopology get ``standbys`` copies, or fewer if there are too few processes."""
    if not members:
        return {}
    ordered = sorted(members, key=lambda member: member.member_id)
    found = _Assignment(ordered)
    found.assign_active([(part, p) for part in sorted(tasks) for p in range(tasks[part])])
    copies = min(standbys, len(found.processes) - 1)
    if copies > 0:
        parts = sorted(tasks.keys() & set(stateful))
        found.assign_standby([(part, p) for part in parts for p in range(tasks[part])], copies)
    return {
        i: replace(each, active=frozenset(found.active[i]), standby=frozenset(found.standby[i]))
        for i, each in ((each.member_id, each) for each in ordered)
    }


class _Assignment:
    def __init__(self, members: Sequence[StreamsMemberSpec]) -> None:
        self.members = members
        self.active: dict[str, set[Task]] = {member.member_id: set() for member in members}
        self.standby: dict[str, set[Task]] = {member.member_id: set() for member in members}
        self.processes: dict[str, list[tuple[int, str]]] = {}  # heap of (number of tasks, member)
        self._process_of = {member.member_id: member.process_id for member in members}
        self._counts = dict.fromkeys(self.active, 0)  # number of tasks of each member
        self._sizes: dict[str, int] = {}  # number of members of each process
        self._totals: dict[str, int] = {}  # number of tasks of each process
        # The previous assignment: the members of tasks, and all processes with their state.
        self._owner: dict[Task, tuple[str]] = {}
        self._copies: dict[Task, list[str]] = {}
        self._states: dict[Task, list[str]] = {}
        for member in members:
            process = member.process_id
            self.processes.setdefault(process, []).append((0, member.member_id))
            self._sizes[process] = self._sizes.get(process, 0) + 1
            self._totals[process] = 0
            for task in member.active:
                self._owner.setdefault(task, (member.member_id,))
                self._states.setdefault(task, []).append(process)
        for member in members:
            for task in member.standby:
                self._copies.setdefault(task, []).append(member.member_id)
                self._states.setdefault(task, []).append(member.process_id)

    def _add(self, tasks: set[Task], task: Task, member_id: str) -> None:
        tasks.add(task)
        self._counts[member_id] += 1
        process = self._process_of[member_id]
        self._totals[process] += 1
        heappush(self.processes[process], (self._counts[member_id], member_id))

    def _idlest(self, process: str) -> str:
        heap = self.processes[process]
        while heap[0][0] != self._counts[heap[0][1]]:
            heappop(heap)  # stale: the member has got more tasks since
        return heap[0][1]

    def _load(self, process: str) -> float:
        return self._totals[process] / self._sizes[process]

    def assign_active(self, tasks: Sequence[Task]) -> None:
        """Assign all active tasks. The task counts of any two members differ by at most one."""
        self._each, self._more = divmod(len(tasks), len(self.members))
        left = [task for task in tasks if not self._give(task, self._owner.get(task, ()))]
        # Then try members of processes that have the state.
        near = {task: map(self._idlest, self._states.get(task, ())) for task in left}
        left = [task for task in left if not self._give(task, near[task])]
        places = [
            member.member_id
            for member in self.members
            for _ in range(self._each - self._counts[member.member_id])
        ]
        for task, member_id in zip(left, places, strict=False):
            self._add(self.active[member_id], task, member_id)
        self._spread(left[len(places) :])

    def _give(self, task: Task, candidates: Iterable[str]) -> bool:
        for member_id in candidates:
            count = self._counts[member_id]
            if count < self._each or (count == self._each and self._more):
                self._more -= count == self._each
                self._add(self.active[member_id], task, member_id)
                return True
        return False

    def _spread(self, tasks: Sequence[Task]) -> None:
        room: dict[str, list[str]] = {}
        for member in reversed(self.members):
            if self._counts[member.member_id] == self._each:
                room.setdefault(member.process_id, []).append(member.member_id)
        heap = [(self._load(process), process) for process in room]
        heapify(heap)
        for task in tasks:
            _, process = heappop(heap)
            member_id = room[process].pop()
            self._add(self.active[member_id], task, member_id)
            if room[process]:
                heappush(heap, (self._load(process), process))

    def assign_standby(self, tasks: Sequence[Task], copies: int) -> None:
        held = {
            task: {self._process_of[member_id]}
            for member_id, active in self.active.items()
            for task in active
        }
        total = sum(self._counts.values()) + copies * len(tasks)
        count_max = -(-total // len(self.members))
        left = [
            task
            for _ in range(copies)
            for task in tasks
            if not self._copy_where_it_was(task, held[task], count_max)
        ]
        heap = [(self._load(process), process) for process in self.processes]
        heapify(heap)
        for task in left:
            skipped = []
            while heap[0][1] in held[task]:
                skipped.append(heappop(heap))
            _, process = heappop(heap)
            self._copy(task, self._idlest(process), held[task])
            for entry in (*skipped, (self._load(process), process)):
                heappush(heap, entry)

    def _copy_where_it_was(self, task: Task, held: set[str], count_max: int) -> bool:
        for member_id in (*self._copies.get(task, ()), *self._owner.get(task, ())):
            process = self._process_of[member_id]
            if process in held:
                continue
            for each in (member_id, self._idlest(process)):
                if self._counts[each] < count_max:
                    self._copy(task, each, held)
                    return True
        return False

    def _copy(self, task: Task, member_id: str, held: set[str]) -> None:
        self._add(self.standby[member_id], task, member_id)
        held.add(self._process_of[member_id])


class AssignmentInput(msgspec.Struct, frozen=True):
    group_id: str
    epoch: int  # epoch of the group
    tasks: Mapping[str, int]  # subtopology id → number of tasks
    stateful: frozenset[str]  # ids of the subtopologies that have standby tasks
    standbys: int
    members: tuple[tuple[str, str, Partitions | None], ...]  # id, process, previous target

    @property
    def is_large(self) -> bool:
        """Whether the assignment takes too long for the event loop."""
        before = sum(len(tasks or ()) for _, _, tasks in self.members)
        after = sum(self.tasks.values()) * (1 + self.standbys)
        return max(before, after) + len(self.members) > STREAMS_TASKS_AT_ONCE_MAX


class Assignment(msgspec.Struct, frozen=True):
    input: AssignmentInput
    targets: tuple[tuple[str, Partitions, Row], ...]  # member, new tasks and their row


def compute_assignment(given: AssignmentInput) -> Assignment:
    members = [
        StreamsMemberSpec(i, process, of_role(ACTIVE, before or ()), of_role(STANDBY, before or ()))
        for i, process, before in given.members
    ]
    shares = assign_sticky(members, given.tasks, stateful=given.stateful, standbys=given.standbys)
    targets = []
    for member_id, _, before in given.members:
        share = shares[member_id]
        tasks = with_role(ACTIVE, share.active) | with_role(STANDBY, share.standby)
        if tasks != before:
            value = StreamsTargetOfValue(to_map(share.active), to_map(share.standby))
            key = (given.group_id, member_id)
            row = CODEC.encode(RowKind.STREAMS_TARGET_OF, key, value)
            targets.append((member_id, tasks, row))
    return Assignment(given, tuple(targets))
