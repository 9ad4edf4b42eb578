"""ConsumerGroupDescribe: groups that the coordinator assigns, member by member: what each has, and
what it shall have. A classic group is not there for this API."""

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer_fold import to_map
from penstock.cursor.group.describe import ConsumerMemberDescription, Description
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import GROUP_OPERATIONS, UNASKED
from penstock.frontend.kafka.topics import find_id, id_of
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

KEY = 69
_MEMBER_TYPE_CONSUMER = 1  # as opposed to a classic member on its way over


async def run(
    context: KafkaContext, _call: KafkaCall, asked: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    operations = GROUP_OPERATIONS if asked.include_authorized_operations else UNASKED
    groups = []
    for group_id in asked.group_ids:
        found = await context.groups.describe(group_id)
        if found.code is Code.NONE and found.kind == "consumer":
            groups.append(_described(context, found, operations))
        elif found.code in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            text = f"There is no consumer group {group_id}."
            groups.append(DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id))
        else:
            groups.append(DescribedGroup(found.code, group_id=group_id))
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(context: KafkaContext, found: Description, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=found.group_id,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.target_epoch,
        assignor_name=found.assignor,
        members=[_member(context, each) for each in found.consumer_members],
        authorized_operations=operations,
    )


def _member(context: KafkaContext, member: ConsumerMemberDescription) -> Member:
    subscription = member.subscription
    return Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.member_epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=subscription.topic_names,
        subscribed_topic_regex=subscription.topic_regex or None,
        assignment=_assignment(context, member.assigned),
        target_assignment=_assignment(context, member.target),
        member_type=_MEMBER_TYPE_CONSUMER,
    )


def _assignment(context: KafkaContext, partitions: Partitions) -> Assignment:
    """Without topics that have just been deleted: they have no name to show."""
    found = []
    for topic_id, indexes in to_map(partitions).items():
        topic = find_id(context, bytes.fromhex(topic_id))
        if topic is not None:
            found.append(TopicPartitions(id_of(topic), topic.name, indexes))
    return Assignment(found)


ACTION = KafkaAction(KEY, run)
