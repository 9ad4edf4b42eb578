"""StartMessageMoveTask, CancelMessageMoveTask and ListMessageMoveTasks: tasks that move messages
from a dead-letter queue back to their source queues, or to one other queue.

A task handle is base64 of a small JSON object, as in AWS, because some clients parse it."""

import base64
import binascii
import json

from penstock.frontend.aws.context import Call, invalid
from penstock.frontend.aws.sqs.rules.queue_policies import sources_of
from penstock.model.calls import CancelMove, StartMove, Stats
from penstock.model.names import uuid_text
from penstock.model.ports import MoveTask
from penstock.model.topic import Topic
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing

RUNNING = "RUNNING"
ACTIVE = (RUNNING, "CANCELLING")
HANDLE_CHARS_MAX = 1_024
RATE_MAX = 500
RESULTS_MAX = 10


async def start_move(call: Call, request: aws.StartMessageMoveTaskRequest) -> aws.Reply:
    if not request.source_arn:
        raise missing("SourceArn")
    rate = request.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= RATE_MAX:
        reason = f"Must be between 1 and {RATE_MAX}."
        raise invalid_value(rate, "MaxNumberOfMessagesPerSecond", reason)
    source = _find(call, request.source_arn, "SourceArn")
    origin_arns = call.origin_arns
    if call.caller.is_trusted or request.destination_arn:
        origin_arns = tuple(origin.arn for origin in sources_of(call.context.catalog, source))
    if not origin_arns:
        raise invalid("Source queue must be configured as a Dead Letter Queue.")
    if request.destination_arn:
        _check_destination(source, _find(call, request.destination_arn, "DestinationArn"))
    if any(task.status in ACTIVE for task in call.context.broker.moves(source.arn)):
        text = "There is already a task running. Only one active task is allowed for a source"
        raise invalid(f"{text} queue arn at a given time.")
    stats = await call.context.broker.call(Stats(source))
    task = MoveTask(
        task_id=uuid_text(call.context.entropy(16)),
        source_arn=source.arn,
        destination_arn=request.destination_arn or None,
        rate_per_s=rate,
        status=RUNNING,
        started_at_ms=call.context.clock.wall_ms(),
        to_move=stats.visible,
        origin_arns=origin_arns,
    )
    await call.context.broker.call(StartMove(task))
    return aws.StartMessageMoveTaskReply(task_handle=encode_handle(task.task_id, task.source_arn))


def _check_destination(source: Topic, destination: Topic) -> None:
    if destination.arn == source.arn:
        raise invalid("Source queue arn and destination queue arn are equal.")
    if destination.kind is not source.kind:
        raise invalid("The destination queue must be of the same type as the source queue.")
    if not source.may_pass_messages_to(destination):
        text = "The destination must be a queue of the same account and region as the source queue."
        raise invalid(text)


async def cancel_move(call: Call, request: aws.CancelMessageMoveTaskRequest) -> aws.Reply:
    if not request.task_handle:
        raise missing("TaskHandle")
    task_id, source_arn = decode_handle(request.task_handle)
    _find(call, source_arn, "SourceArn")
    broker = call.context.broker
    running = [task.task_id for task in broker.moves(source_arn) if task.status == RUNNING]
    task = await broker.call(CancelMove(task_id)) if task_id in running else None
    if task is None:  # SQS does not find a task that has ended
        raise fault("ResourceNotFoundException", "Task does not exist.")
    return aws.CancelMessageMoveTaskReply(approximate_number_of_messages_moved=task.moved)


async def list_moves(call: Call, request: aws.ListMessageMoveTasksRequest) -> aws.Reply:
    if not request.source_arn:
        raise missing("SourceArn")
    count = 1 if request.max_results is None else request.max_results
    if not 1 <= count <= RESULTS_MAX:
        raise invalid_value(count, "MaxResults", f"Must be between 1 and {RESULTS_MAX}.")
    source = _find(call, request.source_arn, "SourceArn")
    tasks = call.context.broker.moves(source.arn)[:count]
    return aws.ListMessageMoveTasksReply(results=[_entry(task) for task in tasks])


def _entry(task: MoveTask) -> aws.MessageMoveTaskEntry:
    is_running = task.status == RUNNING
    return aws.MessageMoveTaskEntry(
        task_handle=encode_handle(task.task_id, task.source_arn) if is_running else None,
        status=task.status,
        source_arn=task.source_arn,
        destination_arn=task.destination_arn,
        max_number_of_messages_per_second=task.rate_per_s,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.failure_reason,
        started_timestamp=task.started_at_ms,
    )


def _find(call: Call, arn: str, parameter: str) -> Topic:
    topic = call.context.catalog.find_arn(arn)
    if topic is None:
        raise not_found(parameter)
    return topic


def not_found(parameter: str) -> Fault:
    text = f"The resource that you specified for the {parameter} parameter doesn't exist."
    return fault("ResourceNotFoundException", text)


def encode_handle(task_id: str, source_arn: str) -> str:
    text = json.dumps({"taskId": task_id, "sourceArn": source_arn}, separators=(",", ":"))
    return base64.b64encode(text.encode()).decode()


def decode_handle(handle: str) -> tuple[str, str]:
    try:
        given = json.loads(base64.b64decode(handle[:HANDLE_CHARS_MAX], validate=True))
        task_id, source_arn = given["taskId"], given["sourceArn"]
        if isinstance(task_id, str) and isinstance(source_arn, str):
            return task_id, source_arn
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise invalid("Value for parameter TaskHandle is invalid.")
