"""What the APIs that describe groups of one kind have in common: who may know of a group, which
are there, and of which nothing is told because they read topics the caller may not describe."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer_fold import to_map
from penstock.cursor.group.describe import Description
from penstock.cursor.group.topology import topic_names
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import (
    UNASKED,
    Operation,
    group_operations,
    on_group,
    on_topic,
)
from penstock.frontend.kafka.topics import find_id
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode


class LookedUp(NamedTuple):
    """One group that was asked for: what was found, or why there is nothing to tell."""

    group_id: str
    found: Description | None = None
    operations: int = UNASKED
    code: int = ErrorCode.NONE
    message: str | None = None


async def look_up(
    context: KafkaContext,
    call: KafkaCall,
    group_ids: Sequence[str],
    *,
    kind: str,
    wants_operations: bool,
) -> list[LookedUp]:
    """In the order they were asked for, each once. A group of another kind is not there."""
    looked_up = []
    async for group_id in call.slices.each(dict.fromkeys(group_ids)):
        if not on_group(context, call, Operation.DESCRIBE, group_id):
            looked_up.append(_refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id))
            continue
        operations = UNASKED
        if wants_operations:
            operations = group_operations(context, call, group_id)
        found = await context.groups.describe(group_id)
        if found.code not in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            looked_up.append(LookedUp(group_id, code=found.code))
        elif found.code is Code.NONE and found.kind == kind:
            if await _is_told(context, call, found):
                looked_up.append(LookedUp(group_id, found, operations))
            else:
                looked_up.append(_refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, group_id))
        else:
            is_other = found.code is Code.NONE
            text = f"Group {group_id} " + (f"is not a {kind} group." if is_other else "not found.")
            looked_up.append(LookedUp(group_id, code=ErrorCode.GROUP_ID_NOT_FOUND, message=text))
    return looked_up


def _refused(code: ErrorCode, group_id: str) -> LookedUp:
    return LookedUp(group_id, code=code, message=code.message)


async def _is_told(context: KafkaContext, call: KafkaCall, group: Description) -> bool:
    """Whether the caller may know of all topics that an answer would name."""
    if call.caller.is_trusted:
        return True
    names: set[str] = set()
    async for member in call.slices.each(group.consumer_members):
        names.update(member.subscription.topic_names)
        names.update(_names(context, (member.assigned, member.target)))
    async for sharer in call.slices.each(group.share_members):
        names.update(sharer.topic_names)
        names.update(_names(context, (sharer.assigned,)))
    if group.topology is not None:
        names.update(topic_names(group.topology))
    async for name in call.slices.each(names):
        if not on_topic(context, call, Operation.DESCRIBE, name):
            return False
    return True


def _names(context: KafkaContext, several: Iterable[Partitions]) -> Iterator[str]:
    for partitions in several:
        for topic, _ in topics_in(context, partitions):
            yield topic.name


def topics_in(
    context: KafkaContext, partitions: Partitions
) -> Iterator[tuple[Topic, Sequence[int]]]:
    """Without topics that have just been deleted: they have no name to show."""
    for topic_id, indexes in to_map(partitions).items():
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None:
            yield topic, indexes
