"""Commands of ``penstock dlq``, which list and redrive dead-letter queues. The server moves
the messages, so a redrive continues after Ctrl-C and after a restart of the server."""

import time

import click

from penstock.cli.command import Noun, Session
from penstock.cli.queues.queue import rows
from penstock.cli.terminal.failure import ExitCode, Failure, NotFound
from penstock.cli.terminal.options import count_option
from penstock.cli.terminal.output import Json, columns, progress_bar

_POLL_S = 0.25
_RUNNING = ("RUNNING", "CANCELLING")
_LIST_FIELDS = ("name", "visible", "in_flight", "delayed", "oldest_age_s", "sources")
_LIST_COLUMNS = columns(
    "name DEAD-LETTER QUEUE, visible#, in_flight# FLIGHT, oldest_age_s# OLDEST, sources FROM",
    sources=", ".join,
)
_TASK_COLUMNS = columns(
    "status, started_at_ms STARTED, moved#, to_move# OF, to, rate# RATE/s, failure_reason WHY"
)
dlq = Noun("dlq", help="List dead-letter queues and redrive their messages.")


@dlq.command("list")
def list_queues(session: Session) -> None:
    """List the queues that other queues use as their dead-letter queue."""
    found = [row for row in rows(session) if row["sources"]]
    items = [{key: row.get(key) for key in _LIST_FIELDS} for row in found]
    session.out.many(items, columns=_LIST_COLUMNS, empty="no dead-letter queues")


@dlq.command()
@click.option("--to", "target", metavar="QUEUE", help="destination queue [default: source queues]")
@click.option("--rate", type=click.IntRange(1, 500), help="maximum number of messages per second")
@click.option("--dry-run", is_flag=True, help="only print the number of messages to move")
@click.option("--detach", is_flag=True, help="start the redrive and exit without waiting")
def redrive(
    session: Session, queue: str, target: str | None, rate: int | None, dry_run: bool, detach: bool
) -> None:
    """Move the messages of a dead-letter queue back to their source queues.

    The server continues the redrive after Ctrl-C. Stop the redrive with `penstock dlq cancel`."""
    sqs = session.sqs
    source_arn = sqs.arn(queue)
    target_arn = None if target is None else sqs.arn(target)
    if dry_run:
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        visible, in_flight = map(int, map(sqs.attributes(queue, names).__getitem__, names))
        reply = sqs.call("ListDeadLetterSourceQueues", {"QueueUrl": sqs.queue_url(queue)})
        # Queues whose redrive policy names this queue now. A message returns to its own source.
        sources = [url.rpartition("/")[2] for url in reply.get("queueUrls", ())]
        if not sources:
            raise Failure(
                f"'{queue}' is not a dead-letter queue",
                "no queue uses it as its dead-letter queue",
                "list dead-letter queues with `penstock dlq list`",
            )
        plan = {"queue": queue, "would_move": visible, "in_flight": in_flight}
        session.out.one({**plan, "to": sources if target is None else [target]})
        return
    request: Json = {"SourceArn": source_arn}
    if target_arn is not None:
        request["DestinationArn"] = target_arn
    if rate is not None:
        request["MaxNumberOfMessagesPerSecond"] = rate
    reply = sqs.call("StartMessageMoveTask", request, what=f"cannot redrive '{queue}'")
    if detach:
        session.out.one({"queue": queue, "task": reply["TaskHandle"]}, name="task")
        session.remark(f"show the progress with `penstock dlq status {queue}`")
        return
    try:
        task = _wait(session, source_arn)
    except KeyboardInterrupt:
        session.remark(
            f"the redrive continues; show its progress with `penstock dlq status {queue}`,\n"
            f"stop it with `penstock dlq cancel {queue}`"
        )
        raise
    session.out.one(task, name="status")
    _check_ended(queue, task)


def _tasks(session: Session, source_arn: str, count: int = 1) -> list[Json]:
    request = {"SourceArn": source_arn, "MaxResults": count}
    reply = session.sqs.call("ListMessageMoveTasks", request, what="cannot list redrives")
    items = []
    for result in reply.get("Results", ()):
        target = result.get("DestinationArn")
        item: Json = {
            "status": result.get("Status"),
            "moved": result.get("ApproximateNumberOfMessagesMoved", 0),
            "to_move": result.get("ApproximateNumberOfMessagesToMove"),
            "from": str(result.get("SourceArn", "")).rpartition(":")[2],
            "to": None if target is None else target.rpartition(":")[2],
            "rate": result.get("MaxNumberOfMessagesPerSecond"),
            "started_at_ms": result.get("StartedTimestamp"),
        }
        more = {"failure_reason": result.get("FailureReason"), "task": result.get("TaskHandle")}
        items.append(item | {key: value for key, value in more.items() if value})
    return items


def _wait(session: Session, source_arn: str) -> Json:
    with progress_bar("moving", is_quiet=session.settings.quiet) as update:
        while True:
            tasks = _tasks(session, source_arn)
            if not tasks:
                raise Failure("cannot follow the redrive", "the server no longer lists it")
            task = tasks[0]
            update(task["moved"], task["to_move"])
            if task["status"] not in _RUNNING:
                return task
            time.sleep(_POLL_S)


def _check_ended(queue: str, task: Json) -> None:
    if task["status"] == "COMPLETED":
        return
    moved = int(task["moved"])
    raise Failure(
        f"the redrive of '{queue}' ended with status {task['status']}",
        str(task.get("failure_reason", "")) or f"{moved} messages were moved",
        "redrive again: messages that were not moved are still in the dead-letter queue",
        exit_code=ExitCode.PARTIAL if moved else ExitCode.FAILED,
    )


@dlq.command()
@count_option(10, 10, "maximum number of redrives to show")
@click.option("--wait", is_flag=True, help="wait until the newest redrive has ended")
def status(session: Session, queue: str, count: int, wait: bool) -> None:
    """Show the redrives of a dead-letter queue, newest first."""
    arn = session.sqs.arn(queue)
    tasks = _tasks(session, arn, count)
    if wait and tasks and tasks[0]["status"] in _RUNNING:
        _wait(session, arn)
        tasks = _tasks(session, arn, count)
    empty = f"no redrives of '{queue}'"
    session.out.many(tasks, columns=_TASK_COLUMNS, name="status", empty=empty)
    if wait and tasks:
        _check_ended(queue, tasks[0])


@dlq.command()
def cancel(session: Session, queue: str) -> None:
    """Stop the running redrive of a dead-letter queue. Moved messages are not moved back."""
    running = next((t for t in _tasks(session, session.sqs.arn(queue)) if "task" in t), None)
    if running is None:
        raise NotFound(
            f"cannot cancel a redrive of '{queue}'",
            "no redrive is running",
            f"list past redrives with `penstock dlq status {queue}`",
        )
    request = {"TaskHandle": running["task"]}
    reply = session.sqs.call("CancelMessageMoveTask", request, what="cannot cancel the redrive")
    session.out.one({"queue": queue, "moved": reply.get("ApproximateNumberOfMessagesMoved", 0)})
