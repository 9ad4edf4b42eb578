"""Share groups as administrative requests name them, or a refusal that says what is wrong."""

from penstock.cursor.group.codes import Code
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode

DELIVERIES_MAX = 5  # after that many a record is finished with; Kafka's default


async def check_share_group(
    context: KafkaContext, group_id: str, *, must_be_empty: bool = False, may_be_new: bool = False
) -> bool:
    """Return whether it exists. Raises Refusal."""
    found = await context.groups.describe(group_id)
    if found.code not in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
        raise Refusal(ErrorCode(found.code))
    if found.code and may_be_new:
        return False
    if found.code or found.kind != "share":
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group_id}.")
    if must_be_empty and found.state != "Empty":
        raise Refusal(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} still has members.")
    return True


async def make_share_group(context: KafkaContext, group_id: str) -> None:
    """Nothing if it exists. Raises Refusal."""
    reply = await context.groups.make_share_group(group_id)
    if reply.code:
        raise Refusal(ErrorCode(reply.code), f"Share group {group_id} could not be made.")


def shared_topics(context: KafkaContext, group_id: str) -> list[Topic]:
    """Those that the group reads or has read, sorted by name."""
    found = context.catalog.topics(context.account, context.config.region)
    return [topic for topic in found if context.shares.find_share(topic, group_id) is not None]


async def open_share(
    context: KafkaContext, topic: Topic, group_id: str, *, is_earliest: bool
) -> Topic:
    return await context.shares.open_share(
        topic,
        group_id,
        start=EARLIEST if is_earliest else LATEST,
        attempts_max=DELIVERIES_MAX,
    )
