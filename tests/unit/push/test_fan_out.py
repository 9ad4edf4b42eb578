"""Copies of published messages in queues, with a real broker: what a queue cannot take goes to the
dead-letter queue of the subscription, or is dropped and counted."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.frontend.memory import MemorySubscriptions
from tests.unit.push.stage import until

from penstock.model.calls import (
    Append,
    BrokerPort,
    DeleteRecords,
    Ends,
    Lease,
    MoveBookmark,
    ReadBookmark,
)
from penstock.model.errors import InvalidRequest, TopicNotFound
from penstock.model.message import Attribute, Message
from penstock.model.names import STRUCTURE
from penstock.model.ports import LeaseRequest
from penstock.model.subscription import RANDOM_BYTES, Subscription, SubscriptionState, new_id
from penstock.model.topic import Kind, QueueSettings, SnsTopic, Topic
from penstock.push import copying
from penstock.push.copying import FanOutSetup
from penstock.push.fan_out import FanOuts
from penstock.push.metrics import PushMetrics
from penstock.wire.facts.deliveries import DeliveryRow

SECONDS_MAX = 60.0  # far more than any copy takes
RAW = {"RawMessageDelivery": "true"}


@dataclass
class Troubled:
    """A broker whose appends to some queues fail, or wait for a gate to open."""

    broker: BrokerPort
    errors: dict[str, list[Exception]] = field(default_factory=dict)  # by name of the queue
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)  # set if an append waits

    async def call(self, call: Any) -> Any:
        if isinstance(call, Append) and call.topic.name in self.gates:
            self.waiting.set()
            await self.gates[call.topic.name].wait()
        if isinstance(call, Append) and self.errors.get(call.topic.name):
            raise self.errors[call.topic.name].pop(0)
        return await self.broker.call(call)


@dataclass
class Fan:
    stage: Stage
    subscriptions: MemorySubscriptions
    metrics: PushMetrics
    queues: Troubled
    denied: set[str]  # names of queues
    fan_outs: FanOuts
    used: list[tuple[Any, ...]]  # topic, attempts, delivered, bytes
    rows: list[DeliveryRow]

    async def sns(self, name: str = "orders", *, kind: Kind = Kind.STREAM) -> Topic:
        made = await self.stage.topic(f"sns.{name}", kind=kind)

        def change(topic: Topic) -> Topic:
            return msgspec.structs.replace(topic, sns=SnsTopic(name, 0))

        topic = await self.stage.catalog.change(made.account, made.region, made.name, change)
        self.fan_outs.led(topic, 0, is_led=True)
        return topic

    async def subscribe(
        self, topic: Topic, name: str, starts: tuple[int, ...] = (), /, **attributes: str
    ) -> Subscription:
        arn = name if name.startswith("arn:") else _arn(name)
        one = Subscription(
            id=new_id(topic.topic_id, "sqs", arn, random=secrets.token_bytes(RANDOM_BYTES)),
            topic_id=topic.topic_id,
            source_arn=topic.sns_arn or "",
            account=topic.account,
            region=topic.region,
            protocol="sqs",
            endpoint=arn,
            created_at_ms=0,
            state=SubscriptionState.CONFIRMED,
            attributes=attributes,
            start_offsets=starts,
        )
        return await self.subscriptions.create(one)

    async def publish(self, topic: Topic, *bodies: str, **changes: Any) -> None:
        """Publish messages and wait until the fan-out has dealt with them."""
        messages = tuple(
            Message(secrets.token_bytes(16), body.encode(), **changes) for body in bodies
        )
        found = await self.stage.broker.call(Append(topic, 0, messages))
        await self.fan_outs.copied(topic, 0, found[-1].offset)
        copier, _ = self.fan_outs._running[topic.topic_id, 0]
        assert copier.position > found[-1].offset, "the fan-out did not get through in time"

    async def received(self, queue: Topic) -> list[Message]:
        request = LeaseRequest(count=10, lease_ms=30_000, wait_ms=0)
        found = await self.stage.broker.call(Lease(queue, request))
        return [each.record.message for each in found]

    async def bodies(self, queue: Topic) -> list[str]:
        return [message.body.decode() for message in await self.received(queue)]

    def outcomes(self) -> dict[str, int]:
        return {outcome: count for (_, outcome), count in self.metrics.attempts.items()}


def _arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def redrive(name: str) -> dict[str, str]:
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": _arn(name)})}


async def _unsigned(_: Topic) -> None:
    return None


@asynccontextmanager
async def fanning(folder: Path) -> AsyncIterator[Fan]:
    async with on_stage(folder) as stage:
        subscriptions, metrics, denied = MemorySubscriptions(), PushMetrics(), set[str]()
        queues, used = Troubled(stage.broker), list[tuple[Any, ...]]()
        rows: list[DeliveryRow] = []
        fan_outs = FanOuts(
            FanOutSetup(
                broker=stage.broker,
                anywhere=queues,  # type: ignore[arg-type]
                catalog=stage.catalog,
                subscriptions=subscriptions,
                clock=stage.clock,
                entropy=secrets.token_bytes,
                sealer=None,
                may_send=lambda _, queue: queue.name not in denied,
                signer_of=_unsigned,
                metrics=metrics,
                count=lambda topic, *counts: used.append((topic.name, *counts)),
                note=rows.append,
            ),
            publish_wait_ms=int(SECONDS_MAX * 1_000),
        )
        try:
            yield Fan(stage, subscriptions, metrics, queues, denied, fan_outs, used, rows)
        finally:
            await fan_outs.stop()


@pytest.fixture
async def fan(tmp_path: Path) -> AsyncIterator[Fan]:
    async with fanning(tmp_path) as made:
        yield made


async def test_each_queue_gets_a_copy(fan: Fan) -> None:
    topic = await fan.sns()
    queues = [await fan.stage.topic(name) for name in ("a", "b")]
    for queue in queues:
        await fan.subscribe(topic, queue.name, **RAW)
    await fan.publish(topic, "one", "two")
    for queue in queues:
        assert sorted(await fan.bodies(queue)) == ["one", "two"]
    assert fan.outcomes() == {"delivered": 4}
    assert fan.rows == [], "copies that succeed have no rows"
    assert not fan.metrics.refused
    assert [sum(numbers) for numbers in zip(*(one[1:] for one in fan.used), strict=True)] == [
        4, 4, 12
    ]  # fmt: skip


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize("reason", ["missing", "denied", "too_large"])
async def test_a_copy_that_the_queue_cannot_take_is_a_dead_letter(
    fan: Fan, reason: str, is_raw: bool
) -> None:
    topic, form = await fan.sns(), RAW if is_raw else {}
    dead, good = await fan.stage.topic("dead"), await fan.stage.topic("good")
    settings = QueueSettings(message_bytes_max=1_024 if reason == "too_large" else 262_144)
    if reason != "missing":
        await fan.stage.topic("bad", settings=settings)
    if reason == "denied":
        fan.denied.add("bad")
    bad = await fan.subscribe(topic, "bad", **form, **redrive("dead"))
    await fan.subscribe(topic, "good", **RAW)
    body = "x" * 1_025
    color = {"color": Attribute("String", b"red")}
    await fan.publish(topic, body, attributes=color)
    assert await fan.bodies(good) == [body]
    [letter] = await fan.received(dead)
    if is_raw:
        assert letter.body.decode() == body
        assert letter.attributes == color
    else:
        envelope = json.loads(letter.body)
        assert (envelope["Type"], envelope["Message"]) == ("Notification", body)
        assert envelope["MessageAttributes"] == {"color": {"Type": "String", "Value": "red"}}
        assert letter.attributes is None
    assert fan.outcomes() == {"delivered": 1, "dead": 1}
    assert fan.metrics.refused == {reason: 1}
    await fan.subscriptions.delete(bad.id)
    await fan.publish(topic, "later")
    assert await fan.received(dead) == []


@pytest.mark.parametrize("obstacle", ["no policy", "missing", "denied", "too_large"])
async def test_a_message_that_no_dead_letter_queue_takes_is_dropped_and_counted(
    fan: Fan, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await fan.sns()
    good = await fan.stage.topic("good")
    if obstacle != "missing":
        bytes_max = 1_024 if obstacle == "too_large" else 262_144
        await fan.stage.topic("dead", settings=QueueSettings(message_bytes_max=bytes_max))
    if obstacle == "denied":
        fan.denied.add("dead")
    await fan.subscribe(
        topic, "absent", **RAW, **({} if obstacle == "no policy" else redrive("dead"))
    )
    await fan.subscribe(topic, "good", **RAW)
    for _ in range(3):
        await fan.publish(topic, "x" * 1_025)
    assert len(await fan.bodies(good)) == 3
    assert fan.outcomes() == {"delivered": 3, "dropped": 3}
    assert fan.metrics.refused == {"missing": 3}
    told = [one for one in caplog.records if one.message == "messages not delivered to queues"]
    assert [one.__dict__["reason"] for one in told] == ["missing: 1"], "one line in a minute"
    fan.stage.clock.advance(copying.LOG_INTERVAL_MS)
    await fan.publish(topic, "x" * 1_025)
    assert caplog.records[-1].__dict__["reason"] == "missing: 3"


async def test_a_dead_letter_keeps_group_and_deduplication_id(fan: Fan) -> None:
    topic = await fan.sns("orders.fifo", kind=Kind.FIFO_STREAM)
    dead = await fan.stage.topic("dead.fifo", fifo=True)
    await fan.subscribe(topic, "absent.fifo", **RAW, **redrive("dead.fifo"))
    await fan.publish(topic, "one", group="g", dedup_id="d1")
    await fan.publish(topic, "two", group="g", dedup_id="d2")
    [first] = (await fan.received(dead))[:1]
    assert (first.body, first.group, first.dedup_id) == (b"one", "g", "d1")
    assert fan.outcomes() == {"dead": 2}


async def test_a_standard_queue_gets_no_group_of_a_fifo_topic(fan: Fan) -> None:
    ordered = await fan.sns("orders.fifo", kind=Kind.FIFO_STREAM)
    standard = await fan.sns("events")
    queue = await fan.stage.topic("q")
    await fan.subscribe(ordered, "q", **RAW)
    await fan.publish(ordered, "one", group="g", dedup_id="d1")
    [message] = await fan.received(queue)
    assert (message.group, message.dedup_id) == (None, None)
    await fan.subscribe(standard, "q", **RAW)
    await fan.publish(standard, "two", group="g")
    [message] = await fan.received(queue)
    assert (message.group, message.dedup_id) == ("g", None)


async def test_a_fifo_queue_takes_no_dead_letter_without_a_group(fan: Fan) -> None:
    topic = await fan.sns()
    dead = await fan.stage.topic("dead.fifo", fifo=True)
    await fan.subscribe(topic, "absent", **RAW, **redrive("dead.fifo"))
    await fan.publish(topic, "one")
    assert await fan.received(dead) == []
    assert fan.outcomes() == {"dropped": 1}


async def test_a_raw_copy_with_too_many_attributes_is_a_dead_letter_with_all_of_them(
    fan: Fan,
) -> None:
    topic = await fan.sns()
    queue, dead = await fan.stage.topic("q"), await fan.stage.topic("dead")
    await fan.subscribe(topic, "q", **RAW, **redrive("dead"))
    many = {f"a{number}": Attribute("Number", b"1") for number in range(11)}
    await fan.publish(topic, "one", attributes=many)
    assert await fan.received(queue) == []
    [letter] = await fan.received(dead)
    assert letter.attributes == many
    assert fan.metrics.refused == {"too_many_attributes": 1}


async def test_attributes_count_for_the_size_of_a_raw_copy(fan: Fan) -> None:
    topic = await fan.sns()
    queue = await fan.stage.topic("q", settings=QueueSettings(message_bytes_max=1_024))
    await fan.subscribe(topic, "q", **RAW)
    await fan.publish(topic, "x" * 1_000, attributes={"a": Attribute("String", b"y" * 17)})
    await fan.publish(topic, "x" * 1_000, attributes={"a": Attribute("String", b"y" * 18)})
    assert len(await fan.received(queue)) == 1
    assert fan.metrics.refused == {"too_large": 1}


async def test_only_queues_can_be_the_endpoint(fan: Fan) -> None:
    """The stream of an SNS topic has a queue's ARN too: copies into it would never end."""
    topic, other = await fan.sns(), await fan.sns("other")
    for name in (topic.name, other.name):
        await fan.subscribe(topic, name, **RAW, **redrive(topic.name))
    await fan.publish(topic, "one")
    assert fan.outcomes() == {"dropped": 2}
    assert fan.metrics.refused == {"missing": 2}


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TopicNotFound("bad"), "missing"), (InvalidRequest("no"), "invalid")],
)
async def test_a_queue_that_rejects_the_append_for_good_gets_no_second_attempt(
    fan: Fan, error: Exception, reason: str
) -> None:
    topic = await fan.sns()
    dead, _ = await fan.stage.topic("dead"), await fan.stage.topic("bad")
    await fan.subscribe(topic, "bad", **RAW, **redrive("dead"))
    fan.queues.errors["bad"] = [error]
    await fan.publish(topic, "one", "two")
    assert sorted(await fan.bodies(dead)) == ["one", "two"]
    assert fan.metrics.refused == {reason: 2}
    fan.queues.errors |= {"bad": [error], "dead": [error]}
    await fan.publish(topic, "three")
    assert fan.outcomes() == {"dead": 2, "dropped": 1}
    told = [(row.outcome, row.reason, row.partition, row.topic) for row in fan.rows]
    assert told == [(outcome, reason, 0, topic.name) for outcome in ("dead", "dead", "dropped")]
    assert len({row.offset for row in fan.rows}) == 3


