"""Queues that cannot keep up, and paused subscriptions: nobody waits for them, and they miss no
message."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.broker.stage import message
from tests.unit.push.stage import until
from tests.unit.push.test_fan_out import RAW, Fan, fanning, redrive

from penstock.model.calls import Append, ListBookmarks
from penstock.model.errors import QuotaExceeded, Throttled
from penstock.model.topic import Topic
from penstock.push import copying, fan_out
from penstock.push.fan_out import FanOuts


class Busy(Throttled):
    def __init__(self) -> None:
        super().__init__("busy", retry_after_ms=1)


@pytest.fixture
async def fan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fan]:
    monkeypatch.setattr(fan_out, "RETRY_SECONDS", 0.01)
    async with fanning(tmp_path) as made:
        yield made


async def readers(fan: Fan, topic: Topic) -> set[str]:
    return {*await fan.stage.broker.call(ListBookmarks(topic, 0))}


async def all_bodies(fan: Fan, queue: Topic, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await fan.bodies(queue)
            await asyncio.sleep(0.005)
    return found


async def is_in_step(fan: Fan, topic: Topic) -> None:
    await until(lambda: fan.metrics.out_of_step == 0, "a queue is still apart")
    async with asyncio.timeout(60):
        while await readers(fan, topic) != {"sns"}:
            await asyncio.sleep(0.005)


async def test_a_busy_queue_delays_no_other_and_gets_everything_in_order(fan: Fan) -> None:
    topic = await fan.sns()
    busy, other = await fan.stage.topic("busy"), await fan.stage.topic("other")
    one = await fan.subscribe(topic, "busy", **RAW)
    await fan.subscribe(topic, "other", **RAW)
    fan.queues.errors["busy"] = [Busy() for _ in range(1_000)]
    await fan.publish(topic, "1")
    assert await fan.bodies(other) == ["1"]
    assert await readers(fan, topic) == {"sns", f"sns:{one.id}"}
    await fan.publish(topic, "2")
    assert await fan.bodies(other) == ["2"]
    fan.queues.errors.clear()
    assert await all_bodies(fan, busy, 2) == ["1", "2"]
    await is_in_step(fan, topic)
    await fan.publish(topic, "3")
    assert await fan.bodies(busy) == ["3"]


async def test_a_queue_over_its_quota_waits_and_gets_nothing_twice(fan: Fan) -> None:
    """Some of its partitions take their copies, others do not."""
    topic = await fan.sns()
    full, dead = await fan.stage.topic("full", partitions=4), await fan.stage.topic("dead")
    await fan.subscribe(topic, "full", **RAW, **redrive("dead"))
    fan.queues.errors["full"] = [QuotaExceeded("full") for _ in range(9)]
    bodies = [str(number) for number in range(40)]
    await fan.publish(topic, *bodies)
    assert sorted(await all_bodies(fan, full, 40)) == sorted(bodies)
    await is_in_step(fan, topic)
    assert await fan.bodies(full) == await fan.bodies(dead) == []
    assert not fan.queues.errors["full"]


@pytest.mark.parametrize("appends_max", [1, 256])
async def test_a_queue_that_does_not_reply_delays_a_publisher_once(
    fan: Fan, monkeypatch: pytest.MonkeyPatch, appends_max: int
) -> None:
    monkeypatch.setattr(copying, "APPENDS_MAX", appends_max)
    topic = await fan.sns()
    hanging, other = await fan.stage.topic("hanging"), await fan.stage.topic("other")
    await fan.subscribe(topic, "hanging", **RAW)
    await fan.subscribe(topic, "other", **RAW)
    is_free, call = asyncio.Event(), fan.queues.call

    async def hang(asked: Any) -> Any:
        if isinstance(asked, Append) and asked.topic.name == "hanging":
            await is_free.wait()
        return await call(asked)

    monkeypatch.setattr(fan.queues, "call", hang)
    await fan.publish(topic, "1")
    await fan.publish(topic, "2")
    assert await fan.bodies(other) == ["1", "2"]
    assert fan.metrics.out_of_step == 1
    is_free.set()
    assert await all_bodies(fan, hanging, 2) == ["1", "2"]


async def test_a_new_leader_continues_for_a_queue_that_is_apart(fan: Fan) -> None:
    topic = await fan.sns()
    busy = await fan.stage.topic("busy")
    await fan.subscribe(topic, "busy", **RAW)
    fan.queues.errors["busy"] = [Busy() for _ in range(1_000)]
    await fan.publish(topic, "1")
    await fan.fan_outs.stop()
    await fan.stage.broker.call(Append(topic, 0, (message("2"),)))
    fan.queues.errors.clear()
    fan.fan_outs = FanOuts(fan.fan_outs._setup, publish_wait_ms=60_000)
    fan.fan_outs.led(topic, 0, is_led=True)
    assert await all_bodies(fan, busy, 2) == ["1", "2"]
    await is_in_step(fan, topic)


async def test_a_paused_subscription_gets_its_messages_when_it_is_resumed(fan: Fan) -> None:
    topic = await fan.sns()
    queue, other = await fan.stage.topic("q"), await fan.stage.topic("other")
    one = await fan.subscribe(topic, "q", **RAW)
    await fan.subscribe(topic, "other", **RAW)
    await fan.publish(topic, "1")

    async def pause(why: str | None) -> None:
        await fan.subscriptions.change(one.id, lambda now: msgspec.structs.replace(now, paused=why))

    await pause("by an operator")
    await fan.publish(topic, "2", "3")
    assert await fan.bodies(queue) == ["1"]
    await pause(None)
    assert await all_bodies(fan, queue, 2) == ["2", "3"]
    await is_in_step(fan, topic)
    assert await fan.bodies(other) == ["1", "2", "3"]


async def test_the_bookmark_of_a_deleted_subscription_is_removed(fan: Fan) -> None:
    topic = await fan.sns()
    await fan.stage.topic("busy")
    await fan.stage.topic("other")
    one = await fan.subscribe(topic, "busy", **RAW)
    await fan.subscribe(topic, "other", **RAW)
    fan.queues.errors["busy"] = [Busy() for _ in range(1_000)]
    await fan.publish(topic, "1")
    await fan.subscriptions.delete(one.id)
    await is_in_step(fan, topic)


async def test_a_filter_holds_for_a_queue_that_is_apart(fan: Fan) -> None:
    topic = await fan.sns()
    busy = await fan.stage.topic("busy")
    policy = {"FilterPolicy": '{"n": [1]}', "FilterPolicyScope": "MessageBody"}
    await fan.subscribe(topic, "busy", **RAW, **policy)
    fan.queues.errors["busy"] = [Busy()]
    await fan.publish(topic, '{"n": 1}', '{"n": 2}', '{"n": 1, "m": 0}')
    assert await all_bodies(fan, busy, 2) == ['{"n": 1}', '{"n": 1, "m": 0}']
    await is_in_step(fan, topic)
