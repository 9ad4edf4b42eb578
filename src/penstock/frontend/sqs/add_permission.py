"""AddPermission: one more statement in the queue's policy, under a label."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.model.topic import Topic
from penstock.wire.aws import policy
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import AddPermissionRequest


async def run(context: Context, call: Call, asked: AddPermissionRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    label, accounts, actions = asked.label, asked.aws_account_ids, asked.actions
    if not label:
        raise missing("Label")
    if accounts is None:
        raise missing("AWSAccountIds")
    if not actions:
        raise missing("Actions")

    def permit(current: Topic) -> Topic:
        text = policy.add_permission(
            current.settings.policy,
            arn=current.arn,
            label=label,
            accounts=accounts,
            actions=actions,
        )
        return current.with_settings(now_ms=context.clock.wall_ms(), policy=text)

    await context.catalog.change(topic.account, topic.region, topic.name, permit)


ACTION = Action("AddPermission", run)
