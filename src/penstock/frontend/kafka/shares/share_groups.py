"""Checks of share groups for administrative requests, and their shares of topics."""

from penstock.cursor.coordinator_calls import DescribeGroup, MakeShareGroup
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError
from penstock.model.calls import OpenShare
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode

DELIVERIES_MAX = 5  # of one record; Kafka's default


async def check_share_group(
    context: KafkaContext, group_id: str, *, must_be_empty: bool = False, may_be_new: bool = False
) -> bool:
    """Return whether the share group exists. Raises ApiError."""
    found = await context.groups.call(DescribeGroup(group_id))
    if found.code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise ApiError(ErrorCode(found.code))
    if found.code and may_be_new:
        return False
    if found.code or found.kind != "share":
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group_id}.")
    if must_be_empty and found.state != "Empty":
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} still has members.")
    return True


async def make_share_group(context: KafkaContext, group_id: str) -> None:
    """Create a share group if it does not exist. Raises ApiError."""
    reply = await context.groups.call(MakeShareGroup(group_id))
    if reply.code:
        raise ApiError(ErrorCode(reply.code), f"Share group {group_id} could not be created.")


def shared_topics(context: KafkaContext, group_id: str) -> list[Topic]:
    """Return the topics that the group reads or has read, sorted by name."""
    found = context.catalog.topics(context.account, context.config.region)
    return [topic for topic in found if context.anywhere.find_share(topic, group_id) is not None]


async def open_share(
    context: KafkaContext, topic: Topic, group_id: str, *, is_earliest: bool
) -> Topic:
    return await context.anywhere.call(
        OpenShare(
            topic,
            0,
            group_id,
            start=EARLIEST if is_earliest else LATEST,
            attempts_max=DELIVERIES_MAX,
        )
    )
