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
    running = {
        task.task_id for task in context.backend.moves(source_arn) if task.status == "RUNNING"
    }
    task = await context.backend.cancel_move(task_id) if task_id in running else None
    if task is None:  # one that has ended is gone, as far as cancelling goes
        raise fault("ResourceNotFoundException", "Task does not exist.")
    return CancelMessageMoveTaskReply(approximate_number_of_messages_moved=task.moved)


ACTION = Action("CancelMessageMoveTask", run)