async def test_a_forged_structure_does_not_stop_the_topic(fan: Fan) -> None:
    """A Kafka producer can write any header, also those with which Publish marks messages."""
    topic = await fan.sns()
    queue = await fan.stage.topic("q")
    await fan.subscribe(topic, "q", **RAW)
    await fan.publish(topic, "not JSON", attributes={STRUCTURE: Attribute("String", b"json")})
    await fan.publish(topic, "next")
    assert await fan.bodies(queue) == ["not JSON", "next"]


async def test_a_topic_without_new_messages_is_left_alone(fan: Fan) -> None:
    """Each bookmark is a record of the log, which wakes the fan-out."""
    topic, queue = await fan.sns(), await fan.stage.topic("q")
    await fan.subscribe(topic, queue.name, **RAW)
    for number in range(3):
        await fan.publish(topic, str(number))
    moved = asyncio.Event()
    remove = fan.stage.broker.on_advance(topic, 0, moved.set)
    await fan.stage.broker.call(MoveBookmark(topic, 0, "another", 1))
    await asyncio.wait_for(moved.wait(), SECONDS_MAX)
    remove()
    before = await fan.stage.broker.call(Ends(topic, 0))
    for _ in range(20):  # more than enough turns for a fan-out that answers events with events
        await fan.stage.broker.call(ReadBookmark(topic, 0, "another"))
        await asyncio.sleep(0.01)
    after = await fan.stage.broker.call(Ends(topic, 0))
    assert after.last_stable_offset - before.last_stable_offset <= 1


