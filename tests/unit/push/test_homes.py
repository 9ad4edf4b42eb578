"""Shares and filters of subscriptions that end, come back or move to another home."""

import asyncio

import msgspec
from tests.harness.endpoint import Endpoint, Step
from tests.unit.push.stage import PushStage, until

from penstock.model.calls import Ends
from penstock.model.message import Attribute
from penstock.model.subscription import Replay, ReplayState, SubscriptionState, share_group

RED = {"colour": Attribute("String", b"red")}


async def test_a_subscription_that_is_restored_while_its_last_request_is_made_goes_on(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/restored", Step(hold=True), Step())
    one = await push.subscribe(topic, "/restored", RawMessageDelivery="true")
    await push.publish(topic, "1")
    await push.seen(1)
    await push.change(one, state=SubscriptionState.DELETED)
    await asyncio.sleep(0)  # the pusher begins to close
    [closing] = push.pushers._closing
    ends = await push.stage.broker.call(Ends(topic, 0))
    await push.change(one, state=SubscriptionState.CONFIRMED, start_offsets=(ends.high_watermark,))
    endpoint.release("/restored")
    await closing
    await push.publish(topic, "2")
    assert [each.body for each in await push.seen(2)] == ["1", "2"]


async def test_a_sweep_deletes_the_shares_of_what_has_ended(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/swept")
    await push.publish(topic, "1")
    await push.seen(1)
    replay = Replay(1, starts=(0,), until=(1,), created_at_ms=1)
    await push.change(one, paused="so that the replay does not end", replays=(replay,))
    find, group = push.stage.broker.find_share, share_group(one, 1)
    await until(lambda: find(topic, group) is not None, "there is no share")
    await push.pushers.sweep()
    await push.pushers.sweep()
    assert find(topic, group) is not None, "the replay is open"
    # A home that fails after the replay has ended leaves its share.
    await push.stop()
    done = msgspec.structs.replace(replay, state=ReplayState.COMPLETED)
    await push.change(one, replays=(done,))
    push.start()
    await push.pushers.sweep()
    assert find(topic, group) is not None, "this node may not know of a new replay yet"
    await push.pushers.sweep()
    assert find(topic, group) is None
    assert find(topic, share_group(one)) is not None


async def test_the_filter_of_a_deleted_share_is_forgotten(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/red", FilterPolicy='{"colour":["red"]}')
    await push.publish(topic, "red", attributes=RED)
    await push.seen(1)
    await push.finished(topic, one)
    share = push.stage.broker.find_share(topic, share_group(one))
    assert share is not None
    assert push.pushers._filters
    await push.subscriptions.delete(one.id)
    await until(
        lambda: push.stage.broker.find_share(topic, share_group(one)) is None, "the share is left"
    )
    push.pushers.topic_deleted(share)
    assert not push.pushers._filters


async def test_a_home_of_many_subscriptions_starts_them_in_steps(push: PushStage) -> None:
    topic = await push.sns_topic()
    push.pushers.led(topic, 0, is_led=False)
    ones = [await push.subscribe(topic, f"/many/{number}", webhook={}) for number in range(120)]
    running, counts = push.pushers._running, list[int]()
    push.pushers.led(topic, 0, is_led=True)
    while len(running) < len(ones):
        counts.append(len(running))
        await asyncio.sleep(0)
    assert counts == [0, 50, 100]
    await push.subscriptions.delete(ones[0].id)
    push.pushers.topic_changed(topic)
    push.pushers.led(topic, 0, is_led=False)
    assert not running, "at once, because the limits are counted elsewhere now"
    await until(lambda: not push.pushers._due, "some are left")
    assert not running


async def test_a_replay_that_waited_while_partitions_were_added_is_sent(push: PushStage) -> None:
    topic = await push.sns_topic(partitions=2)
    await push.publish(topic, "old")
    one = await push.subscribe(topic, "/grown", RawMessageDelivery="true")
    replay = Replay(1, starts=(0,), until=(1,), created_at_ms=1)  # of a topic with one partition
    await push.publish(topic, "new", partition=1)
    await push.seen(1)
    await push.change(one, replays=(replay,))
    assert [each.body for each in await push.seen(2)] == ["new", "old"]
    await until(
        lambda: push.stored(one).replays[0].state is ReplayState.COMPLETED, "the replay is open"
    )
