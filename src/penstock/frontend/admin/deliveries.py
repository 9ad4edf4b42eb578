"""Handlers of ``/api/v1/subscriptions/{id}/…`` that send messages again or show what was sent:
``test``, ``redeliver``, ``replay`` and ``deliveries``.

A test and a redelivery are one request each, which the home of the subscription sends at once. A
replay is an entry of the subscription: its home sends the messages of a range after new ones."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from penstock.frontend.admin.request import Body, Call, picked, whole
from penstock.frontend.admin.subscriptions import (
    Shown,
    ask_all,
    change_one,
    find,
    find_pushed,
    ports_of,
)
from penstock.model.calls import Ends, FindTime, MaxTimestamp, PushOne
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.model.limits import OFFSET_MAX
from penstock.model.message import Message
from penstock.model.ports import StreamEnds
from penstock.model.subscription import REPLAYS_MAX, Replay, Subscription, home_partition
from penstock.model.topic import Topic

DELIVERIES_DEFAULT: Final = 20
DELIVERIES_MAX: Final = 1_000  # attempts in one reply
_MESSAGE_ID_BYTES: Final = 16
_TIME_MS_MAX: Final = 2**53

Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Time = Annotated[int, msgspec.Meta(ge=0, le=_TIME_MS_MAX)]


class TestRequest(Body, frozen=True):
    body: str | None = None  # None: the newest message of the source


class Redelivery(Body, frozen=True):
    partition: Offset
    offset: Offset


class ReplayRequest(Body, frozen=True):
    """One of ``earliest``, ``start_ms`` and ``start_offsets`` must be given. Without an end, the
    replay ends with the newest message of now. Offsets are by partition; a partition that
    ``start_offsets`` does not have is not replayed."""

    earliest: bool = False
    start_ms: Time | None = None
    start_offsets: Mapping[str, Offset] | None = None
    until_ms: Time | None = None
    until_offsets: Mapping[str, Offset] | None = None


async def test(call: Call) -> Shown:
    request = call.json(TestRequest)
    one, topic = await find_pushed(call)
    asked = PushOne(topic, home_partition(one), one.id)
    if request.body is None:
        asked = replace(asked, record_partition=await _newest_partition(call, topic))
    else:
        message_id = ports_of(call).entropy(_MESSAGE_ID_BYTES)
        asked = replace(asked, message=Message(message_id, request.body.encode()))
    return await _push(call, asked)


async def _newest_partition(call: Call, topic: Topic) -> int:
    """Return the partition with the newest record, as far as the logs tell: the newest entry of a
    queue's log may be an event such as a lease."""
    broker, partitions = call.context.broker, range(topic.partition_count)
    newest = await ask_all(broker, partitions, lambda each: MaxTimestamp(topic, each))
    times = {at_ms: number for number, (offset, at_ms) in enumerate(newest) if offset >= 0}
    if times:
        return times[max(times)]
    for number, ends in enumerate(await _ends(call, topic)):
        if ends.high_watermark > ends.start_offset:
            return number
    raise InvalidRequest(f"{topic.name} has no messages: give the body of a test message.")


async def redeliver(call: Call) -> Shown:
    request = call.json(Redelivery)
    one, topic = await find_pushed(call)
    _check_partition(topic, request.partition)
    ends = await call.context.broker.call(Ends(topic, request.partition))
    if not ends.start_offset <= request.offset < ends.high_watermark:
        raise InvalidRequest(
            f"Partition {request.partition} has the offsets from {ends.start_offset} to"
            f" {ends.high_watermark - 1}, not {request.offset}."
        )
    asked = PushOne(
        topic,
        home_partition(one),
        one.id,
        record_partition=request.partition,
        offset=request.offset,
        is_test=False,
    )
    return await _push(call, asked)


async def _push(call: Call, asked: PushOne) -> Shown:
    reply = await call.context.broker.call(asked)
    shown = picked(reply, "status", "duration_ms", "reason", "body")
    return {"is_delivered": 200 <= reply.status < 300, **shown}