async def test_what_retention_removes_before_it_is_copied_is_counted_once(
    fan: Fan, caplog: pytest.LogCaptureFixture
) -> None:
    topic, queue = await fan.sns(), await fan.stage.topic("q")
    await fan.subscribe(topic, "q", **RAW)
    gate = fan.queues.gates["q"] = asyncio.Event()
    first = asyncio.create_task(fan.publish(topic, "first"))
    await asyncio.wait_for(fan.queues.waiting.wait(), SECONDS_MAX)
    messages = tuple(Message(secrets.token_bytes(16), body) for body in (b"a", b"b", b"c", b"d"))
    appended = await fan.stage.broker.call(Append(topic, 0, messages))
    await fan.stage.broker.call(DeleteRecords(topic, 0, appended[3].offset))
    gate.set()
    await first
    await fan.publish(topic, "last")
    assert await fan.bodies(queue) == ["first", "d", "last"]
    assert fan.metrics.lost == 3
    lines = [one for one in caplog.records if one.levelname == "ERROR"]
    assert [one.__dict__["count"] for one in lines] == [3]
    assert fan.metrics.fan_outs.count >= 2


async def delete_all(fan: Fan, topic: Topic) -> None:
    end = (await fan.stage.broker.call(Ends(topic, 0))).high_watermark
    await fan.stage.broker.call(DeleteRecords(topic, 0, end))


