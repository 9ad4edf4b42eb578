"""ShareGroupDescribe: share groups, member by member. A group of another kind is not there for this
API, and of a group that reads topics which the caller may not describe nothing is told."""

from penstock.cursor.group.describe import Description, ShareMemberDescription
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.described_groups import look_up, topics_in
from penstock.frontend.kafka.topics import id_of
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
    looked_up = await look_up(
        context,
        call,
        asked.group_ids,
        kind="share",
        wants_operations=asked.include_authorized_operations,
    )
    return ShareGroupDescribeResponse(
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
        members=[_member(context, each) for each in found.share_members],
        authorized_operations=operations,
    )


def _member(context: KafkaContext, member: ShareMemberDescription) -> Member:
    assigned = [
        TopicPartitions(id_of(topic), topic.name, indexes)
        for topic, indexes in topics_in(context, member.assigned)
    ]
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
