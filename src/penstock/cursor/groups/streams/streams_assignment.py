"""The assignment of a streams group, with its input and its result as immutable values: a thread
works out the assignment of a large group while the group serves heartbeats."""

from collections.abc import Mapping

import msgspec

from penstock.cursor.groups.assignors import Partitions, to_map
from penstock.cursor.groups.records import CODEC, RowKind, StreamsTargetOfValue
from penstock.cursor.groups.streams.task_assignor import (
    ACTIVE,
    STANDBY,
    StreamsMemberSpec,
    assign_sticky,
    of_role,
    with_role,
)
from penstock.cursor.rows import Row
from penstock.model.limits import STREAMS_TASKS_AT_ONCE_MAX


class AssignmentInput(msgspec.Struct, frozen=True):
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
    input: AssignmentInput
    targets: tuple[Target, ...]  # that differ from the previous ones


def compute_assignment(given: AssignmentInput) -> Assignment:
    shares = assign_sticky(
        [
            StreamsMemberSpec(
                member_id, process_id, of_role(ACTIVE, before or ()), of_role(STANDBY, before or ())
            )
            for member_id, process_id, before in given.members
        ],
        given.tasks,
        stateful=given.stateful,
        standbys=given.standbys,
    )
    targets = []
    for member_id, _, before in given.members:
        share = shares[member_id]
        tasks = with_role(ACTIVE, share.active) | with_role(STANDBY, share.standby)
        if tasks != before:
            value = StreamsTargetOfValue(to_map(share.active), to_map(share.standby))
            key = (given.group_id, member_id)
            row = CODEC.encode(RowKind.STREAMS_TARGET_OF, key, value)
            targets.append(Target(member_id, tasks, row))
    return Assignment(given, tuple(targets))
