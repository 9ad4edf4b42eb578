"""SetQueueAttributes: change settings of a queue; those not given stay."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.queue_attributes import changed
from penstock.frontend.sqs.redrive import check_target
from penstock.model.topic import Topic
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import SetQueueAttributesRequest


async def run(context: Context, call: Call, asked: SetQueueAttributesRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    given = asked.attributes
    if not given:
        raise missing("Attributes")
    now_ms = context.clock.wall_ms()

    def change(current: Topic) -> Topic:
        after = changed(current, given, now_ms=now_ms)
        if "RedrivePolicy" in given and after.settings.redrive is not None:
            check_target(context.catalog, after, after.settings.redrive)
        return after

    change(topic)  # the caller's faults come before the store is asked for anything
    await context.catalog.change(topic.account, topic.region, topic.name, change)


ACTION = Action("SetQueueAttributes", run)
