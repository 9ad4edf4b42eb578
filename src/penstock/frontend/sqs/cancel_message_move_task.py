"""CancelMessageMoveTask: stop moving; what was moved stays moved."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.move_tasks import no_such, open_handle
from penstock.wire.aws.faults import fault, missing
from penstock.wire.aws.shapes import CancelMessageMoveTaskReply, CancelMessageMoveTaskRequest


async def run(
    context: Context,
    call: Call,  # noqa: ARG001 - every action has the same signature
    asked: CancelMessageMoveTaskRequest,
) -> CancelMessageMoveTaskReply:
    if not asked.task_handle:
        raise missing("TaskHandle")
    task_id, source_arn = open_handle(asked.task_handle)
    if context.catalog.find_arn(source_arn) is None:
        raise no_such("SourceArn")
    known = {task.task_id: task for task in context.backend.moves(source_arn)}
    if task_id not in known:
        raise fault("ResourceNotFoundException", "Task does not exist.")
    if known[task_id].status != "RUNNING":
        raise fault("InvalidParameterValue", "Only active tasks can be cancelled.")
    task = await context.backend.cancel_move(task_id)
    if task is None:
        raise fault("ResourceNotFoundException", "Task does not exist.")
    return CancelMessageMoveTaskReply(approximate_number_of_messages_moved=task.moved)


ACTION = Action("CancelMessageMoveTask", run)
