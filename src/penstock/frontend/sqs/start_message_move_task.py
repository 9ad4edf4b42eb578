"""StartMessageMoveTask: send dead letters back, each to the queue it came from or all to one."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.move_tasks import ACTIVE, no_such, seal_handle
from penstock.frontend.sqs.redrive import sources_of
from penstock.model.names import uuid_text
from penstock.model.ports import MoveTask
from penstock.model.topic import Topic
from penstock.wire.aws.faults import fault, invalid_value, missing
from penstock.wire.aws.shapes import StartMessageMoveTaskReply, StartMessageMoveTaskRequest

RATE_MAX = 500


async def run(
    context: Context,
    call: Call,
    asked: StartMessageMoveTaskRequest,
) -> StartMessageMoveTaskReply:
    if not asked.source_arn:
        raise missing("SourceArn")
    rate = asked.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= RATE_MAX:
        raise invalid_value(
            rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {RATE_MAX}."
        )
    source = context.catalog.find_arn(asked.source_arn)
    if source is None:
        raise no_such("SourceArn")
    origin_arns = call.origin_arns
    if call.caller.is_trusted or asked.destination_arn:
        origin_arns = tuple(origin.arn for origin in sources_of(context.catalog, source))
    if not origin_arns:
        raise fault(
            "InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."
        )
    if asked.destination_arn:
        _check_destination(context, source, asked.destination_arn)
    if any(task.status in ACTIVE for task in context.backend.moves(source.arn)):
        raise fault(
            "InvalidParameterValue",
            "There is already a task running. Only one active task is allowed for a source queue "
            "arn at a given time.",
        )
    stats = await context.backend.stats(source)
    task = MoveTask(
        task_id=uuid_text(context.entropy(16)),
        source_arn=source.arn,
        destination_arn=asked.destination_arn or None,
        rate_per_s=rate,
        status="RUNNING",
        started_at_ms=context.clock.wall_ms(),
        to_move=stats.visible,
        origin_arns=origin_arns,
    )
    await context.backend.start_move(task)
    return StartMessageMoveTaskReply(task_handle=seal_handle(task.task_id, task.source_arn))


def _check_destination(context: Context, source: Topic, arn: str) -> None:
    destination = context.catalog.find_arn(arn)
    if destination is None:
        raise no_such("DestinationArn")
    if destination.arn == source.arn:
        raise fault(
            "InvalidParameterValue", "Source queue arn and destination queue arn are equal."
        )
    if destination.kind is not source.kind:
        raise fault(
            "InvalidParameterValue",
            "The destination queue must be of the same type as the source queue.",
        )
    if not source.may_pass_messages_to(destination):
        raise fault(
            "InvalidParameterValue",
            "The destination must be a queue of the same account and region as the source queue.",
        )


ACTION = Action("StartMessageMoveTask", run)
