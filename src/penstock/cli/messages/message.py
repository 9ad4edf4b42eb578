"""``penstock message``: sends, receives, shows and deletes messages.

Sending and receiving go through the SQS API like any client. Peek and tail read the log through the
admin API: they lease nothing, so no consumer misses a message and no receive count rises. With
``--topic`` send and tail use the Kafka protocol instead, with keys, headers and partitions."""

import contextlib
import sys
from collections.abc import Iterator

import click
from click.core import ParameterSource

from penstock.cli.command import Noun, Session
from penstock.cli.terminal import options
from penstock.cli.terminal.failure import ExitCode, Failure, NotFound


@click.group(cls=Noun)
def message() -> None:
    """Send, receive, peek, tail, delete messages."""


@contextlib.contextmanager
def _as_queue(session: Session, name: str, *, verb: str) -> Iterator[None]:
    """If ``name`` is a stream instead of a queue, raise a Failure that explains what to do."""
    try:
        yield
    except Failure as failure:
        if failure.exit_code is not ExitCode.NOT_FOUND or not _is_topic(session, name):
            raise
        other = "tail" if verb in ("peek", "receive", "tail") else "send"
        raise NotFound(
            f"cannot {verb}: '{name}' is a topic, not a queue; open it with `penstock topic"
            f" open-as-queue {name}` or use `penstock message {other} --topic {name}`"
        ) from None


def _is_topic(session: Session, name: str) -> bool:
    try:
        session.kafka.topic(name, what="cannot read topic")
    except Failure:
        return False
    return True


_QUEUE_ONLY = ("group", "dedup_id", "unique", "delay", "attributes", "whole")
_TOPIC_ONLY = ("key", "headers", "partition")


def _check_options(ctx: click.Context, *, is_topic: bool) -> None:
    """Reject a flag that would have no effect."""
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
@click.option("--topic", metavar="NAME", help="topic to send to instead of a queue")
@click.option("-f", "--file", "path", metavar="FILE", help="file with a message per line; -: stdin")
@click.option("--whole", is_flag=True, help="with -f: send the whole file as one message")
@click.option("--ndjson", is_flag=True, help="each line is a JSON object with body, group, …")
@click.option("--group", metavar="ID", help="message group, for order (FIFO) or fairness")
@click.option("--dedup-id", metavar="ID", help="FIFO: deduplication id of the message")
@click.option("--unique", is_flag=True, help="FIFO: generate a deduplication id per message")
@click.option("--delay", type=options.seconds(0, 900), help="delivery delay, such as 90s")
@click.option(
    "-a",
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    help="message attribute; repeatable",
)
@click.option("--key", metavar="KEY", help="topic: record key, for partitioning and compaction")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="topic: record header; repeatable",
)
@click.option("--partition", type=click.IntRange(min=0), help="topic: partition to send to")
def send(
    session: Session,
    words: tuple[str, ...],
    topic: str | None,
    path: str | None,
    whole: bool,
    ndjson: bool,
    group: str | None,
    dedup_id: str | None,
    unique: bool,
    delay: int | None,
    attributes: tuple[str, ...],
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
) -> None:
    """Send each BODY, or each line of stdin (-) or of a file (-f), as a message.

    With --ndjson each line is an object with body and optionally attributes, group, dedup_id and
    delay, as `message receive` prints it. Rejected messages are listed on stderr; the exit code
    is 7 then. Ctrl-C waits for the reply and prints the number of accepted messages.

    With --topic leave out QUEUE: `penstock message send --topic clicks --key ann BODY`. Without
    BODY, lines are read from stdin. With --ndjson each line is an object with value and optionally
    key, headers and partition, as `message tail` prints it.
    """
    _check_options(click.get_current_context(), is_topic=topic is not None)
    from penstock.cli.messages.sending import read_input

    if topic is not None:
        from penstock.cli.messages.producing import send_records
        from penstock.cli.messages.record_lines import RecordDefaults, header_from_flag

        bodies, path = _input(words, path, is_stdin_default=not sys.stdin.isatty())
        flags = RecordDefaults(
            None if key is None else key.encode(), tuple(map(header_from_flag, headers)), partition
        )
        source, is_single = read_input(bodies, path), len(bodies) == 1
        send_records(session, topic, source, flags, is_ndjson=ndjson, is_single=is_single)
        return
    from penstock.cli.messages.outgoing import Defaults, attribute_from_flag, send_messages

    if not words:
        raise click.UsageError("Give a QUEUE, or a topic with --topic NAME.")
    if dedup_id is not None and unique:
        raise click.UsageError("--dedup-id and --unique cannot be combined.")
    queue = words[0]
    bodies, path = _input(words[1:], path)
    if whole and (path is None or ndjson):
        raise click.UsageError("--whole needs -f and cannot be combined with --ndjson.")
    given = dict(map(attribute_from_flag, attributes)) or None
    with _as_queue(session, queue, verb="send"):
        send_messages(
            session,
            queue,
            read_input(bodies, path, is_whole=whole),
            Defaults(group, dedup_id, delay, given, unique),
            is_ndjson=ndjson,
            is_single=len(bodies) == 1,
            is_whole=whole,
        )