def _check_partition(topic: Topic, number: int) -> None:
    count = topic.partition_count
    if not 0 <= number < count:
        raise InvalidRequest(f"{topic.name} has the partitions 0 to {count - 1}, not {number}.")


async def _ends(call: Call, topic: Topic) -> list[StreamEnds]:
    partitions = range(topic.partition_count)
    return await ask_all(call.context.broker, partitions, lambda each: Ends(topic, each))


# ── Replay ───────────────────────────────────────────────────────────────────────────────────


async def replay(call: Call) -> Shown:
    """Begin a replay. A start that retention has deleted is moved to the first record."""
    request = call.json(ReplayRequest)
    starts_given = (request.earliest, request.start_ms is not None, request.start_offsets)
    if sum(map(bool, starts_given)) != 1:
        raise InvalidRequest("Give one of earliest, start_ms and start_offsets.")
    if request.until_ms is not None and request.until_offsets is not None:
        raise InvalidRequest("Give until_ms or until_offsets, not both.")
    one, topic = await find_pushed(call)
    ends = await _ends(call, topic)
    firsts = [each.start_offset for each in ends]
    lasts = [each.high_watermark for each in ends]
    wanted = firsts
    if request.start_ms is not None:
        wanted = await _at(call, topic, request.start_ms, lasts)
    elif request.start_offsets is not None:
        wanted = _given(topic, request.start_offsets, lasts)
    until = lasts
    if request.until_ms is not None:
        until = await _at(call, topic, request.until_ms, lasts)
    elif request.until_offsets is not None:
        until = _given(topic, request.until_offsets, lasts)
    starts = [
        min(max(start, first), last)
        for start, first, last in zip(wanted, firsts, lasts, strict=True)
    ]
    until = [
        min(max(end, start), last) for end, start, last in zip(until, starts, lasts, strict=True)
    ]
    if starts == until:
        raise InvalidRequest("The range has no messages.")
    made = Replay(0, tuple(starts), tuple(until), call.now_ms)
    changed = await change_one(call, one, lambda current: _with_replay(current, made))
    return {"id": one.id, "replay": changed.replays[-1]}


def _with_replay(one: Subscription, made: Replay) -> Subscription:
    kept = list(one.replays)
    number = kept[-1].number + 1 if kept else 1
    while len(kept) >= REPLAYS_MAX:
        done = next((each for each in kept if not each.is_open), None)
        if done is None:
            raise Conflict(f"{REPLAYS_MAX} replays of this subscription wait; try again later.")
        kept.remove(done)
    return replace(one, replays=(*kept, replace(made, number=number)))


async def _at(call: Call, topic: Topic, at_ms: int, lasts: list[int]) -> list[int]:
    """Return the first offset at or after a time in each partition, or its end."""
    partitions = range(topic.partition_count)
    found = await ask_all(
        call.context.broker, partitions, lambda each: FindTime(topic, each, at_ms)
    )
    return [offset if offset >= 0 else last for (offset, _), last in zip(found, lasts, strict=True)]


def _given(topic: Topic, offsets: Mapping[str, int], lasts: list[int]) -> list[int]:
    wanted = list(lasts)
    for text, offset in offsets.items():
        number = whole(text, digits_max=9)
        if number is None:
            raise InvalidRequest("A partition must be a number.")
        _check_partition(topic, number)
        wanted[number] = offset
    return wanted


# ── What was sent ────────────────────────────────────────────────────────────────────────────


async def deliveries(call: Call) -> Any:
    recent = ports_of(call).deliveries
    one = await find(call)
    if recent is None:
        raise NotFound("This node does not record deliveries.")
    count = call.number("limit", default=DELIVERIES_DEFAULT, least=1, most=DELIVERIES_MAX)
    return {"deliveries": await recent(one, count=count)}
