"""ConsumerGroupDescribe: groups that the coordinator assigns, member by member: what each has, and
what it shall have. A classic group is not there for this API, and of a group that reads topics the
caller may not describe nothing is told."""

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.describe import ConsumerMemberDescription, Description
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.described_groups import look_up, topics_in
from penstock.frontend.kafka.topics import id_of
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
    context: KafkaContext, call: KafkaCall, asked: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    looked_up = await look_up(
        context,
        call,
        asked.group_ids,
        kind="consumer",
        wants_operations=asked.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedGroup(one.code, one.message, one.group_id)
            if one.found is None
            else _described(context, one.found, one.operations)
            async for one in call.slices.each(looked_up)
        ]
    )


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
        subscribed_topic_regex=subscription.topic_regex or "",
        assignment=_assignment(context, member.assigned),
        target_assignment=_assignment(context, member.target),
        member_type=_MEMBER_TYPE_CONSUMER,
    )


def _assignment(context: KafkaContext, partitions: Partitions) -> Assignment:
    return Assignment(
        [
            TopicPartitions(id_of(topic), topic.name, indexes)
            for topic, indexes in topics_in(context, partitions)
        ]
    )


ACTION = KafkaAction(KEY, run)
