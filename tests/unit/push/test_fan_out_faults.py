"""The fan-out of a topic when calls fail, or when a node learns of a subscription late."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.broker.stage import message
from tests.unit.push.stage import until
from tests.unit.push.test_fan_out import RAW, Fan, fanning
from tests.unit.push.test_slow_queues import Busy, all_bodies

from penstock.model.calls import Append, Ends, MoveBookmark
from penstock.model.errors import Overloaded
from penstock.model.subscription import Subscription
from penstock.push import fan_out
from penstock.push.fan_out import FanOuts


@pytest.fixture
async def fan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fan]:
    monkeypatch.setattr(fan_out, "RETRY_SECONDS", 0.01)
    async with fanning(tmp_path) as made:
        yield made


def fail_bookmarks(
    fan: Fan, monkeypatch: pytest.MonkeyPatch, *, reader: str, times: int
) -> list[MoveBookmark]:
    """Let the first moves of a bookmark fail, and return the list of these moves."""
    failed: list[MoveBookmark] = []
    call = fan.stage.broker.call

    async def troubled(asked: Any) -> Any:
        if isinstance(asked, MoveBookmark) and asked.reader == reader and len(failed) < times:
            failed.append(asked)
            raise Overloaded("no room")
        return await call(asked)

    monkeypatch.setattr(fan.stage.broker, "call", troubled)
    return failed


@pytest.mark.parametrize("has_other", [False, True])
async def test_a_subscription_that_the_leader_learns_of_late_misses_nothing(
    fan: Fan, has_other: bool
) -> None:
    """The node that subscribes stores the ends of the logs. The leader may get the next message
    before it reads the new entry."""
    topic = await fan.sns()
    late = await fan.stage.topic("late")
    await fan.stage.topic("other")
    if has_other:
        await fan.subscribe(topic, "other", **RAW)
    await fan.stage.broker.call(Append(topic, 0, (message("before"),)))
    ends = await fan.stage.broker.call(Ends(topic, 0))
    [appended] = await fan.stage.broker.call(Append(topic, 0, (message("meanwhile"),)))
    running, _ = fan.fan_outs._running[topic.topic_id, 0]
    await until(lambda: running.position > appended.offset, "the message was not copied")
    one = await fan.subscribe(topic, "late", (ends.high_watermark,), **RAW)
    await fan.stage.broker.call(Append(topic, 0, (message("after"),)))
    assert sorted(await all_bodies(fan, late, 2)) == ["after", "meanwhile"]
    await until(lambda: fan.metrics.out_of_step == 0, "the queue is still apart")

    def filtered(now: Subscription) -> Subscription:
        return msgspec.structs.replace(now, attributes={**RAW, "FilterPolicy": ""})

    await fan.subscriptions.change(one.id, filtered)
    await fan.publish(topic, "last")
    assert await all_bodies(fan, late, 1) == ["last"], "a change sends nothing again"


async def test_a_round_is_not_repeated_because_a_bookmark_was_not_stored(
    fan: Fan, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await fan.sns()
    busy, other = await fan.stage.topic("busy"), await fan.stage.topic("other")
    one = await fan.subscribe(topic, "busy", **RAW)
    await fan.subscribe(topic, "other", **RAW)
    failed = fail_bookmarks(fan, monkeypatch, reader=f"sns:{one.id}", times=5)
    fan.queues.errors["busy"] = [Busy()]
    await fan.publish(topic, "1")
    assert len(failed) == 5
    assert await fan.bodies(other) == ["1"]
    assert await all_bodies(fan, busy, 1) == ["1"]


async def test_a_start_that_fails_copies_nothing_twice(
    fan: Fan, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await fan.sns()
    busy = await fan.stage.topic("busy")
    await fan.subscribe(topic, "busy", **RAW)
    fan.queues.errors["busy"] = [Busy() for _ in range(1_000)]
    await fan.publish(topic, "1")
    await fan.fan_outs.stop()
    gone = MoveBookmark(topic, 0, "sns:gone", 0)
    await fan.stage.broker.call(gone)
    failed = fail_bookmarks(fan, monkeypatch, reader="sns:gone", times=3)
    fan.queues.errors.clear()
    fan.fan_outs = FanOuts(fan.fan_outs._setup, publish_wait_ms=60_000)
    fan.fan_outs.led(topic, 0, is_led=True)
    assert await all_bodies(fan, busy, 1) == ["1"]
    await until(lambda: fan.metrics.out_of_step == 0, "a queue is still apart")
    await fan.publish(topic, "2")
    assert await fan.bodies(busy) == ["2"]
    assert failed


async def test_a_publisher_starts_no_copies_where_the_partition_is_not_led(fan: Fan) -> None:
    """The leader changes, or the topic is deleted, while a message is appended."""
    topic = await fan.sns()
    [appended] = await fan.stage.broker.call(Append(topic, 0, (message("1"),)))
    fan.fan_outs.led(topic, 0, is_led=False)
    await fan.fan_outs.copied(topic, 0, appended.offset)
    assert not fan.fan_outs._running


async def test_publishers_that_gave_up_waiting_are_forgotten(fan: Fan) -> None:
    topic = await fan.sns()
    await fan.stage.topic("q")
    await fan.subscribe(topic, "q", **RAW)
    fan.fan_outs._wait_s = 0.01
    fan.queues.gates["q"] = asyncio.Event()
    for number in range(5):
        [appended] = await fan.stage.broker.call(Append(topic, 0, (message(str(number)),)))
        await fan.fan_outs.copied(topic, 0, appended.offset)
    found, _ = fan.fan_outs._running[topic.topic_id, 0]
    assert not found._waiting
    fan.queues.gates["q"].set()
