"""Commands of ``penstock message``, which use the SQS API, or the Kafka protocol with ``--topic``.
``receive --delete`` deletes a message only after it was printed and flushed. If the reader of the
pipe is gone, the message becomes visible again instead of being lost."""

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli.command import Noun, Session
from penstock.cli.messages import sending
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse, NotFound
from penstock.cli.terminal.options import (
    Texts,
    attribute_from_flag,
    count_option,
    option,
    repeatable,
    seconds,
)
from penstock.cli.terminal.output import Json, duration

_QUEUE_ONLY = ("group", "dedup_id", "unique", "delay", "attributes", "whole")
_TOPIC_ONLY = ("key", "headers", "partition")
_OPTIONAL_FIELDS = {
    "group": "MessageGroupId",
    "dedup_id": "MessageDeduplicationId",
    "sequence_number": "SequenceNumber",
    "source": "DeadLetterQueueSourceArn",
    "trace_header": "AWSTraceHeader",
}
message = Noun("message", help="Send, receive, peek, tail, delete messages.")


@contextlib.contextmanager
def _as_queue(session: Session, name: str, *, verb: str) -> Iterator[None]:
    """Wrap a block that uses ``name`` as a queue. If it is a topic, the error says what to do."""
    try:
        yield
    except Failure as failure:
        if failure.exit_code is not ExitCode.NOT_FOUND or not _is_topic(session, name):
            raise
        other = "send" if verb == "send" else "tail"
        raise NotFound(
            f"cannot {verb}: '{name}' is a topic, not a queue; open it with `penstock topic"
            f" open-as-queue {name}` or use `penstock message {other} --topic {name}`"
        ) from None


def _is_topic(session: Session, name: str) -> bool:
    from penstock.net.kafka_client.errors import KafkaTrouble

    try:
        session.kafka.topic(name)
    except (Failure, KafkaTrouble):
        return False
    return True


def _check_options(ctx: click.Context, *, is_topic: bool) -> None:
    for param in ctx.command.params:
        assert param.name is not None
        if ctx.get_parameter_source(param.name) is not ParameterSource.COMMANDLINE:
            continue
        if is_topic and param.name in _QUEUE_ONLY:
            raise click.UsageError(f"{param.opts[-1]} cannot be combined with --topic.")
        if not is_topic and param.name in _TOPIC_ONLY:
            raise click.UsageError(f"{param.opts[-1]} needs --topic.")


@message.command()
@click.argument("words", nargs=-1, metavar="QUEUE [BODY]... | -")
@click.option("--topic", metavar="NAME", help="topic to send to, instead of a queue")
@click.option("-f", "--file", "path", metavar="FILE", help="file with one message per line")
@click.option("--whole", is_flag=True, help="with -f: send the whole file as one message")
@click.option("--ndjson", is_flag=True, help="read each line as a JSON object (see above)")
@click.option("--group", metavar="ID", help="message group id (FIFO queues, fair queues)")
@click.option("--dedup-id", metavar="ID", help="deduplication id of the message (FIFO queues)")
@click.option("--unique", is_flag=True, help="new deduplication id for each message (FIFO queues)")
@click.option("--delay", type=seconds(0, 900), help="delivery delay, such as 90s")
@repeatable("-a --attribute attributes", "NAME[:TYPE]=VALUE", "message attribute")
@click.option("--key", metavar="KEY", help="with --topic: key of the record")
@repeatable("--header headers", "NAME=VALUE", "with --topic: record header")
@click.option("--partition", type=click.IntRange(min=0), help="with --topic: partition to send to")
def send(
    session: Session,
    words: Texts,
    topic: str | None,
    path: str | None,
    whole: bool,
    ndjson: bool,
    attributes: Texts,
    key: str | None,
    headers: Texts,
    partition: int | None,
    **flags: Any,
) -> None:
    """Send each BODY, or each line of stdin (-) or of a file (-f), as a message.

    With --ndjson each line is a JSON object with body and optionally attributes, group, dedup_id
    and delay, in the format of `message receive`. Rejected messages are listed on stderr, and the
    exit code is 7, or 1 if all were rejected. After Ctrl-C the command waits for the current reply
    and prints the number of accepted messages.

    With --topic leave out QUEUE: `penstock message send --topic clicks --key ann BODY`. Without
    BODY, lines are read from stdin. With --ndjson each line is a JSON object with value and
    optionally key, headers and partition, in the format of `message tail`."""
    _check_options(click.get_current_context(), is_topic=topic is not None)
    if topic is not None:
        from penstock.cli.messages import producing

        bodies, path = _input(words, path, is_stdin_default=not sys.stdin.isatty())
        given = tuple(map(producing.header_from_flag, headers))
        encoded = None if key is None else key.encode()
        defaults = producing.OutgoingRecord(0, encoded, None, given, partition)
        records = producing.RecordSender(session, topic)
        parse = producing.from_json if ndjson else producing.from_text
        records.send_lines(sending.read_input(bodies, path), partial(parse, defaults=defaults))
        records.end(records.last if len(bodies) == 1 else None, "offset", "sent")
        return
    if not words:
        raise click.UsageError("Give a QUEUE, or a topic with --topic NAME.")
    if flags["dedup_id"] is not None and flags["unique"]:
        raise click.UsageError("--dedup-id and --unique cannot be combined.")
    bodies, path = _input(words[1:], path)
    if whole and (path is None or ndjson):
        raise click.UsageError("--whole needs -f and cannot be combined with --ndjson.")
    flags["attributes"] = dict(map(attribute_from_flag, attributes)) or None
    with _as_queue(session, words[0], verb="send"):
        sender = sending.MessageSender(session, words[0], is_single=whole or len(bodies) == 1)
        make = partial(
            sending.from_json if ndjson else sending.from_text, defaults=sending.Defaults(**flags)
        )
        sender.send_lines(sending.read_input(bodies, path, is_whole=whole), make)
        sender.end(sender.shown() if len(bodies) == 1 else None, "message_id", "name")


