"""The assignment of a streams group, with its input and its result as immutable values: a thread
works out the assignment of a large group while the group serves heartbeats."""

from collections.abc import Mapping

import msgspec

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.consumer_fold import to_map
from penstock.cursor.group.records import CODEC, StreamsTargetOfKey, StreamsTargetOfValue
from penstock.cursor.group.rows import Row
from penstock.cursor.group.streams_fold import ACTIVE, STANDBY, of_role, with_role
from penstock.cursor.group.task_assignor import StreamsMemberSpec, assign_sticky
from penstock.model.limits import STREAMS_TASKS_AT_ONCE_MAX


class Work(msgspec.Struct, frozen=True):
    """Everything that an assignment depends on."""

    group_id: str
    epoch: int  # of the group
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


class Target(msgspec.Struct, frozen=True):
    """The tasks that a member shall have, and the row that states them."""

    member_id: str
    tasks: Partitions
    row: Row


class Assignment(msgspec.Struct, frozen=True):
    work: Work
    targets: tuple[Target, ...]  # that differ from the previous ones


def work_out(work: Work) -> Assignment:
    shares = assign_sticky(
        [
            StreamsMemberSpec(
                member_id, process_id, of_role(ACTIVE, before or ()), of_role(STANDBY, before or ())
            )
            for member_id, process_id, before in work.members
        ],
        work.tasks,
        stateful=work.stateful,
        standbys=work.standbys,
    )
    targets = []
    for member_id, _, before in work.members:
        share = shares[member_id]
        tasks = with_role(ACTIVE, share.active) | with_role(STANDBY, share.standby)
        if tasks != before:
            key = StreamsTargetOfKey(work.group_id, member_id)
            value = StreamsTargetOfValue(to_map(share.active), to_map(share.standby))
            targets.append(Target(member_id, tasks, CODEC.encode(key, value)))
    return Assignment(work, tuple(targets))
