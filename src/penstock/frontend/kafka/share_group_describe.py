"""ShareGroupDescribe: share groups, member by member. A group of another kind is not there for this
API, and of a group that reads topics which the caller may not describe nothing is told."""

from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer_fold import to_map
from penstock.cursor.group.describe import Description, ShareMemberDescription
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import (
    UNASKED,
    Operation,
    group_operations,
    on_group,
    on_topic,
)
from penstock.frontend.kafka.topics import find_id, id_of
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)

KEY = 77


async def run(
    context: KafkaContext, call: KafkaCall, asked: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    groups = []
    for group_id in asked.group_ids:
        if not on_group(context, call, Operation.DESCRIBE, group_id):
            groups.append(_refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id))
            continue
        operations = UNASKED
        if asked.include_authorized_operations:
            operations = group_operations(context, call, group_id)
        found = await context.groups.describe(group_id)
        if found.code is Code.NONE and found.kind == "share":
            described = _described(context, found, operations)
            if _is_told(context, call, described):
                groups.append(described)
            else:
                groups.append(_refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, group_id))
        elif found.code in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            text = f"There is no share group {group_id}."
            groups.append(DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id, "Dead"))
        else:
            groups.append(DescribedGroup(found.code, group_id=group_id))
    return ShareGroupDescribeResponse(groups=groups)


def _refused(code: ErrorCode, group_id: str) -> DescribedGroup:
    return DescribedGroup(code, code.message, group_id)


def _is_told(context: KafkaContext, call: KafkaCall, group: DescribedGroup) -> bool:
    """Whether the caller may know of all topics that the answer names."""
    if call.caller.is_trusted:
        return True
    names = {
        name
        for member in group.members
        for name in (
            *member.subscribed_topic_names,
            *(each.topic_name for each in member.assignment.topic_partitions),
        )
    }
    return all(on_topic(context, call, Operation.DESCRIBE, name) for name in names)


def _described(context: KafkaContext, found: Description, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=found.group_id,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.target_epoch,
        assignor_name=found.assignor,
        members=[_member(context, each) for each in found.share_members],
        authorized_operations=operations,
    )


def _member(context: KafkaContext, member: ShareMemberDescription) -> Member:
    """Without topics that have just been deleted: they have no name to show."""
    assigned = []
    for topic_id, indexes in to_map(member.assigned).items():
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None:
            assigned.append(TopicPartitions(id_of(topic), topic.name, indexes))
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topic_names,
        assignment=Assignment(assigned),
    )


ACTION = KafkaAction(KEY, run)
