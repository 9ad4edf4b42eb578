"""AlterShareGroupOffsets: a share group without members begins anew at other offsets. What was
leased, delivered or finished there counts no longer. A group that does not exist is made with the
first offset that is accepted: so an operator says where a new group begins."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import (
    check_group,
    check_partition,
    check_topic,
    topic_named,
)
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.share_groups import check_share_group, make_share_group, open_share
from penstock.frontend.kafka.topics import find_name, id_of
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

KEY = 91


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    try:
        check_group(context, call, Operation.READ, asked.group_id)
        is_made = await check_share_group(
            context, asked.group_id, must_be_empty=True, may_be_new=True
        )
    except REFUSALS as error:
        refusal = refusal_of(error)
        return AlterShareGroupOffsetsResponse(
            error_code=refusal.code, error_message=refusal.message
        )
    altering = _Altering(context, call, asked.group_id, is_made=is_made)
    topics = []
    async for each in call.slices.each(asked.topics):
        partitions = [
            await altering.at(each.topic_name, one)
            async for one in call.slices.each(each.partitions)
        ]
        topic = find_name(context, each.topic_name)
        if topic is None or not on_topic(context, call, Operation.READ, topic.name, topic):
            found = AlterShareGroupOffsetsResponseTopic(each.topic_name, partitions=partitions)
        else:
            found = AlterShareGroupOffsetsResponseTopic(each.topic_name, id_of(topic), partitions)
        topics.append(found)
    return AlterShareGroupOffsetsResponse(responses=topics)


class _Altering:
    """One request. ``is_made``: the group exists."""

    def __init__(
        self, context: KafkaContext, call: KafkaCall, group_id: str, *, is_made: bool
    ) -> None:
        self._context = context
        self._call = call
        self._group_id = group_id
        self._is_made = is_made

    async def at(
        self, name: str, asked: AlterShareGroupOffsetsRequestPartition
    ) -> AlterShareGroupOffsetsResponsePartition:
        index = asked.partition_index
        try:
            await self._restart(name, index, asked.start_offset)
        except REFUSALS as error:
            refusal = refusal_of(error)
            return AlterShareGroupOffsetsResponsePartition(index, refusal.code, refusal.message)
        return AlterShareGroupOffsetsResponsePartition(index)

    async def _restart(self, name: str, index: int, offset: int) -> None:
        """Raises one of REFUSALS."""
        context, group_id = self._context, self._group_id
        check_topic(context, self._call, Operation.READ, name)
        topic = topic_named(context, name)
        check_partition(topic, index)
        if offset < 0:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{offset} is no offset.")
        if not self._is_made:
            await make_share_group(context, group_id)
            self._is_made = True
        is_earliest = context.groups.share_settings(group_id).is_earliest
        share = await open_share(context, topic, group_id, is_earliest=is_earliest)
        await context.shares.restart_share(share, index, offset)


ACTION = KafkaAction(KEY, run)
