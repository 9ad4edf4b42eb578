"""Receives and deletes messages. A message is deleted only after it was written and flushed: if the
reader of the pipe is gone, the message comes back after its lease instead of being lost."""

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import click

from penstock.cli.clients.http import Json, name_of
from penstock.cli.command import Session
from penstock.cli.messages.sending import line_chunks
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse
from penstock.cli.terminal.output import duration

_BATCH_COUNT_MAX = 10
_FAILURES_LISTED_MAX = 20
_OPTIONAL_FIELDS = {
    "group": "MessageGroupId",
    "dedup_id": "MessageDeduplicationId",
    "sequence_number": "SequenceNumber",
    "source": "DeadLetterQueueSourceArn",
    "trace_header": "AWSTraceHeader",
}


def as_item(message: Json) -> Json:
    """Return a received message with the fields that ``message send --ndjson`` reads."""
    system = message.get("Attributes", {})
    item: Json = {
        "message_id": message["MessageId"],
        "body": message["Body"],
        "attempts": int(system.get("ApproximateReceiveCount", 1)),
        "sent_at_ms": int(system["SentTimestamp"]) if "SentTimestamp" in system else None,
    }
    item |= {field: system[name] for field, name in _OPTIONAL_FIELDS.items() if name in system}
    attributes = message.get("MessageAttributes")
    if attributes:
        item["attributes"] = {
            name: {
                "type": value["DataType"],
                "value": value.get("StringValue", value.get("BinaryValue", "")),
            }
            for name, value in attributes.items()
        }
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
    session: Session, queue: str, count_max: int, wait_s: int | None, visibility_s: int | None
) -> Iterator[list[Json]]:
    """Yield replies until ``count_max`` messages were received or a reply is empty."""
    request: Json = {
        "QueueUrl": session.sqs.queue_url(queue),
        "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
    }
    if wait_s is not None:
        request["WaitTimeSeconds"] = wait_s
    if visibility_s is not None:
        request["VisibilityTimeout"] = visibility_s
    # A queue may have its own wait of up to 20 s, which we do not know.
    longest_s = 20.0 if wait_s is None else float(wait_s)
    left = count_max
    while left:
        request["MaxNumberOfMessages"] = min(left, _BATCH_COUNT_MAX)
        what = f"cannot receive from '{queue}'"
        reply = session.sqs.call("ReceiveMessage", request, what=what, wait_s=longest_s)
        found = reply.get("Messages", [])
        if not found:
            return
        left -= len(found)
        yield [as_item(message) for message in found]


def receive(
    session: Session,
    queue: str,
    *,
    count_max: int,
    wait_s: int | None,
    visibility_s: int | None,
    is_deleting: bool,
) -> None:
    """Print messages. A wait or visibility of None: the setting of the queue."""
    replies: Iterable[list[Json]] = _replies(session, queue, count_max, wait_s, visibility_s)
    is_array = session.out.format_of("ndjson") == "json"
    if is_array:  # one array needs all messages
        replies = [list(itertools.chain.from_iterable(replies))]
    failed = received = 0
    for items in replies:
        received += len(items)
        if is_array:
            session.out.many(items, columns=())
        else:
            for item in items:
                session.out.streamed(item, text=_as_text(item), name="body")
        session.out.flush()
        if is_deleting:
            failed += delete_all(session, queue, (item["receipt"] for item in items))[1]
    if not received and session.out.is_for_people:
        session.remark(_nothing(session, queue))
    if failed:
        raise Failure(
            f"{failed} messages were received but not deleted",
            "the server rejected the deletion",
            "they are delivered again when their lease ends",
            exit_code=ExitCode.PARTIAL,
        )


def _nothing(session: Session, queue: str) -> str:
    """Return why nothing was received, as far as the server reports it."""
    try:
        return f"no message: {session.admin.explanation(name_of(queue))['summary']}"
    except Failure:
        return "no message"


def receipts_from(stdin: IO[bytes], given: Sequence[str]) -> Iterator[str]:
    if tuple(given) != ("-",):
        yield from given
        return
    for place, line in itertools.chain.from_iterable(line_chunks(stdin)):
        yield _receipt_of(place, line) if line.startswith("{") else line.strip()


def _receipt_of(place: int, line: str) -> str:
    try:
        receipt: Any = json.loads(line).get("receipt")
    except ValueError:
        receipt = None
    if not isinstance(receipt, str):
        raise Misuse(f"line {place} has no receipt", "the object needs a field 'receipt'")
    return receipt


def delete_all(session: Session, queue: str, receipts: Iterable[str]) -> tuple[int, int]:
    """Delete in batches; return the numbers of deleted and of refused. Prints refusals."""
    source = iter(receipts)
    deleted = failed = 0
    while batch := list(itertools.islice(source, _BATCH_COUNT_MAX)):
        entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(batch)]
        what = f"cannot delete messages of '{queue}'"
        reply = session.sqs.call_queue(queue, "DeleteMessageBatch", what=what, Entries=entries)
        deleted += len(reply.get("Successful", ()))
        for fault in reply.get("Failed", ()):
            failed += 1
            if failed <= _FAILURES_LISTED_MAX:
                text = f"{fault.get('Message', '')} ({fault.get('Code', '')})"
                click.echo(f"receipt {batch[int(fault['Id'])][:24]}… rejected: {text}", err=True)
    return deleted, failed
