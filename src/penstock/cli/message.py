"""``penstock message``: send, receive, look at and finish messages.

Sending and receiving go through the SQS API like any client. Peek and tail read the log through
the admin API: they lease nothing, so no consumer misses a message and no receive count rises.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock.cli import quantity
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.session import Noun, Session, pass_session


@click.group(cls=Noun)
def message() -> None:
    """Send, receive, peek, tail, delete messages."""


@message.command()
@click.argument("queue")
@click.argument("bodies", nargs=-1, metavar="[BODY]... | -")
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
@pass_session
def send(
    session: Session,
    queue: str,
    bodies: tuple[str, ...],
    path: str | None,
    whole: bool,
    ndjson: bool,
    group: str | None,
    dedup_id: str | None,
    unique: bool,
    delay: int | None,
    attributes: tuple[str, ...],
) -> None:
    """Send messages: each BODY, or each line of stdin ('-') or of a file (-f).

    Objects of --ndjson have a body, and may have attributes, group, dedup_id and delay; what
    `message receive` prints can be sent again as it is. Refused messages are listed on stderr
    and the exit code is 7.
    """
    from penstock.cli.outgoing import Defaults, attribute_from_flag

    if dedup_id is not None and unique:
        raise click.UsageError("--dedup-id and --unique exclude each other.")
    is_single = len(bodies) == 1 and bodies != ("-",)
    if bodies == ("-",):
        bodies, path = (), "-"
    if bool(bodies) == bool(path):
        raise click.UsageError("Give a BODY, '-' for stdin, or -f FILE: one of them.")
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
    _send_all(session, queue, source, is_single=is_single)


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
    session: Session, queue: str, source: Iterator[Sequence[Any]], *, is_single: bool
) -> None:
    from penstock.cli.sending import Sender

    sender = Sender(session, queue)
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

    receiving.receive(
        session,
        queue,
        receiving.Wish(count_max=count, wait_s=wait, visibility_s=visibility, is_deleting=delete),
    )


@message.command()
@click.argument("queue")
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("--partition", type=click.IntRange(min=0), help="only this one")
@click.option("--start", type=click.IntRange(min=0), default=0, help="offset to begin at")
@pass_session
def peek(session: Session, queue: str, count: int, partition: int | None, start: int) -> None:
    """Look at messages without receiving them: visible, in flight and delayed alike."""
    from penstock.cli import looking

    looking.peek(session, queue, count=count, partition=partition, start=start)


@message.command()
@click.argument("queue")
@click.option(
    "--from",
    "origin",
    default="end",
    show_default=True,
    metavar="begin|end|-N|OFFSET",
    help="where to begin, in each partition",
)
@click.option("--partition", type=click.IntRange(min=0), help="only this one")
@click.option("--grep", "pattern", metavar="REGEX", help="only bodies that match")
@click.option("--exit-at-end", is_flag=True, help="stop where the log ends now")
@pass_session
def tail(
    session: Session,
    queue: str,
    origin: str,
    partition: int | None,
    pattern: str | None,
    exit_at_end: bool,
) -> None:
    """Follow a queue's messages as they are sent, without receiving them."""
    from penstock.cli import looking

    looking.tail(
        session,
        queue,
        origin=looking.origin(origin),
        partition=partition,
        pattern=pattern,
        is_ending=exit_at_end,
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