async def test_the_next_leader_does_not_count_lost_messages_again(fan: Fan) -> None:
    topic, queue = await fan.sns(), await fan.stage.topic("q")
    await fan.subscribe(topic, "q", **RAW)
    await fan.publish(topic, "first")
    for _ in range(2):
        fan.fan_outs.led(topic, 0, is_led=False)
        if not fan.metrics.lost:
            messages = tuple(Message(secrets.token_bytes(16), b"gone") for _ in range(3))
            await fan.stage.broker.call(Append(topic, 0, messages))
            await delete_all(fan, topic)
        fan.fan_outs.led(topic, 0, is_led=True)
        await until(lambda: fan.metrics.lost > 0, "the lost messages are counted")
    counted = fan.metrics.lost
    await fan.publish(topic, "last")
    assert counted == fan.metrics.lost <= 4  # with the bookmark of the first message
    assert await fan.bodies(queue) == ["first", "last"]


async def test_copied_messages_are_not_lost_if_their_bookmark_was_removed_with_them(
    fan: Fan, caplog: pytest.LogCaptureFixture
) -> None:
    topic, queue = await fan.sns(), await fan.stage.topic("q")
    await fan.subscribe(topic, "q", **RAW)
    await fan.publish(topic, "first", "second")
    fan.fan_outs.led(topic, 0, is_led=False)
    await fan.stage.broker.call(MoveBookmark(topic, 0, "sns", -1))
    await delete_all(fan, topic)
    fan.fan_outs.led(topic, 0, is_led=True)
    await fan.publish(topic, "last")
    assert await fan.bodies(queue) == ["first", "second", "last"]
    assert fan.metrics.lost == 0
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_copies_in_memory_are_bounded(fan: Fan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.push.queue_copies.PLANNED_BYTES_MAX", 100)
    topic = await fan.sns()
    queues = [await fan.stage.topic(f"q{number}") for number in range(5)]
    for queue in queues:
        await fan.subscribe(topic, queue.name, **RAW)
    bodies = [str(number) * 30 for number in range(8)]
    await fan.publish(topic, *bodies)
    for queue in queues:
        assert await fan.bodies(queue) == bodies
    assert fan.outcomes() == {"delivered": 40}


async def test_a_subscription_that_ends_while_others_are_copied_is_left_out(fan: Fan) -> None:
    topic = await fan.sns()
    queue = await fan.stage.topic("q")
    await fan.subscribe(topic, "q", **RAW)
    ending = [await fan.subscribe(topic, f"absent-{number}", **RAW) for number in range(200)]
    publishing = asyncio.create_task(fan.publish(topic, *map(str, range(20))))
    await asyncio.sleep(0)
    for one in ending:
        await fan.subscriptions.delete(one.id)
    await publishing
    assert len(await fan.bodies(queue)) == 10  # of one receive
