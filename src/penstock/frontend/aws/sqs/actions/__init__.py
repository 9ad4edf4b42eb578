"""A table of the SQS actions by name, and the action GetCallerIdentity of STS."""

from collections.abc import Mapping
from typing import Final

from penstock.frontend.aws.context import Action, Call, Run
from penstock.frontend.aws.sqs.actions import move_tasks, queues, receive, send
from penstock.wire.aws.shapes import CallerIdentity

_RUNS: Final[Mapping[str, Run]] = {
    "AddPermission": queues.add_permission,
    "CancelMessageMoveTask": move_tasks.cancel_move,
    "ChangeMessageVisibility": receive.change_visibility,
    "ChangeMessageVisibilityBatch": receive.change_visibility_batch,
    "CreateQueue": queues.create_queue,
    "DeleteMessage": receive.delete_message,
    "DeleteMessageBatch": receive.delete_message_batch,
    "DeleteQueue": queues.delete_queue,
    "GetQueueAttributes": queues.get_queue_attributes,
    "GetQueueUrl": queues.get_queue_url,
    "ListDeadLetterSourceQueues": queues.list_sources,
    "ListMessageMoveTasks": move_tasks.list_moves,
    "ListQueueTags": queues.list_queue_tags,
    "ListQueues": queues.list_queues,
    "PurgeQueue": queues.purge_queue,
    "ReceiveMessage": receive.receive_message,
    "RemovePermission": queues.remove_permission,
    "SendMessage": send.send_message,
    "SendMessageBatch": send.send_message_batch,
    "SetQueueAttributes": queues.set_queue_attributes,
    "StartMessageMoveTask": move_tasks.start_move,
    "TagQueue": queues.tag_queue,
    "UntagQueue": queues.untag_queue,
}
ACTIONS: Final[Mapping[str, Action]] = {
    name: Action(name, run, f"sqs:{name.removesuffix('Batch')}") for name, run in _RUNS.items()
}


async def _get_caller_identity(call: Call, _request: None) -> CallerIdentity:
    caller, account = call.caller, call.account
    if caller.is_trusted:  # authentication is off
        return CallerIdentity(arn=f"arn:aws:iam::{account}:root", user_id=account, account=account)
    return CallerIdentity(arn=caller.arn, user_id=call.sender, account=account)


GET_CALLER_IDENTITY: Final = Action(
    "GetCallerIdentity", _get_caller_identity, "sts:GetCallerIdentity"
)