def _input(
    words: Texts, path: str | None, *, is_stdin_default: bool = False
) -> tuple[Texts, str | None]:
    if words == ("-",):
        words, path = (), "-"
    if not words and path is None and is_stdin_default:
        path = "-"
    if bool(words) == bool(path):
        raise click.UsageError("Give exactly one of BODY, '-' for stdin, or -f FILE.")
    return words, path


def as_item(message: Json) -> Json:
    system = message.get("Attributes", {})
    item: Json = {
        "message_id": message["MessageId"],
        "body": message["Body"],
        "attempts": int(system.get("ApproximateReceiveCount", 1)),
        "sent_at_ms": int(system["SentTimestamp"]) if "SentTimestamp" in system else None,
    }
    item |= {field: system[name] for field, name in _OPTIONAL_FIELDS.items() if name in system}
    if attributes := message.get("MessageAttributes"):
        item["attributes"] = sending.typed(attributes, "DataType", "StringValue", "BinaryValue")
    item["receipt"] = message["ReceiptHandle"]
    return item


def _as_text(item: Json) -> str:
    facts = [f"attempt {item['attempts']}"]
    if item["sent_at_ms"] is not None:
        facts.append(f"sent {duration(max(0.0, time.time() - item['sent_at_ms'] / 1_000))} ago")
    if "group" in item:
        facts.append(f"group {item['group']}")
    facts.append(f"id {item['message_id']}")
    return f"{item['body']}\n  {' · '.join(facts)}\n  receipt {item['receipt']}"


def _replies(
    session: Session, queue: str, count: int, wait: int | None, visibility: int | None
) -> Iterator[list[Json]]:
    request: Json = {
        "QueueUrl": session.sqs.queue_url(queue),
        "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
    }
    if wait is not None:
        request["WaitTimeSeconds"] = wait
    if visibility is not None:
        request["VisibilityTimeout"] = visibility
    # The queue's own wait is unknown here; it is at most 20 s.
    longest_s = 20.0 if wait is None else float(wait)
    what = f"cannot receive from '{queue}'"
    while count:
        request["MaxNumberOfMessages"] = min(count, sending.BATCH_COUNT_MAX)
        reply = session.sqs.call("ReceiveMessage", request, what=what, wait_s=longest_s)
        found = reply.get("Messages", [])
        if not found:
            return
        count -= len(found)
        yield [as_item(message) for message in found]


@message.command()
@count_option(1_000_000, 1, "maximum number of messages to receive")
@click.option("--wait", type=seconds(0, 20), help="time to wait for a message, such as 20s")
@click.option("--visibility", type=seconds(0, 43_200), help="visibility timeout, such as 5m")
@click.option("--delete", is_flag=True, help="delete each message after printing it")
def receive(
    session: Session, queue: str, count: int, wait: int | None, visibility: int | None, delete: bool
) -> None:
    """Receive and print up to --count messages. Stop early if the queue returns no message."""
    replies: Iterable[list[Json]] = _replies(session, queue, count, wait, visibility)
    is_array = session.out.format_of("ndjson") == "json"
    failed = received = 0
    with _as_queue(session, queue, verb="receive"):
        if is_array:  # one array needs all messages
            replies = [list(itertools.chain.from_iterable(replies))]
        for items in replies:
            received += len(items)
            if is_array:
                session.out.many(items, columns=())
            else:
                for item in items:
                    session.out.streamed(item, text=_as_text(item), name="body")
            session.out.flush()
            if delete:
                failed += _delete_all(session, queue, (item["receipt"] for item in items))[1]
    if not received and session.out.is_for_people:
        from penstock.cli.clients.http import name_of

        try:
            session.remark(f"no message: {session.admin.explanation(name_of(queue))['summary']}")
        except Failure:
            session.remark("no message")
    if failed:
        raise Failure(
            f"{failed} messages were received but not deleted",
            "the server rejected the deletion",
            "the messages are delivered again after their visibility timeout",
            exit_code=ExitCode.PARTIAL,
        )


