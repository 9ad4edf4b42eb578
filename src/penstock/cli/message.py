"""``penstock message``: sends, receives, shows and deletes messages.

Sending and receiving go through the SQS API like any client. Peek and tail read the log through the
admin API: they lease nothing, so no consumer misses a message and no receive count rises. With
``--topic`` send and tail use the Kafka protocol instead, with keys, headers and partitions."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli import quantity
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.session import Noun, Session, pass_session


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
        raise Failure(
            f"cannot {verb}: '{name}' is a stream and no queue; open it with `penstock topic"
            f" open-as-queue {name}` or use `penstock message {other} --topic {name}`",
            exit_code=ExitCode.NOT_FOUND,
        ) from None


def _is_topic(session: Session, name: str) -> bool:
    try:
        session.kafka.topic(name, what="cannot look")
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
            raise click.UsageError(f"{param.opts[-1]} is for queues and not for --topic.")
        if not is_topic and param.name in _TOPIC_ONLY:
            raise click.UsageError(f"{param.opts[-1]} goes with --topic.")


@message.command()
@click.argument("words", nargs=-1, metavar="QUEUE [BODY]... | -")
@click.option("--topic", metavar="NAME", help="to a topic instead of a queue, as Kafka clients do")
@click.option("-f", "--file", "path", metavar="FILE", help="send each line of FILE ('-' is stdin)")
@click.option("--whole", is_flag=True, help="with -f: the whole file is one message")
@click.option("--ndjson", is_flag=True, help="each line is an object with body, group, …")
@click.option("--group", metavar="ID", help="message group: order on FIFO, fairness otherwise")
@click.option("--dedup-id", metavar="ID", help="FIFO: deduplication id of the one message")
@click.option("--unique", is_flag=True, help="FIFO: a fresh deduplication id for each message")
@click.option("--delay", type=quantity.seconds(0, 900), help="hide this long, such as 90s")
@click.option(
    "-a",
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    help="can be given many times",
)
@click.option(
    "--key", metavar="KEY", help="topic: decides the partition, and what compaction keeps"
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="topic: can be given many times",
)
@click.option("--partition", type=click.IntRange(min=0), help="topic: this one, whatever the key")
@pass_session
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
    """Send messages: each BODY, or each line of stdin ('-') or of a file (-f).

    Objects of --ndjson have a body, and may have attributes, group, dedup_id and delay; what
    `message receive` prints can be sent again as it is. Refused messages are listed on stderr
    and the exit code is 7.

    With --topic no QUEUE is named: `penstock message send --topic clicks --key ann BODY`. Objects
    of --ndjson have a value, and may have key, headers and partition, as `message tail` prints
    them. Without BODY, lines come from stdin.
    """
    _check_options(click.get_current_context(), is_topic=topic is not None)
    if topic is not None:
        bodies, path = _input(words, path, is_stdin_default=not sys.stdin.isatty())
        _send_records(session, topic, bodies, path, (key, headers, partition), is_ndjson=ndjson)
        return
    from penstock.cli.outgoing import Defaults, attribute_from_flag

    if not words:
        raise click.UsageError("Name a QUEUE, or a topic with --topic NAME.")
    if dedup_id is not None and unique:
        raise click.UsageError("--dedup-id and --unique exclude each other.")
    queue = words[0]
    bodies, path = _input(words[1:], path)
    if whole and (path is None or ndjson):
        raise click.UsageError("--whole goes with -f and without --ndjson.")
    defaults = Defaults(
        group=group,
        dedup_id=dedup_id,
        delay_s=delay,
        attributes=dict(map(attribute_from_flag, attributes)) or None,
    )
    source = _source(bodies, path, defaults, is_whole=whole, is_ndjson=ndjson)
    if unique:
        source = _made_unique(source)
    with _as_queue(session, queue, verb="send"):
        _send_all(session, queue, source, is_single=len(bodies) == 1, is_whole=whole)


def _input(
    words: tuple[str, ...], path: str | None, *, is_stdin_default: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """Return the bodies or the file to read them from; exactly one of them must be given."""
    if words == ("-",):
        words, path = (), "-"
    if not words and path is None and is_stdin_default:
        path = "-"
    if bool(words) == bool(path):
        raise click.UsageError("Give a BODY, '-' for stdin, or -f FILE: one of them.")
    return words, path


def _send_records(
    session: Session,
    topic: str,
    bodies: tuple[str, ...],
    path: str | None,
    flags: tuple[str | None, tuple[str, ...], int | None],
    *,
    is_ndjson: bool,
) -> None:
    from penstock.cli.producing import RecordSender, records_in
    from penstock.cli.record_lines import RecordDefaults, header_from_flag

    key, headers, partition = flags
    defaults = RecordDefaults(
        key=None if key is None else key.encode(),
        headers=tuple(map(header_from_flag, headers)),
        partition=partition,
    )
    with contextlib.ExitStack() as stack:
        stream = None if path is None else stack.enter_context(click.open_file(path, "rb"))
        sender = RecordSender(session, topic)
        sender.send(records_in(bodies, stream, defaults, is_ndjson=is_ndjson))
    if len(bodies) == 1 and sender.last is not None:
        place, offset = sender.last
        session.out.one({"topic": topic, "partition": place, "offset": offset}, name="offset")
    else:
        session.out.one(
            {"topic": topic, "sent": sender.accepted, "failed": sender.failed}, name="sent"
        )
    if sender.outcome():
        raise click.exceptions.Exit(sender.outcome())


def _source(
    bodies: tuple[str, ...], path: str | None, defaults: Any, *, is_whole: bool, is_ndjson: bool
) -> Iterator[Sequence[Any]]:
    from penstock.cli.outgoing import batches, from_json, from_text
    from penstock.cli.sending import read_lines

    if path is None:
        make = from_json if is_ndjson else from_text
        yield from batches(make(place, body, defaults) for place, body in enumerate(bodies, 1))
        return
    with click.open_file(path, "rb") as stream:
        if not is_whole:
            yield from read_lines(stream, defaults, is_ndjson=is_ndjson)
            return
        try:
            text = stream.read().decode()
        except UnicodeDecodeError:
            raise Failure(f"'{path}' is not UTF-8 text", fix="send it as base64") from None
        yield [from_text(1, text, defaults)]


def _made_unique(source: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    import uuid

    for batch in source:
        for item in batch:
            item.entry.setdefault("MessageDeduplicationId", str(uuid.uuid4()))
        yield batch


def _send_all(
    session: Session,
    queue: str,
    source: Iterator[Sequence[Any]],
    *,
    is_single: bool,
    is_whole: bool,
) -> None:
    from penstock.cli.sending import Sender

    sender = Sender(session, queue, is_single=is_single or is_whole)
    sender.send(source)
    if is_single and sender.replies:
        reply = sender.replies[0]
        item = {"message_id": reply["MessageId"]}
        if "SequenceNumber" in reply:
            item["sequence_number"] = reply["SequenceNumber"]
        session.out.one(item, name="message_id")
    else:
        session.out.one({"queue": queue, "sent": sender.accepted, "failed": sender.failed})
    if sender.outcome():
        raise click.exceptions.Exit(sender.outcome())


@message.command()
@click.argument("queue")
@click.option("-n", "--count", type=click.IntRange(1, 1_000_000), default=1, show_default=True)
@click.option("--wait", type=quantity.seconds(0, 20), help="wait for a first one, such as 20s")
@click.option("--visibility", type=quantity.seconds(0, 43_200), help="lease for this long")
@click.option("--delete", is_flag=True, help="delete each message once it has been printed")
@pass_session
def receive(
    session: Session,
    queue: str,
    count: int,
    wait: int | None,
    visibility: int | None,
    delete: bool,
) -> None:
    """Receive up to COUNT messages, one JSON object a line; stops when the queue has no more."""
    from penstock.cli import receiving

    wish = receiving.Wish(count_max=count, wait_s=wait, visibility_s=visibility, is_deleting=delete)
    with _as_queue(session, queue, verb="receive"):
        receiving.receive(session, queue, wish)


@message.command()
@click.argument("queue")
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("--partition", type=click.IntRange(min=0), help="only this one")
@click.option("--start", type=click.IntRange(min=0), default=0, help="offset to begin at")
@pass_session
def peek(session: Session, queue: str, count: int, partition: int | None, start: int) -> None:
    """Look at messages without receiving them: visible, in flight and delayed alike."""
    from penstock.cli import looking

    with _as_queue(session, queue, verb="peek"):
        looking.peek(session, queue, count=count, partition=partition, start=start)


@message.command()
@click.argument("queue", required=False)
@click.option("--topic", metavar="NAME", help="a topic's records instead of a queue's messages")
@click.option(
    "--from",
    "origin",
    metavar="earliest|latest|-N|OFFSET|TIME",
    help="where to begin, in each partition [default: latest; with --group earliest]",
)
@click.option("--partition", type=click.IntRange(min=0), help="only this one")
@click.option("--grep", "pattern", metavar="REGEX", help="only bodies that match")
@click.option("-n", "--count", type=click.IntRange(min=1), help="stop after so many")
@click.option("--group", metavar="GROUP", help="topic: go on where it committed, and commit")
@click.option("--follow/--no-follow", default=True, help="wait for more, or stop at the end")
@click.option("--exit-at-end", is_flag=True, help="the same as --no-follow")
@pass_session
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
    """Follow a queue's messages or a topic's records as they are sent, without taking them.

    TIME, for topics, is like 2026-01-31T12:00:00Z, or -90m for so long ago. With --group the tail
    begins where the group has committed and commits what it has printed; the group must have no
    members.
    """
    if (queue is None) == (topic is None):
        raise click.UsageError("Name a QUEUE, or a topic with --topic NAME.")
    is_following = follow and not exit_at_end
    if topic is not None:
        from penstock.cli import tailing

        wish = tailing.TailWish(origin, partition, group, count, pattern, is_following)
        tailing.tail(session, topic, wish)
        return
    from penstock.cli import looking

    if group is not None:
        raise click.UsageError("--group goes with --topic.")
    assert queue is not None
    with _as_queue(session, queue, verb="tail"):
        looking.tail(
            session,
            queue,
            origin=looking.origin(origin or "end"),
            partition=partition,
            pattern=pattern,
            is_ending=not is_following,
            count_max=count,
        )


@message.command()
@click.argument("queue")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT... | -")
@pass_session
def delete(session: Session, queue: str, receipts: tuple[str, ...]) -> None:
    """Delete received messages by their receipts.

    '-' reads stdin: a receipt a line, or the objects that `message receive` printed.
    """
    from penstock.cli import receiving

    source = receiving.receipts_from(sys.stdin.buffer, receipts)
    deleted, failed = receiving.delete_all(session, queue, source)
    session.out.one({"queue": queue, "deleted": deleted, "failed": failed})
    if failed:
        raise click.exceptions.Exit(ExitCode.PARTIAL if deleted else ExitCode.FAILED)


@message.command()
@click.argument("queue")
@click.argument("receipt")
@click.argument("duration", type=quantity.seconds(0, 43_200))
@pass_session
def visibility(session: Session, queue: str, receipt: str, duration: int) -> None:
    """Set how long a received message stays hidden from now on; 0 gives it back at once."""
    request = {
        "QueueUrl": session.sqs.queue_url(queue),
        "ReceiptHandle": receipt,
        "VisibilityTimeout": duration,
    }
    session.sqs.call("ChangeMessageVisibility", request, what="cannot change the visibility")
    session.remark("given back" if duration == 0 else f"hidden for {duration} s from now")