def _input(
    words: tuple[str, ...], path: str | None, *, is_stdin_default: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """Return the bodies or the file to read them from; exactly one of them must be given."""
    if words == ("-",):
        words, path = (), "-"
    if not words and path is None and is_stdin_default:
        path = "-"
    if bool(words) == bool(path):
        raise click.UsageError("Give exactly one of BODY, '-' for stdin, or -f FILE.")
    return words, path


@message.command()
@click.option(
    "-n", "--count", type=click.IntRange(1, 1_000_000), default=1, show_default=True,
    help="maximum number of messages",
)  # fmt: skip
@click.option("--wait", type=options.seconds(0, 20), help="longest wait for messages, such as 20s")
@click.option("--visibility", type=options.seconds(0, 43_200), help="lease duration")
@click.option("--delete", is_flag=True, help="delete each message after printing it")
def receive(
    session: Session, queue: str, count: int, wait: int | None, visibility: int | None, delete: bool
) -> None:
    """Receive up to --count messages and print each as a line of JSON; stop at an empty reply."""
    from penstock.cli.messages import receiving

    with _as_queue(session, queue, verb="receive"):
        receiving.receive(
            session,
            queue,
            count_max=count,
            wait_s=wait,
            visibility_s=visibility,
            is_deleting=delete,
        )


@message.command()
@click.option(
    "-n", "--count", type=click.IntRange(1, 10_000), default=10, show_default=True,
    help="maximum number of messages",
)  # fmt: skip
@click.option("--partition", type=click.IntRange(min=0), help="partition [default: all]")
@click.option("--start", type=click.IntRange(min=0), default=0, help="first offset")
def peek(session: Session, queue: str, count: int, partition: int | None, start: int) -> None:
    """Show messages without receiving them: visible, in flight and delayed ones."""
    from penstock.cli.messages import peeking

    with _as_queue(session, queue, verb="peek"):
        peeking.peek(session, queue, count=count, partition=partition, start=start)


@message.command()
@click.option("--topic", metavar="NAME", help="topic to read instead of a queue")
@click.option(
    "--from",
    "origin",
    metavar="earliest|latest|-N|OFFSET|TIME",
    help="start position in each partition [default: latest; with --group earliest]",
)
@click.option("--partition", type=click.IntRange(min=0), help="partition [default: all]")
@click.option("--grep", "pattern", metavar="REGEX", help="pattern that bodies must match")
@click.option("-n", "--count", type=click.IntRange(min=1), help="number of messages to stop after")
@click.option("--group", metavar="GROUP", help="topic: group to read and commit offsets for")
@click.option("--follow/--no-follow", default=True, help="wait for new messages or stop at the end")
@click.option("--exit-at-end", is_flag=True, help="the same as --no-follow")
def tail(
    session: Session,
    queue: str | None,
    topic: str | None,
    origin: str | None,
    partition: int | None,
    pattern: str | None,
    count: int | None,
    group: str | None,
    follow: bool,
    exit_at_end: bool,
) -> None:
    """Print messages of a queue or records of a topic as they are sent, without receiving them.

    TIME (topics only) is like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago. With --group the
    tail starts at the committed offsets of the group and commits printed records; the group must
    have no members. Ctrl-C stops the tail.
    """
    if (queue is None) == (topic is None):
        raise click.UsageError("Give a QUEUE, or a topic with --topic NAME.")
    is_following = follow and not exit_at_end
    if topic is not None:
        from penstock.cli.messages import topic_tail

        request = topic_tail.TailRequest(origin, partition, group, count, pattern, is_following)
        topic_tail.tail(session, topic, request)
        return
    from penstock.cli.messages import peeking

    if group is not None:
        raise click.UsageError("--group needs --topic.")
    assert queue is not None
    with _as_queue(session, queue, verb="tail"):
        peeking.tail(
            session,
            queue,
            origin=peeking.origin(origin or "end"),
            partition=partition,
            pattern=pattern,
            is_ending=not is_following,
            count_max=count,
        )


@message.command()
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT... | -")
def delete(session: Session, queue: str, receipts: tuple[str, ...]) -> None:
    """Delete received messages by their receipts.

    With - receipts are read from stdin: one per line, or the output of `message receive`.
    """
    from penstock.cli.messages import receiving

    source = receiving.receipts_from(sys.stdin.buffer, receipts)
    deleted, failed = receiving.delete_all(session, queue, source)
    session.out.one({"queue": queue, "deleted": deleted, "failed": failed})
    if failed:
        raise click.exceptions.Exit(ExitCode.PARTIAL if deleted else ExitCode.FAILED)


@message.command()
@click.argument("duration", type=options.seconds(0, 43_200))
def visibility(session: Session, queue: str, receipt: str, duration: int) -> None:
    """Set the lease of a received message to DURATION from now; 0 releases the message."""
    session.sqs.call_queue(
        queue,
        "ChangeMessageVisibility",
        what="cannot change the lease",
        ReceiptHandle=receipt,
        VisibilityTimeout=duration,
    )
    session.remark("released" if duration == 0 else f"leased for {duration} s from now")