@message.command()
@count_option(10_000, 10, "maximum number of messages to show")
@click.option("--partition", type=click.IntRange(min=0), help="partition to show [default: all]")
@option("--start", click.IntRange(min=0), "offset to start at", default=0)
def peek(session: Session, queue: str, count: int, partition: int | None, start: int) -> None:
    """Show messages without receiving them, including delayed messages and messages in flight."""
    from penstock.cli.messages import peeking

    with _as_queue(session, queue, verb="peek"):
        peeking.peek(session, queue, count=count, partition=partition, start=start)


@message.command()
@click.option("--topic", metavar="NAME", help="topic to read, instead of a queue")
@option(
    "--from origin",
    "earliest|latest|-N|OFFSET|TIME",
    "start position in each partition [default: latest; with --group: earliest]",
)
@click.option("--partition", type=click.IntRange(min=0), help="partition to read [default: all]")
@click.option("--grep", "pattern", metavar="REGEX", help="regex that message bodies must match")
@count_option(None, None, "number of messages to stop after")
@click.option(
    "--group", metavar="GROUP", help="with --topic: group whose offsets are read and committed"
)
@click.option("--follow/--no-follow", default=True, help="wait for new messages or exit at the end")
@click.option("--exit-at-end", is_flag=True, help="the same as --no-follow")
def tail(
    session: Session,
    queue: str | None,
    topic: str | None,
    count: int | None,
    follow: bool,
    exit_at_end: bool,
    **wanted: Any,
) -> None:
    """Print messages of a queue or records of a topic as they are sent, without receiving them.

    TIME (topics only) is like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago. With --group the
    tail starts at the committed offsets of the group, or at --from in partitions without one, and
    commits the offsets of printed records; the group must have no members. Ctrl-C ends the tail."""
    from penstock.cli.messages import peeking

    if (queue is None) == (topic is None):
        raise click.UsageError("Give a QUEUE, or a topic with --topic NAME.")
    is_following = follow and not exit_at_end
    request = peeking.TailRequest(count_max=count, is_following=is_following, **wanted)
    if topic is not None:
        from penstock.cli.messages import topic_tail

        topic_tail.tail(session, topic, request)
        return
    if request.group is not None:
        raise click.UsageError("--group needs --topic.")
    assert queue is not None
    with _as_queue(session, queue, verb="tail"):
        peeking.tail(session, queue, request)


@message.command()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT... | -")
def delete(session: Session, queue: str, receipts: Texts) -> None:
    """Delete received messages by their receipts.

    With - receipts are read from stdin: one per line, or the output of `message receive`."""
    source: Iterable[str] = receipts
    if receipts == ("-",):
        lines = itertools.chain.from_iterable(sending.line_chunks(sys.stdin.buffer))
        source = (_receipt_in(place, line) for place, line in lines)
    deleted, failed = _delete_all(session, queue, source)
    session.out.one({"queue": queue, "deleted": deleted, "failed": failed})
    if failed:
        raise click.exceptions.Exit(ExitCode.PARTIAL if deleted else ExitCode.FAILED)


def _receipt_in(place: int, line: str) -> str:
    if not line.startswith("{"):
        return line.strip()
    try:
        receipt: Any = json.loads(line).get("receipt")
    except ValueError:
        receipt = None
    if not isinstance(receipt, str):
        raise Misuse(f"line {place} has no receipt", "the JSON object needs a field 'receipt'")
    return receipt


def _delete_all(session: Session, queue: str, receipts: Iterable[str]) -> tuple[int, int]:
    source = iter(receipts)
    deleted = failed = 0
    what = f"cannot delete messages of '{queue}'"
    while batch := list(itertools.islice(source, sending.BATCH_COUNT_MAX)):
        entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(batch)]
        reply = session.sqs.call_queue(queue, "DeleteMessageBatch", what=what, Entries=entries)
        deleted += len(reply.get("Successful", ()))
        for fault in reply.get("Failed", ()):
            failed += 1
            if failed <= sending.FAILURES_LISTED_MAX:
                text = f"{fault.get('Message', '')} ({fault.get('Code', '')})"
                click.echo(f"receipt {batch[int(fault['Id'])][:24]}… rejected: {text}", err=True)
    return deleted, failed


@message.command()
@click.argument("duration", type=seconds(0, 43_200))
def visibility(session: Session, queue: str, receipt: str, duration: int) -> None:
    """Set the visibility timeout of a received message to DURATION. 0 makes it visible at once."""
    what, change = "cannot change the visibility timeout", "ChangeMessageVisibility"
    lease = {"ReceiptHandle": receipt, "VisibilityTimeout": duration}
    session.sqs.call_queue(queue, change, what=what, **lease)
    session.remark("visible again" if duration == 0 else f"invisible for {duration} s from now")
