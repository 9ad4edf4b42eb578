"""From what a client sends to the message that is stored: every rule for one message, in the order
in which the original checks them, and the digests the reply needs."""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

import msgspec

from penstock.model.limits import DELAY_MS_MAX
from penstock.model.message import Message
from penstock.model.topic import Kind, Topic
from penstock.wire.aws.attributes import (
    TRACE_HEADER,
    body_bytes,
    md5_of_attributes,
    md5_of_body,
    message_bytes,
    read_attributes,
    read_trace_header,
)
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing
from penstock.wire.aws.shapes import MessageAttributeValue

TRACE_ID = "x-amzn-trace-id"  # the request header that traces what is sent with it

# Letters, digits and ASCII punctuation: all that is printable but the space.
_ID = re.compile(r"[!-~]{1,128}\Z")
_WRONG_KIND = "The request include parameter that is not valid for this queue type."


class Sendable(Protocol):
    """What SendMessage and an entry of SendMessageBatch have in common."""

    message_body: str | None
    delay_seconds: int | None
    message_attributes: dict[str, MessageAttributeValue] | None
    message_system_attributes: dict[str, MessageAttributeValue] | None
    message_deduplication_id: str | None
    message_group_id: str | None


class Outgoing(msgspec.Struct, gc=False):
    message: Message
    size_bytes: int
    md5_of_body: str
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None


def check_id(text: str, parameter: str) -> str:
    if _ID.match(text) is None:
        raise invalid_value(
            text,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. "
            "1 to 128 in length.",
        )
    return text


def outgoing(
    asked: Sendable,
    topic: Topic,
    *,
    sender: str,
    entropy: Callable[[int], bytes],
    trace_id: str | None = None,
    in_batch: bool = False,
) -> Outgoing:
    """Raises the fault of the first rule broken. ``trace_id`` is the request's own; a message that
    brings a trace header of its own keeps that."""
    body = body_bytes(asked.message_body)
    attributes = read_attributes(asked.message_attributes) if asked.message_attributes else None
    size_bytes = message_bytes(body, attributes)
    if size_bytes > topic.settings.message_bytes_max:
        raise _too_long(topic.settings.message_bytes_max, in_batch=in_batch)
    trace = None
    if asked.message_system_attributes:
        trace = read_trace_header(asked.message_system_attributes)
    group = asked.message_group_id
    if group is not None:
        check_id(group, "MessageGroupId")
    if topic.kind is Kind.FIFO:
        if asked.delay_seconds:  # zero is accepted, and the queue's delay applies all the same
            raise invalid_value(asked.delay_seconds, "DelaySeconds", _WRONG_KIND)
        delay_ms = None
        if group is None:
            raise missing("MessageGroupId")
        dedup_id = _dedup_id(asked, topic, body)
    else:
        delay_ms = _delay_ms(asked.delay_seconds, topic)
        dedup_id = None
        if asked.message_deduplication_id is not None:
            raise invalid_value(
                asked.message_deduplication_id, "MessageDeduplicationId", _WRONG_KIND
            )
    return Outgoing(
        Message(
            entropy(16),
            body,
            attributes,
            group,
            dedup_id,
            delay_ms,
            sender,
            trace_id if trace is None else trace.value.decode(),
        ),
        size_bytes,
        md5_of_body(body),
        None if attributes is None else md5_of_attributes(attributes),
        None if trace is None else md5_of_attributes({TRACE_HEADER: trace}),
    )


def size_of(asked: Sendable) -> int:
    """What an entry adds to a batch's total, before anything about it has been checked."""
    size = len((asked.message_body or "").encode(errors="surrogatepass"))
    for name, value in (asked.message_attributes or {}).items():
        text = (value.string_value or "").encode(errors="surrogatepass")
        size += len(name.encode(errors="surrogatepass")) + len(text)
        size += len((value.data_type or "").encode(errors="surrogatepass"))
        size += len(value.binary_value or b"")
    return size


def check_ordered(asked: Sendable, topic: Topic) -> None:
    """What a FIFO batch needs of each entry before any is taken: order cannot have holes."""
    if not asked.message_group_id:
        raise fault(
            "InvalidParameterValue", "The request must contain the parameter MessageGroupId."
        )
    if not asked.message_deduplication_id and not topic.settings.is_content_dedup:
        raise _no_dedup_id()


def _delay_ms(delay_seconds: int | None, topic: Topic) -> int | None:
    """Of a standard queue's message: its own, else the queue's as it is now; changes of the
    queue's delay do not reach messages already sent."""
    queue_delay_ms = topic.settings.delay_ms
    if delay_seconds is None:
        return queue_delay_ms or None
    delay_ms = delay_seconds * 1_000
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise invalid_value(delay_seconds, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
    # Nothing to store for no delay, unless it overrides one.
    return delay_ms if delay_ms or queue_delay_ms else None


def _dedup_id(asked: Sendable, topic: Topic, body: bytes) -> str:
    given = asked.message_deduplication_id
    if given is not None:
        return check_id(given, "MessageDeduplicationId")
    if not topic.settings.is_content_dedup:
        raise _no_dedup_id()
    return sha256(body).hexdigest()


def _no_dedup_id() -> Fault:
    return fault(
        "InvalidParameterValue",
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly",
    )


def _too_long(bytes_max: int, *, in_batch: bool) -> Fault:
    # The same rule, told in two ways; test suites compare the whole sentence.
    wrong = "cannot be validated" if in_batch else "are invalid"
    return fault(
        "InvalidParameterValue",
        f"One or more parameters {wrong}. Reason: Message must be shorter than {bytes_max} bytes.",
    )
