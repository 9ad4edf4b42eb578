"""ListMessageMoveTasks: the newest tasks of a source, running or ended."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.move_tasks import no_such, seal_handle
from penstock.model.ports import MoveTask
from penstock.wire.aws.faults import invalid_value, missing
from penstock.wire.aws.shapes import (
    ListMessageMoveTasksReply,
    ListMessageMoveTasksRequest,
    MessageMoveTaskEntry,
)

RESULTS_MAX = 10


async def run(
    context: Context,
    call: Call,  # noqa: ARG001 - every action has the same signature
    asked: ListMessageMoveTasksRequest,
) -> ListMessageMoveTasksReply:
    if not asked.source_arn:
        raise missing("SourceArn")
    count = 1 if asked.max_results is None else asked.max_results
    if not 1 <= count <= RESULTS_MAX:
        raise invalid_value(count, "MaxResults", f"Must be between 1 and {RESULTS_MAX}.")
    source = context.catalog.find_arn(asked.source_arn)
    if source is None:
        raise no_such("SourceArn")
    tasks = context.backend.moves(source.arn)[:count]
    return ListMessageMoveTasksReply(results=[_entry(task) for task in tasks])


def _entry(task: MoveTask) -> MessageMoveTaskEntry:
    is_running = task.status == "RUNNING"
    return MessageMoveTaskEntry(
        task_handle=seal_handle(task.task_id, task.source_arn) if is_running else None,
        status=task.status,
        source_arn=task.source_arn,
        destination_arn=task.destination_arn,
        max_number_of_messages_per_second=task.rate_per_s,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.failure_reason,
        started_timestamp=task.started_at_ms,
    )


ACTION = Action("ListMessageMoveTasks", run)
