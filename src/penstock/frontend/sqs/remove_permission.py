"""RemovePermission: take a labelled statement out of the queue's policy."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.model.topic import Topic
from penstock.wire.aws import policy
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import RemovePermissionRequest


async def run(context: Context, call: Call, asked: RemovePermissionRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    label = asked.label
    if not label:
        raise missing("Label")

    def revoke(current: Topic) -> Topic:
        text = policy.remove_permission(current.settings.policy, label=label)
        return current.with_settings(now_ms=context.clock.wall_ms(), policy=text)

    await context.catalog.change(topic.account, topic.region, topic.name, revoke)


ACTION = Action("RemovePermission", run)
