"""AddPermission and RemovePermission: add and remove a labelled statement of a queue's policy."""

from penstock.frontend.sqs.call import Action, Call
from penstock.frontend.sqs.context import Context
from penstock.frontend.sqs.rules import queue_policies
from penstock.frontend.sqs.rules.names import topic_of
from penstock.model.topic import Topic
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import AddPermissionRequest, RemovePermissionRequest


async def add_permission(context: Context, call: Call, request: AddPermissionRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    label, accounts, actions = request.label, request.aws_account_ids, request.actions
    if not label:
        raise missing("Label")
    if accounts is None:
        raise missing("AWSAccountIds")
    if not actions:
        raise missing("Actions")

    def permit(current: Topic) -> Topic:
        policy = queue_policies.add_permission(
            current.settings.policy,
            arn=current.arn,
            label=label,
            accounts=accounts,
            actions=actions,
        )
        return current.with_settings(now_ms=context.clock.wall_ms(), policy=policy)

    await context.catalog.change(topic.account, topic.region, topic.name, permit)


async def remove_permission(context: Context, call: Call, request: RemovePermissionRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    label = request.label
    if not label:
        raise missing("Label")

    def revoke(current: Topic) -> Topic:
        policy = queue_policies.remove_permission(current.settings.policy, label=label)
        return current.with_settings(now_ms=context.clock.wall_ms(), policy=policy)

    await context.catalog.change(topic.account, topic.region, topic.name, revoke)


ACTIONS = (
    Action("AddPermission", add_permission),
    Action("RemovePermission", remove_permission),
)
