"""``/api/v1/queues/{name}/messages`` shows messages of a queue without receiving them.

A reply has the next offset of each partition, which a client that follows the queue sends with its
next request. With ``wait_ms``, a request waits until there are messages, and reads the queue at
intervals. Encrypted messages are decrypted; if that fails, they are shown without their content."""

import base64
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from penstock.frontend.admin.ports import State
from penstock.frontend.admin.request import Call, Context, picked, rows_reply, whole
from penstock.model.calls import Peek
from penstock.model.errors import InvalidRequest, Throttled
from penstock.model.limits import MIB, WAIT_MS_MAX
from penstock.model.message import Attribute
from penstock.model.names import uuid_text
from penstock.model.ports import Peeked
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpReply

RECEIVE = "sqs:ReceiveMessage"  # the right needed to view messages
COUNT_DEFAULT = 10
COUNT_MAX = 100
PEEK_COUNT = 10  # messages per call of the broker
PEEKS_MAX = 32  # calls per partition and reply
REPLY_BYTES_MAX = 4 * MIB  # bodies and attributes; the rest is in the next reply
LOOK_AGAIN_SECONDS = 0.1
BEGIN = 0
END = -1  # the offset after the last record

Starts = dict[int, int]  # the next offset of each partition


class Window(msgspec.Struct):
    count: int  # messages that may still be added
    size_bytes: int  # bytes that may still be added
    messages: list[dict[str, object]] = []

    @property
    def is_full(self) -> bool:
        return self.count <= 0 or self.size_bytes <= 0

    def take(self, peeked: Sequence[Peeked]) -> int | None:
        """Add messages to the reply. Returns the offset of the first that does not fit, or None."""
        for one in peeked:
            if self.is_full:
                return one.record.offset
            self.count -= 1
            self.size_bytes -= _size_bytes(one)
            self.messages.append(_row(one))
        return None


async def messages(call: Call) -> HttpReply:
    topic, tails = call.queue(), call.context.tails
    count = call.number("count", default=COUNT_DEFAULT, least=1, most=COUNT_MAX)
    wait_ms = call.number("wait_ms", default=0, least=0, most=WAIT_MS_MAX)
    window = Window(count, REPLY_BYTES_MAX)
    starts = await _fill(call.context, topic, _starts(call, topic), window)
    if not window.messages and wait_ms:
        if tails.is_full():
            raise Throttled(
                f"Too many requests ({tails.bound}) wait for messages on this node; retry later."
            )
        with tails.holding(call.caller.account, "requests waiting for messages on this node"):
            starts = await _tail(call, topic, starts, window, wait_ms)
    call.may_use_queue(RECEIVE, topic.name)  # a policy may have changed since
    nexts = {str(partition): offset for partition, offset in starts.items()}
    return await rows_reply("messages", window.messages, {"next": nexts})


async def _tail(call: Call, topic: Topic, starts: Starts, window: Window, wait_ms: int) -> Starts:
    context = call.context
    deadline_ms = context.clock.mono_ms() + wait_ms
    while not window.messages and context.health.state is not State.DRAINING:
        left_seconds = (deadline_ms - context.clock.mono_ms()) / 1_000
        if left_seconds <= 0:
            break
        await context.sleep(min(LOOK_AGAIN_SECONDS, left_seconds))
        call.may_use_queue(RECEIVE, topic.name)
        starts = await _fill(context, topic, starts, window)
    return starts


def _starts(call: Call, topic: Topic) -> Starts:
    """Return the first offset to read in each partition. The parameter ``start`` is ``begin``,
    ``end``, an offset for all partitions, or comma-separated ``partition:offset`` pairs."""
    partitions = range(topic.partition_count)
    if "partition" in call.query:
        only = call.number("partition", default=0, least=0, most=topic.partition_count - 1)
        partitions = range(only, only + 1)
    text = call.text("start", "begin")
    if ":" not in text:
        return dict.fromkeys(partitions, _offset(text))
    starts: Starts = {}
    for pair in text.split(","):
        partition, _, offset = pair.partition(":")
        if not (partition.isascii() and partition.isdigit()) or int(partition) not in partitions:
            text = f"Parameter 'start' has an offset for partition {partition!r}, which is"
            raise InvalidRequest(f"{text} not one of the requested partitions.")
        starts[int(partition)] = _offset(offset)
    return starts


def _offset(text: str) -> int:
    if text in ("begin", "end"):
        return BEGIN if text == "begin" else END
    offset = whole(text, digits_max=18)
    if offset is None:
        raise InvalidRequest("The start must be begin, end, an offset or partition:offset pairs.")
    return offset


async def _fill(context: Context, topic: Topic, starts: Starts, window: Window) -> Starts:
    """Fill the reply from all partitions in turn, so that no busy partition fills it alone."""
    nexts = dict(starts)
    active = list(starts)
    share = min(PEEK_COUNT, -(-window.count // len(starts)))
    for _ in range(PEEKS_MAX):
        for partition in tuple(active):
            start = nexts[partition]
            # END must become an offset even if the window is full, for the next reply.
            if window.is_full and start != END:
                continue
            peek = Peek(topic, partition=partition, start=start, count=share)
            peeked, nexts[partition] = await context.broker.call(peek)
            left_out = window.take(await _opened(context, topic, peeked))
            if left_out is not None:
                nexts[partition] = left_out
            if start == END or nexts[partition] == start:
                active.remove(partition)
        if window.is_full or not active:
            break
    return nexts


async def _opened(context: Context, topic: Topic, peeked: Sequence[Peeked]) -> Sequence[Peeked]:
    if context.sealing is None:
        return peeked
    opened = []
    for one in peeked:
        record = one.record
        message = await context.sealing.open(topic, one.partition, record.offset, record.message)
        if message is not None:
            one = replace(one, record=replace(record, message=message))
        opened.append(one)
    return opened


def _row(peeked: Peeked) -> dict[str, object]:
    record = peeked.record
    message = record.message
    row: dict[str, object] = {
        "partition": peeked.partition,
        "offset": record.offset,
        "message_id": uuid_text(message.message_id),
        "state": "blocked" if peeked.blocked_by is not None else peeked.state,
        "attempts": peeked.attempts,
        **picked(record, "sent_at_ms", "appended_at_ms"),
        "size_bytes": _size_bytes(peeked),
        **({"is_quarantined": True} if message.is_sealed else _content("body", message.body)),
        "attributes": {
            name: _attribute(attribute) for name, attribute in (message.attributes or {}).items()
        },
    }
    extras = {
        **picked(peeked, "blocked_by", "until_ms"),
        **picked(message, "group", "dedup_id", "delay_ms"),
        "sender": message.sender or None,
        **picked(message, "trace_header", "source_arn"),
    }
    row.update((name, value) for name, value in extras.items() if value is not None)
    return row


def _attribute(attribute: Attribute) -> dict[str, object]:
    if attribute.is_binary:
        encoded = base64.b64encode(attribute.value).decode()
        return {"data_type": attribute.data_type, "value_base64": encoded}
    return {"data_type": attribute.data_type, **_content("value", attribute.value)}


def _content(name: str, value: bytes) -> dict[str, object]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _size_bytes(peeked: Peeked) -> int:
    message = peeked.record.message
    attributes = message.attributes or {}
    sizes = (len(name) + len(one.data_type) + len(one.value) for name, one in attributes.items())
    return len(message.body) + sum(sizes)
