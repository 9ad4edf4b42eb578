"""Batches of webhooks: which messages are in one request, and how long it waits for more."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.stage import message
from tests.unit.push.stage import PushStage, until

from penstock.model.calls import Stats
from penstock.model.message import Attribute, Record
from penstock.model.subscription import Replay, Subscription, share_group
from penstock.model.topic import Topic
from penstock.push import pushing
from penstock.push.batches import Batches

LONG_MS = 3_600_000  # more than the admin API accepts: such a batch is never sent before it is full


async def _hook(push: PushStage, topic: Topic, path: str, **webhook: Any) -> Subscription:
    """Create a webhook whose batches wait for a long time."""
    one = await push.subscribe(topic, path, webhook={"batch_wait_ms": 10_000, **webhook})
    longer = one.webhook.replace('"batch_wait_ms":10000', f'"batch_wait_ms":{LONG_MS}')
    assert longer != one.webhook
    await push.change(one, webhook=longer)
    return one


async def _leased(push: PushStage, topic: Topic, one: Subscription, count: int) -> None:
    """Wait until as many messages of a subscription have leases."""
    find, group = push.stage.broker.find_share, share_group(one)
    await until(lambda: find(topic, group) is not None, "there is no share")
    share = find(topic, group)
    assert share is not None
    while (await push.stage.broker.call(Stats(share))).in_flight != count:
        await asyncio.sleep(0.005)


def _lines(body: str) -> list[str]:
    return sorted(body.split())


async def test_a_full_batch_is_sent_at_once(push: PushStage) -> None:
    topic = await push.sns_topic(partitions=2)
    one = await _hook(push, topic, "/full", batch_max=3)
    await push.publish(topic, "1")
    await _leased(push, topic, one, 1)
    await push.publish(topic, "2", "3", partition=1)
    assert [_lines(each.body) for each in await push.seen(1)] == [["1", "2", "3"]]
    await push.publish(topic, *map(str, range(4, 12)))
    seen = [_lines(each.body) for each in await push.seen(3)]
    assert [len(lines) for lines in seen] == [3, 3, 3], "two messages wait for another"
    await push.publish(topic, "12")
    seen = [_lines(each.body) for each in await push.seen(4)]
    assert sorted(int(line) for lines in seen for line in lines) == list(range(1, 13))


async def test_the_wait_of_each_batch_begins_with_its_first_message(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/each", webhook={"batch_max": 2, "batch_wait_ms": 2_000})
    await push.publish(topic, "1")
    await _leased(push, topic, one, 1)
    await asyncio.sleep(0.7)
    await push.publish(topic, "2", "3")
    first, second = await push.seen(2)
    assert (_lines(first.body), _lines(second.body)) == (["1", "2"], ["3"])
    assert (second.at_ns - first.at_ns) / 1e9 > 1.9
    await push.finished(topic, one)


async def test_a_batch_without_room_for_the_next_message_is_full(push: PushStage) -> None:
    topic = await push.sns_topic()
    await _hook(push, topic, "/bytes", batch_max=1_000, batch_bytes_max=100_000)
    for digit in "123":
        await push.publish(topic, digit * 45_000)
    [request] = await push.seen(1)
    assert request.body_bytes == 2 * 45_001, "two messages, each with a line break"


async def test_a_batch_has_only_messages_that_the_filter_wants(push: PushStage) -> None:
    topic = await push.sns_topic()
    await _hook(push, topic, "/red", batch_max=2, filter='{"colour":["red"]}')
    for number, colour in enumerate(("blue", "red", "blue", "blue", "blue", "red")):
        attributes = {"colour": Attribute("String", colour.encode())}
        await push.publish(topic, str(number), attributes=attributes)
    [request] = await push.seen(1)
    assert _lines(request.body) == ["1", "5"]


async def test_a_full_batch_of_a_group_is_sent_at_once(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await _hook(push, topic, "/group", batch_max=3, ordered="group")
    for body in ("1", "2", "3"):
        await push.publish(topic, body, group="g")
    assert [each.body.split() for each in await push.seen(1)] == [["1", "2", "3"]]
    await push.finished(topic, one)


async def test_a_group_that_is_not_full_is_sent_after_the_wait(push: PushStage) -> None:
    topic = await push.sns_topic()
    webhook = {"batch_max": 3, "batch_wait_ms": 1_500, "ordered": "group"}
    one = await push.subscribe(topic, "/short", webhook=webhook)
    await _leased(push, topic, one, 0)
    await push.publish(topic, "1", group="g")
    await push.publish(topic, "2", group="g")
    assert [each.body.split() for each in await push.seen(1)] == [["1", "2"]]
    await push.finished(topic, one)


async def test_a_full_batch_of_a_queue_is_sent_at_once(push: PushStage) -> None:
    queue = await push.queue("work")
    await _hook(push, queue, "/work", batch_max=2, mode="consume")
    await push.publish(queue, "1")
    await push.publish(queue, "2")
    assert [_lines(each.body) for each in await push.seen(1)] == [["1", "2"]]


async def test_the_last_batch_of_a_replay_does_not_wait(push: PushStage) -> None:
    topic = await push.sns_topic()
    await push.publish(topic, "1", "2", "3")
    one = await _hook(push, topic, "/replay", batch_max=2)
    await push.change(one, replays=(Replay(1, starts=(0,), until=(3,), created_at_ms=1),))
    seen = [_lines(each.body) for each in await push.seen(2)]
    assert sorted(seen) == [["1", "2"], ["3"]]


async def test_a_pause_releases_the_messages_that_wait(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await _hook(push, topic, "/pause", batch_max=2)
    await push.publish(topic, "1")
    await _leased(push, topic, one, 1)
    await push.change(one, paused="by an operator")
    await _leased(push, topic, one, 0)
    await push.change(one, paused=None)
    await push.publish(topic, "2")
    assert [_lines(each.body) for each in await push.seen(1)] == [["1", "2"]]
    await push.finished(topic, one)


@pytest.mark.parametrize("is_moved", [True, False])
async def test_a_new_home_gets_the_messages_that_waited(push: PushStage, is_moved: bool) -> None:
    topic = await push.sns_topic()
    one = await _hook(push, topic, "/home", batch_max=2)
    await push.publish(topic, "1")
    await _leased(push, topic, one, 1)
    if is_moved:
        push.pushers.led(topic, 0, is_led=False)
        await _leased(push, topic, one, 0)
        push.pushers.led(topic, 0, is_led=True)
    else:
        await push.stop()
        push.start()
    await push.publish(topic, "2")
    assert [_lines(each.body) for each in await push.seen(1)] == [["1", "2"]]
    await push.finished(topic, one)


async def test_messages_whose_lease_would_end_too_soon_are_leased_again(
    push: PushStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await push.sns_topic()
    webhook = {"batch_max": 2, "batch_wait_ms": 1_000, "timeout_ms": 60_000}
    one = await push.subscribe(topic, "/stale", webhook=webhook)
    monkeypatch.setattr(pushing, "LEASE_MARGIN_MS", -30_000)
    await push.publish(topic, "1")
    await _leased(push, topic, one, 1)
    monkeypatch.undo()
    await push.seen(1)
    await push.finished(topic, one)
    assert [row.attempt > 1 for row in push.rows] == [True]
    assert len(push.ledger()) == 1


# ── Which messages are in one request ────────────────────────────────────────────────────────


def _item(number: int, group: str, size: int) -> Any:
    record = Record(number, 0, message("x" * size, group=group))
    return SimpleNamespace(message=SimpleNamespace(record=record, partition=0))


@given(
    leases=st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=8), max_size=8
    ),
    batch_max=st.integers(1, 4),
    is_ordered=st.booleans(),
    may_wait=st.booleans(),
)
def test_requests_have_all_messages_in_order_and_as_many_as_fit(
    leases: list[list[tuple[str, int]]], batch_max: int, is_ordered: bool, may_wait: bool
) -> None:
    plan: Any = SimpleNamespace(batch_max=batch_max, is_ordered=is_ordered, request_bytes=100)
    may_wait = may_wait and not is_ordered
    batches, sent, items = Batches(), list[Any](), list[Any]()
    for lease in leases:
        new = [_item(len(items) + n, *each) for n, each in enumerate(lease)]
        items += new
        requests = batches.split(new, plan, may_wait=may_wait)
        for request in requests:
            assert 1 <= len(request) <= batch_max
            assert len(request) == 1 or sum(map(_size, request)) <= plan.request_bytes
            assert not is_ordered or len({_group(each) for each in request}) == 1
            sent += request
        followers = [*requests[1:], batches.waiting] if may_wait else requests[1:]
        for request, follower in zip(requests, followers, strict=False):
            is_full = len(request) == batch_max
            has_room = follower and sum(map(_size, (*request, follower[0]))) <= plan.request_bytes
            is_same = not is_ordered or (follower and _group(request[0]) == _group(follower[0]))
            assert is_full or not (has_room and is_same), "the next message fits"
            assert follower or is_full, "a batch that is not full waits"
        assert len(batches.waiting) < batch_max
        assert may_wait or not batches.waiting
    sent += batches.take()
    assert sent == items
    assert not batches.take()


def _size(item: Any) -> int:
    return len(item.message.record.message.body)


def _group(item: Any) -> str | None:
    group: str | None = item.message.record.message.group
    return group
